//! What operators do to a store: upgrades that are interrupted, moves to another place, backups that are
//! restored, and programs that are older than the store.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use onlyonce_testkit::{
    promise::{Broken, Promise, check},
    servers::{MariaDb, Postgres, Redis},
};
use tempfile::TempDir;
use tokio::{task::block_in_place, time::Instant};

use crate::{
    golden::{Files, Golden, Many, is_read, setup},
    harness::{
        Gateway, Request, Setup, Upstream, eventually,
        history::{Crowd, Habits, TERMS},
        process::binary,
        soak,
    },
    lost_memory::copy_folder,
    postgres_schema::{onlyonce, refused, text},
    store_identity::Server as _,
};

const HABITS: Habits = Habits {
    new_key_after: Some(3),
    pause: 8,
};

/// How often `migrate` is killed.
fn kills() -> u32 {
    if soak() { 200 } else { 12 }
}

/// Requests between two events.
fn some() -> u64 {
    if soak() { 3_000 } else { 150 }
}

fn migrate(url: &str) {
    let made = onlyonce(&["migrate", "--store", url]);
    assert!(made.status.success(), "{}", text(&made.stderr));
}

/// Starts `migrate` and kills it after a while. Whether it was still at it.
fn killed(url: &str, after: Duration) -> bool {
    let mut migrating = Command::new(binary())
        .args(["migrate", "--store", url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    migrating.kill().unwrap();
    migrating.wait().unwrap().code().is_none()
}

/// Goal: an upgrade that dies at any moment is completed by the next, and loses nothing.
///
/// Method: stores of the first version, and empty ones; `migrate` is killed with -9 at moments spread over
/// the time that it takes, then run again.
/// Evidence: the second one succeeds; what the old program knew is answered as before, and new keys are taken.
async fn migrate_is_killed<G: Golden>() {
    let mut place = G::start();
    let url = block_in_place(|| place.restored(1));
    let began = Instant::now();
    block_in_place(|| migrate(&url));
    let takes = began.elapsed();
    let mut interrupted = 0;
    for kill in 0..kills() {
        let version = u32::from(kill % 4 != 3);
        let url = block_in_place(|| {
            let url = place.restored(version);
            interrupted += u32::from(killed(&url, takes * kill / kills()));
            migrate(&url);
            url
        });
        let upstream = Upstream::start();
        let gateway = setup(&url).start(&upstream).await;
        if version > 0 {
            is_read(&gateway, &upstream).await;
        }
        gateway.send(&Request::pay("new")).await.expect(201);
        assert_eq!(upstream.executions(), 1);
    }
    println!("{}: {interrupted} of {} migrations died", G::NAME, kills());
    assert!(interrupted > 0, "one that is interrupted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_is_killed_on_sqlite() {
    migrate_is_killed::<Files>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_is_killed_on_postgres() {
    migrate_is_killed::<Many<Postgres>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_is_killed_on_mariadb() {
    migrate_is_killed::<Many<MariaDb>>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrate_is_killed_on_redis() {
    migrate_is_killed::<Option<Redis>>().await;
}

/// Goal: where a server commits each change of a table by itself, an upgrade may end after any statement.
///
/// Method: a store of the first version; the first statements of the upgrade, one more each time; `migrate`.
/// Evidence: it succeeds; what the old program knew is answered as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_of_mariadb_ends_after_every_statement() {
    let script = onlyonce_store::mysql::script(1);
    let ends: Vec<usize> = script.match_indices(";\n").map(|(at, _)| at + 1).collect();
    assert!(ends.len() > 10, "{}", ends.len());
    let mut place = Many::<MariaDb>::start();
    for end in &ends {
        let url = block_in_place(|| {
            let url = place.restored(1);
            let (_, name) = url.rsplit_once('/').unwrap();
            place.server.run_sql(name, &script[..*end]);
            migrate(&url);
            url
        });
        let upstream = Upstream::start();
        let gateway = setup(&url).start(&upstream).await;
        is_read(&gateway, &upstream).await;
    }
    println!("MariaDB: {} statements", ends.len());
}

/// Every gateway ends in good order.
async fn stop(gateways: &mut [Gateway]) {
    for gateway in gateways {
        gateway.sigterm();
        assert!(gateway.exited().await.success());
    }
}

/// The judgement of the checker, but for the promises in `but`, which are counted.
async fn judged(
    what: &str,
    crowd: Crowd,
    gateways: &[Gateway],
    upstream: &Upstream,
    but: &[Promise],
) {
    let calls = crowd.tape().clone();
    let history = crowd.end(gateways, upstream).await;
    let expected = |broken: &Broken| but.contains(&broken.promise);
    let (expected, broken): (Vec<_>, Vec<_>) =
        check(&TERMS, &history).into_iter().partition(expected);
    println!(
        "{what}: {} requests, {} outcomes heard, {} executions, {} answers lost, {} promises broken",
        calls.calls(),
        calls.outcomes(),
        upstream.executions(),
        expected.len(),
        broken.len()
    );
    assert!(broken.is_empty(), "{what}: {broken:?}");
}

async fn is_lost(gateway: &Gateway) -> bool {
    let ready = gateway.admin_open("/readyz").await;
    ready.json()["store"]["lost_at"].is_string()
}

/// Goal: a store that is stopped, copied and started elsewhere is the same store.
///
/// Method: clients; the gateway and the store stop, the store is copied to another place, and a gateway starts
/// there, with the same spool; clients go on.
/// Evidence: the checker's judgement; no loss is recognised.
async fn moves(what: &str, url: &str, elsewhere: impl FnOnce() -> String) {
    let upstream = Arc::new(Upstream::start());
    let spool = TempDir::new().unwrap();
    let spool = format!("spool_dir: \"{}\"", spool.path().display());
    let at = |url: &str| setup(url).store_options(&spool);
    let mut gateways = vec![at(url).start(&upstream).await];
    let crowd = Crowd::start(&gateways, &upstream, HABITS);
    crowd.sends(some()).await;
    stop(&mut gateways).await;
    let url = block_in_place(elsewhere);
    gateways = vec![at(&url).start(&upstream).await];
    crowd.follow(&gateways);
    crowd.sends(some()).await;
    assert!(!is_lost(&gateways[0]).await, "{what}");
    judged(what, crowd, &gateways, &upstream, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_moves() {
    let folder = TempDir::new().unwrap();
    let [one, other] = ["one.db", "other.db"].map(|name| folder.path().join(name));
    let url = |file: &Path| format!("sqlite:{}", file.display());
    moves("SQLite, moved", &url(&one), || {
        fs::copy(&one, &other).unwrap();
        url(&other)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_log_moves() {
    let settings = ["appendonly yes", "appendfsync always"];
    let [mut one, mut other] = block_in_place(|| [(); 2].map(|()| Redis::start_with(&settings)));
    let url = one.url();
    moves("Redis, moved", &url, || {
        one.stop();
        other.stop();
        let log = |server: &Redis| server.folder().join("appendonlydir");
        copy_folder(&log(&one), &log(&other));
        other.boot();
        other.url()
    })
    .await;
}

/// Goal: a backup that was made while clients were there, and is restored later, lets nothing be executed
/// twice. Of SQLite it is a copy of the file while the gateway is stopped.
///
/// Method: clients at gateways that each have a spool; a backup, and clients go on until every gateway has
/// noted on its disk how far the store has come; the gateways stop, the backup is restored, they start, and
/// clients go on.
/// Evidence: the checker's judgement. Of keys that were in progress in the backup the answer is lost; new ones
/// get `idempotency_history_lost`.
async fn is_restored(
    what: &str,
    url: &str,
    back_up: impl AsyncFnOnce(&mut [Gateway]),
    restore: impl FnOnce(),
) {
    let upstream = Arc::new(Upstream::start());
    let spools: Vec<TempDir> = (0..if url.starts_with("sqlite:") { 1 } else { 2 })
        .map(|_| TempDir::new().unwrap())
        .collect();
    let mut gateways = Vec::new();
    for spool in &spools {
        let options = format!("spool_dir: \"{}\"", spool.path().display());
        let setup: Setup = setup(url).store_options(&options);
        gateways.push(setup.start(&upstream).await);
    }
    let known = |spool: &TempDir| fs::read(spool.path().join("store.known")).unwrap_or_default();
    let crowd = Crowd::start(&gateways, &upstream, HABITS);
    crowd.sends(some()).await;
    back_up(&mut gateways).await;
    crowd.follow(&gateways);
    for spool in &spools {
        // What is noted first may be of a moment before the backup.
        for _ in 0..2 {
            let before = known(spool);
            eventually("the epoch on the disk", async || {
                (known(spool) != before).then_some(())
            })
            .await;
        }
    }
    crowd.sends(some()).await;
    stop(&mut gateways).await;
    block_in_place(restore);
    for gateway in &mut gateways {
        gateway.restart().await;
        assert!(is_lost(gateway).await, "{what}");
    }
    crowd.follow(&gateways);
    crowd.sends(some()).await;
    for gateway in &gateways {
        let answer = gateway.send(&Request::pay("new")).await;
        answer.refused(503, "idempotency_history_lost");
    }
    judged(what, crowd, &gateways, &upstream, &[Promise::Kept]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_sqlite() {
    let folder = TempDir::new().unwrap();
    let [file, backup] = ["oo.db", "backup.db"].map(|name| folder.path().join(name));
    is_restored(
        "SQLite, restored",
        &format!("sqlite:{}", file.display()),
        // A copy of a file that is in use is refused by name.
        async |gateways| {
            stop(gateways).await;
            fs::copy(&file, &backup).unwrap();
            gateways[0].restart().await;
        },
        || {
            fs::copy(&backup, &file).unwrap();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_postgres() {
    let server = block_in_place(Postgres::start);
    let dump = std::cell::OnceCell::new();
    is_restored(
        "PostgreSQL, restored",
        &server.url(),
        async |_| dump.set(block_in_place(|| server.backup())).unwrap(),
        || server.restore(dump.get().unwrap()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_mariadb() {
    let server = block_in_place(MariaDb::start);
    let dump = std::cell::OnceCell::new();
    is_restored(
        "MariaDB, restored",
        &server.url(),
        async |_| dump.set(block_in_place(|| server.backup())).unwrap(),
        || server.restore(dump.get().unwrap()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_redis() {
    let settings = ["appendonly yes", "appendfsync always"];
    let server = block_in_place(|| Redis::start_with(&settings));
    let (url, port) = (server.url(), server.port().to_string());
    let folder = TempDir::new().unwrap();
    let backup = folder.path().join("backup.rdb");
    let server = std::cell::RefCell::new(server);
    is_restored(
        "Redis, restored",
        &url,
        async |_| {
            let mut copy = Command::new("redis-cli");
            copy.args(["-p", &port, "--rdb"]).arg(&backup);
            assert!(copy.output().unwrap().status.success());
        },
        || {
            let mut server = server.borrow_mut();
            server.stop();
            // A snapshot is the first part of a log.
            let log = server.folder().join("appendonlydir");
            fs::remove_dir_all(&log).unwrap();
            fs::create_dir(&log).unwrap();
            fs::copy(&backup, log.join("appendonly.aof.1.base.rdb")).unwrap();
            let manifest = "file appendonly.aof.1.base.rdb seq 1 type b\n\
                            file appendonly.aof.1.incr.aof seq 1 type i\n";
            fs::write(log.join("appendonly.aof.manifest"), manifest).unwrap();
            fs::write(log.join("appendonly.aof.1.incr.aof"), "").unwrap();
            server.boot();
        },
    )
    .await;
}

/// Goal: a program that is older than the store leaves it alone. PostgreSQL and MariaDB have tests of their own.
///
/// Method: the version of a store is set to one to come.
/// Evidence: neither a gateway nor `migrate` takes it, both say why, and it is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_a_newer_program() {
    let upstream = Upstream::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("oo.db");
    let sqlite = format!("sqlite:{}", file.display());
    let server = block_in_place(Redis::start);
    for url in [&sqlite, &server.url()] {
        migrate(url);
    }
    let newer = i64::from(Files::newest()) + 1;
    let set = |version: Option<i64>| -> i64 {
        let file = rusqlite::Connection::open(&file).unwrap();
        if let Some(version) = version {
            file.pragma_update(None, "user_version", version).unwrap();
        }
        file.pragma_query_value(None, "user_version", |row| row.get(0))
            .unwrap()
    };
    set(Some(newer));
    let layout = (onlyonce_store::redis::VERSION + 1).to_string();
    server.cli(&["hset", "oo:meta", "version", &layout]);
    for url in [&sqlite, &server.url()] {
        let logs = refused(&upstream, setup(url)).await;
        assert!(logs.contains("newer program"), "{logs}");
        let made = onlyonce(&["migrate", "--store", url]);
        assert!(!made.status.success(), "{url}");
        let said = text(&made.stderr);
        assert!(said.contains("newer program"), "{said}");
    }
    assert_eq!(set(None), newer);
    assert_eq!(server.cli(&["hget", "oo:meta", "version"]), layout);
    assert_eq!(upstream.executions(), 0);
}

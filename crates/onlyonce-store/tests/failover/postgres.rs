//! PostgreSQL alone, with a standby that commits wait for, and with one that they do not.

use std::sync::atomic::Ordering;

use onlyonce_store::Level;
use onlyonce_testkit::{
    servers::Postgres,
    tcp_faults::{FaultProxy, Mode},
};
use sqlx::{Connection as _, PgConnection};

use super::{WAITING, Writers, becomes, eventually, keys, lost, on_postgres, set};

/// How often sessions are ended, or told to stop waiting.
const ROUNDS: usize = 6;

/// Cancels and terminates sessions of the store in turn: those `of` which there is at least one.
async fn interrupt(server: &Postgres, of: &str) {
    let mut admin = PgConnection::connect(&server.url()).await.unwrap();
    for round in 0..ROUNDS {
        let how = match round % 2 {
            0 => "pg_cancel_backend",
            _ => "pg_terminate_backend",
        };
        let sql = format!("SELECT count(*) FILTER (WHERE {how}(pid)) {of}");
        eventually("a session to interrupt", async || {
            let hit = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.clone()));
            let hit: i64 = hit.fetch_one(&mut admin).await.unwrap();
            hit > 0
        })
        .await;
    }
}

/// Goal: what is taken for reserved is on the standby, whatever becomes of sessions that wait for it.
///
/// Method: writers insert; the standby falls silent; sessions that wait for it are cancelled and terminated
/// in turn; the primary is killed and the standby promoted; the writers go on there.
/// Evidence: the rows of the promoted server. The primary had others, which were not: the fault was real.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_synchronous_standby() {
    let mut primary = tokio::task::block_in_place(Postgres::start);
    let proxy = FaultProxy::start(primary.port()).await;
    let standby = tokio::task::block_in_place(|| primary.standby_through(proxy.port(), "one"));
    set(&primary, "synchronous_standby_names = 'one'");
    becomes(&primary, "sync").await;
    let store = on_postgres(&primary, Some(&standby)).await;
    assert_eq!(store.level(), Level::Sync);
    let writers = Writers::start(&store, "before");
    writers.more(50).await;
    let before = writers.end().await;
    proxy.set(Mode::Silent);
    // Nothing was on its way, so nothing of theirs is on the standby.
    let writers = Writers::start(&store, "apart");
    interrupt(&primary, WAITING).await;
    let (on_the_primary, on_the_standby) = (keys(&primary), keys(&standby));
    primary.kill();
    standby.promote();
    set(&standby, "synchronous_standby_names = ''");
    writers.more(50).await;
    let ambiguous = writers.ambiguous.load(Ordering::SeqCst);
    let reserved = &before | &writers.end().await;
    let lost = lost("synchronous", &reserved, &keys(&standby));
    let local = on_the_primary.difference(&on_the_standby).count();
    println!("{local} only on the primary, {ambiguous} ambiguous");
    assert!(lost.is_empty(), "{lost:?}");
    assert!(local > 0, "something was committed on the primary alone");
    assert!(ambiguous > 0, "somebody was told");
}

/// Goal: a standby that no commit waits for may lack the newest writes, and the level said so before.
///
/// Method: the same, with a standby that falls silent and that nobody waits for.
/// Evidence: the level before the fault; the rows of the promoted server, which lacks some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_an_asynchronous_standby() {
    let mut primary = tokio::task::block_in_place(Postgres::start);
    let proxy = FaultProxy::start(primary.port()).await;
    let standby = tokio::task::block_in_place(|| primary.standby_through(proxy.port(), "one"));
    becomes(&primary, "async").await;
    let store = on_postgres(&primary, Some(&standby)).await;
    assert_eq!(store.level(), Level::Async);
    let writers = Writers::start(&store, "k");
    writers.more(50).await;
    proxy.set(Mode::Silent);
    writers.more(50).await;
    assert_eq!(store.level(), Level::Async);
    primary.kill();
    standby.promote();
    writers.more(50).await;
    let lost = lost("asynchronous", &writers.end().await, &keys(&standby));
    assert!(!lost.is_empty(), "or else the level could be higher");
}

/// Goal: a server without standbys has what is taken for reserved when it is back.
///
/// Method: writers insert; sessions of theirs are cancelled and terminated in turn; the server is killed and
/// started again.
/// Evidence: its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone() {
    let mut server = tokio::task::block_in_place(Postgres::start);
    let store = on_postgres(&server, None).await;
    assert_eq!(store.level(), Level::Sync);
    let writers = Writers::start(&store, "k");
    writers.more(50).await;
    let of = "FROM pg_stat_activity WHERE application_name = 'onlyonce' AND state = 'active'";
    interrupt(&server, of).await;
    server.kill();
    tokio::task::block_in_place(|| server.boot());
    writers.more(50).await;
    let lost = lost("alone", &writers.end().await, &keys(&server));
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(store.level(), Level::Sync);
}

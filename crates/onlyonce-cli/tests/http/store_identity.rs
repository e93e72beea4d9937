//! A store that forgets: emptied, restored from a backup, or exchanged for another, under a running gateway
//! or while it is stopped. It takes no new keys until an operator says that what is missing is to be missed.

use std::process::Command;

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};
use tempfile::TempDir;

use crate::{
    harness::{Gateway, REPLAYED, Request, Setup, Upstream, eventually},
    postgres_schema::{onlyonce, refused, text},
};

fn pay(name: &str) -> Request {
    Request::pay(&format!("a-store-that-forgets-{name}"))
}

/// What happens to a store: SQL of its server's own client, or the programs that make and restore backups.
pub(crate) trait Server {
    fn url(&self) -> String;
    fn backup(&self) -> String;
    fn restore(&self, backup: &str);
    /// Empties the tables that hold keys, and nothing else.
    fn truncate(&self);
    /// Drops whatever the store has made.
    fn drop_all(&self);
    /// How far the store has come.
    fn epoch(&self) -> u64;
}

fn printed_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// In one transaction, so that nobody sees a part of it.
fn restored_with_psql(url: &str, backup: &str) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("backup.sql");
    std::fs::write(&file, backup).unwrap();
    let file = file.to_str().unwrap();
    let quiet = ["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-f", file, url];
    printed_by("psql", &quiet);
}

impl Server for Postgres {
    fn url(&self) -> String {
        self.url()
    }

    fn backup(&self) -> String {
        let url = self.url();
        printed_by("pg_dump", &["--inserts", "--dbname", &url])
    }

    fn restore(&self, backup: &str) {
        restored_with_psql(
            &self.url(),
            &format!("DROP SCHEMA IF EXISTS onlyonce CASCADE;\n{backup}"),
        );
    }

    fn truncate(&self) {
        self.sql("TRUNCATE onlyonce.keys, onlyonce.live");
    }

    fn drop_all(&self) {
        self.sql("DROP SCHEMA onlyonce CASCADE");
    }

    fn epoch(&self) -> u64 {
        let sql = "SELECT split_part(convert_from(value, 'UTF8'), ' ', 1) FROM onlyonce.meta \
                   WHERE name = 'epoch'";
        self.sql(sql).parse().unwrap_or(0)
    }
}

impl Server for MariaDb {
    fn url(&self) -> String {
        self.url()
    }

    fn backup(&self) -> String {
        let port = self.port().to_string();
        let login = ["-h", "127.0.0.1", "-u", "onlyonce", "-P", &port];
        let rest = ["--hex-blob", "--single-transaction", "onlyonce"];
        printed_by("mariadb-dump", &[&login[..], &rest].concat())
    }

    fn restore(&self, backup: &str) {
        self.sql(backup);
    }

    fn truncate(&self) {
        self.sql("TRUNCATE onlyonce_keys");
    }

    fn drop_all(&self) {
        self.sql("DROP DATABASE onlyonce; CREATE DATABASE onlyonce");
    }

    fn epoch(&self) -> u64 {
        let sql = "SELECT SUBSTRING_INDEX(CAST(value AS CHAR), ' ', 1) FROM onlyonce_meta \
                   WHERE name = 'epoch'";
        self.sql(sql).parse().unwrap_or(0)
    }
}

/// Sends keys until the gateway has raised the epoch, so that it knows of what was sent before.
async fn until_raised(server: &impl Server, gateway: &Gateway, name: &str) {
    let before = server.epoch();
    gateway.send(&pay(name)).await.expect(201);
    eventually("the epoch to rise", async || {
        (server.epoch() > before).then_some(())
    })
    .await;
}

/// Until `/readyz` says why the store must not be used.
async fn until_refused(gateway: &Gateway) -> String {
    eventually("the store to be refused", async || {
        let ready = gateway.admin_open("/readyz").await;
        let reason = ready.json()["reason"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let is_named = reason.contains("executed before would execute again");
        is_named.then_some(reason)
    })
    .await
}

async fn until_ready(gateway: &Gateway) {
    eventually("the store to be accepted", async || {
        let ready = gateway.admin_open("/readyz").await;
        let is_whole = ready.json()["reason"].is_null();
        (ready.status == 200 && is_whole).then_some(())
    })
    .await;
}

fn migrate(store: &str, arguments: &[&str]) -> String {
    let made = onlyonce(&[&["migrate", "--store", store], arguments].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let said = text(&made.stdout);
    let identity = said.lines().find_map(|line| line.strip_prefix("identity "));
    identity.expect("the identity").to_owned()
}

/// Goal: a store that is emptied or set back under a running gateway executes nothing again.
///
/// Method: keys; then the tables of the keys are emptied; then a backup is restored, in between an operator
/// accepts what is missing; then everything is dropped and made anew.
/// Evidence: 503 without a count upstream, and `/readyz` says why; once accepted, it goes on without a start.
async fn is_noticed_under_a_gateway(server: &impl Server) {
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&server.url());
    // Every retry asks the store.
    let setup = setup.store_options("near_cache: 0");
    let gateway = setup.start(&upstream).await;
    until_raised(server, &gateway, "first").await;
    let backup = server.backup();
    until_raised(server, &gateway, "second").await;

    server.restore(&backup);
    until_refused(&gateway).await;
    gateway.says("the store has gone back").await;
    let first = gateway.send(&pay("first")).await.expect(201);
    assert_eq!(first.header(REPLAYED), Some("true"), "it is known");
    let executed = upstream.executions();
    for name in ["second", "third"] {
        let answer = gateway.send(&pay(name)).await;
        answer.refused(503, "idempotency_history_lost");
    }
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    migrate(&server.url(), &["--accept-incomplete"]);
    until_ready(&gateway).await;
    let first = gateway.send(&pay("first")).await.expect(201);
    assert_eq!(first.header(REPLAYED), Some("true"));
    until_raised(server, &gateway, "third").await;

    server.truncate();
    until_refused(&gateway).await;
    gateway.says("its tables were emptied").await;
    let executed = upstream.executions();
    let answer = gateway.send(&pay("first")).await;
    answer.refused(503, "idempotency_history_lost");
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    migrate(&server.url(), &["--accept-incomplete"]);
    until_ready(&gateway).await;
    until_raised(server, &gateway, "fourth").await;

    server.drop_all();
    migrate(&server.url(), &[]);
    until_refused(&gateway).await;
    let executed = upstream.executions();
    let answer = gateway.send(&pay("fourth")).await;
    answer.refused(503, "idempotency_history_lost");
    assert_eq!(upstream.executions(), executed, "nothing is executed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_forgets_is_noticed() {
    is_noticed_under_a_gateway(&Postgres::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_that_forgets_is_noticed() {
    is_noticed_under_a_gateway(&MariaDb::start()).await;
}

/// Goal: what is known of a store outlives the gateway: its spool names it, and so does `store.identity`.
///
/// Method: a gateway with a spool stops; a backup is restored; it starts again. Then everything is dropped.
/// And a gateway that names another identity.
/// Evidence: it takes no new keys until that is accepted; none makes a store; another identity is refused.
async fn is_noticed_at_the_start(server: &impl Server) {
    let upstream = Upstream::start();
    let spool = TempDir::new().unwrap();
    let spool = format!("spool_dir: \"{}\"", spool.path().display());
    let setup = || Setup::with("").store(&server.url()).store_options(&spool);
    let mut gateway = setup().start(&upstream).await;
    until_raised(server, &gateway, "first").await;
    let backup = server.backup();
    until_raised(server, &gateway, "second").await;
    // Once more, so that what was seen is on the disk as well.
    until_raised(server, &gateway, "third").await;
    gateway.sigterm();
    assert!(gateway.exited().await.success());

    server.restore(&backup);
    let mut gateway = setup().start(&upstream).await;
    gateway.says("the store has gone back").await;
    let executed = upstream.executions();
    let answer = gateway.send(&pay("second")).await;
    answer.refused(503, "idempotency_history_lost");
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    gateway.sigterm();
    assert!(gateway.exited().await.success());
    let identity = migrate(&server.url(), &["--accept-incomplete"]);
    let mut gateway = setup().start(&upstream).await;
    let ready = gateway.admin_open("/readyz").await.json();
    assert_eq!(ready["store"]["identity"], *identity, "{ready}");
    until_raised(server, &gateway, "fourth").await;
    until_raised(server, &gateway, "fifth").await;
    gateway.sigterm();
    assert!(gateway.exited().await.success());

    server.drop_all();
    let logs = refused(&upstream, setup()).await;
    assert!(logs.contains("there is no store"), "{logs}");
    let made = migrate(&server.url(), &[]);
    assert_ne!(made, identity);
    let named = |identity: &str| {
        let options = format!("identity: \"{identity}\"");
        Setup::with("").store(&server.url()).store_options(&options)
    };
    let logs = refused(&upstream, named(&identity)).await;
    assert!(
        logs.contains("another store") && logs.contains(&made),
        "{logs}"
    );
    named(&made).start(&upstream).await;
    let gateway = setup().start(&upstream).await;
    gateway.says("this is another store").await;
    let answer = gateway.send(&pay("fifth")).await;
    answer.refused(503, "idempotency_history_lost");
    migrate(&server.url(), &["--accept-incomplete"]);
    until_ready(&gateway).await;
    gateway.send(&pay("fifth")).await.expect(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_that_forgot_is_noticed_at_the_start() {
    is_noticed_at_the_start(&Postgres::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_that_forgot_is_noticed_at_the_start() {
    is_noticed_at_the_start(&MariaDb::start()).await;
}

/// Goal: an older state of a Redis store is noticed as well.
///
/// Method: its epoch is set back to what an older snapshot would say.
/// Evidence: 503 without a count upstream, and `/readyz` says why; once accepted, it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_forgets_is_noticed() {
    let upstream = Upstream::start();
    let server = Redis::start_with(&["appendonly yes", "appendfsync always"]);
    let gateway = Setup::with("").store(&server.url()).start(&upstream).await;
    let epoch = || -> u64 {
        let epoch = server.cli(&["hget", "oo:meta", "epoch"]);
        let count = epoch.split(' ').next().unwrap_or_default();
        count.parse().unwrap_or(0)
    };
    let before = epoch();
    gateway.send(&pay("first")).await.expect(201);
    eventually("the epoch to rise", async || {
        (epoch() > before.max(1)).then_some(())
    })
    .await;
    server.cli(&["hset", "oo:meta", "epoch", "1 1"]);
    until_refused(&gateway).await;
    gateway.says("the store has gone back").await;
    let executed = upstream.executions();
    let answer = gateway.send(&pay("second")).await;
    answer.refused(503, "idempotency_history_lost");
    assert_eq!(upstream.executions(), executed, "nothing is executed");
    migrate(&server.url(), &["--accept-incomplete"]);
    until_ready(&gateway).await;
}

/// Goal: production never replays what a copy of its database answered, though both have the same secret
/// and share a cache.
///
/// Method: the copy answers a key first, until that lies in the cache; then production is asked.
/// Evidence: production's own upstream counts an execution, and its answer is the one given.
async fn shares_nothing(original: &str, copy: &str, key: &str) {
    let cache = Redis::start();
    let cached = format!("cache: \"{}\"", cache.url());
    let start = async |url: &str, upstream: &Upstream| {
        let setup = Setup::with("").store(url).store_options(&cached);
        setup.start(upstream).await
    };
    let (production, staging) = (Upstream::start(), Upstream::start());
    let of_copy = start(copy, &staging).await;
    let of_original = start(original, &production).await;
    let request = pay(key);
    of_copy.send(&request).await.expect(201);
    eventually("the copy's answer in the cache", async || {
        let replayed = of_copy.send(&request).await.expect(201);
        assert_eq!(replayed.header(REPLAYED), Some("true"));
        let entries = cache.cli(&["--scan", "--pattern", "oo:cache:*"]);
        (!entries.is_empty()).then_some(())
    })
    .await;
    // The truth's own time is known from here on, so that a copy in the cache would be looked at.
    of_original
        .send(&pay(&format!("not-{key}")))
        .await
        .expect(201);
    let answer = of_original.send(&request).await.expect(201);
    assert_eq!(answer.header(REPLAYED), None);
    assert_eq!(production.executions(), 2, "production executes its own");
}

/// On PostgreSQL a copy differs by its name, and by its server, without a word from anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_shared_with_a_copy_on_postgres() {
    let (server, elsewhere) = (Postgres::start(), Postgres::start());
    migrate(&server.url(), &[]);
    let backup = server.backup();
    let copied = server.database("copied");
    for (url, key) in [(copied, "named"), (elsewhere.url(), "elsewhere")] {
        restored_with_psql(&url, &backup);
        shares_nothing(&server.url(), &url, key).await;
    }
}

/// Elsewhere an operator gives the copy an identity of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_shared_with_a_copy_on_mariadb() {
    let (server, elsewhere) = (MariaDb::start(), MariaDb::start());
    let identity = migrate(&server.url(), &[]);
    elsewhere.restore(&server.backup());
    assert_eq!(migrate(&elsewhere.url(), &[]), identity, "a copy shares it");
    let own = migrate(&elsewhere.url(), &["--new-identity"]);
    assert_ne!(own, identity);
    assert_eq!(migrate(&elsewhere.url(), &[]), own, "it stays");
    shares_nothing(&server.url(), &elsewhere.url(), "elsewhere").await;
}

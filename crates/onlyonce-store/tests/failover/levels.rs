//! A PostgreSQL server whose settings and standbys change under a store, idle and at work.

use std::sync::Arc;

use onlyonce_store::{
    Level, Store,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::Postgres;

use super::{Writers, draft, eventually, on_postgres, set};

async fn becomes_level(stores: &[&Arc<dyn Store>], level: Level, why: &str) {
    let all = async || stores.iter().all(|store| store.level() == level);
    eventually(why, all).await;
}

/// Goal: the level follows the server, whether a store is at work or not.
///
/// Method: settings are changed and reloaded, and a standby comes and goes, under connections that stay.
/// Evidence: the level of two stores, of which one is at work; and that no write is acknowledged where commits
/// wait for a standby that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_follows_the_server() {
    let server = tokio::task::block_in_place(Postgres::start);
    let (idle, busy) = (
        on_postgres(&server, None).await,
        on_postgres(&server, None).await,
    );
    let writers = Writers::start(&busy, "k");
    let stores = [&idle, &busy];
    becomes_level(&stores, Level::Sync, "a server alone").await;
    set(&server, "synchronous_commit = off");
    becomes_level(&stores, Level::Async, "commits that are not flushed").await;
    set(&server, "synchronous_commit = on");
    becomes_level(&stores, Level::Sync, "commits that are flushed").await;

    let mut standby = tokio::task::block_in_place(|| server.standby("one"));
    becomes_level(&stores, Level::Async, "a standby that nobody waits for").await;
    set(&server, "synchronous_standby_names = 'one'");
    becomes_level(&stores, Level::Sync, "a standby that commits wait for").await;
    set(&server, "synchronous_commit = remote_write");
    becomes_level(&stores, Level::Async, "commits that wait for too little").await;
    set(&server, "synchronous_commit = on");
    becomes_level(&stores, Level::Sync, "commits that wait for enough").await;
    set(&server, "synchronous_standby_names = ''");
    becomes_level(&stores, Level::Async, "commits that have ceased to wait").await;
    tokio::task::block_in_place(|| standby.stop());
    let attached = "SELECT count(*) FROM pg_stat_replication";
    eventually("the server to be alone", async || {
        server.sql(attached) == "0"
    })
    .await;
    writers.more(1).await;
    writers.end().await;

    // One that has not seen the standby. Nobody is there to wait for: once commits wait, none is acknowledged, and the level is not wrong.
    let idle = on_postgres(&server, None).await;
    becomes_level(&[&idle], Level::Sync, "a server alone again").await;
    set(&server, "synchronous_standby_names = 'nobody'");
    let mut number = 0;
    let mut refused = async || {
        number += 1;
        let told = idle.insert_or_get(draft(&*idle, &format!("waits-{number}"), 1));
        told.await.is_err()
    };
    eventually("commits to wait", &mut refused).await;
    assert!(refused().await);
}

/// Goal: a server that has lost its standby is not taken for one that never had any: the standby may come
/// back without what was written meanwhile, and be promoted.
///
/// Method: a standby that no commit waits for is stopped under two stores, of which one is opened afterwards;
/// first one that leaves its slot, then one without.
/// Evidence: the level, long after the server knows that it is alone, and that of a server that never had one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_away_counts() {
    let server = tokio::task::block_in_place(Postgres::start);
    let before = on_postgres(&server, None).await;
    assert_eq!(before.level(), Level::Sync, "a server alone");
    server.sql("SELECT pg_create_physical_replication_slot('away')");
    becomes_level(&[&before], Level::Async, "a slot that nobody uses").await;
    let after = on_postgres(&server, None).await;
    assert_eq!(after.level(), Level::Async, "a slot that nobody uses");
    server.sql("SELECT pg_drop_replication_slot('away')");
    let after = on_postgres(&server, None).await;
    assert_eq!(after.level(), Level::Sync, "it is gone, and was never seen");

    let mut standby = tokio::task::block_in_place(|| server.standby("one"));
    becomes_level(&[&after], Level::Async, "a standby").await;
    tokio::task::block_in_place(|| standby.stop());
    let attached = "SELECT count(*) FROM pg_stat_replication";
    eventually("the server to be alone", async || {
        server.sql(attached) == "0"
    })
    .await;
    for settings in ["off", "on"] {
        // Each is read by the store, which shows that it has looked again.
        set(&server, &format!("fsync = {settings}"));
        let level = match settings {
            "off" => Level::Volatile,
            _ => Level::Async,
        };
        becomes_level(&[&after], level, settings).await;
    }
    assert_eq!(after.level(), Level::Async, "the standby may come back");
}

/// Goal: the setting that counts is that of the sessions that write, whatever the server's is.
///
/// Method: the role is told not to wait for its commits to be flushed, which only new sessions hear; then the
/// store makes one more, so that it has old ones and a new one.
/// Evidence: the level, once no old session is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_level_is_that_of_the_role() {
    let server = tokio::task::block_in_place(Postgres::start);
    server.sql("CREATE ROLE gateway LOGIN SUPERUSER");
    let url = server.url().replace("onlyonce@", "gateway@");
    let options = PostgresOptions::default();
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&url, &options).await.unwrap());
    let writers = Writers::start(&store, "k");
    writers.more(20).await;
    assert_eq!(store.level(), Level::Sync);

    let sessions = "SELECT pid FROM pg_stat_activity WHERE usename = 'gateway'";
    let lanes = format!("{sessions} AND query LIKE '-- Inserts%' ORDER BY pid");
    eventually("both lanes to be in use", async || {
        server.sql(&lanes).lines().count() == 2
    })
    .await;
    let old = server.sql(&lanes).replace('\n', ", ");

    server.sql("ALTER ROLE gateway SET synchronous_commit = off");
    // Which is on a connection of its own, made now.
    store.counts().await.unwrap();
    assert_eq!(store.level(), Level::Async, "a role that does not wait");
    let old = format!("{sessions} AND pid IN ({old})");
    eventually("the old sessions to go", async || {
        let gone = server.sql(&old).is_empty();
        assert_eq!(
            store.level(),
            Level::Async,
            "what an old session says does not count"
        );
        gone
    })
    .await;

    server.sql("ALTER ROLE gateway RESET synchronous_commit");
    server.sql(&format!(
        "SELECT pg_terminate_backend(pid) FROM ({sessions}) AS all_of_them"
    ));
    becomes_level(&[&store], Level::Sync, "a role that waits").await;
    writers.end().await;
}

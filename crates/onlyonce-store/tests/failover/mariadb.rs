//! MariaDB alone, and with a semi-synchronous replica.

use std::{collections::BTreeSet, sync::Arc};

use onlyonce_store::{
    Level, Store,
    mysql::{MySqlOptions, MySqlStore},
};
use onlyonce_testkit::{
    servers::MariaDb,
    tcp_faults::{FaultProxy, Mode},
};

use super::{TIMEOUT, Writers, eventually, lost};

/// How often sessions are ended, or told to stop.
const ROUNDS: usize = 6;

async fn open(url: &str) -> Arc<dyn Store> {
    let options = MySqlOptions {
        timeout: TIMEOUT,
        ..MySqlOptions::default()
    };
    Arc::new(MySqlStore::open(url, &options).await.unwrap())
}

fn keys(server: &MariaDb) -> BTreeSet<String> {
    let rows = server.sql("SELECT `key` FROM onlyonce_keys");
    rows.lines().map(str::to_owned).collect()
}

/// Ends sessions of the store in turn with what they are at: those with `state`.
async fn interrupt(server: &MariaDb, state: &str) {
    for round in 0..ROUNDS {
        let how = match round % 2 {
            0 => "KILL QUERY",
            _ => "KILL",
        };
        eventually("a session to interrupt", async || {
            let ids = server.sql(&format!(
                "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = 'onlyonce' \
                 AND ID <> CONNECTION_ID() AND STATE LIKE '{state}'"
            ));
            // Some may have ended by themselves.
            let killed = |id: &str| server.try_sql(&format!("{how} {id}"));
            ids.lines().filter(|id| killed(id)).count() > 0
        })
        .await;
    }
}

/// Goal: a server without replicas has what is taken for reserved when it is back.
///
/// Method: writers insert; sessions of theirs are ended in turn; the server is killed and started again.
/// Evidence: its rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone() {
    let mut server = tokio::task::block_in_place(MariaDb::start);
    let store = open(&server.url()).await;
    assert_eq!(store.level(), Level::Sync);
    let writers = Writers::start(&store, "k");
    writers.more(50).await;
    interrupt(&server, "%").await;
    tokio::task::block_in_place(|| {
        server.kill();
        server.boot();
    });
    writers.more(50).await;
    let lost = lost("alone", &writers.end().await, &keys(&server));
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(store.level(), Level::Sync);
}

/// Goal: semi-synchronous replication may lose what was acknowledged, and the level said so before.
///
/// Method: writers insert; the replica falls silent; sessions that wait for it are told to stop, with a
/// timeout that would let them wait; the primary is killed, and the replica takes writes.
/// Evidence: the level before the fault; the rows of the replica, which lacks some.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn semi_synchronous() {
    let mut primary = tokio::task::block_in_place(MariaDb::start_semi_synchronous);
    let proxy = FaultProxy::start(primary.port()).await;
    let replica = tokio::task::block_in_place(|| primary.replica_through(proxy.port()));
    let url = format!(
        "mysql://onlyonce@127.0.0.1:{},127.0.0.1:{}/onlyonce",
        primary.port(),
        replica.port()
    );
    let store = open(&url).await;
    assert_eq!(store.level(), Level::Async);
    let writers = Writers::start(&store, "k");
    writers.more(50).await;
    let before = writers.end().await;
    proxy.set(Mode::Silent);
    // Nothing was on its way, so nothing of theirs is on the replica.
    let writers = Writers::start(&store, "apart");
    interrupt(&primary, "Waiting for semi-sync ACK%").await;
    assert_eq!(store.level(), Level::Async);
    primary.kill();
    replica.promote();
    writers.more(50).await;
    let reserved = &before | &writers.end().await;
    let lost = lost("semi-synchronous", &reserved, &keys(&replica));
    assert!(!lost.is_empty(), "or else the level could be higher");
}

//! The simulation's checker over runs on real stores: three nodes of the shipping engine, layer and
//! workers on one SQLite file, one PostgreSQL database, that through PgBouncer, or one MariaDB
//! database; the machine's clock, clients at once, store replies that get lost, and nodes that die.
//!
//! No run is like another here. What is checked is the same as in the simulation, by the same code.

#![allow(unreachable_pub, reason = "a test binary has no outside")]
#![allow(dead_code, reason = "the checker is shared with the simulation")]

#[path = "../simulation/calls.rs"]
mod calls;
#[path = "../simulation/edges.rs"]
mod edges;
#[path = "../simulation/history.rs"]
mod history;
mod node;
#[path = "../simulation/promised.rs"]
mod promised;
#[path = "../simulation/rest.rs"]
mod rest;
#[path = "../simulation/rng.rs"]
mod rng;
#[path = "../simulation/rules.rs"]
mod rules;
mod run;
#[path = "../simulation/script.rs"]
mod script;
#[path = "../simulation/setup.rs"]
mod setup;
mod tape;
#[path = "../simulation/witness.rs"]
mod witness;
mod witnessed;

use std::{sync::Arc, time::Duration};

use onlyonce_store::{
    Store,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{Pooler, PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};
use onlyonce_testkit::servers::{MariaDb, PgBouncer, Postgres};
use setup::NODES;

/// A server for one test, on a thread where it may take its time.
async fn server() -> Postgres {
    let server = tokio::task::spawn_blocking(Postgres::start).await;
    server.expect("a private server")
}

/// A handle for each node on one database.
async fn handles(url: &str, pooler: Pooler) -> Vec<Arc<dyn Store>> {
    let options = PostgresOptions {
        pooler,
        timeout: Duration::from_secs(10),
        ..PostgresOptions::default()
    };
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..NODES {
        let store = PostgresStore::open(url, &options).await;
        stores.push(Arc::new(store.expect("a database becomes a store")));
    }
    stores
}

/// Goal: no history of a real store breaks the promise. SQLite serves one process, so all nodes use
/// one handle.
///
/// Method: see `run.rs`. Evidence: the upstream's own count of executions, the acknowledged writes,
/// the bytes that clients received, and at the end what the store holds.
#[tokio::test(flavor = "multi_thread")]
async fn sqlite() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = SqliteStore::open(&folder.path().join("store.db")).expect("a new store");
    let store: Arc<dyn Store> = Arc::new(store);
    run::run("SQLite", vec![store; NODES]).await;
}

/// The same on PostgreSQL, with a handle for each node.
#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    let server = server().await;
    run::run("PostgreSQL", handles(&server.url(), Pooler::None).await).await;
}

/// The same through PgBouncer in transaction mode.
#[tokio::test(flavor = "multi_thread")]
async fn pgbouncer() {
    let server = Arc::new(server().await);
    let inner = server.clone();
    let bouncer = tokio::task::spawn_blocking(move || PgBouncer::start(&inner)).await;
    let bouncer = bouncer.expect("a private pooler");
    let url = server.url_at(bouncer.port());
    run::run("PgBouncer", handles(&url, Pooler::Transaction).await).await;
}

/// The same on MariaDB, with a handle for each node.
#[tokio::test(flavor = "multi_thread")]
async fn mariadb() {
    let server = tokio::task::spawn_blocking(MariaDb::start).await;
    let server = server.expect("a private server");
    let options = MySqlOptions {
        timeout: Duration::from_secs(10),
        ..MySqlOptions::default()
    };
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..NODES {
        let store = MySqlStore::open(&server.url(), &options).await;
        stores.push(Arc::new(store.expect("a database becomes a store")));
    }
    run::run("MariaDB", stores).await;
}

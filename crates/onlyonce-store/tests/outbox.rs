//! The contract of an outbox, on every store that has one.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_store::{
    Store,
    mysql::{MySqlOptions, MySqlStore, MySqlTransactions},
    outbox::Claim,
    postgres::{PgTransactions, Pooler, PostgresOptions, PostgresStore},
    sqlite::{SqliteStore, SqliteTransactions},
    transactional::{Isolation, Message, TransactionalStore},
};
use onlyonce_testkit::servers::{MariaDb, PgBouncer, Postgres};
use sqlx::{MySqlPool, PgPool};

onlyonce_testkit::outbox_conformance!(sqlite, || async { sqlite_file() });
onlyonce_testkit::outbox_conformance!(postgres, || async { database(Pooler::None).await });
onlyonce_testkit::outbox_conformance!(pgbouncer, || async { database(Pooler::Transaction).await });
onlyonce_testkit::outbox_conformance!(mariadb, || async { mariadb_database().await });

fn sqlite_file() -> (Arc<SqliteStore>, SqliteTransactions) {
    let folder = tempfile::tempdir().unwrap();
    // The file stays open, so the folder may go at the end of the test run.
    let store = SqliteStore::open(&folder.keep().join("store.db")).unwrap();
    let transactions = store.transactions().unwrap();
    (Arc::new(store), transactions)
}

/// One server for all cases, a database for each.
async fn database(pooler: Pooler) -> (Arc<PostgresStore>, PgTransactions) {
    static SERVER: OnceLock<(Postgres, PgBouncer)> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let start = || {
        SERVER.get_or_init(|| {
            let server = Postgres::start();
            let bouncer = PgBouncer::start(&server);
            (server, bouncer)
        })
    };
    let (server, bouncer) = tokio::task::block_in_place(start);
    let name = format!("outbox_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let own = server.database(&name);
    let mut url = own.clone();
    if pooler == Pooler::Transaction {
        url = url.replace(&server.port().to_string(), &bouncer.port().to_string());
    }
    let options = PostgresOptions {
        pooler,
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(&url, &options).await.unwrap();
    let transactions = store.transactions(PgPool::connect(&own).await.unwrap());
    (Arc::new(store), transactions)
}

/// One server for all cases, a database for each.
async fn mariadb_database() -> (Arc<MySqlStore>, MySqlTransactions) {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = tokio::task::block_in_place(|| SERVER.get_or_init(MariaDb::start));
    let url = server.database(&format!("outbox_{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let store = MySqlStore::open(&url, &MySqlOptions::default())
        .await
        .unwrap();
    let transactions = store.transactions(MySqlPool::connect(&url).await.unwrap());
    (Arc::new(store), transactions)
}

/// Goal: a message whose transaction commits late is delivered, though later ones went before it.
///
/// Method: a transaction leaves a message and stays open; another one leaves one and commits, and that is
/// claimed; then the first commits.
/// Evidence: both are claimed, each once.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_not_lost() {
    let (store, all) = database(Pooler::None).await;
    late_commit(&*store, &all).await;
    let (store, all) = mariadb_database().await;
    late_commit(&*store, &all).await;
}

async fn late_commit<T: TransactionalStore>(store: &dyn Store, all: &T) {
    let outbox = store.outbox().unwrap();
    let claimed = async |number| {
        let claim = Claim {
            target: "target".to_owned(),
            limit: 10,
            lease: std::time::Duration::from_secs(60),
            attempt: onlyonce_core::AttemptId(number),
        };
        outbox.claim(&claim).await.unwrap().value
    };
    let mut slow = all.begin(Isolation::default()).await.unwrap();
    let message = Message::new("target", "slow");
    let first = all.enqueue(&mut slow, &message).await.unwrap();
    let mut fast = all.begin(Isolation::default()).await.unwrap();
    let message = Message::new("target", "fast");
    let second = all.enqueue(&mut fast, &message).await.unwrap();
    all.commit(fast).await.unwrap();
    let found = claimed(1).await;
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [second]);
    all.commit(slow).await.unwrap();
    let found = claimed(2).await;
    assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), [first]);
}

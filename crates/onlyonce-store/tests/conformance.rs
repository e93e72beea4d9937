//! The contract, on every store of this crate.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_store::{
    Store,
    at_rest::{AtRest, AtRestOptions, Compression, Keyring},
    memory::MemoryStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{Pooler, PostgresOptions, PostgresStore},
    private::{MariaDb, PgBouncer, Postgres},
    sqlite::SqliteStore,
};

onlyonce_store::conformance!(memory, || async { MemoryStore::new() });
onlyonce_store::conformance!(sqlite, || async { sqlite_in_a_folder_of_its_own() });
onlyonce_store::conformance!(postgres, || async { postgres_database(Pooler::None).await });
onlyonce_store::conformance!(sealed_memory, || async {
    sealed(Arc::new(MemoryStore::new())).await
});
onlyonce_store::conformance!(sealed_sqlite, || async {
    sealed(Arc::new(sqlite_in_a_folder_of_its_own())).await
});
onlyonce_store::conformance!(sealed_postgres, || async {
    sealed(Arc::new(postgres_database(Pooler::None).await)).await
});
onlyonce_store::conformance!(pgbouncer, || async {
    postgres_database(Pooler::Transaction).await
});

onlyonce_store::conformance!(mariadb, || async { mariadb_database().await });
onlyonce_store::conformance!(sealed_mariadb, || async {
    sealed(Arc::new(mariadb_database().await)).await
});

/// The store behind what compresses and encrypts.
async fn sealed(store: Arc<dyn Store>) -> AtRest {
    let keys = Keyring::parse("test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    let options = AtRestOptions {
        keys: Some(keys.expect("a key of 32 bytes")),
        compression: Compression::Dictionary,
    };
    let opened = AtRest::open(store, options).await;
    opened.expect("a new store takes keys")
}

fn sqlite_in_a_folder_of_its_own() -> SqliteStore {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The file stays open, so the folder may go at the end of the test run.
    SqliteStore::open(&folder.keep().join("store.db")).expect("a new store opens")
}

/// One server for all cases, a database for each.
async fn postgres_database(pooler: Pooler) -> PostgresStore {
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
    let name = format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let mut url = server.database(&name);
    if pooler == Pooler::Transaction {
        url = url.replace(&server.port().to_string(), &bouncer.port().to_string());
    }
    let options = PostgresOptions {
        pooler,
        timeout: std::time::Duration::from_secs(10),
        ..PostgresOptions::default()
    };
    let store = PostgresStore::open(&url, &options).await;
    store.expect("a new database becomes a store")
}

/// One server for all cases, a database for each.
async fn mariadb_database() -> MySqlStore {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = tokio::task::block_in_place(|| SERVER.get_or_init(MariaDb::start));
    let url = server.database(&format!("case_{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    let options = MySqlOptions {
        timeout: std::time::Duration::from_secs(10),
        ..MySqlOptions::default()
    };
    let store = MySqlStore::open(&url, &options).await;
    store.expect("a new database becomes a store")
}

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
    redis::{RedisOptions, RedisStore},
    sqlite::SqliteStore,
    tiered::TieredStore,
};
use onlyonce_testkit::servers::{MariaDb, PgBouncer, Postgres, Redis, RedisCluster};

onlyonce_testkit::conformance!(memory, || async { MemoryStore::new() });
onlyonce_testkit::conformance!(sqlite, || async { sqlite_in_a_folder_of_its_own() });
onlyonce_testkit::conformance!(postgres, || async { postgres_database(Pooler::None).await });
onlyonce_testkit::conformance!(sealed_memory, || async {
    sealed(Arc::new(MemoryStore::new())).await
});
onlyonce_testkit::conformance!(sealed_sqlite, || async {
    sealed(Arc::new(sqlite_in_a_folder_of_its_own())).await
});
onlyonce_testkit::conformance!(sealed_postgres, || async {
    sealed(Arc::new(postgres_database(Pooler::None).await)).await
});
onlyonce_testkit::conformance!(pgbouncer, || async {
    postgres_database(Pooler::Transaction).await
});

onlyonce_testkit::conformance!(redis, || async { redis_store(&redis_database()).await });
onlyonce_testkit::conformance!(sealed_redis, || async {
    sealed(Arc::new(redis_store(&redis_database()).await)).await
});
onlyonce_testkit::conformance!(redis_cluster, || async { redis_in_a_cluster().await });

onlyonce_testkit::conformance!(tiered, || async { sqlite_behind_redis().await });
onlyonce_testkit::conformance!(mariadb, || async { mariadb_database().await });
onlyonce_testkit::conformance!(sealed_mariadb, || async {
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
fn redis_database() -> String {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = tokio::task::block_in_place(|| SERVER.get_or_init(Redis::start));
    server.database(COUNT.fetch_add(1, Ordering::Relaxed))
}

async fn sqlite_behind_redis() -> TieredStore {
    let truth = std::sync::Arc::new(sqlite_in_a_folder_of_its_own());
    TieredStore::new(truth, &redis_database()).expect("a cache")
}

/// One cluster for all cases, a prefix for each.
async fn redis_in_a_cluster() -> RedisStore {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let cluster = tokio::task::block_in_place(|| CLUSTER.get_or_init(RedisCluster::start));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    redis_store(&format!("{}?prefix=case{number}", cluster.url())).await
}

async fn redis_store(url: &str) -> RedisStore {
    let options = RedisOptions {
        timeout: std::time::Duration::from_secs(10),
        ..RedisOptions::default()
    };
    let store = RedisStore::open(url, &options).await;
    store.expect("an empty database becomes a store")
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

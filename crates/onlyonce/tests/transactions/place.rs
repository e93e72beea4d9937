//! Servers with the application's tables, and what the tests do there. A case is written once and runs on
//! each kind of server.

use std::{
    marker::PhantomData,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::StatusCode;
use onlyonce::{Answer, Engine, EngineOptions, Operation, Policy, Transactions, outbox::Message};
use onlyonce_core::Key;
use onlyonce_store::{
    Filter, Store, TransactionalStore,
    mysql::{MySqlOptions, MySqlStore, MySqlTransactions},
    postgres::{PgTransactions, PostgresOptions, PostgresStore},
    transactional::TransactionError,
};
use onlyonce_testkit::servers::{MariaDb, Postgres};
use serde_json::json;
use sqlx::{
    MySqlConnection, PgConnection, Row as _, mysql::MySqlPoolOptions, postgres::PgPoolOptions,
};

/// Connections of the application's pool.
const CONNECTIONS: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Outcome<'c, T> = BoxFuture<'c, Result<T, TransactionError>>;
type Connection<K> = <<K as Kind>::Inside as TransactionalStore>::Connection;

/// A kind of server.
pub(crate) trait Kind: Sized + Send + Sync + 'static {
    type Inside: TransactionalStore;
    /// The application's tables.
    const TABLES: &str;
    /// Makes the lease of every key lapse.
    const LAPSE: &str;
    /// How the driver asks for the commit.
    const COMMIT: &[u8];

    fn port() -> u16;
    /// A new database, and its URL.
    fn database(name: &str) -> String;
    /// What the server's own client prints. The tests write `onlyonce.outbox`.
    fn run_sql(database: &str, sql: &str) -> String;
    fn open(store: &str, pool: &str)
    -> impl Future<Output = (Arc<dyn Store>, Self::Inside)> + Send;
    /// Adds a row, and returns its number.
    fn paid(tx: &mut Connection<Self>, amount: i64) -> Outcome<'_, i64>;
    /// Reads a counter and writes it back, one higher.
    fn count_up(tx: &mut Connection<Self>) -> Outcome<'_, i64>;
    fn effect(tx: &mut Connection<Self>, what: String) -> Outcome<'_, ()>;
    fn has_effect(tx: &mut Connection<Self>, what: String) -> Outcome<'_, bool>;
    /// One round of the reaper.
    fn reap(place: &Place<Self>) -> impl Future<Output = ()> + Send;
}

pub(crate) struct Pg;

impl Pg {
    fn server() -> &'static Postgres {
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        tokio::task::block_in_place(|| SERVER.get_or_init(Postgres::start))
    }
}

impl Kind for Pg {
    type Inside = PgTransactions;
    const TABLES: &str = "CREATE TABLE payments (id bigserial PRIMARY KEY, amount bigint NOT NULL); \
        CREATE TABLE counter (value bigint NOT NULL); INSERT INTO counter VALUES (0); \
        CREATE TABLE effects (what text NOT NULL);";
    const LAPSE: &str = "UPDATE onlyonce.live SET lease_until = 0, revision = revision + 1";
    const COMMIT: &[u8] = b"COMMIT\0";

    fn port() -> u16 {
        Self::server().port()
    }

    fn database(name: &str) -> String {
        Self::server().database(name)
    }

    fn run_sql(database: &str, sql: &str) -> String {
        Self::server().run_sql(database, sql)
    }

    async fn open(store: &str, pool: &str) -> (Arc<dyn Store>, PgTransactions) {
        let options = PostgresOptions::default();
        let store = PostgresStore::open(store, &options).await.unwrap();
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .connect(pool);
        let inside = store.transactions(pool.await.unwrap());
        (Arc::new(store), inside)
    }

    fn paid(tx: &mut PgConnection, amount: i64) -> Outcome<'_, i64> {
        Box::pin(async move {
            let insert = "INSERT INTO payments (amount) VALUES ($1) RETURNING id";
            let row = sqlx::query(insert).bind(amount).fetch_one(tx).await?;
            Ok(row.get(0))
        })
    }

    fn count_up(tx: &mut PgConnection) -> Outcome<'_, i64> {
        Box::pin(async move {
            let row = sqlx::query("SELECT value FROM counter");
            let value: i64 = row.fetch_one(&mut *tx).await?.get(0);
            let update = sqlx::query("UPDATE counter SET value = $1");
            update.bind(value + 1).execute(tx).await?;
            Ok(value)
        })
    }

    fn effect(tx: &mut PgConnection, what: String) -> Outcome<'_, ()> {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO effects VALUES ($1)");
            insert.bind(what).execute(tx).await?;
            Ok(())
        })
    }

    fn has_effect(tx: &mut PgConnection, what: String) -> Outcome<'_, bool> {
        Box::pin(async move {
            let found = sqlx::query("SELECT 1 FROM effects WHERE what = $1");
            Ok(found.bind(what).fetch_optional(tx).await?.is_some())
        })
    }

    async fn reap(place: &Place<Self>) {
        place.sql("SELECT onlyonce.reap()");
    }
}

pub(crate) struct Maria;

impl Maria {
    pub(crate) fn server() -> &'static MariaDb {
        static SERVER: OnceLock<MariaDb> = OnceLock::new();
        tokio::task::block_in_place(|| SERVER.get_or_init(MariaDb::start))
    }
}

impl Kind for Maria {
    type Inside = MySqlTransactions;
    const TABLES: &str = "CREATE TABLE payments (id BIGINT AUTO_INCREMENT PRIMARY KEY, amount BIGINT NOT NULL); \
        CREATE TABLE counter (value BIGINT NOT NULL); INSERT INTO counter VALUES (0); \
        CREATE TABLE effects (what VARCHAR(64) NOT NULL);";
    const LAPSE: &str =
        "UPDATE onlyonce.keys SET lease_until = 0, revision = revision + 1 WHERE is_live = 1";
    const COMMIT: &[u8] = b";\nCOMMIT";

    fn port() -> u16 {
        Self::server().port()
    }

    fn database(name: &str) -> String {
        Self::server().database(name)
    }

    fn run_sql(database: &str, sql: &str) -> String {
        Self::server().run_sql(database, &sql.replace("onlyonce.", "onlyonce_"))
    }

    async fn open(store: &str, pool: &str) -> (Arc<dyn Store>, MySqlTransactions) {
        let options = MySqlOptions::default();
        let store = MySqlStore::open(store, &options).await.unwrap();
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .after_connect(|connection, _| {
                // Without it REPEATABLE READ overwrites what it has not seen.
                let snapshots = sqlx::query("SET SESSION innodb_snapshot_isolation = ON");
                Box::pin(async move { snapshots.execute(connection).await.map(|_| ()) })
            })
            .connect(pool);
        let inside = store.transactions(pool.await.unwrap());
        (Arc::new(store), inside)
    }

    fn paid(tx: &mut MySqlConnection, amount: i64) -> Outcome<'_, i64> {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO payments (amount) VALUES (?)");
            let done = insert.bind(amount).execute(tx).await?;
            Ok(done.last_insert_id().cast_signed())
        })
    }

    fn count_up(tx: &mut MySqlConnection) -> Outcome<'_, i64> {
        Box::pin(async move {
            let row = sqlx::query("SELECT value FROM counter");
            let value: i64 = row.fetch_one(&mut *tx).await?.get(0);
            let update = sqlx::query("UPDATE counter SET value = ?");
            update.bind(value + 1).execute(tx).await?;
            Ok(value)
        })
    }

    fn effect(tx: &mut MySqlConnection, what: String) -> Outcome<'_, ()> {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO effects VALUES (?)");
            insert.bind(what).execute(tx).await?;
            Ok(())
        })
    }

    fn has_effect(tx: &mut MySqlConnection, what: String) -> Outcome<'_, bool> {
        Box::pin(async move {
            let found = sqlx::query("SELECT 1 FROM effects WHERE what = ?");
            Ok(found.bind(what).fetch_optional(tx).await?.is_some())
        })
    }

    async fn reap(place: &Place<Self>) {
        place
            .transactions
            .engine()
            .store()
            .walk(1_000)
            .await
            .unwrap();
    }
}

async fn connected<K: Kind>(store: &str, pool: &str) -> Transactions<K::Inside> {
    let (store, inside) = K::open(store, pool).await;
    let engine = Engine::start(store, EngineOptions::default());
    Transactions::new(engine, inside)
}

/// A database on a server that the tests share.
pub(crate) struct Place<K: Kind> {
    database: String,
    pub(crate) url: String,
    pub(crate) transactions: Transactions<K::Inside>,
    kind: PhantomData<K>,
}

impl<K: Kind> Place<K> {
    pub(crate) async fn new() -> Self {
        Self::new_with(|all| all).await
    }

    pub(crate) async fn new_with(
        change: impl FnOnce(Transactions<K::Inside>) -> Transactions<K::Inside>,
    ) -> Self {
        let mut place = Self::through(K::port()).await;
        place.transactions = change(place.transactions);
        place
    }

    /// With the application's pool on another port.
    pub(crate) async fn through(port: u16) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let database = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let url = K::database(&database);
        let through = url.replace(&K::port().to_string(), &port.to_string());
        let place = Self {
            transactions: connected::<K>(&url, &through).await,
            database,
            url,
            kind: PhantomData,
        };
        place.sql(K::TABLES);
        place
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| K::run_sql(&self.database, sql))
    }

    /// The operation in a database that another process has prepared.
    pub(crate) async fn operation_at(url: &str, policy: Policy) -> Operation<K::Inside> {
        let transactions = connected::<K>(url, url).await;
        transactions.operation("pay", policy).await.unwrap()
    }

    pub(crate) async fn operation(&self, policy: Policy) -> Operation<K::Inside> {
        self.transactions.operation("pay", policy).await.unwrap()
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.sql(sql).parse().unwrap()
    }

    pub(crate) async fn state(&self, key: &str) -> String {
        let filter = Filter {
            key: Some(Key::from_stored(key)),
            ..Filter::default()
        };
        let store = self.transactions.engine().store();
        let found = store.list(&filter, None, 1).await.unwrap().items;
        let found = found.first().map(|listed| listed.record.state.as_str());
        found.unwrap_or_default().to_owned()
    }

    pub(crate) async fn until_state(&self, key: &str, state: &str) {
        let looks = async {
            while self.state(key).await != state {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, looks).await;
        assert!(waited.is_ok(), "{key} did not become {state}");
    }

    /// Payments and messages.
    pub(crate) fn row_count(&self) -> (i64, i64) {
        (
            self.number("SELECT count(*) FROM payments"),
            self.number("SELECT count(*) FROM onlyonce.outbox"),
        )
    }
}

/// A payment and its message.
pub(crate) fn pay<K: Kind>(
    transactions: Transactions<K::Inside>,
    tx: &mut Connection<K>,
    amount: i64,
) -> Outcome<'_, Answer> {
    Box::pin(async move {
        let id = K::paid(tx, amount).await?;
        let message = Message::new("receipts", id.to_string());
        transactions.enqueue(tx, &message).await?;
        Ok(Answer::json(StatusCode::CREATED, &json!({ "id": id })))
    })
}

//! A PostgreSQL server with the application's tables, and what the tests do there.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use onlyonce::{Answer, Engine, EngineOptions, Operation, Policy, Transactions, outbox::Message};
use onlyonce_store::{
    postgres::{PgTransactions, PostgresOptions, PostgresStore},
    private::Postgres,
    transactional::TransactionError,
};
use serde_json::json;
use sqlx::{PgConnection, PgPool, Row as _, postgres::PgPoolOptions};

const TABLES: &str = "CREATE TABLE payments (id bigserial PRIMARY KEY, amount bigint NOT NULL); \
    CREATE TABLE counter (value bigint NOT NULL); INSERT INTO counter VALUES (0); \
    CREATE TABLE effects (what text NOT NULL);";

pub(crate) type Pg = Transactions<PgTransactions>;

pub(crate) struct Place {
    /// The name of its database, on a server that these tests share.
    database: String,
    pub(crate) url: String,
    pub(crate) pool: PgPool,
    pub(crate) transactions: Pg,
}

/// The server that these tests share.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// The part of a place that another process has.
pub(crate) struct Remote {
    pub(crate) transactions: Pg,
}

impl Remote {
    pub(crate) async fn operation(&self, policy: Policy) -> Operation<PgTransactions> {
        self.transactions.operation("pay", policy).await.unwrap()
    }
}

async fn connected(store_url: &str, pool_url: &str) -> (PgPool, Pg) {
    let store = PostgresStore::open(store_url, &PostgresOptions::default())
        .await
        .unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .acquire_timeout(Duration::from_secs(20))
        .connect(pool_url)
        .await
        .unwrap();
    let transactions = store.transactions(pool.clone());
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    (pool, Transactions::new(engine, transactions))
}

impl Place {
    pub(crate) async fn new() -> Self {
        Self::new_with(|all| all).await
    }

    pub(crate) async fn new_with(change: impl FnOnce(Pg) -> Pg) -> Self {
        let mut place = Self::through(server().port()).await;
        place.transactions = change(place.transactions);
        place
    }

    /// With the application's pool on another port.
    pub(crate) async fn through(port: u16) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let database = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let url = server().database(&database);
        let through = url.replace(&server().port().to_string(), &port.to_string());
        let (pool, transactions) = connected(&url, &through).await;
        let place = Self {
            database,
            url,
            pool,
            transactions,
        };
        place.sql(TABLES);
        place
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        server().run_sql(&self.database, sql)
    }

    /// A database that another process has prepared.
    pub(crate) async fn at(url: &str) -> Remote {
        let (_, transactions) = connected(url, url).await;
        Remote { transactions }
    }

    pub(crate) async fn operation(&self, policy: Policy) -> Operation<PgTransactions> {
        self.transactions.operation("pay", policy).await.unwrap()
    }

    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query(sql).fetch_one(&self.pool).await.unwrap().get(0)
    }

    pub(crate) async fn state(&self, key: &str) -> String {
        let sql = "SELECT state::text FROM onlyonce.readable_keys WHERE key = $1";
        let row = sqlx::query(sql).bind(key).fetch_optional(&self.pool).await;
        row.unwrap().map_or_else(String::new, |row| row.get(0))
    }

    pub(crate) async fn until_state(&self, key: &str, state: &str) {
        let looks = async {
            while self.state(key).await != state {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), looks).await;
        assert!(waited.is_ok(), "{key} did not become {state}");
    }
}

/// Payments and messages.
pub(crate) async fn row_count(place: &Place) -> (i64, i64) {
    (
        place.number("SELECT count(*) FROM payments").await,
        place.number("SELECT count(*) FROM onlyonce.outbox").await,
    )
}

/// A payment and its message.
pub(crate) async fn pay(
    transactions: &Pg,
    tx: &mut PgConnection,
    amount: i64,
) -> Result<Answer, TransactionError> {
    let row = sqlx::query("INSERT INTO payments (amount) VALUES ($1) RETURNING id")
        .bind(amount)
        .fetch_one(&mut *tx)
        .await?;
    let id: i64 = row.get(0);
    let message = Message::new("receipts", id.to_string());
    transactions.enqueue(tx, &message).await?;
    Ok(Answer::json(StatusCode::CREATED, &json!({ "id": id })))
}

/// Reads a counter and writes it back, one higher.
pub(crate) async fn count_up(tx: &mut PgConnection) -> Result<Answer, TransactionError> {
    let row = sqlx::query("SELECT value FROM counter")
        .fetch_one(&mut *tx)
        .await?;
    let value: i64 = row.get(0);
    sqlx::query("UPDATE counter SET value = $1")
        .bind(value + 1)
        .execute(tx)
        .await?;
    Ok(Answer::new(StatusCode::OK, value.to_string()))
}

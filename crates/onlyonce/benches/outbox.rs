//! What it costs to deliver: messages/s of the worker beside a plain loop that selects with SKIP LOCKED,
//! sends, and marks, of the same batch size, on tables alike. The receiver does nothing, so only the
//! database's work is compared. On a private PostgreSQL server with fsync, in one run.
//!
//! `cargo bench -p onlyonce --bench outbox`. Medians of three rounds. With `ONLYONCE_SOAK=1` also the size of
//! the table after a million messages with the reaper on.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use onlyonce::{
    Engine, EngineOptions,
    outbox::{Deliveries, Delivery, Parcel, Publish, Target},
};
use onlyonce_store::postgres::{PostgresOptions, PostgresStore};
use onlyonce_testkit::servers::Postgres;
use sqlx::{PgPool, Row as _};
use tokio::time::Instant;

/// Messages of one batch; the worker has a few of those under way.
const BATCH: usize = 64;
const AT_ONCE: usize = 256;
const MESSAGES: usize = 20_000;
const ROUNDS: usize = 3;
const MILLION: usize = 1_000_000;
/// How long delivered messages stay in the run with a million.
const KEEP: Duration = Duration::from_secs(5);

const PLAIN: &str = "
    CREATE TABLE plain (n bigserial PRIMARY KEY, payload bytea NOT NULL, state text NOT NULL DEFAULT 'pending',
        delivered_at timestamptz);
    CREATE INDEX plain_pending ON plain (n) WHERE state = 'pending';";

/// A receiver that counts.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Publish for Counter {
    fn publish<'a>(&'a self, _: &'a Parcel) -> BoxFuture<'a, Delivery> {
        async {
            self.0.fetch_add(1, Ordering::SeqCst);
            Delivery::delivered()
        }
        .boxed()
    }
}

/// A plain loop: what most applications write.
async fn plain(pool: &PgPool) -> Duration {
    sqlx::query("INSERT INTO plain (payload) SELECT decode(repeat('ab', 200), 'hex') FROM generate_series(1, $1)")
        .bind(i64::try_from(MESSAGES).unwrap())
        .execute(pool)
        .await
        .unwrap();
    let receiver = Counter::default();
    let began = Instant::now();
    loop {
        let mut tx = pool.begin().await.unwrap();
        let rows = sqlx::query(
            "SELECT n, payload FROM plain WHERE state = 'pending' ORDER BY n LIMIT $1 FOR UPDATE SKIP LOCKED",
        )
        .bind(i64::try_from(BATCH).unwrap())
        .fetch_all(&mut *tx)
        .await
        .unwrap();
        if rows.is_empty() {
            break;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        receiver.0.fetch_add(ids.len(), Ordering::SeqCst);
        sqlx::query("UPDATE plain SET state = 'delivered', delivered_at = now() WHERE n = ANY($1)")
            .bind(ids)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    assert_eq!(receiver.0.load(Ordering::SeqCst), MESSAGES);
    began.elapsed()
}

async fn fill(pool: &PgPool, messages: usize) {
    sqlx::query(
        "INSERT INTO onlyonce.outbox (created_at, due_at, target, downstream_key, payload) \
         SELECT 0, 0, 'counter', gen_random_uuid()::text, decode(repeat('ab', 200), 'hex') \
         FROM generate_series(1, $1)",
    )
    .bind(i64::try_from(messages).unwrap())
    .execute(pool)
    .await
    .unwrap();
}

async fn ours(pool: &PgPool, engine: &Engine) -> Duration {
    fill(pool, MESSAGES).await;
    let receiver = Counter::default();
    let target = Target {
        at_once: AT_ONCE,
        ..Target::new("counter", receiver.clone())
    };
    let began = Instant::now();
    let deliveries = Deliveries::new(engine).unwrap().target(target);
    let running = deliveries.start(Duration::from_millis(500));
    while receiver.0.load(Ordering::SeqCst) < MESSAGES {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    running.stop().await;
    let took = began.elapsed();
    let left = sqlx::query("SELECT count(*) FROM onlyonce.outbox WHERE state <> 'delivered'");
    let left: i64 = left.fetch_one(pool).await.unwrap().get(0);
    assert_eq!(left, 0, "all are marked");
    took
}

async fn a_million(pool: &PgPool, engine: &Engine) {
    let size = async || -> i64 {
        let size = sqlx::query("SELECT pg_total_relation_size('onlyonce.outbox')");
        size.fetch_one(pool).await.unwrap().get(0)
    };
    let receiver = Counter::default();
    let target = Target {
        at_once: AT_ONCE,
        ..Target::new("counter", receiver.clone())
    };
    let deliveries = Deliveries::new(engine).unwrap().target(target);
    let running = deliveries
        .keep_delivered(KEEP)
        .start(Duration::from_millis(500));
    let (mut left, mut largest) = (0, 0);
    while left < MILLION {
        fill(pool, MESSAGES).await;
        left += MESSAGES;
        while receiver.0.load(Ordering::SeqCst) < left {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        largest = largest.max(size().await);
    }
    tokio::time::sleep(KEEP + Duration::from_secs(30)).await;
    running.stop().await;
    let rows = sqlx::query("SELECT count(*) FROM onlyonce.outbox");
    let rows: i64 = rows.fetch_one(pool).await.unwrap().get(0);
    println!(
        "a million messages, kept for {KEEP:?}: table and indexes at most {} MiB, {} MiB with {rows} rows at the end",
        largest >> 20,
        size().await >> 20
    );
}

#[tokio::main]
async fn main() {
    let server = Postgres::start();
    let url = server.url();
    let pool = PgPool::connect(&url).await.unwrap();
    let store = PostgresStore::open(&url, &PostgresOptions::default())
        .await
        .unwrap();
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    server.sql(PLAIN);
    let (mut of_plain, mut of_ours) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_plain.push(MESSAGES as f64 / plain(&pool).await.as_secs_f64());
        of_ours.push(MESSAGES as f64 / ours(&pool, &engine).await.as_secs_f64());
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (plain, ours) = (median(of_plain), median(of_ours));
    println!("{MESSAGES} messages in batches of {BATCH}, medians of {ROUNDS}");
    println!("{:<26} {:>10} {:>6}", "", "messages/s", "ratio");
    println!("{:<26} {plain:>10.0} {:>6.2}", "a plain loop", 1.0);
    println!("{:<26} {ours:>10.0} {:>6.2}", "the worker", ours / plain);
    if std::env::var_os("ONLYONCE_SOAK").is_some() {
        a_million(&pool, &engine).await;
    }
}

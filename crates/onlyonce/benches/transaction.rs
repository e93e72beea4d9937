//! What it costs to commit a key with the business write: operations/s of a handler without OnlyOnce and
//! of the same one in `run`, 64 at once; and of the SQL functions beside the two bare statements that an
//! application would write itself. On a private PostgreSQL server with fsync, in one run.
//!
//! `cargo bench -p onlyonce --bench transaction`. Load and server share the machine, for all subjects
//! alike, so what counts is the ratio. Medians of three rounds.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use onlyonce::{Answer, Engine, EngineOptions, Policy, Ran, Transactions};
use onlyonce_core::{Key, Scope};
use onlyonce_store::{
    postgres::{PostgresOptions, PostgresStore},
    transactional::TransactionError,
};
use onlyonce_testkit::servers::Postgres;
use sqlx::{PgConnection, PgPool, Row as _, postgres::PgPoolOptions};
use tokio::{task::JoinSet, time::Instant};

const CONNECTIONS: u32 = 64;
const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(500);
const TIME: Duration = Duration::from_secs(3);

const TABLES: &str = "
    CREATE TABLE payments (id bigserial PRIMARY KEY, amount bigint NOT NULL);
    CREATE TABLE messages (id bigserial PRIMARY KEY, payload bytea NOT NULL);
    CREATE TABLE bare (scope text, key text, request bytea, status int, body bytea, PRIMARY KEY (scope, key));";

static NEXT: AtomicU64 = AtomicU64::new(0);

type Subject = Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// The business: a payment and its message.
async fn business(tx: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let row = sqlx::query("INSERT INTO payments (amount) VALUES (1000) RETURNING id")
        .fetch_one(&mut *tx)
        .await?;
    let id: i64 = row.try_get(0)?;
    sqlx::query("INSERT INTO messages (payload) VALUES ($1)")
        .bind(id.to_be_bytes())
        .execute(tx)
        .await?;
    Ok(id)
}

fn without(pool: PgPool) -> Subject {
    Arc::new(move |_| {
        let pool = pool.clone();
        async move {
            let mut tx = pool.begin().await.unwrap();
            business(&mut tx).await.unwrap();
            tx.commit().await.unwrap();
        }
        .boxed()
    })
}

async fn with_run(url: &str, pool: PgPool) -> Subject {
    let store = PostgresStore::open(url, &PostgresOptions::default())
        .await
        .unwrap();
    let inside = store.transactions(pool);
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    let transactions = Transactions::new(engine, inside);
    let operation = transactions
        .operation("pay", Policy::default())
        .await
        .unwrap();
    Arc::new(move |key| {
        let operation = operation.clone();
        async move {
            let ran = operation.run(Scope::global(), Key::from_stored(&key), "1000", |tx| {
                async move {
                    let id = business(tx).await?;
                    Ok::<_, TransactionError>(Answer::new(StatusCode::CREATED, id.to_string()))
                }
                .boxed()
            });
            assert!(matches!(ran.await.unwrap(), Ran::Executed(_)));
        }
        .boxed()
    })
}

/// Two statements, each its own transaction, with a key.
fn statements(pool: PgPool, first: &'static str, second: &'static str) -> Subject {
    Arc::new(move |key| {
        let pool = pool.clone();
        async move {
            let row = sqlx::query(first)
                .bind(&key)
                .fetch_one(&pool)
                .await
                .unwrap();
            let token: String = row.get(0);
            sqlx::query(second)
                .bind(token)
                .execute(&pool)
                .await
                .unwrap();
        }
        .boxed()
    })
}

/// Operations a second.
async fn measure(subject: &Subject) -> f64 {
    let began = Instant::now();
    let (from, until) = (began + WARM_UP, began + WARM_UP + TIME);
    let done = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (subject, done) = (subject.clone(), done.clone());
        clients.spawn(async move {
            while Instant::now() < until {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                subject(format!("bench-{number}")).await;
                let now = Instant::now();
                if now >= from && now < until {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / TIME.as_secs_f64()
}

#[tokio::main]
async fn main() {
    let server = Postgres::start();
    let url = server.url();
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .acquire_timeout(Duration::from_secs(30))
        .connect(&url)
        .await
        .unwrap();
    let run = with_run(&url, pool.clone()).await;
    server.sql(TABLES);
    let subjects: [(&str, Subject); 4] = [
        ("the handler without OnlyOnce", without(pool.clone())),
        ("the same in `run`", run),
        (
            "two bare statements",
            statements(
                pool.clone(),
                "INSERT INTO bare (scope, key, request) VALUES ('app', $1, 'r') \
                 ON CONFLICT DO NOTHING RETURNING key",
                "UPDATE bare SET status = 201, body = 'b' WHERE scope = 'app' AND key = $1",
            ),
        ),
        (
            "reserve and complete",
            statements(
                pool,
                "SELECT attempt_token FROM onlyonce.reserve('app', $1, 'pay', 'r')",
                "SELECT onlyonce.complete($1, 201, '{}', 'b')",
            ),
        ),
    ];
    let mut found: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        for (index, (_, subject)) in subjects.iter().enumerate() {
            found[index].push(measure(subject).await);
        }
    }
    let medians = found.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("{CONNECTIONS} at once, medians of {ROUNDS}");
    println!("{:<30} {:>12} {:>6}", "", "operations/s", "ratio");
    for (index, (name, _)) in subjects.iter().enumerate() {
        let beside = medians[index / 2 * 2];
        println!(
            "{name:<30} {:>12.0} {:>6.2}",
            medians[index],
            medians[index] / beside
        );
    }
}

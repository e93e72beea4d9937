//! A payments handler that commits its payment, its message and its key in one transaction, on axum and
//! PostgreSQL.
//!
//! ```text
//! DATABASE_URL=postgres://localhost/shop cargo run -p onlyonce --example transaction
//! curl -i localhost:3002/payments -H 'Idempotency-Key: order-1' -d 1000      # twice
//! ```

use axum::{Router, extract::State, http::StatusCode, routing::post};
use onlyonce::{
    Answer, IdempotencyLayer, Identity, Pace, Policy, Reservation, RunError, Transactions, Workers,
    outbox::Message,
    store::{PgTransactions, PostgresOptions, PostgresStore},
};
use sqlx::{PgPool, Row as _};

type App = State<Transactions<PgTransactions>>;

async fn pay(State(app): App, key: Reservation, amount: String) -> Result<Answer, RunError> {
    let work = app.execute(&key, |tx| {
        let (app, amount) = (app.clone(), amount.parse::<i64>().unwrap_or(0));
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO payments (amount) VALUES ($1) RETURNING id");
            let id: i64 = insert.bind(amount).fetch_one(&mut *tx).await?.try_get(0)?;
            app.enqueue(tx, &Message::new("receipts", id.to_string()))
                .await?;
            Ok(Answer::new(StatusCode::CREATED, format!("payment {id}\n")))
        })
    });
    work.await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let store = PostgresStore::open(&url, &PostgresOptions::default()).await?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, amount bigint)")
        .execute(&pool)
        .await?;
    let inside = store.transactions(pool);

    // Stands for your authentication: everybody is one client.
    let identify = |_: &http::request::Parts| Some(Identity::client("somebody"));
    let policy = Policy::builder()
        .enforce(onlyonce::policy::Enforce::On)
        .build();
    let once = IdempotencyLayer::builder(store)
        .route("payments")
        .policy(policy)
        .identify(identify)
        .build();
    let engine = once.engine().clone();
    let _workers = Workers::start(&engine, Pace::default());
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(once)
        .with_state(Transactions::new(engine, inside));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3002").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

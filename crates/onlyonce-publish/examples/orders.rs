//! Orders whose charge a worker makes: the order, the message and the key are committed together; the
//! provider's answer is the answer to the request. On axum and PostgreSQL.
//!
//! ```text
//! DATABASE_URL=postgres://localhost/shop cargo run -p onlyonce-publish --example orders
//! curl -i localhost:3003/orders -H 'Idempotency-Key: order-1' -d 1200      # twice
//! ```
//!
//! The provider is mocked in the same process. It takes two seconds, so that the first answer is 202 with
//! the place to ask, and a later one is the charge.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::LOCATION},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use onlyonce::{
    Engine, EngineOptions, Key, KeyRules, Operation, Pace, Policy, Ran, Scope, Transactions,
    Workers,
    outbox::{Deliveries, Message, Target},
    policy::OnInFlight,
    store::{PgTransactions, PostgresOptions, PostgresStore},
};
use onlyonce_publish::http::{Http, HttpOptions, Pooled};
use serde_json::json;
use sqlx::PgPool;

type App = State<Operation<PgTransactions>>;

async fn order(State(orders): App, headers: HeaderMap, amount: String) -> Response {
    let key = headers.get("idempotency-key").map(|key| key.as_bytes());
    let Some(Ok(key)) = key.map(|key| Key::parse(key, &KeyRules::default())) else {
        return (StatusCode::BAD_REQUEST, "an Idempotency-Key is needed\n").into_response();
    };
    // Stands for your authentication: everybody is one client.
    let ran = orders.run_deferred(Scope::global(), key, amount.clone(), |tx| {
        Box::pin(async move {
            let insert = sqlx::query("INSERT INTO orders (amount) VALUES ($1)");
            let whole = amount.parse::<i64>().unwrap_or(0);
            insert.bind(whole).execute(tx).await?;
            Ok(Message::new(
                "charges",
                json!({ "amount": whole }).to_string(),
            ))
        })
    });
    match ran.await {
        Ok(Ran::Executed(answer) | Ran::Replayed(answer)) => answer.into_response(),
        Ok(Ran::Accepted(id)) => {
            let place = [(LOCATION, format!("/orders/{id}"))];
            (StatusCode::ACCEPTED, place, "it is under way\n").into_response()
        }
        Ok(_) => (StatusCode::CONFLICT, "not this request under this key\n").into_response(),
        Err(error) => error.into_response(),
    }
}

async fn progress(State(orders): App, Path(id): Path<String>) -> Response {
    let store = orders.transactions().engine().store();
    let Ok(id) = id.parse() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match store.lookup(id).await.map(|reply| reply.value) {
        Ok(Some(record)) => Json(json!({ "state": record.state.as_str() })).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// The provider: it charges, slowly. One that is worth its name knows its keys again.
async fn charge(headers: HeaderMap) -> Response {
    tokio::time::sleep(Duration::from_secs(2)).await;
    let key = headers.get("idempotency-key");
    let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default();
    println!("the provider charges under {key}");
    (
        StatusCode::CREATED,
        Json(json!({ "id": format!("ch_{key}") })),
    )
        .into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let store = PostgresStore::open(&url, &PostgresOptions::default()).await?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, amount bigint)")
        .execute(&pool)
        .await?;
    let inside = store.transactions(pool);
    let engine = Engine::start(Arc::new(store), EngineOptions::default());
    let _workers = Workers::start(&engine, Pace::default());

    let provider = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let place = format!("http://{}/charges", provider.local_addr()?);
    let service = Router::new().route("/charges", post(charge));
    tokio::spawn(async move { axum::serve(provider, service).await });
    let charges = Http::new(Pooled::plain(), HttpOptions::new(place.parse()?))?;
    let deliveries = Deliveries::new(&engine).ok_or("a store with messages")?;
    let deliveries = deliveries.target(Target::new("charges", charges));
    let _running = deliveries.start(Duration::from_millis(500));

    let policy = Policy::builder()
        .on_in_flight(OnInFlight::Accept)
        .max_execution(Duration::from_secs(3_600))
        .build();
    let transactions = Transactions::new(engine, inside);
    let orders = transactions.operation("orders", policy).await?;
    let app = Router::new()
        .route("/orders", post(order))
        .route("/orders/{id}", get(progress))
        .with_state(orders);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3003").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

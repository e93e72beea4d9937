//! Two routes of one application under different policies, on one store, and an orderly end.
//!
//! ```text
//! cargo run --example routes
//! curl -i localhost:3004/payments -H 'Idempotency-Key: order-1-of-today' -d 1000      # twice
//! curl -i localhost:3004/notes -d hello                                               # needs no key
//! ```

use std::{path::Path, time::Duration};

use axum::{Router, http::request::Parts, routing::post};
use onlyonce::{
    IdempotencyLayer, Identity, Pace, Policy, Workers, policy::Profile, store::SqliteStore,
};

async fn pay(amount: String) -> String {
    format!("paid {amount}\n")
}

async fn note(text: String) -> String {
    format!("noted {text}\n")
}

/// Stands for your authentication: everybody is one client.
fn identify(_: &Parts) -> Option<Identity> {
    Some(Identity::client("somebody"))
}

async fn signal() {
    let _ = tokio::signal::ctrl_c().await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteStore::open(Path::new("routes-example.db"))?;
    let strict = Policy::builder().profile(Profile::Payments).build();
    let payments = IdempotencyLayer::builder(store)
        .route("payments")
        .policy(strict)
        .identify(identify)
        .build();
    // One engine for each store: the second layer shares that of the first.
    let engine = payments.engine().clone();
    let notes = IdempotencyLayer::builder(engine.clone())
        .route("notes")
        .identify(identify)
        .build();
    let workers = Workers::start(&engine, Pace::default());

    let app = Router::new()
        .merge(Router::new().route("/payments", post(pay)).layer(payments))
        .merge(Router::new().route("/notes", post(note)).layer(notes));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3004").await?;
    println!("listening on http://{}", listener.local_addr()?);

    axum::serve(listener, app)
        .with_graceful_shutdown(signal())
        .await?;
    let _ = tokio::time::timeout(Duration::from_secs(30), engine.idle()).await;
    for report in workers.shutdown().await {
        println!("{}: {} rounds", report.name, report.rounds);
    }
    Ok(())
}

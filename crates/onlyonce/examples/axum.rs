//! A payments handler that is executed once for each key, on axum.
//!
//! ```text
//! cargo run --example axum
//! curl -i localhost:3001/payments -H 'Authorization: Bearer ada' \
//!      -H 'Idempotency-Key: order-1' -d '{"amount":1000}'      # twice
//! ```
//!
//! The handler knows nothing of keys. The record of each key is kept in `axum-example.db`.

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use onlyonce::{IdempotencyLayer, Identity, Pace, Workers, store::SqliteStore};

/// Who asks, as the authentication found out.
#[derive(Clone)]
struct ClientId(String);

/// Stands for your authentication: the bearer token is the client's name.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let client = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(|name| ClientId(name.to_owned()));
    match client {
        Some(client) => {
            request.extensions_mut().insert(client);
            next.run(request).await
        }
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

async fn pay() -> (StatusCode, String) {
    static PAYMENTS: AtomicU64 = AtomicU64::new(0);
    let number = PAYMENTS.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, format!("payment {number}\n"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The scope comes from what the authentication left behind, never from a header.
    let identify = |request: &Parts| {
        request
            .extensions
            .get::<ClientId>()
            .map(|client| Identity::client(&client.0))
    };
    let store = SqliteStore::open(Path::new("axum-example.db"))?;
    let once = IdempotencyLayer::builder(store)
        .route("payments")
        .identify(identify)
        .build();
    // Sweeps and reaps for as long as it is kept.
    let _workers = Workers::start(once.engine(), Pace::default());

    // The last layer is the outermost: requests are authenticated first.
    let app = Router::new()
        .route("/payments", post(pay))
        .layer(once)
        .layer(middleware::from_fn(authenticate));

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

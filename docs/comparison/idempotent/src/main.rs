//! The payments API of the comparison behind the crate `idempotent`, as its README says.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use idempotent::{memory::MemoryStore, middleware::IdempotencyLayer};

static EXECUTED: AtomicU64 = AtomicU64::new(0);

async fn pay(headers: HeaderMap, Json(_): Json<serde_json::Value>) -> Response {
    let fault = headers.get("x-fault").map_or("", |fault| fault.to_str().unwrap_or_default());
    if fault == "4xx" {
        return (StatusCode::PAYMENT_REQUIRED, "declined").into_response();
    }
    if fault == "5xx" {
        return (StatusCode::INTERNAL_SERVER_ERROR, "failed").into_response();
    }
    let number = EXECUTED.fetch_add(1, Ordering::SeqCst) + 1;
    if fault == "slow" {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let answer = match fault {
        "binary" => (0..=u8::MAX).collect::<Vec<u8>>().into_response(),
        "empty" => Body::empty().into_response(),
        "large" => "x".repeat(200_000).into_response(),
        "chunked" => {
            let parts = [r#"{"id":"#.to_owned(), format!("{number}}}")];
            let parts = parts.map(|part| Ok::<_, Infallible>(Bytes::from(part)));
            Body::from_stream(futures_util::stream::iter(parts)).into_response()
        }
        _ => format!(r#"{{"id":{number}}}"#).into_response(),
    };
    let location = [(header::LOCATION, format!("/payments/{number}"))];
    (StatusCode::CREATED, location, answer).into_response()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::args().nth(1).ok_or("a port")?;
    let layer = IdempotencyLayer::new(MemoryStore::builder().try_build()?)
        .require_key(true)
        .scope(|parts| {
            let caller = parts.headers.get(header::AUTHORIZATION)?;
            caller.to_str().ok().map(String::from)
        });
    let app: Router = Router::new()
        .route("/payments", post(pay))
        .route("/other", post(pay))
        .layer(layer)
        .route("/count", get(|| async { EXECUTED.load(Ordering::SeqCst).to_string() }));
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

//! The layer around a plain Tower service, served by hyper, with the whole seam in use.
//!
//! ```text
//! cargo run --example hyper
//! curl -i localhost:3002/payments -H 'Authorization: Bearer ada' \
//!      -H 'Idempotency-Key: order-1' -d '{"amount":1000}'      # twice
//! ```
//!
//! The service sends each payment to a bank on another socket, so it can tell the layer what a plain
//! handler cannot: that nothing was sent, or that the bank declined to do anything.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header, request::Parts};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::TokioIo;
use onlyonce::{
    Body, BoxError, DispatchGuard, IdempotencyLayer, Identity, NotSent, Outcome, Pace, Policy,
    Scope, Workers,
    policy::{Declared, Enforce, On5xx},
    store::MemoryStore,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt};

/// Sends one payment to the bank.
async fn charge(bank: SocketAddr, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let guard = request.extensions().get::<DispatchGuard>().cloned();
    // No connection, no byte: a proof that nothing was sent.
    let mut line = BufReader::new(TcpStream::connect(bank).await.map_err(NotSent::new)?);
    if let Some(guard) = guard {
        // Connecting may have taken longer than the lease. Nothing may be sent then.
        guard.check().map_err(NotSent::new)?;
    }
    // From here on any error means that nobody knows.
    line.write_all(b"charge\n").await?;
    let mut said = String::new();
    line.read_line(&mut said).await?;
    if said.is_empty() {
        return Err("the bank hung up".into());
    }
    let declined = said == "closed\n";
    let mut response = Response::new(Body::from(Bytes::from(said)));
    if declined {
        // The bank said itself that it did nothing, so the key may be used again.
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
            .extensions_mut()
            .insert(Outcome(Declared::NotExecuted));
    } else {
        *response.status_mut() = StatusCode::CREATED;
    }
    Ok(response)
}

/// A bank that counts its payments and is closed for every third.
async fn bank(listener: TcpListener) -> std::io::Result<()> {
    for number in 1_u64.. {
        let (stream, _) = listener.accept().await?;
        let mut line = BufReader::new(stream);
        line.read_line(&mut String::new()).await?;
        let says = match number % 3 {
            0 => "closed\n".to_owned(),
            _ => format!("payment {number}\n"),
        };
        line.write_all(says.as_bytes()).await?;
    }
    Ok(())
}

/// Everybody shares one scope; the credential tells callers apart.
fn identify(request: &Parts) -> Option<Identity> {
    let credential = request.headers.get(header::AUTHORIZATION)?;
    let caller = vec![credential.as_bytes().to_vec()];
    Some(Identity::shared(Scope::global(), caller))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let bank_listener = TcpListener::bind("127.0.0.1:0").await?;
    let bank_address = bank_listener.local_addr()?;
    tokio::spawn(bank(bank_listener));

    let policy = Policy::builder()
        .enforce(Enforce::On)
        .on_5xx(On5xx::Unknown)
        .ttl(Duration::from_secs(72 * 3_600))
        .build();
    let once = IdempotencyLayer::builder(MemoryStore::new())
        .route("payments")
        .policy(policy)
        .identify(identify)
        .build();
    let _workers = Workers::start(once.engine(), Pace::default());
    let service = once.layer(tower::service_fn(move |request| {
        charge(bank_address, request)
    }));

    let listener = TcpListener::bind("127.0.0.1:3002").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = tokio::select! {
            accepted = listener.accept() => accepted?,
            _ = tokio::signal::ctrl_c() => break,
        };
        let service = service.clone();
        let answer = hyper::service::service_fn(move |request: Request<Incoming>| {
            service.clone().oneshot(request)
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
    // Executions whose clients have left are waited for too.
    once.engine().idle().await;
    Ok(())
}

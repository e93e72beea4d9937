//! The API and the bare proxy that the gateway is compared with.
//!
//! The proxy is the minimum that hyper needs: each client connection has its own upstream connection, and
//! bodies are streamed. The gateway's cost beyond that is what OnlyOnce adds.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Either, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

/// An answer of 316 bytes.
const ANSWER: &str = r#"{"id":"pay_01jcq3y8w9f0t2v4x6z8b0d2f4","object":"payment","amount":129900,"amount_captured":129900,"currency":"eur","customer":"cus_9f8e7d6c5b4a3210","status":"succeeded","livemode":false,"created":1794787200,"receipt_url":"/receipts/01jcq3y8w9f0t2v4x6z8b0d2f4","metadata":{"basket":"b-20261115-000042","v":"3"}}"#;

/// Serves the API, or with `upstream` the bare proxy.
pub(super) async fn serve(listen: SocketAddr, upstream: Option<SocketAddr>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    outln!("ready data={}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            // A connection that fails ends; the load generator notices it.
            let _ = match upstream {
                Some(upstream) => proxy(stream, upstream).await,
                None => api(stream).await,
            };
        });
    }
}

async fn api(stream: TcpStream) -> anyhow::Result<()> {
    let service = service_fn(|request: Request<Incoming>| async move {
        // The request is read to its end, as an API would do.
        let _ = request.into_body().collect().await;
        let mut response = Response::new(Full::new(Bytes::from_static(ANSWER.as_bytes())));
        *response.status_mut() = StatusCode::CREATED;
        let json = header::HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        Ok::<_, Infallible>(response)
    });
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

async fn proxy(stream: TcpStream, upstream: SocketAddr) -> anyhow::Result<()> {
    let out = TcpStream::connect(upstream).await?;
    out.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(out)).await?;
    tokio::spawn(connection);
    let sender = Mutex::new(sender);
    let service = service_fn(|request: Request<Incoming>| async {
        let mut sender = sender.lock().await;
        let answered = match sender.ready().await {
            Ok(()) => sender.send_request(request).await,
            Err(error) => Err(error),
        };
        Ok::<_, Infallible>(match answered {
            Ok(response) => response.map(Either::Left),
            Err(_) => {
                let mut response = Response::new(Either::Right(Full::new(Bytes::new())));
                *response.status_mut() = StatusCode::BAD_GATEWAY;
                response
            }
        })
    });
    http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

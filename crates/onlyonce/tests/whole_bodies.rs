//! Parts of bodies at the layer, as hyper and axum hand them over.
//!
//! The evidence is what the inner service was given.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response, Version, request::Parts};
use http_body_util::{BodyExt, StreamBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn as hyper_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use onlyonce::{Body, Engine, EngineOptions, IdempotencyLayer, Identity};
use onlyonce_core::State;
use onlyonce_store::{Filter, memory::MemoryStore};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt, service_fn};

const HEADERS: u8 = 1;
const PING: u8 = 6;

fn layer(engine: &Engine) -> IdempotencyLayer {
    let identify = |_: &Parts| Some(Identity::client("ada"));
    IdempotencyLayer::builder(engine.clone())
        .route("r")
        .identify(identify)
        .build()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn head(stream: u32, key: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/pay"),
        ("idempotency-key", key),
    ] {
        block.extend([0, u8::try_from(name.len()).unwrap()]);
        block.extend(name.bytes());
        block.push(u8::try_from(value.len()).unwrap());
        block.extend(value.bytes());
    }
    frame(HEADERS, 4, stream, &block)
}

/// Reads frames until one of this kind comes on this stream.
async fn until(socket: &mut TcpStream, kind: u8, stream: u32) {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        socket.read_exact(&mut payload).await.unwrap();
        let of = u32::from_be_bytes([0, head[6], head[7], head[8]]);
        if (head[3], of) == (kind, stream) {
            return;
        }
    }
}

/// Goal: a stream that is reset before its end is not executed, whichever code it is reset with.
///
/// Method: hyper's HTTP/2 server before the layer, with its own bodies and boxed by axum; a part of a body,
/// read, then a reset with each code; then all of it, with the same key.
/// Evidence: the handler has been given the whole body, once for each key.
#[tokio::test]
async fn a_reset_stream_is_not_executed() {
    for boxed in [false, true] {
        let engine = Engine::start(Arc::new(MemoryStore::new()), EngineOptions::default());
        let given: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let seen = given.clone();
        let inner = service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                seen.lock().push(body);
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        });
        let service = layer(&engine).layer(inner);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let serving = hyper_fn(move |request: Request<Incoming>| {
            let service = service.clone();
            async move {
                match boxed {
                    true => service.oneshot(request.map(axum::body::Body::new)).await,
                    false => service.oneshot(request).await,
                }
            }
        });
        tokio::spawn(async move {
            let _ = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), serving)
                .await;
        });
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        socket.write_all(preface).await.unwrap();
        socket.write_all(&frame(4, 0, 0, &[])).await.unwrap();
        let mut id = 1;
        for code in 0..14_u32 {
            let key = format!("reset-{code}");
            let part = [head(id, &key), frame(0, 0, id, b"amount=1")].concat();
            socket.write_all(&part).await.unwrap();
            socket
                .write_all(&frame(PING, 0, 0, b"heard it"))
                .await
                .unwrap();
            until(&mut socket, PING, 0).await;
            let reset = frame(3, 0, id, &code.to_be_bytes());
            let whole = [head(id + 2, &key), frame(0, 1, id + 2, b"amount=10")].concat();
            socket.write_all(&[reset, whole].concat()).await.unwrap();
            until(&mut socket, HEADERS, id + 2).await;
            id += 4;
        }
        assert_eq!(*given.lock(), vec![Bytes::from_static(b"amount=10"); 14]);
    }
}

/// Goal: an answer over HTTP/2 that does not come to its end is unknown; one of any other kind is taken
/// at its word, but for its declared length.
///
/// Evidence: the states of the keys.
#[tokio::test]
async fn parts_of_answers_are_unknown() {
    for (version, length, expected) in [
        (Version::HTTP_2, None, State::Unknown),
        (Version::HTTP_11, None, State::Completed),
        (Version::HTTP_11, Some(4), State::Completed),
        (Version::HTTP_11, Some(5), State::Unknown),
        (Version::HTTP_11, Some(3), State::Unknown),
    ] {
        let engine = Engine::start(Arc::new(MemoryStore::new()), EngineOptions::default());
        let inner = service_fn(move |_: Request<Body>| async move {
            // A stream says nothing about its end.
            let piece = Ok::<_, Infallible>(http_body::Frame::data(Bytes::from_static(b"paid")));
            let body = StreamBody::new(futures_util::stream::iter([piece]));
            let mut response = Response::builder().version(version);
            if let Some(length) = length {
                response = response.header("content-length", length);
            }
            Ok::<_, Infallible>(response.body(body).unwrap())
        });
        let service = layer(&engine).layer(inner);
        let request = Request::post("/pay").header("idempotency-key", "k");
        let answer = service.oneshot(request.body(Body::empty()).unwrap()).await;
        let case = format!("{version:?} {length:?}");
        let is_ok = answer.unwrap().status().is_success();
        assert_eq!(is_ok, expected == State::Completed, "{case}");
        let page = engine.store().list(&Filter::default(), None, 10).await;
        assert_eq!(page.unwrap().items[0].record.state, expected, "{case}");
    }
}

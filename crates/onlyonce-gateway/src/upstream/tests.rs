//! The upstream side against raw sockets: the evidence is what the other end read and accepted.
//!
//! Runtimes here are current-thread, so a connection has finished its turn, and is ready for the
//! next request, before the test goes on.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::ServiceExt;

use super::{Backend, Upstream, UpstreamBody, UpstreamError, UpstreamOptions};
use onlyonce::Body;

mod answers;
mod differential;
mod http2;
mod proof;
mod requests;
mod reuse;

/// Far beyond what any exchange here takes, and beyond the connect timeout.
const LIMIT: Duration = Duration::from_secs(5);

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A backend that does what the test tells its socket to do.
struct Server(TcpListener);

impl Server {
    async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.expect("a free port"))
    }

    fn backend(&self) -> Backend {
        let port = self.0.local_addr().expect("a bound listener").port();
        Backend {
            host: "127.0.0.1".to_owned(),
            port,
            prefix: String::new(),
            weight: 1,
            tls: None,
            http2: None,
        }
    }

    fn options(&self) -> UpstreamOptions {
        UpstreamOptions::new(vec![self.backend()])
    }

    fn upstream(&self) -> Upstream {
        Upstream::new(self.options())
    }

    async fn accept(&self) -> TcpStream {
        self.0.accept().await.expect("a connection").0
    }

    /// A backend whose port refuses connections.
    async fn refusing() -> Backend {
        Self::start().await.backend()
    }
}

/// Reads one request: its head, and the body that Content-Length announces.
async fn read_request(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    loop {
        let seen = String::from_utf8_lossy(&text);
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().expect("a length")) {
                return seen.into_owned();
            }
        }
        let count = socket.read_buf(&mut text).await.expect("a request");
        assert_ne!(count, 0, "the connection ended within a request");
    }
}

/// Takes one connection, one request, and answers it with these bytes.
async fn answer_once(server: &Server, answer: &[u8]) -> (TcpStream, String) {
    let mut socket = server.accept().await;
    let seen = read_request(&mut socket).await;
    socket.write_all(answer).await.expect("an open connection");
    (socket, seen)
}

fn post(body: &'static str) -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri("/charge?x=%2F&y")
        .header("host", "shop.example")
        .body(Body::from(Bytes::from_static(body.as_bytes())))
        .expect("a valid request")
}

async fn call(
    upstream: &Upstream,
    request: Request<Body>,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    within(upstream.clone().oneshot(request)).await
}

/// Sends, and reads the answer to its end.
async fn fetch(upstream: &Upstream, request: Request<Body>) -> Bytes {
    let response = call(upstream, request).await.expect("an answer");
    within(response.into_body().collect())
        .await
        .expect("a whole body")
        .to_bytes()
}

/// Turns a test that would hang into one that fails.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, work)
        .await
        .expect("an end in time")
}

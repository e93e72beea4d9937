//! A client that sends exactly the bytes it is told to and may leave at any of them; and one that
//! speaks HTTP/2 with prior knowledge.

use std::{
    fmt::Write as _,
    io,
    net::{IpAddr, SocketAddr},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::net::TcpStream;

use super::{
    wire::{Framing, Headers, Wire},
    within,
};

/// A request, header lines in the order they were added.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
    chunked: bool,
}

impl Request {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        let headers = vec![("Host".to_owned(), b"api.test".to_vec())];
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers,
            body: None,
            chunked: false,
        }
    }

    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub(crate) fn post(target: &str) -> Self {
        Self::new("POST", target)
    }

    /// The payment most tests make.
    pub(crate) fn pay(key: &str) -> Self {
        Self::post("/payments")
            .key(key)
            .json(r#"{"amount":1000,"currency":"EUR"}"#)
    }

    pub(crate) fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.header("Idempotency-Key", key)
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers
            .push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// Another host than `api.test`.
    pub(crate) fn host(mut self, host: &str) -> Self {
        self.headers.retain(|(name, _)| name != "Host");
        self.header("Host", host)
    }

    pub(crate) fn json(self, text: &str) -> Self {
        self.body("application/json", text)
    }

    pub(crate) fn body(mut self, content_type: &str, bytes: impl AsRef<[u8]>) -> Self {
        self.headers.retain(|(name, _)| name != "Content-Type");
        self.body = Some(bytes.as_ref().to_vec());
        self.header("Content-Type", content_type)
    }

    /// Sends the body in chunks of seven bytes instead of with its length.
    pub(crate) fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// The start line and the headers, with the empty line.
    pub(crate) fn head_bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        for (name, value) in &self.headers {
            head.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        if self.chunked {
            head.extend(b"Transfer-Encoding: chunked\r\n");
        } else if let Some(body) = &self.body {
            head.extend(format!("Content-Length: {}\r\n", body.len()).bytes());
        }
        head.extend(b"\r\n");
        head
    }

    /// The body as it goes over the wire.
    pub(crate) fn body_bytes(&self) -> Vec<u8> {
        let body = self.body.clone().unwrap_or_default();
        if !self.chunked {
            return body;
        }
        let mut wire = Vec::new();
        for chunk in body.chunks(7) {
            wire.extend(format!("{:x}\r\n", chunk.len()).bytes());
            wire.extend(chunk);
            wire.extend(b"\r\n");
        }
        wire.extend(b"0\r\n\r\n");
        wire
    }

    /// The request as hyper's client takes it: with a whole address for HTTP/2, without one else.
    pub(crate) fn to_http(&self, is_http2: bool) -> http::Request<Full<Bytes>> {
        let named = self.headers.iter().find(|(name, _)| name == "Host");
        let host = match named.filter(|_| is_http2) {
            Some((_, host)) => format!("http://{}", String::from_utf8_lossy(host)),
            None => String::new(),
        };
        let mut wanted = http::Request::builder()
            .method(self.method.as_str())
            .uri(format!("{host}{}", self.target));
        for (name, value) in &self.headers {
            if !is_http2 || name != "Host" {
                wanted = wanted.header(name.as_str(), value.as_slice());
            }
        }
        let body = Full::new(Bytes::from(self.body.clone().unwrap_or_default()));
        wanted.body(body).expect("a request that can be carried")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head_bytes(), self.body_bytes()].concat()
    }
}

/// An answer as it came over the wire.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Headers,
    /// The statuses of interim answers before it.
    pub(crate) interim: Vec<u16>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.one(name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}) in {self}"))
    }

    /// The `code` of an error body.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after")?.parse().ok()
    }

    /// Everything that came, as one text to search.
    pub(crate) fn everything(&self) -> String {
        format!("{self}")
    }

    /// Panics unless this is the status, with the whole answer in the message.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self}");
        self
    }

    /// Panics unless this is an error of ours with this status and code.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, code: &str) -> Self {
        // The status first: an answer that is none of ours need not be JSON.
        assert_eq!(self.status, status, "{self}");
        assert_eq!(self.code(), code, "{self}");
        self
    }
}

impl std::fmt::Display for Response {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = format!("{}\n", self.status);
        for (name, value) in self.headers.0.iter().chain(&self.trailers.0) {
            let _ = writeln!(text, "{name}: {value}");
        }
        let shown = &self.body[..self.body.len().min(2_000)];
        write!(formatter, "{text}\n{}", String::from_utf8_lossy(shown))
    }
}

/// A connection over HTTP/1.1.
pub(crate) struct Connection {
    wire: Wire,
}

impl Connection {
    pub(crate) async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = within("a connection", TcpStream::connect(addr)).await?;
        Ok(Self {
            wire: Wire::new(stream),
        })
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        within("a write", self.wire.write(bytes)).await
    }

    /// A connection whose end of the pipe is as narrow as the system allows.
    pub(crate) async fn open_narrow(addr: SocketAddr) -> io::Result<Self> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4_096)?;
        let stream = within("a connection", socket.connect(addr)).await?;
        Ok(Self {
            wire: Wire::new(stream),
        })
    }

    /// A connection from another address of this machine.
    pub(crate) async fn open_from(from: IpAddr, addr: SocketAddr) -> io::Result<Self> {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = within("a connection", socket.connect(addr)).await?;
        Ok(Self {
            wire: Wire::new(stream),
        })
    }

    /// Takes about `count` bytes off the socket, keeps them for `response`, and says how many.
    pub(crate) async fn take(&mut self, count: usize) -> io::Result<usize> {
        self.wire.take(count).await
    }

    /// Reads until the peer has closed, in good order or not, and returns what came.
    pub(crate) async fn until_closed(&mut self) -> Vec<u8> {
        within("the peer to close", self.wire.until_closed()).await
    }

    /// The next final answer; an error if the peer broke it off.
    pub(crate) async fn response(&mut self) -> io::Result<Response> {
        within("an answer", self.read_response()).await
    }

    async fn read_response(&mut self) -> io::Result<Response> {
        let mut interim = Vec::new();
        loop {
            let Some(head) = self.wire.head().await? else {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "closed, no answer",
                ));
            };
            let status: u16 = head
                .start
                .split(' ')
                .nth(1)
                .and_then(|word| word.parse().ok())
                .ok_or_else(|| io::Error::other("no status line"))?;
            if status < 200 {
                interim.push(status);
                continue;
            }
            let framing = match status {
                204 | 304 => Framing::None,
                _ => head.headers.framing(Framing::UntilClose),
            };
            let body = self.wire.body(framing).await?;
            return Ok(Response {
                status,
                headers: head.headers,
                body: body.bytes,
                trailers: body.trailers,
                interim,
            });
        }
    }

    /// Returns once this text has come, and leaves it to be read.
    pub(crate) async fn until(&mut self, text: &str) -> io::Result<()> {
        within("a part of the answer", self.wire.until(text)).await
    }

    pub(crate) async fn send(&mut self, request: &Request) -> io::Result<Response> {
        self.write(&request.bytes()).await?;
        self.response().await
    }

    /// Says that nothing more will be written, and still reads.
    pub(crate) async fn finish_writing(&mut self) -> io::Result<()> {
        self.wire.finish_writing().await
    }

    /// Leaves with a reset.
    pub(crate) fn reset(self) {
        self.wire.reset_on_drop();
    }

    /// Leaves in good order.
    pub(crate) fn leave(self) {}
}

/// One request over a connection of its own.
pub(crate) async fn send(addr: SocketAddr, request: &Request) -> io::Result<Response> {
    Connection::open(addr).await?.send(request).await
}

/// An HTTP/2 connection with prior knowledge; clones share it.
#[derive(Clone)]
pub(crate) struct Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>);

impl Http2 {
    pub(crate) async fn open(addr: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(addr))
            .await
            .expect("connected");
        let handshake =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = within("HTTP/2", handshake).await.expect("an HTTP/2 peer");
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn send(&mut self, request: &Request) -> Response {
        let answer = within(
            "an HTTP/2 answer",
            self.0.send_request(request.to_http(true)),
        )
        .await
        .expect("answered");
        let (parts, body) = answer.into_parts();
        let body = within("an HTTP/2 body", body.collect())
            .await
            .expect("a whole body");
        let trailers = body.trailers().map(headers).unwrap_or_default();
        Response {
            status: parts.status.as_u16(),
            headers: headers(&parts.headers),
            body: body.to_bytes().to_vec(),
            trailers,
            interim: Vec::new(),
        }
    }
}

pub(crate) fn headers(map: &http::HeaderMap) -> Headers {
    let lossy = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Headers(
        map.iter()
            .map(|(name, value)| (name.to_string(), lossy(value)))
            .collect(),
    )
}

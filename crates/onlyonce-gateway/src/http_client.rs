//! A plain HTTP/1.1 client: one connection per request, so that nothing is resent, reordered or shared
//! implicitly. The gateway queries providers with it; the command line queries gateways, and probes other
//! people's APIs.
//!
//! Deliberately absent: redirects, retries, pools, and proxy settings from the environment.

mod endpoint;
mod trust;

pub use endpoint::{BadUrl, Endpoint};
pub use trust::trusting;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Body as _, client::conn::http1};
use hyper_util::rt::TokioIo;
use onlyonce::body::{Framing, Whole};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// A request to send.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// The destination.
    pub endpoint: Endpoint,
    /// The user's headers, including credentials: their values are never shown.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The name of the header that carries the key.
    pub key_header: HeaderName,
    /// The keys, each sent in a line of its own.
    pub keys: Vec<HeaderValue>,
    /// The whole body.
    pub body: Bytes,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// All headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// Whether the body was chunked, without a declared length.
    pub chunked: bool,
    /// Whether only the end of the connection delimited the body.
    pub ended_by_close: bool,
}

/// A connection, plain or TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Sends requests, each within a time limit.
#[derive(Clone)]
pub struct Client {
    tls: TlsConnector,
    /// From connecting to the end of the answer.
    timeout: Duration,
    /// The largest answer that is read, in bytes.
    limit: usize,
}

impl Client {
    /// A client whose requests take up to `timeout` each, from connecting to the end of the answer.
    pub fn new(timeout: Duration, tls: Arc<ClientConfig>) -> Self {
        Self {
            tls: tls.into(),
            timeout,
            limit: MAX_ANSWER_BYTES,
        }
    }

    /// Lowers the limit on answers, in bytes.
    pub(crate) fn reading_at_most(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Sends `request` and reads its answer.
    ///
    /// # Errors
    /// Why there is no answer, in words for people.
    pub async fn send(&self, request: &Outgoing) -> Result<Answer, String> {
        let end = Instant::now() + self.timeout;
        let stream = self.connect(&request.endpoint).await?;
        self.exchange_until(end, stream, request).await
    }

    /// Opens a connection to `endpoint`.
    ///
    /// # Errors
    /// Why there is no connection, in words for people.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Box<dyn Stream>, String> {
        match timeout(self.timeout, self.open(endpoint)).await {
            Ok(opened) => opened,
            Err(_) => Err("no connection in time".to_owned()),
        }
    }

    /// Sends `request` on an open connection, and reads its answer.
    ///
    /// # Errors
    /// Why there is no answer, in words for people.
    pub async fn send_on(
        &self,
        stream: Box<dyn Stream>,
        request: &Outgoing,
    ) -> Result<Answer, String> {
        let end = Instant::now() + self.timeout;
        self.exchange_until(end, stream, request).await
    }

    async fn exchange_until(
        &self,
        end: Instant,
        stream: Box<dyn Stream>,
        request: &Outgoing,
    ) -> Result<Answer, String> {
        match timeout_at(end, exchange(stream, request, self.limit)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("nothing within {} s", self.timeout.as_secs())),
        }
    }

    async fn open(&self, endpoint: &Endpoint) -> Result<Box<dyn Stream>, String> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let _ = stream.set_nodelay(true);
        if !endpoint.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(endpoint.host.clone());
        let name = name.map_err(|_| "no certificate can be for this host".to_owned())?;
        let secured = self.tls.connect(name, stream).await;
        let secured = secured.map_err(|error| format!("no secure connection: {error}"))?;
        Ok(Box::new(secured))
    }
}

/// Boxed, so that an exchange is compiled here once, and not in each place that sends a request.
fn exchange(
    stream: Box<dyn Stream>,
    outgoing: &Outgoing,
    limit: usize,
) -> BoxFuture<'_, Result<Answer, String>> {
    Box::pin(exchanged(stream, outgoing, limit))
}

async fn exchanged(
    stream: Box<dyn Stream>,
    outgoing: &Outgoing,
    limit: usize,
) -> Result<Answer, String> {
    let (mut sender, connection) = http1::Builder::new()
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let request = to_request(outgoing).map_err(|error| error.to_string())?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(describe)?;
        let (parts, body) = answer.into_parts();
        let chunked = body.size_hint().exact().is_none();
        let framing = Framing::of_answer(&parts, &outgoing.method);
        let ended_by_close = framing.ends_by_close(&parts);
        let body = Limited::new(Whole::new(framing, body), limit);
        let body = body.collect().await;
        let body = body.map_err(|error| format!("the answer broke off: {error}"))?;
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes(),
            chunked,
            ended_by_close,
        })
    };
    let mut answer = std::pin::pin!(answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end with its last answer, which can still be read.
        _ = &mut connection => answer.await,
    }
}

fn describe(error: hyper::Error) -> String {
    if error.is_incomplete_message() || error.is_canceled() {
        "the connection was closed without an answer".to_owned()
    } else {
        error.to_string()
    }
}

fn to_request(outgoing: &Outgoing) -> http::Result<Request<Full<Bytes>>> {
    let mut builder = Request::builder()
        .method(&outgoing.method)
        .uri(outgoing.endpoint.target())
        .header(header::HOST, &outgoing.endpoint.authority);
    for (name, value) in &outgoing.headers {
        builder = builder.header(name, value);
    }
    for key in &outgoing.keys {
        builder = builder.header(&outgoing.key_header, key);
    }
    builder.body(Full::new(outgoing.body.clone()))
}

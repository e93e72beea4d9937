//! The client: one connection for each request, so that nothing is resent, reordered or shared
//! behind our back.
//!
//! Deliberately absent: redirects, retries, pools, and reading of proxies from the environment.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{body::Body as _, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Barrier,
    task::JoinSet,
    time::{Instant, timeout},
};

use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use super::exchange::{Answer, Exchange, Outgoing};

/// The largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// How long the other side may take to end a request that broke off.
const BROKEN_OFF_FOR: Duration = Duration::from_secs(2);

/// A connection, plain or secured.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Sends requests and keeps the time.
#[derive(Clone)]
pub(crate) struct Client {
    tls: TlsConnector,
    started: Instant,
    /// From connecting to the end of the answer.
    timeout: Duration,
    /// The largest answer that is read, in bytes.
    limit: usize,
}

impl Client {
    pub(crate) fn new(timeout: Duration, tls: Arc<ClientConfig>) -> Self {
        Self {
            tls: tls.into(),
            started: Instant::now(),
            timeout,
            limit: MAX_ANSWER_BYTES,
        }
    }

    /// The same with a smaller bound on answers, in bytes.
    pub(crate) fn reading_at_most(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Sends `request` and reads its answer.
    pub(crate) async fn send(&self, label: &'static str, request: Outgoing) -> Exchange {
        self.clone().send_after(label, request, None).await
    }

    /// Sends all of them at the same moment: every connection is open before the first byte goes.
    pub(super) async fn send_at_once(
        &self,
        label: &'static str,
        requests: Vec<Outgoing>,
    ) -> Vec<Exchange> {
        let barrier = Arc::new(Barrier::new(requests.len()));
        let mut running = JoinSet::new();
        for request in requests {
            let barrier = Arc::clone(&barrier);
            running.spawn(self.clone().send_after(label, request, Some(barrier)));
        }
        let mut done = Vec::new();
        while let Some(exchange) = running.join_next().await {
            done.extend(exchange);
        }
        done.sort_by_key(|exchange| exchange.ended);
        done
    }

    async fn send_after(
        self,
        label: &'static str,
        request: Outgoing,
        barrier: Option<Arc<Barrier>>,
    ) -> Exchange {
        let connected = timeout(self.timeout, self.connect(&request)).await;
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
        let sent = self.started.elapsed();
        let answer = match connected {
            Ok(Ok(stream)) => {
                match timeout(self.timeout, exchange(stream, &request, self.limit)).await {
                    Ok(answer) => answer,
                    Err(_) => Err(format!("nothing within {} s", self.timeout.as_secs())),
                }
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err("no connection in time".to_owned()),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer,
        }
    }

    async fn connect(&self, request: &Outgoing) -> Result<Box<dyn Stream>, String> {
        let endpoint = &request.endpoint;
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

    /// Sends `request` with a length that is one byte more than its body, and ends there. Returns when the
    /// other side has ended too, or has had time to.
    pub(super) async fn break_off(&self, label: &'static str, request: Outgoing) -> Exchange {
        let sent = self.started.elapsed();
        let outcome = async {
            let mut stream = self.connect(&request).await?;
            let bytes = wire_form(&request, request.body.len() + 1);
            let broken = |error: std::io::Error| error.to_string();
            stream.write_all(&bytes).await.map_err(broken)?;
            stream.shutdown().await.map_err(broken)?;
            let mut ignored = Vec::new();
            let ended = stream.read_to_end(&mut ignored);
            // How it ends, and whether, says nothing.
            let _ = timeout(BROKEN_OFF_FOR, ended).await;
            Ok::<_, String>(())
        };
        let why = match timeout(self.timeout, outcome).await {
            Ok(Ok(())) => "we sent a part".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => "no connection in time".to_owned(),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer: Err(why),
        }
    }

    /// Sends `request`, waits for `after`, and hangs up without reading.
    pub(super) async fn hang_up(
        &self,
        label: &'static str,
        request: Outgoing,
        after: Duration,
    ) -> Exchange {
        let sent = self.started.elapsed();
        let outcome = async {
            let mut stream = self.connect(&request).await?;
            let written = stream
                .write_all(&wire_form(&request, request.body.len()))
                .await;
            written.map_err(|error| error.to_string())?;
            stream.flush().await.map_err(|error| error.to_string())?;
            // An answer that comes before the time is over is left unread, as by a client that died.
            tokio::time::sleep(after).await;
            drop(stream);
            Ok::<_, String>(())
        };
        let why = match timeout(self.timeout, outcome).await {
            Ok(Ok(())) => "we hung up".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => "no connection in time".to_owned(),
        };
        Exchange {
            label,
            request,
            sent,
            ended: self.started.elapsed(),
            answer: Err(why),
        }
    }
}

async fn exchange(
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
        let body = Limited::new(body, limit).collect().await;
        let body = body.map_err(|error| format!("the answer broke off: {error}"))?;
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.to_bytes(),
            chunked,
        })
    };
    let mut answer = std::pin::pin!(answer);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // The connection may end with its last answer; what it read is still there to be taken.
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

/// The request as bytes, with this length of its body, for a client that writes and does not stay.
fn wire_form(outgoing: &Outgoing, declared: usize) -> Vec<u8> {
    let mut bytes = format!(
        "{} {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
        outgoing.method,
        outgoing.endpoint.target(),
        outgoing.endpoint.authority,
        declared
    )
    .into_bytes();
    let keys = outgoing.keys.iter().map(|key| (&outgoing.key_header, key));
    let headers = outgoing.headers.iter().map(|(name, value)| (name, value));
    for (name, value) in headers.chain(keys) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&outgoing.body);
    bytes
}

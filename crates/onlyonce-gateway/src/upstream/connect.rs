//! One connection to a backend: how it is made, and how one request goes over it.
//!
//! A connection carries one request at a time, HTTP/2 or not, so that what has left of it is known
//! for that request, and so that the guard can refuse one without harm to another.

use std::{io, sync::Arc, time::Duration};

use h2::Reason;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    Backend,
    io::{Verdict, Wire, WireIo},
    request,
    transport::Transport,
};
use crate::{cores, tls};
use onlyonce::{Body, DispatchGuard, GuardFailed, NotSent};
use onlyonce_store::failpoint;

/// The largest head of an answer over HTTP/2, in bytes.
const MAX_HEADER_LIST: u32 = 64 << 10;
/// The lines and the bytes of the largest head of an answer over HTTP/1.1.
const MAX_HEADER_LINES: usize = 512;
const MAX_HEAD: usize = 512 << 10;

/// Why no connection could take the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unreached {
    /// The name was not resolved, or no address answered.
    #[error("the backend could not be connected to")]
    Connect(#[source] io::Error),
    /// The handshake failed; most often because its certificate is not believed.
    #[error("no secured connection to the backend")]
    Tls(#[source] io::Error),
    /// Name resolution, connecting and the handshake took longer than the limit.
    #[error("connecting to the backend took longer than {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// A connection was there, and ended before the request began.
    #[error("the connection ended before the request began")]
    Ended(#[source] hyper::Error),
    /// The path prefix of the backend and the path of the request do not make a request target.
    #[error("the backend's path prefix does not fit the request")]
    Target(#[source] http::uri::InvalidUri),
    /// There is no backend.
    #[error("no backend is configured")]
    NoBackend,
}

/// How an attempt over one connection went.
pub(super) enum Attempt<T> {
    /// The head of an answer came.
    Answered(T),
    /// The request was never begun, and is here for another connection.
    HandedBack(Box<Request<Body>>, Unreached),
    /// No byte of the request has left, but it cannot be had back.
    Unsent(NotSent),
    /// A byte has left, and no answer came.
    Lost(hyper::Error),
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

/// A connection that is held exclusively, or rests in the pool.
pub(super) struct Link {
    sender: Sender,
    wire: Arc<Wire>,
    /// The core that drives it.
    core: Option<usize>,
}

impl Link {
    /// Connects, in the HTTP that the backend is spoken to in, and starts the task that drives the
    /// connection until it ends.
    pub(super) async fn open(backend: &Backend, limit: Duration) -> Result<Self, Unreached> {
        Self::open_as(backend, backend.http2, limit).await
    }

    /// The same in HTTP/1.1, which alone can be upgraded.
    pub(super) async fn open_http1(backend: &Backend, limit: Duration) -> Result<Self, Unreached> {
        Self::open_as(backend, Some(false), limit).await
    }

    async fn open_as(
        backend: &Backend,
        http2: Option<bool>,
        limit: Duration,
    ) -> Result<Self, Unreached> {
        let (transport, is_http2) = tokio::time::timeout(limit, dial(backend, http2))
            .await
            .map_err(|_| Unreached::ConnectTimeout(limit))??;
        if is_http2 {
            return Self::over_http2(transport).await;
        }
        let wire = Wire::shut();
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_HEADER_LINES)
            .max_buf_size(MAX_HEAD)
            .handshake(TokioIo::new(WireIo::new(transport, Arc::clone(&wire))))
            .await
            .map_err(Unreached::Ended)?;
        drive(connection.with_upgrades());
        Ok(Self {
            sender: Sender::Http1(sender),
            wire,
            core: cores::here(),
        })
    }

    async fn over_http2(transport: Transport) -> Result<Self, Unreached> {
        let wire = Wire::open();
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_LIST)
            .handshake(TokioIo::new(WireIo::new(transport, Arc::clone(&wire))))
            .await
            .map_err(Unreached::Ended)?;
        drive(connection);
        Ok(Self {
            sender: Sender::Http2(sender),
            wire,
            core: cores::here(),
        })
    }

    /// The core that drives it, where one does.
    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    /// Sends one request. The link comes back with the answer, for the body to hold.
    pub(super) async fn send(
        mut self,
        mut request: Request<Body>,
        guard: Option<DispatchGuard>,
        scheme: &str,
    ) -> Attempt<(Response<Incoming>, Self)> {
        let sent = match &mut self.sender {
            Sender::Http1(sender) => {
                self.wire.arm(guard);
                sender.try_send_request(request).await
            }
            Sender::Http2(sender) => {
                request::into_http2(&mut request, scheme);
                self.wire.arm(guard);
                sender.try_send_request(request).await
            }
        };
        match sent {
            Ok(response) => {
                failpoint!("upstream.answered");
                Attempt::Answered((response, self))
            }
            Err(failure) => self.failed(failure),
        }
    }

    fn failed<T>(self, mut failure: TrySendError<Request<Body>>) -> Attempt<T> {
        let is_http2 = self.is_http2();
        let verdict = self.wire.verdict();
        let message = failure.take_message();
        let error = failure.into_error();
        match (verdict, message) {
            (Verdict::Refused, _) => Attempt::Unsent(NotSent::new(GuardFailed)),
            // What leaves over HTTP/2 need not have been of this request, which never began.
            (verdict, Some(mut request)) if verdict == Verdict::Unsent || is_http2 => {
                request::into_http1(&mut request);
                Attempt::HandedBack(Box::new(request), Unreached::Ended(error))
            }
            (Verdict::Unsent, _) => Attempt::Unsent(NotSent::new(error)),
            (Verdict::Sent, _) if is_http2 && was_refused(&error) && !self.wire.is_answered() => {
                Attempt::Unsent(NotSent::new(error))
            }
            (Verdict::Sent, _) => Attempt::Lost(error),
        }
    }

    /// Whether several requests can be told apart on it.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// Whether the connection waits for its next request.
    pub(super) fn is_ready(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_ready(),
            Sender::Http2(sender) => sender.is_ready(),
        }
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
}

/// Whether the backend itself says that it has not acted on the request: it refused the stream, or it
/// is leaving in good order and has not looked at this one (RFC 9113 8.7). The same words from our own
/// side of the connection say nothing about the other.
fn was_refused(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error);
    let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<h2::Error>()) else {
        return false;
    };
    let reason = cause.reason();
    cause.is_remote()
        && (cause.is_reset() && reason == Some(Reason::REFUSED_STREAM)
            || cause.is_go_away() && reason == Some(Reason::NO_ERROR))
}

/// A connection, secured where the backend says so, and whether it speaks HTTP/2.
async fn dial(backend: &Backend, http2: Option<bool>) -> Result<(Transport, bool), Unreached> {
    let socket = TcpStream::connect((backend.host.as_str(), backend.port))
        .await
        .map_err(Unreached::Connect)?;
    socket.set_nodelay(true).map_err(Unreached::Connect)?;
    let Some(trust) = &backend.tls else {
        return Ok((Transport::Plain(socket), http2 == Some(true)));
    };
    let name = ServerName::try_from(backend.host.clone())
        .map_err(|error| Unreached::Tls(io::Error::other(error)))?;
    let secured = TlsConnector::from(trust.config(http2))
        .connect(name, socket)
        .await
        .map_err(Unreached::Tls)?;
    let agreed = secured.get_ref().1.alpn_protocol() == Some(tls::HTTP2);
    if http2 == Some(true) && !agreed {
        let error = io::Error::other("the backend does not speak HTTP/2");
        return Err(Unreached::Tls(error));
    }
    Ok((Transport::Secured(Box::new(secured)), agreed))
}

/// Errors of a request reach its sender; what is left are ends of idle connections.
fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an upstream connection ended");
        }
    });
}

//! One connection to a backend: how it is opened, and how one request goes over it.
//!
//! A connection carries one request at a time, HTTP/2 or not. So it is known how much of that request was
//! sent, and the guard can refuse it without affecting another.

use std::{io, sync::Arc, time::Duration};

use h2::Reason;
use http::{Request, Response};
use hyper::client::conn::{TrySendError, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use super::{
    Backend,
    http1::{Broken, Connection, Failed},
    io::{Verdict, Wire, WireIo},
    request,
    response::Coming,
    transport::Transport,
};
use crate::{cores, tls};
use onlyonce::{Body, BoxError, DispatchGuard, GuardFailed, NotSent};

/// The largest header list of an HTTP/2 answer, in bytes.
const MAX_HEADER_LIST: u32 = 64 << 10;

/// Why no connection could take the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unreached {
    /// The name was not resolved, or no address answered.
    #[error("the backend could not be connected to")]
    Connect(#[source] io::Error),
    /// The TLS handshake failed, usually because the backend's certificate is not trusted.
    #[error("no secured connection to the backend")]
    Tls(#[source] io::Error),
    /// Name resolution, connecting and the handshake took longer than the limit.
    #[error("connecting to the backend took longer than {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// The connection ended before the request began.
    #[error("the connection ended before the request began")]
    Ended(#[source] BoxError),
    /// The backend's path prefix and the request's path do not form a request target.
    #[error("the backend's path prefix does not fit the request")]
    Target(#[source] http::uri::InvalidUri),
    /// No backend is configured.
    #[error("no backend is configured")]
    NoBackend,
}

/// The outcome of an attempt over one connection.
pub(super) enum Attempt<T> {
    /// The head of an answer arrived.
    Answered(T),
    /// The request was never begun, and is returned for another connection.
    HandedBack(Box<Request<Body>>, Unreached),
    /// No byte of the request was sent, but the request cannot be recovered.
    Unsent(NotSent),
    /// A byte was sent, and no answer came.
    Lost(BoxError),
}

enum Kind {
    /// Driven by the task that waits for the answer.
    Http1(Box<Connection>),
    /// Driven by a task of its own.
    Http2 {
        sender: http2::SendRequest<Body>,
        wire: Arc<Wire>,
        /// The core of that task.
        core: Option<usize>,
    },
}

/// A connection that is held exclusively, or idle in the pool.
pub(super) struct Link(Kind);

impl Link {
    /// Connects with the HTTP version configured for the backend.
    pub(super) async fn open(backend: &Backend, limit: Duration) -> Result<Self, Unreached> {
        Self::open_as(backend, backend.http2, limit).await
    }

    /// Connects with HTTP/1.1, the only version that can be upgraded.
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
        Ok(Self::http1(Connection::new(transport)))
    }

    /// Wraps an idle connection.
    pub(super) fn http1(connection: Box<Connection>) -> Self {
        Self(Kind::Http1(connection))
    }

    async fn over_http2(transport: Transport) -> Result<Self, Unreached> {
        let wire = Wire::open();
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEADER_LIST)
            .handshake(TokioIo::new(WireIo::new(transport, Arc::clone(&wire))))
            .await
            .map_err(|error| Unreached::Ended(error.into()))?;
        drive(connection);
        let core = cores::here();
        Ok(Self(Kind::Http2 { sender, wire, core }))
    }

    /// The core that drives the connection, if one does.
    pub(super) fn core(&self) -> Option<usize> {
        match &self.0 {
            Kind::Http1(connection) => connection.core(),
            Kind::Http2 { core, .. } => *core,
        }
    }

    /// Sends one request. The link comes back inside the answer's body.
    pub(super) async fn send(
        self,
        mut request: Request<Body>,
        guard: Option<DispatchGuard>,
        scheme: &str,
    ) -> Attempt<Response<Coming>> {
        let (mut sender, wire, core) = match self.0 {
            Kind::Http1(connection) => {
                return match connection.exchange(request, guard).await {
                    Ok(response) => Attempt::Answered(response.map(Coming::Http1)),
                    Err(failed) => failed.into(),
                };
            }
            Kind::Http2 { sender, wire, core } => (sender, wire, core),
        };
        request::into_http2(&mut request, scheme);
        wire.arm(guard);
        match sender.try_send_request(request).await {
            Ok(response) => {
                let link = Self(Kind::Http2 { sender, wire, core });
                Attempt::Answered(response.map(|body| Coming::Http2(body, Some(link))))
            }
            Err(failure) => failed(&wire, failure),
        }
    }

    /// Whether the connection is HTTP/2, on which an answer names its request.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.0, Kind::Http2 { .. })
    }

    /// Whether the connection is ready for its next request.
    pub(super) fn is_ready(&self) -> bool {
        match &self.0 {
            Kind::Http1(_) => true,
            Kind::Http2 { sender, .. } => sender.is_ready(),
        }
    }

    /// Whether the backend is still connected, as far as the kernel knows.
    pub(super) fn is_there(&self) -> bool {
        match &self.0 {
            Kind::Http1(connection) => connection.is_silent(),
            Kind::Http2 { sender, .. } => !sender.is_closed(),
        }
    }

    /// Whether the connection is known to have ended. One that nobody drives is checked when it is used.
    pub(super) fn is_closed(&self) -> bool {
        match &self.0 {
            Kind::Http1(_) => false,
            Kind::Http2 { sender, .. } => sender.is_closed(),
        }
    }
}

impl<T> From<Failed> for Attempt<T> {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Ended(request) => {
                Self::HandedBack(request, Unreached::Ended(Broken::Ended.into()))
            }
            Failed::Refused => Self::Unsent(NotSent::new(GuardFailed)),
            Failed::Unsent(error) => Self::Unsent(NotSent::new(error)),
            Failed::Lost(error) => Self::Lost(error.into()),
        }
    }
}

/// The outcome of an HTTP/2 request without an answer.
fn failed<T>(wire: &Wire, mut failure: TrySendError<Request<Body>>) -> Attempt<T> {
    let verdict = wire.verdict();
    let message = failure.take_message();
    let error = failure.into_error();
    match (verdict, message) {
        (Verdict::Refused, _) => Attempt::Unsent(NotSent::new(GuardFailed)),
        // Bytes that were sent need not belong to this request, which never began.
        (_, Some(mut request)) => {
            request::into_http1(&mut request);
            Attempt::HandedBack(Box::new(request), Unreached::Ended(error.into()))
        }
        (Verdict::Unsent, None) => Attempt::Unsent(NotSent::new(error)),
        (Verdict::Sent, None) if was_refused(&error) && !wire.is_answered() => {
            Attempt::Unsent(NotSent::new(error))
        }
        (Verdict::Sent, None) => Attempt::Lost(error.into()),
    }
}

/// Whether the backend itself says that it did not process the request: it refused the stream, or it shuts
/// down gracefully and had not processed this stream (RFC 9113 8.7). The same codes from our own side of the
/// connection say nothing about the backend.
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

/// Opens a connection, with TLS if the backend requires it, and tells whether it speaks HTTP/2.
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

/// Request errors reach the sender; the rest are ends of idle connections.
fn drive(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an upstream connection ended");
        }
    });
}

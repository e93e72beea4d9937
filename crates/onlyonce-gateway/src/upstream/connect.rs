//! One connection to a backend: how it is made, and how one request goes over it.

use std::{io, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use tokio::net::TcpStream;

use super::{
    Backend,
    io::{Verdict, Wire, WireIo},
};
use onlyonce::{Body, DispatchGuard, GuardFailed, NotSent};
use onlyonce_store::failpoint;

/// Why no connection could take the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unreached {
    /// The name was not resolved, or no address answered.
    #[error("the backend could not be connected to")]
    Connect(#[source] io::Error),
    /// Name resolution and connecting took longer than the limit.
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

/// A connection that is held exclusively, or rests in the pool.
pub(super) struct Link {
    sender: SendRequest<Body>,
    wire: Arc<Wire>,
}

impl Link {
    /// Connects and starts the task that drives the connection until it ends.
    pub(super) async fn open(backend: &Backend, limit: Duration) -> Result<Self, Unreached> {
        let dial = TcpStream::connect((backend.host.as_str(), backend.port));
        let socket = tokio::time::timeout(limit, dial)
            .await
            .map_err(|_| Unreached::ConnectTimeout(limit))?
            .map_err(Unreached::Connect)?;
        socket.set_nodelay(true).map_err(Unreached::Connect)?;

        let wire = Wire::new();
        let (sender, connection) = http1::handshake(WireIo::new(socket, Arc::clone(&wire)))
            .await
            .map_err(Unreached::Ended)?;
        tokio::spawn(async move {
            // Errors of a request reach its sender; what is left are ends of idle connections.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an upstream connection ended");
            }
        });
        Ok(Self { sender, wire })
    }

    /// Sends one request. The link comes back with the answer, for the body to hold.
    pub(super) async fn send(
        mut self,
        request: Request<Body>,
        guard: Option<DispatchGuard>,
    ) -> Attempt<(Response<Incoming>, Self)> {
        self.wire.arm(guard);
        let mut failure = match self.sender.try_send_request(request).await {
            Ok(response) => {
                failpoint!("upstream.answered");
                return Attempt::Answered((response, self));
            }
            Err(failure) => failure,
        };
        let verdict = self.wire.verdict();
        let message = failure.take_message();
        let error = failure.into_error();
        match (verdict, message) {
            (Verdict::Unsent, Some(request)) => {
                Attempt::HandedBack(Box::new(request), Unreached::Ended(error))
            }
            (Verdict::Unsent, None) => Attempt::Unsent(NotSent::new(error)),
            (Verdict::Refused, _) => Attempt::Unsent(NotSent::new(GuardFailed)),
            (Verdict::Sent, _) => Attempt::Lost(error),
        }
    }

    /// Whether the connection waits for its next request.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Whether the connection has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

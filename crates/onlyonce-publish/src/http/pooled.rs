//! hyper's client as a service that can prove that nothing was sent.

use std::task::{Context, Poll};

use ::http::{Request, Response};
use futures_util::future::BoxFuture;
use hyper_util::{
    client::legacy::{
        Client, Error,
        connect::{Connect, HttpConnector},
    },
    rt::TokioExecutor,
};
use onlyonce::{Body, EndedByClose, NotSent, body::Framing};
use tower_service::Service;

/// hyper's client with its pool of connections. Clones share the pool.
///
/// A failed connection attempt proves that nothing was sent. If a pooled connection returns a request before
/// a byte of it was written, the request is sent on another connection. After any other failure it is not
/// known what happened.
#[derive(Clone)]
pub struct Pooled<C>(Client<C, Body>);

impl Pooled<HttpConnector> {
    /// Plain-text connections, for `http://` only.
    pub fn plain() -> Self {
        Self::new(HttpConnector::new())
    }
}

impl<C: Connect + Clone + Send + Sync + 'static> Pooled<C> {
    /// Connections made by `connector`, which decides about TLS.
    pub fn new(connector: C) -> Self {
        Self(Client::builder(TokioExecutor::new()).build(connector))
    }
}

/// Why there is no answer.
///
/// No variant is transparent: [`NotSent`] has to be in the chain of sources.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PooledError {
    /// No connection could be made.
    #[error("the receiver was not reached")]
    NotSent(#[source] NotSent),
    /// The connection failed when it may have been used.
    #[error("the connection was lost")]
    Lost(#[source] Error),
}

impl<C: Connect + Clone + Send + Sync + 'static> Service<Request<Body>> for Pooled<C> {
    type Response = Response<hyper::body::Incoming>;
    type Error = PooledError;
    type Future = BoxFuture<'static, Result<Self::Response, PooledError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), PooledError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let answer = self.0.request(request);
        Box::pin(async move {
            let answer = answer.await.map_err(|error| {
                if error.is_connect() {
                    PooledError::NotSent(NotSent::new(error))
                } else {
                    PooledError::Lost(error)
                }
            })?;
            let (mut head, body) = answer.into_parts();
            if Framing::of_answer(&head, &method).ends_by_close(&head) {
                head.extensions.insert(EndedByClose);
            }
            Ok(Response::from_parts(head, body))
        })
    }
}

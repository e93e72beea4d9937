//! The upstream side of the gateway: one request out, one answer back, and the truth about
//! whether anything was sent.
//!
//! Backends take turns. Another connection or another backend is tried only while it is proven
//! that no byte of the request has left; from the first byte on there is one attempt, and its
//! failure is [`UpstreamError::Lost`].
//!
//! Deliberately absent: time limits on the answer (the layer owns them), retries on a status, TLS.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header::HOST, uri::PathAndQuery};
use tokio::time::Instant;
use tower_service::Service;

use onlyonce::{Body, DispatchGuard, NotSent};

use crate::config::Backend;

mod connect;
mod io;
mod pool;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub(crate) use connect::Unreached;
use connect::{Attempt, Link};
use pool::Pool;
pub(crate) use response::UpstreamBody;

/// Pooled connections idle longer than this are not used again.
pub(crate) const UPSTREAM_IDLE: Duration = Duration::from_secs(1);
/// Name resolution and connecting together may take this long, for each backend tried.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Idle connections kept for each backend.
pub(crate) const MAX_IDLE_PER_BACKEND: usize = 1024;
/// A backend that could not be reached is tried last for this long.
pub(crate) const EJECT_FOR: Duration = Duration::from_secs(1);

/// What an [`Upstream`] is made from.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamOptions {
    /// In configured order; they take turns.
    pub(crate) backends: Vec<Backend>,
    /// See [`UPSTREAM_IDLE`].
    pub(crate) upstream_idle: Duration,
    /// See [`CONNECT_TIMEOUT`].
    pub(crate) connect_timeout: Duration,
    /// See [`MAX_IDLE_PER_BACKEND`].
    pub(crate) max_idle_per_backend: usize,
}

impl UpstreamOptions {
    /// The defaults, for these backends.
    pub(crate) fn new(backends: Vec<Backend>) -> Self {
        Self {
            backends,
            upstream_idle: UPSTREAM_IDLE,
            connect_timeout: CONNECT_TIMEOUT,
            max_idle_per_backend: MAX_IDLE_PER_BACKEND,
        }
    }
}

/// Why there is no answer.
///
/// Neither variant may be `transparent`: the layer looks for [`NotSent`] along the chain of
/// sources, and a transparent variant would leave it out of that chain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UpstreamError {
    /// No byte of the request has left.
    #[error("the upstream was not reached")]
    NotSent(#[source] NotSent),
    /// The connection failed after the first byte; the upstream may have acted.
    #[error("the upstream connection was lost after the request was sent")]
    Lost(#[source] hyper::Error),
}

/// The backends of a route, as a service. Clones share the pool.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Shared>);

struct Shared {
    nodes: Box<[Node]>,
    /// Whose turn comes when: each node as often as its weight says.
    turns: Box<[usize]>,
    /// How many turns there have been.
    turn: AtomicUsize,
    connect_timeout: Duration,
}

impl Upstream {
    /// Connects to nothing yet.
    pub(crate) fn new(options: UpstreamOptions) -> Self {
        let started = Instant::now();
        let node = |backend: Backend| Node {
            // For a request that came without any (HTTP/1.0).
            host: HeaderValue::try_from(backend.authority()).ok(),
            pool: Arc::new(Pool::new(
                options.max_idle_per_backend,
                options.upstream_idle,
            )),
            backend,
            started,
            ejected_until: AtomicU64::new(0),
        };
        let turns = turns(&options.backends);
        Self(Arc::new(Shared {
            nodes: options.backends.into_iter().map(node).collect(),
            turns,
            turn: AtomicUsize::new(0),
            connect_timeout: options.connect_timeout,
        }))
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<UpstreamBody>;
    type Error = UpstreamError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), UpstreamError>> {
        Poll::Ready(Ok(()))
    }

    /// Sends the request. A [`DispatchGuard`] among its extensions is asked when the first byte
    /// is due, and its refusal is [`UpstreamError::NotSent`].
    ///
    /// Dropping the future closes the connection, and nobody then knows whether the upstream
    /// acts.
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move { shared.send(request).await })
    }
}

impl Shared {
    async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let guard = request.extensions_mut().remove::<DispatchGuard>();
        let path = request::prepare(&mut request);
        let named_host = request.headers().contains_key(HOST);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut reason = Unreached::NoBackend;
        let mut tried = Vec::new();
        while let Some(index) = self.next(turn, &tried) {
            let node = &self.nodes[index];
            if let Err(error) = node.address(&mut request, &path, named_host) {
                return Err(UpstreamError::NotSent(NotSent::new(error)));
            }
            match node
                .attempt(request, guard.as_ref(), self.connect_timeout)
                .await
            {
                Attempt::Answered(response) => return Ok(response),
                Attempt::HandedBack(unsent, why) => (request, reason) = (*unsent, why),
                Attempt::Unsent(proof) => return Err(UpstreamError::NotSent(proof)),
                Attempt::Lost(error) => return Err(UpstreamError::Lost(error)),
            }
            tried.push(index);
        }
        Err(UpstreamError::NotSent(NotSent::new(reason)))
    }

    /// The backend to try next: in turn, the ejected ones last.
    fn next(&self, turn: usize, tried: &[usize]) -> Option<usize> {
        let count = self.nodes.len();
        let first = *self.turns.get(turn % self.turns.len().max(1))?;
        let left = || {
            (0..count)
                .map(|step| (first + step) % count)
                .filter(|index| !tried.contains(index))
        };
        left()
            .find(|index| !self.nodes[*index].is_ejected())
            .or_else(|| left().next())
    }
}

/// The order of turns: in every round each backend comes as often as its weight, spread out.
fn turns(backends: &[Backend]) -> Box<[usize]> {
    let heaviest = backends
        .iter()
        .map(|backend| backend.weight)
        .max()
        .unwrap_or(0);
    let round = |lap: u32| {
        let takes_part = move |(_, backend): &(usize, &Backend)| backend.weight > lap;
        backends
            .iter()
            .enumerate()
            .filter(takes_part)
            .map(|(index, _)| index)
    };
    (0..heaviest).flat_map(round).collect()
}

/// A backend, its idle connections and its health.
struct Node {
    backend: Backend,
    host: Option<HeaderValue>,
    pool: Arc<Pool>,
    started: Instant,
    /// Milliseconds after `started`.
    ejected_until: AtomicU64,
}

impl Node {
    /// Points the request at this backend.
    fn address(
        &self,
        request: &mut Request<Body>,
        path: &PathAndQuery,
        named_host: bool,
    ) -> Result<(), Unreached> {
        let target = request::target(&self.backend.prefix, path);
        *request.uri_mut() = target.map_err(Unreached::Target)?;
        if let (false, Some(host)) = (named_host, &self.host) {
            request.headers_mut().insert(HOST, host.clone());
        }
        Ok(())
    }

    /// Tries a pooled connection, and if that hands the request back, a fresh one.
    async fn attempt(
        &self,
        mut request: Request<Body>,
        guard: Option<&DispatchGuard>,
        connect_timeout: Duration,
    ) -> Attempt<Response<UpstreamBody>> {
        if let Some(link) = self.pool.checkout() {
            match self.send_over(link, request, guard).await {
                Attempt::HandedBack(unsent, _) => request = *unsent,
                other => return other,
            }
        }
        let link = match Link::open(&self.backend, connect_timeout).await {
            Ok(link) => link,
            Err(reason) => {
                self.eject(&reason);
                return Attempt::HandedBack(Box::new(request), reason);
            }
        };
        let attempt = self.send_over(link, request, guard).await;
        match &attempt {
            Attempt::HandedBack(_, reason) => self.eject(reason),
            _ => self.ejected_until.store(0, Ordering::Relaxed),
        }
        attempt
    }

    async fn send_over(
        &self,
        link: Link,
        request: Request<Body>,
        guard: Option<&DispatchGuard>,
    ) -> Attempt<Response<UpstreamBody>> {
        match link.send(request, guard.cloned()).await {
            Attempt::Answered((response, link)) => {
                Attempt::Answered(response::receive(response, link, &self.pool))
            }
            Attempt::HandedBack(request, reason) => Attempt::HandedBack(request, reason),
            Attempt::Unsent(proof) => Attempt::Unsent(proof),
            Attempt::Lost(error) => Attempt::Lost(error),
        }
    }

    fn is_ejected(&self) -> bool {
        // The clock is read only where there is something to compare it with.
        let until = self.ejected_until.load(Ordering::Relaxed);
        until != 0 && self.started.elapsed() < Duration::from_millis(until)
    }

    fn eject(&self, reason: &Unreached) {
        if !self.is_ejected() {
            let Backend { host, port, .. } = &self.backend;
            tracing::warn!(%host, port, %reason, "a backend could not be reached");
        }
        let until = (self.started.elapsed() + EJECT_FOR).as_millis();
        self.ejected_until
            .store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

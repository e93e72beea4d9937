//! The upstream side of the gateway: sends one request, returns one answer, and knows whether anything was
//! sent.
//!
//! Backends take turns. Another connection or backend is tried only while it is proven that no byte of the
//! request was sent. From the first byte on there is one attempt, and its failure is [`UpstreamError::Lost`].
//!
//! Deliberately absent: time limits on the answer (the layer owns them), and retries on a status.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Method, Request, Response, StatusCode, Version, header::HOST, uri::PathAndQuery,
};
use tokio::time::Instant;
use tower_service::Service;

use onlyonce::{Body, BoxError, DispatchGuard, NotSent};

use crate::config::Backend;

mod connect;
mod forward;
mod frames;
mod http1;
mod io;
mod pool;
mod request;
mod response;
#[cfg(test)]
mod tests;
mod transport;
mod tunnel;

pub(crate) use connect::Unreached;
use connect::{Attempt, Link};
pub(crate) use forward::Forwarding;
use pool::Pool;
use response::Coming;
pub(crate) use response::{FromUpstream, UpstreamBody, pass_on};
use tunnel::Tunnel;

/// Pooled connections idle longer than this are not used again.
pub(crate) const UPSTREAM_IDLE: Duration = Duration::from_secs(1);
/// Name resolution and connecting together may take this long, for each backend tried.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an upgraded connection may be idle by default.
pub(crate) const TUNNEL_IDLE: Duration = Duration::from_secs(600);
/// Idle connections kept for each backend.
pub(crate) const MAX_IDLE_PER_BACKEND: usize = 1024;
/// An unreachable backend is tried last for this long, and for twice as long after each further failure.
pub(crate) const EJECT_FOR: Duration = Duration::from_secs(1);
/// The longest ejection.
pub(crate) const MAX_EJECT_FOR: Duration = Duration::from_secs(30);

/// The options of an [`Upstream`].
#[derive(Clone, Debug)]
pub(crate) struct UpstreamOptions {
    /// The backends in configured order; they take turns.
    pub(crate) backends: Vec<Backend>,
    /// See [`UPSTREAM_IDLE`].
    pub(crate) upstream_idle: Duration,
    /// Whether a request with a key may share an HTTP/1.1 connection with others, before or after it.
    pub(crate) upstream_reuse: bool,
    /// See [`CONNECT_TIMEOUT`].
    pub(crate) connect_timeout: Duration,
    /// See [`MAX_IDLE_PER_BACKEND`].
    pub(crate) max_idle_per_backend: usize,
    /// How long an upgraded connection may be idle.
    pub(crate) tunnel_idle: Duration,
    /// What backends are told about a request's origin; `None` for nothing.
    pub(crate) forwarding: Option<Forwarding>,
}

impl UpstreamOptions {
    /// The defaults, for these backends.
    pub(crate) fn new(backends: Vec<Backend>) -> Self {
        Self {
            backends,
            upstream_idle: UPSTREAM_IDLE,
            upstream_reuse: true,
            connect_timeout: CONNECT_TIMEOUT,
            max_idle_per_backend: MAX_IDLE_PER_BACKEND,
            tunnel_idle: TUNNEL_IDLE,
            forwarding: None,
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
    /// No byte of the request was sent.
    #[error("the upstream was not reached")]
    NotSent(#[source] NotSent),
    /// The connection failed after the first byte; the upstream may have executed the request.
    #[error("the upstream connection was lost after the request was sent")]
    Lost(#[source] BoxError),
    /// The upstream answered 101 although no other protocol was requested. Its answer to the request will not
    /// come.
    #[error("the upstream switched to another protocol that nobody had asked for")]
    Switched,
    /// The answer is in a transfer coding that was not requested. The header that names the coding ends here,
    /// so the client would take the encoded bytes for the answer itself.
    #[error("the upstream's answer is in a transfer coding that nobody had asked for")]
    Coded,
}

/// The backends of a route, as a service. Clones share the connection pools.
#[derive(Clone)]
pub(crate) struct Upstream(Arc<Shared>);

struct Shared {
    nodes: Box<[Node]>,
    /// The order of turns: each node as often as its weight.
    turns: Box<[usize]>,
    /// The number of turns so far.
    turn: AtomicUsize,
    upstream_reuse: bool,
    connect_timeout: Duration,
    tunnel_idle: Duration,
    forwarding: Option<Forwarding>,
}

impl Upstream {
    /// Does not connect yet.
    pub(crate) fn new(options: UpstreamOptions) -> Self {
        let started = Instant::now();
        let node = |backend: Backend| Node {
            // For a request without `Host` (HTTP/1.0).
            host: HeaderValue::try_from(backend.authority()).ok(),
            pool: Arc::new(Pool::new(
                options.max_idle_per_backend,
                options.upstream_idle,
            )),
            backend,
            started,
            ejected_until: AtomicU64::new(0),
            failures: AtomicU32::new(0),
        };
        let turns = turns(&options.backends);
        Self(Arc::new(Shared {
            nodes: options.backends.into_iter().map(node).collect(),
            turns,
            turn: AtomicUsize::new(0),
            upstream_reuse: options.upstream_reuse,
            connect_timeout: options.connect_timeout,
            tunnel_idle: options.tunnel_idle,
            forwarding: options.forwarding,
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

    /// Sends the request. A [`DispatchGuard`] in its extensions is checked just before the first byte, and
    /// its refusal is [`UpstreamError::NotSent`].
    ///
    /// Dropping the future closes the connection; whether the upstream executes the request is then unknown.
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
        let method = request.method().clone();
        let tunnel = Tunnel::asked_for(&mut request);
        let sharing = match (&tunnel, &guard) {
            (Some(_), _) => Sharing::Upgraded,
            // Only requests with a key have a guard.
            (None, Some(_)) if !self.upstream_reuse => Sharing::Alone,
            (None, _) => Sharing::Pooled,
        };
        let path = request::prepare(&mut request);
        let named_host = request.headers().contains_key(HOST);
        if let Some(forwarding) = &self.forwarding {
            forwarding.mark(&mut request);
        }
        if let Some(tunnel) = &tunnel {
            tunnel.ask(&mut request);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut reason = Unreached::NoBackend;
        let mut tried = Vec::new();
        while let Some(index) = self.next(turn, &tried) {
            let node = &self.nodes[index];
            if let Err(error) = node.address(&mut request, &path, named_host) {
                return Err(UpstreamError::NotSent(NotSent::new(error)));
            }
            match node
                .attempt(request, guard.as_ref(), self.connect_timeout, sharing)
                .await
            {
                Attempt::Answered(response) => {
                    let is_http2 = response.version() == Version::HTTP_2;
                    let pool = Some(&node.pool).filter(|_| sharing.may_share(is_http2));
                    return self.receive(response, &method, pool, tunnel);
                }
                Attempt::HandedBack(unsent, why) => (request, reason) = (*unsent, why),
                Attempt::Unsent(proof) => return Err(UpstreamError::NotSent(proof)),
                Attempt::Lost(error) => return Err(UpstreamError::Lost(error)),
            }
            tried.push(index);
        }
        Err(UpstreamError::NotSent(NotSent::new(reason)))
    }

    /// The part of an answer that the client gets.
    fn receive(
        &self,
        response: Response<Coming>,
        method: &Method,
        pool: Option<&Arc<Pool>>,
        tunnel: Option<Tunnel>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        // Only over HTTP/1: hyper hides every 1xx of HTTP/2, so there a 101 goes unnoticed, and the answer
        // after it counts.
        let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        match tunnel {
            Some(tunnel) if switches => return Ok(tunnel.open(response, self.tunnel_idle)),
            None if switches => return Err(UpstreamError::Switched),
            _ => {}
        }
        if !response::is_plainly_coded(response.headers()) {
            return Err(UpstreamError::Coded);
        }
        Ok(response::receive(response, method, pool))
    }

    /// The backend to try next: in turn, ejected ones last.
    fn next(&self, turn: usize, tried: &[usize]) -> Option<usize> {
        let count = self.nodes.len();
        let first = *self.turns.get(turn % self.turns.len().max(1))?;
        let left = || {
            (0..count)
                .map(|step| (first + step) % count)
                .filter(|index| !tried.contains(index))
        };
        left()
            .find(|index| self.nodes[*index].may_be_tried())
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

/// Which connections a request may share with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// Any.
    Pooled,
    /// Connections on which an answer names its request. Over HTTP/1.1, an unsolicited answer is taken for
    /// the answer to the next request.
    Alone,
    /// None: the connection will stop being HTTP.
    Upgraded,
}

impl Sharing {
    fn may_share(self, is_http2: bool) -> bool {
        match self {
            Self::Pooled => true,
            Self::Alone => is_http2,
            Self::Upgraded => false,
        }
    }
}

/// A backend, its idle connections and its health.
struct Node {
    backend: Backend,
    host: Option<HeaderValue>,
    pool: Arc<Pool>,
    started: Instant,
    /// Milliseconds after `started`; zero while the backend is not ejected.
    ejected_until: AtomicU64,
    /// How often in a row the backend could not be reached.
    failures: AtomicU32,
}

impl Node {
    /// Sets the request's target and host for this backend.
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

    /// Tries the pooled connections until one takes the request, and then a new one.
    async fn attempt(
        &self,
        mut request: Request<Body>,
        guard: Option<&DispatchGuard>,
        connect_timeout: Duration,
        sharing: Sharing,
    ) -> Attempt<Response<Coming>> {
        let scheme = self.backend.scheme();
        let suits = |link: &Link| sharing.may_share(link.is_http2());
        while let Some(link) = self.pool.checkout(suits) {
            match link.send(request, guard.cloned(), scheme).await {
                Attempt::HandedBack(unsent, _) => request = *unsent,
                other => return other,
            }
        }
        let opened = if sharing == Sharing::Upgraded {
            Link::open_http1(&self.backend, connect_timeout).await
        } else {
            Link::open(&self.backend, connect_timeout).await
        };
        let link = match opened {
            Ok(link) => link,
            Err(reason) => {
                self.eject(&reason);
                return Attempt::HandedBack(Box::new(request), reason);
            }
        };
        let attempt = link.send(request, guard.cloned(), scheme).await;
        match &attempt {
            Attempt::HandedBack(_, reason) => self.eject(reason),
            _ => self.readmit(),
        }
        attempt
    }

    /// Whether the backend takes its regular turn. After an ejection ends, one request tries the backend;
    /// until its result is known, the others see the backend ejected.
    fn may_be_tried(&self) -> bool {
        // The clock is read only if there is a time to compare it with.
        let until = self.ejected_until.load(Ordering::Relaxed);
        if until == 0 {
            return true;
        }
        let now = self.started.elapsed();
        if now < Duration::from_millis(until) {
            return false;
        }
        let next = millis(now + EJECT_FOR);
        self.ejected_until
            .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    fn readmit(&self) {
        if self.ejected_until.swap(0, Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    fn eject(&self, reason: &Unreached) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        if failures == 0 {
            let Backend { host, port, .. } = &self.backend;
            let reason = describe(reason);
            tracing::warn!(%host, port, reason, "a backend could not be reached");
        }
        let longer = EJECT_FOR.saturating_mul(1 << failures.min(8));
        let until = self.started.elapsed() + longer.min(MAX_EJECT_FOR);
        self.ejected_until.store(millis(until), Ordering::Relaxed);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An error and its causes; none of them contains a header or a body.
pub(crate) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

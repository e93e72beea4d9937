//! The data listener: connections in, and the stack that a request goes through.
//!
//! ```text
//! framing -> /.onlyonce -> route -> authentication -> idempotency layer -> upstream
//! ```
//!
//! The idempotency part is the library's own layer around the upstream service; there is no second
//! path. Authentication comes between the route and the layer: before a key or a body is looked at.

mod connection;
mod linger;
mod lookup;
mod patience;
mod request_id;
mod streams;
mod upgrade;
mod webhook;
mod who;

use std::{borrow::Cow, sync::Arc};

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use onlyonce::{
    Body, BoxError, Engine, FirstByteWithin, IdempotencyLayer, IdempotencyService, Policy, Problem,
    stats::Event,
};
use parking_lot::RwLock;
use tokio::sync::OwnedSemaphorePermit;
use tower::{Layer, ServiceExt};

pub(crate) use connection::serve;
pub(crate) use patience::{Timely, Unstalled};
pub(crate) use request_id::{RequestId, X_REQUEST_ID};
pub(crate) use upgrade::Upgrade;
use who::Who;

use crate::{
    auth::{Auth, Found, Shown},
    config::{Config, Route},
    provider::Provider,
    upstream::{Forwarding, Upstream, UpstreamError, UpstreamOptions},
};

/// How a request came to us, as a request extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// From where.
    pub(crate) peer: std::net::IpAddr,
    /// Whether over TLS.
    pub(crate) is_secure: bool,
}

/// The place of a connection among all of them, as a request extension: an upgraded connection keeps
/// it.
#[derive(Clone)]
pub(crate) struct Seat(
    #[expect(dead_code, reason = "held, never looked at")] Arc<OwnedSemaphorePermit>,
);

/// A route, ready to take requests.
pub(crate) struct Lane {
    pub(crate) route: Route,
    pub(crate) layer: IdempotencyLayer,
    pub(crate) provider: Arc<Provider>,
    service: IdempotencyService<Upstream>,
}

/// Everything behind the data listener.
pub(crate) struct Edge {
    config: Arc<Config>,
    auth: Option<Auth>,
    pub(crate) engine: Engine,
    pub(crate) lanes: Vec<Lane>,
    /// For answers that no route gives.
    pub(crate) policy: Policy,
}

/// The edge that new requests meet. A reload puts another one in its place; a request that is under way
/// keeps the one that it began with.
pub(crate) struct Current(RwLock<Arc<Edge>>);

impl Current {
    pub(crate) fn new(edge: Edge) -> Self {
        Self(RwLock::new(Arc::new(edge)))
    }

    pub(crate) fn edge(&self) -> Arc<Edge> {
        self.0.read().clone()
    }

    pub(crate) fn config(&self) -> Arc<Config> {
        self.0.read().config.clone()
    }

    pub(crate) fn replace(&self, edge: Edge) {
        *self.0.write() = Arc::new(edge);
    }
}

impl Edge {
    /// The routes of `config` on `engine`. Those that `before` has as well count on from there.
    pub(crate) async fn new(
        config: &Arc<Config>,
        engine: &Engine,
        before: Option<&Self>,
    ) -> anyhow::Result<Self> {
        let auth = match &config.auth {
            Some(auth) => Some(Auth::start(auth).await?),
            None => None,
        };
        let mut lanes = Vec::with_capacity(config.routes.len());
        for route in &config.routes {
            let before = before.and_then(|before| before.lane(&route.id));
            lanes.push(lane(config, route, engine, before).await?);
        }
        Ok(Self {
            config: config.clone(),
            auth,
            engine: engine.clone(),
            lanes,
            policy: Policy::default(),
        })
    }

    /// What it was made from.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Has the background loops follow the policies of these routes, after others were tried.
    pub(crate) fn policies_are_in_effect(&self) {
        for lane in &self.lanes {
            lane.layer.policy_is_in_effect();
        }
    }

    /// The answer to a request.
    pub(crate) async fn handle<B>(&self, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if !is_plainly_framed(request.headers()) {
            let mut refused = Problem::RequestIncomplete.response(&self.policy);
            let close = HeaderValue::from_static("close");
            refused.headers_mut().insert(header::CONNECTION, close);
            return refused;
        }
        if request.version() == Version::HTTP_2 {
            join_cookies(request.headers_mut());
        }
        if let Some(auth) = &self.auth {
            let peer = peer(&request);
            auth.remove_untrusted(request.headers_mut(), peer);
        }
        if let Some(rest) = request.uri().path().strip_prefix(lookup::PREFIX) {
            let rest = rest.to_owned();
            if let Some(route) = rest.strip_prefix("reconcile/") {
                return webhook::answer(self, request, route).await;
            }
            return lookup::answer(self, request, &rest).await;
        }
        // What the upstream takes for the same path must meet the same route.
        let path = plain_path(request.uri().path());
        let found = self.config.route_match(request.method(), &path);
        // A tunnel cannot be opened to a named backend, so CONNECT has no route.
        let found = found.filter(|_| request.method() != Method::CONNECT);
        let Some(lane) = found.and_then(|index| self.lanes.get(index)) else {
            return Problem::NoRoute.response(&self.policy);
        };
        let policy = lane.layer.policy();
        let upgrade = upgrade::wanted(&request);
        let brings_key =
            policy.honours(request.method()) && request.headers().contains_key(&policy.header_name);
        let has_key = brings_key && upgrade.is_none();
        let keyed = has_key || (upgrade.is_none() && policy.demands_key(request.method()));
        // A request to upgrade whose key nobody looks at is still no request without a key.
        if (brings_key || !lane.route.auth_optional)
            && let Err(problem) = self.authenticate(&mut request).await
        {
            if keyed {
                lane.layer.stats().count(Event::Request);
            }
            if problem == Problem::Unauthenticated {
                lane.layer.stats().count(Event::Unauthenticated);
            }
            return problem.response(policy);
        }
        self.name(&mut request, lane);
        // The layer keeps its own time for requests with a key, from their last byte on; others have
        // only this.
        let answer = if keyed {
            if let Some(limit) = lane.route.first_byte_timeout {
                request.extensions_mut().insert(FirstByteWithin(limit));
            }
            let request = request.map(|body| Timely::new(body, self.config.body_timeout));
            Ok(lane.service.clone().oneshot(request).await)
        } else {
            if let Some(upgrade) = upgrade {
                request.extensions_mut().insert(upgrade);
            }
            let first = lane.route.first_byte_timeout.unwrap_or(policy.timeout);
            let answer = lane.service.clone().oneshot(request);
            tokio::time::timeout(first.min(policy.timeout), answer).await
        };
        match answer {
            Ok(Ok(response)) => response,
            Ok(Err(UpstreamError::NotSent(_))) => Problem::UpstreamNotReached.response(policy),
            Ok(Err(_)) => Problem::UpstreamFailed.response(policy),
            Err(_) => Problem::UpstreamTimeout.response(policy),
        }
    }

    /// Gives the request a name, unless the key itself goes by that header.
    fn name<B>(&self, request: &mut Request<B>, lane: &Lane) {
        let header_name = &lane.layer.policy().header_name;
        if !self.config.request_id || *header_name == X_REQUEST_ID {
            return;
        }
        let id = RequestId::of(request.headers());
        tracing::debug!(
            request_id = id.shown(request.headers().get(header_name)),
            method = %request.method(),
            route = lane.route.id,
            "a request"
        );
        request.extensions_mut().insert(id);
    }

    /// Finds out who asks and leaves that with the request.
    async fn authenticate<B>(&self, request: &mut Request<B>) -> Result<(), Problem> {
        let Some(auth) = &self.auth else {
            return Ok(());
        };
        let shown = Shown {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            peer: peer(request),
        };
        match auth.authenticate(shown).await {
            Found::Client(client) => {
                request.extensions_mut().insert(client);
                Ok(())
            }
            Found::Nobody => Err(Problem::Unauthenticated),
            Found::Unavailable => Err(Problem::AuthenticationUnavailable),
        }
    }

    /// The route with this id.
    pub(crate) fn lane(&self, id: &str) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.route.id == id)
    }
}

async fn lane(
    config: &Config,
    route: &Route,
    engine: &Engine,
    before: Option<&Lane>,
) -> anyhow::Result<Lane> {
    let mut options = UpstreamOptions::new(route.backends.clone());
    options.upstream_idle = route.upstream_idle;
    options.connect_timeout = route.connect_timeout;
    options.tunnel_idle = config.tunnel_idle;
    options.forwarding = Some(Forwarding::new(
        config.forwarded.clone(),
        route.policy.header_name.clone(),
    ));
    let who = Who::new(route);
    let identify = move |request: &http::request::Parts| {
        who.identity(&request.headers, request.extensions.get())
    };
    let policy = route.policy.clone();
    let layer = match before {
        Some(before) => before.layer.successor(policy, identify).await?,
        None => IdempotencyLayer::new(engine.clone(), &route.id, policy, identify).await?,
    };
    let service = layer.layer(Upstream::new(options));
    Ok(Lane {
        route: route.clone(),
        provider: Provider::new(route)?,
        layer,
        service,
    })
}

/// The address that the request's connection came from.
fn peer<B>(request: &Request<B>) -> Option<std::net::IpAddr> {
    let came = request.extensions().get::<Came>();
    came.map(|came| came.peer)
}

/// Whether the body is as it was before it was sent: in chunks at most. Another coding would be lost
/// on the way, since transfer codings end here, and its bytes would be taken for the body itself.
fn is_plainly_framed(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings.next().is_none_or(|first| {
        first.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none()
    })
}

/// Makes one line of the cookies that HTTP/2 may send in pieces: to whoever is asked over HTTP/1 several
/// would be several headers, and a caller would look like another one.
fn join_cookies(headers: &mut HeaderMap) {
    let mut pieces = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (pieces.next(), pieces.next()) else {
        return;
    };
    let mut whole = first.as_bytes().to_vec();
    for piece in std::iter::once(second).chain(pieces) {
        whole.extend_from_slice(b"; ");
        whole.extend_from_slice(piece.as_bytes());
    }
    if let Ok(whole) = HeaderValue::from_maybe_shared(bytes::Bytes::from(whole)) {
        headers.insert(header::COOKIE, whole);
    }
}

/// The path as an upstream may read it: without percent-encoding, dot segments and empty segments.
/// Only for finding the route; the request is forwarded as it came.
fn plain_path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let slash = if decoded.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    Cow::Owned(format!("/{}{slash}", segments.join("/")))
}

/// Whether only looking is asked for.
fn is_get(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header::COOKIE};

    use super::{join_cookies, plain_path};

    #[test]
    fn cookies_become_one_line() {
        for (pieces, whole) in [
            (&["a=1", "b=2", "c=3"][..], "a=1; b=2; c=3"),
            (&["a=1; b=2"], "a=1; b=2"),
        ] {
            let mut headers = HeaderMap::new();
            for piece in pieces {
                headers.append(COOKIE, HeaderValue::from_static(piece));
            }
            join_cookies(&mut headers);
            let found: Vec<_> = headers.get_all(COOKIE).iter().collect();
            assert_eq!(found, [whole]);
        }
    }

    #[test]
    fn one_resource_has_one_path() {
        for path in [
            "/api/payments",
            "/api/%70ayments",
            "/api/x/../payments",
            "//api/./payments",
        ] {
            assert_eq!(plain_path(path), "/api/payments");
        }
        assert_eq!(plain_path("/"), "/");
        assert_eq!(plain_path("/a/"), "/a/");
        assert_eq!(plain_path("/../.."), "/");
    }
}

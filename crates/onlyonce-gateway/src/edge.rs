//! The data listener: its connections, and the stack that a request passes through.
//!
//! ```text
//! framing -> /.onlyonce -> routes -> authentication -> idempotency layer -> upstream
//! ```
//!
//! The idempotency part is the library's own layer around the upstream service; there is no second path.
//! Authentication comes between the route and the layer: before the key or the body is read.

mod connection;
mod cors;
mod explained;
mod framing;
#[cfg(test)]
mod fuzz;
mod line;
mod linger;
mod lookup;
mod patience;
mod request_id;
mod seats;
mod streams;
mod upgrade;
mod webhook;
mod who;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use onlyonce::{
    Body, BoxError, Engine, FirstByteWithin, IdempotencyLayer, IdempotencyService, Policy, Problem,
    key_status::KeyStatus,
    layer::{NotInTrailers, keep_end_to_end, strip_lookalikes},
    stats::Event,
};
use onlyonce_core::readings::Methods;
use parking_lot::RwLock;
use tower::{Layer, ServiceExt};

pub(crate) use connection::serve;
pub(crate) use line::{ClientSocket, Line};
pub(crate) use linger::Lingering;
pub(crate) use patience::Timely;
pub(crate) use request_id::{RequestId, X_REQUEST_ID};
pub(crate) use seats::{Activity, Seats, Worked};
pub(crate) use upgrade::Upgrade;
use who::{UnmarkedSessions, Who};

use crate::{
    auth::{Auth, Found, Shown},
    config::{Config, Route},
    cores::Place,
    provider::Provider,
    routing,
    upstream::{Forwarding, Upstream, UpstreamError, UpstreamOptions, pass_on},
};

/// Request extension: how a request arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// The address of the peer.
    pub(crate) peer: std::net::IpAddr,
    /// Whether the connection uses TLS.
    pub(crate) is_secure: bool,
}

/// Request extension: the seat of a connection and its place on a core. An upgraded connection keeps both,
/// and counts as working for as long as it lasts.
#[derive(Clone)]
pub(crate) struct KeptSeat(
    #[expect(dead_code, reason = "held, never looked at")]
    Arc<(Arc<seats::Seat>, Arc<Place>, seats::Working)>,
);

/// A route, ready to serve requests.
pub(crate) struct Lane {
    pub(crate) route: Route,
    pub(crate) layer: IdempotencyLayer,
    pub(crate) provider: Arc<Provider>,
    service: IdempotencyService<Upstream>,
    upstream: Upstream,
    cors: Option<cors::Cors>,
}

impl Lane {
    /// This route's backends under another route's rules, or its own.
    fn service_under(&self, rules: &Self) -> IdempotencyService<Upstream> {
        if std::ptr::eq(self, rules) {
            return self.service.clone();
        }
        let layer = rules.layer.timed_as(self.layer.policy());
        layer.layer(self.upstream.clone())
    }
}

/// Everything behind the data listener.
pub(crate) struct Edge {
    config: Arc<Config>,
    auth: Option<Auth>,
    pub(crate) engine: Engine,
    pub(crate) lanes: Vec<Lane>,
    /// For answers outside any route.
    pub(crate) policy: Policy,
}

/// The edge that serves new requests. A reload replaces it; a request in progress keeps the edge that it
/// began with.
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
    /// The routes of `config` on `engine`. A route that `before` has too continues its counters.
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
            policy: config.elsewhere.clone(),
        })
    }

    /// The configuration of this edge.
    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Makes the background loops follow the policies of these routes, after others were tried.
    pub(crate) fn policies_are_in_effect(&self) {
        for lane in &self.lanes {
            lane.layer.policy_is_in_effect();
        }
    }

    /// The answer to a request, with the CORS headers for the page that sent it.
    pub(crate) async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let page = cors::Page::of(self, &request);
        let response = self.answer(request).await;
        match page {
            Some(page) => page.open(response),
            None => response,
        }
    }

    async fn answer<B>(&self, mut request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let is_keyed = request.headers().contains_key(&self.policy.header_name);
        if let Err(problem) = framing::check(&request, self.config.max_header_size) {
            let mut refused = refused(&problem, &self.policy, is_keyed);
            let close = HeaderValue::from_static("close");
            refused.headers_mut().insert(header::CONNECTION, close);
            return refused;
        }
        framing::complete_target(request.uri_mut());
        if request.version() == Version::HTTP_2 {
            join_cookies(request.headers_mut());
        }
        if let Some(auth) = &self.auth {
            let peer = peer(&request);
            auth.remove_untrusted(request.headers_mut(), peer);
            if let Some(name) = auth.trusted_header() {
                keep_end_to_end(request.headers_mut(), std::slice::from_ref(name));
                request.extensions_mut().insert(NotInTrailers(name.clone()));
            }
        }
        if let Some(rest) = request.uri().path().strip_prefix(lookup::PREFIX) {
            let rest = rest.to_owned();
            if let Some(route) = rest.strip_prefix("reconcile/") {
                return Box::pin(webhook::answer(self, request, route)).await;
            }
            // Boxed, so that other requests do not carry the size of these.
            return Box::pin(lookup::answer(self, request, &rest)).await;
        }
        let Some((lane, rules)) = self.lanes_of(&request) else {
            return refused(&Problem::NoRoute, &self.policy, is_keyed);
        };
        // Before the layer removes the headers that `Connection` names.
        let credentials = &rules.route.edge.credential_headers;
        keep_end_to_end(request.headers_mut(), credentials);
        let service = lane.service_under(rules);
        let policy = rules.layer.policy();
        let methods = Methods::of(request.method(), request.headers());
        let brings_key =
            policy.honours(methods) && request.headers().contains_key(&policy.header_name);
        let is_protected = brings_key || policy.demands_key(methods);
        let upgrade = upgrade::granted(&request, policy, is_protected);
        let keyed = is_protected && upgrade.is_none();
        let auth_optional = lane.route.auth_optional && rules.route.auth_optional;
        // A request to upgrade whose key is ignored still counts as a request with a key.
        if (brings_key || !auth_optional)
            && let Err(problem) = self.authenticate(&mut request).await
        {
            if keyed {
                rules.layer.stats().count(Event::Request);
            }
            rules.layer.stats().count(match problem {
                Problem::AuthenticationUnavailable => Event::AuthenticationUnavailable,
                _ => Event::Unauthenticated,
            });
            return refused(&problem, policy, brings_key);
        }
        // Shadow mode does not touch the requests that it observes.
        if keyed && !policy.shadow {
            // A server that reads underscores as dashes would see another caller than the key's owner.
            strip_lookalikes(request.headers_mut(), credentials.iter());
        }
        self.name(&mut request, rules);
        // The layer times requests with a key itself, from their last byte on; other requests have only this
        // limit.
        let answer = if keyed {
            if let Some(limit) = lane.route.first_byte_timeout {
                request.extensions_mut().insert(FirstByteWithin(limit));
            }
            let activity = request.extensions().get().cloned();
            let timeout = self.config.body_timeout;
            let request = request.map(|body| Timely::new(body, timeout, activity));
            Ok(service.oneshot(request).await)
        } else {
            if let Some(upgrade) = upgrade {
                request.extensions_mut().insert(upgrade);
            }
            let longest = lane.route.timeout;
            let first = lane.route.first_byte_timeout.unwrap_or(longest);
            let answer = service.oneshot(request);
            tokio::time::timeout(first.min(longest), answer).await
        };
        // Of requests with a key, only one that bypassed the store ends here without an answer.
        let problem = match answer {
            Ok(Ok(mut response)) => {
                pass_on(&mut response);
                return response;
            }
            Ok(Err(UpstreamError::NotSent(_))) => Problem::UpstreamNotReached,
            Ok(Err(_)) => Problem::UpstreamFailed,
            Err(_) => Problem::UpstreamTimeout,
        };
        let has_key = keyed && brings_key;
        let mut failed = refused(&problem, policy, has_key);
        if has_key {
            KeyStatus::Bypassed.say(failed.headers_mut());
        }
        failed
    }

    /// The route that takes a request, and the route whose rules apply to it.
    fn lanes_of<B>(&self, request: &Request<B>) -> Option<(&Lane, &Lane)> {
        let (method, path) = (request.method(), request.uri().path());
        // A tunnel cannot be opened to a named backend, so CONNECT has no route.
        if method
            .as_str()
            .eq_ignore_ascii_case(Method::CONNECT.as_str())
        {
            return None;
        }
        let found = routing::find(&self.config, method, path, request.headers())?;
        Some((
            self.lanes.get(found.taken_by)?,
            self.lanes.get(found.ruled_by)?,
        ))
    }

    /// Gives the request an id, unless that header carries the key.
    fn name<B>(&self, request: &mut Request<B>, lane: &Lane) {
        let header_name = &lane.layer.policy().header_name;
        if !self.config.request_id || *header_name == X_REQUEST_ID {
            return;
        }
        let id = RequestId::of(request.headers());
        tracing::debug!(
            request_id = id.shown(request.headers().get_all(header_name)),
            method = %request.method(),
            route = lane.route.id,
            "a request"
        );
        request.extensions_mut().insert(id);
    }

    /// Authenticates the caller, and stores the result in the request.
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

/// The response for `problem`. It mentions the key only if the client sent one.
fn refused(problem: &Problem, policy: &Policy, is_keyed: bool) -> Response<Body> {
    match is_keyed {
        true => problem.response(policy),
        false => problem.unkeyed_response(policy),
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
    options.upstream_reuse = route.upstream_reuse;
    options.connect_timeout = route.connect_timeout;
    options.tunnel_idle = config.tunnel_idle;
    options.forwarding = Some(Forwarding::new(
        config.forwarded.clone(),
        route.policy.header_name.clone(),
    ));
    let who = Who::new(route);
    let unmarked = UnmarkedSessions::default();
    let identify = move |request: &http::request::Parts| {
        unmarked.watch(&who, request);
        who.identity(&request.headers, request.extensions.get())
    };
    let policy = route.policy.clone();
    let layer = match before {
        Some(before) => before.layer.successor(policy, identify),
        None => IdempotencyLayer::builder(engine.clone())
            .route(&route.id)
            .policy(policy)
            .identify(identify)
            .build(),
    };
    // A gateway without its store neither starts nor reloads.
    layer.prepare().await?;
    let upstream = Upstream::new(options);
    let service = layer.layer(upstream.clone());
    Ok(Lane {
        route: route.clone(),
        provider: Provider::new(route)?,
        cors: cors::Cors::of(route),
        layer,
        service,
        upstream,
    })
}

/// The address of the request's peer.
fn peer<B>(request: &Request<B>) -> Option<std::net::IpAddr> {
    let came = request.extensions().get::<Came>();
    came.map(|came| came.peer)
}

/// Joins the cookies that HTTP/2 may send in pieces into one line. Over HTTP/1 several lines would be several
/// headers, and the caller would look like another one.
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

/// Whether the request only reads.
fn is_get(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header::COOKIE};

    use super::join_cookies;

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
}

//! A test helper: which routes of a service does the layer guard?
//!
//! A router cannot list its routes, so the test names them, best from the same list that makes the router or
//! its OpenAPI document. [`probe`] sends each route a request that the layer itself answers, and reports who
//! answered.
//!
//! A route behind the layer does not run its handler. A route without the layer does, since nothing stops the
//! request. The probe's body fails at the first read, so a handler that takes a body fails before it begins;
//! a handler that takes none runs. Probe a router with a test's own state.
//!
//! axum's `layer` wraps the fallback too, so there a path that does not exist looks guarded; behind
//! `route_layer` it is [`Guard::Absent`] with 404.
//!
//! No client can send a probe: it is in the request's extensions, not in its headers.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::StreamBody;
use parking_lot::Mutex;
use tower::ServiceExt;
use tower_service::Service;

use crate::{body::Body, layer::Shared};

/// What the layer does with the key of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// A request without a key is refused.
    Enforced,
    /// A key is honoured, and a request without one passes.
    Honoured,
    /// The layer is there, but does not honour keys on this method.
    Ignored,
    /// No layer saw the request; something else answered with this status.
    Absent(StatusCode),
}

/// A route, and how it is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Its method.
    pub method: Method,
    /// Its path, as requested.
    pub path: String,
    /// What the layer does with keys.
    pub guard: Guard,
    /// The route name of the layer that saw it.
    pub route: Option<String>,
}

impl Covered {
    /// Whether a retry could run something twice: the method is POST or PATCH, and no key is required.
    pub fn is_hole(&self) -> bool {
        let repeats = matches!(self.method, Method::POST | Method::PATCH);
        repeats && self.guard != Guard::Enforced
    }
}

/// A probe, as a request extension.
#[derive(Clone, Default)]
pub(crate) struct Probe(Arc<Mutex<Option<(Guard, String)>>>);

impl Probe {
    /// Records that a layer saw the probe, and answers it.
    pub(crate) fn met(&self, shared: &Shared, method: &Method) -> Response<Body> {
        let policy = &shared.policy;
        let guard = if policy.shadow {
            // Observed, but not guarded.
            Guard::Ignored
        } else if policy.demands_key(method) {
            Guard::Enforced
        } else if policy.honours(method) {
            Guard::Honoured
        } else {
            Guard::Ignored
        };
        *self.0.lock() = Some((guard, shared.route.to_string()));
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        answer
    }
}

/// Sends a probe to each of `routes`. `prepare` adds what outer layers require, a credential for instance.
///
/// ```
/// # use axum::{Router, routing::post};
/// # use http::Method;
/// # use onlyonce::{Identity, IdempotencyLayer, audit, store::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let identify = |_: &http::request::Parts| Some(Identity::client("a"));
/// # let once = IdempotencyLayer::builder(MemoryStore::new()).identify(identify).build();
/// let app: Router = Router::new()
///     .route("/payments", post(async || "paid"))
///     .layer(once)
///     .route("/mails", post(async |_: String| "sent")); // behind nothing
///
/// let routes = [(Method::POST, "/payments"), (Method::POST, "/mails")];
/// let found = audit::probe(app, routes, |_| {}).await?;
/// assert_eq!(found[0].guard, audit::Guard::Honoured);
/// assert!(found.iter().all(audit::Covered::is_hole)); // the default policy demands no key
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The service's own errors.
///
/// # Panics
/// If a path is not valid in a request.
pub async fn probe<S, R>(
    service: S,
    routes: impl IntoIterator<Item = (Method, impl AsRef<str>)>,
    prepare: impl Fn(&mut Request<Body>),
) -> Result<Vec<Covered>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone,
{
    let mut found = Vec::new();
    for (method, path) in routes {
        let path = path.as_ref().to_owned();
        let probe = Probe::default();
        let mut request = Request::new(broken_body());
        *request.method_mut() = method.clone();
        *request.uri_mut() = path.parse().expect("a path for a request");
        prepare(&mut request);
        request.extensions_mut().insert(probe.clone());
        let answer = service.clone().oneshot(request).await?;
        let met = probe.0.lock().take();
        let (guard, route) = match met {
            Some((guard, route)) => (guard, Some(route)),
            None => (Guard::Absent(answer.status()), None),
        };
        found.push(Covered {
            method,
            path,
            guard,
            route,
        });
    }
    Ok(found)
}

/// A body that fails before its first byte.
fn broken_body() -> Body {
    let error = std::io::Error::other("a probe has no body");
    let frames = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>(error)]);
    Body::stream(StreamBody::new(frames))
}

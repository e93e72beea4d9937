//! CORS: pages of other origins may read the gateway's own answers, if the route has `cors`.
//!
//! The upstream decides who reads its own answers. Without this module, a page that the upstream lets in
//! could not read the gateway's answers (refusals, replays, the state of a key), and a page that cannot read
//! a refusal retries blindly.
//!
//! A preflight is forwarded to the upstream like any OPTIONS. If the gateway would refuse it, because it
//! carries no credential or the upstream is down, the gateway answers it, so that the page can read the
//! refusal of the actual request.

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
        ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
    },
};
use onlyonce::Body;

use super::{Edge, lookup};
use crate::{
    config::{Origins, Route},
    routing,
    upstream::FromUpstream,
};

/// A route's `cors` section, ready for use.
pub(super) struct Cors {
    origins: Origins,
    /// The names of exposed headers, joined.
    exposed: Option<HeaderValue>,
    credentials: bool,
}

/// The page that a request comes from, as the browser describes it.
pub(super) struct Page<'e> {
    cors: &'e Cors,
    origin: Option<HeaderValue>,
    /// In a preflight, the method and the headers of the actual request.
    wants: Option<(HeaderValue, Option<HeaderValue>)>,
}

impl Cors {
    pub(super) fn of(route: &Route) -> Option<Self> {
        let cors = route.cors.as_ref()?;
        let exposed = cors.exposed(&route.policy);
        let names: Vec<&str> = exposed.iter().map(HeaderName::as_str).collect();
        let exposed = (!names.is_empty()).then(|| names.join(", "));
        Some(Self {
            origins: cors.origins.clone(),
            exposed: exposed.and_then(|names| HeaderValue::try_from(names).ok()),
            credentials: cors.credentials,
        })
    }
}

impl<'e> Page<'e> {
    /// The page that sends `request`, if its route has `cors`.
    pub(super) fn of<B>(edge: &'e Edge, request: &Request<B>) -> Option<Self> {
        if edge.lanes.iter().all(|lane| lane.cors.is_none()) {
            return None;
        }
        let headers = request.headers();
        let origin = headers.get(ORIGIN).cloned();
        let wants = headers
            .get(ACCESS_CONTROL_REQUEST_METHOD)
            .filter(|_| request.method() == Method::OPTIONS)
            .map(|method| {
                let names = headers.get(ACCESS_CONTROL_REQUEST_HEADERS);
                (method.clone(), names.cloned())
            });
        let path = request.uri().path();
        let cors = match path.strip_prefix(lookup::PREFIX) {
            Some(rest) => asked_about(edge, rest, request.uri().query(), origin.as_ref())?,
            None => {
                let wanted = wants.as_ref().and_then(|(method, _)| method.to_str().ok());
                let method = wanted.unwrap_or(request.method().as_str());
                let index = edge
                    .config
                    .route_match_named(method, &routing::plain_path(path))?;
                edge.lanes.get(index)?.cors.as_ref()?
            }
        };
        Some(Self {
            cors,
            origin,
            wants,
        })
    }

    /// Adds the headers that let this page read `response`.
    pub(super) fn open(self, mut response: Response<Body>) -> Response<Body> {
        let is_upstreams = response.extensions().get::<FromUpstream>().is_some();
        let is_open = response.headers().contains_key(ACCESS_CONTROL_ALLOW_ORIGIN);
        if is_upstreams && !is_open {
            return response;
        }
        let origin = self.origin.filter(|origin| self.cors.origins.have(origin));
        if let Some((method, names)) = self.wants.filter(|_| !is_upstreams && origin.is_some()) {
            response = allowed(method, names);
        }
        let headers = response.headers_mut();
        if !is_open {
            permit(self.cors, origin.as_ref(), headers);
        }
        if let Some(exposed) = self.cors.exposed.as_ref().filter(|_| origin.is_some()) {
            headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone());
        }
        response
    }
}

/// The `cors` that applies to a look-up of a key: that of the route named in the query, else that of any
/// route that lists the origin.
fn asked_about<'e>(
    edge: &'e Edge,
    rest: &str,
    query: Option<&str>,
    origin: Option<&HeaderValue>,
) -> Option<&'e Cors> {
    rest.strip_prefix("keys/")?;
    let lanes = lookup::lanes_asked(edge, query);
    let mut known = lanes.into_iter().filter_map(|lane| lane.cors.as_ref());
    known.find(|cors| origin.is_some_and(|origin| cors.origins.have(origin)))
}

/// The answer to a preflight: it permits what was asked for.
fn allowed(method: HeaderValue, names: Option<HeaderValue>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, method);
    if let Some(names) = names {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    let vary = "Access-Control-Request-Method, Access-Control-Request-Headers";
    headers.append(VARY, HeaderValue::from_static(vary));
    response
}

/// Adds the headers that say who may read the answer.
fn permit(cors: &Cors, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    // A replay may have it already.
    let varies = headers.get_all(VARY).iter().any(|known| known == "Origin");
    if matches!(cors.origins, Origins::These(_)) && !varies {
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
    let Some(origin) = origin else { return };
    let value = match cors.origins {
        Origins::Any => HeaderValue::from_static("*"),
        Origins::These(_) => origin.clone(),
    };
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, value);
    if cors.credentials {
        headers.insert(
            ACCESS_CONTROL_ALLOW_CREDENTIALS,
            HeaderValue::from_static("true"),
        );
    }
}

//! `GET /.onlyonce/keys/{key}`: the state of a key, for the caller that used it.
//!
//! Anything but this caller's key is 404, whatever the reason, so that the answer does not reveal which keys
//! others use.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use onlyonce::{Body, Problem, layer::preferred_wait, stats::Event};
use onlyonce_core::{Key, Record, State, Timestamp, machine::is_settled};
use onlyonce_store::Reply;
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use super::{Edge, Lane, Who, is_get};
use crate::{auth::ClientId, clock::rfc3339};

/// The prefix of the gateway's own paths.
pub(super) const PREFIX: &str = "/.onlyonce/";
/// The longest that a look-up waits.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The answer to a request for `/.onlyonce/{rest}`.
pub(super) async fn answer<B>(edge: &Edge, mut request: Request<B>, rest: &str) -> Response<Body> {
    let arrived = Instant::now();
    if let Err(problem) = edge.authenticate(&mut request).await {
        return problem.unkeyed_response(&edge.policy);
    }
    let client: Option<&ClientId> = request.extensions().get();
    let key = rest
        .strip_prefix("keys/")
        .filter(|_| is_get(request.method()))
        .and_then(read_key);
    let Some(key) = key else {
        // Nothing is executed here; if the request brought a key, nobody has looked at that.
        let is_keyed = request.headers().contains_key(&edge.policy.header_name);
        return super::refused(
            &Problem::KeyNotFound,
            &edge.policy,
            is_keyed && !is_get(request.method()),
        );
    };
    let query = Query::read(request.uri().query().unwrap_or_default());
    let Some(patience) = query.wait else {
        let why = "its `wait` is not a duration, such as 10s";
        return Problem::RequestMalformed(why).unkeyed_response(&edge.policy);
    };
    let preferred = preferred_wait(request.headers()).map(Duration::from_secs);
    let patience = patience.min(preferred.unwrap_or(MAX_WAIT));
    let lanes = lanes_for(edge, query.route);
    if let Some(wait) = lanes
        .first()
        .and_then(|lane| too_fast(edge, lane, request.headers(), client))
    {
        return Problem::RateLimited(wait).unkeyed_response(&edge.policy);
    }
    for lane in lanes {
        let asked = look(
            edge,
            lane,
            (request.headers(), client),
            &key,
            arrived + patience,
        );
        if let Some(answer) = asked.await {
            return answer;
        }
    }
    not_found(edge)
}

/// The seconds after which this caller may ask again, if it asks too fast.
fn too_fast(
    edge: &Edge,
    lane: &Lane,
    headers: &HeaderMap,
    client: Option<&ClientId>,
) -> Option<u64> {
    let policy = lane.layer.policy();
    policy.lookups_per_second?;
    let asks = Who::new(&lane.route).identity(headers, client)?;
    let asks = asks.limited_as(edge.engine.secret());
    let wait = edge.engine.room_to_look(&asks, policy).err()?;
    lane.layer.stats().count(Event::RateLimited);
    Some(wait.as_secs().saturating_add(1).min(60))
}

/// The state of `key` in the scope that this caller has on `lane`; `None` if the key does not exist or
/// belongs to another caller.
async fn look(
    edge: &Edge,
    lane: &Lane,
    (headers, client): (&HeaderMap, Option<&ClientId>),
    key: &Key,
    until: Instant,
) -> Option<Response<Body>> {
    let identity = Who::new(&lane.route).identity(headers, client)?;
    let secret = edge.engine.secret();
    let id = secret.record_id(identity.scope.as_str(), key);
    let mine = |reply: &Reply<Option<Record>>| {
        let found = reply.value.as_ref();
        let record = found.filter(|record| record.is_of(&identity.scope, key))?;
        // The headers of the route that the key was used on identify the caller.
        let owner = edge.lane(&record.route).unwrap_or(lane);
        let asks = Who::new(&owner.route).identity(headers, client)?;
        let mine = record.scope == identity.scope && asks.is_caller_of(record, secret);
        (mine && !is_gone(record, reply.now)).then(|| record.clone())
    };
    // Ownership is checked before any waiting: the duration would tell a stranger that the key exists.
    let mut deadline = Instant::now();
    loop {
        let reply = match edge.engine.find(id, deadline).await {
            Ok(reply) => reply,
            Err(_) => return Some(Problem::StoreUnavailable.unkeyed_response(&edge.policy)),
        };
        let record = mine(&reply)?;
        if deadline >= until || is_settled(&record) {
            return Some(shown(&record, reply.now));
        }
        deadline = until;
    }
}

/// The routes that a look-up with this query is about: the named one, or all.
pub(super) fn lanes_asked<'a>(edge: &'a Edge, query: Option<&str>) -> Vec<&'a Lane> {
    match Query::read(query.unwrap_or_default()).route {
        Some(id) => edge.lane(id).into_iter().collect(),
        None => edge.lanes.iter().collect(),
    }
}

/// The named route; without a name, one route per scope that is not specific to a route.
fn lanes_for<'a>(edge: &'a Edge, route: Option<&str>) -> Vec<&'a Lane> {
    if let Some(id) = route {
        return edge.lane(id).into_iter().collect();
    }
    let mut lanes: Vec<&Lane> = Vec::new();
    for lane in edge
        .lanes
        .iter()
        .filter(|lane| !lane.route.edge.key_per_route)
    {
        let scope = lane.route.edge.key_scope;
        if !lanes
            .iter()
            .any(|other| other.route.edge.key_scope == scope)
        {
            lanes.push(lane);
        }
    }
    lanes
}

fn read_key(segment: &str) -> Option<Key> {
    if segment.is_empty() || segment.contains('/') {
        return None;
    }
    let text = percent_decode_str(segment).decode_utf8().ok()?;
    Key::asked_for(&text).ok()
}

struct Query<'a> {
    /// `None` if the value is invalid.
    wait: Option<Duration>,
    route: Option<&'a str>,
}

impl<'a> Query<'a> {
    fn read(query: &'a str) -> Self {
        let mut read = Self {
            wait: Some(Duration::ZERO),
            route: None,
        };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "wait" => read.wait = wait(value).map(|wait| wait.min(MAX_WAIT)),
                "route" => read.route = Some(value),
                _ => {}
            }
        }
        read
    }
}

/// A duration, or a number of seconds.
fn wait(value: &str) -> Option<Duration> {
    let seconds = value.parse().map(Duration::from_secs).ok();
    seconds.or_else(|| humantime::parse_duration(value).ok())
}

fn shown(record: &Record, now: Timestamp) -> Response<Body> {
    // What a caller sees does not depend on whether the reaper has run.
    let state = match record.is_past_expiry(now) {
        true => State::Expired,
        false => record.state,
    };
    let answer = record.response.as_ref();
    let body = serde_json::json!({
        "state": state.as_str(),
        "generation": record.generation,
        "created_at": record.times.created_at.map(rfc3339),
        "expires_at": record.times.expires_at.map(rfc3339),
        "response": answer.filter(|_| state != State::Expired).map(|response| {
            serde_json::json!({ "status": response.status.as_u16() })
        }),
    });
    let mut response = Response::new(Body::from(bytes::Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Whether the record counts as deleted, reaped or not.
fn is_gone(record: &Record, now: Timestamp) -> bool {
    let times = &record.times;
    let expires_at = times.expires_at.map(|at| at.plus(record.tombstone_ttl));
    times.delete_at.or(expires_at).is_some_and(|at| at <= now)
}

fn not_found(edge: &Edge) -> Response<Body> {
    Problem::KeyNotFound.unkeyed_response(&edge.policy)
}

//! `POST /.onlyonce/reconcile/{route}`: a provider tells the outcome of a key.
//!
//! A signature takes the place of a credential. A sender without one learns nothing, and a sender with one
//! gets the same answer whether the key exists or not.

use std::pin::pin;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use onlyonce::{
    Body, BoxError, ConnectionId, Problem,
    engine::Taken,
    limits::{Held, Holder, NoRoom},
    reconcile::Told,
};
use onlyonce_core::{Key, Record, RecordId, Scope, State, policy::KeyScope, record::Evidence};
use onlyonce_store::{Filter, StoreError};

use super::{Edge, Lane, patience::Timely};
use crate::provider::{BadSignature, Heard};

/// The largest event, in bytes.
const MAX_EVENT: usize = 1 << 20;

/// The answer to a webhook for the route `id`.
pub(super) async fn answer<B>(edge: &Edge, request: Request<B>, id: &str) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let found = edge.lane(id).filter(|_| request.method() == Method::POST);
    let Some((lane, webhook)) = found.and_then(|lane| Some((lane, lane.provider.webhook()?)))
    else {
        return Problem::NoRoute.unkeyed_response(&edge.policy);
    };
    let (head, body) = request.into_parts();
    // Checked before waiting for the body, since anybody may send one.
    if !webhook.is_signed(&head.headers) {
        return Problem::Unauthenticated.unkeyed_response(&edge.policy);
    }
    // The sender is not known yet, so the body is counted against the connection.
    let connection = head.extensions.get::<ConnectionId>().copied();
    let held = edge.engine.body_budget();
    let held = held.account(Holder::of(None, connection));
    let activity = head.extensions.get().cloned();
    let body = Timely::new(body, edge.config.body_timeout, activity);
    let body = match gathered(body, held).await {
        Ok(body) => body,
        Err(problem) => return problem.unkeyed_response(&edge.policy),
    };
    let taken = match webhook.hear(&head.headers, &body) {
        Err(BadSignature) => {
            tracing::warn!(
                route = id,
                "a webhook with a bad or stale signature was refused"
            );
            return Problem::Unauthenticated.unkeyed_response(&edge.policy);
        }
        Ok(Heard::NothingForUs) => Ok(Taken::Nothing),
        Ok(Heard::About { key, client, told }) => {
            // An event that must name the key's client, and does not, is ignored.
            if client.is_none() && webhook.names_client() {
                Ok(Taken::Nothing)
            } else {
                take(edge, lane, (&key, client.as_deref()), &told).await
            }
        }
    };
    match taken {
        Ok(taken) => {
            tracing::debug!(route = id, ?taken, "a webhook was taken");
            received()
        }
        Err(error) => {
            tracing::warn!(route = id, %error, "a webhook could not be taken");
            Problem::StoreUnavailable.unkeyed_response(&edge.policy)
        }
    }
}

/// Reads the whole event. Pieces are copied together as they arrive, so that many small ones take no more
/// memory than their bytes, which are counted in `held`.
async fn gathered<B>(body: B, mut held: Held) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let mut body = pin!(body);
    let mut event = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::RequestIncomplete)?;
        if let Ok(data) = frame.into_data() {
            if event.len() + data.len() > MAX_EVENT {
                return Err(Problem::RequestTooLarge(MAX_EVENT as u64));
            }
            event.extend_from_slice(&data);
            let counted = held.grow(event.capacity());
            counted.map_err(|NoRoom| Problem::Overloaded)?;
        }
    }
    Ok(held.keep(Bytes::from(event)))
}

/// Applies an event to the key that `name` means. A name that starts with a quote may be the key itself or
/// its header value; if both keys exist, the event is ambiguous and needs a person.
async fn take(
    edge: &Edge,
    lane: &Lane,
    (name, client): (&str, Option<&str>),
    told: &Told,
) -> Result<Taken, StoreError> {
    let keys = Key::meant_by(name);
    let rules = &lane.route.edge;
    let per_client = rules.key_scope == Some(KeyScope::PerClient);
    let found = match (per_client, client) {
        (true, None) => {
            let live = live(edge, lane, &keys).await?;
            // Records of several clients are ambiguous: without `client`, their keys must differ.
            let of_one_key = |key: &Key| live.iter().filter(|one| one.key == *key).count() > 1;
            if live.is_empty() || keys.iter().any(of_one_key) {
                return Ok(Taken::Nothing);
            }
            live.iter().map(|record| record.id).collect()
        }
        (_, client) => {
            let client = client.filter(|_| per_client);
            let scope = match (rules.key_per_route, client) {
                (true, client) => Scope::route(&lane.route.id, client),
                (false, Some(client)) => Scope::client(client),
                (false, None) => Scope::global(),
            };
            there(edge, lane, &scope, &keys).await?
        }
    };
    if let [only] = found.as_slice() {
        return edge.engine.told(*only, told).await;
    }
    let route = &lane.route.id;
    tracing::warn!(route, "a webhook names two keys: neither is settled by it");
    let unclear = Told {
        evidence: Evidence::Contradictory,
        ..told.clone()
    };
    let mut taken = Taken::Nothing;
    for id in found {
        if edge.engine.told(id, &unclear).await? == Taken::Changed {
            taken = Taken::Changed;
        }
    }
    Ok(taken)
}

/// The ids of those of `keys` that the route has a record of, or of the first if it has none.
async fn there(
    edge: &Edge,
    lane: &Lane,
    scope: &Scope,
    keys: &[Key],
) -> Result<Vec<RecordId>, StoreError> {
    let secret = edge.engine.secret();
    let ids = keys.iter().map(|key| secret.record_id(scope.as_str(), key));
    let ids: Vec<RecordId> = ids.collect();
    if let [_] = ids.as_slice() {
        return Ok(ids);
    }
    let mut found = Vec::new();
    for id in &ids {
        let record = edge.engine.store().lookup(*id).await?.value;
        if record.is_some_and(|record| *record.route == *lane.route.id) {
            found.push(*id);
        }
    }
    if found.is_empty() {
        found.extend(ids.first());
    }
    Ok(found)
}

/// This route's live records with one of `keys`, of any client.
async fn live(edge: &Edge, lane: &Lane, keys: &[Key]) -> Result<Vec<Record>, StoreError> {
    let mut found = Vec::new();
    for key in keys {
        for state in [State::Unknown, State::InProgress] {
            let filter = Filter {
                state: Some(state),
                route: Some(lane.route.id.clone()),
                key: Some(key.clone()),
                ..Filter::default()
            };
            let page = edge.engine.store().list(&filter, None, 2).await?;
            found.extend(page.items.into_iter().map(|listed| listed.record));
        }
    }
    Ok(found)
}

fn received() -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from_static(b"{\"received\":true}")));
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

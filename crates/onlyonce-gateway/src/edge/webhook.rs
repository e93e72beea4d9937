//! `POST /.onlyonce/reconcile/{route}`: providers tell what became of a key.
//!
//! A signature takes the place of a credential. Whoever has none learns nothing, and whoever has one
//! gets the same answer whether there is such a key or not.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use onlyonce::{Body, BoxError, Problem, engine::Taken, reconcile::Told};
use onlyonce_core::{Key, RecordId, Scope, State, policy::KeyScope};
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
        return Problem::NoRoute.response(&edge.policy);
    };
    let (head, body) = request.into_parts();
    // Before any of the body is waited for: anybody may send one.
    if !webhook.is_signed(&head.headers) {
        return Problem::Unauthenticated.response(&edge.policy);
    }
    let body = match gathered(Timely::new(body, edge.config.body_timeout)).await {
        Ok(body) => body,
        Err(problem) => return problem.response(&edge.policy),
    };
    let taken = match webhook.hear(&head.headers, &body) {
        Err(BadSignature) => {
            tracing::warn!(
                route = id,
                "a webhook with a bad or stale signature was refused"
            );
            return Problem::Unauthenticated.response(&edge.policy);
        }
        Ok(Heard::NothingForUs) => Ok(Taken::Nothing),
        Ok(Heard::About { key, client, told }) => {
            // An event that should say whose key it is about, and does not, is about nobody's.
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
            Problem::StoreUnavailable.response(&edge.policy)
        }
    }
}

/// The whole event. Pieces are copied together as they come, so that many small ones take no more memory
/// than their bytes.
async fn gathered<B>(body: B) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let mut body = pin!(body);
    let mut event = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::RequestIncomplete)?;
        if let Ok(data) = frame.into_data() {
            if event.len() + data.len() > MAX_EVENT {
                return Err(Problem::RequestTooLarge(MAX_EVENT as u64));
            }
            event.extend_from_slice(&data);
        }
    }
    Ok(event.freeze())
}

async fn take(
    edge: &Edge,
    lane: &Lane,
    (key, client): (&str, Option<&str>),
    told: &Told,
) -> Result<Taken, StoreError> {
    let key = Key::from_stored(key);
    let policy = &lane.route.policy;
    let per_client = policy.key_scope == Some(KeyScope::PerClient);
    let id = match (per_client, client) {
        (true, None) => match only_live(edge, lane, &key).await? {
            Some(id) => id,
            None => return Ok(Taken::Nothing),
        },
        (_, client) => {
            let client = client.filter(|_| per_client);
            let scope = match (policy.key_per_route, client) {
                (true, client) => Scope::route(&lane.route.id, client),
                (false, Some(client)) => Scope::client(client),
                (false, None) => Scope::global(),
            };
            edge.engine.secret().record_id(scope.as_str(), &key)
        }
    };
    edge.engine.told(id, told).await
}

/// The one live record of this route that has `key`, where clients are told to have keys that differ.
async fn only_live(edge: &Edge, lane: &Lane, key: &Key) -> Result<Option<RecordId>, StoreError> {
    let mut found = Vec::new();
    for state in [State::Unknown, State::InProgress] {
        let filter = Filter {
            state: Some(state),
            route: Some(lane.route.id.clone()),
            key: Some(key.clone()),
            ..Filter::default()
        };
        let page = edge.engine.store().list(&filter, None, 2).await?;
        found.extend(page.items.into_iter().map(|listed| listed.record.id));
    }
    // Several are none: which of them is meant, nobody can say.
    Ok(match found.as_slice() {
        [one] => Some(*one),
        _ => None,
    })
}

fn received() -> Response<Body> {
    let mut response = Response::new(Body::from(Bytes::from_static(b"{\"received\":true}")));
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

//! `POST /.onlyonce/reconcile/{route}`: providers tell what became of a key.
//!
//! A signature takes the place of a credential. Whoever has none learns nothing, and whoever has one
//! gets the same answer whether there is such a key or not.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
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
    let body = Timely::new(body, edge.config.body_timeout);
    let body = match Limited::new(body, MAX_EVENT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return Problem::RequestTooLarge(MAX_EVENT as u64).response(&edge.policy);
        }
        Err(_) => return Problem::RequestIncomplete.response(&edge.policy),
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

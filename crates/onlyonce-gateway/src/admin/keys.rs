//! Keys: list, show, resolve, extend, erase, forget.

use std::{
    collections::HashMap,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Path, Query, State},
    routing::{get, post},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onlyonce::{
    Engine,
    engine::{OperateError, Seen},
    reconcile::Ask,
};
use onlyonce_core::{
    Key, Policy, Record, RecordId, State as KeyState, StoredResponse,
    record::{Revision, StoredBody},
};
use onlyonce_store::{Filter, Listed, Page, StoreError, at_rest::OpenError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Refused, audit, dead_letters, outbox, response, store_loss, view::View};
use crate::{clock::rfc3339, edge::Current};

/// The default page size; `MAX_LIMIT` is the largest.
const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 500;
/// The ttl of an answer whose route's ttl is not known: rather too long than so short that a retry executes
/// again.
const UNTOLD_TTL: Duration = Duration::from_secs(30 * 24 * 3_600);

pub(super) type Answer = Result<Json<Value>, Refused>;

pub(super) fn bad(detail: impl Into<String>) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, "bad_request", detail)
}

fn not_found() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "not_found", "There is no such key.")
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "an admin request met a store error");
        let detail = match error.source() {
            Some(why) if OpenError::is_missing_key(&error) => format!(
                "What is stored cannot be read here: {why}. `store.encryption_key_env` names the keys of a \
                 gateway. Nothing was changed."
            ),
            _ => "The store could not answer. Nothing is known to have been changed.".to_owned(),
        };
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "idempotency_store_unavailable",
            detail,
        )
    }
}

impl From<OperateError> for Refused {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::Absent => not_found(),
            OperateError::Store(error) => error.into(),
            OperateError::TooEarly(until) => {
                let until = rfc3339(until);
                let detail = format!(
                    "Until {until} the operation may still take effect, and a retry of a released key would \
                     execute it a second time. Nothing was changed. Wait until then; or release it now with \
                     \"force\": true (`--force` on the command line) if you are sure that it cannot."
                );
                Self::new(StatusCode::CONFLICT, "too_early", detail).with("not_before", until)
            }
            error => Self::new(StatusCode::CONFLICT, "state_conflict", error.to_string()),
        }
    }
}

/// What it takes to show and change keys: a running gateway has it, and so does a command that opens a store
/// directly.
#[derive(Clone)]
pub struct Desk {
    engine: Engine,
    provider: Arc<dyn Ask>,
    mask_keys: Arc<AtomicBool>,
    /// The ttl of each route according to the store, if there is no gateway that knows.
    kept: Option<Arc<HashMap<String, Duration>>>,
    /// The gateway that serves these keys, if there is one.
    gateway: Option<Arc<Current>>,
}

impl Desk {
    /// For the keys in the store of `engine`. `mask_keys` hides raw keys in answers.
    pub fn new(engine: Engine, provider: Arc<dyn Ask>, mask_keys: bool) -> Self {
        let mask_keys = Arc::new(AtomicBool::new(mask_keys));
        Self {
            engine,
            provider,
            mask_keys,
            kept: None,
            gateway: None,
        }
    }

    /// For the keys and messages of a running gateway.
    pub(super) fn of_gateway(mut self, gateway: Arc<Current>) -> Self {
        self.gateway = Some(gateway);
        self
    }

    /// The gateway that serves these keys.
    pub(super) fn gateway(&self) -> Option<&Current> {
        self.gateway.as_deref()
    }

    /// The retries of a key that this gateway has seen since startup; null without a gateway.
    fn retries(&self, id: RecordId) -> Value {
        if self.gateway.is_none() {
            return Value::Null;
        }
        let seen = self.engine.retries_of(id);
        json!({
            "answered": seen.map_or(0, |seen| seen.answered),
            "refused": seen.map_or(0, |seen| seen.refused),
            "last_at": seen.map(|seen| rfc3339(seen.last_at)),
            "since": rfc3339(self.engine.started_at()),
        })
    }

    /// For a store opened directly, which knows the ttl of some routes.
    pub fn without_gateway(mut self, kept: HashMap<String, Duration>) -> Self {
        self.kept = Some(Arc::new(kept));
        self
    }

    /// Gives the engine a policy for `route`, if there is no gateway to do so.
    pub(super) fn learn(&self, route: &Arc<str>) {
        let Some(kept) = &self.kept else { return };
        let ttl = kept.get(&**route).copied().unwrap_or(UNTOLD_TTL);
        let mut policy = Policy::builder().ttl(ttl).build();
        // The route's profile is not known here, so it counts as `payments`.
        policy.hide_card_numbers = !self.engine.store().encrypts();
        self.engine.set_policy(route.clone(), Arc::new(policy));
    }

    /// Whether a gateway serves these keys, so that their providers can be queried.
    pub(super) fn can_ask(&self) -> bool {
        self.kept.is_none()
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The source of evidence about unknown keys.
    pub(super) fn provider(&self) -> &dyn Ask {
        &*self.provider
    }

    /// Changes whether raw keys are hidden.
    pub(crate) fn mask_keys(&self, mask_keys: bool) {
        self.mask_keys.store(mask_keys, Ordering::Relaxed);
    }

    /// The routes of keys, and of the audit.
    pub fn router<S>(self) -> Router<S> {
        let router = Router::new()
            .route("/idempotency/keys", get(list))
            .route("/idempotency/keys/{id}", get(show).delete(forget))
            .route("/idempotency/keys/{id}/resolve", post(resolve))
            .route("/idempotency/keys/{id}/extend", post(extend))
            .route("/idempotency/keys/{id}/erase", post(erase))
            .route("/idempotency/keys/{id}/retries", get(retries))
            .route("/idempotency/keys/{id}/response", post(response::reveal))
            .route("/audit", get(audit::audit));
        let router = outbox::routes(dead_letters::routes(router));
        store_loss::routes(router).with_state(self)
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            engine: &self.engine,
            mask_keys: self.mask_keys.load(Ordering::Relaxed),
        }
    }

    pub(super) async fn record(&self, id: &str) -> Result<Record, Refused> {
        let id = parse_id(id)?;
        let found = self.engine.store().lookup(id).await?.value;
        found.ok_or_else(not_found)
    }
}

fn parse_id(id: &str) -> Result<RecordId, Refused> {
    id.parse().map_err(|_| not_found())
}

pub(super) fn limit(query: &HashMap<String, String>) -> Result<usize, Refused> {
    let Some(text) = query.get("limit") else {
        return Ok(DEFAULT_LIMIT);
    };
    match text.parse::<usize>() {
        Ok(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
        _ => Err(bad(format!("`limit` is a number from 1 to {MAX_LIMIT}."))),
    }
}

pub(super) fn cursor(query: &HashMap<String, String>) -> Result<Option<u64>, Refused> {
    let text = query.get("cursor").filter(|text| !text.is_empty());
    text.map(|text| {
        text.parse()
            .map_err(|_| bad("`cursor` is the `next` of an earlier page."))
    })
    .transpose()
}

/// Whether a filter names what cannot exist: no name contains NUL, and some stores reject it in a query.
pub(super) fn names_nothing<'q>(names: impl IntoIterator<Item = Option<&'q String>>) -> bool {
    names.into_iter().flatten().any(|name| name.contains('\0'))
}

/// An operator's reason, if it can be stored and shown.
pub(super) fn printable(reason: &str) -> Result<&str, Refused> {
    let is_odd = |character: char| character.is_control() && !character.is_whitespace();
    match reason.contains(is_odd) {
        true => Err(bad(
            "`reason` holds control characters. Nothing was changed.",
        )),
        false => Ok(reason),
    }
}

/// `GET /idempotency/keys`.
async fn list(State(desk): State<Desk>, Query(query): Query<HashMap<String, String>>) -> Answer {
    let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).cloned();
    let (cursor, limit) = (cursor(&query)?, limit(&query)?);
    let state = match text("state") {
        None => None,
        Some(word) => Some(KeyState::from_word(&word).ok_or_else(|| {
            let words: Vec<&str> = KeyState::ALL.iter().map(|state| state.as_str()).collect();
            bad(format!("`state` is one of {}.", words.join(", ")))
        })?),
    };
    if names_nothing(["route", "client", "key"].map(|name| query.get(name))) {
        return Ok(Json(json!({ "keys": [], "next": null })));
    }
    let key = text("key").map(|key| Key::asked_for(&key)).transpose();
    let filter = Filter {
        state,
        route: text("route"),
        client: text("client"),
        key: key.map_err(|why| bad(format!("`key` is written as in the header. {why}")))?,
        ..Filter::default()
    };
    let page = desk.find(&filter, cursor, limit).await?;
    let view = desk.view();
    let keys: Vec<Value> = page
        .items
        .iter()
        .map(|listed| view.listed(listed))
        .collect();
    Ok(Json(
        json!({ "keys": keys, "next": page.next.map(|next| next.to_string()) }),
    ))
}

impl Desk {
    /// The keys that match `filter`, including erased ones.
    pub(super) async fn find(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, Refused> {
        Ok(onlyonce_store::find(&**self.engine.store(), filter, cursor, limit).await?)
    }
}

/// `GET /idempotency/keys/{id}`.
async fn show(State(desk): State<Desk>, Path(id): Path<String>) -> Answer {
    let record = desk.record(&id).await?;
    shown(&desk, &record).await
}

/// `GET /idempotency/keys/{id}/retries`: separate from the record, which retries do not change.
async fn retries(State(desk): State<Desk>, Path(id): Path<String>) -> Answer {
    Ok(Json(desk.retries(parse_id(&id)?)))
}

async fn shown(desk: &Desk, record: &Record) -> Answer {
    let journal = desk.engine.store().history(record.id).await?;
    let view = desk.view();
    let mut value = view.record(record);
    value["revision"] = record.revision.0.into();
    value["dead_letter"] = record.dead_letter.into();
    value["history"] = view.history(record, &journal);
    value["waiters"] = desk.engine.waiting_for(record.id).into();
    Ok(Json(value))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveBody {
    outcome: String,
    #[serde(default)]
    response: Option<Given>,
    #[serde(default)]
    reason: Option<String>,
    /// The revision that the decision was based on.
    #[serde(default)]
    revision: Option<u64>,
    /// Releases a key although its provider is inconclusive or it is too early.
    #[serde(default)]
    force: bool,
}

/// An operator's decision about a key.
pub(super) enum Decision {
    /// The operation took effect, with this answer.
    Completed(Arc<StoredResponse>),
    /// The operation took effect, with the provider's answer.
    AsProviderSays,
    /// The operation had no effect.
    Release {
        /// Although the provider is inconclusive or it is too early.
        force: bool,
    },
}

/// An answer, or the word `provider` for the provider's answer.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Given {
    Word(String),
    Response(ResponseBody),
}

impl ResolveBody {
    /// A decision for many keys.
    pub(super) fn of(
        outcome: String,
        response: Option<Value>,
        reason: Option<String>,
        force: bool,
    ) -> Result<Self, Refused> {
        let response = response.map(|response| {
            serde_json::from_value(response).map_err(|_| bad("`response` is not one."))
        });
        let body = Self {
            outcome,
            response: response.transpose()?,
            reason,
            revision: None,
            force,
        };
        body.reason()?;
        body.decision()?;
        Ok(body)
    }

    pub(super) fn reason(&self) -> Result<&str, Refused> {
        let reason = self.reason.as_deref().map(str::trim);
        let reason = reason.filter(|reason| !reason.is_empty());
        printable(reason.ok_or_else(|| bad("`reason` is mandatory. Nothing was changed."))?)
    }

    /// Parses the decision.
    pub(super) fn decision(&self) -> Result<Decision, Refused> {
        match (self.outcome.as_str(), &self.response) {
            ("completed", Some(Given::Word(word))) if word == "provider" => {
                Ok(Decision::AsProviderSays)
            }
            ("completed", Some(Given::Word(_))) => {
                Err(bad("`response` is an answer, or the word `provider`."))
            }
            ("completed", Some(Given::Response(response))) => {
                let stored = stored(response.clone())?;
                Ok(Decision::Completed(Arc::new(stored)))
            }
            ("completed", None) => Err(bad("`completed` needs a `response`.")),
            ("failed_retryable", None) => Ok(Decision::Release { force: self.force }),
            ("failed_retryable", Some(_)) => Err(bad(
                "`failed_retryable` takes no `response`: a retry makes one.",
            )),
            _ => Err(bad("`outcome` is `completed` or `failed_retryable`.")),
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseBody {
    status: u16,
    #[serde(default)]
    headers: HashMap<String, OneOrMany>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    body_base64: Option<String>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// `POST /idempotency/keys/{id}/resolve`.
async fn resolve(State(desk): State<Desk>, Path(id): Path<String>, body: Bytes) -> Answer {
    parse_id(&id)?;
    let body: ResolveBody = read(&body)?;
    body.reason()?;
    body.decision()?;
    let record = desk.record(&id).await?;
    let seen = match body.revision {
        Some(revision) => Seen::Revision(Revision(revision)),
        // The decision is about the attempt just read, not about one that a retry starts meanwhile.
        None => Seen::Attempt(record.attempt_id),
    };
    let record = desk.resolved(&record, seen, &body).await?;
    shown(&desk, &record).await
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        bad(format!(
            "The body is not what this address takes ({place}): {error}"
        ))
    })
}

fn stored(response: ResponseBody) -> Result<StoredResponse, Refused> {
    let status = StatusCode::from_u16(response.status)
        .ok()
        .filter(|status| status.as_u16() >= 200)
        .ok_or_else(|| bad("`status` is a number from 200 to 999."))?;
    let mut headers = HeaderMap::new();
    for (name, values) in response.headers {
        let name = HeaderName::try_from(name).map_err(|_| bad("A header's name is not valid."))?;
        let values = match values {
            OneOrMany::One(value) => vec![value],
            OneOrMany::Many(values) => values,
        };
        for value in values {
            let value = HeaderValue::try_from(value)
                .map_err(|_| bad(format!("The value of header `{name}` is not valid.")))?;
            headers.append(name.clone(), value);
        }
    }
    let bytes = match (response.body, response.body_base64) {
        (Some(_), Some(_)) => return Err(bad("Give `body` or `body_base64`, not both.")),
        (Some(body), None) => body.into_bytes(),
        (None, Some(encoded)) => STANDARD
            .decode(encoded)
            .map_err(|_| bad("`body_base64` is not valid base64."))?,
        (None, None) => Vec::new(),
    };
    Ok(StoredResponse {
        status,
        headers,
        body: StoredBody::Full {
            bytes: bytes.into(),
            trailers: None,
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtendBody {
    ttl: String,
}

/// `POST /idempotency/keys/{id}/extend`.
async fn extend(State(desk): State<Desk>, Path(id): Path<String>, body: Bytes) -> Answer {
    let id = parse_id(&id)?;
    let body: ExtendBody = read(&body)?;
    let ttl = crate::config::units::duration(&body.ttl)
        .ok()
        .filter(|ttl| !ttl.is_zero())
        .ok_or_else(|| bad("`ttl` is a duration such as `48h`, and at most ten years."))?;
    let record = desk.engine.extend(id, ttl).await?;
    shown(&desk, &record).await
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EraseBody {
    reason: Option<String>,
}

/// `POST /idempotency/keys/{id}/erase`.
async fn erase(State(desk): State<Desk>, Path(id): Path<String>, body: Bytes) -> Answer {
    let id = parse_id(&id)?;
    let body: EraseBody = match body.is_empty() {
        true => EraseBody::default(),
        false => read(&body)?,
    };
    printable(body.reason.as_deref().unwrap_or_default())?;
    let record = desk.engine.erase(id, body.reason).await?;
    shown(&desk, &record).await
}

/// `DELETE /idempotency/keys/{id}`.
async fn forget(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let id = parse_id(&id)?;
    let force = query.get("force").is_some_and(|force| force == "true");
    let reason = query.get("reason").cloned();
    printable(reason.as_deref().unwrap_or_default())?;
    let record = desk
        .engine
        .forget(id, force, reason)
        .await
        .map_err(|error| match error {
            OperateError::TookEffect => Refused::new(
                StatusCode::CONFLICT,
                "state_conflict",
                "The operation took effect, and forgetting it would let a retry execute it again. \
             Nothing was changed. Add ?force=true (`--force` on the command line) if that is what you want.",
            ),
            error => error.into(),
        })?;
    shown(&desk, &record).await
}

//! The admin API and the dashboard, on their own listener. Everything but `/healthz`, `/readyz` and the
//! dashboard's files needs the token, or a session that was opened with it.

mod audit;
mod dead_letters;
mod files;
mod guesses;
mod keys;
mod listener;
mod openapi;
mod outbox;
mod overview;
mod parameters;
mod response;
mod session;
mod shadow;
mod stats;
mod store_loss;
mod view;

pub use files::{asset, file, guarded};
pub use keys::Desk;
pub use session::{forged, is_from_own_page};
#[cfg(feature = "otlp")]
pub(crate) use stats::measure;

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::{
    Json, Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusHandle;
use onlyonce::{ConnectionId, Engine, limits::Holder};
use onlyonce_core::{
    Policy,
    machine::{self, NewKey},
};
use onlyonce_store::{Level, StoreError};
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, time::Instant};

use guesses::{Guesses, Wrong};
use listener::Peer;
use overview::Overview;
use session::{Role, Sessions};

use crate::{
    clock::rfc3339,
    config::{self, Config},
    edge::{Activity, Current, Worked},
    reload::Status,
};

/// The largest body of an admin request, in bytes: a response with which an operator resolves a key.
const MAX_BODY: usize = 4 << 20;
/// When to retry after the body budget was full; `Retry-After` adds a second.
const OVERLOADED_RETRY_AFTER: Duration = Duration::ZERO;
/// How long the result of a `/readyz` probe is cached.
const PROBE_HOLDS: Duration = Duration::from_secs(1);
/// The longest that `/readyz` waits for the store.
const MAX_PROBE: Duration = Duration::from_secs(5);

/// The state of the admin API.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

struct Inner {
    current: Arc<Current>,
    engine: Engine,
    desk: Desk,
    metrics: PrometheusHandle,
    tokens: RwLock<Tokens>,
    /// The token made for this run, if the environment has none.
    run_token: Option<String>,
    sessions: Sessions,
    guesses: Guesses,
    overview: Overview,
    status: Status,
    stopping: watch::Receiver<bool>,
    /// When the store was last probed for writability, and the result.
    probed: tokio::sync::Mutex<Option<(Instant, Result<(), String>)>>,
}

/// The tokens that are accepted.
#[derive(PartialEq, Eq)]
struct Tokens {
    full: Option<String>,
    readonly: Option<String>,
}

impl Tokens {
    fn are_none(&self) -> bool {
        self.full.is_none() && self.readonly.is_none()
    }

    fn from_environment(config: &Config, run_token: Option<&str>) -> Self {
        let from = |name: &str| std::env::var(name).ok().filter(|token| !token.is_empty());
        Self {
            full: from(&config.admin.token_env).or(run_token.map(str::to_owned)),
            readonly: config.admin.readonly_token_env.as_deref().and_then(from),
        }
    }
}

impl Admin {
    /// The admin API of this gateway. The tokens come from the environment; without a full token there,
    /// `run_token` is the full token.
    pub(crate) fn new(
        (current, engine, status): (Arc<Current>, Engine, Status),
        metrics: PrometheusHandle,
        stopping: watch::Receiver<bool>,
        run_token: Option<String>,
    ) -> Self {
        let config = current.config();
        let desk = Desk::new(engine.clone(), current.clone(), config.admin.mask_keys)
            .of_gateway(current.clone());
        Self(Arc::new(Inner {
            tokens: RwLock::new(Tokens::from_environment(&config, run_token.as_deref())),
            run_token,
            sessions: Sessions::default(),
            guesses: Guesses::default(),
            overview: Overview::default(),
            current,
            engine,
            desk,
            metrics,
            status,
            stopping,
            probed: tokio::sync::Mutex::default(),
        }))
    }

    /// Whether a full token exists.
    pub(crate) fn has_token(&self) -> bool {
        self.0.tokens.read().full.is_some()
    }

    /// Applies the options of `config`.
    pub(crate) fn follow(&self, config: &Config) {
        let tokens = Tokens::from_environment(config, self.0.run_token.as_deref());
        let mut current = self.0.tokens.write();
        if *current != tokens {
            // Sessions opened with a token that is no longer valid must sign in again.
            self.0.sessions.clear();
        }
        *current = tokens;
        drop(current);
        self.0.desk.mask_keys(config.admin.mask_keys);
    }
}

/// Serves the admin API for as long as the process lives.
pub(crate) async fn serve(admin: Admin, listener: TcpListener) {
    let guarded = Router::new()
        .route("/idempotency", get(stats::routes))
        .route("/shadow", get(shadow::report))
        .route("/metrics", get(stats::metrics))
        .route("/config", get(config))
        .route("/openapi.json", get(openapi::document))
        .route("/overview", get(overview::show))
        .route("/events", get(overview::events))
        .route("/session", get(session::show))
        .merge(admin.0.desk.clone().router())
        .fallback(async || {
            Refused::new(StatusCode::NOT_FOUND, "not_found", "There is nothing here.")
        })
        .method_not_allowed_fallback(async || {
            let detail = "This address does not take this method. Nothing was changed.";
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        })
        .layer(middleware::from_fn(parameters::refuse_unknown))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(middleware::from_fn_with_state(admin.clone(), authorize));
    let app = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/", get(files::index))
        .route("/assets/{*path}", get(files::asset))
        .route("/session", post(session::sign_in).delete(session::sign_out))
        .merge(guarded)
        .layer(middleware::from_fn(tidy))
        .layer(middleware::from_fn(files::guarded))
        .with_state(admin.clone());
    tokio::spawn(overview::run(admin.clone()));
    listener::serve(listener, app, &admin.0.current).await;
}

/// `GET /config`.
async fn config(State(admin): State<Admin>) -> Json<Value> {
    Json(config::view(&admin.0.current.config()))
}

async fn tidy(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let status = response.status();
    let is_problem = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
    if status.is_client_error() && !is_problem {
        // A refusal by the framework itself: a body that is too large, an invalid query.
        let detail = "The request could not be read. Nothing was changed.";
        response = Refused::new(status, "bad_request", detail).into_response();
    }
    let headers = response.headers_mut();
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

async fn authorize(State(admin): State<Admin>, mut request: Request, next: Next) -> Response {
    let inner = &admin.0;
    if request.uri().path() == "/metrics" && inner.current.config().admin.public_metrics {
        return next.run(request).await;
    }
    let headers = request.headers();
    let by_token = headers.get(header::AUTHORIZATION);
    let role = match by_token {
        Some(value) => {
            let given = bearer(value).unwrap_or_default();
            admin.role_of_guess(request.extensions(), given)
        }
        None => session::marked(headers)
            .and_then(|mark| inner.sessions.role(&mark))
            .ok_or(Wrong::Token(Duration::ZERO)),
    };
    let role = match role {
        Ok(role) => role,
        Err(wrong) => return admin.turned_away(wrong).await.into_response(),
    };
    if !request.method().is_safe() {
        if by_token.is_none() && !session::is_from_own_page(headers) {
            return session::forged().into_response();
        }
        if role == Role::ReadOnly {
            let detail = "This token may only look. Nothing was changed.";
            return Refused::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
        }
    }
    request.extensions_mut().insert(role);
    // When there are too many connections, only authenticated ones are kept.
    let working = request.extensions().get::<Arc<Activity>>();
    let working = working.map(Activity::work);
    let response = match gathered(&admin, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    match working {
        Some(working) => response.map(|body| axum::body::Body::new(Worked::new(body, working))),
        None => response,
    }
}

/// Reads the request's body into memory; it counts against the same budget as the bodies of clients.
async fn gathered(admin: &Admin, request: Request) -> Result<Request, Refused> {
    if request.method().is_safe() {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let connection = head.extensions.get::<ConnectionId>().copied();
    let budget = admin.0.engine.body_budget();
    let mut held = budget.account(Holder::of(None, connection));
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            let detail = "The body did not arrive whole. Nothing was changed.";
            return Err(Refused::new(StatusCode::BAD_REQUEST, "bad_request", detail));
        };
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > MAX_BODY {
            let detail = format!("The body is larger than {MAX_BODY} bytes. Nothing was changed.");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(Refused::new(status, "bad_request", detail));
        }
        bytes.extend_from_slice(&data);
        if held.grow(bytes.capacity()).is_err() {
            let detail = "The gateway holds as many bytes as it may. Nothing was changed.";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refused::new(status, "overloaded", detail).after(OVERLOADED_RETRY_AFTER));
        }
    }
    let body = axum::body::Body::from(held.keep(bytes.into()));
    Ok(Request::from_parts(head, body))
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

impl Admin {
    /// The role of the bearer of this token.
    fn role_of_token(&self, given: &[u8]) -> Option<Role> {
        let is = |token: &Option<String>| {
            token
                .as_ref()
                .is_some_and(|token| verify_slices_are_equal(given, token.as_bytes()).is_ok())
        };
        let tokens = self.0.tokens.read();
        match (is(&tokens.full), is(&tokens.readonly)) {
            (true, _) => Some(Role::Operator),
            (false, true) => Some(Role::ReadOnly),
            (false, false) => None,
        }
    }

    /// Like `role_of_token`, but counts wrong tokens against the peer's address.
    fn role_of_guess(&self, extensions: &http::Extensions, given: &[u8]) -> Result<Role, Wrong> {
        if self.0.tokens.read().are_none() {
            // There is nothing to guess.
            return Err(Wrong::Token(Duration::ZERO));
        }
        let peer = extensions.get::<Peer>();
        let peer = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |Peer(peer)| *peer);
        let guesses = &self.0.guesses;
        guesses.try_one(peer, || self.role_of_token(given))
    }

    /// The answer to a request that was not authenticated, after its delay.
    async fn turned_away(&self, wrong: Wrong) -> Refused {
        match wrong {
            Wrong::Token(late) => {
                tokio::time::sleep(late).await;
                self.unauthenticated()
            }
            Wrong::TooMany(wait) => {
                let detail = "Too many wrong tokens came from this address, so this one was not looked \
                              at. Nothing was changed. Try again after Retry-After.";
                let status = StatusCode::TOO_MANY_REQUESTS;
                Refused::new(status, "too_many_attempts", detail).after(wait)
            }
        }
    }

    fn unauthenticated(&self) -> Refused {
        let detail = match self.has_token() {
            true => "Send the admin token as `Authorization: Bearer TOKEN`.",
            false => "No admin token is configured, so nobody gets in.",
        };
        Refused::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
    }
}

impl Admin {
    /// Whether the store takes writes, or why not. Anybody may ask, so a result is cached for `holds` instead
    /// of writing on every call, and an error that may name hosts is not passed on.
    async fn store_is_writable(&self, holds: Duration) -> Result<(), String> {
        let inner = &self.0;
        let mut probed = inner.probed.lock().await;
        if let Some((at, writable)) = &*probed
            && at.elapsed() < holds
        {
            return writable.clone();
        }
        if let Some(unfit) = inner.engine.store_is_unfit() {
            return Err(unfit.to_string());
        }
        let timeout = inner.current.config().store.timeout.min(MAX_PROBE);
        let asked = tokio::time::timeout(timeout, inner.engine.store().probe()).await;
        let unfit = |error: &StoreError| error.unfit().map(ToString::to_string);
        let writable = match &asked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if let Some(why) = unfit(error) => Err(why),
            Ok(Err(_)) | Err(_) => Err("the store cannot be reached or written to".to_owned()),
        };
        *probed = Some((Instant::now(), writable.clone()));
        writable
    }
}

/// `GET /readyz`: whether requests can be protected now.
async fn readyz(State(admin): State<Admin>) -> Response {
    let (status, body) = admin.readiness(PROBE_HOLDS).await;
    (status, Json(body)).into_response()
}

impl Admin {
    /// Whether requests can be protected now, and the conditions that decide it. The store's probe is cached
    /// for `holds`.
    async fn readiness(&self, holds: Duration) -> (StatusCode, Value) {
        let inner = &self.0;
        let writable = self.store_is_writable(holds).await;
        let stopping = *inner.stopping.borrow();
        let open = inner.engine.breaker_is_open();
        let config = inner.current.config();
        let level = inner.engine.store().level();
        let demands_more = |policy: &Policy| level < Level::Sync && policy.demands_sync();
        let refused = |refuses: &dyn Fn(&Policy) -> bool| -> Vec<&str> {
            let refusing = config.protected().filter(|route| refuses(&route.policy));
            refusing.map(|route| route.id.as_str()).collect()
        };
        let refusing = refused(&demands_more);
        let is_writable = writable.is_ok();
        let reason = match (stopping, writable, open) {
            (true, ..) => Some("this gateway is stopping".to_owned()),
            (_, Err(why), _) => Some(why),
            (.., true) => Some("the store has failed and is being probed".to_owned()),
            _ if !refusing.is_empty() => Some(format!(
                "the store is at level {level}, and these routes demand sync; they refuse new keys: {}",
                refusing.join(", ")
            )),
            _ => None,
        };
        let (status, word) = match (stopping, reason.is_none()) {
            (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            (false, true) => (StatusCode::OK, "ready"),
        };
        // A store that lost keys still serves those it has, so the gateway is ready.
        let history = inner.engine.history();
        let lost_at = history.lost_since();
        let now = match lost_at {
            // If the store does not tell the time, the loss counts as recent.
            Some(at) => Some(inner.engine.store_now().await.unwrap_or(at)),
            None => None,
        };
        let holds_back = |policy: &Policy| {
            now.is_some_and(|now| machine::new_key(&history, now, policy) != NewKey::Execute)
        };
        let refusing = match refusing.is_empty() {
            true => refused(&holds_back),
            false => refusing,
        };
        let told = inner.status.told();
        let body = json!({
            "status": word,
            "reason": reason.or_else(|| Engine::history_loss(&history)),
            "refusing_routes": refusing,
            "store": {
                "kind": config.store.url.scheme(),
                "level": level.as_str(),
                "identity": inner.engine.store().identity().to_string(),
                "writable": is_writable,
                "lost_at": lost_at.map(rfc3339),
                "breaker": if open { "open" } else { "closed" },
            },
            "protected_routes": config.protected().count(),
            "shadow_routes": config.observed().map(|route| &route.id).collect::<Vec<_>>(),
            "routes": config.routes.len(),
            "config": {
                "generation": told.generation,
                "loaded_at": rfc3339(told.loaded_at),
                "last_error": told.last_error,
            },
        });
        (status, body)
    }
}

/// A problem body of the admin API.
pub struct Refused {
    status: StatusCode,
    code: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    /// Members of the body beyond those of every problem.
    more: Vec<(&'static str, Value)>,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
            more: Vec::new(),
        }
    }

    /// Adds a member to the body.
    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    /// Adds a `Retry-After`.
    fn after(self, wait: Duration) -> Self {
        let retry_after = Some(wait);
        Self {
            retry_after,
            ..self
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let mut body = json!({
            "type": format!("https://onlyonce.dev/errors/{}", self.code),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        for (name, value) in self.more {
            body[name] = value;
        }
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(wait) = self.retry_after {
            // In whole seconds, always more than the wait, and so never zero.
            let seconds = HeaderValue::from(wait.as_secs() + 1);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

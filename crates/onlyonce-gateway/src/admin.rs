//! The admin API, on a listener of its own. Everything but `/healthz` and `/readyz` needs the token.

mod keys;
mod listener;
mod openapi;
mod stats;
mod view;

pub(crate) use keys::Desk;
#[cfg(feature = "otlp")]
pub(crate) use stats::measure;

use std::{sync::Arc, time::Duration};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::{
    Json, Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderValue, StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use onlyonce::Engine;
use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, time::Instant};

use crate::{
    clock::rfc3339,
    config::{Config, shown},
    edge::Current,
    reload::Status,
};

/// The largest body of an admin request, in bytes: a response that an operator resolves with.
const MAX_BODY: usize = 4 << 20;
/// How long an answer of the store to `/readyz` is passed on.
const PROBE_HOLDS: Duration = Duration::from_secs(1);
/// The longest that `/readyz` waits for the store.
const MAX_PROBE: Duration = Duration::from_secs(5);

/// What the admin API works on.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

struct Inner {
    current: Arc<Current>,
    engine: Engine,
    desk: Desk,
    metrics: PrometheusHandle,
    tokens: RwLock<Tokens>,
    status: Status,
    stopping: watch::Receiver<bool>,
    /// When the store was last asked whether it can be written to, and what it said.
    probed: tokio::sync::Mutex<Option<(Instant, bool)>>,
}

/// Who gets in.
struct Tokens {
    full: Option<String>,
    readonly: Option<String>,
}

impl Tokens {
    fn from_environment(config: &Config) -> Self {
        let from = |name: &str| std::env::var(name).ok().filter(|token| !token.is_empty());
        Self {
            full: from(&config.admin.token_env),
            readonly: config.admin.readonly_token_env.as_deref().and_then(from),
        }
    }
}

impl Admin {
    /// The admin API of this gateway; its tokens come from the environment.
    pub(crate) fn new(
        (current, engine, status): (Arc<Current>, Engine, Status),
        metrics: PrometheusHandle,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let config = current.config();
        let desk = Desk::new(engine.clone(), config.admin.mask_keys);
        Self(Arc::new(Inner {
            tokens: RwLock::new(Tokens::from_environment(&config)),
            current,
            engine,
            desk,
            metrics,
            status,
            stopping,
            probed: tokio::sync::Mutex::default(),
        }))
    }

    /// Whether anybody can get in.
    pub(crate) fn has_token(&self) -> bool {
        self.0.tokens.read().full.is_some()
    }

    /// Goes on with the options of `config`.
    pub(crate) fn follow(&self, config: &Config) {
        *self.0.tokens.write() = Tokens::from_environment(config);
        self.0.desk.mask_keys(config.admin.mask_keys);
    }
}

/// Serves the admin API for as long as the process lives.
pub(crate) async fn serve(admin: Admin, listener: TcpListener) {
    let guarded = Router::new()
        .route("/idempotency", get(stats::routes))
        .route("/metrics", get(stats::metrics))
        .route("/config", get(config))
        .route("/openapi.json", get(openapi::document))
        .merge(admin.0.desk.clone().router())
        .fallback(async || {
            Refused::new(StatusCode::NOT_FOUND, "not_found", "There is nothing here.")
        })
        .method_not_allowed_fallback(async || {
            let detail = "This address does not take this method. Nothing was changed.";
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
        })
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(admin.clone(), authorize));
    let app = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .merge(guarded)
        .layer(middleware::from_fn(tidy))
        .with_state(admin.clone());
    listener::serve(listener, app, &admin.0.current).await;
}

/// `GET /config`.
async fn config(State(admin): State<Admin>) -> Json<Value> {
    Json(shown::shown(&admin.0.current.config()))
}

async fn tidy(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let status = response.status();
    let is_problem = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
    if status.is_client_error() && !is_problem {
        // What the framework refuses by itself: a body that is too large, a query that is not one.
        let detail = "The request could not be read. Nothing was changed.";
        response = Refused::new(status, "bad_request", detail).into_response();
    }
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

async fn authorize(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let inner = &admin.0;
    if request.uri().path() == "/metrics" && inner.current.config().admin.public_metrics {
        return next.run(request).await;
    }
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(b"Bearer ".len()))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map_or(&b""[..], |(_, token)| token);
    let is = |token: &Option<String>| {
        token
            .as_ref()
            .is_some_and(|token| verify_slices_are_equal(given, token.as_bytes()).is_ok())
    };
    let (full, readonly, configured) = {
        let tokens = inner.tokens.read();
        let configured = tokens.full.is_some();
        (is(&tokens.full), is(&tokens.readonly), configured)
    };
    if full {
        return next.run(request).await;
    }
    if readonly {
        if request.method().is_safe() {
            return next.run(request).await;
        }
        let detail = "This token may only look. Nothing was changed.";
        return Refused::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
    }
    let detail = match configured {
        true => "Send the admin token as `Authorization: Bearer TOKEN`.",
        false => "No admin token is configured, so nobody gets in.",
    };
    let mut response =
        Refused::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail).into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

impl Admin {
    /// Whether the store takes writes, as of a moment ago: everybody may ask, so not every question
    /// becomes a write.
    async fn store_is_writable(&self) -> bool {
        let inner = &self.0;
        let mut probed = inner.probed.lock().await;
        if let Some((at, writable)) = *probed
            && at.elapsed() < PROBE_HOLDS
        {
            return writable;
        }
        let timeout = inner.current.config().store.timeout.min(MAX_PROBE);
        let asked = tokio::time::timeout(timeout, inner.engine.store().probe()).await;
        let writable = matches!(asked, Ok(Ok(())));
        *probed = Some((Instant::now(), writable));
        writable
    }
}

/// Whether requests can be protected now.
async fn readyz(State(admin): State<Admin>) -> Response {
    let inner = &admin.0;
    let writable = admin.store_is_writable().await;
    let stopping = *inner.stopping.borrow();
    let open = inner.engine.breaker_is_open();
    let (status, word) = match (stopping, writable && !open) {
        (true, _) => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        (false, true) => (StatusCode::OK, "ready"),
    };
    let config = inner.current.config();
    let told = inner.status.told();
    let body = json!({
        "status": word,
        "store": {
            "kind": config.store.url.scheme(),
            "level": inner.engine.store().level().as_str(),
            "writable": writable,
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
    (status, Json(body)).into_response()
}

/// A problem body of the admin API.
pub(crate) struct Refused {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let body: Value = json!({
            "type": format!("https://onlyonce.dev/errors/{}", self.code),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.code,
        });
        let mut response = (self.status, Json(body)).into_response();
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        response
    }
}

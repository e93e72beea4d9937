//! The admin API, on a listener of its own. Everything but `/healthz` and `/readyz` needs the token.

mod keys;
mod stats;
mod view;

use std::{sync::Arc, time::Duration};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::{
    Json, Router,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{HeaderValue, StatusCode, header};
use metrics_exporter_prometheus::PrometheusHandle;
use onlyonce::Engine;
use onlyonce_core::RecordId;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{config::Config, edge::Edge};

/// The largest body of an admin request, in bytes: a response that an operator resolves with.
const MAX_BODY: usize = 4 << 20;

/// What the admin API works on.
#[derive(Clone)]
pub(crate) struct Admin(Arc<Inner>);

struct Inner {
    config: Arc<Config>,
    engine: Engine,
    edge: Arc<Edge>,
    metrics: PrometheusHandle,
    token: Option<String>,
    readonly_token: Option<String>,
}

impl Admin {
    /// The admin API of this gateway; its tokens come from the environment.
    pub(crate) fn new(
        config: Arc<Config>,
        engine: Engine,
        edge: Arc<Edge>,
        metrics: PrometheusHandle,
    ) -> Self {
        let from = |name: &str| std::env::var(name).ok().filter(|token| !token.is_empty());
        let token = from(&config.admin.token_env);
        let readonly_token = config.admin.readonly_token_env.as_deref().and_then(from);
        stats::declare();
        Self(Arc::new(Inner {
            config,
            engine,
            edge,
            metrics,
            token,
            readonly_token,
        }))
    }

    /// Whether anybody can get in.
    pub(crate) fn has_token(&self) -> bool {
        self.0.token.is_some()
    }
}

/// Serves the admin API for as long as the process lives.
pub(crate) async fn serve(admin: Admin, listener: TcpListener) {
    let guarded = Router::new()
        .route("/idempotency", get(stats::routes))
        .route("/idempotency/keys", get(keys::list))
        .route(
            "/idempotency/keys/{id}",
            get(keys::show).delete(keys::forget),
        )
        .route("/idempotency/keys/{id}/resolve", post(keys::resolve))
        .route("/idempotency/keys/{id}/extend", post(keys::extend))
        .route("/audit", get(keys::audit))
        .route("/metrics", get(stats::metrics))
        .fallback(async || {
            Refused::new(StatusCode::NOT_FOUND, "not_found", "There is nothing here.")
        })
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(admin.clone(), authorize));
    let app = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .merge(guarded)
        .layer(middleware::from_fn(no_store))
        .with_state(admin);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the admin listener ended");
    }
}

async fn no_store(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
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
    if inner.config.admin.public_metrics && request.uri().path() == "/metrics" {
        return next.run(request).await;
    }
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
        .unwrap_or_default();
    let is = |token: &Option<String>| {
        token
            .as_ref()
            .is_some_and(|token| verify_slices_are_equal(given, token.as_bytes()).is_ok())
    };
    if is(&inner.token) {
        return next.run(request).await;
    }
    if is(&inner.readonly_token) {
        if request.method().is_safe() {
            return next.run(request).await;
        }
        let detail = "This token may only look. Nothing was changed.";
        return Refused::new(StatusCode::FORBIDDEN, "forbidden", detail).into_response();
    }
    let detail = match inner.token {
        Some(_) => "Send the admin token as `Authorization: Bearer TOKEN`.",
        None => "No admin token is configured, so nobody gets in.",
    };
    let mut response =
        Refused::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail).into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Whether requests can be protected now.
async fn readyz(State(admin): State<Admin>) -> Response {
    let inner = &admin.0;
    let ask = inner.engine.store().lookup(RecordId([0; 16]));
    let timeout = inner.config.store.timeout.min(Duration::from_secs(5));
    let reachable = matches!(tokio::time::timeout(timeout, ask).await, Ok(Ok(_)));
    let status = if reachable {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json!({
        "status": if reachable { "ready" } else { "unavailable" },
        "store": {
            "kind": inner.config.store.url.scheme(),
            "level": inner.engine.store().level().as_str(),
            "reachable": reachable,
        },
        "protected_routes": inner.config.protected().count(),
        "routes": inner.config.routes.len(),
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

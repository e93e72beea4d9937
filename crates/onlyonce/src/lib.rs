//! Idempotency keys for any HTTP service.
//!
//! A client that times out cannot know whether its request ran. With this crate the request carries an
//! `Idempotency-Key`: the first request runs, and every retry gets its answer, byte for byte. If the outcome
//! cannot be known, the client is told so, and nothing runs again.
//!
//! # An axum application
//!
//! ```toml
//! [dependencies]
//! onlyonce = { version = "0.1", features = ["axum", "sqlite"] }
//! axum = "0.8"
//! tokio = { version = "1", features = ["macros", "net", "rt-multi-thread"] }
//! ```
//!
//! ```no_run
//! use std::path::Path;
//!
//! use axum::{
//!     Router,
//!     extract::Request,
//!     http::{StatusCode, header::AUTHORIZATION, request::Parts},
//!     middleware::{self, Next},
//!     response::{IntoResponse, Response},
//!     routing::post,
//! };
//! use onlyonce::{IdempotencyLayer, Identity, Pace, Policy, Workers};
//! use onlyonce::{policy::Enforce, store::SqliteStore};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let once = IdempotencyLayer::builder(SqliteStore::open(Path::new("payments.db"))?)
//!         .route("payments")
//!         .policy(Policy::builder().enforce(Enforce::On).build())
//!         .identify(|request: &Parts| {
//!             let client = request.extensions.get::<ClientId>()?;
//!             Some(Identity::client(&client.0))
//!         })
//!         .build();
//!     // Keeps keys from being stuck or kept for ever, until it is dropped.
//!     let workers = Workers::start(once.engine(), Pace::default());
//!
//!     let app = Router::new()
//!         .route("/payments", post(pay))
//!         .layer(once.clone())
//!         // The last layer is the outermost: requests are authenticated first.
//!         .layer(middleware::from_fn(authenticate));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).await?;
//!
//!     // Executions whose clients have left are waited for too.
//!     once.engine().idle().await;
//!     workers.shutdown().await;
//!     Ok(())
//! }
//!
//! /// Runs once for each key of a client, and knows nothing of it.
//! async fn pay(body: String) -> (StatusCode, String) {
//!     (StatusCode::CREATED, format!("paid {body}"))
//! }
//!
//! /// Who asks, as the authentication found out.
//! #[derive(Clone)]
//! struct ClientId(String);
//!
//! /// Stands for your authentication: the bearer token is the client's name.
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     let token = request.headers().get(AUTHORIZATION);
//!     let client = token.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
//!     let Some(client) = client.map(|name| ClientId(name.to_owned())) else {
//!         return StatusCode::UNAUTHORIZED.into_response();
//!     };
//!     request.extensions_mut().insert(client);
//!     next.run(request).await
//! }
//! ```
//!
//! ```sh
//! curl -i localhost:3000/payments -H 'Authorization: Bearer ada' \
//!      -H 'Idempotency-Key: order-1' -d 1000      # twice: the second is a replay
//! ```
//!
//! # The parts
//!
//! - [`IdempotencyLayer`] is a Tower layer for any `http::Request`/`http::Response` service: axum, hyper, or
//!   your own. [`Policy`] holds the rules for its keys, [`Identity`] says which client owns them.
//! - [`store`] has the stores: one in memory, and each database behind a feature.
//! - [`Workers`] runs the background loops. Start them once per process and store.
//! - [`Engine`] is the basis of both: it asks the pure state machine of [`onlyonce_core`] and writes to a
//!   [`Store`](store::Store). Several layers share one.
//! - [`Transactions`] commits a key with the handler's own writes; [`Phases`], [`outbox`] and [`inbox`] build
//!   on it.
//!
//! A handler needs to know nothing of this. A handler that wants to say more about what happened puts an
//! [`Outcome`] into its response's extensions, or fails with [`NotSent`].
//!
//! # Features
//!
//! No feature is on by default, and each brings only what it names.
//!
//! - `sqlite`, `postgres`, `mysql`, `redis`, `dynamodb`: the store of that name
//! - `axum`: [`Reservation`] as an extractor, [`Answer`] and [`RunError`] as responses. The layer itself needs
//!   no feature.
//! - `otlp`: spans that carry OpenTelemetry context
//!
//! Deliberately absent: listeners, configuration files and a CLI. They are in the gateway.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations)]

mod at_once;
pub mod audit;
#[cfg(feature = "axum")]
mod axum;
pub mod engine;
pub mod inbox;
pub mod outbox;
pub mod phases;
pub mod reconcile;
pub mod shadow;
pub mod stats;
pub mod store;
pub mod trace;
pub mod transaction;
pub mod worker;

// Internal to this workspace; the public items are re-exported below.
#[doc(hidden)]
pub mod body;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod key_status;
#[doc(hidden)]
pub mod layer;
#[doc(hidden)]
pub mod limits;
mod problem;
#[doc(hidden)]
pub mod rfc3339;
mod seam;
mod spool;

pub use body::{Body, BoxError};
pub use engine::{Engine, EngineOptions, known_store::loss_accepted};
pub use layer::{
    IdempotencyLayer, IdempotencyLayerBuilder, IdempotencyService, Identify, Identity,
};
pub use limits::{ConnectionId, Limited, Presence};
pub use onlyonce_core::{
    Key, KeyError, KeyRules, Policy, PolicyBuilder, Record, Scope, State, StoredResponse,
    Timestamp,
    fingerprint::{BodyMode, Pointer},
    policy,
    record::{Evidence, StoredBody},
};
pub use phases::Phases;
pub use problem::Problem;
pub use seam::{
    DispatchGuard, EndedByClose, FirstByteWithin, GuardFailed, NotSent, Outcome, Reservation,
    find_not_sent,
};
pub use spool::Spool;
pub use transaction::{Answer, DeferredWork, Operation, Ran, RunError, Transactions};
pub use worker::{LoopReport, Pace, Workers};

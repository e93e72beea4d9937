//! Idempotency keys for any HTTP service.
//!
//! A client that times out cannot know whether its request ran. With this crate the request carries
//! an `Idempotency-Key`; the first one runs, every retry gets the first answer, byte for byte.
//!
//! - [`IdempotencyLayer`] is a Tower layer for any `http::Request`/`http::Response` service.
//! - [`Engine`] is what it stands on: it asks the pure state machine of [`onlyonce_core`] and writes
//!   to a [`Store`](onlyonce_store::Store).
//! - [`worker`] holds the background loops that keep keys from being stuck or kept for ever. Start
//!   them once for each process with [`Workers::start`].
//!
//! A handler needs to know nothing of this. One that wants to say more about what happened puts an
//! [`Outcome`] into its response's extensions.
//!
//! Deliberately absent: listeners, configuration files and a CLI. Those are in the gateway.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod at_once;
pub mod audit;
#[cfg(feature = "axum")]
mod axum;
pub mod body;
pub mod clock;
pub mod engine;
pub mod inbox;
pub mod key_status;
pub mod layer;
pub mod limits;
pub mod outbox;
pub mod phases;
pub mod problem;
pub mod reconcile;
pub mod rfc3339;
pub mod seam;
pub mod shadow;
pub mod spool;
pub mod stats;
pub mod store;
pub mod trace;
pub mod transaction;
pub mod worker;

pub use body::{Body, BoxError};
pub use engine::{Engine, EngineOptions};
pub use layer::{IdempotencyLayer, IdempotencyService, Identify, Identity};
pub use limits::{ConnectionId, Presence};
pub use onlyonce_core::{
    Key, KeyError, KeyRules, Policy, PolicyBuilder, Record, Scope, State, StoredResponse,
    Timestamp, policy,
};
pub use phases::Phases;
pub use problem::Problem;
pub use seam::{
    DispatchGuard, EndedByClose, FirstByteWithin, GuardFailed, NotSent, Outcome, Reservation,
};
pub use spool::Spool;
pub use transaction::{Answer, DeferredWork, Operation, Ran, RunError, Transactions};
pub use worker::{Pace, Workers};

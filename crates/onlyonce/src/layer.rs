//! The Tower layer: HTTP on one side, the engine on the other, and nothing else.
//!
//! ```text
//! request -> key? -> whose? -> whole body -> reserve -> inner service -> durable -> answer
//! ```
//!
//! Once the body has arrived, the execution runs to its end: a client that hangs up only stops watching.

mod builder;
mod capture;
mod execute;
mod headers;
mod hop;
mod identity;
mod judge;
mod pipe;
mod preparation;
mod reply;
mod request;
mod seen_through;
mod service;
mod shadow;
mod trailers;

use std::{fmt, sync::Arc};

use onlyonce_core::Policy;

pub use builder::IdempotencyLayerBuilder;
pub use headers::{preferred_wait, remembered, strip_lookalikes};
pub use hop::{keep_end_to_end, strip_hop_by_hop, wanted_upgrade};
pub use identity::{Identify, Identity};
pub use service::IdempotencyService;
pub use trailers::NotInTrailers;

use crate::{
    engine::{Engine, Unavailable},
    shadow::Observations,
    stats::RouteStats,
};
use preparation::Preparation;

/// Everything that the services of one layer share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) policy: Arc<Policy>,
    pub(crate) route: Arc<str>,
    pub(crate) identify: Arc<dyn Identify>,
    pub(crate) stats: Arc<RouteStats>,
    pub(crate) observations: Option<Arc<Observations>>,
    preparation: Arc<Preparation>,
}

impl Shared {
    /// Whether the store has what requests of this layer need; the first request provides it.
    fn is_prepared(&self) -> bool {
        self.preparation.is_done()
    }

    async fn prepare(&self) -> Result<(), Unavailable> {
        let Self { engine, route, .. } = self;
        // The layer's own preparation, not that of a copy with another route's times.
        self.preparation.ensure(engine, route).await
    }
}

/// A [`tower_layer::Layer`] that executes each keyed request once.
///
/// A layer is a plain value: making one neither waits nor starts anything. What the store has to know of its
/// policy is written when the first request with a key arrives, once for all clones. While the store cannot
/// take it, such requests are refused as during any outage of the store, and the next request tries again.
/// [`prepare`](Self::prepare) writes it beforehand.
///
/// ```
/// use axum::{Router, http::request::Parts, routing::post};
/// use onlyonce::{IdempotencyLayer, Identity, store::MemoryStore};
///
/// #[derive(Clone)]
/// struct ClientId(String); // put into the extensions by your authentication
///
/// let once = IdempotencyLayer::builder(MemoryStore::new())
///     .route("payments")
///     .identify(|request: &Parts| {
///         let client = request.extensions.get::<ClientId>()?;
///         Some(Identity::client(&client.0))
///     })
///     .build();
/// let app: Router = Router::new().route("/payments", post(|| async { "paid" })).layer(once);
/// # drop(app);
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Shared>);

impl IdempotencyLayer {
    /// Begins a layer on a store, or on an [`Engine`] that several layers share.
    ///
    /// There is one engine per store: give the second layer on a store a clone of the first layer's
    /// [`engine`](Self::engine), and another [`route`](IdempotencyLayerBuilder::route).
    pub fn builder(engine: impl Into<Engine>) -> IdempotencyLayerBuilder {
        IdempotencyLayerBuilder::new(engine.into())
    }

    /// A layer that replaces this one under another policy and continues its counts. Running requests are
    /// finished by the layer that they began with. Recipes are kept, so that a retry is compared as its first
    /// request was.
    #[must_use]
    pub fn successor(&self, policy: Policy, identify: impl Identify) -> Self {
        let Shared {
            engine,
            route,
            stats,
            observations,
            ..
        } = &*self.0;
        let (engine, route, stats) = (engine.clone(), route.clone(), stats.clone());
        Self::made(engine, route, policy, identify, stats, observations.clone())
    }

    fn made(
        engine: Engine,
        route: Arc<str>,
        policy: Policy,
        identify: impl Identify,
        stats: Arc<RouteStats>,
        observations: Option<Arc<Observations>>,
    ) -> Self {
        let policy = engine.fitted(policy);
        // Now, and not with the first request: the background loops examine older keys before that. They
        // never follow a policy under which no request is executed.
        if policy.not_positive().is_none() {
            engine.set_policy(route.clone(), policy.clone());
        }
        let observations = policy
            .shadow
            .then(|| observations.unwrap_or_else(|| Arc::new(Observations::new(&route))));
        Self(Arc::new(Shared {
            engine,
            preparation: Arc::new(Preparation::new(policy.clone())),
            policy,
            route,
            identify: Arc::new(identify),
            stats,
            observations,
        }))
    }

    /// Stores what requests of this layer need, now instead of with the first request. An application that
    /// should not start without its store calls this before it listens.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep it, or if a duration of the policy that must be positive is
    /// not.
    pub async fn prepare(&self) -> Result<(), Unavailable> {
        self.0.prepare().await
    }

    /// The engine, for the background loops, for operators and for further layers on the same store.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The route's name in records and metrics.
    pub fn route(&self) -> &str {
        &self.0.route
    }

    /// Makes the policy of this layer the one that background loops and operators follow, as making the layer
    /// did.
    #[doc(hidden)]
    pub fn policy_is_in_effect(&self) {
        let Shared { route, policy, .. } = &*self.0;
        self.0.engine.set_policy(route.clone(), policy.clone());
    }

    /// This layer in front of a handler with the timeouts of another policy: only `timeout` and
    /// `max_execution` differ. The background loops keep the timeouts that this layer was made with.
    #[doc(hidden)]
    #[must_use]
    pub fn timed_as(&self, other: &Policy) -> Self {
        let mut shared = Shared::clone(&self.0);
        let policy = Arc::make_mut(&mut shared.policy);
        policy.timeout = other.timeout;
        policy.max_execution = other.max_execution;
        Self(Arc::new(shared))
    }

    /// The layer's counters.
    pub fn stats(&self) -> &Arc<RouteStats> {
        &self.0.stats
    }

    /// The layer's observations, in shadow mode.
    pub fn observations(&self) -> Option<&Observations> {
        self.0.observations.as_deref()
    }

    /// The layer's policy.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.0.policy
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("route", &self.0.route)
            .field("policy", &self.0.policy)
            .finish_non_exhaustive()
    }
}

impl<S> tower_layer::Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(self.0.clone(), inner)
    }
}

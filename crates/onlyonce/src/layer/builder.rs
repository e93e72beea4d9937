//! How a layer is put together. Nothing here waits, and nothing is started.

use std::{fmt, sync::Arc};

use onlyonce_core::Policy;

use super::{IdempotencyLayer, Identify};
use crate::{engine::Engine, stats::RouteStats};

/// The route of a layer that was given none.
const DEFAULT_ROUTE: &str = "default";

/// Makes an [`IdempotencyLayer`]; begun by [`IdempotencyLayer::builder`].
///
/// The layer can be built once it knows [whose request it is](Self::identify). Everything else has a
/// default.
#[must_use = "a layer is made by `build`"]
#[derive(Clone)]
pub struct IdempotencyLayerBuilder<I = ()> {
    engine: Engine,
    route: Arc<str>,
    policy: Policy,
    identify: I,
}

impl IdempotencyLayerBuilder {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            route: DEFAULT_ROUTE.into(),
            policy: Policy::default(),
            identify: (),
        }
    }
}

impl<I> IdempotencyLayerBuilder<I> {
    /// The name of its requests in records and metrics; `default` unless said otherwise. Give layers with
    /// different policies different names: the background loops find a key's policy by this name.
    pub fn route(mut self, route: &str) -> Self {
        self.route = route.into();
        self
    }

    /// The rules for its keys; [`Policy::default`] unless said otherwise.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Whose request it is, from what an authenticating layer left in the request's extensions. Never from
    /// a header that a client can choose.
    pub fn identify<J: Identify>(self, identify: J) -> IdempotencyLayerBuilder<J> {
        IdempotencyLayerBuilder {
            engine: self.engine,
            route: self.route,
            policy: self.policy,
            identify,
        }
    }
}

impl<I: Identify> IdempotencyLayerBuilder<I> {
    /// The layer.
    pub fn build(self) -> IdempotencyLayer {
        let Self {
            engine,
            route,
            policy,
            identify,
        } = self;
        let stats = Arc::new(RouteStats::new(&route));
        IdempotencyLayer::made(engine, route, policy, identify, stats, None)
    }
}

impl<I> fmt::Debug for IdempotencyLayerBuilder<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayerBuilder")
            .field("route", &self.route)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

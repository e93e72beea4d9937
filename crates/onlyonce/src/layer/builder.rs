//! Builds a layer. Nothing here waits, and nothing is started.

use std::{fmt, sync::Arc};

use onlyonce_core::Policy;

use super::{IdempotencyLayer, Identify};
use crate::{engine::Engine, stats::RouteStats};

/// The default route.
const DEFAULT_ROUTE: &str = "default";

/// Builds an [`IdempotencyLayer`]; see [`IdempotencyLayer::builder`].
///
/// [`identify`](Self::identify) is required before the layer can be built. Everything else has a default.
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
    /// The route's name in records and metrics; `default` by default. Give layers with different policies
    /// different names: the background loops find a key's policy by this name.
    pub fn route(mut self, route: &str) -> Self {
        self.route = route.into();
        self
    }

    /// The rules for its keys; [`Policy::default`] by default.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Identifies the client by what an authenticating layer put into the request's extensions. Never use a
    /// header that a client can choose.
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
    /// Builds the layer.
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

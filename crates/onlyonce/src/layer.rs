//! The Tower layer: HTTP on one side, the engine on the other, and nothing else.
//!
//! ```text
//! request -> key? -> whose? -> whole body -> reserve -> inner service -> durable -> answer
//! ```
//!
//! From the moment the body has arrived, everything is seen through to its end: a client that hangs
//! up only stops watching.

mod capture;
mod execute;
mod headers;
mod hop;
mod pipe;
mod reply;
mod seen_through;
mod service;
mod shadow;

use std::sync::Arc;

use http::request::Parts;
use onlyonce_core::{CallerMark, Policy, Record, Scope, Secret, record::MarkedBy};

pub use headers::{remembered, strip_lookalikes};
pub use hop::{keep_credentials, strip_hop_by_hop, wanted_upgrade};
pub use service::IdempotencyService;

use crate::{
    engine::{Engine, Marks, Unavailable},
    limits::Client,
    shadow::Observations,
    stats::RouteStats,
};

/// Whose request it is.
#[derive(Clone)]
pub struct Identity {
    /// The namespace of its key.
    pub scope: Scope,
    /// What tells callers apart where they share the scope.
    caller: Option<Vec<Vec<u8>>>,
    /// What tells them apart where that is empty.
    cookies: Vec<Vec<u8>>,
    /// The id of an authenticated client.
    client: Option<Arc<str>>,
}

impl std::fmt::Debug for Identity {
    /// Without what tells callers apart, which may be a credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// An authenticated client with a namespace of its own.
    pub fn client(id: &str) -> Self {
        Self {
            scope: Scope::client(id),
            caller: None,
            cookies: Vec::new(),
            client: Some(id.into()),
        }
    }

    /// An authenticated client that has a namespace of its own on each route.
    pub fn client_of_route(route: &str, id: &str) -> Self {
        Self {
            scope: Scope::route(route, Some(id)),
            caller: None,
            cookies: Vec::new(),
            client: Some(id.into()),
        }
    }

    /// A caller in a scope that others use as well. Whoever uses the same key with other `caller`
    /// bytes is refused; the bytes themselves are kept as a keyed hash only.
    pub fn shared(scope: Scope, caller: Vec<Vec<u8>>) -> Self {
        Self {
            scope,
            caller: Some(caller),
            cookies: Vec::new(),
            client: None,
        }
    }

    /// The same caller, which sent these cookies of a session: they tell callers apart that send no
    /// credential. A record remembers which of the two its caller was told by, and a retry is compared
    /// in that way.
    #[must_use]
    pub fn with_cookies(self, cookies: Vec<Vec<u8>>) -> Self {
        Self { cookies, ..self }
    }

    /// The name of an authenticated client.
    pub(crate) fn name(&self) -> Option<&Arc<str>> {
        self.client.as_ref()
    }

    /// The id of an authenticated client, as limits know it.
    pub(crate) fn client_id(&self) -> Option<Client> {
        self.client.clone().map(Client::Named)
    }

    /// Whose share of what is limited its requests take: the client's, or what tells callers apart.
    pub fn limited_as(&self, secret: &Secret) -> Client {
        match &self.client {
            Some(id) => Client::Named(id.clone()),
            None => Client::Marked(self.mark(secret)),
        }
    }

    /// The mark of the caller for a new record, where callers share the scope.
    pub fn mark(&self, secret: &Secret) -> Option<CallerMark> {
        match self.marked_by() {
            MarkedBy::Credentials => self.by_credentials(secret),
            MarkedBy::Cookies => self.by_cookies(secret),
        }
    }

    /// Whether `record` remembers this caller, by a mark made in the record's own way.
    pub fn is_caller_of(&self, record: &Record, secret: &Secret) -> bool {
        let mark = match record.notes.marked_by {
            MarkedBy::Credentials => self.by_credentials(secret),
            MarkedBy::Cookies => self.by_cookies(secret),
        };
        record.scope == self.scope && record.caller == mark
    }

    /// The caller's marks, from what `engine` has at hand where nothing tells callers apart.
    pub(crate) fn marks(&self, engine: &Engine) -> Marks {
        let credentials = match &self.caller {
            Some(parts) if parts.is_empty() => Some(engine.derived(&self.scope).nobody),
            _ => self.by_credentials(engine.secret()),
        };
        let cookies = self.by_cookies(engine.secret());
        let marked_by = self.marked_by();
        let (mark, other) = match marked_by {
            MarkedBy::Credentials => (credentials, cookies),
            MarkedBy::Cookies => (cookies, credentials),
        };
        Marks {
            mark,
            marked_by,
            other,
        }
    }

    fn marked_by(&self) -> MarkedBy {
        let sends_credential = self.caller.as_ref().is_none_or(|parts| !parts.is_empty());
        match sends_credential || self.cookies.is_empty() {
            true => MarkedBy::Credentials,
            false => MarkedBy::Cookies,
        }
    }

    fn by_credentials(&self, secret: &Secret) -> Option<CallerMark> {
        self.caller.as_ref().map(|parts| self.hashed(secret, parts))
    }

    fn by_cookies(&self, secret: &Secret) -> Option<CallerMark> {
        let shared = self.caller.is_some() && !self.cookies.is_empty();
        shared.then(|| self.hashed(secret, &self.cookies))
    }

    fn hashed(&self, secret: &Secret, parts: &[Vec<u8>]) -> CallerMark {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        secret.caller_mark(self.scope.as_str(), &parts)
    }
}

/// Finds out whose request it is. `None` refuses it.
pub trait Identify: Send + Sync + 'static {
    /// The identity, from what an authenticating layer left in the request's extensions. Never from
    /// a header that a client can choose.
    fn identify(&self, request: &Parts) -> Option<Identity>;
}

impl<F> Identify for F
where
    F: Fn(&Parts) -> Option<Identity> + Send + Sync + 'static,
{
    fn identify(&self, request: &Parts) -> Option<Identity> {
        self(request)
    }
}

/// Everything that the services of one layer share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) policy: Arc<Policy>,
    pub(crate) route: Arc<str>,
    pub(crate) identify: Arc<dyn Identify>,
    pub(crate) stats: Arc<RouteStats>,
    pub(crate) observations: Option<Arc<Observations>>,
}

/// A [`tower_layer::Layer`] that executes each keyed request once.
///
/// ```
/// # use std::sync::Arc;
/// # use axum::{Router, routing::post};
/// # use onlyonce::{Engine, EngineOptions, Identity, IdempotencyLayer, Policy};
/// # use onlyonce_store::memory::MemoryStore;
/// #[derive(Clone)]
/// struct ClientId(String); // put into the extensions by your authentication
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::start(Arc::new(MemoryStore::new()), EngineOptions::default());
/// let layer = IdempotencyLayer::new(engine, "payments", Policy::default(), |request: &http::request::Parts| {
///     let client = request.extensions.get::<ClientId>()?;
///     Some(Identity::client(&client.0))
/// })
/// .await?;
/// let app: Router = Router::new().route("/payments", post(|| async { "paid" })).layer(layer);
/// # drop(app);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer(Arc<Shared>);

impl IdempotencyLayer {
    /// A layer for the requests of `route` under `policy`.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep the policy's recipe.
    pub async fn new(
        engine: Engine,
        route: &str,
        policy: Policy,
        identify: impl Identify,
    ) -> Result<Self, Unavailable> {
        let stats = Arc::new(RouteStats::new(route));
        Self::made(engine, route.into(), policy, identify, stats, None).await
    }

    /// A layer that takes the place of this one under another policy, and counts on from it. Requests
    /// that are under way are finished by the layer that they began with; recipes are kept, so that a
    /// retry is compared as its first request was.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn successor(
        &self,
        policy: Policy,
        identify: impl Identify,
    ) -> Result<Self, Unavailable> {
        let Shared {
            engine,
            route,
            stats,
            observations,
            ..
        } = &*self.0;
        let (engine, route, stats) = (engine.clone(), route.clone(), stats.clone());
        Self::made(engine, route, policy, identify, stats, observations.clone()).await
    }

    async fn made(
        engine: Engine,
        route: Arc<str>,
        policy: Policy,
        identify: impl Identify,
        stats: Arc<RouteStats>,
        observations: Option<Arc<Observations>>,
    ) -> Result<Self, Unavailable> {
        let policy = Arc::new(policy);
        engine.recall_time().await.map_err(Unavailable)?;
        engine.keep_recipe(&policy.recipe).await?;
        engine.keep_policy(&route, &policy).await?;
        engine.set_policy(route.clone(), policy.clone());
        let observations = policy
            .shadow
            .then(|| observations.unwrap_or_else(|| Arc::new(Observations::new(&route))));
        let identify = Arc::new(identify);
        Ok(Self(Arc::new(Shared {
            engine,
            policy,
            route,
            identify,
            stats,
            observations,
        })))
    }

    /// Makes the policy of this layer the one that background loops and operators follow, as it was
    /// when the layer was made.
    pub fn policy_is_in_effect(&self) {
        let Shared { route, policy, .. } = &*self.0;
        self.0.engine.set_policy(route.clone(), policy.clone());
    }

    /// This layer before a handler that has the times of another policy: only how long its answers may
    /// take is different. The background loops go on with the times that this one was made with.
    #[must_use]
    pub fn timed_as(&self, other: &Policy) -> Self {
        let mut shared = Shared::clone(&self.0);
        shared.policy = Arc::new(Policy {
            timeout: other.timeout,
            max_execution: other.max_execution,
            ..Policy::clone(&shared.policy)
        });
        Self(Arc::new(shared))
    }

    /// What the layer has counted.
    pub fn stats(&self) -> &Arc<RouteStats> {
        &self.0.stats
    }

    /// What it has observed, in shadow mode.
    pub fn observations(&self) -> Option<&Observations> {
        self.0.observations.as_deref()
    }

    /// The policy it follows.
    pub fn policy(&self) -> &Arc<Policy> {
        &self.0.policy
    }
}

impl<S> tower_layer::Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(self.0.clone(), inner)
    }
}

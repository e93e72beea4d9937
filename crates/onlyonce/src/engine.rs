//! The only caller of both the machine and the store. Every change to a key goes through `transition`, the
//! one loop that loads, applies and swaps.
//!
//! The engine knows nothing of HTTP beyond the values in a stored response. It holds no locks across an
//! await, and dropping a future undoes nothing: the caller that starts an attempt must see it through, which
//! the layer does in a separate task.

mod admit;
mod arrival;
mod attempt;
mod attempt_ids;
mod breaker;
pub(crate) mod drive;
pub(crate) mod known_store;
mod near;
mod operate;
mod recipes;
mod reconcile;
mod resume;
mod retries;
mod room;
mod scopes;
pub(crate) mod store_clock;
mod timed_store;
pub(crate) mod transition;
mod wait;
mod waiters;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{
    AttemptId, CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, ScopeHasher, Secret,
    Timestamp,
    machine::{self, Admission, Refusal, Write},
    outbox::TargetRules,
    policy::OnInFlight,
    record::StoredResponse,
};
use onlyonce_store::{Reply, Store, StoreError};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

pub use crate::clock::Clock;
pub use arrival::{Arrival, Marks};
pub use attempt::{Attempt, Ended, Kept};
pub use attempt_ids::AttemptIds;
pub use onlyonce_core::machine::{Began, Grounds, Resolution, Seen};
pub use operate::OperateError;
pub use reconcile::{Census, Taken};
pub use retries::{REMEMBERED_RETRIES, Retries};
pub(crate) use wait::Woken;

use crate::{
    at_once::in_time,
    limits::{BodyBudget, DEFAULT_HELD_BYTES, DetachedExecutions, Limited, Limiter},
    reconcile::Ask,
    shadow::Observatory,
    spool::Spool,
    worker::runs::Runs,
};
pub(crate) use retries::Retried;

use breaker::Breaker;
use known_store::KnownStore;
use near::{DEFAULT_BYTES as DEFAULT_NEAR_BYTES, Near};
use retries::RecentRetries;
use scopes::KnownScopes;
pub use store_clock::STEADY_FOR;
use store_clock::StoreClock;
use timed_store::TimedStore;
use waiters::Waiters;

/// Scopes whose values derived from the secret are cached.
const MAX_DERIVED: usize = 10_000;
/// Concurrent background releases of reservations that cannot be used.
const MAX_RELEASING: usize = 1_000;

/// The options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The timeout of one call to the store.
    pub store_timeout: Duration,
    /// The local clock.
    pub clock: Clock,
    /// Concurrent executions. Beyond this, a new key is answered as if the upstream had not been reached.
    pub max_executions: usize,
    /// Bytes held for clients at a time: request bodies being read or waiting to be sent, and answers waiting
    /// to be taken. Beyond this, requests are refused as `overloaded`.
    pub held_bytes: usize,
    /// Bytes of recent answers cached in memory in front of the store, so that retries need no read; zero
    /// disables the cache.
    pub near_bytes: usize,
    /// The source of attempt ids.
    pub attempt_ids: AttemptIds,
    /// The spool for results that a shared store cannot take in time.
    pub spool: Option<Spool>,
    /// How long a clock must run steadily after a jump before anything expires or is released by it. A policy
    /// whose denials need longer extends this.
    pub steady_for: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(2),
            clock: Clock::system(),
            max_executions: 10_000,
            held_bytes: DEFAULT_HELD_BYTES,
            near_bytes: DEFAULT_NEAR_BYTES,
            attempt_ids: AttemptIds::random(),
            spool: None,
            steady_for: STEADY_FOR,
        }
    }
}

/// The store could not be reached, or a record in it cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the store could not answer; nothing was sent upstream")]
pub struct Unavailable(#[source] pub StoreError);

/// What a request may do.
#[derive(Debug)]
pub enum Admitted {
    /// Execute. The attempt owns the key.
    Execute(Box<Attempt>),
    /// Replay the stored answer.
    Replay(Replay),
    /// Another attempt is running.
    InFlight(OnInFlight),
    /// Do not execute.
    Refused(Refusal),
    /// The store does not know the key, and the client may not bring a new one.
    Limited(Limited),
}

/// A stored answer, with what the client is told besides.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The answer.
    pub response: Arc<StoredResponse>,
    /// When the answer expires.
    pub expires_at: Option<Timestamp>,
    /// The generation of the key that the answer belongs to.
    pub generation: u32,
    /// How many times the key was dispatched.
    pub attempt: u32,
}

/// The engine: cheap to clone, one for each store.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    options: EngineOptions,
    waiters: Waiters,
    /// Who asks about a key, and executes nothing: all of them hear of every change.
    askers: Waiters,
    policies: RwLock<HashMap<Arc<str>, Arc<Policy>>>,
    /// The delivery rules of message targets.
    targets: RwLock<HashMap<Arc<str>, TargetRules>>,
    recipes: Mutex<HashMap<RecipeId, Arc<Recipe>>>,
    /// Provider queries that are known to find keys.
    proven: Mutex<HashSet<RecordId>>,
    running: AtomicUsize,
    /// Notified when no execution is running any more.
    idle: Notify,
    /// Values derived from the secret for recently seen scopes.
    derived: RwLock<HashMap<Scope, Derived>>,
    /// Whether a task listens to the store's wake-ups. It runs only while somebody waits, since otherwise
    /// every settlement would wake it for nothing.
    listening: Arc<AtomicBool>,
    /// Permits for executions.
    executions: Arc<Semaphore>,
    /// The budget for request and response bodies.
    body_budget: BodyBudget,
    /// Executions without a waiting client.
    detached: DetachedExecutions,
    /// Permits for background releases of reservations that cannot be used.
    releasing: Arc<Semaphore>,
    /// Per-client limits.
    limiter: Arc<Limiter>,
    /// Refuses requests while the store is failing.
    breaker: Breaker,
    /// Checks that the store is the one that is known.
    known_store: KnownStore,
    /// The provider to ask about keys that the store may have lost.
    provider: RwLock<Option<Arc<dyn Ask>>>,
    /// The store's clock, as far as it is believed.
    store_clock: Arc<StoreClock>,
    /// Set once the previous belief about the store's clock has been loaded.
    recalled: tokio::sync::OnceCell<()>,
    /// The observations of shadow mode; created when first needed.
    observatory: OnceLock<Arc<Observatory>>,
    /// When the background loops last ran.
    runs: Runs,
    /// Retries of recent keys.
    retries: RecentRetries,
    /// Scopes that the store knows.
    scopes: KnownScopes,
    /// When the engine was started, by the wall clock.
    started: Duration,
}

/// Values derived from the secret for one scope, the same for each of its requests.
#[derive(Clone)]
pub(crate) struct Derived {
    /// The fingerprint key.
    pub(crate) hasher: ScopeHasher,
    /// The mark of a caller who sent nothing to distinguish it from others.
    pub(crate) nobody: CallerMark,
}

/// Counts an execution while it lives.
pub(crate) struct Running(Engine);

impl Drop for Running {
    fn drop(&mut self) {
        let inner = &self.0.0;
        if inner.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.idle.notify_waiters();
        }
    }
}

impl<S: Store> From<S> for Engine {
    /// An engine on `store`, with the default options.
    fn from(store: S) -> Self {
        Self::start(Arc::new(store), EngineOptions::default())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine on `store`. It works in tasks of the tokio runtime in which it is used.
    pub fn start(store: Arc<dyn Store>, options: EngineOptions) -> Self {
        let waiters = Waiters::default();
        let executions = options.max_executions.min(Semaphore::MAX_PERMITS);
        let body_budget = BodyBudget::new(options.held_bytes);
        let started = options.clock.moment().since_1970();
        let store_clock = Arc::new(StoreClock::new(options.clock.clone(), options.steady_for));
        let store = Arc::new(TimedStore {
            near: Near::new(store.copies(), options.near_bytes),
            inner: store,
            clock: store_clock.clone(),
        });
        Self(Arc::new(Inner {
            store,
            options,
            waiters,
            askers: Waiters::default(),
            policies: RwLock::default(),
            targets: RwLock::default(),
            recipes: Mutex::default(),
            proven: Mutex::default(),
            running: AtomicUsize::new(0),
            idle: Notify::new(),
            derived: RwLock::default(),
            listening: Arc::default(),
            executions: Arc::new(Semaphore::new(executions)),
            body_budget,
            detached: DetachedExecutions::default(),
            releasing: Arc::new(Semaphore::new(MAX_RELEASING)),
            limiter: Arc::default(),
            breaker: Breaker::new(),
            known_store: KnownStore::default(),
            provider: RwLock::default(),
            store_clock,
            recalled: tokio::sync::OnceCell::new(),
            observatory: OnceLock::new(),
            runs: Runs::default(),
            retries: RecentRetries::default(),
            scopes: KnownScopes::default(),
            started,
        }))
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// The spool for results that the store cannot take in time.
    pub fn spool(&self) -> Option<&Spool> {
        self.0.options.spool.as_ref()
    }

    /// Sets the `provider` to ask about new keys while the store may have lost them.
    pub(crate) fn asks(&self, provider: Arc<dyn Ask>) {
        *self.0.provider.write() = Some(provider);
    }

    /// The secret of the store.
    pub fn secret(&self) -> &Secret {
        self.0.store.secret()
    }

    /// Counts an execution of this process until the value is dropped.
    pub(crate) fn running(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        Running(self.clone())
    }

    /// A permit for one more execution; `None` if there is none.
    pub(crate) fn room_to_execute(&self) -> Option<OwnedSemaphorePermit> {
        self.0.executions.clone().try_acquire_owned().ok()
    }

    /// Resolves when no execution of this process is running.
    pub async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.0.idle.notified());
            // Register before the check, so that the last execution's end is not missed.
            idle.as_mut().enable();
            if self.0.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// The values derived from the secret for `scope`.
    pub(crate) fn derived(&self, scope: &Scope) -> Derived {
        if let Some(known) = self.0.derived.read().get(scope) {
            return known.clone();
        }
        let new = Derived {
            hasher: self.secret().scope_hasher(scope.as_str()),
            nobody: self.secret().caller_mark(scope.as_str(), &[]),
        };
        let mut derived = self.0.derived.write();
        if derived.len() >= MAX_DERIVED {
            // They are derived again as needed.
            derived.clear();
        }
        derived.insert(scope.clone(), new.clone());
        new
    }

    /// The observations of shadow mode, which are kept apart from the store.
    pub(crate) fn observatory(&self) -> &Arc<Observatory> {
        let clock = &self.0.options.clock;
        self.0
            .observatory
            .get_or_init(|| Observatory::beside(self, clock.clone()))
    }

    /// Requests of this process that are waiting for another one.
    pub fn waiting(&self) -> usize {
        self.0.waiters.total()
    }

    /// Requests of this process that are waiting for the key `id`.
    pub fn waiting_for(&self, id: RecordId) -> usize {
        self.0.waiters.of(id)
    }

    /// Executions running in this process.
    pub fn executing(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// The budget of bytes held for clients.
    pub fn body_budget(&self) -> &BodyBudget {
        &self.0.body_budget
    }

    /// Executions of this process whose client has left or has already been answered.
    pub fn detached(&self) -> usize {
        self.0.detached.total()
    }

    pub(crate) fn detached_executions(&self) -> &DetachedExecutions {
        &self.0.detached
    }

    /// The run times of the background loops.
    pub(crate) fn noted_runs(&self) -> &Runs {
        &self.0.runs
    }

    /// Answers immediately if that needs neither a write nor a wait for the store.
    pub fn peek(&self, arrival: &mut Arrival, policy: &Policy) -> Option<Admitted> {
        let Reply { now, value: record } = self.0.store.peek(arrival.id())?;
        let recipe = self.known_recipe(record.recipe, policy)?;
        self.judge(&record, now, arrival, policy, &recipe)
    }

    /// The answer of `record` to `arrival`, if that needs no write.
    fn judge(
        &self,
        record: &Record,
        now: Timestamp,
        arrival: &mut Arrival,
        policy: &Policy,
        recipe: &Recipe,
    ) -> Option<Admitted> {
        if !arrival.is_about(record) {
            return None;
        }
        let request = arrival.request(AttemptId::NOBODY, recipe);
        let step = machine::apply(Some(record), &request, now, policy);
        if step.write != Write::Stay {
            return None;
        }
        match step.effect {
            Admission::InFlight(how) => Some(Admitted::InFlight(how)),
            Admission::Replay(response) => Some(Admitted::Replay(replay(response, record))),
            Admission::Refuse(refusal) => Some(Admitted::Refused(refusal)),
            Admission::Execute(_) | Admission::Lapse | Admission::Reserved | Admission::TooLate => {
                None
            }
        }
    }

    async fn bounded_read<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(self.0.options.store_timeout, call).await
    }
}

fn replay(response: Arc<StoredResponse>, record: &Record) -> Replay {
    Replay {
        response,
        expires_at: record.times.expires_at,
        generation: record.generation,
        attempt: record.fence.0,
    }
}

/// Runs `call`; after `timeout` the error is ambiguous, since the call may still take effect.
async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    in_time(timeout, call).await.unwrap_or_else(|| {
        let late = "the store did not answer in time";
        Err(StoreError::Ambiguous(late.into()))
    })
}

//! Load, ask the machine, swap, act: the only caller of both the machine and the store.
//!
//! The engine knows nothing of HTTP beyond the values in a stored response. It holds no locks across
//! an await, and nothing it does is undone by dropping a future: whoever starts an attempt must see
//! it through, which the layer does in a task of its own.

mod arrival;
mod attempt;
mod attempt_ids;
mod breaker;
pub(crate) mod known_store;
mod operate;
mod recipes;
mod reconcile;
mod resume;
mod retries;
mod room;
pub(crate) mod store_clock;
mod timed_store;
mod wait;
mod waiters;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{
    AttemptId, CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, ScopeHasher, Secret,
    Timestamp,
    machine::{self, Admission, Refusal},
    outbox::TargetRules,
    policy::OnInFlight,
    record::{Actor, Change, JournalEvent, StoredResponse},
};
use onlyonce_store::{Inserted, Reply, Store, StoreError, Swapped, failpoint};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

pub use arrival::{Arrival, Marks};
pub use attempt::{Attempt, Began, Ended, Kept};
pub use attempt_ids::AttemptIds;
pub use operate::{OperateError, Seen};
pub use reconcile::{Census, Taken};
pub use retries::{REMEMBERED_RETRIES, Retries};
pub use wait::Woken;

use crate::{
    at_once::in_time,
    clock::{Clock, Moment},
    limits::{BodyBudget, DEFAULT_HELD_BYTES, DetachedExecutions, Limited, Limiter},
    shadow::Observatory,
    spool::Spool,
    stats::Background,
    worker::runs::Runs,
};
pub(crate) use retries::Retried;

use breaker::Breaker;
use known_store::KnownStore;
use retries::RecentRetries;
use room::Made;
pub use store_clock::STEADY_FOR;
use store_clock::StoreClock;
use timed_store::TimedStore;
use waiters::Waiters;

/// Rounds of "swap, lost, look again" before a request is told that the store is unavailable.
const MAX_ROUNDS: usize = 32;
/// How much longer than its timeout the store may keep a request waiting when it has to be asked a
/// second time whether the first write happened.
const SECOND_LOOK: Duration = Duration::from_millis(500);

/// Scopes of which it is kept at hand what the secret makes of them.
const MAX_DERIVED: usize = 10_000;
/// Reservations at once that are looked after once they cannot be used.
const MAX_RELEASING: usize = 1_000;

/// How the engine talks to its store.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How long one call may take.
    pub store_timeout: Duration,
    /// Local time.
    pub clock: Clock,
    /// Executions at once. Beyond it a new key is told that the upstream was not reached.
    pub max_executions: usize,
    /// Bytes that are held for clients at once: request bodies that are read or wait to be sent, and
    /// answers that wait to be taken. Beyond it requests are refused as `overloaded`.
    pub held_bytes: usize,
    /// Where the ids of new attempts come from.
    pub attempt_ids: AttemptIds,
    /// Where results are kept that a shared store cannot take in time.
    pub spool: Option<Spool>,
    /// How long a clock must go steadily after a jump before anything expires or is released by it. A
    /// policy whose denials wait for longer makes it longer.
    pub steady_for: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            store_timeout: Duration::from_secs(2),
            clock: Clock::system(),
            max_executions: 10_000,
            held_bytes: DEFAULT_HELD_BYTES,
            attempt_ids: AttemptIds::random(),
            spool: None,
            steady_for: STEADY_FOR,
        }
    }
}

/// The store could not be asked, or what it holds cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the store could not answer; nothing was sent upstream")]
pub struct Unavailable(#[source] pub StoreError);

/// What a request may do.
#[derive(Debug)]
pub enum Admitted {
    /// Execute. The attempt owns the key.
    Execute(Box<Attempt>),
    /// Answer with what is stored.
    Replay(Replay),
    /// Another attempt is running.
    InFlight(OnInFlight),
    /// No.
    Refused(Refusal),
    /// The key is not known, and its client may not bring a new one.
    Limited(Limited),
}

/// A stored answer and what a client is told beside it.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The answer.
    pub response: Arc<StoredResponse>,
    /// Until when it is kept.
    pub expires_at: Option<Timestamp>,
    /// Which life of the key it is from.
    pub generation: u32,
    /// How many times the key had been dispatched.
    pub attempt: u32,
}

/// The engine: cheap to clone, one for each store.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    options: EngineOptions,
    waiters: Waiters,
    policies: RwLock<HashMap<Arc<str>, Arc<Policy>>>,
    /// What is agreed with the receivers of messages.
    targets: RwLock<HashMap<Arc<str>, TargetRules>>,
    recipes: Mutex<HashMap<RecipeId, Arc<Recipe>>>,
    /// Questions to providers that have been seen to find a key.
    proven: Mutex<HashSet<RecordId>>,
    running: AtomicUsize,
    /// Tells whoever waits for it that nothing is running any more.
    idle: Notify,
    /// Of scopes seen lately.
    derived: RwLock<HashMap<Scope, Derived>>,
    /// Whether a task listens to the store's wake-ups: only while somebody waits, since otherwise
    /// every settlement would wake it for nothing.
    listening: Arc<AtomicBool>,
    /// Room for executions.
    executions: Arc<Semaphore>,
    /// Room for the bodies of requests and answers.
    body_budget: BodyBudget,
    /// Executions that nobody waits for.
    detached: DetachedExecutions,
    /// Room for reservations that are looked after once they cannot be used.
    releasing: Arc<Semaphore>,
    /// What each client has taken of its share.
    limiter: Arc<Limiter>,
    /// Whether the store is worth asking.
    breaker: Breaker,
    /// Whether the store is the one that is known.
    known_store: KnownStore,
    /// What is believed of its clock.
    store_clock: Arc<StoreClock>,
    /// Whether it has been recalled what was believed before.
    recalled: tokio::sync::OnceCell<()>,
    /// Where shadow mode keeps what it observes; made when it is first needed.
    observatory: OnceLock<Arc<Observatory>>,
    /// When the background loops last came round.
    runs: Runs,
    /// Retries of recent keys.
    retries: RecentRetries,
    /// When the engine was started, by the wall clock.
    started: Duration,
}

/// What the secret makes of a scope: the same for each of its requests.
#[derive(Clone)]
pub(crate) struct Derived {
    /// The fingerprint key.
    pub(crate) hasher: ScopeHasher,
    /// The mark of a caller that nothing tells apart from others.
    pub(crate) nobody: CallerMark,
}

/// Counts an execution for as long as it lives.
pub(crate) struct Running(Engine);

impl Drop for Running {
    fn drop(&mut self) {
        let inner = &self.0.0;
        if inner.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            inner.idle.notify_waiters();
        }
    }
}

impl Engine {
    /// An engine on `store`. Its work is done in tasks of the tokio runtime that it is used in.
    pub fn start(store: Arc<dyn Store>, options: EngineOptions) -> Self {
        let waiters = Waiters::default();
        let executions = options.max_executions.min(Semaphore::MAX_PERMITS);
        let body_budget = BodyBudget::new(options.held_bytes);
        let started = options.clock.moment().since_1970();
        let store_clock = Arc::new(StoreClock::new(options.clock.clone(), options.steady_for));
        let store = Arc::new(TimedStore {
            inner: store,
            clock: store_clock.clone(),
        });
        Self(Arc::new(Inner {
            store,
            options,
            waiters,
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
            store_clock,
            recalled: tokio::sync::OnceCell::new(),
            observatory: OnceLock::new(),
            runs: Runs::default(),
            retries: RecentRetries::default(),
            started,
        }))
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Where results are kept that the store cannot take in time.
    pub fn spool(&self) -> Option<&Spool> {
        self.0.options.spool.as_ref()
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

    /// Room for one more execution, or `None` where there is none.
    pub(crate) fn room_to_execute(&self) -> Option<OwnedSemaphorePermit> {
        self.0.executions.clone().try_acquire_owned().ok()
    }

    /// Resolves when no execution of this process is under way.
    pub async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.0.idle.notified());
            // Listening before looking, so that the last one to end is not missed.
            idle.as_mut().enable();
            if self.0.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// What is derived from the secret for `scope`.
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
            // They are made anew as they are needed.
            derived.clear();
        }
        derived.insert(scope.clone(), new.clone());
        new
    }

    /// Where shadow mode keeps what it observes, apart from the store.
    pub(crate) fn observatory(&self) -> &Arc<Observatory> {
        let clock = &self.0.options.clock;
        self.0
            .observatory
            .get_or_init(|| Observatory::beside(self, clock.clone()))
    }

    /// Requests of this process that wait for another one.
    pub fn waiting(&self) -> usize {
        self.0.waiters.total()
    }

    /// Requests of this process that wait for the key `id`.
    pub fn waiting_for(&self, id: RecordId) -> usize {
        self.0.waiters.of(id)
    }

    /// Executions of this process that are under way.
    pub fn executing(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// The bytes that are held for clients.
    pub fn body_budget(&self) -> &BodyBudget {
        &self.0.body_budget
    }

    /// Executions of this process whose client has gone, or has been answered already.
    pub fn detached(&self) -> usize {
        self.0.detached.total()
    }

    pub(crate) fn detached_executions(&self) -> &DetachedExecutions {
        &self.0.detached
    }

    /// Where the background loops note their rounds.
    pub(crate) fn noted_runs(&self) -> &Runs {
        &self.0.runs
    }

    /// Answers at once where nothing has to be written and the store need not be waited for.
    pub fn peek(&self, arrival: &mut Arrival, policy: &Policy) -> Option<Admitted> {
        let reply = self.0.store.peek(arrival.id())?;
        self.known_recipe(reply.value.recipe, policy)
            .and_then(|recipe| self.judge(&reply.value, reply.now, arrival, policy, &recipe))
    }

    /// What `record` says to `arrival`, where that needs no write.
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
        let request = arrival.request(AttemptId(0), recipe);
        match machine::admit(record, &request, now, policy) {
            Admission::Execute(_) | Admission::Lapse(_) => None,
            Admission::Refuse(Refusal::OutcomeUnknown { nudge: Some(_) }) => None,
            Admission::InFlight(how) => Some(Admitted::InFlight(how)),
            Admission::Replay(response) => Some(Admitted::Replay(replay(response, record))),
            Admission::Refuse(refusal) => Some(Admitted::Refused(refusal)),
        }
    }

    /// Reserves the key, or says why not. When this says [`Admitted::Execute`], the reservation is
    /// durable, and the caller must see the attempt through.
    ///
    /// # Errors
    /// [`Unavailable`] if it could not be found out. Nothing may be sent upstream then; should the
    /// reservation turn out to stand, it is released in the background.
    pub async fn admit(
        &self,
        arrival: &mut Arrival,
        policy: &Arc<Policy>,
    ) -> Result<Admitted, Unavailable> {
        self.unless_open()?;
        self.unless_unfit()?;
        // The lease is counted from before the reservation was sent.
        let began = self.0.options.clock.moment();
        let attempt_id = self.0.options.attempt_ids.fresh();
        let outcome = self.admit_as(attempt_id, began, arrival, policy).await;
        if let Err(Unavailable(error)) = &outcome
            && error.is_ambiguous()
        {
            self.release_later(arrival.id(), attempt_id, policy.clone());
        }
        // The reservation may have been the first to meet a server that promises less.
        if let Ok(Admitted::Execute(attempt)) = &outcome {
            self.0.known_store.reserved();
            if let Err(below) = self.unless_below(policy).and_then(|()| self.unless_unfit()) {
                attempt.release_later();
                return Err(below);
            }
        }
        outcome
    }

    async fn admit_as(
        &self,
        attempt_id: AttemptId,
        began: Moment,
        arrival: &mut Arrival,
        policy: &Arc<Policy>,
    ) -> Result<Admitted, Unavailable> {
        let own = |record: Record, as_: Began| {
            let attempt = Attempt::new(self.clone(), record, began, as_, policy);
            Ok(Admitted::Execute(Box::new(attempt)))
        };
        let mut began_as = Began::New;
        let mut found: Option<Reply<Record>> = None;
        for _ in 0..MAX_ROUNDS {
            let Some(Reply { now, value: record }) = found.take() else {
                match self.make(attempt_id, arrival, policy).await? {
                    Made::New(record) => return own(*record, began_as),
                    Made::There(reply) => found = Some(*reply),
                    Made::Held => return Ok(Admitted::InFlight(policy.on_in_flight)),
                    Made::Limited(limited) => return Ok(Admitted::Limited(limited)),
                }
                continue;
            };
            if record.attempt_id == attempt_id {
                // An earlier write whose answer was lost did happen.
                if machine::is_running(&record) {
                    return own(record, began_as);
                }
                // And its lease has lapsed since: others may settle the key, so nothing is sent.
                self.release_later(arrival.id(), attempt_id, policy.clone());
                let lapsed = "the reservation lapsed before it was confirmed";
                return Err(Unavailable(StoreError::Unavailable(lapsed.into())));
            }
            let recipe = self.recipe(record.recipe, policy).await?;
            let request = arrival.request(attempt_id, &recipe);
            match machine::admit(&record, &request, now, policy) {
                Admission::Execute(change) => {
                    self.unless_below(policy)?;
                    began_as = Began::from_journal(&change.journal);
                    // A key that was forgotten by time is new, reaped or not.
                    let mut room = None;
                    if began_as == Began::New {
                        match self.room_for_new_key(arrival, policy).await? {
                            Ok(taken) => room = Some(taken),
                            Err(limited) => return Ok(Admitted::Limited(limited)),
                        }
                    }
                    failpoint!(match began_as {
                        Began::New => "engine.reserve.anew.before",
                        Began::Again => "engine.reserve.again.before",
                        Began::AfterExpiry => "engine.reserve.next_generation.before",
                    });
                    let swapped = self.swap_twice(&record, change).await;
                    if let Some(room) = room {
                        room.used_unless_refused(&swapped);
                    }
                    found = now_there(swapped.map_err(Unavailable)?);
                    failpoint!(match began_as {
                        Began::New => "engine.reserve.anew.after",
                        Began::Again => "engine.reserve.again.after",
                        Began::AfterExpiry => "engine.reserve.next_generation.after",
                    });
                }
                Admission::Lapse(change) => {
                    failpoint!("engine.reserve.lapse.before");
                    found = match self.lapse(&record, change).await? {
                        Lapsed::There(there) => there.map(|reply| *reply),
                        Lapsed::Held => return Ok(Admitted::InFlight(policy.on_in_flight)),
                    };
                    failpoint!("engine.reserve.lapse.after");
                }
                Admission::InFlight(how) => return Ok(Admitted::InFlight(how)),
                Admission::Replay(response) => {
                    return Ok(Admitted::Replay(replay(response, &record)));
                }
                Admission::Refuse(refusal) => {
                    return Ok(Admitted::Refused(self.nudge(refusal, &record).await));
                }
            }
        }
        let busy = "the key changes faster than it can be read";
        Err(Unavailable(StoreError::Unavailable(busy.into())))
    }

    async fn nudge(&self, refusal: Refusal, record: &Record) -> Refusal {
        if let Refusal::OutcomeUnknown {
            nudge: Some(change),
        } = refusal
        {
            // Asking the reconciler to hurry is worth a try, not a failure.
            let _ = self.swap(record, change).await;
            return Refusal::OutcomeUnknown { nudge: None };
        }
        refusal
    }

    /// Inserts, and asks a second time, with the same attempt id, if the first answer was lost.
    async fn insert(
        &self,
        request: &machine::Request,
        policy: &Policy,
    ) -> Result<Reply<Inserted>, StoreError> {
        let store = &self.0.store;
        let timeout = self.0.options.store_timeout;
        let insert = || store.insert_or_get(machine::first(request, policy));
        match within(timeout, insert()).await {
            Err(error) if error.is_ambiguous() => {
                let second = within(SECOND_LOOK, insert()).await;
                second.map_err(still_ambiguous)
            }
            outcome => outcome,
        }
    }

    /// Writes `change` if the key is still as in `before`, and counts what that means.
    async fn swap(
        &self,
        before: &Record,
        mut change: Change,
    ) -> Result<Reply<Swapped>, StoreError> {
        let events: Vec<(JournalEvent, Actor)> = change
            .journal
            .iter()
            .map(|entry| (entry.event, entry.actor.clone()))
            .collect();
        // What repeats itself is counted, and kept now and then.
        change.journal.retain(machine::is_worth_keeping);
        let swapped = within(
            self.0.options.store_timeout,
            self.0.store.swap(before.revision, change),
        )
        .await;
        if let Ok(reply) = &swapped
            && let Swapped::Done(record) = &reply.value
        {
            self.observe(record, &events);
            self.time_unknown(before, record, reply.now);
        }
        swapped
    }

    async fn swap_twice(
        &self,
        before: &Record,
        change: Change,
    ) -> Result<Reply<Swapped>, StoreError> {
        let mut again = change.clone();
        let outcome = match self.swap(before, change).await {
            Err(error) if error.is_ambiguous() => {
                again.journal.retain(machine::is_worth_keeping);
                let second = within(SECOND_LOOK, self.0.store.swap(before.revision, again)).await;
                second.map_err(still_ambiguous)
            }
            outcome => outcome,
        };
        self.watched(outcome)
    }

    /// Writes that the lease of `record` has lapsed, unless somebody holds its row.
    async fn lapse(&self, record: &Record, change: Change) -> Result<Lapsed, Unavailable> {
        let swapped = match self.swap(record, change).await {
            Err(error) if error.is_ambiguous() => {
                let looked = within(SECOND_LOOK, self.0.store.lookup(record.id)).await;
                let Reply { now, value } = self
                    .watched(looked.map_err(still_ambiguous))
                    .map_err(Unavailable)?;
                return Ok(match value {
                    Some(there) if there.revision == record.revision => Lapsed::Held,
                    there => Lapsed::There(there.map(|value| Box::new(Reply { now, value }))),
                });
            }
            outcome => self.watched(outcome).map_err(Unavailable)?,
        };
        if matches!(swapped.value, Swapped::Done(_)) {
            Background::ZombieKey.count(1);
        }
        Ok(Lapsed::There(now_there(swapped).map(Box::new)))
    }

    async fn bounded_read<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        within(self.0.options.store_timeout, call).await
    }
}

/// What came of writing that a lease has lapsed.
enum Lapsed {
    /// This is there now.
    There(Option<Box<Reply<Record>>>),
    /// The store answers, and the record is as it was: an open transaction holds it, and so its owner is
    /// alive.
    Held,
}

/// A second look that failed says nothing of the first write, even if it says that it wrote nothing.
fn still_ambiguous(second: StoreError) -> StoreError {
    StoreError::Ambiguous(Box::new(second))
}

/// What a swap left behind or found.
fn now_there(reply: Reply<Swapped>) -> Option<Reply<Record>> {
    match reply.value {
        Swapped::Done(record) | Swapped::Conflict(record) => Some(Reply {
            now: reply.now,
            value: record,
        }),
        // Reaped between: it is a new key again, and must be inserted, never assumed.
        Swapped::Absent => None,
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

/// `call`, or an ambiguous error if it takes longer than `timeout`: it may still happen.
async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    in_time(timeout, call).await.unwrap_or_else(|| {
        let late = "the store did not answer in time";
        Err(StoreError::Ambiguous(late.into()))
    })
}

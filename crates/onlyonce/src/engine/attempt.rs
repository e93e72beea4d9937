//! An attempt that owns its key: it renews its lease, and finally settles.

use std::{
    fmt::{self, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::HeaderValue;
use onlyonce_core::{
    AttemptId, Fence, Key, Policy, Record, RecordId, Timestamp,
    machine::{self, Began, End, Heartbeat, Lease, Settled, Settlement, Wake},
    record::{JournalEntry, LastError},
};
use onlyonce_store::failpoint;
use parking_lot::Mutex;

use super::{
    Engine,
    transition::{Known, Unanswered},
};
use crate::{clock::Moment, seam::DispatchGuard};

/// The first and the longest pause between two tries to release a key or to write a journal row.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Tries to write the journal row about a result whose attempt no longer owns the key.
const NOTE_TRIES: usize = 5;

/// The right, and the duty, to execute and settle a key.
pub struct Attempt {
    engine: Engine,
    policy: Arc<Policy>,
    began: Moment,
    began_as: Began,
    attempt_id: AttemptId,
    /// Set once it is too late to send a first byte, whatever the clocks say.
    closed: Arc<AtomicBool>,
    /// The record as this attempt last saw it while owning it; heartbeats raise its revision.
    record: Mutex<Arc<Record>>,
    release_was_wrong: AtomicBool,
    /// Set once the caller's own transaction has completed the key.
    settled: AtomicBool,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("attempt_id", &self.attempt_id)
            .finish_non_exhaustive()
    }
}

/// The state of the key after the attempt has ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The attempt's result was recorded.
    Settled(Arc<Record>),
    /// The key already had a result, which stands.
    Kept(Kept),
}

/// What stands in place of the attempt's result.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The key still belongs to this attempt, with this record.
    Own(Arc<Record>),
    /// The key no longer belongs to this attempt.
    Lost,
}

impl Attempt {
    pub(super) fn new(
        engine: Engine,
        record: Arc<Record>,
        began: Moment,
        began_as: Began,
        policy: &Arc<Policy>,
    ) -> Self {
        Self {
            engine,
            policy: policy.clone(),
            began,
            began_as,
            attempt_id: record.attempt_id,
            closed: Arc::default(),
            record: Mutex::new(record),
            release_was_wrong: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        }
    }

    /// Why the attempt began.
    pub fn began_as(&self) -> Began {
        self.began_as
    }

    /// The attempt's id.
    pub(crate) fn id(&self) -> AttemptId {
        self.attempt_id
    }

    /// The policy that the attempt runs under.
    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Notes the commit of a transaction that completed the key, and left it as `record`.
    pub(crate) fn settled_in_transaction(&self, record: Arc<Record>) {
        self.wake(&record);
        *self.record.lock() = record;
        self.settled.store(true, Ordering::SeqCst);
    }

    /// Whether a transaction of this attempt is known to have completed the key.
    pub(crate) fn is_settled_in_transaction(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }

    /// Releases the key in the background, unless it turns out to be completed.
    pub(crate) fn release_later(&self) {
        let id = self.record.lock().id;
        self.engine
            .release_later(id, self.attempt_id, self.policy.clone());
    }

    /// How many times the key was dispatched, this attempt included.
    pub fn fence(&self) -> Fence {
        self.record.lock().fence
    }

    /// The key's record as this attempt last saw it while owning it.
    pub fn record(&self) -> Arc<Record> {
        self.record.lock().clone()
    }

    /// The header value of `key` for the upstream, if the record notes the first attempt's spelling.
    pub(crate) fn spelling(&self, key: &Key) -> Option<HeaderValue> {
        let record = self.record.lock();
        let spelling = record.notes.spelling.as_ref()?;
        // A value that a client sent can be forwarded.
        HeaderValue::from_bytes(&spelling.value(key)).ok()
    }

    /// The opaque token sent upstream in `Idempotency-Attempt`. With it the upstream can settle the key
    /// itself.
    pub fn token(&self) -> String {
        let mut token = String::with_capacity(64);
        // Writing to a string does not fail.
        let _ = write!(token, "{}{}", self.record.lock().id, self.attempt_id);
        token
    }

    /// The guard passes while the lease, counted from before the reservation was sent, has time left, and
    /// until [`close`](Self::close). Heartbeats do not extend it: it concerns the first byte alone.
    pub fn guard(&self) -> DispatchGuard {
        let (began, lease) = (self.began, self.policy.lease);
        let clock = self.engine.0.options.clock.clone();
        let closed = self.closed.clone();
        DispatchGuard::new(move || {
            !closed.load(Ordering::SeqCst) && began.is_within(lease, clock.moment())
        })
    }

    /// Forbids sending a first byte from now on, since the lease cannot be renewed. A request that was
    /// already sent may still bring a result.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Renews the lease. Returns whether the attempt still owns the key, as far as it can tell.
    pub async fn renew(&self) -> bool {
        // Not every store tells its time before a write. A wall clock that was adjusted tells nothing about
        // how long the execution has taken.
        let now = self.engine.0.options.clock.moment();
        let ran_for = now.since_boot().saturating_sub(self.began.since_boot());
        if ran_for >= self.policy.max_execution {
            return false;
        }
        if failpoint::without_heartbeats() {
            return true;
        }
        let record = self.record();
        let now = match self.engine.0.store.peek(record.id) {
            Some(reply) => reply.now,
            // The machine only needs the time to tell whether the attempt is overdue. `last_run_at`, from
            // the same clock, suffices until the store's next reply.
            None => record.times.last_run_at.unwrap_or_default(),
        };
        let beat = Heartbeat(self.attempt_id);
        let known = Known::Remembered(record.clone(), now);
        let moved = self.engine.transition(record.id, known, |record, now| {
            failpoint!("engine.renew.before");
            let step = machine::apply(record, &beat, now, &self.policy);
            (step, Unanswered::Fail)
        });
        // The store may be down for a while. The lease decides, not this failure.
        let Ok(moved) = moved.await else { return true };
        match (moved.effect, moved.record) {
            (Lease::Renewed, Some(renewed)) => {
                failpoint!("engine.renew.after");
                *self.record.lock() = renewed;
                true
            }
            (Lease::Renewed | Lease::Lost, record) => {
                // The record of another attempt must never pass for this attempt's own.
                let own = record.filter(|record| record.attempt_id == self.attempt_id);
                if let Some(own) = own {
                    *self.record.lock() = own;
                }
                false
            }
        }
    }

    /// The key's current record, if the store can be read and the key still belongs to this attempt.
    pub(crate) async fn current(&self) -> Option<Record> {
        let looked = self.engine.0.store.lookup(self.record().id);
        let found = self.engine.bounded_read(looked).await.ok()?.value?;
        (found.attempt_id == self.attempt_id).then_some(found)
    }

    /// Makes the end of the attempt durable. Retries until the store takes it; the caller bounds the time.
    pub async fn settle(&self, settlement: &Settlement) -> Ended {
        let record = self.record();
        if self.settled.load(Ordering::SeqCst) {
            return Ended::Settled(record);
        }
        let end = End {
            attempt: self.attempt_id,
            settlement,
        };
        // A heartbeat's copy of the record may be long out of date.
        let known = Known::Remembered(record.clone(), Timestamp::default());
        let moved = self.engine.transition(record.id, known, |record, now| {
            let step = machine::apply(record, &end, now, &self.policy);
            failpoint!(match settlement {
                Settlement::Complete(_) => "engine.settle.complete.before",
                Settlement::Release(_) => "engine.settle.release.before",
                Settlement::Unknown(_) => "engine.settle.unknown.before",
            });
            (step, Unanswered::KeepTrying)
        });
        let (effect, now) = match moved.await {
            Ok(moved) => (moved.effect, moved.record),
            // A write with `KeepTrying` does not fail.
            Err(_) => return Ended::Kept(Kept::Lost),
        };
        match (effect, now) {
            (effect @ (Settled::Done | Settled::ReleaseWasWrong), Some(settled)) => {
                failpoint!(match settlement {
                    Settlement::Complete(_) => "engine.settle.complete.after",
                    Settlement::Release(_) => "engine.settle.release.after",
                    Settlement::Unknown(_) => "engine.settle.unknown.after",
                });
                if effect == Settled::ReleaseWasWrong {
                    self.alarm(&settled);
                }
                self.wake(&settled);
                *self.record.lock() = settled.clone();
                Ended::Settled(settled)
            }
            (Settled::Kept, Some(kept)) => Ended::Kept(Kept::Own(kept)),
            (Settled::NotOurs(entry), _) => {
                self.note(*entry).await;
                Ended::Kept(Kept::Lost)
            }
            (_, None) | (Settled::Gone, _) => {
                self.note(machine::absent(&record)).await;
                Ended::Kept(Kept::Lost)
            }
        }
    }

    /// Whether a late result showed that the key should not have been released.
    pub fn release_was_wrong(&self) -> bool {
        self.release_was_wrong.load(Ordering::Relaxed)
    }

    fn alarm(&self, record: &Record) {
        self.release_was_wrong.store(true, Ordering::Relaxed);
        let tag = self.engine.secret().key_tag(&record.key);
        tracing::error!(
            key = %tag,
            route = %record.route,
            "release_was_wrong: a key that had been released turned out to have been executed"
        );
    }

    fn wake(&self, record: &Record) {
        let waiters = &self.engine.0.waiters;
        match machine::wake(record) {
            Wake::One => waiters.wake_one(record.id),
            Wake::All => waiters.wake_all(record.id),
        }
    }

    async fn note(&self, entry: JournalEntry) {
        let tag = self.engine.secret().key_tag(&self.record.lock().key);
        tracing::error!(
            key = %tag,
            attempt = entry.attempt,
            "duplicate_execution_suspected: a result arrived from an attempt that does not own its key"
        );
        crate::stats::Background::DuplicateSuspected.count(1);
        let mut pause = FIRST_PAUSE;
        for _ in 0..NOTE_TRIES {
            failpoint!("engine.note.before");
            let written = self.engine.0.store.append(vec![entry.clone()]);
            if self.engine.bounded_read(written).await.is_ok() {
                failpoint!("engine.note.after");
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Engine {
    /// Settles a result of `attempt` that was kept elsewhere against the current `record`.
    pub(crate) async fn settle_late(
        &self,
        record: Record,
        attempt: AttemptId,
        settlement: &Settlement,
        policy: &Arc<Policy>,
    ) {
        let began = self.0.options.clock.moment();
        let mut late = Attempt::new(self.clone(), Arc::new(record), began, Began::New, policy);
        late.attempt_id = attempt;
        late.settle(settlement).await;
    }

    /// Releases a reservation that may or may not have been written, once that can be determined. Nothing
    /// was sent for it.
    pub(crate) fn release_later(&self, id: RecordId, attempt: AttemptId, policy: Arc<Policy>) {
        let engine = self.clone();
        // Beyond this limit the sweeper handles the reservation, and the journal informs an operator.
        let Ok(room) = self.0.releasing.clone().try_acquire_owned() else {
            return;
        };
        let running = self.running();
        tokio::spawn(async move {
            let _held = (room, running);
            let release = Settlement::Release(LastError::NotSent);
            let tries = async {
                let mut pause = FIRST_PAUSE;
                loop {
                    let found = engine.bounded_read(engine.0.store.lookup(id)).await;
                    if let Ok(reply) = found
                        && let Some(record) = reply.value
                        && record.attempt_id == attempt
                    {
                        let began = engine.0.options.clock.moment();
                        let record = Arc::new(record);
                        let attempt =
                            Attempt::new(engine.clone(), record, began, Began::New, &policy);
                        failpoint!("engine.release_later.before");
                        attempt.settle(&release).await;
                        failpoint!("engine.release_later.after");
                        return;
                    }
                    // A write that timed out may still be in progress, so absence proves nothing yet.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            };
            // A late result of the reservation's own attempt is accepted even after its lease has lapsed.
            let _ = tokio::time::timeout(policy.max_execution, tries).await;
        });
    }
}

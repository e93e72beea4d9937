//! An attempt that owns its key: it shows signs of life, and in the end it settles.

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

/// The first and the longest pause between two tries to give back a key, or to note a result.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Tries to write the journal row about a result that nobody owns any more.
const NOTE_TRIES: usize = 5;

/// The right, and the duty, to execute and settle a key.
pub struct Attempt {
    engine: Engine,
    policy: Arc<Policy>,
    began: Moment,
    began_as: Began,
    attempt_id: AttemptId,
    /// Whether it is too late to send a first byte, whatever the clocks say.
    closed: Arc<AtomicBool>,
    /// The record as last seen in this attempt's hands; heartbeats move its revision on.
    record: Mutex<Arc<Record>>,
    release_was_wrong: AtomicBool,
    /// Whether the caller's own transaction has completed the key.
    settled: AtomicBool,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("attempt_id", &self.attempt_id)
            .finish_non_exhaustive()
    }
}

/// What the key says now that the attempt has ended.
#[derive(Clone, Debug)]
pub enum Ended {
    /// It says what the attempt brought.
    Settled(Arc<Record>),
    /// It already said something, and that stands.
    Kept(Kept),
}

/// What stands instead of the attempt's result.
#[derive(Clone, Debug)]
pub enum Kept {
    /// The key still belongs to this attempt, in this form.
    Own(Arc<Record>),
    /// The key moved on without this attempt.
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

    /// Why it began.
    pub fn began_as(&self) -> Began {
        self.began_as
    }

    /// Its id.
    pub(crate) fn id(&self) -> AttemptId {
        self.attempt_id
    }

    /// The policy it runs under.
    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// A transaction that completed the key, and left it as `record`, has been committed.
    pub(crate) fn settled_in_transaction(&self, record: Arc<Record>) {
        self.wake(&record);
        *self.record.lock() = record;
        self.settled.store(true, Ordering::SeqCst);
    }

    /// Whether a transaction of this attempt is known to have completed the key.
    pub(crate) fn is_settled_in_transaction(&self) -> bool {
        self.settled.load(Ordering::SeqCst)
    }

    /// Gives the key back in the background, unless it turns out to be completed.
    pub(crate) fn release_later(&self) {
        let id = self.record.lock().id;
        self.engine
            .release_later(id, self.attempt_id, self.policy.clone());
    }

    /// Whether the store encrypts what it is given.
    pub(crate) fn store_encrypts(&self) -> bool {
        self.engine.store().encrypts()
    }

    /// How many times the key was dispatched, this attempt included.
    pub fn fence(&self) -> Fence {
        self.record.lock().fence
    }

    /// The key's record as last seen in this attempt's hands.
    pub fn record(&self) -> Arc<Record> {
        self.record.lock().clone()
    }

    /// The header value of `key` for the upstream, where the record notes how the first attempt spelled it.
    pub(crate) fn spelling(&self, key: &Key) -> Option<HeaderValue> {
        let record = self.record.lock();
        let spelling = record.notes.spelling.as_ref()?;
        // What a client could send can be sent on.
        HeaderValue::from_bytes(&spelling.value(key)).ok()
    }

    /// The token that goes upstream in `Idempotency-Attempt`: opaque, and enough for the upstream
    /// to settle the key itself.
    pub fn token(&self) -> String {
        let mut token = String::with_capacity(64);
        // Writing to a string does not fail.
        let _ = write!(token, "{}{}", self.record.lock().id, self.attempt_id);
        token
    }

    /// Holds while the lease, counted from before the reservation was sent, has time left, and
    /// until [`close`](Self::close). A heartbeat does not move it: it is about the first byte alone.
    pub fn guard(&self) -> DispatchGuard {
        let (began, lease) = (self.began, self.policy.lease);
        let clock = self.engine.0.options.clock.clone();
        let closed = self.closed.clone();
        DispatchGuard::new(move || {
            !closed.load(Ordering::SeqCst) && began.is_within(lease, clock.moment())
        })
    }

    /// From now on no first byte may be sent: somebody else has settled the key. What was sent before may
    /// still bring a result.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Shows a sign of life. Says whether the attempt still owns the key, as far as it can tell.
    pub async fn renew(&self) -> bool {
        // Not every store says what time it is before it is written to. A wall clock that was set says
        // nothing of how long the execution has taken.
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
            // The machine only asks whether the attempt is overdue, which `last_run_at` of the same
            // clock tells well enough from the store's next reply.
            None => record.times.last_run_at.unwrap_or_default(),
        };
        let beat = Heartbeat(self.attempt_id);
        let known = Known::Remembered(record.clone(), now);
        let moved = self.engine.transition(record.id, known, |record, now| {
            failpoint!("engine.renew.before");
            let step = machine::apply(record, &beat, now, &self.policy);
            (step, Unanswered::Fail)
        });
        // The store may be away for a while. The lease decides, not this failure.
        let Ok(moved) = moved.await else { return true };
        match (moved.effect, moved.record) {
            (Lease::Renewed, Some(renewed)) => {
                failpoint!("engine.renew.after");
                *self.record.lock() = renewed;
                true
            }
            (Lease::Renewed | Lease::Lost, record) => {
                // What is known of another attempt must never pass for this one's.
                let own = record.filter(|record| record.attempt_id == self.attempt_id);
                if let Some(own) = own {
                    *self.record.lock() = own;
                }
                false
            }
        }
    }

    /// What the key says now, where the store can say so and the key still belongs to this attempt.
    pub(crate) async fn current(&self) -> Option<Record> {
        let looked = self.engine.0.store.lookup(self.record().id);
        let found = self.engine.bounded_read(looked).await.ok()?.value?;
        (found.attempt_id == self.attempt_id).then_some(found)
    }

    /// Makes the end of the attempt durable. Tries until the store takes it: the caller bounds it.
    pub async fn settle(&self, settlement: &Settlement) -> Ended {
        let record = self.record();
        if self.settled.load(Ordering::SeqCst) {
            return Ended::Settled(record);
        }
        let end = End {
            attempt: self.attempt_id,
            settlement,
        };
        // What a heartbeat saw may be long past.
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
            // A write that is kept trying does not fail.
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
    /// A result of `attempt` that was kept elsewhere meets what `record` says now.
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

    /// Releases a reservation that may or may not have been written, once that can be found out.
    /// Nothing was sent for it.
    pub(crate) fn release_later(&self, id: RecordId, attempt: AttemptId, policy: Arc<Policy>) {
        let engine = self.clone();
        // Beyond this the sweeper has them, and an operator can tell from the journal.
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
                    // A write that timed out may still be under way, so absence proves nothing yet.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            };
            // A late result of its own attempt is taken even after the lease has lapsed.
            let _ = tokio::time::timeout(policy.max_execution, tries).await;
        });
    }
}

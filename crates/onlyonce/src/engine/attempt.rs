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
    AttemptId, Fence, Key, Policy, Record, RecordId,
    machine::{self, Renewed, Settled, Settlement, Wake},
    record::{JournalEntry, JournalEvent, LastError},
};
use onlyonce_store::{StoreError, Swapped, failpoint};
use parking_lot::Mutex;

use super::Engine;
use crate::{clock::Moment, seam::DispatchGuard};

/// The first and the longest pause between two tries to make a result durable.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Tries to write the journal row about a result that nobody owns any more.
const NOTE_TRIES: usize = 5;

/// Why an attempt began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// Nobody had used the key.
    New,
    /// The key had been released.
    Again,
    /// The key had expired.
    AfterExpiry,
}

impl Began {
    /// What the journal of the change that began the attempt says.
    pub(super) fn from_journal(journal: &[JournalEntry]) -> Self {
        match journal.first().map(|entry| entry.event) {
            Some(JournalEvent::ExecutedAgain) => Self::Again,
            Some(JournalEvent::ExecutedAfterExpiry) => Self::AfterExpiry,
            _ => Self::New,
        }
    }
}

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
        record: Record,
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
            record: Mutex::new(Arc::new(record)),
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
    pub(crate) fn settled_in_transaction(&self, record: Record) {
        self.wake(&record);
        *self.record.lock() = Arc::new(record);
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
        let mut record = self.record();
        // One conflict may come from somebody who kept evidence; more than a few are a sign.
        for _ in 0..4 {
            let now = match self.engine.0.store.peek(record.id) {
                Some(reply) => reply.now,
                // The machine only asks whether the attempt is overdue, which `last_run_at` of the
                // same clock tells well enough from the store's next reply.
                None => record.times.last_run_at.unwrap_or_default(),
            };
            let change = match machine::renew(&record, self.attempt_id, now, &self.policy) {
                Renewed::Write(change) => change,
                Renewed::Lost => return false,
            };
            failpoint!("engine.renew.before");
            match self.engine.swap(&record, change).await {
                Ok(reply) => match reply.value {
                    Swapped::Done(renewed) => {
                        failpoint!("engine.renew.after");
                        *self.record.lock() = Arc::new(renewed);
                        return true;
                    }
                    Swapped::Conflict(current) => {
                        record = Arc::new(current);
                        // What is known of another attempt must never pass for this one's.
                        if record.attempt_id == self.attempt_id {
                            *self.record.lock() = record.clone();
                        }
                    }
                    Swapped::Absent => return false,
                },
                // The store may be away for a while. The lease decides, not this failure.
                Err(_) => return true,
            }
        }
        true
    }

    /// What the key says now, where the store can say so and the key still belongs to this attempt.
    pub(crate) async fn current(&self) -> Option<Record> {
        let looked = self.engine.0.store.lookup(self.record().id);
        let found = self.engine.bounded_read(looked).await.ok()?.value?;
        (found.attempt_id == self.attempt_id).then_some(found)
    }

    /// Makes the end of the attempt durable. Tries until the store takes it: the caller bounds it.
    pub async fn settle(&self, settlement: &Settlement) -> Ended {
        let mut record = self.record();
        if self.settled.load(Ordering::SeqCst) {
            return Ended::Settled(record);
        }
        // What a heartbeat saw may be long past; a write finds that out, leaving it alone does not.
        let mut fresh = false;
        let mut pause = FIRST_PAUSE;
        loop {
            let change = match machine::settle(&record, self.attempt_id, settlement, &self.policy) {
                Settled::Write(change) => change,
                Settled::Keep if fresh => return Ended::Kept(Kept::Own(record)),
                Settled::Keep => {
                    let store = &self.engine.0.store;
                    match self.engine.bounded_read(store.lookup(record.id)).await {
                        Ok(reply) => match reply.value {
                            Some(current) => (record, fresh) = (Arc::new(current), true),
                            None => return self.gone(&record).await,
                        },
                        Err(error) => self.pause(&error, &mut pause).await,
                    }
                    continue;
                }
                Settled::NotOurs(entry) => {
                    self.note(*entry).await;
                    return Ended::Kept(Kept::Lost);
                }
            };
            let wrong = change
                .journal
                .iter()
                .any(|entry| entry.event == JournalEvent::ReleaseWasWrong);
            failpoint!(match settlement {
                Settlement::Complete(_) => "engine.settle.complete.before",
                Settlement::Release(_) => "engine.settle.release.before",
                Settlement::Unknown(_) => "engine.settle.unknown.before",
            });
            match self.engine.swap(&record, change).await {
                Ok(reply) => match reply.value {
                    Swapped::Done(settled) => {
                        failpoint!(match settlement {
                            Settlement::Complete(_) => "engine.settle.complete.after",
                            Settlement::Release(_) => "engine.settle.release.after",
                            Settlement::Unknown(_) => "engine.settle.unknown.after",
                        });
                        if wrong {
                            self.alarm(&settled);
                        }
                        self.wake(&settled);
                        let settled = Arc::new(settled);
                        *self.record.lock() = settled.clone();
                        return Ended::Settled(settled);
                    }
                    Swapped::Conflict(current) => {
                        (record, fresh) = (Arc::new(current), true);
                    }
                    Swapped::Absent => return self.gone(&record).await,
                },
                Err(error) => self.pause(&error, &mut pause).await,
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

    async fn gone(&self, last_seen: &Record) -> Ended {
        self.note(machine::absent(last_seen)).await;
        Ended::Kept(Kept::Lost)
    }

    fn wake(&self, record: &Record) {
        let waiters = &self.engine.0.waiters;
        match machine::wake(record) {
            Wake::One => waiters.wake_one(record.id),
            Wake::All => waiters.wake_all(record.id),
        }
    }

    /// Says that the store did not answer, and waits before the next try, longer each time.
    async fn pause(&self, error: &StoreError, pause: &mut Duration) {
        let tag = self.engine.secret().key_tag(&self.record.lock().key);
        let source = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(key = %tag, %error, source, "a result is not durable yet; trying again");
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
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
        let mut late = Attempt::new(self.clone(), record, began, Began::New, policy);
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

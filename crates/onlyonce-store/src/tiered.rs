//! A SQL store with Redis in front of it. SQL is the truth: every reservation, settlement and change goes
//! there and nowhere else. Redis holds copies of completed records, which answer replays.
//!
//! A copy is used for at most [`MAX_AGE`] after the record was last read from SQL, by SQL's own clock, and
//! only if its authentication code proves that this store made it for this very key. Whatever is wrong with
//! the cache, the answer comes from SQL after a bounded delay.
//!
//! Deliberately absent: locks and reservations in Redis, and any trust in its clock, its expiry or its
//! contents.

mod entry;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    Record, RecordId, Timestamp,
    record::{Change, Draft, Revision},
    time::Stamp,
};
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    BoxError, Inserted, Outbox, Reply, Store, StoreError, Swapped, Walk,
    clock::StoreClock,
    redis::{
        OpenError,
        cache::{Cache, Replace},
    },
};
use entry::Sealer;

/// How long a copy is used after its record was last read from SQL.
pub const MAX_AGE: Duration = Duration::from_secs(60);
/// The most copies on their way into the cache. Beyond it none are made.
const MAX_FILLING: usize = 256;
/// How much longer than the age of any copy it is remembered that an answer was withdrawn: longer than a copy
/// can be on its way.
const GONE_BEYOND: Duration = Duration::from_secs(60);

/// A store that serves replays from a cache where possible.
pub struct TieredStore {
    truth: Arc<dyn Store>,
    cache: Arc<Cache>,
    sealer: Sealer,
    clock: TruthClock,
    max_age: Duration,
    filling: Arc<Semaphore>,
}

impl TieredStore {
    /// `truth`, with the Redis at `url` in front of it. The Redis need not be reachable, now or ever.
    ///
    /// # Errors
    /// [`OpenError::Url`] if the URL is invalid.
    pub fn new(truth: Arc<dyn Store>, url: &str) -> Result<Self, OpenError> {
        Self::with_max_age(truth, url, MAX_AGE)
    }

    /// Like `new` with another age, for tests that cannot wait.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_max_age(
        truth: Arc<dyn Store>,
        url: &str,
        max_age: Duration,
    ) -> Result<Self, OpenError> {
        let sealer = Sealer::new(truth.secret(), &truth.identity());
        Ok(Self {
            cache: Arc::new(Cache::new(url, sealer.name())?),
            sealer,
            truth,
            clock: TruthClock::default(),
            max_age,
            filling: Arc::new(Semaphore::new(MAX_FILLING)),
        })
    }

    /// A copy of the record of `draft`'s key that may be served.
    async fn copy(&self, draft: &Draft) -> Option<Reply<Record>> {
        // Without the truth's own time, the age of a copy is not known.
        self.clock.now(self.max_age)?;
        let id = draft.record.id;
        let found = self.cache.take(id).await?;
        let Some(entry) = self.sealer.open(id, &found) else {
            if found != b"-" {
                tracing::error!("an entry of the cache was not made by this store; it is not used");
            }
            return None;
        };
        let now = self.clock.now(self.max_age)?;
        let age = now.0.checked_sub(entry.checked_at.0)?;
        let is_young = (0..=millis(self.max_age)).contains(&age);
        let same = entry.record.is_of(&draft.record.scope, &draft.record.key);
        if !is_young || !same || !is_final(&entry.record, now) {
            return None;
        }
        let value = entry.record;
        Some(Reply { now, value })
    }

    /// Puts a copy of `record` into the cache, in the background.
    fn fill(&self, record: &Record, checked_at: Timestamp, replace: Replace) {
        if !is_final(record, checked_at) {
            return;
        }
        let Ok(room) = self.filling.clone().try_acquire_owned() else {
            return;
        };
        let (id, entry) = (record.id, self.sealer.seal(record, checked_at));
        let (cache, stays) = (self.cache.clone(), self.max_age);
        tokio::spawn(async move {
            cache.put(id, &entry, stays, replace).await;
            drop(room);
        });
    }

    async fn timed<T>(
        &self,
        call: impl Future<Output = Result<Reply<T>, StoreError>>,
    ) -> Result<Reply<T>, StoreError> {
        let asked = Asked::now();
        let reply = call.await?;
        self.clock.heard(asked, reply.now);
        Ok(reply)
    }
}

/// Why an answer cannot be withdrawn now.
#[derive(Debug, thiserror::Error)]
#[error("the cache may still hold this answer, and cannot be told to forget it")]
struct StillThere(#[source] BoxError);

/// Whether a record has an answer that stands until it expires.
fn is_final(record: &Record, now: Timestamp) -> bool {
    record.answers_until().is_some_and(|until| until > now)
}

/// Whether a change withdraws an answer early: it leaves a tombstone that any request may follow, or a record
/// without personal data.
fn takes_away(draft: &Draft) -> bool {
    let forgotten = draft.stamps.delete_at != Stamp::Never && draft.record.fingerprint.is_none();
    forgotten || draft.record.notes.erased
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// When something was asked, by clocks of this process.
#[derive(Clone, Copy, Debug)]
struct Asked {
    steady: Instant,
    wall: Timestamp,
}

impl Asked {
    fn now() -> Self {
        Self {
            steady: Instant::now(),
            wall: StoreClock::system().now(),
        }
    }

    /// The larger of two measures: a suspended machine stops one clock, and setting the time moves the other.
    fn elapsed_millis(self) -> i64 {
        let now = Self::now();
        let steady = millis(now.steady.saturating_duration_since(self.steady));
        steady.max(now.wall.0.saturating_sub(self.wall.0))
    }
}

/// The truth's time, from its last answer and the time since that was asked for: never less than it is.
#[derive(Debug, Default)]
struct TruthClock(Mutex<Option<(Asked, Timestamp)>>);

impl TruthClock {
    fn heard(&self, asked: Asked, now: Timestamp) {
        let mut last = self.0.lock();
        if last.is_none_or(|(before, _)| before.steady <= asked.steady) {
            *last = Some((asked, now));
        }
    }

    /// The time, unless the last answer is older than `limit`.
    fn now(&self, limit: Duration) -> Option<Timestamp> {
        let (asked, said) = (*self.0.lock())?;
        let elapsed = asked.elapsed_millis();
        let now = Timestamp(said.0.saturating_add(elapsed));
        (elapsed <= millis(limit)).then_some(now)
    }
}

#[async_trait]
impl Store for TieredStore {
    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let reply = self.timed(self.truth.lookup(id)).await?;
        if let Some(record) = &reply.value {
            self.fill(record, reply.now, Replace::Nothing);
        }
        Ok(reply)
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        if let Some(Reply { now, value }) = self.copy(&draft).await {
            let value = Inserted::Existing(value);
            return Ok(Reply { now, value });
        }
        let reply = self.timed(self.truth.insert_or_get(draft)).await?;
        if let Inserted::Existing(record) = &reply.value {
            self.fill(record, reply.now, Replace::Nothing);
        }
        Ok(reply)
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        if takes_away(&change.draft) {
            // The cache first: afterwards no copy may be served.
            let stays = self.max_age + GONE_BEYOND;
            let gone = self.cache.take_away(change.draft.record.id, stays).await;
            gone.map_err(|error| StoreError::Unavailable(Box::new(StillThere(error))))?;
        }
        let reply = self.timed(self.truth.swap(expected, change)).await?;
        if let Swapped::Done(record) = &reply.value {
            self.fill(record, reply.now, Replace::Older);
        }
        Ok(reply)
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.timed(self.truth.lapsed(limit)).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.timed(self.truth.due(limit)).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        self.timed(self.truth.walk(limit)).await
    }

    /// Copies are of settled answers, so settling a key past the cache leaves no stale copy.
    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        self.truth.outbox()
    }

    crate::forward_store! {
        truth: level, copies, secret, peek, delete, append, prune_audit, list, list_in,
        keep_scope, scopes, listed, history, audit, counts, live, keep_recipe, recipe,
        keep_policy, keep_block, block, identity, standing, raise_epoch, note_lost,
        accept_incomplete, renew_identity, note_clock, noted_clock, conceal, reveal, close,
        probe, sealed, sealed_note, wakeups,
    }
}

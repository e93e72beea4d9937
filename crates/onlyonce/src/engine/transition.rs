//! The one loop: load, apply, swap.
//!
//! Whatever happens to a key comes through here. What becomes of a write that somebody else was faster
//! than, that an open transaction holds back, or whose answer was lost, is decided here and nowhere else;
//! what it means is the machine's.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{
    Record, RecordId, Timestamp,
    machine::{self, Step, Write},
    record::{Actor, Change, Draft, JournalEvent},
};
use onlyonce_store::{
    Inserted, Reply, StoreError, Swapped, TransactionalStore, transactional::TransactionError,
};

use super::{Engine, within};

/// How often somebody else may be faster before the store counts as unavailable.
pub(super) const MAX_ROUNDS: usize = 32;
/// How long the store may take to say whether a write happened whose answer was lost.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// The first and the longest pause between two tries of a write that is kept trying.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

const BUSY: &str = "the key changes faster than it can be read";

/// What is done where the store does not say what became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The write is sent once more: by the attempt in it, the second one finds the first.
    AskAgain,
    /// The store is asked. A record that is as it was is held by an open transaction: its owner is alive.
    Look,
    /// The write is left to whoever comes by later, as if the record were held.
    LeaveIt,
    /// The write was worth a try, and no failure.
    IfPossible,
    /// The write is tried until the store takes it. The caller bounds the time.
    KeepTrying,
    /// The caller is told.
    Fail,
}

/// What is known of a key when a transition begins.
pub(crate) enum Known {
    /// Nothing: it is looked up, unless the event makes a new key, since inserting tells as well.
    Nothing,
    /// Nothing, and it is taken to be new.
    Assumed,
    /// What the store said at that time.
    Read(Arc<Record>, Timestamp),
    /// What the store once said. That is looked up before it is decided that nothing has to be written.
    Remembered(Arc<Record>, Timestamp),
}

impl Known {
    pub(crate) fn read(reply: Reply<Record>) -> Self {
        Self::Read(Arc::new(reply.value), reply.now)
    }
}

/// What a transition came to.
pub(crate) struct Transition<E> {
    /// What it means to whoever caused it.
    pub(crate) effect: E,
    /// What came of the step's write.
    pub(crate) wrote: Wrote,
    /// The key's record now, as far as it is known.
    pub(crate) record: Option<Arc<Record>>,
    /// What the store's clock said last.
    pub(crate) now: Timestamp,
}

/// What came of a step's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// It stands.
    Yes,
    /// There was nothing to write.
    Nothing,
    /// The record is held by somebody, or may be; the write was left.
    Held,
}

/// Where records are kept: a store, or a transaction that is open on one.
pub(crate) trait Records {
    type Error: Fault;

    fn look_up(
        &mut self,
        id: RecordId,
        patience: Patience,
    ) -> impl Future<Output = Result<Reply<Option<Record>>, Self::Error>> + Send;

    fn insert(
        &mut self,
        draft: Draft,
        patience: Patience,
    ) -> impl Future<Output = Result<Reply<Inserted>, Self::Error>> + Send;

    fn swap(
        &mut self,
        before: &Record,
        change: Change,
        patience: Patience,
    ) -> impl Future<Output = Result<Reply<Swapped>, Self::Error>> + Send;

    /// Whether it was deleted.
    fn delete(&mut self, record: &Record)
    -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// How long a store is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as is configured.
    Usual,
    /// A little longer, after that was in vain.
    SecondLook,
}

/// What a transition has to know of an error.
pub(crate) trait Fault: std::error::Error + Sized {
    /// Whether the write may have happened.
    fn may_have_written(&self) -> bool;
    /// A second look has failed, which says nothing of the first write, even if it says that itself wrote
    /// nothing.
    fn after_an_unanswered_write(self) -> Self;
    /// Somebody else was faster, again and again.
    fn busy() -> Self;
}

impl Fault for StoreError {
    fn may_have_written(&self) -> bool {
        self.is_ambiguous()
    }

    fn after_an_unanswered_write(self) -> Self {
        Self::Ambiguous(Box::new(self))
    }

    fn busy() -> Self {
        Self::Unavailable(BUSY.into())
    }
}

impl Fault for TransactionError {
    /// It happens with the commit, or not at all.
    fn may_have_written(&self) -> bool {
        false
    }

    fn after_an_unanswered_write(self) -> Self {
        self
    }

    fn busy() -> Self {
        Self::Conflict(BUSY.into())
    }
}

/// Carries out what `decide` makes of the key `id`, as often as it takes until that stands.
///
/// `decide` is given what is remembered and the store's time, and asked again whenever somebody else was
/// faster. Dropping the future leaves a write done or not done, never in part.
pub(crate) async fn transition<R: Records, E>(
    records: &mut R,
    id: RecordId,
    known: Known,
    mut decide: impl FnMut(Option<&Record>, Timestamp) -> (Step<E>, Unanswered),
) -> Result<Transition<E>, R::Error> {
    let (mut record, mut now, mut certain) = match known {
        Known::Nothing => (None, Timestamp::default(), false),
        Known::Assumed => (None, Timestamp::default(), true),
        Known::Read(record, now) => (Some(record), now, true),
        Known::Remembered(record, now) => (Some(record), now, false),
    };
    let mut patience = Patience::Usual;
    let mut pause = FIRST_PAUSE;
    let mut rounds = 0;
    loop {
        let (Step { write, effect }, unanswered) = decide(record.as_deref(), now);
        if matches!(write, Write::Stay) && certain {
            if patience == Patience::SecondLook {
                // Of the same record, so that something else speaks against the write by now. The first one
                // may stand all the same.
                return Err(R::Error::busy().after_an_unanswered_write());
            }
            return Ok(done(effect, Wrote::Nothing, record, now));
        }
        let found = match carry_out(records, id, record.as_deref(), write, patience).await {
            Ok(Came::Wrote(after, now)) => {
                return Ok(done(effect, Wrote::Yes, after.map(Arc::new), now));
            }
            Ok(Came::Found(there, at)) => Some((there, at)),
            Err(error) => match unanswered {
                Unanswered::IfPossible => return Ok(done(effect, Wrote::Held, record, now)),
                Unanswered::KeepTrying => {
                    let source = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%id, %error, source, "a result is not durable yet; trying again");
                    None
                }
                _ if patience == Patience::SecondLook => {
                    return Err(error.after_an_unanswered_write());
                }
                _ if !error.may_have_written() => return Err(error),
                Unanswered::Fail => return Err(error),
                Unanswered::LeaveIt => return Ok(done(effect, Wrote::Held, record, now)),
                Unanswered::AskAgain => {
                    patience = Patience::SecondLook;
                    continue;
                }
                Unanswered::Look => {
                    let looked = records.look_up(id, Patience::SecondLook).await;
                    let looked = looked.map_err(R::Error::after_an_unanswered_write)?;
                    let there = looked.value.as_ref().map(|there| there.revision);
                    if there == record.as_ref().map(|before| before.revision) {
                        return Ok(done(effect, Wrote::Held, record, looked.now));
                    }
                    Some((looked.value, looked.now))
                }
            },
        };
        match found {
            Some((there, at)) => {
                (record, now, certain) = (there.map(Arc::new), at, true);
                patience = Patience::Usual;
                rounds += 1;
            }
            None => rounds = MAX_ROUNDS,
        }
        if rounds >= MAX_ROUNDS {
            if unanswered != Unanswered::KeepTrying {
                return Err(R::Error::busy());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            rounds = 0;
        }
    }
}

fn done<E>(effect: E, wrote: Wrote, record: Option<Arc<Record>>, now: Timestamp) -> Transition<E> {
    Transition {
        effect,
        wrote,
        record,
        now,
    }
}

/// What a write came to.
enum Came {
    Wrote(Option<Record>, Timestamp),
    /// Somebody else was faster; this is there.
    Found(Option<Record>, Timestamp),
}

async fn carry_out<R: Records>(
    records: &mut R,
    id: RecordId,
    record: Option<&Record>,
    write: Write,
    patience: Patience,
) -> Result<Came, R::Error> {
    match (write, record) {
        (Write::Insert(draft), _) => {
            let Reply { now, value } = records.insert(*draft, patience).await?;
            Ok(match value {
                Inserted::New(record) => Came::Wrote(Some(record), now),
                Inserted::Existing(record) => Came::Found(Some(record), now),
            })
        }
        (Write::Swap(change), Some(before)) => {
            let Reply { now, value } = records.swap(before, change, patience).await?;
            Ok(match value {
                Swapped::Done(record) => Came::Wrote(Some(record), now),
                Swapped::Conflict(record) => Came::Found(Some(record), now),
                // Reaped meanwhile: it is a new key again.
                Swapped::Absent => Came::Found(None, now),
            })
        }
        (Write::Delete, Some(before)) if records.delete(before).await? => {
            Ok(Came::Wrote(None, Timestamp::default()))
        }
        // There is nothing to write, or nothing to write it to: what is there has the last word.
        (Write::Stay | Write::Delete | Write::Swap(_), _) => {
            let Reply { now, value } = records.look_up(id, patience).await?;
            Ok(Came::Found(value, now))
        }
    }
}

/// The engine's store.
pub(super) struct InStore<'a>(pub(super) &'a Engine);

impl InStore<'_> {
    fn limit(&self, patience: Patience) -> Duration {
        match patience {
            Patience::Usual => self.0.0.options.store_timeout,
            Patience::SecondLook => SECOND_LOOK,
        }
    }
}

impl Records for InStore<'_> {
    type Error = StoreError;

    async fn look_up(
        &mut self,
        id: RecordId,
        patience: Patience,
    ) -> Result<Reply<Option<Record>>, StoreError> {
        within(self.limit(patience), self.0.store().lookup(id)).await
    }

    async fn insert(
        &mut self,
        draft: Draft,
        patience: Patience,
    ) -> Result<Reply<Inserted>, StoreError> {
        let engine = self.0;
        let scope = engine.unfamiliar(&draft.record.scope);
        let insert = engine.store().insert_or_get(draft);
        let known = async {
            // First: a key is found by the scopes that the store knows.
            if let Some(scope) = scope {
                Box::pin(engine.make_known(&scope)).await?;
            }
            insert.await
        };
        within(self.limit(patience), known).await
    }

    async fn swap(
        &mut self,
        before: &Record,
        mut change: Change,
        patience: Patience,
    ) -> Result<Reply<Swapped>, StoreError> {
        let events: Vec<(JournalEvent, Actor)> = change
            .journal
            .iter()
            .map(|entry| (entry.event, entry.actor.clone()))
            .collect();
        // What repeats itself is counted, and kept now and then.
        change.journal.retain(machine::is_worth_keeping);
        let swap = self.0.store().swap(before.revision, change);
        let reply = within(self.limit(patience), swap).await?;
        if let Swapped::Done(record) = &reply.value {
            self.0.observe(record, &events);
            self.0.time_unknown(before, record, reply.now);
        }
        Ok(reply)
    }

    async fn delete(&mut self, record: &Record) -> Result<bool, StoreError> {
        let deleted = self.0.store().delete(record.id, record.revision);
        within(self.limit(Patience::Usual), deleted).await
    }
}

/// A transaction that is open on a store. Keys neither begin nor go in one.
pub(crate) struct InTransaction<'a, T: TransactionalStore> {
    pub(crate) store: &'a T,
    pub(crate) connection: &'a mut T::Connection,
}

impl<T: TransactionalStore> InTransaction<'_, T> {
    const SWAPS_ONLY: &'static str = "a transaction only changes keys that are there";
}

impl<T: TransactionalStore> Records for InTransaction<'_, T> {
    type Error = TransactionError;

    async fn look_up(
        &mut self,
        id: RecordId,
        _: Patience,
    ) -> Result<Reply<Option<Record>>, TransactionError> {
        let held = self.store.lock(self.connection, id).await?;
        Ok(match held {
            Some(Reply { now, value }) => Reply {
                now,
                value: Some(value),
            },
            None => Reply {
                now: Timestamp::default(),
                value: None,
            },
        })
    }

    async fn insert(&mut self, _: Draft, _: Patience) -> Result<Reply<Inserted>, TransactionError> {
        Err(TransactionError::GivenUp(Self::SWAPS_ONLY.into()))
    }

    async fn swap(
        &mut self,
        before: &Record,
        change: Change,
        _: Patience,
    ) -> Result<Reply<Swapped>, TransactionError> {
        self.store
            .swap(self.connection, before.revision, &change)
            .await
    }

    async fn delete(&mut self, _: &Record) -> Result<bool, TransactionError> {
        Err(TransactionError::GivenUp(Self::SWAPS_ONLY.into()))
    }
}

impl Engine {
    /// See [`transition`].
    pub(super) async fn transition<E>(
        &self,
        id: RecordId,
        known: Known,
        decide: impl FnMut(Option<&Record>, Timestamp) -> (Step<E>, Unanswered),
    ) -> Result<Transition<E>, StoreError> {
        transition(&mut InStore(self), id, known, decide).await
    }
}

#[cfg(test)]
mod tests;

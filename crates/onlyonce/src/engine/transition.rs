//! The one loop: load, apply, swap.
//!
//! Every change of a key goes through here. What becomes of a write that another writer overtook, that an
//! open transaction holds back, or whose reply was lost, is decided here and nowhere else; what it means is
//! decided by the machine.

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

/// How often another writer may be first before the store counts as unavailable.
pub(super) const MAX_ROUNDS: usize = 32;
/// How long the store may take to tell whether a write with a lost reply happened.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// The first and the longest pause between two tries of `Unanswered::KeepTrying`.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

const BUSY: &str = "the key changes faster than it can be read";

/// What to do if the store does not tell what became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Send the write once more: the second write finds the first by its attempt id.
    AskAgain,
    /// Look the record up. An unchanged record is held by an open transaction, whose owner is alive.
    Look,
    /// Leave the write to a later caller, as if the record were held.
    LeaveIt,
    /// Ignore the failure; the write was optional.
    IfPossible,
    /// Try until the store takes the write. The caller bounds the time.
    KeepTrying,
    /// Return the error to the caller.
    Fail,
}

/// What is known of a key when a transition begins.
pub(crate) enum Known {
    /// Nothing: the key is looked up, unless the event makes a new key, since the insert finds a record.
    Nothing,
    /// Nothing, and the key is assumed to be new.
    Assumed,
    /// The store's record, as read at that time.
    Read(Arc<Record>, Timestamp),
    /// An earlier copy of the record. It is looked up again before deciding that nothing has to be written.
    Remembered(Arc<Record>, Timestamp),
}

impl Known {
    pub(crate) fn read(reply: Reply<Record>) -> Self {
        Self::Read(Arc::new(reply.value), reply.now)
    }
}

/// The result of a transition.
pub(crate) struct Transition<E> {
    /// What the step means to the caller.
    pub(crate) effect: E,
    /// What became of the step's write.
    pub(crate) wrote: Wrote,
    /// The key's record after the transition, as far as known.
    pub(crate) record: Option<Arc<Record>>,
    /// The latest time of the store's clock.
    pub(crate) now: Timestamp,
}

/// What became of a step's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// The write stands.
    Yes,
    /// There was nothing to write.
    Nothing,
    /// The record is or may be held by another writer; the write was not made.
    Held,
}

/// The place where records are kept: a store, or an open transaction on one.
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

    /// Returns whether the record was deleted.
    fn delete(&mut self, record: &Record)
    -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// How long to wait for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The configured `store_timeout`.
    Usual,
    /// `SECOND_LOOK`, after the first call got no answer.
    SecondLook,
}

/// What a transition has to know about an error.
pub(crate) trait Fault: std::error::Error + Sized {
    /// Whether the write may have happened.
    fn may_have_written(&self) -> bool;
    /// The error of a failed second look. It tells nothing about the first write, even if it promises that
    /// the second look wrote nothing.
    fn after_an_unanswered_write(self) -> Self;
    /// Other writers were first too many times in a row.
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
    /// The write happens with the commit or not at all.
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

/// Applies `decide` to the key `id` until its step has been carried out.
///
/// `decide` gets the record and the store's time, and is called again whenever another writer was first. If
/// the future is dropped, a write is done or not done, never partial.
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
                // The record is the same, so something other than the record now rules the write out. The
                // first write may stand all the same.
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

/// What became of a write.
enum Came {
    Wrote(Option<Record>, Timestamp),
    /// Another writer was first; this is the current record.
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
                // The record was reaped in the meantime, so the key is new again.
                Swapped::Absent => Came::Found(None, now),
            })
        }
        (Write::Delete, Some(before)) if records.delete(before).await? => {
            Ok(Came::Wrote(None, Timestamp::default()))
        }
        // Nothing to write, or no record to write to: the current record decides.
        (Write::Stay | Write::Delete | Write::Swap(_), _) => {
            let Reply { now, value } = records.look_up(id, patience).await?;
            Ok(Came::Found(value, now))
        }
    }
}

/// The records in the engine's store.
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
            // The scope comes first: a key is found through the scopes that the store knows.
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
        // Repeated events are counted, and only some of them are kept.
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

/// The records in an open transaction. No key is inserted or deleted in one.
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

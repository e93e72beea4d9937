//! The queue of operations to send. Everything that queued up while the previous statement was under way is
//! sent as one; there is no artificial delay, so a lone request is sent immediately.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use onlyonce_core::{
    AttemptId, Record, RecordId, State, StoredResponse,
    record::{Change, Draft, JournalEntry, Revision},
    time::Stamp,
};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use crate::{Inserted, Reply, StoreError, Swapped};

/// The most operations in one statement.
pub(crate) const MAX_BATCH: usize = 512;
/// A statement takes no more answers once they have this many bytes.
const MAX_BATCH_BYTES: u64 = 8 << 20;
/// The most operations that may wait. Beyond it the store immediately reports that it is unavailable.
const MAX_QUEUE: usize = 16_384;

/// How long it is remembered that an open transaction is creating a key.
const HELD_MEMORY: Duration = Duration::from_secs(1);
/// The most keys for which that is remembered.
const MAX_HELD: usize = 1_024;
/// The most acknowledged writes that are remembered for callers that have stopped waiting.
const MAX_UNTOLD: usize = 1_024;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// An operation, and the channel for its answer.
pub(crate) struct Queued<W, T> {
    pub(crate) work: W,
    pub(crate) answer: Answer<T>,
}

pub(crate) type QueuedInsert = Queued<Insert, Reply<Inserted>>;
pub(crate) type QueuedSwap = Queued<Swap, Reply<Swapped>>;
pub(crate) type QueuedLookup = Queued<RecordId, Reply<Option<Record>>>;
pub(crate) type QueuedDelete = Queued<(RecordId, Revision), bool>;
pub(crate) type QueuedAppend = Queued<Vec<JournalEntry>, ()>;

/// A new key.
pub(crate) struct Insert {
    pub(crate) draft: Box<Draft>,
    /// When the insert was first requested.
    pub(crate) since: Instant,
    /// How often another transaction was found creating the same key.
    pub(crate) met_a_lock: u32,
}

impl Insert {
    pub(crate) fn id(&self) -> RecordId {
        self.draft.record.id
    }
}

/// A change, and the revision it applies to.
pub(crate) struct Swap {
    pub(crate) expected: Revision,
    pub(crate) change: Box<Change>,
    /// Whether its row was locked at the last try.
    pub(crate) met_a_lock: bool,
}

impl Swap {
    /// Whether the change only completes a key that was in progress.
    pub(crate) fn only_completes(&self) -> bool {
        let record = &self.change.draft.record;
        let stamps = &self.change.draft.stamps;
        let cleared = [
            stamps.lease_until,
            stamps.unknown_since,
            stamps.reconcile_after,
            stamps.delete_at,
        ];
        record.state == State::Completed
            && record.revision == self.expected.next()
            && self.change.journal.is_empty()
            && record.last_error.is_none()
            && record.evidence.is_none()
            && (record.negatives, record.inconclusive, record.dead_letter) == (0, 0, false)
            && cleared.iter().all(|stamp| *stamp == Stamp::Never)
            && matches!(stamps.completed_at, Stamp::In(_))
            && !self.met_a_lock
    }
}

/// Operations of one kind that are sent together.
pub(crate) enum Batch {
    Inserts(Vec<QueuedInsert>),
    Completions(Vec<QueuedSwap>),
    Swaps(Vec<QueuedSwap>),
    Lookups(Vec<QueuedLookup>),
    Deletes(Vec<QueuedDelete>),
    Append(QueuedAppend),
}

/// A queue whose items are numbered, to tell which kind is next.
struct Line<T>(VecDeque<(u64, T)>);

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Line<T> {
    fn since(&self) -> u64 {
        self.0.front().map_or(u64::MAX, |(number, _)| *number)
    }
}

impl<W, T> Line<Queued<W, T>> {
    /// Up to [`MAX_BATCH`] items, as long as their total by `weigh` stays small. An item whose caller has
    /// given up is dropped: the caller was told that it may not have happened.
    fn take(&mut self, weigh: impl Fn(&W) -> u64) -> Vec<Queued<W, T>> {
        let mut taken = Vec::with_capacity(self.0.len().min(MAX_BATCH));
        let mut weight = 0;
        while taken.len() < MAX_BATCH
            && weight < MAX_BATCH_BYTES
            && let Some((_, item)) = self.0.pop_front()
        {
            if !item.answer.is_closed() {
                weight += weigh(&item.work);
                taken.push(item);
            }
        }
        taken
    }
}

impl Line<QueuedInsert> {
    /// The first key, with all inserts of the same key.
    fn take_equal(&mut self) -> Vec<QueuedInsert> {
        let Some(id) = self.0.front().map(|(_, first)| first.work.id()) else {
            return Vec::new();
        };
        let all = std::mem::take(&mut self.0);
        let (equal, others) = all
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, one)| one.work.id() == id);
        self.0 = others;
        let wanted = equal.into_iter().map(|(_, one)| one);
        wanted.filter(|one| !one.answer.is_closed()).collect()
    }
}

fn weight(swap: &Swap) -> u64 {
    let response = swap.change.draft.record.response.as_deref();
    response.map_or(0, StoredResponse::stored_bytes)
}

#[derive(Default)]
struct Lines {
    arrived: u64,
    waiting: usize,
    inserts: Line<QueuedInsert>,
    /// Inserts of keys that another transaction is creating: a statement waits for such a key, and the rest
    /// of its batch with it, so each is sent alone.
    held_inserts: Line<QueuedInsert>,
    /// Those keys, and until when they are remembered.
    held: HashMap<RecordId, Instant>,
    completions: Line<QueuedSwap>,
    swaps: Line<QueuedSwap>,
    lookups: Line<QueuedLookup>,
    deletes: Line<QueuedDelete>,
    appends: Line<QueuedAppend>,
}

impl Lines {
    fn take(&mut self) -> Option<Batch> {
        let turn = [
            self.inserts.since(),
            self.completions.since(),
            self.swaps.since(),
            self.lookups.since(),
            self.deletes.since(),
            self.appends.since(),
            self.held_inserts.since(),
        ];
        let oldest = *turn.iter().min()?;
        if oldest == u64::MAX {
            return None;
        }
        let batch = match turn.iter().position(|since| *since == oldest)? {
            0 => Batch::Inserts(self.inserts.take(|_| 0)),
            1 => Batch::Completions(self.completions.take(weight)),
            2 => Batch::Swaps(self.swaps.take(weight)),
            3 => Batch::Lookups(self.lookups.take(|_| 0)),
            4 => Batch::Deletes(self.deletes.take(|_| 0)),
            5 => Batch::Append(self.appends.0.pop_front()?.1),
            _ => Batch::Inserts(self.held_inserts.take_equal()),
        };
        self.waiting = self.inserts.0.len()
            + self.held_inserts.0.len()
            + self.completions.0.len()
            + self.swaps.0.len()
            + self.lookups.0.len()
            + self.deletes.0.len()
            + self.appends.0.len();
        Some(batch)
    }
}

/// The identity of a written record.
type Written = (RecordId, Revision, AttemptId);

fn written(record: &Record) -> Written {
    (record.id, record.revision, record.attempt_id)
}

/// The queue in front of the connections.
#[derive(Default)]
pub(crate) struct Queue {
    lines: Mutex<Lines>,
    arrived: Notify,
    /// Writes that the server acknowledged after their caller had gone.
    untold: Mutex<VecDeque<Written>>,
}

macro_rules! pushes {
    ($($push:ident, $line:ident: $item:ty;)*) => {$(
        pub(crate) fn $push(&self, item: $item) {
            let mut lines = self.lines.lock();
            if lines.waiting >= MAX_QUEUE {
                drop(lines);
                let full = StoreError::Unavailable("too many operations are waiting".into());
                // The caller may have gone.
                let _ = item.answer.send(Err(full));
                return;
            }
            lines.arrived += 1;
            lines.waiting += 1;
            let number = lines.arrived;
            lines.$line.0.push_back((number, item));
            drop(lines);
            self.arrived.notify_one();
        }
    )*};
}

impl Queue {
    pushes! {
        first_insert, inserts: QueuedInsert;
        held_insert, held_inserts: QueuedInsert;
        complete, completions: QueuedSwap;
        any_swap, swaps: QueuedSwap;
        lookup, lookups: QueuedLookup;
        delete, deletes: QueuedDelete;
        append, appends: QueuedAppend;
    }

    /// Remembers a write acknowledged after its caller had gone: the caller may come back and find it.
    pub(crate) fn acknowledged_too_late(&self, record: &Record) {
        let mut untold = self.untold.lock();
        if untold.len() >= MAX_UNTOLD {
            untold.pop_front();
        }
        untold.push_back(written(record));
    }

    /// Whether the server has acknowledged this write to a caller that had gone.
    pub(crate) fn was_acknowledged(&self, record: &Record) -> bool {
        self.untold.lock().contains(&written(record))
    }

    pub(crate) fn insert(&self, item: QueuedInsert) {
        if self.is_held(item.work.id()) {
            self.held_insert(item);
        } else {
            self.first_insert(item);
        }
    }

    fn is_held(&self, id: RecordId) -> bool {
        let lines = self.lines.lock();
        // The clock is read only if there is something to compare it with.
        let until = lines.held.get(&id);
        until.is_some_and(|until| Instant::now() < *until)
    }

    /// Remembers that another transaction is creating this key, and takes long.
    pub(crate) fn mark_held(&self, id: RecordId) {
        let now = Instant::now();
        let mut lines = self.lines.lock();
        if lines.held.len() >= MAX_HELD {
            lines.held.retain(|_, until| now < *until);
        }
        if lines.held.len() < MAX_HELD {
            lines.held.insert(id, now + HELD_MEMORY);
        }
    }

    pub(crate) fn swap(&self, item: QueuedSwap) {
        if item.work.only_completes() {
            self.complete(item);
        } else {
            self.any_swap(item);
        }
    }

    /// The next batch, once there is one.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            if let Some(batch) = self.lines.lock().take() {
                return batch;
            }
            self.arrived.notified().await;
        }
    }

    /// Wakes another connection if something is left.
    pub(crate) fn pass_on(&self) {
        if self.lines.lock().waiting > 0 {
            self.arrived.notify_one();
        }
    }
}

impl Queue {
    /// Pushes `work` into the line that `push` is for, and waits for a lane's answer.
    pub(crate) async fn ask<W, T>(
        &self,
        push: impl FnOnce(&Self, Queued<W, T>),
        work: W,
    ) -> Result<T, StoreError> {
        let (answer, told) = oneshot::channel();
        push(self, Queued { work, answer });
        // A lane that died may have committed before.
        told.await.unwrap_or_else(|_| {
            Err(StoreError::Ambiguous(
                "the connection's task has ended".into(),
            ))
        })
    }

    /// Inserts a key that was never used, which is the only kind that is inserted.
    pub(crate) async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let record = &draft.record;
        let is_first = record.response.is_none()
            && record.evidence.is_none()
            && record.last_error.is_none()
            && (record.negatives, record.inconclusive, record.dead_letter) == (0, 0, false);
        if !is_first {
            let what = "only a key that nobody has used can be inserted";
            return Err(StoreError::Unavailable(what.into()));
        }
        let insert = Insert {
            draft: Box::new(draft),
            since: Instant::now(),
            met_a_lock: 0,
        };
        self.ask(Self::insert, insert).await
    }

    /// Writes `change` if the record's revision is `expected`.
    pub(crate) async fn swap_from(
        &self,
        expected: Revision,
        change: Change,
    ) -> Result<Reply<Swapped>, StoreError> {
        let swap = Swap {
            expected,
            change: Box::new(change),
            met_a_lock: false,
        };
        self.ask(Self::swap, swap).await
    }
}

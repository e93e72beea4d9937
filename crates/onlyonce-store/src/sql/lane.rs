//! A connection with one statement in flight: takes a batch, sends it, and answers every caller.

use std::{collections::HashMap, sync::Arc, time::Duration};

use onlyonce_core::{
    Record, RecordId, Timestamp,
    record::{Draft, JournalEntry, Revision},
};
use tokio::time::{Instant, timeout_at};

use super::{
    failure::Failure,
    queue::{
        Batch, Queue, Queued, QueuedAppend, QueuedDelete, QueuedInsert, QueuedLookup, QueuedSwap,
        Swap,
    },
};
use crate::{Inserted, LEVEL_EVERY, Reply, StoreError, Swapped};

/// How soon a locked row is tried again. For a key that another transaction is creating, the pause doubles
/// each time.
const LOCKED_PAUSE: Duration = Duration::from_millis(25);
/// How often the pause doubles.
const MAX_DOUBLINGS: u32 = 3;
/// How long a new key is retried while another transaction is creating it.
const HELD_FOR: Duration = Duration::from_millis(500);

/// How rows are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The changes only complete keys.
    Complete,
    /// Any change.
    Any,
    /// Any change, skipping locked rows.
    Skipping,
}

/// A statement's result for one id.
pub(crate) enum Found {
    /// The row was absent, and is inserted now.
    New,
    /// The row was present.
    There(Box<Record>),
    /// The row was present, but this program cannot read it.
    Unreadable(String),
    /// Another transaction is writing the row at this moment.
    Busy,
}

/// A statement's results by id, and the server's time.
pub(crate) type Answer = (Timestamp, HashMap<RecordId, Found>);

/// One connection to a server, in its dialect. A batch is one transaction: it is carried out completely or
/// not at all.
pub(crate) trait Server: Send + 'static {
    /// Inserts the drafts whose keys are absent. The drafts are sorted by id, and each id occurs once. An id
    /// that is missing in the answer is queried again.
    fn insert(&mut self, drafts: &[&Draft])
    -> impl Future<Output = Result<Answer, Failure>> + Send;

    /// Writes the changes whose row has the expected revision, with their journal, and returns their ids in
    /// order. The swaps are sorted by id, and each id occurs once.
    fn swap(
        &mut self,
        swaps: &[&Swap],
        how: How,
    ) -> impl Future<Output = Result<(Timestamp, Vec<RecordId>), Failure>> + Send;

    /// The existing records with these ids.
    fn lookup(&mut self, ids: &[RecordId]) -> impl Future<Output = Result<Answer, Failure>> + Send;

    /// Deletes the rows with the expected revision, and returns their ids.
    fn delete(
        &mut self,
        rows: &[(RecordId, Revision)],
    ) -> impl Future<Output = Result<Vec<RecordId>, Failure>> + Send;

    /// Writes journal rows that belong to no change.
    fn append(
        &mut self,
        journal: &[JournalEntry],
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns once everything read is as durable as an acknowledged write.
    fn confirm(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Reads again, on the connection in use, what an acknowledged write survives. A connection that cannot
    /// tell is dropped.
    fn look(&mut self) -> impl Future<Output = ()> + Send;

    /// This node has changed the record.
    fn settled(&self, id: RecordId);

    /// This node has found this record: if an attempt is running, somebody may wait for it.
    fn met(&self, record: &Record);
}

pub(crate) struct Lane<S> {
    queue: Arc<Queue>,
    server: S,
}

impl<S: Server> Lane<S> {
    pub(crate) fn new(queue: Arc<Queue>, server: S) -> Self {
        Self { queue, server }
    }

    /// Serves the queue for ever, and reads the server's settings periodically: they may change while a
    /// connection stays open.
    pub(crate) async fn run(mut self) {
        let mut look_at = Instant::now() + LEVEL_EVERY;
        loop {
            if look_at <= Instant::now() {
                self.server.look().await;
                look_at = Instant::now() + LEVEL_EVERY;
            }
            let Ok(batch) = timeout_at(look_at, self.queue.next()).await else {
                continue;
            };
            self.queue.pass_on();
            match batch {
                Batch::Inserts(group) => self.inserts(group).await,
                Batch::Completions(group) => self.swaps(group, How::Complete).await,
                Batch::Swaps(group) => self.swaps(group, How::Any).await,
                Batch::Lookups(group) => self.lookups(group).await,
                Batch::Deletes(group) => self.deletes(group).await,
                Batch::Append(one) => self.append(one).await,
            }
        }
    }

    async fn inserts(&mut self, group: Vec<QueuedInsert>) {
        let mut group = group;
        // Sorted, so that two batches lock rows in the same order, and equal keys are adjacent.
        group.sort_by_key(|queued| queued.work.id());
        let mut leaders: Vec<QueuedInsert> = Vec::with_capacity(group.len());
        let mut followers: HashMap<RecordId, Vec<QueuedInsert>> = HashMap::new();
        for queued in group {
            let id = queued.work.id();
            match leaders.last() {
                Some(leader) if leader.work.id() == id => {
                    followers.entry(id).or_default().push(queued);
                }
                _ => leaders.push(queued),
            }
        }
        if leaders.is_empty() {
            return;
        }
        let drafts: Vec<&Draft> = leaders.iter().map(|queued| &*queued.work.draft).collect();
        match self.server.insert(&drafts).await {
            Ok(answer) => {
                let own = leaders.iter().filter_map(|one| own_insert(one, &answer.1));
                let doubt = self.doubt_of(own.collect()).await;
                self.inserted(leaders, followers, answer, doubt.as_ref());
            }
            Err(failure) => {
                leaders.extend(followers.into_values().flatten());
                if matches!(failure, Failure::Locked(_)) {
                    return self.not_inserted(leaders).await;
                }
                if failure.may_be_a_neighbours() && leaders.len() > 1 {
                    let rest = leaders.split_off(leaders.len() / 2);
                    Box::pin(self.inserts(leaders)).await;
                    Box::pin(self.inserts(rest)).await;
                } else {
                    refuse(leaders, || failure.of_a_write());
                }
            }
        }
    }

    /// Another transaction is inserting one of these keys and takes long, or changes it and stays open, such
    /// as an application that settles its key. Callers whose key is present get its record. The others are
    /// tried again in two halves, so that in the end the blocked one waits alone.
    async fn not_inserted(&mut self, mut group: Vec<QueuedInsert>) {
        // A caller that has gone was told that its insert may not have happened, so it is dropped.
        group.retain(|queued| !queued.answer.is_closed());
        if group.is_empty() {
            return;
        }
        let mut ids: Vec<RecordId> = group.iter().map(|queued| queued.work.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        let (now, found) = match self.server.lookup(&ids).await {
            Ok(answer) => answer,
            Err(failure) => {
                // The inserts' own statement wrote nothing, and said so.
                refuse(group, || failure.of_a_read());
                return;
            }
        };
        let own = group.iter().filter_map(|one| own_insert(one, &found));
        let doubt = self.doubt_of(own.collect()).await;
        let mut absent = Vec::with_capacity(group.len());
        for queued in group {
            match found.get(&queued.work.id()) {
                Some(Found::There(record)) => {
                    self.server.met(record);
                    let reply = existing(&queued.work.draft.record, record, now, doubt.as_ref());
                    let _ = queued.answer.send(reply);
                }
                Some(Found::Unreadable(text)) => {
                    let error = StoreError::Unreadable(text.clone().into());
                    let _ = queued.answer.send(Err(error));
                }
                Some(Found::New | Found::Busy) | None => absent.push(queued),
            }
        }
        absent.sort_by_key(|queued| queued.work.id());
        let of_one_key = absent.first().map(|queued| queued.work.id())
            == absent.last().map(|queued| queued.work.id());
        if ids.len() == 1 && of_one_key {
            absent.into_iter().for_each(|queued| self.put_off(queued));
        } else if of_one_key {
            Box::pin(self.inserts(absent)).await;
        } else {
            let rest = absent.split_off(absent.len() / 2);
            Box::pin(self.inserts(absent)).await;
            Box::pin(self.inserts(rest)).await;
        }
    }

    /// Another transaction is creating this key: the insert is tried again later, apart from others, or its
    /// caller is told.
    fn put_off(&self, mut queued: QueuedInsert) {
        self.queue.mark_held(queued.work.id());
        if queued.work.since.elapsed() >= HELD_FOR {
            let _ = queued.answer.send(Err(StoreError::Held));
            return;
        }
        let pause = LOCKED_PAUSE * (1 << queued.work.met_a_lock.min(MAX_DOUBLINGS));
        queued.work.met_a_lock += 1;
        self.later(pause, move |queue| queue.insert(queued));
    }

    fn inserted(
        &self,
        leaders: Vec<QueuedInsert>,
        mut followers: HashMap<RecordId, Vec<QueuedInsert>>,
        (now, mut found): Answer,
        doubt: Option<&Failure>,
    ) {
        for leader in leaders {
            let id = leader.work.id();
            let followers = followers.remove(&id).unwrap_or_default();
            let record = match found.remove(&id) {
                Some(Found::New) => {
                    let record = leader.work.draft.stamp(now);
                    let value = Inserted::New(record.clone());
                    if leader.answer.send(Ok(Reply { now, value })).is_err() {
                        self.queue.acknowledged_too_late(&record);
                    }
                    record
                }
                Some(Found::There(record)) => {
                    let reply = existing(&leader.work.draft.record, &record, now, doubt);
                    let _ = leader.answer.send(reply);
                    self.server.met(&record);
                    *record
                }
                Some(Found::Unreadable(text)) => {
                    let all = std::iter::once(leader).chain(followers).collect();
                    refuse(all, || StoreError::Unreadable(text.clone().into()));
                    continue;
                }
                // Inserted by another transaction after this statement began, or reaped before it ended:
                // queried again, never assumed.
                None => {
                    self.queue.insert(leader);
                    for follower in followers {
                        self.queue.insert(follower);
                    }
                    continue;
                }
                Some(Found::Busy) => {
                    let all = std::iter::once(leader).chain(followers);
                    all.for_each(|one| self.put_off(one));
                    continue;
                }
            };
            for follower in followers {
                let reply = existing(&follower.work.draft.record, &record, now, doubt);
                let _ = follower.answer.send(reply);
            }
        }
    }

    async fn swaps(&mut self, mut group: Vec<QueuedSwap>, how: How) {
        group.sort_by_key(id_of);
        let how = match group.iter().any(|queued| queued.work.met_a_lock) {
            true => How::Skipping,
            false => how,
        };
        // One change per row in one statement; the others learn the result in the next.
        let mut batch: Vec<QueuedSwap> = Vec::with_capacity(group.len());
        for queued in group {
            match batch.last() {
                Some(last) if id_of(last) == id_of(&queued) => self.queue.swap(queued),
                _ => batch.push(queued),
            }
        }
        if batch.is_empty() {
            return;
        }
        let swaps: Vec<&Swap> = batch.iter().map(|queued| &queued.work).collect();
        let (now, written) = match self.server.swap(&swaps, how).await {
            Ok(written) => written,
            Err(failure) => {
                if matches!(failure, Failure::Locked(_)) && how != How::Skipping {
                    Box::pin(self.swaps(batch, How::Skipping)).await;
                } else if failure.may_be_a_neighbours() && batch.len() > 1 {
                    let rest = batch.split_off(batch.len() / 2);
                    Box::pin(self.swaps(batch, how)).await;
                    Box::pin(self.swaps(rest, how)).await;
                } else {
                    refuse(batch, || failure.of_a_write());
                }
                return;
            }
        };
        let mut others = Vec::new();
        for queued in batch {
            // Both are sorted by id.
            if written.binary_search(&id_of(&queued)).is_err() {
                others.push(queued);
                continue;
            }
            let record = queued.work.change.draft.stamp(now);
            self.server.settled(record.id);
            let value = Swapped::Done(record);
            let told = queued.answer.send(Ok(Reply { now, value }));
            if let Err(Ok(Reply {
                value: Swapped::Done(record),
                ..
            })) = told
            {
                self.queue.acknowledged_too_late(&record);
            }
        }
        if !others.is_empty() {
            self.not_swapped(others).await;
        }
    }

    /// Answers swaps whose row was not written with the current record.
    async fn not_swapped(&mut self, others: Vec<QueuedSwap>) {
        let ids: Vec<RecordId> = others.iter().map(id_of).collect();
        let (now, mut found) = match self.server.lookup(&ids).await {
            Ok(answer) => answer,
            Err(failure) => {
                // The swaps' own statement wrote nothing, and said so.
                refuse(others, || failure.of_a_read());
                return;
            }
        };
        let own = others.iter().filter_map(|one| own_swap(one, &found));
        let doubt = self.doubt_of(own.collect()).await;
        for queued in others {
            if own_swap(&queued, &found).is_some()
                && let Some(doubt) = &doubt
            {
                let _ = queued.answer.send(Err(still_ambiguous(doubt)));
                continue;
            }
            let value = match found.remove(&id_of(&queued)) {
                // The revision is right, so another transaction has locked the row: it is alive.
                Some(Found::There(record)) if record.revision == queued.work.expected => {
                    let mut queued = queued;
                    queued.work.met_a_lock = true;
                    self.later(LOCKED_PAUSE, move |queue| queue.swap(queued));
                    continue;
                }
                Some(Found::There(record)) => Swapped::Conflict(*record),
                Some(Found::Unreadable(text)) => {
                    let _ = queued.answer.send(Err(StoreError::Unreadable(text.into())));
                    continue;
                }
                Some(Found::New | Found::Busy) | None => Swapped::Absent,
            };
            let _ = queued.answer.send(Ok(Reply { now, value }));
        }
    }

    async fn lookups(&mut self, group: Vec<QueuedLookup>) {
        if group.is_empty() {
            return;
        }
        let mut ids: Vec<RecordId> = group.iter().map(|queued| queued.work).collect();
        ids.sort_unstable();
        ids.dedup();
        let (now, found) = match self.server.lookup(&ids).await {
            Ok(answer) => answer,
            Err(failure) => {
                refuse(group, || failure.of_a_read());
                return;
            }
        };
        for queued in group {
            let reply = match found.get(&queued.work) {
                Some(Found::There(record)) => {
                    self.server.met(record);
                    Ok(Some((**record).clone()))
                }
                Some(Found::Unreadable(text)) => Err(StoreError::Unreadable(text.clone().into())),
                Some(Found::New | Found::Busy) | None => Ok(None),
            };
            let _ = queued.answer.send(reply.map(|value| Reply { now, value }));
        }
    }

    async fn deletes(&mut self, mut group: Vec<QueuedDelete>) {
        group.sort_by_key(|queued| queued.work.0);
        // One delete per row in one statement: only one of several can have done it.
        let mut batch: Vec<QueuedDelete> = Vec::with_capacity(group.len());
        for queued in group {
            match batch.last() {
                Some(last) if last.work.0 == queued.work.0 => self.queue.delete(queued),
                _ => batch.push(queued),
            }
        }
        if batch.is_empty() {
            return;
        }
        let rows: Vec<(RecordId, Revision)> = batch.iter().map(|queued| queued.work).collect();
        match self.server.delete(&rows).await {
            Ok(deleted) => {
                for queued in batch {
                    let _ = queued.answer.send(Ok(deleted.contains(&queued.work.0)));
                }
            }
            Err(failure) => refuse(batch, || failure.of_a_write()),
        }
    }

    async fn append(&mut self, one: QueuedAppend) {
        let outcome = self.server.append(&one.work).await;
        let reply = outcome.map_err(|failure| failure.of_a_write());
        let _ = one.answer.send(reply);
    }

    /// Why the records read may be less durable than acknowledged ones, where that matters: a caller that
    /// finds its `own` write takes it for done. The commit comes after the read, so that it covers everything
    /// that was seen. A write that was acknowledged to a caller that had gone needs none.
    async fn doubt_of(&mut self, own: Vec<&Record>) -> Option<Failure> {
        match own.iter().all(|record| self.queue.was_acknowledged(record)) {
            true => None,
            false => self.server.confirm().await.err(),
        }
    }

    /// Puts an operation back into the queue after `pause`, when a lock may be gone.
    fn later(&self, pause: Duration, put: impl FnOnce(&Queue) + Send + 'static) {
        let queue = self.queue.clone();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            put(&queue);
        });
    }
}

fn id_of(queued: &QueuedSwap) -> RecordId {
    queued.work.change.draft.record.id
}

/// The record that an unacknowledged insert wrote itself, if it is found.
fn own_insert<'f>(
    queued: &QueuedInsert,
    found: &'f HashMap<RecordId, Found>,
) -> Option<&'f Record> {
    let attempt = queued.work.draft.record.attempt_id;
    there(queued.work.id(), found).filter(|record| record.attempt_id == attempt)
}

/// The record that an unacknowledged change wrote itself, if it is found.
fn own_swap<'f>(queued: &QueuedSwap, found: &'f HashMap<RecordId, Found>) -> Option<&'f Record> {
    let wanted = &queued.work.change.draft.record;
    let wanted = (wanted.revision, wanted.attempt_id);
    there(id_of(queued), found).filter(|record| (record.revision, record.attempt_id) == wanted)
}

fn there(id: RecordId, found: &HashMap<RecordId, Found>) -> Option<&Record> {
    match found.get(&id) {
        Some(Found::There(record)) => Some(record),
        _ => None,
    }
}

/// The error for a write that was found but not acknowledged.
fn still_ambiguous(doubt: &Failure) -> StoreError {
    match doubt.of_a_write() {
        StoreError::Unavailable(why) => StoreError::Ambiguous(why),
        other => other,
    }
}

/// The answer to an insert that found `record`. Scope and key are compared, whatever the index is built on.
/// The insert's own write counts only without `doubt`.
fn existing(
    wanted: &Record,
    record: &Record,
    now: Timestamp,
    doubt: Option<&Failure>,
) -> Result<Reply<Inserted>, StoreError> {
    if !record.is_of(&wanted.scope, &wanted.key) {
        return Err(StoreError::Collision);
    }
    if record.attempt_id == wanted.attempt_id
        && let Some(doubt) = doubt
    {
        return Err(still_ambiguous(doubt));
    }
    let value = Inserted::Existing(record.clone());
    Ok(Reply { now, value })
}

/// Sends everybody the same error. A caller may have gone, which is not a failure.
fn refuse<W, T>(group: Vec<Queued<W, T>>, error: impl Fn() -> StoreError) {
    for queued in group {
        let _ = queued.answer.send(Err(error()));
    }
}

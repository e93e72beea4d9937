//! A connection with one statement in flight: takes a batch, sends it, tells everybody how it ended.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{Record, RecordId, Timestamp, record::Revision};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    connect::{Target, abandon, same_secret},
    failure::Failure,
    queue::{
        Batch, Queue, Queued, QueuedAppend, QueuedDelete, QueuedInsert, QueuedLookup, QueuedSwap,
    },
    row::{self, Inserts, Journal, Swaps},
    statement::{self, How, Statement},
};
use crate::{Inserted, Reply, StoreError, Swapped, failpoint, wake::Wake};

/// How much longer than the server's own limit a statement is waited for: within it the server can
/// say that it took the statement back, which is better than not knowing.
const LAST_WORD: Duration = Duration::from_millis(250);
/// How soon a row that somebody holds locked is tried again.
const LOCKED_PAUSE: Duration = Duration::from_millis(25);

/// What the lanes of one store share.
pub(super) struct Shared {
    pub(super) target: Target,
    pub(super) secret: Vec<u8>,
    pub(super) queue: Queue,
    pub(super) wake: Wake,
    /// Rises when a connection is lost: the others are then not trusted either.
    pub(super) epoch: AtomicU64,
}

impl Shared {
    /// A connection that has been checked, and the epoch it is from.
    pub(super) async fn connect(&self) -> Result<(PgConnection, u64), sqlx::Error> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let mut connection = self.target.connect().await?;
        let check = same_secret(&self.target, &mut connection, &self.secret);
        match tokio::time::timeout(self.target.timeout(), check).await {
            Ok(Ok(())) => Ok((connection, epoch)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(no_answer()),
        }
    }
}

fn no_answer() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        "the server did not answer in time",
    ))
}

pub(super) struct Lane {
    shared: Arc<Shared>,
    connection: Option<(PgConnection, u64)>,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, connection: Option<(PgConnection, u64)>) -> Self {
        Self { shared, connection }
    }

    /// Serves the queue for ever.
    pub(super) async fn run(mut self) {
        loop {
            let batch = self.shared.queue.next().await;
            self.shared.queue.pass_on();
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

    /// The rows that `statement` returns.
    async fn ask(&mut self, statement: Statement<'_>) -> Result<Vec<PgRow>, Failure> {
        let shared = self.shared.clone();
        let current = shared.epoch.load(Ordering::SeqCst);
        if let Some((connection, _)) = self.connection.take_if(|(_, epoch)| *epoch != current) {
            abandon(connection);
        }
        if self.connection.is_none() {
            // Nothing has been sent, whatever goes wrong here.
            self.connection = Some(shared.connect().await.map_err(Failure::Refused)?);
        }
        let Some((connection, _)) = &mut self.connection else {
            return Err(Failure::Refused(no_answer()));
        };
        let persistent = shared.target.pooler() == super::Pooler::None;
        let statement = statement.persistent(persistent);
        let rows = shared.target.begin(connection, async |connection| {
            statement.fetch_all(connection).await
        });
        let limit = shared.target.timeout() + LAST_WORD;
        let outcome = match tokio::time::timeout(limit, rows).await {
            Ok(outcome) => outcome.map_err(Failure::from),
            Err(_) => Err(Failure::Lost(no_answer())),
        };
        if let Err(failure) = &outcome
            && failure.ends_the_connection()
        {
            shared.epoch.fetch_add(1, Ordering::SeqCst);
            if let Some((connection, _)) = self.connection.take() {
                abandon(connection);
            }
        }
        outcome
    }

    async fn inserts(&mut self, group: Vec<QueuedInsert>) {
        let mut group = group;
        // Sorted, so that two batches wait for each other in one order only; and equal keys meet.
        group.sort_by_key(|queued| queued.work.record.id);
        let mut leaders: Vec<QueuedInsert> = Vec::with_capacity(group.len());
        let mut followers: HashMap<RecordId, Vec<QueuedInsert>> = HashMap::new();
        for queued in group {
            let id = queued.work.record.id;
            match leaders.last() {
                Some(leader) if leader.work.record.id == id => {
                    followers.entry(id).or_default().push(queued);
                }
                _ => leaders.push(queued),
            }
        }
        let mut rows = Inserts::default();
        leaders.iter().for_each(|queued| rows.push(&queued.work));
        if rows.is_empty() {
            return;
        }
        failpoint!("postgres.insert.before");
        let outcome = self.ask(statement::insert(rows)).await;
        failpoint!("postgres.insert.after");
        match outcome {
            Ok(answer) => self.inserted(leaders, followers, &answer),
            Err(failure) => {
                leaders.extend(followers.into_values().flatten());
                if matches!(failure, Failure::Locked(_)) {
                    // Somebody is inserting one of these keys and takes long about it.
                    leaders
                        .into_iter()
                        .for_each(|one| self.shared.queue.insert(one));
                    return;
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

    fn inserted(
        &self,
        leaders: Vec<QueuedInsert>,
        mut followers: HashMap<RecordId, Vec<QueuedInsert>>,
        answer: &[PgRow],
    ) {
        let (now, mut found) = match Found::read(answer) {
            Ok(read) => read,
            Err(error) => {
                let text = error.to_string();
                let others = followers.into_values().flatten();
                refuse(leaders.into_iter().chain(others).collect(), || {
                    StoreError::Ambiguous(text.clone().into())
                });
                return;
            }
        };
        for leader in leaders {
            let id = leader.work.record.id;
            let followers = followers.remove(&id).unwrap_or_default();
            let record = match found.remove(&id) {
                Some(Found::New) => {
                    let record = leader.work.stamp(now);
                    let value = Inserted::New(record.clone());
                    let _ = leader.answer.send(Ok(Reply { now, value }));
                    record
                }
                Some(Found::There(record)) => {
                    let _ = leader
                        .answer
                        .send(existing(&leader.work.record, &record, now));
                    self.shared.wake.ask_for(&record);
                    *record
                }
                Some(Found::Unreadable(text)) => {
                    let all = std::iter::once(leader).chain(followers).collect();
                    refuse(all, || StoreError::Unreadable(text.clone().into()));
                    continue;
                }
                // Inserted by another transaction after this statement began, or reaped before it
                // ended: it is asked about again, never assumed.
                None => {
                    self.shared.queue.insert(leader);
                    for follower in followers {
                        self.shared.queue.insert(follower);
                    }
                    continue;
                }
            };
            for follower in followers {
                let reply = existing(&follower.work.record, &record, now);
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
        // One change of a row in one statement; the others find out how it went in the next.
        let mut batch: Vec<QueuedSwap> = Vec::with_capacity(group.len());
        for queued in group {
            match batch.last() {
                Some(last) if id_of(last) == id_of(&queued) => self.shared.queue.swap(queued),
                _ => batch.push(queued),
            }
        }
        let mut rows = Swaps::default();
        batch
            .iter()
            .for_each(|queued| rows.push(queued.work.expected, &queued.work.change));
        if rows.is_empty() {
            return;
        }
        failpoint!("postgres.swap.before");
        let outcome = self.ask(statement::swap(rows, how)).await;
        failpoint!("postgres.swap.after");
        let written = outcome.and_then(|answer| written_ids(&answer).map_err(Failure::Lost));
        let (now, written) = match written {
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
            // Both are in the order of ids.
            if written.binary_search(&id_of(&queued)).is_err() {
                others.push(queued);
                continue;
            }
            let record = queued.work.change.draft.stamp(now);
            self.shared.wake.settled(record.id);
            let value = Swapped::Done(record);
            let _ = queued.answer.send(Ok(Reply { now, value }));
        }
        if !others.is_empty() {
            self.not_swapped(others).await;
        }
    }

    /// Tells those whose row was not written what is there instead.
    async fn not_swapped(&mut self, others: Vec<QueuedSwap>) {
        let answer = self.ask(statement::lookup(others.iter().map(id_of))).await;
        let read = answer.map_err(|failure| failure.of_a_read());
        let read = read.and_then(|rows| Found::read(&rows).map_err(StoreError::from));
        let (now, mut found) = match read {
            Ok(read) => read,
            Err(error) => {
                // Their own statement wrote nothing, and said so.
                let text = error.to_string();
                refuse(others, || StoreError::Unavailable(text.clone().into()));
                return;
            }
        };
        for queued in others {
            let value = match found.remove(&id_of(&queued)) {
                // Its revision is right, so somebody holds it locked: it is alive.
                Some(Found::There(record)) if record.revision == queued.work.expected => {
                    let shared = self.shared.clone();
                    let mut queued = queued;
                    queued.work.met_a_lock = true;
                    tokio::spawn(async move {
                        tokio::time::sleep(LOCKED_PAUSE).await;
                        shared.queue.swap(queued);
                    });
                    continue;
                }
                Some(Found::There(record)) => Swapped::Conflict(*record),
                Some(Found::Unreadable(text)) => {
                    let _ = queued.answer.send(Err(StoreError::Unreadable(text.into())));
                    continue;
                }
                Some(Found::New) | None => Swapped::Absent,
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
        let answer = self.ask(statement::lookup(ids.into_iter())).await;
        let read = answer.map_err(|failure| failure.of_a_read());
        let read = read.and_then(|rows| Found::read(&rows).map_err(StoreError::from));
        let (now, found) = match read {
            Ok(read) => read,
            Err(error) => {
                let text = error.to_string();
                refuse(group, || StoreError::Unavailable(text.clone().into()));
                return;
            }
        };
        for queued in group {
            let reply = match found.get(&queued.work) {
                Some(Found::There(record)) => {
                    self.shared.wake.ask_for(record);
                    Ok(Some((**record).clone()))
                }
                Some(Found::Unreadable(text)) => Err(StoreError::Unreadable(text.clone().into())),
                Some(Found::New) | None => Ok(None),
            };
            let _ = queued.answer.send(reply.map(|value| Reply { now, value }));
        }
    }

    async fn deletes(&mut self, group: Vec<QueuedDelete>) {
        if group.is_empty() {
            return;
        }
        let mut rows: Vec<(RecordId, Revision)> = group.iter().map(|queued| queued.work).collect();
        rows.sort_unstable_by_key(|(id, _)| *id);
        let answer = self.ask(statement::delete(&rows)).await;
        let deleted = answer.and_then(|answer| deleted_ids(&answer).map_err(Failure::Lost));
        match deleted {
            Ok(deleted) => {
                for queued in group {
                    let _ = queued.answer.send(Ok(deleted.contains(&queued.work.0)));
                }
            }
            Err(failure) => refuse(group, || failure.of_a_write()),
        }
    }

    async fn append(&mut self, one: QueuedAppend) {
        let mut rows = Journal::default();
        one.work.iter().for_each(|entry| rows.push(entry));
        failpoint!("postgres.append.before");
        let outcome = self.ask(statement::append(rows)).await;
        failpoint!("postgres.append.after");
        let reply = outcome.map(|_| ()).map_err(|failure| failure.of_a_write());
        let _ = one.answer.send(reply);
    }
}

fn id_of(queued: &QueuedSwap) -> RecordId {
    queued.work.change.draft.record.id
}

/// What is told to an insert that found `record`. Scope and key are compared, whatever the index is
/// built on.
fn existing(
    wanted: &Record,
    record: &Record,
    now: Timestamp,
) -> Result<Reply<Inserted>, StoreError> {
    if wanted.scope != record.scope || wanted.key != record.key {
        return Err(StoreError::Collision);
    }
    let value = Inserted::Existing(record.clone());
    Ok(Reply { now, value })
}

/// Tells everybody the same. Whoever asked may have gone; that is no failure here or elsewhere.
fn refuse<W, T>(group: Vec<Queued<W, T>>, error: impl Fn() -> StoreError) {
    for queued in group {
        let _ = queued.answer.send(Err(error()));
    }
}

/// What a statement says of one id.
enum Found {
    New,
    There(Box<Record>),
    Unreadable(String),
}

impl Found {
    /// What the rows of a statement that returns whole records say, and the server's time.
    fn read(rows: &[PgRow]) -> Result<(Timestamp, HashMap<RecordId, Self>), row::RowError> {
        let mut now = None;
        let mut found = HashMap::with_capacity(rows.len());
        for row in rows {
            now = Some(Timestamp(row.try_get(row::NOW)?));
            let Some(id) = row::id(row)? else { continue };
            let what = if row.try_get(row::IS_NEW)? {
                Self::New
            } else {
                match row::read_whole(row) {
                    Ok(record) => Self::There(Box::new(record)),
                    Err(row::RowError::Unreadable(error)) => Self::Unreadable(error.to_string()),
                }
            };
            found.insert(id, what);
        }
        let now = now.ok_or_else(|| row::RowError::Unreadable("no row came back".into()))?;
        Ok((now, found))
    }
}

/// The ids that a swap wrote, in order, and the server's time.
fn written_ids(rows: &[PgRow]) -> Result<(Timestamp, Vec<RecordId>), sqlx::Error> {
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let now = Timestamp(first.try_get(1)?);
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = row.try_get::<Option<[u8; 16]>, _>(0)? {
            ids.push(RecordId(id));
        }
    }
    ids.sort_unstable();
    Ok((now, ids))
}

fn deleted_ids(rows: &[PgRow]) -> Result<Vec<RecordId>, sqlx::Error> {
    rows.iter()
        .map(|row| row.try_get::<[u8; 16], _>(0).map(RecordId))
        .collect()
}

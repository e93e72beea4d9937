//! The embedded store: one SQLite file, one writer thread that commits in groups.
//!
//! A write joins the group that gathers while the previous group becomes durable, so one fsync serves many
//! keys. The first lookup of a key happens on a reader connection, directly in the calling thread: a record
//! is a few cached pages, and switching to another thread would cost more than the read. Replays therefore
//! never wait for an fsync. Longer work runs on a blocking thread.
//!
//! Deliberately absent: a second process on the same file. Wake-ups and counters live in this process, so
//! [`SqliteStore::open`] locks the file itself (`lock.rs`) and refuses a file that is in use.
//!
//! A store that is closed, or dropped, leaves a file that is complete without its log; `stopped.rs` describes
//! how an incomplete file is recognised.

mod batch;
mod checkpoint;
pub(crate) mod dialect;
mod known_ids;
mod lister;
mod lock;
mod open;
mod outbox;
#[cfg(test)]
mod plans;
mod read;
mod schema;
mod slot;
mod stopped;
mod transactional;
mod write;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope, Secret,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::{broadcast, watch};

use crate::{
    BoxError, CLOCK_MARK, Copies, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level,
    Listed, Loss, Outbox, Page, Reply, Standing, Store, StoreError, Swapped, WAKEUP_BACKLOG, Walk,
    clock::StoreClock,
    identity::{ACCEPTED, IDENTITY, IDENTITY_BYTES, STANDING},
    random_bytes,
    sql::{
        dialect::{Dialect as _, Statement, Value},
        meta,
        row::RowError,
        scan, scopes,
        stretches::Stretches,
    },
};
use batch::{Done, Operation, Writer};
use checkpoint::Checkpointer;
use dialect::SqliteDialect;
use known_ids::KnownIds;
use lister::{Gone, Lister};
use lock::{Lock, Places};
pub use open::{OpenError, SqliteOptions};
use outbox::SqliteOutbox;
use read::Readers;
pub use schema::script;
use slot::Slot;
pub use transactional::{SqliteConnection, SqliteOpen, SqliteTransactions};
use write::{Memory, Tally};

/// How many stretches the reaper walks before its position is stored.
const LOOKS_PER_NOTE: u64 = 64;

/// A store in one SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    secret: Secret,
    /// The identity that an operator has set, if any.
    own_identity: Mutex<Option<Vec<u8>>>,
    clock: StoreClock,
    readers: Readers,
    /// For scans of the background loops, and for scans of operators: neither delays the other, and neither
    /// delays requests.
    worker_scans: Arc<Slot>,
    admin_scans: Arc<Slot>,
    writer: Arc<Writer>,
    lister: Lister,
    tally: Arc<Tally>,
    known_ids: Arc<KnownIds>,
    stretches: Stretches,
    looks: AtomicU64,
    wakeups: broadcast::Sender<RecordId>,
    messages: watch::Sender<u64>,
    outbox: SqliteOutbox,
    checkpointer: Checkpointer,
    /// Released when the process ends, however it ends; the file itself after all connections to it.
    _lock: Lock,
    lock_file: File,
}

impl SqliteStore {
    /// Opens or creates the file, bringing its schema up to date.
    ///
    /// # Errors
    /// [`OpenError`] says why the file cannot be used.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, &SqliteOptions::default())
    }

    /// As [`open`](Self::open), with options.
    ///
    /// # Errors
    /// [`OpenError`] says why the file cannot be used.
    pub fn open_with(path: &Path, options: &SqliteOptions) -> Result<Self, OpenError> {
        let clock = options.clock.clone();
        if !options.create && !path.exists() {
            return Err(OpenError::Absent(path.to_owned()));
        }
        let path = &lock::resolved(path);
        let mut lock_file = lock::beside(path)?;
        // A file in use under another name seems to lack its log, and taking the lock would create a missing
        // file.
        let lock = path.exists().then(|| Lock::take(path)).transpose()?;
        let memory = stopped::check(path, &mut lock_file, options.accept_incomplete)?;
        let lock = lock.map_or_else(|| Lock::take(path), Ok)?;
        let sqlite = OpenError::sqlite(path);
        let mut connection = schema::connect(path).map_err(sqlite)?;
        // SQLite silently opens a file that it cannot write as read-only.
        if connection.is_readonly(rusqlite::MAIN_DB).map_err(sqlite)? {
            return Err(OpenError::ReadOnly(path.to_owned()));
        }
        schema::check_settings(&connection, path)?;
        schema::prepare(&mut connection, path, options)?;
        let secret = schema::secret(&connection, path)?;
        let own_identity = schema::own_identity(&connection).map_err(sqlite)?;
        if memory == stopped::Memory::Lost {
            tracing::error!(
                file = %path.display(),
                "this is not the file that was last in use here: it was restored, replaced or removed, and \
                 keys that came after it was copied are not in it"
            );
            stopped::note_lost(&connection, clock.now()).map_err(sqlite)?;
        }
        stopped::begin(&connection, path, &mut lock_file)?;
        let io = OpenError::io(path);
        let places = Places::note(path).map_err(io)?;
        let walked = schema::walk_position(&connection).map_err(sqlite)?;
        let tally = Arc::new(Tally::count(&connection).map_err(sqlite)?);
        let readers = Readers::open(path).map_err(sqlite)?;
        let wakeups = broadcast::Sender::new(WAKEUP_BACKLOG);
        let messages = watch::Sender::new(0);
        let outbox = SqliteOutbox::open(
            path,
            clock.clone(),
            tally.clone(),
            wakeups.clone(),
            messages.clone(),
        )
        .map_err(sqlite)?;
        let (clocked, tallied) = (clock.clone(), tally.clone());
        let listed_to = schema::listed_to(&connection).map_err(sqlite)?;
        let last = schema::last_number(&connection).map_err(sqlite)?;
        let gone = Arc::new(Gone::default());
        let known_ids = Arc::new(KnownIds::read(&connection, tally.clone()).map_err(sqlite)?);
        let writer = Writer::start(
            connection,
            places,
            clocked,
            tallied,
            wakeups.clone(),
            Memory::new(last.max(listed_to) + 1, known_ids.clone()),
            gone.clone(),
        );
        let writer = Arc::new(writer.map_err(io)?);
        let checkpointer = Checkpointer::start(path, writer.clone()).map_err(sqlite)?;
        let lister = Lister::start(path, writer.clone(), gone, known_ids.clone());
        let lister = lister.map_err(sqlite)?;
        Ok(Self {
            path: path.to_owned(),
            secret,
            own_identity: Mutex::new(own_identity),
            clock,
            readers,
            worker_scans: Arc::new(Slot::new(schema::connect_to_read(path).map_err(sqlite)?)),
            admin_scans: Arc::new(Slot::new(schema::connect_to_read(path).map_err(sqlite)?)),
            writer,
            lister,
            tally,
            known_ids,
            stretches: Stretches::after(walked),
            looks: AtomicU64::new(0),
            wakeups,
            messages,
            outbox,
            checkpointer,
            _lock: lock,
            lock_file,
        })
    }
}

impl SqliteStore {
    /// This store in transactions of the application, whose tables are in the same file. These transactions
    /// run one at a time, on one connection.
    ///
    /// # Errors
    /// [`OpenError`] if the file cannot be opened once more.
    pub fn transactions(&self) -> Result<SqliteTransactions, OpenError> {
        let (tally, wakeups) = (self.tally.clone(), self.wakeups.clone());
        let (clock, messages) = (self.clock.clone(), self.messages.clone());
        let opened = SqliteTransactions::open(&self.path, clock, tally, wakeups, messages);
        opened.map_err(OpenError::sqlite(&self.path))
    }
}

impl SqliteStore {
    /// Runs a statement on the writer, and returns once it is durable.
    async fn run(&self, statement: Statement) -> Result<(), StoreError> {
        let operation = Operation::Run(statement);
        self.writer.submit(operation).await.map(|_| ())
    }

    /// Stores a value under a name, replacing the old one.
    async fn note(&self, name: &str, value: Value) -> Result<(), StoreError> {
        self.run(meta::note::<SqliteDialect>(name, value)).await
    }

    /// Stores the time under a name, in the form that [`Standing::read`] reads.
    async fn note_time(&self, name: &str) -> Result<(), StoreError> {
        let now = self.clock.now().0.to_string();
        self.note(name, Value::bytes(now.as_bytes())).await
    }

    /// Live records whose `column` has passed.
    async fn passed(
        &self,
        column: &'static str,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let now = self.clock.now();
        let value = in_background(&self.worker_scans, move |connection| {
            read::live(connection, column, now, limit)
        });
        let value = value.await?;
        Ok(Reply { now, value })
    }

    /// Closes every connection, the writer's last: commits what is queued, moves the log into the file, and
    /// marks the file as stopped. A second call does nothing.
    fn stop(&self) {
        self.outbox.close();
        self.worker_scans.interrupt();
        self.admin_scans.interrupt();
        self.readers.close();
        self.lister.end();
        self.checkpointer.end();
        self.writer.end();
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.stop();
        // As for the lock on the file itself, which goes with its own drop.
        let _ = self.lock_file.unlock();
    }
}

/// Runs a scan on a blocking thread.
async fn in_background<T: Send + 'static>(
    connection: &Arc<Slot>,
    read: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, StoreError> {
    let connection = connection.clone();
    let read = tokio::task::spawn_blocking(move || read(&*connection.lock()?)).await;
    Ok(read.map_err(|error| StoreError::Unavailable(Box::new(error)))??)
}

/// Errors of a read.
#[derive(Debug)]
enum ReadError {
    Sqlite(rusqlite::Error),
    Unreadable(BoxError),
    Closed,
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<RowError> for ReadError {
    fn from(RowError::Unreadable(error): RowError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Sqlite(error) => Self::Unavailable(Box::new(error)),
            ReadError::Unreadable(error) => Self::Unreadable(error),
            ReadError::Closed => Self::Unavailable("the store is closed".into()),
        }
    }
}

/// The writer answered with the outcome of another kind of operation.
fn mismatched() -> StoreError {
    StoreError::Ambiguous("the writer answered another question".into())
}

#[async_trait]
impl Store for SqliteStore {
    fn level(&self) -> Level {
        Level::Sync
    }

    fn copies(&self) -> Copies {
        Copies::Owned
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        if !self.known_ids.may_hold(id) {
            return None;
        }
        // The blocking path meets the same error again, and reports it.
        let value = self
            .readers
            .try_with(|connection| read::record(connection, id))?
            .ok()??;
        Some(Reply {
            now: self.clock.now(),
            value,
        })
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let readers = self.readers.clone();
        let read = move || readers.with(|connection| read::record(connection, id));
        let read = tokio::task::spawn_blocking(read).await;
        let value = read.map_err(|error| StoreError::Unavailable(Box::new(error)))??;
        Ok(Reply {
            now: self.clock.now(),
            value,
        })
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        match self
            .writer
            .submit(Operation::Insert(Box::new(draft)))
            .await?
        {
            (now, Done::Inserted(value)) => Ok(Reply { now, value: *value }),
            _ => Err(mismatched()),
        }
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        match self
            .writer
            .submit(Operation::Swap(expected, Box::new(change)))
            .await?
        {
            (now, Done::Swapped(value)) => Ok(Reply { now, value: *value }),
            _ => Err(mismatched()),
        }
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        match self.writer.submit(Operation::Delete(id, expected)).await? {
            (_, Done::Deleted(deleted)) => Ok(deleted),
            _ => Err(mismatched()),
        }
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.writer
            .submit(Operation::Append(journal))
            .await
            .map(|_| ())
    }

    async fn prune_audit(&self, keep: std::time::Duration) -> Result<(), StoreError> {
        // Rows are in the order in which they were written, so that only old ones are visited.
        let sql = "DELETE FROM journal WHERE at < ?1 AND actor = 'operator' \
                   AND number < coalesce((SELECT number FROM journal WHERE at >= ?1 \
                                          ORDER BY number LIMIT 1), 9223372036854775807) \
                   AND NOT EXISTS (SELECT 1 FROM keys WHERE keys.id = journal.id)";
        let cutoff = crate::cutoff(self.clock.now(), keep);
        let statement = SqliteDialect::statement(sql, vec![Value::Number(cutoff.0)]);
        self.run(statement).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.passed("lease_until", limit).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.passed("reconcile_after", limit).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let now = self.clock.now();
        let from = self.stretches.next();
        let look = in_background(&self.worker_scans, move |connection| {
            read::walk(connection, from, now, limit)
        });
        let reply = self.stretches.looked(from, look.await?);
        // Starting over after a restart costs one walk, so not every position need be durable.
        let looks = self.looks.fetch_add(1, Ordering::Relaxed) + 1;
        if looks.is_multiple_of(LOOKS_PER_NOTE) {
            let position = Value::Number(self.stretches.position());
            self.note("walked_to", position).await?;
        }
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        scan::list(&self.admin_scans, filter, cursor, limit).await
    }

    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        let listed = scan::list_in(&self.admin_scans, scopes, filter, cursor, limit);
        listed.await.map(Some)
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.run(scopes::keep::<SqliteDialect>(id, name)).await
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        scopes::after(&self.admin_scans, after).await.map(Some)
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        scopes::listed(&self.admin_scans, ids).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        scan::history(&self.admin_scans, id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        scan::audit(&self.admin_scans, cursor, limit).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        Ok(self.tally.counts())
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        scan::live_of(&self.readers, scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let statement = meta::keep_recipe::<SqliteDialect>(recipe.id(), recipe.encode());
        self.run(statement).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        meta::recipe(&self.admin_scans, id).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.run(meta::keep_block::<SqliteDialect>(name, bytes))
            .await?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        meta::block(&self.admin_scans, name).await
    }

    fn identity(&self) -> Identity {
        Identity::found(&self.secret, self.own_identity.lock().as_deref())
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>().to_vec();
        self.note(&format!("block/{IDENTITY}"), Value::bytes(&*own))
            .await?;
        *self.own_identity.lock() = Some(own);
        Ok(self.identity())
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        let read = in_background(&self.worker_scans, |connection| {
            let mut values = STANDING.map(|_| None::<Vec<u8>>);
            for (name, value) in STANDING.iter().zip(&mut values) {
                *value = schema::noted(connection, name)?;
            }
            Ok(Standing::read(values.each_ref().map(Option::as_deref)))
        });
        Ok(Some(Standing {
            // Nobody else can change the identity: the file is locked.
            identity: Some(self.identity().id()),
            ..read.await?
        }))
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        let before =
            "CAST(substr(CAST(value AS TEXT), 1, instr(CAST(value AS TEXT), ' ')) AS INTEGER)";
        let sql = format!(
            "INSERT INTO meta (name, value) VALUES (?1, CAST('1 ' || ?2 AS BLOB)) \
             ON CONFLICT (name) DO UPDATE SET value = CAST(({before} + 1) || ' ' || ?2 AS BLOB)"
        );
        let values = vec![Value::text("epoch"), Value::Number(self.clock.now().0)];
        self.run(SqliteDialect::statement(&sql, values)).await?;
        let raised = self.standing().await?.and_then(|standing| standing.epoch);
        raised.ok_or_else(|| StoreError::Ambiguous("the epoch cannot be read".into()))
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.note_time(loss.name()).await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        self.note_time(ACCEPTED).await
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        self.note(&format!("block/{CLOCK_MARK}"), Value::bytes(mark))
            .await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.note("probed_at", Value::Number(now.0)).await
    }

    async fn close(&self) {
        transactional::waiting(|| self.stop());
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        Some(Arc::new(self.outbox.clone()))
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.wakeups.subscribe()
    }
}

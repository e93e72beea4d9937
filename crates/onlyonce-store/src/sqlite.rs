//! The embedded store: one SQLite file, one writer thread that commits in groups.
//!
//! A write joins the group that is being gathered while the last one is made durable, so one fsync
//! serves many keys. The first look at a key happens on a reader connection, at once and in the
//! calling thread: a record is a few cached pages, and a hop to another thread would cost more than
//! the read. Replays therefore never wait for an fsync. Whatever may take longer runs in a thread
//! that may wait.
//!
//! Deliberately absent: a second process on the same file. Wake-ups and counters live in this
//! process, so [`SqliteStore::open`] takes a lock and refuses a file that is in use.

mod batch;
mod checkpoint;
mod outbox;
mod read;
mod row;
mod schema;
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
    BoxError, Counts, Filter, Inserted, JournalRow, Level, Listed, Outbox, Page, Reply, Store,
    StoreError, Swapped, WAKEUP_BACKLOG, Walk, clock::StoreClock,
};
use batch::{Done, Operation, Writer};
use checkpoint::Checkpointer;
use outbox::SqliteOutbox;
use read::Readers;
pub use schema::script;
pub use transactional::{SqliteConnection, SqliteOpen, SqliteTransactions};
use write::Tally;

/// Stretches of the reaper's walk after which its place is written down.
const STRETCHES_PER_NOTE: u64 = 64;

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{0} is in use by another process: an embedded store serves one gateway; stop the other one, or use a shared store"
    )]
    InUse(PathBuf),
    /// It was made by a newer version.
    #[error(
        "{path} has schema version {found}, and this program knows versions up to {known}: run a newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It was made by an older version, and may not be changed.
    #[error(
        "{path} has schema version {found}, and store.migrate is off: start once with store.migrate on"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// It can be read, and not written.
    #[error("{0} cannot be written: the file, its folder or its file system is read-only")]
    ReadOnly(PathBuf),
    /// The file system said no.
    #[error("cannot open {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file system does not allow what the level `sync` stands on.
    #[error("{path} cannot be used with {pragma}: SQLite answered `{found}`")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The setting.
        pragma: &'static str,
        /// What it is instead.
        found: String,
    },
    /// SQLite said no.
    #[error("cannot open {path} as a SQLite database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The secret in the file is not one.
    #[error("{0} holds no usable secret: it is damaged, or not a store of this program")]
    Damaged(PathBuf),
}

/// A store in one SQLite file.
pub struct SqliteStore {
    path: PathBuf,
    secret: Secret,
    clock: StoreClock,
    readers: Readers,
    /// For scans of the background loops, and for those of people: neither holds up the other, and
    /// neither holds up requests.
    worker_scans: Arc<Mutex<Connection>>,
    admin_scans: Arc<Mutex<Connection>>,
    writer: Writer,
    tally: Arc<Tally>,
    walked: Mutex<i64>,
    stretches: AtomicU64,
    wakeups: broadcast::Sender<RecordId>,
    messages: watch::Sender<u64>,
    outbox: SqliteOutbox,
    _checkpointer: Checkpointer,
    /// Released with the process, however it ends.
    _lock: File,
}

impl SqliteStore {
    /// Opens or creates the file, bringing its schema up to date.
    ///
    /// # Errors
    /// [`OpenError`] says why the file cannot be used.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with(path, StoreClock::system(), true)
    }

    /// As [`open`](Self::open), with a clock, and with the choice to leave an old schema alone.
    ///
    /// # Errors
    /// [`OpenError`] says why the file cannot be used.
    pub fn open_with(path: &Path, clock: StoreClock, migrate: bool) -> Result<Self, OpenError> {
        let lock = take_lock(path)?;
        create_for_the_owner(path)?;
        let sqlite = |source| OpenError::Sqlite {
            path: path.to_owned(),
            source,
        };
        let mut connection = schema::connect(path).map_err(sqlite)?;
        // SQLite opens a file that it cannot write for reading, without a word.
        if connection.is_readonly(rusqlite::MAIN_DB).map_err(sqlite)? {
            return Err(OpenError::ReadOnly(path.to_owned()));
        }
        schema::check_settings(&connection, path)?;
        schema::prepare(&mut connection, path, migrate)?;
        let secret = schema::secret(&connection, path)?;
        let walked = schema::walk_position(&connection).map_err(sqlite)?;
        let tally = Arc::new(Tally::count(&connection).map_err(sqlite)?);
        let readers = Readers::open(path).map_err(sqlite)?;
        let checkpointer = Checkpointer::start(path).map_err(sqlite)?;
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
        let writer = Writer::start(connection, clock.clone(), tally.clone(), wakeups.clone())
            .map_err(|source| OpenError::Io {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            path: path.to_owned(),
            secret,
            clock,
            readers,
            worker_scans: Arc::new(Mutex::new(schema::connect_to_read(path).map_err(sqlite)?)),
            admin_scans: Arc::new(Mutex::new(schema::connect_to_read(path).map_err(sqlite)?)),
            writer,
            tally,
            walked: Mutex::new(walked),
            stretches: AtomicU64::new(0),
            wakeups,
            messages,
            outbox,
            _checkpointer: checkpointer,
            _lock: lock,
        })
    }
}

impl SqliteStore {
    /// This store in transactions of the application, whose tables are in the same file. They run one at a
    /// time, on one connection.
    ///
    /// # Errors
    /// [`OpenError`] if the file cannot be opened once more.
    pub fn transactions(&self) -> Result<SqliteTransactions, OpenError> {
        let (tally, wakeups) = (self.tally.clone(), self.wakeups.clone());
        let (clock, messages) = (self.clock.clone(), self.messages.clone());
        let opened = SqliteTransactions::open(&self.path, clock, tally, wakeups, messages);
        opened.map_err(|source| OpenError::Sqlite {
            path: self.path.clone(),
            source,
        })
    }
}

/// Runs a scan in a thread that may wait.
async fn scan<T: Send + 'static>(
    connection: &Arc<Mutex<Connection>>,
    read: impl FnOnce(&Connection) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, StoreError> {
    let connection = connection.clone();
    let read = tokio::task::spawn_blocking(move || read(&connection.lock())).await;
    Ok(read.map_err(|error| StoreError::Unavailable(Box::new(error)))??)
}

fn take_lock(path: &Path) -> Result<File, OpenError> {
    let io = |source| OpenError::Io {
        path: path.to_owned(),
        source,
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(PathBuf::from(name))
        .map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::InUse(path.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

/// Creates the file, if it is not there, so that nobody else can read keys and answers.
fn create_for_the_owner(path: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::OpenOptionsExt;
    let created = File::options()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path);
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(OpenError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}

/// What can go wrong while reading.
#[derive(Debug)]
enum ReadError {
    Sqlite(rusqlite::Error),
    Unreadable(BoxError),
}

impl From<rusqlite::Error> for ReadError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<crate::codec::CodecError> for ReadError {
    fn from(error: crate::codec::CodecError) -> Self {
        Self::Unreadable(Box::new(error))
    }
}

impl From<ReadError> for StoreError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Sqlite(error) => Self::Unavailable(Box::new(error)),
            ReadError::Unreadable(error) => Self::Unreadable(error),
        }
    }
}

/// The writer answers each operation with the outcome of its own kind.
fn mismatched() -> StoreError {
    StoreError::Ambiguous("the writer answered another question".into())
}

#[async_trait]
impl Store for SqliteStore {
    fn level(&self) -> Level {
        Level::Sync
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        // An error here is met again, and reported, on the way that waits.
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
        let operation = Operation::PruneAudit(keep);
        self.writer.submit(operation).await.map(|_| ())
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        let now = self.clock.now();
        let value = scan(&self.worker_scans, move |connection| {
            read::lapsed(connection, now, limit)
        })
        .await?;
        Ok(Reply { now, value })
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        let now = self.clock.now();
        let value = scan(&self.worker_scans, move |connection| {
            read::due(connection, now, limit)
        })
        .await?;
        Ok(Reply { now, value })
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let now = self.clock.now();
        let from = *self.walked.lock();
        let (walk, position) = scan(&self.worker_scans, move |connection| {
            read::walk(connection, from, now, limit)
        })
        .await?;
        *self.walked.lock() = position;
        // Starting over after a restart costs a walk, so the place need not be durable each time.
        let stretch = self.stretches.fetch_add(1, Ordering::Relaxed) + 1;
        if stretch.is_multiple_of(STRETCHES_PER_NOTE) {
            self.writer.submit(Operation::WalkedTo(position)).await?;
        }
        Ok(Reply { now, value: walk })
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let filter = filter.clone();
        scan(&self.admin_scans, move |connection| {
            read::list(connection, &filter, cursor, limit)
        })
        .await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        scan(&self.admin_scans, move |connection| {
            read::history(connection, id)
        })
        .await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        scan(&self.admin_scans, move |connection| {
            read::audit(connection, cursor, limit)
        })
        .await
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
        let (readers, scope) = (self.readers.clone(), scope.clone());
        let read =
            move || readers.with(|connection| read::live_of(connection, &scope, caller, limit));
        let read = tokio::task::spawn_blocking(read).await;
        Ok(read.map_err(|error| StoreError::Unavailable(Box::new(error)))??)
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let operation = Operation::KeepRecipe(recipe.id(), recipe.encode());
        self.writer.submit(operation).await.map(|_| ())
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        scan(&self.admin_scans, move |connection| {
            read::recipe(connection, id)
        })
        .await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let operation = Operation::KeepBlock(name.to_owned(), bytes.to_vec());
        self.writer.submit(operation).await?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let name = name.to_owned();
        scan(&self.admin_scans, move |connection| {
            read::block(connection, &name)
        })
        .await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.writer.submit(Operation::Probe).await.map(|_| ())
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        Some(Arc::new(self.outbox.clone()))
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.wakeups.subscribe()
    }
}

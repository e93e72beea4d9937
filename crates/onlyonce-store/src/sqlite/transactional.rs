//! The application's transactions on SQLite: its tables are in the store's own file.
//!
//! SQLite has one writer at a time. The application's transactions take turns with the store's writing
//! thread, so they must be short; while one is open, no key can be reserved. Known keys are still answered
//! immediately, by readers.

use std::{
    ops::{Deref, DerefMut},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{
    AttemptId, MessageId, Record, RecordId, Timestamp,
    record::{Change, Revision},
};
use rusqlite::{Connection, ErrorCode, params};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{Mutex, OwnedMutexGuard, broadcast, watch},
};

use super::{
    ReadError,
    dialect::SqliteDialect,
    read, schema,
    write::{self, Step, Tally},
};
use crate::{
    Reply, StoreError, Swapped,
    clock::StoreClock,
    sql::phases,
    transactional::{Isolation, Message, Progress, Settles, TransactionError, TransactionalStore},
};

/// The store of a SQLite file, in transactions of the application.
#[derive(Clone)]
pub struct SqliteTransactions {
    connection: Arc<Mutex<SqliteConnection>>,
    clock: StoreClock,
    tally: Arc<Tally>,
    wakeups: broadcast::Sender<RecordId>,
    messages: watch::Sender<u64>,
}

/// The connection of the application's transactions: a [`rusqlite::Connection`].
pub struct SqliteConnection {
    connection: Connection,
    /// The changes of the open transaction.
    steps: Vec<Step>,
    /// Whether the open transaction enqueues a message.
    left_a_message: bool,
    /// Whether a commit is allowed now. Any other commit is rolled back: a statement after the end of its
    /// transaction, which SQLite would commit by itself, and a COMMIT of the application's own.
    may_commit: Arc<AtomicBool>,
}

impl SqliteConnection {
    /// Fails unless the transaction is still open. A statement may have ended it: a constraint with
    /// `ON CONFLICT ROLLBACK`, a disk that is full, or a ROLLBACK of the application's own.
    fn in_transaction(&mut self) -> Result<&mut Self, TransactionError> {
        match self.connection.is_autocommit() {
            false => Ok(self),
            true => {
                let ended = "the transaction was rolled back under the work; nothing of it is kept";
                Err(TransactionError::Database(ended.into()))
            }
        }
    }
}

impl Deref for SqliteConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// An open transaction, rolled back when dropped.
pub struct SqliteOpen(OwnedMutexGuard<SqliteConnection>);

impl Deref for SqliteOpen {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.0
    }
}

impl DerefMut for SqliteOpen {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.0
    }
}

impl Drop for SqliteOpen {
    fn drop(&mut self) {
        if !self.0.is_autocommit() {
            // The next BEGIN reports a failure.
            let _ = self.0.execute_batch("ROLLBACK");
        }
        self.0.steps.clear();
        self.0.left_a_message = false;
    }
}

impl SqliteTransactions {
    pub(super) fn open(
        path: &Path,
        clock: StoreClock,
        tally: Arc<Tally>,
        wakeups: broadcast::Sender<RecordId>,
        messages: watch::Sender<u64>,
    ) -> rusqlite::Result<Self> {
        let connection = schema::connect(path)?;
        let may_commit = Arc::new(AtomicBool::new(false));
        let may = may_commit.clone();
        connection.commit_hook(Some(move || !may.load(Ordering::SeqCst)))?;
        Ok(Self {
            connection: Arc::new(Mutex::new(SqliteConnection {
                connection,
                steps: Vec::new(),
                left_a_message: false,
                may_commit,
            })),
            clock,
            tally,
            wakeups,
            messages,
        })
    }
}

/// Runs work that may wait for a lock or a disk, without blocking other tasks if the runtime allows it.
pub(super) fn waiting<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

impl From<rusqlite::Error> for TransactionError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Conflict(Box::new(error))
            }
            _ => Self::Database(Box::new(error)),
        }
    }
}

impl From<ReadError> for TransactionError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Sqlite(error) => error.into(),
            ReadError::Unreadable(error) => Self::Unreadable(error),
            ReadError::Closed => Self::Database("the store is closed".into()),
        }
    }
}

impl From<StoreError> for TransactionError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreadable(error) => Self::Unreadable(error),
            other => Self::Database(Box::new(other)),
        }
    }
}

impl TransactionalStore for SqliteTransactions {
    type Connection = SqliteConnection;
    type Open = SqliteOpen;

    /// Every transaction on SQLite is serialisable, whatever isolation is requested.
    async fn begin(&self, _isolation: Isolation) -> Result<SqliteOpen, TransactionError> {
        let open = SqliteOpen(self.connection.clone().lock_owned().await);
        waiting(|| open.execute_batch("BEGIN IMMEDIATE"))?;
        Ok(open)
    }

    async fn commit(&self, mut open: SqliteOpen) -> Result<(), TransactionError> {
        let open_still = open.in_transaction()?;
        open_still.may_commit.store(true, Ordering::SeqCst);
        let committed = waiting(|| open.execute_batch("COMMIT"));
        open.may_commit.store(false, Ordering::SeqCst);
        committed?;
        let steps = std::mem::take(&mut open.steps);
        self.tally.take(&steps);
        if open.left_a_message {
            self.messages.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    async fn rollback(&self, open: SqliteOpen) {
        drop(open);
    }

    async fn lock(
        &self,
        connection: &mut SqliteConnection,
        id: RecordId,
    ) -> Result<Option<Reply<Record>>, TransactionError> {
        // The transaction holds the whole file.
        let now = self.clock.now();
        let found = read::record(connection.in_transaction()?, id)?;
        Ok(found.map(|value| Reply { now, value }))
    }

    async fn swap(
        &self,
        connection: &mut SqliteConnection,
        expected: Revision,
        change: &Change,
    ) -> Result<Reply<Swapped>, TransactionError> {
        let now = self.clock.now();
        let SqliteConnection {
            connection, steps, ..
        } = connection.in_transaction()?;
        let value = write::swap(connection, expected, change, now, steps)?;
        Ok(Reply { now, value })
    }

    fn committed(&self, id: RecordId) {
        // It is not an error if nobody listens.
        let _ = self.wakeups.send(id);
    }

    async fn enqueue(
        &self,
        connection: &mut SqliteConnection,
        message: &Message,
    ) -> Result<MessageId, TransactionError> {
        let now = self.clock.now();
        let (kind, which) = match &message.aggregate {
            Some((kind, which)) => (Some(kind), Some(which)),
            None => (None, None),
        };
        let id = connection
            .in_transaction()?
            .prepare_cached(
                "INSERT INTO outbox (id, created_at, due_at, key_id, settles, target, \
                 aggregatetype, aggregateid, type, ordering_key, downstream_key, headers, payload) \
                 SELECT m.id, ?1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, coalesce(?9, lower(hex(m.id))), \
                 ?10, ?11 FROM (SELECT randomblob(16) AS id) m RETURNING id",
            )?
            .query_row(
                params![
                    now.0,
                    message.key.map(|key| key.0),
                    message.settles.as_ref().map(Settles::encode),
                    message.target,
                    kind,
                    which,
                    message.kind,
                    message.ordering_key,
                    message.downstream_key,
                    message.headers,
                    message.payload,
                ],
                |row| row.get(0),
            )?;
        connection.left_a_message = true;
        Ok(MessageId(id))
    }

    async fn receive(
        &self,
        connection: &mut SqliteConnection,
        consumer: &str,
        message_id: &str,
        retention: Duration,
    ) -> Result<bool, TransactionError> {
        let now = self.clock.now();
        // Nobody else deletes expired entries: the file has one application.
        connection
            .in_transaction()?
            .prepare_cached("DELETE FROM inbox WHERE keep_until <= ?1")?
            .execute(params![now.0])?;
        let first = connection
            .prepare_cached(
                "INSERT INTO inbox (consumer, message_id, at, keep_until) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT DO NOTHING",
            )?
            .execute(params![consumer, message_id, now.0, now.plus(retention).0])?;
        Ok(first == 1)
    }

    async fn hold(
        &self,
        _connection: &mut SqliteConnection,
        _natural_key: &str,
    ) -> Result<(), TransactionError> {
        // The transaction is the only writer, under any key.
        Ok(())
    }

    async fn progress(
        &self,
        connection: &mut SqliteConnection,
        id: RecordId,
    ) -> Result<Option<Progress>, TransactionError> {
        let statement = phases::of::<SqliteDialect>(id);
        let mut found = read::asked(connection.in_transaction()?, statement, |row| {
            phases::read(row)
        })?;
        Ok(found.pop())
    }

    async fn discard(
        &self,
        connection: &mut SqliteConnection,
        id: RecordId,
        attempt: AttemptId,
    ) -> Result<(), TransactionError> {
        let statement = phases::discard::<SqliteDialect>(id, attempt);
        Ok(write::execute(connection.in_transaction()?, &statement)?)
    }

    async fn advance(
        &self,
        connection: &mut SqliteConnection,
        progress: &Progress,
    ) -> Result<(), TransactionError> {
        let now = self.clock.now().max(progress.updated_at);
        let statement = phases::advance::<SqliteDialect>(progress, now);
        Ok(write::execute(connection.in_transaction()?, &statement)?)
    }

    async fn unfinished(
        &self,
        operation: &str,
        after: (Timestamp, RecordId),
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, TransactionError> {
        let statement = phases::unfinished::<SqliteDialect>(operation, after, limit);
        let connection = self.connection.clone().lock_owned().await;
        let found = read::asked(&connection, statement, |row| phases::read_unfinished(row));
        Ok(found?)
    }
}

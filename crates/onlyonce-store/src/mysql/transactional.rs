//! Operations in the caller's transaction on MySQL or MariaDB, on connections of the caller's own pool.
//!
//! These servers roll back a whole transaction to end a deadlock, and then execute what follows as if nothing
//! had happened: each statement by itself, and permanently. Work that ignores that error would leave half of
//! itself behind. So what follows belongs to a next transaction (`autocommit = 0`), and nothing is committed
//! unless the savepoint made at the beginning still exists.

use std::{
    ops::{Deref, DerefMut},
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
use sqlx::{AssertSqlSafe, Executor as _, MySql, MySqlConnection, MySqlPool, Transaction};

use super::{
    dialect::MySqlDialect,
    failure::{was_deadlock, was_duplicate},
    scan::Scanners,
    server::{self, Results, select_whole, time},
    text::{self, Script, bytes, literal},
    write,
};
use crate::{
    Reply, StoreError, Swapped,
    outbox::millis,
    random_bytes,
    sql::{lane::Found, line::Dial as _, phases, row::RowError},
    transactional::{Isolation, Message, Progress, Settles, TransactionError, TransactionalStore},
};

/// How often the row of a natural key is created again if it was deleted before it could be locked.
const MAX_ROUNDS: usize = 4;

/// The sizes of the columns, in bytes. A session that is not strict would silently cut off the rest.
const MAX_NAME: usize = 255;
const MAX_ORDERING_KEY: usize = 512;
const MAX_MESSAGE_ID: usize = 1_024;
const MAX_MEDIUM_BLOB: usize = (1 << 24) - 1;

/// Fails if the savepoint is gone; see the top of this file.
const RELEASE: &str = "RELEASE SAVEPOINT onlyonce";
/// The state of connections in the application's pool.
const AS_FOUND: &str = "SET autocommit = 1";
const TAKE_BACK: &str = "ROLLBACK; SET autocommit = 1";
/// The pool does not reuse a connection that does not answer.
const LAST_RESORT: &str = "KILL CONNECTION_ID()";

/// The store of a MySQL or MariaDB database, in transactions of the application's own pool.
#[derive(Clone)]
pub struct MySqlTransactions {
    pool: MySqlPool,
    scanners: Arc<Scanners>,
    /// Whether a message was enqueued since deliverers were last notified.
    enqueued: Arc<AtomicBool>,
}

/// An open transaction. It is rolled back when it is dropped.
pub struct MySqlOpen(Option<Transaction<'static, MySql>>);

impl MySqlOpen {
    fn transaction(&mut self) -> &mut Transaction<'static, MySql> {
        self.0.as_mut().expect("it is taken by its end alone")
    }
}

impl Deref for MySqlOpen {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        self.0.as_ref().expect("it is taken by its end alone")
    }
}

impl DerefMut for MySqlOpen {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.transaction()
    }
}

impl Drop for MySqlOpen {
    fn drop(&mut self) {
        // Without a runtime the pool cannot take the connection back either: it is closed.
        if let Some(transaction) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(take_back(transaction));
        }
    }
}

/// Rolls back, and restores the connection's state. A connection on which that fails is ended.
async fn take_back(mut transaction: Transaction<'static, MySql>) {
    let _ = match transaction.execute(TAKE_BACK).await {
        Ok(_) => transaction.rollback().await,
        Err(_) => transaction.execute(LAST_RESORT).await.map(|_| ()),
    };
}

impl MySqlTransactions {
    pub(super) fn new(pool: MySqlPool, scanners: Arc<Scanners>) -> Self {
        Self {
            pool,
            scanners,
            enqueued: Arc::default(),
        }
    }

    /// The application's pool.
    pub fn pool(&self) -> &MySqlPool {
        &self.pool
    }
}

async fn send(
    connection: &mut MySqlConnection,
    script: &Script,
) -> Result<Results, TransactionError> {
    let results = server::run(connection, script).await;
    results.map_err(|(_, error)| error.into())
}

/// Locks and reads the record under `id`, and reads the server's time. A locking read sees the latest commit,
/// whatever the transaction's snapshot.
pub(super) fn hold_record(id: RecordId) -> Script {
    let mut script = Script::timed();
    let whole = select_whole(&text::ids([id]));
    script.add(format_args!("{whole} FOR UPDATE"));
    script.add("SELECT @oo_now");
    script
}

pub(super) fn held_record(results: &Results) -> Result<Reply<Option<Record>>, RowError> {
    let now = time(results, 2)?;
    let found = results.get(1).and_then(|rows| rows.first());
    let value = match found.map(Found::in_row) {
        Some(Found::There(record)) => Some(*record),
        Some(Found::Unreadable(text)) => return Err(RowError::Unreadable(text.into())),
        Some(Found::New | Found::Busy) | None => None,
    };
    Ok(Reply { now, value })
}

/// Checks that `value` is not cut off.
fn fits(what: &'static str, value: &str, most: usize) -> Result<(), TransactionError> {
    match value.len() <= most {
        true => Ok(()),
        false => {
            let error = format!("{what} has {} bytes; it may have {most}", value.len());
            Err(TransactionError::Database(error.into()))
        }
    }
}

fn all_fit(values: &[(&'static str, Option<&str>, usize)]) -> Result<(), TransactionError> {
    values
        .iter()
        .try_for_each(|(what, value, most)| fits(what, value.unwrap_or_default(), *most))
}

/// The values, separated by commas.
fn values(values: &[Option<&[u8]>]) -> String {
    let mut sql = String::new();
    for (index, value) in values.iter().enumerate() {
        sql.push_str(if index == 0 { "" } else { ", " });
        bytes(&mut sql, *value);
    }
    sql
}

impl TransactionalStore for MySqlTransactions {
    type Connection = MySqlConnection;
    type Open = MySqlOpen;

    async fn begin(&self, isolation: Isolation) -> Result<MySqlOpen, TransactionError> {
        let begin = AssertSqlSafe(format!(
            "SET TRANSACTION ISOLATION LEVEL {}; \
             START TRANSACTION; SAVEPOINT onlyonce; SET autocommit = 0",
            isolation.as_sql()
        ));
        let pool = self.pool.clone();
        // In a task of its own: a future dropped halfway would return a connection to the pool without the
        // driver knowing that a transaction is open.
        let begun = tokio::spawn(async move {
            let begun = pool.begin_with(begin).await;
            begun.map(|transaction| MySqlOpen(Some(transaction)))
        });
        match begun.await {
            Ok(begun) => Ok(begun?),
            Err(error) => Err(TransactionError::Database(Box::new(error))),
        }
    }

    async fn commit(&self, mut open: MySqlOpen) -> Result<(), TransactionError> {
        let mut script = Script::default();
        script.add(RELEASE);
        script.commit();
        script.add(AS_FOUND);
        let unanswered = self.scanners.shared.line.doubt.unless_answered();
        let outcome = server::run(&mut open, &script).await;
        let outcome = outcome.map_err(|(done, error)| match done {
            0 => error.into(),
            // A cluster detects a deadlock that late. Any other error does not tell what was written.
            _ if was_deadlock(&error) => TransactionError::Conflict(Box::new(error)),
            _ => TransactionError::Database(Box::new(error)),
        });
        if !matches!(outcome, Err(TransactionError::Database(_))) {
            unanswered.answered();
        }
        outcome?;
        if let Some(transaction) = open.0.take() {
            // Tells the driver that the transaction is over. A failure here only ends the connection.
            let _ = transaction.commit().await;
        }
        if self.enqueued.swap(false, Ordering::Relaxed) {
            self.scanners
                .shared
                .messages
                .send_modify(|count| *count += 1);
        }
        Ok(())
    }

    async fn confirm(&self) -> Result<(), TransactionError> {
        let mut connection = self.pool.acquire().await?;
        Ok(self
            .scanners
            .shared
            .line
            .dial
            .confirm(&mut connection)
            .await?)
    }

    async fn rollback(&self, mut open: MySqlOpen) {
        if let Some(transaction) = open.0.take() {
            take_back(transaction).await;
        }
    }

    async fn lock(
        &self,
        connection: &mut MySqlConnection,
        id: RecordId,
    ) -> Result<Option<Reply<Record>>, TransactionError> {
        let results = send(connection, &hold_record(id)).await?;
        let Reply { now, value } = held_record(&results)?;
        Ok(value.map(|value| Reply { now, value }))
    }

    async fn swap(
        &self,
        connection: &mut MySqlConnection,
        expected: Revision,
        change: &Change,
    ) -> Result<Reply<Swapped>, TransactionError> {
        let id = change.draft.record.id;
        let mut script = hold_record(id);
        // The update names the revision, so it does nothing if that differs. The journal insert does not.
        let with_journal = !change.journal.is_empty();
        if !with_journal {
            script.write(|sql| write::update(sql, expected, change));
        }
        let results = send(connection, &script).await?;
        let Reply { now, value } = held_record(&results)?;
        let value = match value {
            None => Swapped::Absent,
            Some(record) if record.revision != expected => Swapped::Conflict(record),
            Some(_) => {
                if with_journal {
                    let mut script = Script::default();
                    script.write(|sql| write::update(sql, expected, change));
                    script.write(|sql| write::journal(sql, change.journal.iter()));
                    send(connection, &script).await?;
                }
                Swapped::Done(change.draft.clone().stamp(now))
            }
        };
        Ok(Reply { now, value })
    }

    fn committed(&self, id: RecordId) {
        self.scanners.shared.watch.settled(id);
    }

    async fn enqueue(
        &self,
        connection: &mut MySqlConnection,
        message: &Message,
    ) -> Result<MessageId, TransactionError> {
        let (kind, which) = match &message.aggregate {
            Some((kind, which)) => (Some(kind.as_str()), Some(which.as_str())),
            None => (None, None),
        };
        let ordering_key = message.ordering_key.as_deref();
        let downstream_key = message.downstream_key.as_deref();
        all_fit(&[
            ("target", Some(&message.target), MAX_NAME),
            ("kind", Some(&message.kind), MAX_NAME),
            ("aggregate", kind, MAX_NAME),
            ("aggregate", which, MAX_NAME),
            ("ordering_key", ordering_key, MAX_ORDERING_KEY),
            ("downstream_key", downstream_key, MAX_MEDIUM_BLOB),
            ("headers", Some(&message.headers), MAX_MEDIUM_BLOB),
        ])?;
        let id = MessageId(random_bytes());
        let own_name = id.to_string();
        let settles = message.settles.as_ref().map(Settles::encode);
        let key = message.key.map(|key| key.0);
        let values = values(&[
            Some(&id.0),
            key.as_ref().map(|key| &key[..]),
            settles.as_deref().map(str::as_bytes),
            Some(message.target.as_bytes()),
            kind.map(str::as_bytes),
            which.map(str::as_bytes),
            Some(message.kind.as_bytes()),
            ordering_key.map(str::as_bytes),
            ordering_key.map(str::as_bytes),
            Some(downstream_key.unwrap_or(&own_name).as_bytes()),
            Some(message.headers.as_bytes()),
            Some(&message.payload),
        ]);
        let mut script = Script::timed();
        script.add(format_args!(
            "INSERT INTO onlyonce_outbox (created_at, due_at, id, key_id, settles, target, \
             aggregatetype, aggregateid, type, ordering_key, in_order, downstream_key, headers, \
             payload) VALUES (@oo_now, @oo_now, {values})"
        ));
        send(connection, &script).await?;
        self.enqueued.store(true, Ordering::Relaxed);
        Ok(id)
    }

    async fn receive(
        &self,
        connection: &mut MySqlConnection,
        consumer: &str,
        message_id: &str,
        retention: Duration,
    ) -> Result<bool, TransactionError> {
        all_fit(&[
            ("consumer", Some(consumer), MAX_NAME),
            ("message_id", Some(message_id), MAX_MESSAGE_ID),
        ])?;
        let values = values(&[Some(consumer.as_bytes()), Some(message_id.as_bytes())]);
        let mut script = Script::timed();
        script.add(format_args!(
            "INSERT INTO onlyonce_inbox (consumer, message_id, at, keep_until) \
             VALUES ({values}, @oo_now, @oo_now + {})",
            // Capped so that adding it to any plausible time does not overflow.
            millis(retention).min(i64::MAX / 2)
        ));
        match server::run(connection, &script).await {
            Ok(_) => Ok(true),
            // Only the statement is rolled back; the transaction continues.
            Err((_, error)) if was_duplicate(&error) => Ok(false),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Locks a row that stands for the key. The row is created beforehand, on a connection of the store's
    /// own, so that nobody waits for an insert that may be rolled back; and it stays for a while afterwards.
    async fn hold(
        &self,
        connection: &mut MySqlConnection,
        natural_key: &str,
    ) -> Result<(), TransactionError> {
        let database = |error: StoreError| TransactionError::Database(Box::new(error));
        let id = format!("UNHEX(SHA2({}, 256))", literal(natural_key));
        let mut script = Script::default();
        script.add(format_args!(
            "SELECT id FROM onlyonce_natural_keys WHERE id = {id} FOR UPDATE"
        ));
        for _ in 0..MAX_ROUNDS {
            self.scanners.natural_key(&id).await.map_err(database)?;
            let results = send(connection, &script).await?;
            if results.first().is_some_and(|rows| !rows.is_empty()) {
                return Ok(());
            }
        }
        let gone = "the row of a natural key is tidied away as soon as it is made";
        Err(TransactionError::Conflict(gone.into()))
    }

    async fn progress(
        &self,
        connection: &mut MySqlConnection,
        id: RecordId,
    ) -> Result<Option<Progress>, TransactionError> {
        let results = send(connection, &phases::of::<MySqlDialect>(id).into()).await?;
        let row = results.first().and_then(|rows| rows.first());
        Ok(row.map(phases::read).transpose()?)
    }

    async fn discard(
        &self,
        connection: &mut MySqlConnection,
        id: RecordId,
        attempt: AttemptId,
    ) -> Result<(), TransactionError> {
        let statement = phases::discard::<MySqlDialect>(id, attempt);
        send(connection, &statement.into()).await.map(|_| ())
    }

    async fn advance(
        &self,
        connection: &mut MySqlConnection,
        progress: &Progress,
    ) -> Result<(), TransactionError> {
        let (intent, provider_id) = (progress.intent.as_deref(), progress.provider_id.as_deref());
        all_fit(&[
            ("operation", Some(&progress.operation), MAX_NAME),
            ("point", Some(&progress.point), MAX_NAME),
            ("intent", intent, MAX_NAME),
            ("provider_id", provider_id, MAX_MEDIUM_BLOB),
        ])?;
        let mut script = Script::timed();
        script.add(phases::advance::<MySqlDialect>(progress, progress.updated_at).sql);
        send(connection, &script).await.map(|_| ())
    }

    async fn unfinished(
        &self,
        operation: &str,
        after: (Timestamp, RecordId),
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, TransactionError> {
        let statement = phases::unfinished::<MySqlDialect>(operation, after, limit);
        let mut connection = self.pool.acquire().await?;
        let results = send(&mut connection, &statement.into()).await?;
        let rows = results.iter().flatten().map(phases::read_unfinished);
        Ok(rows.collect::<Result<_, RowError>>()?)
    }
}

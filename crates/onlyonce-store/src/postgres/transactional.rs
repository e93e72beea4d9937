//! Operations in the caller's transaction on PostgreSQL, on connections of the caller's own pool.

use std::{
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
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Row as _, Transaction};

use super::{
    connect::{CONFIRM, NO_STANDBY},
    dialect::{PgDialect, bound},
    notice::unwarned,
    server::{Shared, read, written_ids},
    statement,
    uuid::Uuid,
};
use crate::{
    Reply, Swapped,
    sql::{
        lane::{Answer, Found, How},
        phases,
        queue::Swap,
    },
    transactional::{
        Isolation, MAX_MESSAGE_BYTES, Message, Progress, Settles, TransactionError,
        TransactionalStore,
    },
};

/// Locks the row of a key that is in progress or unknown. Readers can still read it.
const LOCK: &str = "SELECT 1 FROM onlyonce.live WHERE id = $1 FOR UPDATE";

/// The store of a PostgreSQL database, in transactions of the application's own pool.
#[derive(Clone)]
pub struct PgTransactions {
    pool: PgPool,
    shared: Arc<Shared>,
    /// Whether a message was enqueued since deliverers were last notified.
    enqueued: Arc<AtomicBool>,
}

impl PgTransactions {
    pub(super) fn new(pool: PgPool, shared: Arc<Shared>) -> Self {
        Self {
            pool,
            shared,
            enqueued: Arc::default(),
        }
    }

    /// The application's pool.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

async fn look(
    connection: &mut PgConnection,
    id: RecordId,
) -> Result<Option<Reply<Record>>, TransactionError> {
    let rows = statement::lookup(&[id]).fetch_all(connection).await?;
    let (now, mut found): Answer = read(&rows)?;
    match found.remove(&id) {
        Some(Found::There(record)) => Ok(Some(Reply {
            now,
            value: *record,
        })),
        Some(Found::Unreadable(text)) => Err(TransactionError::Unreadable(text.into())),
        Some(Found::New | Found::Busy) | None => Ok(None),
    }
}

/// Swaps in the transaction open on `connection`.
pub(super) async fn swap_on(
    connection: &mut PgConnection,
    expected: Revision,
    change: &Change,
) -> Result<Reply<Swapped>, TransactionError> {
    let swap = Swap {
        expected,
        change: Box::new(change.clone()),
        met_a_lock: false,
    };
    let statement = match swap.only_completes() {
        true => statement::complete_one(&swap),
        false => statement::swap(&[&swap], How::Any),
    };
    let answer = statement.fetch_all(&mut *connection).await?;
    let (now, written) = written_ids(&answer)?;
    let id = change.draft.record.id;
    if !written.is_empty() {
        let value = Swapped::Done(swap.change.draft.stamp(now));
        return Ok(Reply { now, value });
    }
    Ok(match look(connection, id).await? {
        Some(Reply { now, value }) => Reply {
            now,
            value: Swapped::Conflict(value),
        },
        None => Reply {
            now,
            value: Swapped::Absent,
        },
    })
}

impl TransactionalStore for PgTransactions {
    type Connection = PgConnection;
    type Open = Transaction<'static, Postgres>;

    async fn begin(&self, isolation: Isolation) -> Result<Self::Open, TransactionError> {
        // Stated even if it is the usual level: a role or a database may have another default. Warnings are
        // enabled for the commit.
        let begin = format!(
            "BEGIN ISOLATION LEVEL {}; SET LOCAL client_min_messages = warning",
            isolation.as_sql()
        );
        Ok(self.pool.begin_with(AssertSqlSafe(begin)).await?)
    }

    async fn commit(&self, open: Self::Open) -> Result<(), TransactionError> {
        let unanswered = self.shared.line.doubt.unless_answered();
        let outcome = unwarned(open.commit()).await;
        if !matches!(&outcome, Err(failure) if failure.leaves_doubt()) {
            unanswered.answered();
        }
        Ok(outcome?)
    }

    async fn confirm(&self) -> Result<(), TransactionError> {
        let mut open = self.begin(Isolation::ReadCommitted).await?;
        let locked = sqlx::query(CONFIRM).fetch_optional(&mut *open).await?;
        if locked.is_none() {
            return Err(TransactionError::Database(NO_STANDBY.into()));
        }
        self.commit(open).await
    }

    async fn rollback(&self, open: Self::Open) {
        // If this fails, the connection is closed and the server rolls back by itself.
        let _ = open.rollback().await;
    }

    async fn lock(
        &self,
        connection: &mut PgConnection,
        id: RecordId,
    ) -> Result<Option<Reply<Record>>, TransactionError> {
        sqlx::query(LOCK)
            .bind(Uuid(id.0))
            .execute(&mut *connection)
            .await?;
        look(connection, id).await
    }

    async fn swap(
        &self,
        connection: &mut PgConnection,
        expected: Revision,
        change: &Change,
    ) -> Result<Reply<Swapped>, TransactionError> {
        swap_on(connection, expected, change).await
    }

    fn committed(&self, id: RecordId) {
        self.shared.wake.settled(id);
        if self.enqueued.swap(false, Ordering::Relaxed) {
            self.shared.wake.left_a_message();
        }
    }

    async fn enqueue(
        &self,
        connection: &mut PgConnection,
        message: &Message,
    ) -> Result<MessageId, TransactionError> {
        let (kind, which) = match &message.aggregate {
            Some((kind, which)) => (Some(kind), Some(which)),
            None => (None, None),
        };
        if message.bytes() > MAX_MESSAGE_BYTES {
            // The caller has its own limit, and the function must not apply a lower one.
            sqlx::query("SELECT set_config('onlyonce.max_message_bytes', $1::text, true)")
                .bind(
                    i64::try_from(message.bytes())
                        .unwrap_or(i64::MAX)
                        .saturating_mul(2),
                )
                .execute(&mut *connection)
                .await?;
        }
        // Deliverers are notified after the commit: within the transaction every commit would take a lock
        // that all databases of the server share.
        let row = sqlx::query(
            "SELECT onlyonce.enqueue($1, $2, $3, $4::jsonb, $5, $6, \
             encode($7, 'hex') || repeat('0', 32), aggregatetype => $8, aggregateid => $9, \
             settles => $10, notify => false)",
        )
        .bind(&message.target)
        .bind(&message.payload)
        .bind(&message.ordering_key)
        .bind(&message.headers)
        .bind(&message.kind)
        .bind(&message.downstream_key)
        .bind(message.key.map(|key| key.0))
        .bind(kind)
        .bind(which)
        .bind(message.settles.as_ref().map(Settles::encode))
        .fetch_one(connection)
        .await?;
        self.enqueued.store(true, Ordering::Relaxed);
        let Uuid(id) = row.try_get(0)?;
        Ok(MessageId(id))
    }

    async fn receive(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
        message_id: &str,
        retention: Duration,
    ) -> Result<bool, TransactionError> {
        let row = sqlx::query("SELECT onlyonce.process_once($1, $2, $3 * interval '1 second')")
            .bind(consumer)
            .bind(message_id)
            .bind(retention.as_secs_f64())
            .fetch_one(connection)
            .await?;
        Ok(row.try_get(0)?)
    }

    async fn hold(
        &self,
        connection: &mut PgConnection,
        natural_key: &str,
    ) -> Result<(), TransactionError> {
        sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
            .bind(natural_key)
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn progress(
        &self,
        connection: &mut PgConnection,
        id: RecordId,
    ) -> Result<Option<Progress>, TransactionError> {
        let row = bound(phases::of::<PgDialect>(id)).fetch_optional(connection);
        Ok(row.await?.as_ref().map(phases::read).transpose()?)
    }

    async fn discard(
        &self,
        connection: &mut PgConnection,
        id: RecordId,
        attempt: AttemptId,
    ) -> Result<(), TransactionError> {
        let statement = bound(phases::discard::<PgDialect>(id, attempt));
        statement.execute(connection).await?;
        Ok(())
    }

    async fn advance(
        &self,
        connection: &mut PgConnection,
        progress: &Progress,
    ) -> Result<(), TransactionError> {
        let statement = phases::advance::<PgDialect>(progress, progress.updated_at);
        bound(statement).execute(connection).await?;
        Ok(())
    }

    async fn unfinished(
        &self,
        operation: &str,
        after: (Timestamp, RecordId),
        limit: usize,
    ) -> Result<Vec<(Timestamp, RecordId)>, TransactionError> {
        let statement = bound(phases::unfinished::<PgDialect>(operation, after, limit));
        let rows = statement.fetch_all(&self.pool).await?;
        Ok(rows
            .iter()
            .map(phases::read_unfinished)
            .collect::<Result<_, _>>()?)
    }
}

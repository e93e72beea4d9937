//! The outbox on PostgreSQL. Each operation is one statement over arrays, on a few connections of its own, so
//! that deliveries and requests do not wait for each other.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    AttemptId, MessageId, Timestamp,
    record::{Change, JournalEntry, Revision},
};
use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Postgres, Row as _, postgres::PgArguments, query::Query};
use tokio::sync::watch;

use super::{
    scan::{NOW, Scanners, limit_of},
    server::Shared,
    statement,
    transactional::swap_on,
    uuid::Uuid,
};
use crate::{
    Page, Reply, StoreError, Swapped, failpoint,
    outbox::{
        CLAIM_BYTES, Claim, Claimed, Decision, Depth, Ending, ListedMessage, MessageFilter, Outbox,
        millis, unreadable,
    },
    sql::{message, scan::no_row},
    transactional::TransactionError,
};

/// The number of connections for messages.
const CONNECTIONS: usize = 4;

/// The messages of one database.
pub(super) struct PgOutbox {
    shared: Arc<Shared>,
    scanners: Scanners,
    /// The position of the walk that deletes old messages.
    tidied: Mutex<i64>,
}

impl PgOutbox {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            scanners: Scanners::apart(shared.clone(), CONNECTIONS),
            shared,
            tidied: Mutex::new(0),
        }
    }
}

const CLAIM: &str = "\
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
),
due AS MATERIALIZED (
    SELECT o.n, o.due_at, octet_length(o.payload) AS bytes FROM onlyonce.outbox o
    WHERE o.state = 'pending' AND o.target = $1 AND o.due_at <= (SELECT now FROM clock)
    AND (o.claimed_until IS NULL OR o.claimed_until <= (SELECT now FROM clock))
    AND (o.ordering_key IS NULL OR NOT EXISTS (
        SELECT 1 FROM onlyonce.outbox e
        WHERE e.target = o.target AND e.ordering_key = o.ordering_key AND e.n < o.n
        AND e.ordering_key IS NOT NULL AND e.state IN ('pending', 'dead', 'unknown')
    ))
    ORDER BY o.due_at, o.n LIMIT $2 FOR UPDATE SKIP LOCKED
),
sized AS MATERIALIZED (
    SELECT d.n, d.bytes, sum(d.bytes) OVER (ORDER BY d.due_at, d.n) AS so_far FROM due d
)
UPDATE onlyonce.outbox o SET
    claimed_at = c.now, claimed_until = c.now + $3, attempts = o.attempts + 1, attempt_id = $4,
    unclear_since = coalesce(o.unclear_since, o.claimed_at)
FROM sized s CROSS JOIN clock c WHERE o.n = s.n AND s.so_far - s.bytes <= $5
RETURNING o.id, o.attempts, o.unclear_since, o.created_at, o.target, o.type, o.aggregatetype,
    o.aggregateid, o.ordering_key, o.downstream_key, o.headers::text, o.key_id, o.settles, o.n,
    CASE WHEN s.so_far <= $5 THEN o.payload END, o.claimed_at";

/// The claim has kept `unclear_since` from before, and `due_at` unchanged.
const GIVE_BACK: &str = "\
UPDATE onlyonce.outbox SET claimed_at = NULL, claimed_until = NULL, attempts = attempts - 1
WHERE target = $1 AND attempt_id = $2 AND state = 'pending' AND claimed_at IS NOT NULL";

const END: &str = "\
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
)
UPDATE onlyonce.outbox o SET
    state = i.state, claimed_at = NULL, claimed_until = NULL, last_error = i.reason,
    provider_id = coalesce(i.provider_id, o.provider_id),
    due_at = CASE WHEN i.state = 'pending' THEN c.now + i.pause ELSE o.due_at END,
    delivered_at = CASE WHEN i.state = 'delivered' THEN c.now END,
    unclear_since = CASE WHEN i.unclear THEN coalesce(o.unclear_since, o.claimed_at)
                    ELSE o.unclear_since END
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::boolean[])
    AS i (n, attempt_id, state, provider_id, reason, pause, unclear) CROSS JOIN clock c
WHERE o.n = i.n AND o.attempt_id = i.attempt_id AND o.state = 'pending'
AND o.claimed_at IS NOT NULL
RETURNING o.n";

fn end(endings: &[Ending]) -> Query<'_, Postgres, PgArguments> {
    let numbers: Vec<_> = endings.iter().map(|one| one.number.cast_signed()).collect();
    let attempts: Vec<_> = endings
        .iter()
        .map(|one| Uuid(one.attempt.0.to_be_bytes()))
        .collect();
    let states: Vec<_> = endings
        .iter()
        .map(|one| one.next.state().as_str())
        .collect();
    let provider_ids: Vec<_> = endings.iter().map(|one| one.next.provider_id()).collect();
    let reasons: Vec<_> = endings.iter().map(|one| one.next.reason()).collect();
    let pauses: Vec<_> = endings.iter().map(|one| millis(one.next.pause())).collect();
    let unclear: Vec<_> = endings.iter().map(|one| one.next.is_unclear()).collect();
    sqlx::query(END)
        .bind(numbers)
        .bind(attempts)
        .bind(states)
        .bind(provider_ids)
        .bind(reasons)
        .bind(pauses)
        .bind(unclear)
}

/// The underlying error of a failed swap in an open transaction, for classification.
fn as_sqlx(error: TransactionError) -> sqlx::Error {
    match error {
        TransactionError::Conflict(error)
        | TransactionError::Database(error)
        | TransactionError::Unreadable(error)
        | TransactionError::GivenUp(error) => match error.downcast::<sqlx::Error>() {
            Ok(error) => *error,
            Err(error) => sqlx::Error::Decode(error),
        },
    }
}

#[async_trait]
impl Outbox for PgOutbox {
    async fn claim(&self, claim: &Claim) -> Result<Reply<Vec<Claimed>>, StoreError> {
        let statement = sqlx::query(CLAIM)
            .bind(&claim.target)
            .bind(limit_of(claim.limit))
            .bind(millis(claim.lease))
            .bind(Uuid(claim.attempt.0.to_be_bytes()))
            .bind(CLAIM_BYTES.cast_signed());
        failpoint!("postgres.outbox.claim.before");
        let rows = self.scanners.written(statement).await?;
        failpoint!("postgres.outbox.claim.after");
        let now = match rows.first() {
            Some(row) => Timestamp(row.try_get(15).map_err(unreadable)?),
            None => Timestamp(0),
        };
        let mut value = Vec::with_capacity(rows.len());
        for row in &rows {
            value.push(message::claimed(row, claim.attempt)?);
        }
        value.sort_unstable_by_key(|one| one.number);
        Ok(Reply { now, value })
    }

    async fn payload(
        &self,
        number: u64,
        attempt: AttemptId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        message::payload(&self.scanners, number, attempt).await
    }

    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError> {
        let statement = sqlx::query(GIVE_BACK)
            .bind(target)
            .bind(Uuid(attempt.0.to_be_bytes()));
        self.scanners.execute(statement).await
    }

    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError> {
        failpoint!("postgres.outbox.end.before");
        let rows = self.scanners.written(end(endings)).await?;
        failpoint!("postgres.outbox.end.after");
        let ended: Result<HashSet<i64>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        let ended = ended.map_err(unreadable)?;
        Ok(endings
            .iter()
            .map(|one| ended.contains(&one.number.cast_signed()))
            .collect())
    }

    async fn end_with_key(
        &self,
        ending: &Ending,
        expected: Revision,
        change: &Change,
    ) -> Result<Option<Reply<Swapped>>, StoreError> {
        failpoint!("postgres.outbox.settle.before");
        let outcome = self.scanners.whole(async |connection| {
            let ended = end(std::slice::from_ref(ending)).fetch_optional(&mut *connection);
            if ended.await?.is_none() {
                return Ok((false, None));
            }
            let swapped = swap_on(connection, expected, change);
            let swapped = swapped.await.map_err(as_sqlx)?;
            let done = matches!(swapped.value, Swapped::Done(_));
            Ok((done, Some(swapped)))
        });
        let outcome = outcome.await?;
        failpoint!("postgres.outbox.settle.after");
        if let Some(Reply {
            value: Swapped::Done(record),
            ..
        }) = &outcome
        {
            self.shared.wake.settled(record.id);
        }
        Ok(outcome)
    }

    async fn list(
        &self,
        filter: &MessageFilter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<ListedMessage>, StoreError> {
        message::list(&self.scanners, filter, cursor, limit).await
    }

    async fn message(&self, id: MessageId) -> Result<Option<ListedMessage>, StoreError> {
        message::one(&self.scanners, id).await
    }

    async fn decide(
        &self,
        id: MessageId,
        decision: Decision,
        journal: JournalEntry,
    ) -> Result<bool, StoreError> {
        let sql = format!(
            "UPDATE onlyonce.outbox SET state = $2, due_at = {NOW}, attempts = 0, \
             claimed_at = NULL, claimed_until = NULL, \
             unclear_since = CASE WHEN $4 THEN NULL ELSE unclear_since END \
             WHERE id = $1 AND state IN ('dead', 'unknown') \
             AND ($3::bigint IS NULL OR unclear_since IS NULL OR unclear_since > {NOW} - $3) \
             RETURNING id"
        );
        let decided = self.scanners.whole(async |connection| {
            let change = sqlx::query(AssertSqlSafe(sql))
                .bind(Uuid(id.0))
                .bind(decision.state().as_str())
                .bind(decision.safe_for())
                .bind(decision == Decision::RetryByForce);
            let changed = change.fetch_optional(&mut *connection).await?.is_some();
            if changed {
                statement::append(std::slice::from_ref(&journal))
                    .execute(connection)
                    .await?;
            }
            Ok((changed, changed))
        });
        let decided = decided.await?;
        if decided {
            self.shared.wake.left_a_message();
        }
        Ok(decided)
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        message::depth(&self.scanners).await
    }

    async fn tidy(&self, keep: Duration, limit: usize) -> Result<usize, StoreError> {
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS now), \
             stretch AS MATERIALIZED ( \
               SELECT n, state, delivered_at, due_at FROM onlyonce.outbox \
               WHERE n > $1 ORDER BY n LIMIT $2 \
             ), \
             gone AS ( \
               DELETE FROM onlyonce.outbox o USING stretch s, clock c WHERE o.n = s.n \
               AND (s.state = 'delivered' AND s.delivered_at < c.now - $3 \
                    OR s.state = 'discarded' AND s.due_at < c.now - $3) \
               RETURNING 1 \
             ) \
             SELECT (SELECT count(*) FROM gone), count(*), max(n) FROM stretch"
        );
        let from = *self.tidied.lock();
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(from)
            .bind(limit_of(limit))
            .bind(millis(keep));
        let rows = self.scanners.written(statement).await?;
        let row = rows.first().ok_or_else(no_row)?;
        let read = || -> Result<(i64, i64, Option<i64>), sqlx::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let (gone, seen, last) = read().map_err(unreadable)?;
        // At the end the walk starts over.
        *self.tidied.lock() = match last {
            Some(last) if seen == limit_of(limit) => last,
            _ => 0,
        };
        Ok(usize::try_from(gone).unwrap_or(0))
    }

    fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared.wake.messages()
    }
}

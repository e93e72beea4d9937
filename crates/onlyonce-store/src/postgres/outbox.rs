//! Messages on their way out of PostgreSQL. Each operation is one statement over arrays, on a few
//! connections of its own, so that deliveries never wait for requests nor hold them up.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    AttemptId, MessageId, MessageState, RecordId, Timestamp,
    outbox::Tried,
    record::{Change, JournalEntry, Revision},
};
use parking_lot::Mutex;
use sqlx::{
    AssertSqlSafe, PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::sync::watch;

use super::{
    notice::unwarned,
    row::Journal,
    scan::{NOW, before, limit_of, nothing},
    server::{Dialler, Shared},
    statement,
    transactional::swap_on,
    uuid::Uuid,
};
use crate::{
    BoxError, Page, Reply, StoreError, Swapped, failpoint,
    outbox::{
        CLAIM_BYTES, Claim, Claimed, Decision, Depth, Ending, ListedMessage, MAX_COUNTED,
        MessageFilter, Outbox, millis, unreadable,
    },
    sql::{
        failure::Failure,
        line::{Access, Pool},
    },
    transactional::{Message, Settles, TransactionError},
};

/// Connections for messages.
const CONNECTIONS: usize = 4;

/// The messages of one database.
pub(super) struct PgOutbox {
    shared: Arc<Shared>,
    pool: Pool<Dialler>,
    /// How far the walk that deletes old messages has come.
    tidied: Mutex<i64>,
}

impl PgOutbox {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            pool: Pool::new(CONNECTIONS),
            tidied: Mutex::new(0),
        }
    }

    async fn rows(
        &self,
        access: Access,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Failure> {
        let (line, target) = (&self.shared.line, self.shared.target());
        let (_room, mut slot) = self.pool.take(target.timeout()).await?;
        let connection = line.ready(&mut slot).await?;
        let statement = statement.persistent(target.pooler() == super::Pooler::None);
        let work = target.begin(connection, async |connection| {
            statement.fetch_all(connection).await
        });
        let outcome = line.in_time(access, unwarned(work)).await;
        self.pool.give(slot, &outcome);
        outcome
    }

    async fn read(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let outcome = self.rows(Access::Read, statement).await;
        outcome.map_err(|failure| failure.of_a_read())
    }

    /// Runs `work` in a transaction, which is committed if it says so.
    async fn whole<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<(bool, T), sqlx::Error>,
    ) -> Result<T, StoreError> {
        let (line, target) = (&self.shared.line, self.shared.target());
        let outcome = async {
            let (_room, mut slot) = self.pool.take(target.timeout()).await?;
            let connection = line.ready(&mut slot).await?;
            let work = target.whole(connection, work);
            let outcome = line.in_time(Access::Write, unwarned(work)).await;
            self.pool.give(slot, &outcome);
            outcome
        };
        outcome.await.map_err(|failure| failure.of_a_write())
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
    o.aggregateid, o.ordering_key, o.downstream_key, o.headers::text, CASE WHEN s.so_far <= $5 THEN o.payload END, o.key_id, o.settles,
    o.claimed_at, o.n";

const PAYLOAD: &str = "\
SELECT payload FROM onlyonce.outbox
WHERE n = $1 AND attempt_id = $2 AND state = 'pending' AND claimed_at IS NOT NULL";

/// The claim has kept in `unclear_since` what was unclear before it, and `due_at` as it was.
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

/// What lists show, as [`listed`] reads it.
const LISTED: &str = "o.id, o.state, o.target, o.type, o.aggregatetype, o.aggregateid, \
     o.ordering_key, o.downstream_key, o.key_id, o.settles IS NOT NULL, o.attempts, o.provider_id, \
     o.last_error, o.created_at, coalesce(o.claimed_until, o.due_at), o.delivered_at, octet_length(o.payload)::bigint, o.n, \
     o.unclear_since";

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

fn claimed(row: &PgRow, attempt: AttemptId) -> Result<Claimed, BoxError> {
    let Uuid(id) = row.try_get(0)?;
    let attempts: i32 = row.try_get(1)?;
    let unclear_since: Option<i64> = row.try_get(2)?;
    let settles: Option<&str> = row.try_get(13)?;
    let (kind, which): (Option<String>, Option<String>) = (row.try_get(6)?, row.try_get(7)?);
    let key: Option<Uuid> = row.try_get(12)?;
    let number: i64 = row.try_get(15)?;
    let payload: Option<Vec<u8>> = row.try_get(11)?;
    Ok(Claimed {
        unread: payload.is_none(),
        id: MessageId(id),
        number: number.unsigned_abs(),
        attempt,
        tried: Tried {
            attempts: attempts.unsigned_abs(),
            unclear_since: unclear_since.map(Timestamp),
        },
        created_at: Timestamp(row.try_get(3)?),
        message: Message {
            target: row.try_get(4)?,
            kind: row.try_get(5)?,
            aggregate: kind.zip(which),
            ordering_key: row.try_get(8)?,
            downstream_key: Some(row.try_get(9)?),
            headers: row.try_get(10)?,
            payload: payload.unwrap_or_default(),
            key: key.map(|Uuid(id)| RecordId(id)),
            settles: settles.and_then(Settles::decode),
        },
    })
}

fn listed(row: &PgRow) -> Result<(u64, ListedMessage), BoxError> {
    let Uuid(id) = row.try_get(0)?;
    let word: &str = row.try_get(1)?;
    let state = MessageState::from_word(word).ok_or("a state that this program does not know")?;
    let (kind, which): (Option<String>, Option<String>) = (row.try_get(4)?, row.try_get(5)?);
    let key: Option<Uuid> = row.try_get(8)?;
    let attempts: i32 = row.try_get(10)?;
    let delivered_at: Option<i64> = row.try_get(15)?;
    let (bytes, n): (i64, i64) = (row.try_get(16)?, row.try_get(17)?);
    let unclear_since: Option<i64> = row.try_get(18)?;
    let message = ListedMessage {
        id: MessageId(id),
        state,
        target: row.try_get(2)?,
        kind: row.try_get(3)?,
        aggregate: kind.zip(which),
        ordering_key: row.try_get(6)?,
        downstream_key: row.try_get(7)?,
        key: key.map(|Uuid(id)| RecordId(id)),
        settles: row.try_get(9)?,
        attempts: attempts.unsigned_abs(),
        provider_id: row.try_get(11)?,
        last_error: row.try_get(12)?,
        created_at: Timestamp(row.try_get(13)?),
        due_at: Timestamp(row.try_get(14)?),
        delivered_at: delivered_at.map(Timestamp),
        bytes: bytes.unsigned_abs(),
        unclear_since: unclear_since.map(Timestamp),
    };
    Ok((n.unsigned_abs(), message))
}

/// Why a swap in an open transaction failed, for the one place that judges failures.
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
        let rows = self.rows(Access::Write, statement).await;
        let rows = rows.map_err(|failure| failure.of_a_write())?;
        failpoint!("postgres.outbox.claim.after");
        let now = match rows.first() {
            Some(row) => Timestamp(row.try_get(14).map_err(unreadable)?),
            None => Timestamp(0),
        };
        let mut value = Vec::with_capacity(rows.len());
        for row in &rows {
            value.push(claimed(row, claim.attempt).map_err(unreadable)?);
        }
        value.sort_unstable_by_key(|one| one.number);
        Ok(Reply { now, value })
    }

    async fn payload(
        &self,
        number: u64,
        attempt: AttemptId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let statement = sqlx::query(PAYLOAD)
            .bind(number.cast_signed())
            .bind(Uuid(attempt.0.to_be_bytes()));
        let rows = self.read(statement).await?;
        let found = rows.first().map(|row| row.try_get(0)).transpose();
        found.map_err(unreadable)
    }

    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError> {
        let statement = sqlx::query(GIVE_BACK)
            .bind(target)
            .bind(Uuid(attempt.0.to_be_bytes()));
        let rows = self.rows(Access::Write, statement).await;
        rows.map_err(|failure| failure.of_a_write())?;
        Ok(())
    }

    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError> {
        failpoint!("postgres.outbox.end.before");
        let rows = self.rows(Access::Write, end(endings)).await;
        let rows = rows.map_err(|failure| failure.of_a_write())?;
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
        let outcome = self.whole(async |connection| {
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
        // Some states are found by an index that the words must name.
        let words: Vec<_> = match filter.states.as_slice() {
            [] => MessageState::ALL.to_vec(),
            states => states.to_vec(),
        };
        let words: Vec<_> = words
            .iter()
            .map(|state| format!("'{}'", state.as_str()))
            .collect();
        let sql = format!(
            "SELECT {LISTED} FROM onlyonce.outbox o WHERE o.n < $1 AND o.state IN ({}) \
             AND ($2::text IS NULL OR o.target = $2) ORDER BY o.n DESC LIMIT $3",
            words.join(", ")
        );
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(before(cursor))
            .bind(&filter.target)
            .bind(limit_of(limit.saturating_add(1)));
        let rows = self.read(statement).await?;
        let rows: Result<Vec<_>, _> = rows.iter().map(listed).collect();
        Ok(Page::cut(rows.map_err(unreadable)?, limit))
    }

    async fn message(&self, id: MessageId) -> Result<Option<ListedMessage>, StoreError> {
        // What people ask about is nearly always dead, and only those have an index of names.
        for among in [" AND o.state IN ('dead', 'unknown')", ""] {
            let sql = format!("SELECT {LISTED} FROM onlyonce.outbox o WHERE o.id = $1{among}");
            let statement = sqlx::query(AssertSqlSafe(sql)).bind(Uuid(id.0));
            let rows = self.read(statement).await?;
            if let Some(row) = rows.first() {
                return Ok(Some(listed(row).map_err(unreadable)?.1));
            }
        }
        Ok(None)
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
        let mut row = Journal::default();
        row.push(&journal);
        let decided = self.whole(async |connection| {
            let change = sqlx::query(AssertSqlSafe(sql))
                .bind(Uuid(id.0))
                .bind(decision.state().as_str())
                .bind(decision.safe_for())
                .bind(decision == Decision::RetryByForce);
            let changed = change.fetch_optional(&mut *connection).await?.is_some();
            if changed {
                statement::append(row).execute(connection).await?;
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
        let mut depth = Depth::new();
        for state in [
            MessageState::Pending,
            MessageState::Dead,
            MessageState::Unknown,
        ] {
            // The word stands in the statement, so that the index with that condition is used.
            let sql = format!(
                "SELECT count(*) FROM (SELECT 1 FROM onlyonce.outbox WHERE state = '{}' \
                 LIMIT {MAX_COUNTED}) AS counted",
                state.as_str()
            );
            let rows = self.read(sqlx::query(AssertSqlSafe(sql))).await?;
            let row = rows.first().ok_or_else(nothing)?;
            let count: i64 = row.try_get(0).map_err(unreadable)?;
            depth.insert(state, count.unsigned_abs());
        }
        Ok(depth)
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
        let rows = self.rows(Access::Write, statement).await;
        let rows = rows.map_err(|failure| failure.of_a_write())?;
        let row = rows.first().ok_or_else(nothing)?;
        let read = || -> Result<(i64, i64, Option<i64>), sqlx::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
        };
        let (gone, seen, last) = read().map_err(unreadable)?;
        // At the end it begins anew.
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

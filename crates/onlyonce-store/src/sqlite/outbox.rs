//! The outbox of the embedded store, on a separate connection.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    AttemptId, MessageId, RecordId, Timestamp,
    record::{Change, JournalEntry, Revision},
};
use parking_lot::Mutex;
use rusqlite::{Transaction, TransactionBehavior, named_params, params};
use tokio::sync::{broadcast, watch};

use super::{
    ReadError, schema,
    slot::Slot,
    write::{self, Tally},
};
use crate::{
    Page, Reply, StoreError, Swapped,
    clock::StoreClock,
    failpoint,
    outbox::{
        Claim, Claimed, Decision, Depth, Ending, ListedMessage, MessageFilter, Outbox, millis,
        within_bytes,
    },
    sql::message,
};

/// The messages of one file.
#[derive(Clone)]
pub(super) struct SqliteOutbox(Arc<Inner>);

struct Inner {
    connection: Arc<Slot>,
    clock: StoreClock,
    tally: Arc<Tally>,
    wakeups: broadcast::Sender<RecordId>,
    messages: watch::Sender<u64>,
    /// The position of the walk that deletes old messages.
    tidied: Mutex<i64>,
}

impl SqliteOutbox {
    pub(super) fn open(
        path: &Path,
        clock: StoreClock,
        tally: Arc<Tally>,
        wakeups: broadcast::Sender<RecordId>,
        messages: watch::Sender<u64>,
    ) -> rusqlite::Result<Self> {
        Ok(Self(Arc::new(Inner {
            connection: Arc::new(Slot::new(schema::connect(path)?)),
            clock,
            tally,
            wakeups,
            messages,
            tidied: Mutex::new(0),
        })))
    }

    /// Closes the connection once nobody writes on it.
    pub(super) fn close(&self) {
        self.0.connection.close();
    }

    /// Runs `work` in a transaction on a blocking thread. Commits if `work` returns `true`.
    async fn whole<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>, Timestamp) -> Result<(bool, T), ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut connection = inner.connection.lock()?;
            let behavior = TransactionBehavior::Immediate;
            let open = connection.transaction_with_behavior(behavior)?;
            let (commit, value) = work(&open, inner.clock.now())?;
            // Without a commit, dropping the transaction rolls it back.
            if commit {
                open.commit()?;
            }
            Ok::<_, ReadError>(value)
        });
        let done = done.await;
        Ok(done.map_err(|error| StoreError::Ambiguous(Box::new(error)))??)
    }
}

const DUE: &str = "\
SELECT o.n, octet_length(o.payload) FROM outbox o
WHERE o.state = 'pending' AND o.target = :target AND o.due_at <= :now
AND (o.ordering_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM outbox e
    WHERE e.target = o.target AND e.ordering_key = o.ordering_key AND e.n < o.n
    AND e.ordering_key IS NOT NULL AND e.state IN ('pending', 'dead', 'unknown')
))
ORDER BY o.due_at, o.n LIMIT :limit";

const CLAIM: &str = "\
UPDATE outbox SET
    claimed_at = :now, due_at = :now + :lease, attempts = attempts + 1, attempt_id = :attempt,
    unclear_since = coalesce(unclear_since, claimed_at)
WHERE n = :n
RETURNING id, attempts, unclear_since, created_at, target, type, aggregatetype, aggregateid,
    ordering_key, downstream_key, headers, key_id, settles, n,
    CASE WHEN :read THEN CAST(payload AS BLOB) END";

/// The claim has kept in `unclear_since` what was unclear before it.
const GIVE_BACK: &str = "\
UPDATE outbox SET claimed_at = NULL, due_at = :now, attempts = attempts - 1
WHERE target = :target AND attempt_id = :attempt AND state = 'pending' AND claimed_at IS NOT NULL";

const END: &str = "\
UPDATE outbox SET
    state = :state, claimed_at = NULL, last_error = :reason,
    provider_id = coalesce(:provider_id, provider_id),
    due_at = CASE WHEN :state = 'pending' THEN :now + :pause ELSE due_at END,
    delivered_at = CASE WHEN :state = 'delivered' THEN :now END,
    unclear_since = CASE WHEN :unclear THEN coalesce(unclear_since, claimed_at)
                    ELSE unclear_since END
WHERE n = :n AND attempt_id = :attempt AND state = 'pending' AND claimed_at IS NOT NULL";

fn end(open: &Transaction<'_>, now: Timestamp, ending: &Ending) -> rusqlite::Result<bool> {
    let changed = open.prepare_cached(END)?.execute(named_params! {
        ":state": ending.next.state().as_str(),
        ":reason": ending.next.reason(),
        ":provider_id": ending.next.provider_id(),
        ":now": now.0,
        ":pause": millis(ending.next.pause()),
        ":unclear": ending.next.is_unclear(),
        ":n": ending.number.cast_signed(),
        ":attempt": ending.attempt.0.to_be_bytes(),
    })?;
    Ok(changed == 1)
}

#[async_trait]
impl Outbox for SqliteOutbox {
    async fn claim(&self, claim: &Claim) -> Result<Reply<Vec<Claimed>>, StoreError> {
        let claim = claim.clone();
        failpoint!("sqlite.outbox.claim.before");
        let reply = self.whole(move |open, now| {
            let mut statement = open.prepare_cached(DUE)?;
            let due = statement.query_map(
                named_params! {
                    ":now": now.0,
                    ":target": claim.target,
                    ":limit": i64::try_from(claim.limit).unwrap_or(i64::MAX),
                },
                |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs())),
            )?;
            let due = due.collect::<rusqlite::Result<Vec<(i64, u64)>>>()?;
            let mut statement = open.prepare_cached(CLAIM)?;
            let mut value = Vec::with_capacity(due.len());
            for (n, read) in within_bytes(due) {
                let taken = statement.query_row(
                    named_params! {
                        ":now": now.0,
                        ":lease": millis(claim.lease),
                        ":attempt": claim.attempt.0.to_be_bytes(),
                        ":n": n,
                        ":read": read,
                    },
                    |row| Ok(message::claimed(row, claim.attempt)),
                )?;
                value.push(taken?);
            }
            value.sort_unstable_by_key(|one| one.number);
            Ok((!value.is_empty(), Reply { now, value }))
        });
        let reply = reply.await?;
        failpoint!("sqlite.outbox.claim.after");
        Ok(reply)
    }

    async fn payload(
        &self,
        number: u64,
        attempt: AttemptId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        message::payload(&self.0.connection, number, attempt).await
    }

    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError> {
        let target = target.to_owned();
        self.whole(move |open, now| {
            let given = open.execute(
                GIVE_BACK,
                named_params! {
                    ":now": now.0,
                    ":target": target,
                    ":attempt": attempt.0.to_be_bytes(),
                },
            )?;
            Ok((given > 0, ()))
        })
        .await
    }

    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError> {
        let endings = endings.to_vec();
        failpoint!("sqlite.outbox.end.before");
        let ended = self.whole(move |open, now| {
            let ended = endings.iter().map(|ending| end(open, now, ending));
            Ok((true, ended.collect::<rusqlite::Result<_>>()?))
        });
        let ended = ended.await?;
        failpoint!("sqlite.outbox.end.after");
        Ok(ended)
    }

    async fn end_with_key(
        &self,
        ending: &Ending,
        expected: Revision,
        change: &Change,
    ) -> Result<Option<Reply<Swapped>>, StoreError> {
        let (ending, change) = (ending.clone(), change.clone());
        failpoint!("sqlite.outbox.settle.before");
        let outcome = self.whole(move |open, now| {
            if !end(open, now, &ending)? {
                return Ok((false, None));
            }
            let mut steps = Vec::new();
            let value = write::swap(open, expected, &change, now, &mut steps)?;
            let done = matches!(value, Swapped::Done(_));
            Ok((done, Some((Reply { now, value }, steps))))
        });
        let outcome = outcome.await?;
        failpoint!("sqlite.outbox.settle.after");
        Ok(outcome.map(|(reply, steps)| {
            if let Swapped::Done(record) = &reply.value {
                self.0.tally.take(&steps);
                // It is not an error if nobody listens.
                let _ = self.0.wakeups.send(record.id);
            }
            reply
        }))
    }

    async fn list(
        &self,
        filter: &MessageFilter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<ListedMessage>, StoreError> {
        message::list(&self.0.connection, filter, cursor, limit).await
    }

    async fn message(&self, id: MessageId) -> Result<Option<ListedMessage>, StoreError> {
        message::one(&self.0.connection, id).await
    }

    async fn decide(
        &self,
        id: MessageId,
        decision: Decision,
        journal: JournalEntry,
    ) -> Result<bool, StoreError> {
        let decided = self.whole(move |open, now| {
            let changed = open.execute(
                "UPDATE outbox SET state = ?2, due_at = ?3, attempts = 0, claimed_at = NULL, \
                 unclear_since = CASE WHEN ?5 THEN NULL ELSE unclear_since END \
                 WHERE id = ?1 AND state IN ('dead', 'unknown') \
                 AND (?4 IS NULL OR unclear_since IS NULL OR unclear_since > ?3 - ?4)",
                params![
                    id.0,
                    decision.state().as_str(),
                    now.0,
                    decision.safe_for(),
                    decision == Decision::RetryByForce
                ],
            )?;
            if changed > 0 {
                write::note(open, now, std::slice::from_ref(&journal))?;
            }
            Ok((changed > 0, changed > 0))
        });
        let decided = decided.await?;
        if decided {
            self.0.messages.send_modify(|count| *count += 1);
        }
        Ok(decided)
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        message::depth(&self.0.connection).await
    }

    async fn tidy(&self, keep: Duration, limit: usize) -> Result<usize, StoreError> {
        let from = *self.0.tidied.lock();
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let tidied = self.whole(move |open, now| {
            let (seen, last): (i64, Option<i64>) = open.query_row(
                "SELECT count(*), max(n) FROM \
                 (SELECT n FROM outbox WHERE n > ?1 ORDER BY n LIMIT ?2)",
                params![from, most],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            let Some(last) = last else {
                return Ok((false, (0, 0)));
            };
            let gone = open.execute(
                "DELETE FROM outbox WHERE n > ?1 AND n <= ?2 \
                 AND (state = 'delivered' AND delivered_at < ?3 \
                      OR state = 'discarded' AND due_at < ?3)",
                params![from, last, crate::cutoff(now, keep).0],
            )?;
            // At the end, the walk starts over.
            let next = if seen == most { last } else { 0 };
            Ok((gone > 0, (gone, next)))
        });
        let (gone, next) = tidied.await?;
        *self.0.tidied.lock() = next;
        Ok(gone)
    }

    fn arrivals(&self) -> watch::Receiver<u64> {
        self.0.messages.subscribe()
    }
}

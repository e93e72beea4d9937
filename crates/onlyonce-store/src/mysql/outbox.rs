//! The outbox on MySQL or MariaDB, on a few connections of its own, so that deliveries and requests do not
//! wait for each other.
//!
//! Row locks decide who has a message, never counts of affected rows. These servers have no notifications:
//! messages of other processes are found by polling.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    AttemptId, MessageId, MessageState,
    outbox::Next,
    record::{Change, JournalEntry, Revision},
};
use parking_lot::Mutex;
use sqlx::mysql::MySqlRow;
use tokio::sync::watch;

use super::{
    scan::Scanners,
    server::{Session, Shared, time, understood},
    text::{self, Script, bytes, literal},
    transactional::{held_record, hold_record},
    write,
};
use crate::{
    Page, Reply, StoreError, Swapped, failpoint,
    outbox::{
        Claim, Claimed, Decision, Depth, Ending, ListedMessage, MessageFilter, Outbox, millis,
        within_bytes,
    },
    sql::{
        failure::Failure,
        message,
        row::{self, Columns as _, RowError},
    },
};

/// The number of connections for messages.
const CONNECTIONS: usize = 4;

/// The messages of one database.
pub(super) struct MySqlOutbox {
    shared: Arc<Shared>,
    scanners: Scanners,
    /// The position of the walk that deletes old messages.
    tidied: Mutex<i64>,
}

impl MySqlOutbox {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            scanners: Scanners::apart(shared.clone(), CONNECTIONS),
            shared,
            tidied: Mutex::new(0),
        }
    }
}

/// The columns of a claimed message, as [`message::claimed`] takes them; the payload follows.
const CLAIMED: &str = "o.id, o.attempts, o.unclear_since, o.created_at, o.target, o.type, \
     o.aggregatetype, o.aggregateid, o.ordering_key, o.downstream_key, o.headers, \
     o.key_id, o.settles, o.n";

/// The condition that the attempt that claimed a message has not ended.
const UNDER_WAY: &str = "state = 'pending' AND claimed_at IS NOT NULL";

/// Capped so that adding it to any plausible time does not overflow.
fn later(duration: Duration) -> i64 {
    millis(duration).min(i64::MAX / 2)
}

fn due(claim: &Claim) -> String {
    let (target, limit) = (literal(&claim.target), claim.limit);
    // By the index, in its order: only the wanted rows are locked.
    format!(
        "SELECT o.n, CAST(LENGTH(o.payload) AS SIGNED) \
         FROM onlyonce_outbox o FORCE INDEX (outbox_due) \
         WHERE o.target = {target} AND o.state = 'pending' AND o.due_at <= @oo_now \
         AND (o.ordering_key IS NULL OR o.n = ( \
           SELECT e.n FROM onlyonce_outbox e FORCE INDEX (outbox_in_order) \
           WHERE e.target = o.target AND e.in_order = o.ordering_key ORDER BY e.n LIMIT 1 \
         )) ORDER BY o.due_at, o.n LIMIT {limit} FOR UPDATE SKIP LOCKED"
    )
}

async fn take(session: &mut Session<'_>, claim: &Claim) -> Result<Reply<Vec<Claimed>>, Failure> {
    let mut script = Script::timed();
    script.add("START TRANSACTION");
    script.add(due(claim));
    script.add("SELECT @oo_now");
    let results = session.send(&script).await?;
    let (now, numbers) = understood((|| {
        let due = results.get(2).into_iter().flatten();
        let due = due.map(|row| Ok((row::number(row, 0)?, row::number(row, 1)?)));
        let due = due.collect::<Result<Vec<(i64, u64)>, RowError>>()?;
        Ok((time(&results, 3)?, within_bytes(due)))
    })())?;
    if numbers.is_empty() {
        session.roll_back().await?;
        let value = Vec::new();
        return Ok(Reply { now, value });
    }
    let unread = numbers.iter().find(|(_, read)| !read).map(|(n, _)| *n);
    let numbers = text::numbers(numbers.into_iter().map(|(n, _)| n));
    let mut script = Script::default();
    // Evaluated from left to right: a message claimed before and not ended is unclear since then.
    script.add(format_args!(
        "UPDATE onlyonce_outbox SET unclear_since = COALESCE(unclear_since, claimed_at), \
         claimed_at = @oo_now, due_at = @oo_now + {}, attempts = attempts + 1, attempt_id = {} \
         WHERE n IN {numbers}",
        later(claim.lease),
        literal(claim.attempt.0.to_be_bytes())
    ));
    script.add(format_args!(
        "SELECT {CLAIMED}, IF(o.n = {}, NULL, o.payload) \
         FROM onlyonce_outbox o WHERE o.n IN {numbers} ORDER BY o.n",
        // Numbers start at one.
        unread.unwrap_or(0)
    ));
    script.commit();
    let results = session.send(&script).await?;
    let rows = results.get(1).into_iter().flatten();
    let value = understood(
        rows.map(|row| message::claimed(row, claim.attempt))
            .collect(),
    )?;
    Ok(Reply { now, value })
}

/// Undoes a claim, which has kept `unclear_since` from before. The rows are looked up without locks, so that
/// only the claim's own rows are locked.
async fn give_back(session: &mut Session<'_>, claim: &(&str, AttemptId)) -> Result<(), Failure> {
    let (target, attempt) = (literal(claim.0), literal(claim.1.0.to_be_bytes()));
    let mut script = Script::timed();
    script.add(format_args!(
        "SELECT n FROM onlyonce_outbox FORCE INDEX (outbox_due) \
         WHERE target = {target} AND attempt_id = {attempt} AND {UNDER_WAY}"
    ));
    let results = session.send(&script).await?;
    let numbers = results.get(1).into_iter().flatten();
    let numbers = numbers.map(|row| row::number(row, 0));
    let numbers = understood(numbers.collect::<Result<Vec<i64>, RowError>>())?;
    if numbers.is_empty() {
        return Ok(());
    }
    let mut script = Script::default();
    script.add("START TRANSACTION");
    script.add(format_args!(
        "UPDATE onlyonce_outbox FORCE INDEX (PRIMARY) \
         SET claimed_at = NULL, due_at = @oo_now, attempts = attempts - 1 \
         WHERE n IN {} AND attempt_id = {attempt} AND {UNDER_WAY}",
        text::numbers(numbers)
    ));
    script.commit();
    session.send(&script).await?;
    Ok(())
}

/// Updates the messages of one claim that ended alike.
fn set(sql: &mut String, numbers: &str, attempt: AttemptId, next: &Next) {
    let word = next.state();
    sql.push_str("UPDATE onlyonce_outbox FORCE INDEX (PRIMARY) SET ");
    if next.is_unclear() {
        sql.push_str("unclear_since = COALESCE(unclear_since, claimed_at), ");
    }
    if word == MessageState::Pending {
        sql.push_str(&format!("due_at = @oo_now + {}, ", later(next.pause())));
    }
    if word == MessageState::Delivered {
        sql.push_str("delivered_at = @oo_now, in_order = NULL, ");
    }
    if let Some(provider_id) = next.provider_id() {
        sql.push_str("provider_id = ");
        bytes(sql, Some(provider_id.as_bytes()));
        sql.push_str(", ");
    }
    sql.push_str("claimed_at = NULL, last_error = ");
    bytes(sql, next.reason().map(str::as_bytes));
    let (state, attempt) = (literal(word.as_str()), literal(attempt.0.to_be_bytes()));
    sql.push_str(&format!(
        ", state = {state} WHERE n IN {numbers} AND attempt_id = {attempt} AND {UNDER_WAY}"
    ));
}

/// Locks the messages, and reads who has claimed them.
fn hold_messages(endings: &[Ending]) -> Script {
    let numbers = numbers_of(endings);
    let mut script = Script::timed();
    script.add("START TRANSACTION");
    script.add(format_args!(
        "SELECT n, attempt_id FROM onlyonce_outbox FORCE INDEX (PRIMARY) WHERE n IN {numbers} AND {UNDER_WAY} FOR UPDATE"
    ));
    script
}

/// The claims read by [`hold_messages`].
fn held_messages(rows: &[MySqlRow]) -> Result<HashSet<(u64, AttemptId)>, RowError> {
    let read = |row: &MySqlRow| Ok((row::number(row, 0)?, row::attempt(row, 1)?));
    rows.iter().map(read).collect()
}

fn numbers_of(endings: &[Ending]) -> String {
    text::numbers(endings.iter().map(|ending| ending.number.cast_signed()))
}

async fn end(session: &mut Session<'_>, endings: &[Ending]) -> Result<Vec<bool>, Failure> {
    let mut script = hold_messages(endings);
    let mut rest = endings;
    // Adjacent endings that are alike, as most are, go together.
    while let Some(first) = rest.first() {
        let alike = |one: &&Ending| one.attempt == first.attempt && one.next == first.next;
        let (some, others) = rest.split_at(rest.iter().take_while(alike).count());
        let numbers = numbers_of(some);
        script.write(|sql| set(sql, &numbers, first.attempt, &first.next));
        rest = others;
    }
    script.commit();
    let results = session.send(&script).await?;
    let held = understood(held_messages(results.get(2).map_or(&[][..], Vec::as_slice)))?;
    let counted = |one: &Ending| held.contains(&(one.number, one.attempt));
    Ok(endings.iter().map(counted).collect())
}

/// An ending, and the change of a key.
struct WithKey<'a> {
    ending: &'a Ending,
    expected: Revision,
    change: &'a Change,
}

async fn end_with_key(
    session: &mut Session<'_>,
    asked: &WithKey<'_>,
) -> Result<Option<Reply<Swapped>>, Failure> {
    let WithKey {
        ending,
        expected,
        change,
    } = asked;
    let script = hold_messages(std::slice::from_ref(*ending));
    let results = session.send(&script).await?;
    let held = understood(held_messages(results.get(2).map_or(&[][..], Vec::as_slice)))?;
    if !held.contains(&(ending.number, ending.attempt)) {
        session.roll_back().await?;
        return Ok(None);
    }
    let results = session.send(&hold_record(change.draft.record.id)).await?;
    let Reply { now, value } = understood(held_record(&results))?;
    let not_done = match value {
        Some(record) if record.revision == *expected => None,
        Some(record) => Some(Swapped::Conflict(record)),
        None => Some(Swapped::Absent),
    };
    if let Some(value) = not_done {
        session.roll_back().await?;
        return Ok(Some(Reply { now, value }));
    }
    let mut script = Script::default();
    let numbers = numbers_of(std::slice::from_ref(*ending));
    script.write(|sql| set(sql, &numbers, ending.attempt, &ending.next));
    script.write(|sql| write::update(sql, *expected, change));
    if !change.journal.is_empty() {
        script.write(|sql| write::journal(sql, change.journal.iter()));
    }
    script.commit();
    session.send(&script).await?;
    let value = Swapped::Done(change.draft.clone().stamp(now));
    Ok(Some(Reply { now, value }))
}

type Decided = (MessageId, Decision, JournalEntry);

async fn decide(session: &mut Session<'_>, decided: &Decided) -> Result<bool, Failure> {
    let (id, decision, journal) = decided;
    let id = literal(id.0);
    let safe = match decision.safe_for() {
        Some(safe_for) => {
            format!(" AND (unclear_since IS NULL OR unclear_since > @oo_now - {safe_for})")
        }
        None => String::new(),
    };
    let forgets = match decision {
        Decision::RetryByForce => ", unclear_since = NULL",
        Decision::Retry(_) | Decision::Discard => "",
    };
    let mut script = Script::timed();
    script.add("START TRANSACTION");
    script.add(format_args!(
        "SELECT n FROM onlyonce_outbox FORCE INDEX (outbox_by_id) \
         WHERE id = {id} AND state IN ('dead', 'unknown'){safe} FOR UPDATE"
    ));
    let results = session.send(&script).await?;
    if results.get(2).is_none_or(Vec::is_empty) {
        session.roll_back().await?;
        return Ok(false);
    }
    let mut script = Script::default();
    script.add(format_args!(
        "UPDATE onlyonce_outbox SET state = {}, due_at = @oo_now, attempts = 0, \
         claimed_at = NULL{forgets}, in_order = {} WHERE id = {id}",
        literal(decision.state().as_str()),
        if *decision == Decision::Discard {
            "NULL"
        } else {
            "ordering_key"
        }
    ));
    script.write(|sql| write::journal(sql, std::iter::once(journal)));
    script.commit();
    session.send(&script).await?;
    Ok(true)
}

#[async_trait]
impl Outbox for MySqlOutbox {
    async fn claim(&self, claim: &Claim) -> Result<Reply<Vec<Claimed>>, StoreError> {
        failpoint!("mysql.outbox.claim.before");
        let taken = self
            .scanners
            .transact(claim, |session, claim| Box::pin(take(session, claim)));
        let taken = taken.await.map_err(|failure| failure.of_a_write())?;
        failpoint!("mysql.outbox.claim.after");
        Ok(taken)
    }

    async fn payload(
        &self,
        number: u64,
        attempt: AttemptId,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        message::payload(&self.scanners, number, attempt).await
    }

    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError> {
        let claim = (target, attempt);
        let given = self
            .scanners
            .transact(&claim, |session, claim| Box::pin(give_back(session, claim)));
        given.await.map_err(|failure| failure.of_a_write())
    }

    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError> {
        if endings.is_empty() {
            return Ok(Vec::new());
        }
        failpoint!("mysql.outbox.end.before");
        let ended = self
            .scanners
            .transact(endings, |session, endings| Box::pin(end(session, endings)));
        let ended = ended.await.map_err(|failure| failure.of_a_write())?;
        failpoint!("mysql.outbox.end.after");
        Ok(ended)
    }

    async fn end_with_key(
        &self,
        ending: &Ending,
        expected: Revision,
        change: &Change,
    ) -> Result<Option<Reply<Swapped>>, StoreError> {
        let asked = WithKey {
            ending,
            expected,
            change,
        };
        failpoint!("mysql.outbox.settle.before");
        let outcome = self.scanners.transact(&asked, |session, asked| {
            Box::pin(end_with_key(session, asked))
        });
        let outcome = outcome.await.map_err(|failure| failure.of_a_write())?;
        failpoint!("mysql.outbox.settle.after");
        if let Some(Reply {
            value: Swapped::Done(record),
            ..
        }) = &outcome
        {
            self.shared.watch.settled(record.id);
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
        let decision = (id, decision, journal);
        let decided = self.scanners.transact(&decision, |session, decision| {
            Box::pin(decide(session, decision))
        });
        let decided = decided.await.map_err(|failure| failure.of_a_write())?;
        if decided {
            self.shared.messages.send_modify(|count| *count += 1);
        }
        Ok(decided)
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        message::depth(&self.scanners).await
    }

    async fn tidy(&self, keep: Duration, limit: usize) -> Result<usize, StoreError> {
        let from = *self.tidied.lock();
        let keep = later(keep);
        // A delivered or discarded message never changes again, so none is locked.
        let stretch = self.scanners.read_timed(format!(
            "SELECT n, COALESCE(state = 'delivered' AND delivered_at < @oo_now - {keep} \
             OR state = 'discarded' AND due_at < @oo_now - {keep}, 0) \
             FROM onlyonce_outbox FORCE INDEX (PRIMARY) WHERE n > {from} ORDER BY n LIMIT {limit}"
        ));
        let stretch = stretch.await?.value;
        let mut old = Vec::new();
        let mut last = 0;
        for row in &stretch {
            last = row::number(row, 0)?;
            if row.number(1)? == Some(1) {
                old.push(last);
            }
        }
        let gone = old.len();
        if gone > 0 {
            let mut script = Script::default();
            let numbers = text::numbers(old);
            script.add(format_args!(
                "DELETE FROM onlyonce_outbox WHERE n IN {numbers}"
            ));
            self.scanners.execute(&script).await?;
        }
        // At the end the walk starts over.
        *self.tidied.lock() = if stretch.len() == limit { last } else { 0 };
        Ok(gone)
    }

    fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared.messages.subscribe()
    }
}

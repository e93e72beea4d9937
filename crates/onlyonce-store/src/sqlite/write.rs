//! Applies one operation inside the group's transaction, on the writing thread.

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, Ordering},
    },
};

use onlyonce_core::{
    Record, RecordId, Scope, State, Timestamp,
    record::{Change, Draft, JournalEntry, Revision},
};
use rusqlite::{Connection, OptionalExtension, Transaction, params, params_from_iter};

use super::{
    ReadError,
    batch::{Done, Operation},
    known_ids::KnownIds,
    read,
};
use crate::{
    Counts, Inserted, StoreError, Swapped, codec,
    sql::{
        dialect::Statement,
        row::{COLUMNS, ROW_VERSION},
    },
};

/// Records per state, updated with each commit: counting rows would scan them all.
pub(super) struct Tally([AtomicI64; State::ALL.len()]);

/// The state change of a record.
pub(super) struct Step {
    from: Option<State>,
    to: Option<State>,
    /// The record's entry in the list of its scope, if the record was deleted.
    pub(super) left: Option<Entry>,
}

/// An entry in the list of a scope: the scope's name, and the record's number.
pub(super) type Entry = (String, i64);

impl Tally {
    pub(super) fn count(connection: &Connection) -> rusqlite::Result<Self> {
        let tally = Self(State::ALL.map(|_| AtomicI64::new(0)));
        let mut statement =
            connection.prepare("SELECT state, count(*) FROM keys GROUP BY state")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let word: String = row.get(0)?;
            if let Some(state) = State::from_word(&word) {
                tally.of(state).store(row.get(1)?, Ordering::Relaxed);
            }
        }
        Ok(tally)
    }

    fn of(&self, state: State) -> &AtomicI64 {
        let index = State::ALL.iter().position(|other| *other == state);
        &self.0[index.expect("ALL holds every state")]
    }

    pub(super) fn take(&self, steps: &[Step]) {
        for step in steps {
            if let Some(from) = step.from {
                self.of(from).fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(to) = step.to {
                self.of(to).fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// All records.
    pub(super) fn total(&self) -> u64 {
        let total: i64 = self.0.iter().map(|one| one.load(Ordering::Relaxed)).sum();
        u64::try_from(total).unwrap_or_default()
    }

    pub(super) fn counts(&self) -> Counts {
        let count = |state: State| {
            u64::try_from(self.of(state).load(Ordering::Relaxed)).unwrap_or_default()
        };
        State::ALL
            .into_iter()
            .map(|state| (state, count(state)))
            .collect()
    }
}

/// Rows of running records that the writer remembers. Beyond this, it looks them up.
const MAX_PLACES: usize = 65_536;

/// What the writing thread remembers between groups.
pub(super) struct Memory {
    /// The number of the next record.
    next_number: i64,
    known_ids: Arc<KnownIds>,
    /// The rows of running records that the writer has written, so that their completion needs no lookup.
    /// Others may have written them since: every write compares the revision.
    places: HashMap<RecordId, Place>,
}

/// The row of a record, and what was last written there.
struct Place {
    n: i64,
    revision: Revision,
    state: State,
    scope: Scope,
}

impl Memory {
    pub(super) fn new(next_number: i64, known_ids: Arc<KnownIds>) -> Self {
        Self {
            next_number,
            known_ids,
            places: HashMap::new(),
        }
    }

    /// Must be called after a group was rolled back: some of it may be remembered.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    fn remember(&mut self, n: i64, record: &Record) {
        if record.times.lease_until.is_none() {
            return;
        }
        if self.places.len() >= MAX_PLACES {
            // Most of them are of keys that another connection has settled.
            self.places.clear();
        }
        let place = Place {
            n,
            revision: record.revision,
            state: record.state,
            scope: record.scope.clone(),
        };
        self.places.insert(record.id, place);
    }

    /// The row of a record, if it was last written as `change` expects.
    fn take_place(&mut self, expected: Revision, change: &Change) -> Option<Place> {
        let record = &change.draft.record;
        self.places
            .remove(&record.id)
            .filter(|place| place.revision == expected && place.scope == record.scope)
    }
}

/// Runs a statement that writes.
pub(super) fn execute(connection: &Connection, statement: &Statement) -> rusqlite::Result<()> {
    let mut prepared = connection.prepare_cached(&statement.sql)?;
    let values = params_from_iter(&statement.values);
    prepared.execute(values).map(|_| ())
}

/// Applies one operation. After an error the transaction must be rolled back.
pub(super) fn apply(
    transaction: &Transaction<'_>,
    operation: &Operation,
    now: Timestamp,
    memory: &mut Memory,
    steps: &mut Vec<Step>,
) -> Result<Done, StoreError> {
    let outcome = match operation {
        Operation::Insert(draft) => {
            return insert(transaction, draft, now, memory, steps);
        }
        Operation::Swap(expected, change) => {
            swap_remembered(transaction, *expected, change, now, memory, steps)
                .map(|swapped| Done::Swapped(Box::new(swapped)))
        }
        Operation::Delete(id, expected) => delete(transaction, *id, *expected, steps),
        Operation::Append(journal) => note(transaction, now, journal).map(|()| Done::Written),
        Operation::List(entries) => list(transaction, entries).map(|()| Done::Written),
        Operation::Unlist(entries) => unlist(transaction, entries).map(|()| Done::Written),
        Operation::Run(statement) => execute(transaction, statement)
            .map(|()| Done::Written)
            .map_err(ReadError::from),
        // Done before the transaction.
        Operation::MoveLog => Ok(Done::Written),
    };
    outcome.map_err(StoreError::from)
}

fn insert(
    transaction: &Transaction<'_>,
    draft: &Draft,
    now: Timestamp,
    memory: &mut Memory,
    steps: &mut Vec<Step>,
) -> Result<Done, StoreError> {
    let record = draft.clone().stamp(now);
    // Numbers are not reused while lists may contain them.
    let n = memory.next_number;
    if !put_new(transaction, n, &record).map_err(ReadError::from)? {
        let existing = read::record(transaction, record.id)?;
        let existing = existing.ok_or_else(super::mismatched)?;
        if !existing.is_of(&record.scope, &record.key) {
            return Err(StoreError::Collision);
        }
        return Ok(Done::Inserted(Box::new(Inserted::Existing(existing))));
    }
    memory.next_number += 1;
    memory.known_ids.add(record.id);
    memory.remember(n, &record);
    steps.push(Step {
        from: None,
        to: Some(record.state),
        left: None,
    });
    Ok(Done::Inserted(Box::new(Inserted::New(record))))
}

/// Compares and writes. A record whose row the writer remembers is not looked up.
fn swap_remembered(
    transaction: &Transaction<'_>,
    expected: Revision,
    change: &Change,
    now: Timestamp,
    memory: &mut Memory,
    steps: &mut Vec<Step>,
) -> Result<Swapped, ReadError> {
    let Some(place) = memory.take_place(expected, change) else {
        return swap(transaction, expected, change, now, steps);
    };
    let swapped = swap_at(
        transaction,
        place.n,
        place.state,
        expected,
        change,
        now,
        steps,
    )?;
    let Some(record) = swapped else {
        return swap(transaction, expected, change, now, steps);
    };
    memory.remember(place.n, &record);
    Ok(Swapped::Done(record))
}

/// Compares and writes, in the transaction that is open on `connection`.
pub(super) fn swap(
    connection: &Connection,
    expected: Revision,
    change: &Change,
    now: Timestamp,
    steps: &mut Vec<Step>,
) -> Result<Swapped, ReadError> {
    let id = change.draft.record.id;
    let scope = change.draft.record.scope.as_str();
    let Some(found) = position(connection, id)? else {
        return Ok(Swapped::Absent);
    };
    if found.revision != expected {
        let current = read::record(connection, id)?;
        return Ok(current.map_or(Swapped::Absent, Swapped::Conflict));
    }
    // The scope of a record written before encryption was enabled has another name now.
    if found.scope != scope {
        list(connection, &[(scope.to_owned(), found.n)])?;
    }
    let swapped = swap_at(
        connection,
        found.n,
        found.state,
        expected,
        change,
        now,
        steps,
    )?;
    Ok(swapped.map_or(Swapped::Absent, Swapped::Done))
}

/// Writes the row `n` as `change` says; `None`, and nothing written, if the revision is not `expected`.
fn swap_at(
    connection: &Connection,
    n: i64,
    from: State,
    expected: Revision,
    change: &Change,
    now: Timestamp,
    steps: &mut Vec<Step>,
) -> Result<Option<Record>, ReadError> {
    let record = (*change.draft).clone().stamp(now);
    if !put_again(connection, n, expected, &record)? {
        return Ok(None);
    }
    note(connection, now, &change.journal)?;
    steps.push(Step {
        from: Some(from),
        to: Some(record.state),
        left: None,
    });
    Ok(Some(record))
}

fn delete(
    transaction: &Transaction<'_>,
    id: RecordId,
    expected: Revision,
    steps: &mut Vec<Step>,
) -> Result<Done, ReadError> {
    let found = position(transaction, id)?.filter(|found| found.revision == expected);
    let Some(Position {
        n, state, scope, ..
    }) = found
    else {
        return Ok(Done::Deleted(false));
    };
    for table in ["keys", "bodies", "live"] {
        transaction
            .prepare_cached(&format!("DELETE FROM {table} WHERE n = ?1"))?
            .execute(params![n])?;
    }
    transaction
        .prepare_cached("DELETE FROM phases WHERE id = ?1")?
        .execute(params![id.0])?;
    // Operator actions stay in the audit log; the rest of the history is deleted with its key.
    transaction
        .prepare_cached("DELETE FROM journal WHERE id = ?1 AND actor <> 'operator'")?
        .execute(params![id.0])?;
    steps.push(Step {
        from: Some(state),
        to: None,
        left: Some((scope, n)),
    });
    Ok(Done::Deleted(true))
}

/// Adds records to the lists of their scopes.
fn list(connection: &Connection, entries: &[Entry]) -> Result<(), ReadError> {
    let mut last: Option<(&str, i64)> = None;
    for (scope, n) in entries {
        let number = match last {
            Some((name, number)) if name == scope => number,
            _ => match scope_number(connection, scope)? {
                Some(number) => number,
                None => {
                    let sql = "INSERT INTO scope_numbers (name) VALUES (?1)";
                    connection.prepare_cached(sql)?.insert(params![scope])?
                }
            },
        };
        last = Some((scope, number));
        let sql = "INSERT OR IGNORE INTO scope_lists (scope, n) VALUES (?1, ?2)";
        connection
            .prepare_cached(sql)?
            .execute(params![number, n])?;
    }
    Ok(())
}

/// Removes deleted records from the lists of their scopes.
fn unlist(connection: &Connection, entries: &[Entry]) -> Result<(), ReadError> {
    let mut last: Option<(&str, Option<i64>)> = None;
    for (scope, n) in entries {
        let number = match last {
            Some((name, number)) if name == scope => number,
            _ => scope_number(connection, scope)?,
        };
        last = Some((scope, number));
        let sql = "DELETE FROM scope_lists WHERE scope = ?1 AND n = ?2";
        connection
            .prepare_cached(sql)?
            .execute(params![number, n])?;
    }
    Ok(())
}

fn scope_number(connection: &Connection, scope: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT number FROM scope_numbers WHERE name = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![scope], |row| row.get(0));
    found.optional()
}

/// The row of a record.
struct Position {
    n: i64,
    revision: Revision,
    state: State,
    scope: String,
}

fn position(transaction: &Connection, id: RecordId) -> Result<Option<Position>, ReadError> {
    let sql = "SELECT n, revision, state, row_version, scope FROM keys WHERE id = ?1";
    let found: Option<(i64, i64, String, i64, String)> = transaction
        .prepare_cached(sql)?
        .query_row(params![id.0], |row| row.try_into())
        .optional()?;
    let Some((n, revision, word, version, scope)) = found else {
        return Ok(None);
    };
    let state = State::from_word(&word).filter(|_| version == ROW_VERSION);
    Ok(Some(Position {
        n,
        revision: Revision(revision.unsigned_abs()),
        state: state.ok_or_else(|| ReadError::Unreadable("a row that is not ours".into()))?,
        scope,
    }))
}

/// Inserts row `n`, and its `live` row if needed; `false`, and nothing written, if there is a record with
/// this id.
fn put_new(transaction: &Connection, n: i64, record: &Record) -> rusqlite::Result<bool> {
    static INSERT: LazyLock<String> = LazyLock::new(|| {
        let places: Vec<String> = (1..=34).map(|place| format!("?{place}")).collect();
        let columns = COLUMNS.replace("k.", "");
        format!(
            "INSERT INTO keys ({columns}, n) VALUES ({}) ON CONFLICT (id) DO NOTHING",
            places.join(", ")
        )
    });
    let mut statement = transaction.prepare_cached(&INSERT)?;
    bind(&mut statement, record, n)?;
    if statement.raw_execute()? == 0 {
        return Ok(false);
    }
    put_body(transaction, n, record, true)?;
    put_live(transaction, n, record)?;
    Ok(true)
}

/// Updates row `n`, its body and its `live` row; `false`, and nothing written, if it is not the expected
/// record.
fn put_again(
    transaction: &Connection,
    n: i64,
    expected: Revision,
    record: &Record,
) -> rusqlite::Result<bool> {
    // The id is not updated, so its index is not touched.
    static UPDATE: LazyLock<String> = LazyLock::new(|| {
        let columns = COLUMNS.replace("k.", "");
        let pairs: Vec<String> = columns
            .split(", ")
            .enumerate()
            .skip(1)
            .map(|(index, column)| format!("{column} = ?{}", index + 1))
            .collect();
        format!(
            "UPDATE keys SET {} WHERE n = ?34 AND id = ?1 AND revision = ?35",
            pairs.join(", ")
        )
    });
    let mut statement = transaction.prepare_cached(&UPDATE)?;
    bind(&mut statement, record, n)?;
    statement.raw_bind_parameter(35, revision(expected))?;
    if statement.raw_execute()? == 0 {
        return Ok(false);
    }
    put_body(transaction, n, record, false)?;
    put_live(transaction, n, record)?;
    Ok(true)
}

fn revision(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// Binds the columns of `record`, in the order of [`COLUMNS`], and then `n`.
fn bind(statement: &mut rusqlite::Statement<'_>, record: &Record, n: i64) -> rusqlite::Result<()> {
    let response = record.response.as_deref();
    let times = &record.times;
    let at = |time: Option<Timestamp>| time.map(|time| time.0);
    let columns = params![
        record.id.0,
        ROW_VERSION,
        record.scope.as_str(),
        record.key.as_str(),
        &*record.route,
        &*record.method,
        &*record.path,
        revision(record.revision),
        record.state.as_str(),
        record.attempt_id.0.to_be_bytes(),
        record.fence.0,
        record.generation,
        record.fingerprint.map(|fingerprint| fingerprint.0),
        record.recipe.0,
        record.caller.map(|caller| caller.0),
        i64::try_from(record.tombstone_ttl.as_millis()).unwrap_or(i64::MAX),
        record.last_error.map(|error| error.as_str()),
        at(times.created_at),
        at(times.last_run_at),
        at(times.completed_at),
        at(times.expires_at),
        at(times.lease_until),
        at(times.unknown_since),
        at(times.reconcile_after),
        at(times.delete_at),
        response.map(|response| response.status.as_u16()),
        response.map(|response| i64::try_from(response.stored_bytes()).unwrap_or(i64::MAX)),
        response.map(codec::encode_head),
        record.evidence.as_ref().map(codec::encode_evidence),
        record.negatives,
        record.inconclusive,
        record.dead_letter,
        codec::encode_notes(&record.notes),
        n,
    ];
    for (index, value) in columns.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, value)?;
    }
    Ok(())
}

fn put_body(
    transaction: &Connection,
    n: i64,
    record: &Record,
    inserted: bool,
) -> rusqlite::Result<()> {
    match record.response.as_deref().and_then(codec::body_of) {
        Some(body) => transaction
            .prepare_cached("INSERT OR REPLACE INTO bodies (n, body) VALUES (?1, ?2)")?
            .execute(params![n, body])?,
        None if inserted => 0,
        None => transaction
            .prepare_cached("DELETE FROM bodies WHERE n = ?1")?
            .execute(params![n])?,
    };
    Ok(())
}

/// A record is in `live` while it has a lease, a scheduled query or an unknown outcome. Its times show all of
/// these, so no rule about states is repeated here.
fn put_live(transaction: &Connection, n: i64, record: &Record) -> rusqlite::Result<()> {
    let lease = record.times.lease_until.map(|time| time.0);
    let look = record.times.reconcile_after.map(|time| time.0);
    if lease.is_none() && look.is_none() && record.times.unknown_since.is_none() {
        transaction
            .prepare_cached("DELETE FROM live WHERE n = ?1")?
            .execute(params![n])?;
    } else {
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO live (n, lease_until, reconcile_after) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![n, lease, look])?;
    }
    Ok(())
}

pub(super) fn note(
    transaction: &Connection,
    now: Timestamp,
    journal: &[JournalEntry],
) -> Result<(), ReadError> {
    for entry in journal {
        transaction
            .prepare_cached(
                "INSERT INTO journal (at, id, event, from_state, to_state, attempt, actor, detail) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                now.0,
                entry.id.0,
                entry.event.as_str(),
                entry.from.map(State::as_str),
                entry.to.map(State::as_str),
                entry.attempt,
                entry.actor.as_str(),
                entry.detail,
            ])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Reply, Store as _,
        sqlite::{SqliteStore, known_ids::tests::draft, schema},
    };

    /// Goal: what the writer remembers of a record never stands in for the record itself.
    ///
    /// Method: insert a record, then change or remove it on another connection, as an application's own
    /// transaction does; swap it at the revision that the writer remembers.
    /// Evidence: the swap is refused with what is there, and succeeds at that revision.
    #[tokio::test]
    async fn a_remembered_place_is_compared_with_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let store = SqliteStore::open(&path).unwrap();
        let other = schema::connect(&path).unwrap();
        let Reply { value, .. } = store.insert_or_get(draft(&store, "k")).await.unwrap();
        let Inserted::New(first) = value else {
            panic!("the key was there already");
        };
        let change = || Change {
            draft: Box::new(draft(&store, "k")),
            journal: Vec::new(),
        };
        let moved = other.execute("UPDATE keys SET revision = revision + 5", []);
        assert_eq!(moved.unwrap(), 1);
        let lost = store.swap(first.revision, change()).await.unwrap().value;
        let Swapped::Conflict(there) = lost else {
            panic!("the other connection was faster: {lost:?}");
        };
        assert_eq!(there.revision.0, first.revision.0 + 5);
        let done = store.swap(there.revision, change()).await.unwrap().value;
        let Swapped::Done(done) = done else {
            panic!("nobody else wrote: {done:?}");
        };
        other.execute("DELETE FROM keys", []).unwrap();
        let gone = store.swap(done.revision, change()).await.unwrap().value;
        assert!(matches!(gone, Swapped::Absent), "{gone:?}");
    }
}

//! The versioned row: reads records and journal entries from the columns of any SQL database.
//!
//! Deliberately absent: writing. A batch of writes is arrays on PostgreSQL, text on MySQL and one prepared
//! statement on SQLite.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use onlyonce_core::{
    AttemptId, Fence, Fingerprint, Key, RecipeId, Record, RecordId, Scope, State, Timestamp,
    record::{
        Actor, JournalEntry, JournalEvent, LastError, Revision, StoredBody, StoredResponse, Times,
    },
    secret::CallerMark,
};

use crate::{BoxError, JournalRow, Listed, StoreError, codec, transactional::TransactionError};

/// The version of a row. A row of another version is refused.
pub(crate) const ROW_VERSION: i64 = 1;

/// The columns of `keys` in the order in which [`read`] takes them, if the table has them unchanged.
pub(crate) const COLUMNS: &str = "k.id, k.row_version, k.scope, k.key, k.route, k.method, k.path, \
     k.revision, k.state, k.attempt_id, k.fence, k.generation, k.fingerprint, k.recipe, k.caller, \
     k.tombstone_ttl, k.last_error, k.created_at, k.last_run_at, k.completed_at, k.expires_at, \
     k.lease_until, k.unknown_since, k.reconcile_after, k.delete_at, k.response_status, \
     k.response_bytes, k.response_head, k.evidence, k.negatives, k.inconclusive, k.dead_letter, \
     k.notes";

/// The column of the body, in statements that return whole records.
pub(crate) const BODY: usize = 33;
/// The column of the number, in statements that return records without their responses.
pub(crate) const COUNT: usize = 33;

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) enum RowError {
    /// The row is not one of ours.
    Unreadable(BoxError),
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl From<sqlx::Error> for RowError {
    fn from(error: sqlx::Error) -> Self {
        Self::Unreadable(Box::new(error))
    }
}

impl From<codec::CodecError> for RowError {
    fn from(error: codec::CodecError) -> Self {
        Self::Unreadable(Box::new(error))
    }
}

impl std::fmt::Display for RowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Unreadable(error) = self;
        error.fmt(f)
    }
}

impl From<RowError> for StoreError {
    fn from(RowError::Unreadable(error): RowError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<RowError> for TransactionError {
    fn from(RowError::Unreadable(error): RowError) -> Self {
        Self::Unreadable(error)
    }
}

pub(crate) fn unreadable(what: &'static str) -> RowError {
    RowError::Unreadable(what.into())
}

/// The columns of a row, by position. `None` is NULL.
pub(crate) trait Columns {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError>;
    fn text(&self, column: usize) -> Result<Option<&str>, RowError>;
    /// An integer of any width.
    fn number(&self, column: usize) -> Result<Option<i64>, RowError>;
    fn flag(&self, column: usize) -> Result<bool, RowError>;
}

pub(crate) fn missing() -> RowError {
    unreadable("a stored value is missing")
}

/// The bytes in `column`, not NULL and of this length.
pub(crate) fn array<const N: usize>(
    row: &impl Columns,
    column: usize,
) -> Result<[u8; N], RowError> {
    optional_array(row, column)?.ok_or_else(missing)
}

pub(crate) fn optional_array<const N: usize>(
    row: &impl Columns,
    column: usize,
) -> Result<Option<[u8; N]>, RowError> {
    let wrong = |_| unreadable("a stored id has a wrong length");
    let found = row.bytes(column)?;
    found
        .map(|bytes| bytes.try_into().map_err(wrong))
        .transpose()
}

/// The text in `column`, not NULL.
pub(crate) fn text(row: &impl Columns, column: usize) -> Result<&str, RowError> {
    row.text(column)?.ok_or_else(missing)
}

/// The text in `column`, if not NULL.
pub(crate) fn word(row: &impl Columns, column: usize) -> Result<Option<String>, RowError> {
    Ok(row.text(column)?.map(str::to_owned))
}

/// The bytes in `column`, if not NULL.
pub(crate) fn blob(row: &impl Columns, column: usize) -> Result<Option<Vec<u8>>, RowError> {
    Ok(row.bytes(column)?.map(<[u8]>::to_vec))
}

/// The number in `column`, not NULL and in range.
pub(crate) fn number<T: TryFrom<i64>>(row: &impl Columns, column: usize) -> Result<T, RowError> {
    let found = row.number(column)?.ok_or_else(missing)?;
    T::try_from(found).map_err(|_| unreadable("a stored number is out of range"))
}

/// The time in `column`, not NULL.
pub(crate) fn now(row: &impl Columns, column: usize) -> Result<Timestamp, RowError> {
    number(row, column).map(Timestamp)
}

/// The time in `column`, if not NULL.
pub(crate) fn moment(row: &impl Columns, column: usize) -> Result<Option<Timestamp>, RowError> {
    Ok(row.number(column)?.map(Timestamp))
}

/// The attempt in `column`, not NULL.
pub(crate) fn attempt(row: &impl Columns, column: usize) -> Result<AttemptId, RowError> {
    Ok(AttemptId(u128::from_be_bytes(array(row, column)?)))
}

/// The record in `row`, whose columns are [`COLUMNS`]; without its response.
pub(crate) fn read(row: &impl Columns) -> Result<Record, RowError> {
    if row.number(1)? != Some(ROW_VERSION) {
        return Err(unreadable(
            "a stored row has a version that this program does not know",
        ));
    }
    let last_error = row
        .text(16)?
        .map(|word| LastError::from_word(word).ok_or_else(|| unreadable("an unknown last_error")))
        .transpose()?;
    let evidence = row.bytes(28)?.map(codec::decode_evidence).transpose()?;
    Ok(Record {
        id: RecordId(array(row, 0)?),
        scope: Scope::from_stored(text(row, 2)?),
        key: Key::from_stored(text(row, 3)?),
        route: Arc::from(text(row, 4)?),
        method: Arc::from(text(row, 5)?),
        path: Arc::from(text(row, 6)?),
        revision: Revision(number(row, 7)?),
        state: State::from_word(text(row, 8)?).ok_or_else(|| unreadable("an unknown state"))?,
        attempt_id: attempt(row, 9)?,
        fence: Fence(number(row, 10)?),
        generation: number(row, 11)?,
        fingerprint: optional_array(row, 12)?.map(Fingerprint),
        recipe: RecipeId(array(row, 13)?),
        caller: optional_array(row, 14)?.map(CallerMark),
        tombstone_ttl: Duration::from_millis(number(row, 15)?),
        last_error,
        response: None,
        evidence,
        negatives: number(row, 29)?,
        inconclusive: number(row, 30)?,
        dead_letter: row.flag(31)?,
        notes: codec::decode_notes(row.bytes(32)?)?,
        times: Times {
            created_at: moment(row, 17)?,
            last_run_at: moment(row, 18)?,
            completed_at: moment(row, 19)?,
            expires_at: moment(row, 20)?,
            lease_until: moment(row, 21)?,
            unknown_since: moment(row, 22)?,
            reconcile_after: moment(row, 23)?,
            delete_at: moment(row, 24)?,
        },
    })
}

/// The record in `row` with its response, whose body is in the column [`BODY`].
pub(crate) fn read_whole(row: &impl Columns) -> Result<Record, RowError> {
    let mut record = read(row)?;
    let body = row.bytes(BODY)?.map(Bytes::copy_from_slice);
    let response = match (row.bytes(27)?, body) {
        (Some(head), body) => Some(codec::decode_head(head, body)?),
        // A packed answer has its head in its block; status and length are columns.
        (None, Some(block)) => Some(StoredResponse {
            status: status(row)?.ok_or_else(missing)?,
            headers: HeaderMap::new(),
            body: StoredBody::Packed {
                block,
                length: number(row, 26)?,
            },
        }),
        (None, None) => None,
    };
    record.response = response.map(Arc::new);
    Ok(record)
}

/// The status of the response, if there is one.
fn status(row: &impl Columns) -> Result<Option<StatusCode>, RowError> {
    let status = row
        .number(25)?
        .and_then(|status| u16::try_from(status).ok());
    Ok(status.and_then(|status| StatusCode::from_u16(status).ok()))
}

/// The record in `row` as shown in lists, and its number, which follows the columns.
pub(crate) fn read_listed(row: &impl Columns) -> Result<(u64, Listed), RowError> {
    let status = status(row)?;
    let bytes = row.number(26)?.unwrap_or(0).unsigned_abs();
    let listed = Listed {
        record: read(row)?,
        response: status.map(|status| (status, bytes)),
    };
    Ok((number(row, COUNT)?, listed))
}

/// The columns of `journal` in the order in which [`read_journal`] takes them.
pub(crate) const JOURNAL_COLUMNS: &str =
    "number, at, id, event, from_state, to_state, attempt, actor, detail";

/// The journal row in `row`, whose columns are [`JOURNAL_COLUMNS`].
pub(crate) fn read_journal(row: &impl Columns) -> Result<JournalRow, RowError> {
    let state = |column: usize| -> Result<Option<State>, RowError> {
        let word = row.text(column)?;
        word.map(|word| State::from_word(word).ok_or_else(|| unreadable("an unknown state")))
            .transpose()
    };
    let event = JournalEvent::from_word(text(row, 3)?);
    let actor = Actor::from_word(text(row, 7)?);
    Ok(JournalRow {
        number: number(row, 0)?,
        at: now(row, 1)?,
        entry: JournalEntry {
            id: RecordId(array(row, 2)?),
            event: event.ok_or_else(|| unreadable("an unknown event"))?,
            from: state(4)?,
            to: state(5)?,
            attempt: number(row, 6)?,
            actor: actor.ok_or_else(|| unreadable("an unknown actor"))?,
            detail: row.text(8)?.map(Into::into),
        },
    })
}

/// The value, or `None` with a log message if it is unreadable: one row must not keep the others from being
/// swept, reaped or shown.
pub(crate) fn readable<T>(read: Result<T, RowError>) -> Option<T> {
    read.inspect_err(
        |error| tracing::error!(%error, "a row of the store cannot be read; it is left as it is"),
    )
    .ok()
}

/// `value` as stored in a column, at most `most`.
pub(crate) fn clamped<T: TryFrom<i64> + Copy>(value: u64, most: T) -> T {
    i64::try_from(value)
        .ok()
        .and_then(|value| T::try_from(value).ok())
        .unwrap_or(most)
}

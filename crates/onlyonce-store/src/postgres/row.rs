//! The versioned row: how records travel to PostgreSQL as arrays, a column each, and how they are
//! read back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use onlyonce_core::{
    AttemptId, Fence, Fingerprint, Key, RecipeId, Record, RecordId, Scope, State, Timestamp,
    record::{
        Actor, Change, Draft, JournalEntry, JournalEvent, LastError, Revision, StoredResponse,
        Times,
    },
    secret::CallerMark,
    time::Stamp,
};
use sqlx::{Row as _, postgres::PgRow};

use super::uuid::Uuid;
use crate::{BoxError, JournalRow, StoreError, codec};

/// The version of a row. A row of another version is not read as if it were this one.
const ROW_VERSION: i16 = 2;

/// The columns of `keys` in the order in which [`read`] takes them.
pub(super) const COLUMNS: &str = concat!("k.id, ", include_str!("columns.sql"));

/// Where the statements that return whole records have the rest.
pub(super) const BODY: usize = 32;
pub(super) const IS_NEW: usize = 33;
pub(super) const NOW: usize = 34;

/// Why a row could not be read.
#[derive(Debug)]
pub(super) enum RowError {
    /// It is not one of ours.
    Unreadable(BoxError),
}

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

fn unreadable(what: &'static str) -> RowError {
    RowError::Unreadable(what.into())
}

fn bytes<const N: usize>(row: &PgRow, column: usize) -> Result<[u8; N], RowError> {
    optional_bytes(row, column)?.ok_or_else(|| unreadable("a stored id is missing"))
}

fn optional_bytes<const N: usize>(row: &PgRow, column: usize) -> Result<Option<[u8; N]>, RowError> {
    let found: Option<&[u8]> = row.try_get(column)?;
    found
        .map(|bytes| {
            bytes
                .try_into()
                .map_err(|_| unreadable("a stored id has a wrong length"))
        })
        .transpose()
}

fn number<T: TryFrom<i64>>(value: impl Into<i64>) -> Result<T, RowError> {
    T::try_from(value.into()).map_err(|_| unreadable("a stored number is out of range"))
}

/// The id in the first column; `None` on a row that only carries the time.
pub(super) fn id(row: &PgRow) -> Result<Option<RecordId>, RowError> {
    let found: Option<Uuid> = row.try_get(0)?;
    Ok(found.map(|Uuid(bytes)| RecordId(bytes)))
}

fn uuid(row: &PgRow, column: usize) -> Result<[u8; 16], RowError> {
    let Uuid(bytes) = row.try_get(column)?;
    Ok(bytes)
}

/// The record in `row`, whose columns are [`COLUMNS`]; without its response.
pub(super) fn read(row: &PgRow) -> Result<Record, RowError> {
    if row.try_get::<i16, _>(1)? != ROW_VERSION {
        return Err(unreadable(
            "a stored row has a version that this program does not know",
        ));
    }
    let last_error = row
        .try_get::<Option<&str>, _>(16)?
        .map(|word| LastError::from_word(word).ok_or_else(|| unreadable("an unknown last_error")))
        .transpose()?;
    let evidence = row
        .try_get::<Option<&[u8]>, _>(28)?
        .map(codec::decode_evidence)
        .transpose()?;
    let time = |column: usize| {
        row.try_get::<Option<i64>, _>(column)
            .map(|at| at.map(Timestamp))
    };
    let text = |column: usize| row.try_get::<&str, _>(column);
    Ok(Record {
        id: RecordId(uuid(row, 0)?),
        scope: Scope::from_stored(text(2)?),
        key: Key::from_stored(text(3)?),
        route: Arc::from(text(4)?),
        method: Arc::from(text(5)?),
        path: Arc::from(text(6)?),
        revision: Revision(number(row.try_get::<i64, _>(7)?)?),
        state: State::from_word(text(8)?).ok_or_else(|| unreadable("an unknown state"))?,
        attempt_id: AttemptId(u128::from_be_bytes(uuid(row, 9)?)),
        fence: Fence(number(row.try_get::<i32, _>(10)?)?),
        generation: number(row.try_get::<i32, _>(11)?)?,
        fingerprint: optional_bytes(row, 12)?.map(Fingerprint),
        recipe: RecipeId(bytes(row, 13)?),
        caller: optional_bytes(row, 14)?.map(CallerMark),
        tombstone_ttl: Duration::from_millis(number(row.try_get::<i64, _>(15)?)?),
        last_error,
        response: None,
        evidence,
        negatives: number(row.try_get::<Option<i16>, _>(29)?.unwrap_or(0))?,
        inconclusive: number(row.try_get::<Option<i16>, _>(30)?.unwrap_or(0))?,
        dead_letter: row.try_get::<Option<bool>, _>(31)?.unwrap_or(false),
        times: Times {
            created_at: time(17)?,
            // Empty where it is the same.
            last_run_at: time(18)?.or(time(17)?),
            completed_at: time(19)?,
            expires_at: time(20)?,
            lease_until: time(21)?,
            unknown_since: time(22)?,
            reconcile_after: time(23)?,
            delete_at: time(24)?,
        },
    })
}

/// The record in `row` with its response, whose body stands in the column [`BODY`].
pub(super) fn read_whole(row: &PgRow) -> Result<Record, RowError> {
    let mut record = read(row)?;
    if let Some(head) = row.try_get::<Option<&[u8]>, _>(27)? {
        let body: Option<&[u8]> = row.try_get(BODY)?;
        let response = codec::decode_head(head, body.map(Bytes::copy_from_slice))?;
        record.response = Some(Arc::new(response));
    }
    Ok(record)
}

/// The columns of `journal` in the order in which [`read_journal`] takes them.
pub(super) const JOURNAL_COLUMNS: &str =
    "number, at, id, event, from_state, to_state, attempt, actor, detail";

/// The journal row in `row`, whose columns are [`JOURNAL_COLUMNS`].
pub(super) fn read_journal(row: &PgRow) -> Result<JournalRow, RowError> {
    let state = |column: usize| -> Result<Option<State>, RowError> {
        let word: Option<&str> = row.try_get(column)?;
        word.map(|word| State::from_word(word).ok_or_else(|| unreadable("an unknown state")))
            .transpose()
    };
    let (event, actor): (&str, &str) = (row.try_get(3)?, row.try_get(7)?);
    Ok(JournalRow {
        number: number(row.try_get::<i64, _>(0)?)?,
        at: Timestamp(row.try_get(1)?),
        entry: JournalEntry {
            id: RecordId(uuid(row, 2)?),
            event: JournalEvent::from_word(event).ok_or_else(|| unreadable("an unknown event"))?,
            from: state(4)?,
            to: state(5)?,
            attempt: number(row.try_get::<i32, _>(6)?)?,
            actor: Actor::from_word(actor).ok_or_else(|| unreadable("an unknown actor"))?,
            detail: row.try_get(8)?,
        },
    })
}

/// A stamp as one number: a time that is kept as it is, a duration from the server's now as a
/// number below zero.
fn stamp(stamp: Stamp) -> Option<i64> {
    match stamp {
        Stamp::Never => None,
        Stamp::At(at) => Some(at.0.max(0)),
        Stamp::In(duration) => Some(-i64::try_from(duration.as_millis()).unwrap_or(i64::MAX) - 1),
    }
}

fn clamped<T: TryFrom<i64> + Copy>(value: u64, most: T) -> T {
    i64::try_from(value)
        .ok()
        .and_then(|value| T::try_from(value).ok())
        .unwrap_or(most)
}

/// A count, empty for none.
fn count(of: u16) -> Option<i16> {
    (of > 0).then(|| clamped(of.into(), i16::MAX))
}

type Column<T> = Vec<T>;
type Blobs = Column<Option<Vec<u8>>>;

/// What every write of a record carries, a column each.
#[derive(Default)]
pub(super) struct Common<'a> {
    pub(super) id: Column<Uuid>,
    pub(super) revision: Column<i64>,
    pub(super) tombstone_ttl: Column<i64>,
    pub(super) fence: Column<i32>,
    pub(super) generation: Column<i32>,
    pub(super) attempt_id: Column<Uuid>,
    pub(super) fingerprint: Column<Option<[u8; 32]>>,
    pub(super) recipe: Column<[u8; 8]>,
    pub(super) caller: Column<Option<[u8; 16]>>,
    pub(super) state: Column<&'static str>,
    pub(super) route: Column<&'a str>,
    pub(super) method: Column<&'a str>,
    pub(super) path: Column<&'a str>,
    pub(super) created_at: Column<Option<i64>>,
    pub(super) last_run_at: Column<Option<i64>>,
    pub(super) lease_until: Column<Option<i64>>,
}

impl<'a> Common<'a> {
    fn push(&mut self, draft: &'a Draft) {
        let record = &draft.record;
        self.id.push(Uuid(record.id.0));
        self.revision.push(clamped(record.revision.0, i64::MAX));
        let millis = u64::try_from(record.tombstone_ttl.as_millis()).unwrap_or(u64::MAX);
        self.tombstone_ttl.push(clamped(millis, i64::MAX));
        self.fence.push(clamped(record.fence.0.into(), i32::MAX));
        self.generation
            .push(clamped(record.generation.into(), i32::MAX));
        self.attempt_id
            .push(Uuid(record.attempt_id.0.to_be_bytes()));
        self.fingerprint
            .push(record.fingerprint.map(|fingerprint| fingerprint.0));
        self.recipe.push(record.recipe.0);
        self.caller.push(record.caller.map(|caller| caller.0));
        self.state.push(record.state.as_str());
        self.route.push(&record.route);
        self.method.push(&record.method);
        self.path.push(&record.path);
        self.created_at.push(stamp(draft.stamps.created_at));
        let last_run_at = Some(draft.stamps.last_run_at);
        let differs = last_run_at.filter(|at| *at != draft.stamps.created_at);
        self.last_run_at.push(differs.and_then(stamp));
        self.lease_until.push(stamp(draft.stamps.lease_until));
    }
}

/// New keys.
#[derive(Default)]
pub(super) struct Inserts<'a> {
    pub(super) common: Common<'a>,
    pub(super) scope: Column<&'a str>,
    pub(super) key: Column<Option<&'a str>>,
    pub(super) key_uuid: Column<Option<Uuid>>,
}

impl<'a> Inserts<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.common.id.is_empty()
    }

    pub(super) fn push(&mut self, draft: &'a Draft) {
        self.common.push(draft);
        self.scope.push(draft.record.scope.as_str());
        let key = draft.record.key.as_str();
        let uuid = Uuid::parse(key);
        self.key.push(uuid.is_none().then_some(key));
        self.key_uuid.push(uuid);
    }
}

/// Changes of keys, and their journal.
#[derive(Default)]
pub(super) struct Swaps<'a> {
    pub(super) common: Common<'a>,
    pub(super) expected: Column<i64>,
    pub(super) is_live: Column<bool>,
    pub(super) last_error: Column<Option<&'static str>>,
    pub(super) response_status: Column<Option<i16>>,
    pub(super) response_bytes: Column<Option<i32>>,
    pub(super) response_head: Blobs,
    pub(super) response_body: Column<Option<&'a [u8]>>,
    pub(super) evidence: Blobs,
    pub(super) negatives: Column<Option<i16>>,
    pub(super) inconclusive: Column<Option<i16>>,
    pub(super) dead_letter: Column<Option<bool>>,
    pub(super) completed_at: Column<Option<i64>>,
    pub(super) expires_at: Column<Option<i64>>,
    pub(super) unknown_since: Column<Option<i64>>,
    pub(super) reconcile_after: Column<Option<i64>>,
    pub(super) delete_at: Column<Option<i64>>,
    pub(super) journal: Journal<'a>,
}

impl<'a> Swaps<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.common.id.is_empty()
    }

    pub(super) fn push(&mut self, expected: Revision, change: &'a Change) {
        let draft = &*change.draft;
        let record = &draft.record;
        let stamps = &draft.stamps;
        self.common.push(draft);
        self.expected.push(clamped(expected.0, i64::MAX));
        // A lease or an unknown outcome shows in the times, so no rule about states is repeated.
        self.is_live.push(
            stamps.lease_until != Stamp::Never
                || stamps.reconcile_after != Stamp::Never
                || stamps.unknown_since != Stamp::Never,
        );
        self.last_error
            .push(record.last_error.map(LastError::as_str));
        let response = record.response.as_deref();
        let status = response.map(|response| u64::from(response.status.as_u16()));
        self.response_status
            .push(status.map(|status| clamped(status, i16::MAX)));
        let length = response.map(StoredResponse::stored_bytes);
        self.response_bytes
            .push(length.map(|length| clamped(length, i32::MAX)));
        self.response_head.push(response.map(codec::encode_head));
        self.response_body.push(response.and_then(codec::body_of));
        self.evidence
            .push(record.evidence.as_ref().map(codec::encode_evidence));
        self.negatives.push(count(record.negatives));
        self.inconclusive.push(count(record.inconclusive));
        self.dead_letter.push(record.dead_letter.then_some(true));
        self.completed_at.push(stamp(stamps.completed_at));
        self.expires_at.push(stamp(stamps.expires_at));
        self.unknown_since.push(stamp(stamps.unknown_since));
        self.reconcile_after.push(stamp(stamps.reconcile_after));
        self.delete_at.push(stamp(stamps.delete_at));
        for entry in &change.journal {
            self.journal.push(entry);
        }
    }
}

/// Journal rows, a column each.
#[derive(Default)]
pub(super) struct Journal<'a> {
    pub(super) id: Column<Uuid>,
    pub(super) event: Column<&'static str>,
    pub(super) from: Column<Option<&'static str>>,
    pub(super) to: Column<Option<&'static str>>,
    pub(super) attempt: Column<i32>,
    pub(super) actor: Column<&'static str>,
    pub(super) detail: Column<Option<&'a str>>,
}

impl<'a> Journal<'a> {
    pub(super) fn push(&mut self, entry: &'a JournalEntry) {
        self.id.push(Uuid(entry.id.0));
        self.event.push(entry.event.as_str());
        self.from.push(entry.from.map(State::as_str));
        self.to.push(entry.to.map(State::as_str));
        self.attempt.push(clamped(entry.attempt.into(), i32::MAX));
        self.actor.push(entry.actor.as_str());
        self.detail.push(entry.detail.as_deref());
    }
}

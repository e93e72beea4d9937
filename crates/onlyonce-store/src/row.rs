//! The versioned row of stores without columns, Redis and DynamoDB: the byte layout of a record, its answer
//! and its journal.

use std::{str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fence, Fingerprint, Key, RecipeId, Record, RecordId, Scope, State, Timestamp,
    record::{
        Actor, Draft, JournalEntry, JournalEvent, LastError, Notes, Revision, StoredBody,
        StoredResponse, Times,
    },
    secret::CallerMark,
    time::Stamp,
};

use crate::{
    BoxError, JournalRow, Listed, StoreError,
    codec::{self, CodecError, Reader, put_block},
};

/// The version of a block. A block of an unknown version is refused.
const VERSION: u8 = 2;
/// The version before notes were added.
const WITHOUT_NOTES: u8 = 1;
/// The version of a journal row.
const JOURNAL_VERSION: u8 = 1;
/// The longest time, in milliseconds, that a script can add without losing precision.
const MAX_MILLIS: u128 = 1 << 52;

/// Why a row could not be read.
#[derive(Debug)]
pub(crate) struct Unreadable(pub(crate) BoxError);

impl From<CodecError> for Unreadable {
    fn from(error: CodecError) -> Self {
        Self(Box::new(error))
    }
}

impl From<&'static str> for Unreadable {
    fn from(what: &'static str) -> Self {
        Self(what.into())
    }
}

impl From<Unreadable> for StoreError {
    fn from(Unreadable(error): Unreadable) -> Self {
        Self::Unreadable(error)
    }
}

/// A record, and its number in lists.
pub(crate) struct Row {
    /// Unique within its bucket.
    pub(crate) number: u64,
    /// Without the body of its answer, unless the body was given.
    pub(crate) listed: Listed,
}

/// The times of a draft, in the order in which scripts take them.
pub(crate) fn stamps(draft: &Draft) -> [String; 8] {
    let stamps = &draft.stamps;
    [
        stamps.created_at,
        stamps.last_run_at,
        stamps.completed_at,
        stamps.expires_at,
        stamps.lease_until,
        stamps.unknown_since,
        stamps.reconcile_after,
        stamps.delete_at,
    ]
    .map(|stamp| match stamp {
        Stamp::Never => String::new(),
        Stamp::At(at) => at.0.max(0).to_string(),
        Stamp::In(duration) => format!("+{}", duration.as_millis().min(MAX_MILLIS)),
    })
}

/// The word under which a record is counted.
pub(crate) fn tag(state: State) -> &'static str {
    state.as_str()
}

/// Everything in a record but its revision, its times and the body of its answer.
pub(crate) fn block(record: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.push(VERSION);
    for text in [
        record.scope.as_str(),
        record.key.as_str(),
        &record.route,
        &record.method,
        &record.path,
        record.last_error.map_or("", LastError::as_str),
    ] {
        put_block(text.as_bytes(), &mut out);
    }
    out.extend_from_slice(&record.attempt_id.0.to_be_bytes());
    out.extend_from_slice(&record.recipe.0);
    out.extend_from_slice(&record.fence.0.to_le_bytes());
    out.extend_from_slice(&record.generation.to_le_bytes());
    let millis = u64::try_from(record.tombstone_ttl.as_millis()).unwrap_or(u64::MAX);
    out.extend_from_slice(&millis.to_le_bytes());
    out.extend_from_slice(&record.negatives.to_le_bytes());
    out.extend_from_slice(&record.inconclusive.to_le_bytes());
    out.push(u8::from(record.dead_letter));
    put_optional(
        record.fingerprint.as_ref().map(|print| &print.0[..]),
        &mut out,
    );
    put_optional(record.caller.as_ref().map(|mark| &mark.0[..]), &mut out);
    let evidence = record.evidence.as_ref().map(codec::encode_evidence);
    put_optional(evidence.as_deref(), &mut out);
    let response = record.response.as_deref();
    // Separate from the head, so that lists need not decode it.
    let status = response.map_or(0, |response| response.status.as_u16());
    let size = response.map_or(0, StoredResponse::stored_bytes);
    out.extend_from_slice(&status.to_le_bytes());
    out.extend_from_slice(&size.to_le_bytes());
    put_optional(response.map(codec::encode_head).as_deref(), &mut out);
    put_optional(codec::encode_notes(&record.notes).as_deref(), &mut out);
    out
}

/// A record as it is stored, except for the body of its answer and its place in lists.
pub(crate) fn stored(record: &Record) -> Vec<u8> {
    let times = &record.times;
    let times = [
        times.created_at,
        times.last_run_at,
        times.completed_at,
        times.expires_at,
        times.lease_until,
        times.unknown_since,
        times.reconcile_after,
        times.delete_at,
    ];
    let times = times.map(|at| at.map_or_else(String::new, |at| at.0.to_string()));
    let (revision, tag) = (record.revision.0, tag(record.state));
    let mut out = format!("{revision}|0|{tag}|{}|", times.join(",")).into_bytes();
    out.extend_from_slice(&block(record));
    out
}

/// The stored bytes of a record's answer.
pub(crate) fn body(record: &Record) -> Option<&Bytes> {
    match &record.response.as_deref()?.body {
        StoredBody::Full { bytes, .. } => Some(bytes),
        StoredBody::Packed { block, .. } => Some(block),
        StoredBody::NotStored => None,
    }
}

fn put_optional(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put_block(bytes, out);
    }
}

/// Splits `text` at the next vertical bar.
fn field<'a>(text: &mut &'a [u8]) -> Result<&'a str, Unreadable> {
    let end = text.iter().position(|byte| *byte == b'|');
    let end = end.ok_or("a stored row ends too early")?;
    let (field, rest) = text.split_at(end);
    *text = &rest[1..];
    std::str::from_utf8(field).map_err(|_| "a stored number is not text".into())
}

/// Parses a number in its canonical form only.
fn number<T: FromStr + ToString>(text: &str) -> Result<T, Unreadable> {
    let number = text.parse().ok();
    number
        .filter(|number: &T| number.to_string() == text)
        .ok_or_else(|| "a stored number is not one".into())
}

fn times(text: &str) -> Result<Times<Option<Timestamp>>, Unreadable> {
    let mut words = text.split(',');
    let mut next = || -> Result<Option<Timestamp>, Unreadable> {
        match words.next().ok_or("a stored row has too few times")? {
            "" => Ok(None),
            word => number(word).map(|at| Some(Timestamp(at))),
        }
    };
    let times = Times {
        created_at: next()?,
        last_run_at: next()?,
        completed_at: next()?,
        expires_at: next()?,
        lease_until: next()?,
        unknown_since: next()?,
        reconcile_after: next()?,
        delete_at: next()?,
    };
    match words.next() {
        None => Ok(times),
        Some(_) => Err("a stored row has too many times".into()),
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Unreadable> {
    std::str::from_utf8(reader.block()?).map_err(|_| "a stored text is not text".into())
}

fn optional<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, Unreadable> {
    match reader.byte()? {
        0 => Ok(None),
        1 => Ok(Some(reader.block()?)),
        _ => Err(CodecError::Damaged.into()),
    }
}

fn fixed<const N: usize>(bytes: Option<&[u8]>) -> Result<Option<[u8; N]>, Unreadable> {
    let wrong = |_| Unreadable::from("a stored id has a wrong length");
    bytes
        .map(|bytes| bytes.try_into().map_err(wrong))
        .transpose()
}

/// The row of record `id`, without the body of its answer.
pub(crate) fn read(id: RecordId, stored: &[u8]) -> Result<Row, Unreadable> {
    parts(id, stored).map(|(row, _)| row)
}

/// The whole record `id`.
pub(crate) fn read_whole(
    id: RecordId,
    stored: &[u8],
    body: Option<Bytes>,
) -> Result<Record, Unreadable> {
    let (row, head) = parts(id, stored)?;
    let mut record = row.listed.record;
    if let Some(head) = head {
        record.response = Some(Arc::new(codec::decode_head(head, body)?));
    }
    Ok(record)
}

/// The row, and the head of its answer.
fn parts(id: RecordId, stored: &[u8]) -> Result<(Row, Option<&[u8]>), Unreadable> {
    let mut rest = stored;
    let revision = Revision(number(field(&mut rest)?)?);
    let row_number = number(field(&mut rest)?)?;
    let state = State::from_word(field(&mut rest)?).ok_or("a stored row has an unknown state")?;
    let times = times(field(&mut rest)?)?;
    let mut reader = Reader::new(rest);
    let has_notes = match reader.byte()? {
        VERSION => true,
        WITHOUT_NOTES => false,
        version => return Err(CodecError::Version(version).into()),
    };
    let scope = Scope::from_stored(text(&mut reader)?);
    let key = Key::from_stored(text(&mut reader)?);
    let route = Arc::from(text(&mut reader)?);
    let method = Arc::from(text(&mut reader)?);
    let path = Arc::from(text(&mut reader)?);
    let last_error = match text(&mut reader)? {
        "" => None,
        word => Some(LastError::from_word(word).ok_or("a stored row has an unknown last_error")?),
    };
    let mut record = Record {
        id,
        scope,
        key,
        route,
        method,
        path,
        revision,
        state,
        attempt_id: AttemptId(u128::from_be_bytes(reader.array()?)),
        recipe: RecipeId(reader.array()?),
        fence: Fence(u32::from_le_bytes(reader.array()?)),
        generation: u32::from_le_bytes(reader.array()?),
        tombstone_ttl: Duration::from_millis(u64::from_le_bytes(reader.array()?)),
        negatives: reader.u16()?,
        inconclusive: reader.u16()?,
        dead_letter: match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(CodecError::Damaged.into()),
        },
        notes: Notes::default(),
        fingerprint: None,
        caller: None,
        evidence: None,
        last_error,
        response: None,
        times,
    };
    record.fingerprint = fixed(optional(&mut reader)?)?.map(Fingerprint);
    record.caller = fixed(optional(&mut reader)?)?.map(CallerMark);
    let evidence = optional(&mut reader)?;
    record.evidence = evidence.map(codec::decode_evidence).transpose()?;
    let status = StatusCode::from_u16(reader.u16()?).ok();
    let size = u64::from_le_bytes(reader.array()?);
    let head = optional(&mut reader)?;
    if has_notes {
        record.notes = codec::decode_notes(optional(&mut reader)?)?;
    }
    reader.end()?;
    let response = status.map(|status| (status, size));
    let listed = Listed { record, response };
    let number = row_number;
    Ok((Row { number, listed }, head))
}

/// A journal row as scripts take it: whether it outlives its record, then its bytes.
pub(crate) fn journal_row(entry: &JournalEntry) -> Vec<u8> {
    let outlives = entry.actor == Actor::Operator;
    let mut out = vec![if outlives { b'1' } else { b'0' }, JOURNAL_VERSION];
    out.extend_from_slice(&entry.id.0);
    out.extend_from_slice(&entry.attempt.to_le_bytes());
    for text in [
        entry.event.as_str(),
        entry.from.map_or("", State::as_str),
        entry.to.map_or("", State::as_str),
        entry.actor.as_str(),
    ] {
        put_block(text.as_bytes(), &mut out);
    }
    put_optional(entry.detail.as_deref().map(str::as_bytes), &mut out);
    out
}

/// Whether a journal row outlives its record, as its first byte says.
#[cfg(feature = "dynamodb")]
pub(crate) fn outlives_its_record(stored: &[u8]) -> bool {
    stored.first() == Some(&b'1')
}

/// A journal row as it is stored. In Redis, scripts insert the number and the time themselves.
#[cfg(feature = "dynamodb")]
pub(crate) fn stored_journal(entry: &JournalEntry, number: u64, at: Timestamp) -> Vec<u8> {
    let row = journal_row(entry);
    let mut out = vec![row[0]];
    out.extend_from_slice(format!("{number}|{}|", at.0).as_bytes());
    out.extend_from_slice(&row[1..]);
    out
}

/// Reads a stored journal row, with its number within the bucket.
pub(crate) fn read_journal(stored: &[u8]) -> Result<JournalRow, Unreadable> {
    let mut rest = stored.get(1..).ok_or("a stored journal row is empty")?;
    let row_number = number(field(&mut rest)?)?;
    let at = Timestamp(number(field(&mut rest)?)?);
    let mut reader = Reader::new(rest);
    match reader.byte()? {
        JOURNAL_VERSION => {}
        version => return Err(CodecError::Version(version).into()),
    }
    let id = RecordId(reader.array()?);
    let attempt = u32::from_le_bytes(reader.array()?);
    let event = JournalEvent::from_word(text(&mut reader)?).ok_or("an unknown event")?;
    let mut state = || -> Result<Option<State>, Unreadable> {
        match text(&mut reader)? {
            "" => Ok(None),
            word => Ok(Some(State::from_word(word).ok_or("an unknown state")?)),
        }
    };
    let (from, to) = (state()?, state()?);
    let actor = Actor::from_word(text(&mut reader)?).ok_or("an unknown actor")?;
    let detail = optional(&mut reader)?.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    reader.end()?;
    let entry = JournalEntry {
        id,
        event,
        from,
        to,
        attempt,
        actor,
        detail,
    };
    let number = row_number;
    Ok(JournalRow { number, at, entry })
}

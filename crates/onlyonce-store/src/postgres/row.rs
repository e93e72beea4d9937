//! How records travel to PostgreSQL as arrays, a column each.

use onlyonce_core::{
    State,
    record::{Change, Draft, JournalEntry, LastError, Revision},
    time::Stamp,
};

use super::uuid::Uuid;
use crate::{
    codec,
    sql::{
        batch::{Answered, is_live},
        row::clamped,
    },
};

/// The columns of `keys` and of `live` in the order in which records are read.
pub(super) const COLUMNS: &str = concat!("k.id, ", include_str!("columns.sql"));

/// A stamp as one number: a time that is kept as it is, a duration from the server's now as a
/// number below zero.
fn stamp(stamp: Stamp) -> Option<i64> {
    match stamp {
        Stamp::Never => None,
        Stamp::At(at) => Some(at.0.max(0)),
        Stamp::In(duration) => Some(-i64::try_from(duration.as_millis()).unwrap_or(i64::MAX) - 1),
    }
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
    pub(super) notes: Blobs,
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
        self.notes.push(codec::encode_notes(&record.notes));
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
    pub(super) fn push(&mut self, expected: Revision, change: &'a Change) {
        let draft = &*change.draft;
        let record = &draft.record;
        let stamps = &draft.stamps;
        self.common.push(draft);
        self.expected.push(clamped(expected.0, i64::MAX));
        self.is_live.push(is_live(stamps));
        self.last_error
            .push(record.last_error.map(LastError::as_str));
        let answered = Answered::of(record);
        self.response_status.push(answered.status);
        self.response_bytes.push(answered.length);
        self.response_head.push(answered.head);
        self.response_body.push(answered.body);
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

//! The writing statements, as text.

use std::fmt::Write as _;

use onlyonce_core::{
    State,
    record::{Change, Draft, JournalEntry, LastError, Revision},
};

use super::text::{bytes, number, stamp};
use crate::{
    codec,
    sql::{
        batch::{Answered, is_live},
        queue::Swap,
        row::{ROW_VERSION, clamped},
    },
};

/// The columns of a new row, in the order of [`insert_row`].
pub(super) const INSERT_COLUMNS: &str = "id, is_live, row_version, revision, attempt_id, fence, \
     generation, tombstone_ttl, fingerprint, recipe, caller, state, scope, `key`, route, method, \
     path, created_at, last_run_at, lease_until, notes";

/// Writes a row as a parenthesised list of values.
pub(super) fn insert_row(sql: &mut String, draft: &Draft) {
    let (record, stamps) = (&draft.record, &draft.stamps);
    let mut row = Row { sql, first: true };
    row.sql.push('(');
    row.bytes(Some(&record.id.0));
    row.number(is_live(stamps).then_some(1));
    row.number(Some(ROW_VERSION));
    row.number(Some(clamped(record.revision.0, i64::MAX)));
    row.bytes(Some(&record.attempt_id.0.to_be_bytes()));
    row.number(Some(clamped(record.fence.0.into(), i32::MAX)));
    row.number(Some(clamped(record.generation.into(), i32::MAX)));
    row.number(Some(tombstone_ttl(draft)));
    row.bytes(record.fingerprint.as_ref().map(|print| &print.0[..]));
    row.bytes(Some(&record.recipe.0));
    row.bytes(record.caller.as_ref().map(|caller| &caller.0[..]));
    row.bytes(Some(record.state.as_str().as_bytes()));
    row.bytes(Some(record.scope.as_str().as_bytes()));
    row.bytes(Some(record.key.as_str().as_bytes()));
    row.bytes(Some(record.route.as_bytes()));
    row.bytes(Some(record.method.as_bytes()));
    row.bytes(Some(record.path.as_bytes()));
    for time in [stamps.created_at, stamps.last_run_at, stamps.lease_until] {
        row.comma();
        stamp(row.sql, time);
    }
    row.bytes(codec::encode_notes(&record.notes).as_deref());
    row.sql.push(')');
}

/// Values separated by commas.
struct Row<'s> {
    sql: &'s mut String,
    first: bool,
}

impl Row<'_> {
    fn comma(&mut self) {
        if !std::mem::take(&mut self.first) {
            self.sql.push_str(", ");
        }
    }

    fn bytes(&mut self, value: Option<&[u8]>) {
        self.comma();
        bytes(self.sql, value);
    }

    fn number(&mut self, value: Option<impl Into<i64>>) {
        self.comma();
        number(self.sql, value);
    }
}

fn tombstone_ttl(draft: &Draft) -> i64 {
    let millis = u64::try_from(draft.record.tombstone_ttl.as_millis()).unwrap_or(u64::MAX);
    clamped(millis, i64::MAX)
}

/// Rows that only complete: little changes, so little is sent. This writes the same as [`update`] for such a
/// change. All rows go in one statement, which costs the server a third of one statement per row.
pub(super) fn complete(sql: &mut String, swaps: &[&Swap]) {
    sql.push_str("UPDATE (");
    for (index, swap) in swaps.iter().enumerate() {
        // The first row names the columns.
        let names = if index == 0 { COMPLETED } else { [""; 9] };
        sql.push_str(if index == 0 {
            "SELECT "
        } else {
            " UNION ALL SELECT "
        });
        completed_row(sql, swap, names);
    }
    let _ = write!(
        sql,
        ") v STRAIGHT_JOIN onlyonce_keys k FORCE INDEX (keys_by_id) \
         ON k.id = v.id AND k.revision = v.expected SET k.row_version = {ROW_VERSION}, \
         k.revision = v.expected + 1, k.state = "
    );
    bytes(sql, Some(State::Completed.as_str().as_bytes()));
    sql.push_str(
        ", k.tombstone_ttl = v.ttl, k.response_status = v.status, k.response_bytes = v.length, \
         k.response_head = v.head, k.response_body = v.body, k.completed_at = v.completed_at, \
         k.expires_at = v.expires_at, k.is_live = NULL, k.lease_until = NULL, \
         k.unknown_since = NULL, k.reconcile_after = NULL, k.delete_at = NULL, \
         k.last_error = NULL, k.evidence = NULL, k.negatives = 0, k.inconclusive = 0, \
         k.dead_letter = 0",
    );
}

const COMPLETED: [&str; 9] = [
    " AS id",
    " AS expected",
    " AS ttl",
    " AS status",
    " AS length",
    " AS head",
    " AS body",
    " AS completed_at",
    " AS expires_at",
];

fn completed_row(sql: &mut String, swap: &Swap, names: [&str; 9]) {
    let draft = &*swap.change.draft;
    let answered = Answered::of(&draft.record);
    bytes(sql, Some(&draft.record.id.0));
    let mut row = Row { sql, first: false };
    row.sql.push_str(names[0]);
    row.number(Some(clamped(swap.expected.0, i64::MAX)));
    row.sql.push_str(names[1]);
    row.number(Some(tombstone_ttl(draft)));
    row.sql.push_str(names[2]);
    row.number(answered.status);
    row.sql.push_str(names[3]);
    row.number(answered.length);
    row.sql.push_str(names[4]);
    row.bytes(answered.head.as_deref());
    row.sql.push_str(names[5]);
    row.bytes(answered.body);
    row.sql.push_str(names[6]);
    row.comma();
    stamp(row.sql, draft.stamps.completed_at);
    row.sql.push_str(names[7]);
    row.comma();
    stamp(row.sql, draft.stamps.expires_at);
    row.sql.push_str(names[8]);
}

/// A row with any change.
pub(super) fn update(sql: &mut String, expected: Revision, change: &Change) {
    let draft = &*change.draft;
    let (record, stamps) = (&draft.record, &draft.stamps);
    let mut set = Set::begin(sql, draft);
    set.number("tombstone_ttl", Some(tombstone_ttl(draft)));
    set.answer(draft);
    set.number("is_live", is_live(stamps).then_some(1));
    set.bytes("attempt_id", Some(&record.attempt_id.0.to_be_bytes()));
    set.number("fence", Some(clamped(record.fence.0.into(), i32::MAX)));
    let generation = clamped(record.generation.into(), i32::MAX);
    set.number("generation", Some(generation));
    let fingerprint = record.fingerprint.as_ref().map(|print| &print.0[..]);
    set.bytes("fingerprint", fingerprint);
    set.bytes("recipe", Some(&record.recipe.0));
    let caller = record.caller.as_ref().map(|caller| &caller.0[..]);
    set.bytes("caller", caller);
    set.bytes("route", Some(record.route.as_bytes()));
    set.bytes("method", Some(record.method.as_bytes()));
    set.bytes("path", Some(record.path.as_bytes()));
    if record.notes.erased {
        // The only change that affects the key itself.
        set.bytes("`key`", Some(record.key.as_str().as_bytes()));
    }
    let last_error = record.last_error.map(LastError::as_str);
    set.bytes("last_error", last_error.map(str::as_bytes));
    let evidence = record.evidence.as_ref().map(codec::encode_evidence);
    set.bytes("evidence", evidence.as_deref());
    let count = |count: u32| Some(clamped(count.into(), i16::MAX));
    set.number("negatives", count(record.negatives.into()));
    set.number("inconclusive", count(record.inconclusive.into()));
    set.number("dead_letter", Some(record.dead_letter));
    set.bytes("notes", codec::encode_notes(&record.notes).as_deref());
    set.stamp("created_at", stamps.created_at);
    set.stamp("last_run_at", stamps.last_run_at);
    set.stamp("completed_at", stamps.completed_at);
    set.stamp("expires_at", stamps.expires_at);
    set.stamp("lease_until", stamps.lease_until);
    set.stamp("unknown_since", stamps.unknown_since);
    set.stamp("reconcile_after", stamps.reconcile_after);
    set.stamp("delete_at", stamps.delete_at);
    set.end(expected, draft);
}

/// `UPDATE … SET` of one row, from one revision.
struct Set<'s> {
    sql: &'s mut String,
}

impl<'s> Set<'s> {
    fn begin(sql: &'s mut String, draft: &Draft) -> Self {
        let revision: i64 = clamped(draft.record.revision.0, i64::MAX);
        // Writing to a string cannot fail.
        let _ = write!(
            sql,
            "UPDATE onlyonce_keys SET row_version = {ROW_VERSION}, revision = {revision}"
        );
        let mut set = Self { sql };
        set.bytes("state", Some(draft.record.state.as_str().as_bytes()));
        set
    }

    fn name(&mut self, name: &str) {
        let _ = write!(self.sql, ", {name} = ");
    }

    fn bytes(&mut self, name: &str, value: Option<&[u8]>) {
        self.name(name);
        bytes(self.sql, value);
    }

    fn number(&mut self, name: &str, value: Option<impl Into<i64>>) {
        self.name(name);
        number(self.sql, value);
    }

    fn stamp(&mut self, name: &str, value: onlyonce_core::time::Stamp) {
        self.name(name);
        stamp(self.sql, value);
    }

    fn answer(&mut self, draft: &Draft) {
        let answered = Answered::of(&draft.record);
        self.number("response_status", answered.status);
        self.number("response_bytes", answered.length);
        self.bytes("response_head", answered.head.as_deref());
        self.bytes("response_body", answered.body);
    }

    fn end(self, expected: Revision, draft: &Draft) {
        let expected: i64 = clamped(expected.0, i64::MAX);
        self.sql.push_str(" WHERE id = ");
        bytes(self.sql, Some(&draft.record.id.0));
        let _ = write!(self.sql, " AND revision = {expected}");
    }
}

/// Writes journal rows at `@oo_now`; there must be at least one.
pub(super) fn journal<'e>(sql: &mut String, entries: impl Iterator<Item = &'e JournalEntry>) {
    sql.push_str(
        "INSERT INTO onlyonce_journal \
         (at, id, event, from_state, to_state, attempt, actor, detail) VALUES ",
    );
    for (index, entry) in entries.enumerate() {
        sql.push_str(if index == 0 { "(@oo_now" } else { ", (@oo_now" });
        let mut row = Row { sql, first: false };
        let word = |state: Option<State>| state.map(|state| state.as_str().as_bytes());
        row.bytes(Some(&entry.id.0));
        row.bytes(Some(entry.event.as_str().as_bytes()));
        row.bytes(word(entry.from));
        row.bytes(word(entry.to));
        row.number(Some(clamped(entry.attempt.into(), i32::MAX)));
        row.bytes(Some(entry.actor.as_str().as_bytes()));
        row.bytes(entry.detail.as_deref().map(str::as_bytes));
        sql.push(')');
    }
}

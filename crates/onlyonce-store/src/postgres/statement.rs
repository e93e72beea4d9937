//! The statements of the hot path. Rows are passed as arrays, one per column, in the order of the statement's
//! parameters.

use onlyonce_core::{
    RecordId, State,
    record::{Draft, JournalEntry, LastError, Revision},
    time::Stamp,
};
use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::uuid::Uuid;
use crate::{
    codec,
    sql::{
        batch::{Answered, is_live},
        lane::How,
        queue::Swap,
        row::clamped,
    },
};

/// The records of those of `each` that are not new. A key is in one of the two tables.
macro_rules! whole {
    () => {
        concat!(
            "SELECT i.id, f.*, i.is_new, c.now FROM clock c LEFT JOIN (\n    \
             each i LEFT JOIN LATERAL (\n    SELECT ",
            include_str!("columns.sql"),
            ", k.response_body FROM onlyonce.keys k WHERE k.id = i.id AND NOT i.is_new\n    \
             UNION ALL\n    SELECT ",
            include_str!("columns.sql"),
            ", k.response_body FROM onlyonce.live k WHERE k.id = i.id AND NOT i.is_new\n    \
             ) f ON true\n) ON i.is_new OR f.row_version IS NOT NULL",
        )
    };
}

const INSERT: &str = concat!(include_str!("insert.sql"), whole!());
const LOOKUP: &str = concat!(include_str!("lookup.sql"), whole!());

/// The four transitions of a change, with `$live` and `$settled` as further conditions on each table.
macro_rules! swap {
    ($locked:expr, $live:literal, $settled:literal) => {
        concat!(
            include_str!("swap_input.sql"),
            $locked,
            "stayed_live AS (\n    UPDATE onlyonce.live k SET\n",
            include_str!("swap_set.sql"),
            "    AND l.is_live",
            $live,
            " RETURNING k.id\n),\nstayed_settled AS (\n    UPDATE onlyonce.keys k SET\n",
            include_str!("swap_set.sql"),
            "    AND NOT l.is_live",
            $settled,
            " RETURNING k.id\n),\n\
             left_live AS (\n    DELETE FROM onlyonce.live k USING input l\n    \
             WHERE k.id = l.id AND k.revision = l.expected AND NOT l.is_live",
            $live,
            "\n    RETURNING k.n, k.id, k.scope, k.key, k.key_uuid\n),\n\
             settled AS (\n    INSERT INTO onlyonce.keys (\n",
            include_str!("swap_move.sql"),
            "    FROM left_live g JOIN input l ON l.id = g.id\n),\n\
             left_settled AS (\n    DELETE FROM onlyonce.keys k USING input l\n    \
             WHERE k.id = l.id AND k.revision = l.expected AND l.is_live",
            $settled,
            "\n    RETURNING k.n, k.id, k.scope, k.key, k.key_uuid\n),\n\
             revived AS (\n    INSERT INTO onlyonce.live (\n",
            include_str!("swap_move.sql"),
            "    FROM left_settled g JOIN input l ON l.id = g.id\n),\n",
            include_str!("swap_rest.sql"),
        )
    };
}

const SWAP: &str = swap!("", "", "");
const SWAP_SKIPPING: &str = swap!(
    include_str!("swap_locked.sql"),
    " AND k.n IN (SELECT n FROM locked_live)",
    " AND k.n IN (SELECT n FROM locked_settled)"
);
const COMPLETE: &str = include_str!("complete.sql");
const DELETE: &str = include_str!("delete.sql");
const APPEND: &str = "INSERT INTO onlyonce.journal \
     (at, id, event, from_state, to_state, attempt, actor, detail) \
     SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, j.id, j.event, \
     j.from_state, j.to_state, j.attempt, j.actor, j.detail \
     FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], \
     $7::text[]) WITH ORDINALITY \
     AS j (id, event, from_state, to_state, attempt, actor, detail, place) ORDER BY j.place";

pub(super) type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// One column of `rows`.
fn column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// A stamp as one number: an absolute time as it is, a duration from the server's now as a negative number.
fn stamp(stamp: Stamp) -> Option<i64> {
    match stamp {
        Stamp::Never => None,
        Stamp::At(at) => Some(at.0.max(0)),
        Stamp::In(duration) => Some(-i64::try_from(duration.as_millis()).unwrap_or(i64::MAX) - 1),
    }
}

/// The time of the last run; `None` if it equals the time of creation.
fn last_run_at(draft: &Draft) -> Option<i64> {
    let last_run_at = Some(draft.stamps.last_run_at);
    let differs = last_run_at.filter(|at| *at != draft.stamps.created_at);
    differs.and_then(stamp)
}

/// A count; `None` for zero.
fn count(of: u16) -> Option<i16> {
    (of > 0).then(|| clamped(of.into(), i16::MAX))
}

fn tombstone_ttl(draft: &Draft) -> i64 {
    let millis = u64::try_from(draft.record.tombstone_ttl.as_millis()).unwrap_or(u64::MAX);
    clamped(millis, i64::MAX)
}

/// Inserts new keys.
pub(super) fn insert<'q>(drafts: &[&'q Draft]) -> Statement<'q> {
    let uuids = column(drafts, |one| Uuid::parse(one.record.key.as_str()));
    // A key that is a UUID has a column of its own.
    let texts = drafts.iter().zip(&uuids).map(|(one, uuid)| {
        let key: &'q str = one.record.key.as_str();
        uuid.is_none().then_some(key)
    });
    let texts: Vec<_> = texts.collect();
    sqlx::query(INSERT)
        .bind(column(drafts, |one| Uuid(one.record.id.0)))
        .bind(column(drafts, |one| {
            clamped(one.record.revision.0, i64::MAX)
        }))
        .bind(column(drafts, |one| tombstone_ttl(one)))
        .bind(column(drafts, |one| {
            clamped(one.record.fence.0.into(), i32::MAX)
        }))
        .bind(column(drafts, |one| {
            clamped(one.record.generation.into(), i32::MAX)
        }))
        .bind(column(drafts, |one| {
            Uuid(one.record.attempt_id.0.to_be_bytes())
        }))
        .bind(column(drafts, |one| {
            one.record.fingerprint.map(|print| print.0)
        }))
        .bind(column(drafts, |one| one.record.recipe.0))
        .bind(column(drafts, |one| {
            one.record.caller.map(|caller| caller.0)
        }))
        .bind(column(drafts, |one| one.record.state.as_str()))
        .bind(column(drafts, |one| -> &'q str {
            one.record.scope.as_str()
        }))
        .bind(texts)
        .bind(uuids)
        .bind(column(drafts, |one| -> &'q str { &one.record.route }))
        .bind(column(drafts, |one| -> &'q str { &one.record.method }))
        .bind(column(drafts, |one| -> &'q str { &one.record.path }))
        .bind(column(drafts, |one| stamp(one.stamps.created_at)))
        .bind(column(drafts, |one| last_run_at(one)))
        .bind(column(drafts, |one| stamp(one.stamps.lease_until)))
        .bind(column(drafts, |one| codec::encode_notes(&one.record.notes)))
}

/// Changes keys, and writes their journal.
pub(super) fn swap<'q>(swaps: &[&'q Swap], how: How) -> Statement<'q> {
    let drafts: Vec<&'q Draft> = column(swaps, |swap| &*swap.change.draft);
    let drafts = &*drafts;
    let mut answers: Vec<Answered<'q>> = column(drafts, |one| Answered::of(&one.record));
    let heads: Vec<_> = answers
        .iter_mut()
        .map(|answer| answer.head.take())
        .collect();
    let expected = column(swaps, |swap| clamped(swap.expected.0, i64::MAX));
    if how == How::Complete {
        return sqlx::query(COMPLETE)
            .bind(column(drafts, |one| Uuid(one.record.id.0)))
            .bind(expected)
            .bind(column(drafts, |one| tombstone_ttl(one)))
            .bind(column(&answers, |answer| answer.status))
            .bind(column(&answers, |answer| answer.length))
            .bind(heads)
            .bind(column(&answers, |answer| answer.body))
            .bind(column(drafts, |one| stamp(one.stamps.completed_at)))
            .bind(column(drafts, |one| stamp(one.stamps.expires_at)));
    }
    let sql = if how == How::Any { SWAP } else { SWAP_SKIPPING };
    let query = sqlx::query(sql)
        .bind(column(drafts, |one| Uuid(one.record.id.0)))
        .bind(expected)
        .bind(column(drafts, |one| {
            clamped(one.record.revision.0, i64::MAX)
        }))
        .bind(column(drafts, |one| is_live(&one.stamps)))
        .bind(column(drafts, |one| tombstone_ttl(one)))
        .bind(column(drafts, |one| {
            clamped(one.record.fence.0.into(), i32::MAX)
        }))
        .bind(column(drafts, |one| {
            clamped(one.record.generation.into(), i32::MAX)
        }))
        .bind(column(drafts, |one| {
            Uuid(one.record.attempt_id.0.to_be_bytes())
        }))
        .bind(column(drafts, |one| {
            one.record.fingerprint.map(|print| print.0)
        }))
        .bind(column(drafts, |one| one.record.recipe.0))
        .bind(column(drafts, |one| {
            one.record.caller.map(|caller| caller.0)
        }))
        .bind(column(drafts, |one| one.record.state.as_str()))
        .bind(column(drafts, |one| -> &'q str { &one.record.route }))
        .bind(column(drafts, |one| -> &'q str { &one.record.method }))
        .bind(column(drafts, |one| -> &'q str { &one.record.path }))
        .bind(column(drafts, |one| {
            one.record.last_error.map(LastError::as_str)
        }))
        .bind(column(&answers, |answer| answer.status))
        .bind(column(&answers, |answer| answer.length))
        .bind(heads)
        .bind(column(&answers, |answer| answer.body))
        .bind(column(drafts, |one| {
            one.record.evidence.as_ref().map(codec::encode_evidence)
        }))
        .bind(column(drafts, |one| count(one.record.negatives)))
        .bind(column(drafts, |one| count(one.record.inconclusive)))
        .bind(column(drafts, |one| one.record.dead_letter.then_some(true)))
        .bind(column(drafts, |one| stamp(one.stamps.created_at)))
        .bind(column(drafts, |one| last_run_at(one)))
        .bind(column(drafts, |one| stamp(one.stamps.completed_at)))
        .bind(column(drafts, |one| stamp(one.stamps.expires_at)))
        .bind(column(drafts, |one| stamp(one.stamps.lease_until)))
        .bind(column(drafts, |one| stamp(one.stamps.unknown_since)))
        .bind(column(drafts, |one| stamp(one.stamps.reconcile_after)))
        .bind(column(drafts, |one| stamp(one.stamps.delete_at)))
        .bind(column(drafts, |one| codec::encode_notes(&one.record.notes)));
    bind_journal(query, swaps.iter().flat_map(|swap| &swap.change.journal))
}

/// Completes one key, in a session that is not ours.
pub(super) fn complete_one(swap: &Swap) -> Statement<'_> {
    let draft = &*swap.change.draft;
    let answered = Answered::of(&draft.record);
    sqlx::query("SELECT id, now FROM onlyonce.complete_one($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        .bind(Uuid(draft.record.id.0))
        .bind(clamped(swap.expected.0, i64::MAX))
        .bind(tombstone_ttl(draft))
        .bind(answered.status)
        .bind(answered.length)
        .bind(answered.head)
        .bind(answered.body)
        .bind(stamp(draft.stamps.completed_at))
        .bind(stamp(draft.stamps.expires_at))
}

fn bind_journal<'q>(
    query: Statement<'q>,
    entries: impl IntoIterator<Item = &'q JournalEntry>,
) -> Statement<'q> {
    let entries: Vec<&'q JournalEntry> = entries.into_iter().collect();
    let entries = &*entries;
    query
        .bind(column(entries, |entry| Uuid(entry.id.0)))
        .bind(column(entries, |entry| entry.event.as_str()))
        .bind(column(entries, |entry| entry.from.map(State::as_str)))
        .bind(column(entries, |entry| entry.to.map(State::as_str)))
        .bind(column(entries, |entry| {
            clamped(entry.attempt.into(), i32::MAX)
        }))
        .bind(column(entries, |entry| entry.actor.as_str()))
        .bind(column(entries, |entry| -> Option<&'q str> {
            entry.detail.as_deref()
        }))
}

/// Writes journal rows that belong to no change.
pub(super) fn append(journal: &[JournalEntry]) -> Statement<'_> {
    bind_journal(sqlx::query(APPEND), journal)
}

pub(super) fn lookup(ids: &[RecordId]) -> Statement<'static> {
    sqlx::query(LOOKUP).bind(column(ids, |id| Uuid(id.0)))
}

pub(super) fn delete(rows: &[(RecordId, Revision)]) -> Statement<'static> {
    sqlx::query(DELETE)
        .bind(column(rows, |(id, _)| Uuid(id.0)))
        .bind(column(rows, |(_, revision)| clamped(revision.0, i64::MAX)))
}

//! The statements of the hot path, bound to their columns.

use onlyonce_core::{RecordId, record::Revision};
use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::{
    row::{Inserts, Journal, Swaps},
    uuid::Uuid,
};
use crate::sql::lane::How;

/// The records of those of `each` that are not new. A key stands in one of the two tables.
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

/// The four ways of a change, with `$live` and `$settled` as a further condition on each table.
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

pub(super) fn insert(rows: Inserts<'_>) -> Statement<'_> {
    let Inserts {
        common,
        scope,
        key,
        key_uuid,
    } = rows;
    sqlx::query(INSERT)
        .bind(common.id)
        .bind(common.revision)
        .bind(common.tombstone_ttl)
        .bind(common.fence)
        .bind(common.generation)
        .bind(common.attempt_id)
        .bind(common.fingerprint)
        .bind(common.recipe)
        .bind(common.caller)
        .bind(common.state)
        .bind(scope)
        .bind(key)
        .bind(key_uuid)
        .bind(common.route)
        .bind(common.method)
        .bind(common.path)
        .bind(common.created_at)
        .bind(common.last_run_at)
        .bind(common.lease_until)
        .bind(common.notes)
}

pub(super) fn swap(rows: Swaps<'_>, how: How) -> Statement<'_> {
    if how == How::Complete {
        return sqlx::query(COMPLETE)
            .bind(rows.common.id)
            .bind(rows.expected)
            .bind(rows.common.tombstone_ttl)
            .bind(rows.response_status)
            .bind(rows.response_bytes)
            .bind(rows.response_head)
            .bind(rows.response_body)
            .bind(rows.completed_at)
            .bind(rows.expires_at);
    }
    let sql = if how == How::Any { SWAP } else { SWAP_SKIPPING };

    let Swaps {
        common, journal, ..
    } = rows;
    let query = sqlx::query(sql)
        .bind(common.id)
        .bind(rows.expected)
        .bind(common.revision)
        .bind(rows.is_live)
        .bind(common.tombstone_ttl)
        .bind(common.fence)
        .bind(common.generation)
        .bind(common.attempt_id)
        .bind(common.fingerprint)
        .bind(common.recipe)
        .bind(common.caller)
        .bind(common.state)
        .bind(common.route)
        .bind(common.method)
        .bind(common.path)
        .bind(rows.last_error)
        .bind(rows.response_status)
        .bind(rows.response_bytes)
        .bind(rows.response_head)
        .bind(rows.response_body)
        .bind(rows.evidence)
        .bind(rows.negatives)
        .bind(rows.inconclusive)
        .bind(rows.dead_letter)
        .bind(common.created_at)
        .bind(common.last_run_at)
        .bind(rows.completed_at)
        .bind(rows.expires_at)
        .bind(common.lease_until)
        .bind(rows.unknown_since)
        .bind(rows.reconcile_after)
        .bind(rows.delete_at)
        .bind(common.notes);
    bind_journal(query, journal)
}

/// Completes the one key in `rows`, in a session that is not ours.
pub(super) fn complete_one(mut rows: Swaps<'_>) -> Statement<'_> {
    sqlx::query("SELECT id, now FROM onlyonce.complete_one($1, $2, $3, $4, $5, $6, $7, $8, $9)")
        .bind(rows.common.id.pop())
        .bind(rows.expected.pop())
        .bind(rows.common.tombstone_ttl.pop())
        .bind(rows.response_status.pop().flatten())
        .bind(rows.response_bytes.pop().flatten())
        .bind(rows.response_head.pop().flatten())
        .bind(rows.response_body.pop().flatten())
        .bind(rows.completed_at.pop().flatten())
        .bind(rows.expires_at.pop().flatten())
}

fn bind_journal<'q>(query: Statement<'q>, journal: Journal<'q>) -> Statement<'q> {
    query
        .bind(journal.id)
        .bind(journal.event)
        .bind(journal.from)
        .bind(journal.to)
        .bind(journal.attempt)
        .bind(journal.actor)
        .bind(journal.detail)
}

pub(super) fn append(journal: Journal<'_>) -> Statement<'_> {
    bind_journal(sqlx::query(APPEND), journal)
}

pub(super) fn lookup(ids: &[RecordId]) -> Statement<'static> {
    sqlx::query(LOOKUP).bind(ids.iter().map(|id| Uuid(id.0)).collect::<Vec<_>>())
}

pub(super) fn delete(rows: &[(RecordId, Revision)]) -> Statement<'static> {
    let ids: Vec<_> = rows.iter().map(|(id, _)| Uuid(id.0)).collect();
    let revisions: Vec<_> = rows
        .iter()
        .map(|(_, revision)| i64::try_from(revision.0).unwrap_or(i64::MAX))
        .collect();
    sqlx::query(DELETE).bind(ids).bind(revisions)
}

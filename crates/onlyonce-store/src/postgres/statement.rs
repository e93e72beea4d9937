//! The statements of the hot path, bound to their columns.

use onlyonce_core::{RecordId, record::Revision};
use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::row::{Inserts, Journal, Swaps};
use crate::sql::lane::How;

const INSERT: &str = include_str!("insert.sql");
const SWAP: &str = concat!(
    include_str!("swap_input.sql"),
    include_str!("swap_write.sql"),
    "    FROM input l, clock c\n    WHERE k.id = l.id AND k.revision = l.expected\n",
    include_str!("swap_rest.sql"),
);
const SWAP_SKIPPING: &str = concat!(
    include_str!("swap_input.sql"),
    include_str!("swap_locked.sql"),
    include_str!("swap_write.sql"),
    "    FROM locked l, clock c\n    WHERE k.n = l.n AND l.current_revision = l.expected \
     AND k.revision = l.expected\n",
    include_str!("swap_rest.sql"),
);
const COMPLETE: &str = include_str!("complete.sql");
const LOOKUP: &str = include_str!("lookup.sql");
const DELETE: &str = include_str!("delete.sql");
const APPEND: &str = "INSERT INTO onlyonce.journal \
     (at, id, event, from_state, to_state, attempt, actor, detail) \
     SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, j.id, j.event, \
     j.from_state, j.to_state, j.attempt, j.actor, j.detail \
     FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], \
     $7::text[]) WITH ORDINALITY \
     AS j (id, event, from_state, to_state, attempt, actor, detail, place) ORDER BY j.place";

pub(super) type Statement<'q> = Query<'q, Postgres, PgArguments>;

pub(super) fn insert(rows: Inserts<'_>) -> Statement<'_> {
    let Inserts { common, scope, key } = rows;
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
        .bind(common.route)
        .bind(common.method)
        .bind(common.path)
        .bind(common.created_at)
        .bind(common.last_run_at)
        .bind(common.lease_until)
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
        .bind(rows.delete_at);
    bind_journal(query, journal)
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
    sqlx::query(LOOKUP).bind(ids.iter().map(|id| id.0).collect::<Vec<_>>())
}

pub(super) fn delete(rows: &[(RecordId, Revision)]) -> Statement<'static> {
    let ids: Vec<_> = rows.iter().map(|(id, _)| id.0).collect();
    let revisions: Vec<_> = rows
        .iter()
        .map(|(_, revision)| i64::try_from(revision.0).unwrap_or(i64::MAX))
        .collect();
    sqlx::query(DELETE).bind(ids).bind(revisions)
}

//! Recovery points of operations with several phases, for every SQL database.
//!
//! Deliberately absent: running a statement. The connection is the caller's, in the caller's own transaction.

use onlyonce_core::{AttemptId, RecordId, Timestamp};

use super::{
    dialect::{Dialect, Statement, Value},
    row::{Columns, RowError, array, attempt, blob, clamped, missing, now, number, text, word},
};
use crate::transactional::Progress;

const COLUMNS: [&str; 11] = [
    "id",
    "operation",
    "point",
    "intent",
    "provider_id",
    "parameters",
    "data",
    "attempt_id",
    "generation",
    "finished",
    "updated_at",
];

/// Selects the recovery point of a key, as [`read`] takes it.
pub(crate) fn of<D: Dialect>(id: RecordId) -> Statement {
    let (columns, tables) = (COLUMNS.join(", "), D::TABLES);
    let sql = format!("SELECT {columns} FROM {tables}phases WHERE id = ?1");
    D::statement(&sql, vec![Value::Id(id.0)])
}

/// The recovery point in a row of [`of`].
pub(crate) fn read(row: &impl Columns) -> Result<Progress, RowError> {
    Ok(Progress {
        id: RecordId(array(row, 0)?),
        operation: text(row, 1)?.to_owned(),
        point: text(row, 2)?.to_owned(),
        intent: word(row, 3)?,
        provider_id: word(row, 4)?,
        parameters: blob(row, 5)?.ok_or_else(missing)?,
        data: blob(row, 6)?.ok_or_else(missing)?,
        attempt: attempt(row, 7)?,
        generation: number(row, 8)?,
        finished: row.flag(9)?,
        updated_at: now(row, 10)?,
    })
}

/// Deletes the recovery point that `attempt` has written.
pub(crate) fn discard<D: Dialect>(id: RecordId, attempt: AttemptId) -> Statement {
    let tables = D::TABLES;
    let sql = format!("DELETE FROM {tables}phases WHERE id = ?1 AND attempt_id = ?2");
    let values = vec![Value::Id(id.0), Value::Id(attempt.0.to_be_bytes())];
    D::statement(&sql, values)
}

/// Writes a recovery point, dated `updated_at` or later.
pub(crate) fn advance<D: Dialect>(progress: &Progress, updated_at: Timestamp) -> Statement {
    let sql = format!(
        "INSERT INTO {}phases ({}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, {}){}",
        D::TABLES,
        COLUMNS.join(", "),
        D::ENDED_AT,
        D::or_update("id", &COLUMNS[1..])
    );
    let values = vec![
        Value::Id(progress.id.0),
        Value::text(&progress.operation),
        Value::text(&progress.point),
        Value::Text(progress.intent.clone()),
        Value::Text(progress.provider_id.clone()),
        Value::bytes(&*progress.parameters),
        Value::bytes(&*progress.data),
        Value::Id(progress.attempt.0.to_be_bytes()),
        Value::Number(clamped(progress.generation.into(), i32::MAX).into()),
        Value::Flag(progress.finished),
        Value::Number(updated_at.0),
    ];
    D::statement(&sql, values)
}

/// Selects unfinished keys of `operation`, oldest update first, after a position in that order, as
/// [`read_unfinished`] takes them.
pub(crate) fn unfinished<D: Dialect>(
    operation: &str,
    (since, after): (Timestamp, RecordId),
    limit: usize,
) -> Statement {
    // Not a row comparison, for which MySQL uses no index.
    let sql = format!(
        "SELECT id, updated_at FROM {}phases WHERE operation = ?1 AND {} AND updated_at >= ?2 \
         AND (updated_at > ?2 OR id > ?3) ORDER BY updated_at, id LIMIT ?4",
        D::TABLES,
        D::UNFINISHED
    );
    let values = vec![
        Value::text(operation),
        Value::Number(since.0),
        Value::Id(after.0),
        Value::count(limit),
    ];
    D::statement(&sql, values)
}

/// Reads a row of [`unfinished`].
pub(crate) fn read_unfinished(row: &impl Columns) -> Result<(Timestamp, RecordId), RowError> {
    Ok((now(row, 1)?, RecordId(array(row, 0)?)))
}

//! Reads, on connections of their own.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::StatusCode;
use onlyonce_core::{CallerMark, Recipe, RecipeId, Record, RecordId, Scope, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value};

use super::{
    ReadError,
    row::{self, COLUMNS, JOURNAL_COLUMNS},
    schema,
    slot::Slot,
};
use crate::{Filter, JournalRow, Listed, Page, Walk, memory::is_due};

/// Connections for readers. A read takes microseconds, so a few serve many threads.
const READERS: usize = 4;

/// A handful of connections that are only read from.
#[derive(Clone)]
pub(super) struct Readers(Arc<Pool>);

struct Pool {
    connections: Vec<Slot>,
    next: AtomicUsize,
}

impl Readers {
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let connections = (0..READERS)
            .map(|_| schema::connect_to_read(path).map(Slot::new))
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self(Arc::new(Pool {
            connections,
            next: AtomicUsize::new(0),
        })))
    }

    /// Closes them, each once it is free.
    pub(super) fn close(&self) {
        self.0.connections.iter().for_each(Slot::close);
    }

    /// Runs `read` on a connection that is free, or says at once that none is.
    pub(super) fn try_with<T>(
        &self,
        read: impl Fn(&Connection) -> Result<T, ReadError>,
    ) -> Option<Result<T, ReadError>> {
        let start = self.0.next.fetch_add(1, Ordering::Relaxed);
        (0..READERS)
            .find_map(|offset| self.0.connections[(start + offset) % READERS].try_lock())
            .map(|connection| read(&*connection?))
    }

    /// Runs `read` on a connection that is free, or on the next one once it is.
    pub(super) fn with<T>(
        &self,
        read: impl Fn(&Connection) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match self.try_with(&read) {
            Some(outcome) => outcome,
            None => {
                let next = self.0.next.fetch_add(1, Ordering::Relaxed);
                read(&*self.0.connections[next % READERS].lock()?)
            }
        }
    }
}

fn columns_of(table: &str) -> String {
    COLUMNS
        .split(", ")
        .map(|column| format!("{table}.{}", column.trim()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The record under `id`, with its response.
pub(super) fn record(connection: &Connection, id: RecordId) -> Result<Option<Record>, ReadError> {
    static SQL: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        format!(
            "SELECT {}, bodies.body FROM keys LEFT JOIN bodies ON bodies.n = keys.n \
             WHERE keys.id = ?1",
            columns_of("keys")
        )
    });
    let mut statement = connection.prepare_cached(&SQL)?;
    let mut rows = statement.query(params![id.0])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let mut record = row::read(row)?;
    record.response = row::read_response(row)?;
    Ok(Some(record))
}

fn live(
    connection: &Connection,
    condition: &str,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Record>, ReadError> {
    let sql = format!(
        "SELECT {} FROM live JOIN keys ON keys.n = live.n WHERE live.{condition} <= ?1 \
         ORDER BY live.n LIMIT ?2",
        columns_of("keys")
    );
    collect(connection, &sql, params![now.0, limit_of(limit)], row::read)
}

pub(super) fn lapsed(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Record>, ReadError> {
    live(connection, "lease_until", now, limit)
}

pub(super) fn due(
    connection: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Record>, ReadError> {
    live(connection, "reconcile_after", now, limit)
}

/// How many keys of one client are in progress. The small table is walked, which the limit of each
/// client keeps small.
pub(super) fn live_of(
    connection: &Connection,
    scope: &Scope,
    caller: Option<CallerMark>,
    limit: u64,
) -> Result<u64, ReadError> {
    let count: i64 = connection
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM live JOIN keys ON keys.n = live.n \
             WHERE keys.scope = ?1 AND keys.caller IS ?2 \
             AND keys.lease_until IS NOT NULL LIMIT ?3)",
        )?
        .query_row(
            params![
                scope.as_str(),
                caller.map(|mark| mark.0),
                i64::try_from(limit).unwrap_or(i64::MAX)
            ],
            |row| row.get(0),
        )?;
    Ok(count.unsigned_abs())
}

/// The next stretch of the reaper's walk after row `from`, and where it ends.
pub(super) fn walk(
    connection: &Connection,
    from: i64,
    now: Timestamp,
    limit: usize,
) -> Result<(Walk, i64), ReadError> {
    let sql = format!("SELECT {COLUMNS}, n FROM keys WHERE n > ?1 ORDER BY n LIMIT ?2");
    let walked = std::cell::Cell::new((0, from));
    let read = |row: &Row<'_>| {
        // Counted before it is read, so that a row that cannot be read is walked past.
        walked.set((walked.get().0 + 1, row.get(33)?));
        row::read(row)
    };
    let rows = collect(connection, &sql, params![from, limit_of(limit)], read)?;
    let (count, last) = walked.get();
    let wrapped = count < limit;
    let position = if wrapped { 0 } else { last };
    let candidates = rows
        .into_iter()
        .filter(|record| is_due(record, now))
        .collect();
    Ok((
        Walk {
            candidates,
            wrapped,
        },
        position,
    ))
}

pub(super) fn list(
    connection: &Connection,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, ReadError> {
    let mut conditions = vec!["n < ?1".to_owned()];
    let mut values =
        vec![Value::Integer(cursor.map_or(i64::MAX, |cursor| {
            i64::try_from(cursor).unwrap_or(i64::MAX)
        }))];
    let mut also = |condition: &str, value: String| {
        values.push(Value::Text(value));
        conditions.push(condition.replace('?', &format!("?{}", values.len())));
    };
    if let Some(state) = filter.state {
        also("state = ?", state.as_str().to_owned());
    }
    if let Some(route) = &filter.route {
        also("route = ?", route.clone());
    }
    if let Some(key) = &filter.key {
        also("key = ?", key.as_str().to_owned());
    }
    if let Some(client) = &filter.client {
        also(
            "(scope = 'client:' || ? OR substr(scope, instr(scope, '/client:')) = '/client:' || ?)",
            client.clone(),
        );
    }
    if filter.dead_letters {
        conditions.push("dead_letter".to_owned());
    }
    if filter.dead_letters || matches!(filter.state, Some(State::InProgress | State::Unknown)) {
        // They stand in the small table too, so that few among many are found at once.
        conditions.push("n IN (SELECT n FROM live)".to_owned());
    }
    values.push(Value::Integer(limit_of(limit.saturating_add(1))));
    let sql = format!(
        "SELECT {COLUMNS}, n FROM keys WHERE {} ORDER BY n DESC LIMIT ?{}",
        conditions.join(" AND "),
        values.len()
    );
    let read = |row: &Row<'_>| {
        let status: Option<u16> = row.get(25)?;
        let bytes: Option<i64> = row.get(26)?;
        let response = status.and_then(|status| StatusCode::from_u16(status).ok());
        let response = response.map(|status| (status, bytes.unwrap_or(0).unsigned_abs()));
        let number = row.get::<_, i64>(33)?.unsigned_abs();
        Ok((
            number,
            Listed {
                record: row::read(row)?,
                response,
            },
        ))
    };
    let rows = collect(connection, &sql, params_from_iter(values), read)?;
    Ok(Page::cut(rows, limit))
}

pub(super) fn history(connection: &Connection, id: RecordId) -> Result<Vec<JournalRow>, ReadError> {
    let sql = format!("SELECT {JOURNAL_COLUMNS} FROM journal WHERE id = ?1 ORDER BY number");
    collect(connection, &sql, params![id.0], row::read_journal)
}

pub(super) fn audit(
    connection: &Connection,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<JournalRow>, ReadError> {
    let sql = format!(
        "SELECT {JOURNAL_COLUMNS} FROM journal WHERE number < ?1 ORDER BY number DESC LIMIT ?2"
    );
    let before = cursor.map_or(i64::MAX, |cursor| i64::try_from(cursor).unwrap_or(i64::MAX));
    let read = |row: &Row<'_>| row::read_journal(row).map(|row| (row.number, row));
    let rows = collect(
        connection,
        &sql,
        params![before, limit_of(limit.saturating_add(1))],
        read,
    )?;
    Ok(Page::cut(rows, limit))
}

pub(super) fn recipe(connection: &Connection, id: RecipeId) -> Result<Option<Recipe>, ReadError> {
    let found: Option<Vec<u8>> = connection
        .prepare_cached("SELECT recipe FROM recipes WHERE id = ?1")?
        .query_row(params![id.0], |row| row.get(0))
        .optional()?;
    found
        .map(|bytes| Recipe::decode(&bytes).map_err(|error| ReadError::Unreadable(error.into())))
        .transpose()
}

/// What is kept under `name`.
pub(super) fn block(connection: &Connection, name: &str) -> Result<Option<Vec<u8>>, ReadError> {
    let found = connection
        .prepare_cached("SELECT value FROM meta WHERE name = 'block/' || ?1")?
        .query_row(params![name], |row| row.get(0))
        .optional()?;
    Ok(found)
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Reads all rows. One that cannot be read is passed over, with a complaint: it must not keep the
/// others from being swept, reaped or shown.
fn collect<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&Row<'_>) -> Result<T, ReadError>,
) -> Result<Vec<T>, ReadError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        match read(row) {
            Ok(item) => found.push(item),
            Err(ReadError::Unreadable(error)) => {
                tracing::error!(%error, "a row of the store cannot be read; it is left as it is");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

//! Reads, on separate connections.

use std::{
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use onlyonce_core::{Record, RecordId, Timestamp};
use rusqlite::{Connection, Row, params, params_from_iter};

use super::{ReadError, dialect::SqliteDialect, in_background, schema, slot::Slot};
use crate::{
    StoreError,
    sql::{
        dialect::Statement,
        row::{self, COLUMNS, Columns as _, RowError},
        scan::Reader,
        stretches::Look,
    },
};

/// Connections for readers. A read takes microseconds, so a few serve many threads.
const READERS: usize = 4;

/// A small pool of read-only connections.
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

    /// Closes each connection once it is free.
    pub(super) fn close(&self) {
        self.0.connections.iter().for_each(Slot::close);
    }

    /// Runs `read` on a free connection; `None` if there is none.
    pub(super) fn try_with<T>(
        &self,
        read: impl Fn(&Connection) -> Result<T, ReadError>,
    ) -> Option<Result<T, ReadError>> {
        let start = self.0.next.fetch_add(1, Ordering::Relaxed);
        (0..READERS)
            .find_map(|offset| self.0.connections[(start + offset) % READERS].try_lock())
            .map(|connection| read(&*connection?))
    }

    /// Runs `read` on a free connection, or waits for one.
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

/// The record under `id`, with its response.
pub(super) fn record(connection: &Connection, id: RecordId) -> Result<Option<Record>, ReadError> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS}, b.body FROM keys k LEFT JOIN bodies b ON b.n = k.n WHERE k.id = ?1"
        )
    });
    let mut statement = connection.prepare_cached(&SQL)?;
    let mut rows = statement.query(params![id.0])?;
    let row = rows.next()?;
    Ok(row.map(row::read_whole).transpose()?)
}

/// Live records whose `column` has passed.
pub(super) fn live(
    connection: &Connection,
    column: &str,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Record>, ReadError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM live JOIN keys k ON k.n = live.n WHERE live.{column} <= ?1 \
         ORDER BY live.n LIMIT ?2"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: &Row<'_>| Ok(row::readable(row::read(row)));
    let found = rows(connection, &sql, params![now.0, limit], read)?;
    Ok(found.into_iter().flatten().collect())
}

/// The next stretch of the reaper's walk: up to `limit` rows after row `from`.
pub(super) fn walk(
    connection: &Connection,
    from: i64,
    now: Timestamp,
    limit: usize,
) -> Result<Look, ReadError> {
    // A tombstone has a `delete_at`; its answer expired before.
    let sql =
        "SELECT n, coalesce(delete_at, expires_at) FROM keys WHERE n > ?1 ORDER BY n LIMIT ?2";
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let walked = rows(connection, sql, params![from, most], |row| {
        let number: i64 = row::number(row, 0)?;
        Ok((number, row.number(1)?))
    })?;
    static DUE: LazyLock<String> =
        LazyLock::new(|| format!("SELECT {COLUMNS} FROM keys k WHERE k.n = ?1"));
    let (mut due, mut next) = (Vec::new(), None);
    for (number, at) in &walked {
        match at {
            Some(at) if *at <= now.0 => {
                // An unreadable row is skipped.
                let read = |row: &Row<'_>| Ok(row::readable(row::read(row)));
                let found = rows(connection, &DUE, params![number], read)?;
                due.extend(found.into_iter().flatten());
            }
            Some(at) => next = Some(next.map_or(*at, |next: i64| next.min(*at))),
            None => {}
        }
    }
    let last = walked.last().map(|(number, _)| *number);
    Ok(Look {
        now,
        due,
        end: last.filter(|_| walked.len() >= limit),
        next,
    })
}

/// Maps each row with `read`.
fn rows<T>(
    connection: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl Fn(&Row<'_>) -> Result<T, RowError>,
) -> Result<Vec<T>, ReadError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(read(row)?);
    }
    Ok(found)
}

/// Maps each row of `statement` with `read`.
pub(super) fn asked<T>(
    connection: &Connection,
    statement: Statement,
    read: impl Fn(&Row<'_>) -> Result<T, RowError>,
) -> Result<Vec<T>, ReadError> {
    let values = params_from_iter(statement.values);
    rows(connection, &statement.sql, values, read)
}

impl Reader for Arc<Slot> {
    type Dialect = SqliteDialect;
    type Row<'r> = Row<'r>;

    async fn read<T, F>(&self, statement: Statement, read: F) -> Result<Vec<T>, StoreError>
    where
        T: Send + 'static,
        F: for<'r> Fn(&Row<'r>) -> Result<T, RowError> + Send + 'static,
    {
        in_background(self, move |connection| asked(connection, statement, read)).await
    }
}

impl Reader for Readers {
    type Dialect = SqliteDialect;
    type Row<'r> = Row<'r>;

    async fn read<T, F>(&self, statement: Statement, read: F) -> Result<Vec<T>, StoreError>
    where
        T: Send + 'static,
        F: for<'r> Fn(&Row<'r>) -> Result<T, RowError> + Send + 'static,
    {
        let (readers, Statement { sql, values }) = (self.clone(), statement);
        let read = move || {
            readers.with(|connection| rows(connection, &sql, params_from_iter(&values), &read))
        };
        let read = tokio::task::spawn_blocking(read).await;
        Ok(read.map_err(|error| StoreError::Unavailable(Box::new(error)))??)
    }
}

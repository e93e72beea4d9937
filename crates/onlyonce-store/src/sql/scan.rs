//! Reads of records and of the journal by background loops and people, for every SQL database.
//!
//! Deliberately absent: anything that depends on the time. A server returns its time with its rows, while the
//! store passes the time to SQLite.

use onlyonce_core::{CallerMark, RecordId, Scope};

use super::{
    dialect::{Dialect, Statement, Value},
    row::{self, Columns, JOURNAL_COLUMNS, RowError},
};
use crate::{Filter, JournalRow, Listed, Page, StoreError};

/// Connections for reading.
pub(crate) trait Reader: Sync {
    /// The dialect of the database.
    type Dialect: Dialect;
    /// A row of the driver.
    type Row<'r>: Columns;

    /// Applies `read` to each row of `statement`. An unreadable row is an error.
    fn read<T, F>(
        &self,
        statement: Statement,
        read: F,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send
    where
        T: Send + 'static,
        F: for<'r> Fn(&Self::Row<'r>) -> Result<T, RowError> + Send + 'static;

    /// Applies `read` to each row of the statement from `template` and `values`.
    fn ask<T, F>(
        &self,
        template: &str,
        values: Vec<Value>,
        read: F,
    ) -> impl Future<Output = Result<Vec<T>, StoreError>> + Send
    where
        T: Send + 'static,
        F: for<'r> Fn(&Self::Row<'r>) -> Result<T, RowError> + Send + 'static,
    {
        self.read(Self::Dialect::statement(template, values), read)
    }
}

/// The number below which the next page begins.
pub(crate) fn before(cursor: Option<u64>) -> Value {
    Value::count(cursor.unwrap_or(u64::MAX))
}

/// The result of a statement that returns one number.
pub(crate) async fn number<R: Reader>(
    reader: &R,
    template: &str,
    values: Vec<Value>,
) -> Result<u64, StoreError> {
    let rows = reader.ask(template, values, |row| row::number(row, 0));
    rows.await?.pop().ok_or_else(no_row)
}

/// The error for a statement that unexpectedly returned no row.
pub(crate) fn no_row() -> StoreError {
    StoreError::Unavailable("the server returned no row".into())
}

/// Records, newest first.
pub(crate) async fn list<R: Reader>(
    reader: &R,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    let values = vec![before(cursor), Value::count(limit.saturating_add(1))];
    let (conditions, values) = conditions::<R::Dialect>(filter, values);
    // Live records are few, and found quickly.
    let sql = R::Dialect::records(&conditions, filter.is_live());
    let rows = rows_of(reader, &sql, values).await?;
    Ok(page(rows, limit))
}

/// Records in any of `scopes`, newest first.
pub(crate) async fn list_in<R: Reader>(
    reader: &R,
    scopes: &[Scope],
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<Listed>, StoreError> {
    let mut found = Vec::new();
    for scope in scopes {
        let statement = of_scope::<R::Dialect>(scope, filter, cursor, limit);
        let mut rows = rows_of(reader, &statement.0, statement.1).await?;
        // Records of other scopes are left out like unreadable ones: the page continues after them.
        for (_, listed) in &mut rows {
            listed.take_if(|listed| listed.record.scope != *scope);
        }
        found.extend(rows);
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        found.truncate(limit.saturating_add(1));
    }
    Ok(page(found, limit))
}

/// The template and the values for the records in `scope`, newest first.
pub(crate) fn of_scope<D: Dialect>(
    scope: &Scope,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> (String, Vec<Value>) {
    let mut values = vec![before(cursor), Value::count(limit.saturating_add(1))];
    values.push(Value::text(scope.as_str()));
    let (conditions, values) = conditions::<D>(filter, values);
    (D::in_scope(&conditions), values)
}

/// A numbered row; `None` if it is unreadable.
type Numbered = (u64, Option<Listed>);

async fn rows_of<R: Reader>(
    reader: &R,
    sql: &str,
    values: Vec<Value>,
) -> Result<Vec<Numbered>, StoreError> {
    let rows = reader.ask(sql, values, |row| {
        let listed = row::readable(row::read_listed(row));
        let listed = listed.map(|(_, listed)| listed);
        Ok((row::number(row, row::COUNT)?, listed))
    });
    rows.await
}

/// Drops unreadable rows only after the cut, so that they do not make a page look like the last one.
fn page(rows: Vec<Numbered>, limit: usize) -> Page<Listed> {
    let Page { items, next } = Page::cut(rows, limit);
    let items = items.into_iter().flatten().collect();
    Page { items, next }
}

/// The conditions of `filter` on records `k` with numbers below `?1`, and all values including `values`.
fn conditions<D: Dialect>(filter: &Filter, mut values: Vec<Value>) -> (String, Vec<Value>) {
    let mut conditions = String::from("k.n < ?1");
    let mut also = |condition: &str, word: &str| {
        values.push(Value::text(word));
        let place = format!("?{}", values.len());
        conditions.push_str(" AND ");
        conditions.push_str(&condition.replace('?', &place));
    };
    if let Some(state) = filter.state {
        also(D::STATE_IS, state.as_str());
    }
    if let Some(route) = &filter.route {
        also("k.route = ?", route);
    }
    if let Some(key) = &filter.key {
        also(&format!("{} = ?", D::KEY), key.as_str());
    }
    if let Some(client) = &filter.client {
        also(D::OF_CLIENT, client);
    }
    if filter.dead_letters {
        conditions.push_str(" AND k.dead_letter");
    }
    (conditions, values)
}

/// The journal of one key, oldest first.
pub(crate) async fn history<R: Reader>(
    reader: &R,
    id: RecordId,
) -> Result<Vec<JournalRow>, StoreError> {
    let tables = R::Dialect::TABLES;
    let sql =
        format!("SELECT {JOURNAL_COLUMNS} FROM {tables}journal WHERE id = ?1 ORDER BY number");
    let rows = reader.ask(&sql, vec![Value::Id(id.0)], |row| {
        Ok(row::readable(row::read_journal(row)))
    });
    Ok(rows.await?.into_iter().flatten().collect())
}

/// The journal, newest first.
pub(crate) async fn audit<R: Reader>(
    reader: &R,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page<JournalRow>, StoreError> {
    let sql = format!(
        "SELECT {JOURNAL_COLUMNS} FROM {}journal WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
        R::Dialect::TABLES
    );
    let values = vec![before(cursor), Value::count(limit.saturating_add(1))];
    let rows = reader.ask(&sql, values, |row| {
        let row = row::readable(row::read_journal(row));
        Ok(row.map(|row| (row.number, row)))
    });
    Ok(Page::cut(
        rows.await?.into_iter().flatten().collect(),
        limit,
    ))
}

/// The number of one client's keys in progress. Walks the live records, which the limit of each client keeps
/// few.
pub(crate) async fn live_of<R: Reader>(
    reader: &R,
    scope: &Scope,
    caller: Option<CallerMark>,
    limit: u64,
) -> Result<u64, StoreError> {
    let (live, same) = (R::Dialect::LIVE, R::Dialect::SAME);
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {live} AND k.scope = ?1 AND k.caller {same} ?2 \
         AND k.lease_until IS NOT NULL LIMIT ?3) AS counted"
    );
    let values = vec![
        Value::text(scope.as_str()),
        Value::Bytes(caller.map(|mark| mark.0.to_vec())),
        Value::count(limit),
    ];
    number(reader, &sql, values).await
}

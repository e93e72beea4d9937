//! PostgreSQL's SQL dialect, and how its rows are read.

use sqlx::{
    AssertSqlSafe, Postgres, Row as _, TypeInfo as _, ValueRef as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::uuid::Uuid;
use crate::sql::{
    dialect::{Dialect, Statement, Value},
    row::{Columns, RowError},
};

/// The columns of `keys` and of `live`, in the order in which records are read.
pub(super) const COLUMNS: &str = concat!("k.id, ", include_str!("columns.sql"));

pub(crate) struct PgDialect;

impl Dialect for PgDialect {
    const TABLES: &'static str = "onlyonce.";
    const KEY: &'static str = "coalesce(k.key, k.key_uuid::text)";
    const SAME: &'static str = "IS NOT DISTINCT FROM";
    const STATE_IS: &'static str = "k.state = ?::text::onlyonce.state";
    const OF_CLIENT: &'static str = "(k.scope = 'client:' || ? OR (k.scope LIKE 'route:%' AND \
         substr(k.scope, strpos(k.scope, '/client:')) = '/client:' || ?))";
    const LIVE: &'static str = "onlyonce.live k WHERE true";
    const DUE_AT: &'static str = "coalesce(o.claimed_until, o.due_at)";
    const PAYLOAD_BYTES: &'static str = "octet_length(o.payload)::bigint";
    const PAYLOAD: &'static str = "payload";
    // People mostly ask about dead messages, and only those have an index of names.
    const AMONG: &'static [&'static str] = &[" AND o.state IN ('dead', 'unknown')", ""];
    const ENDED_AT: &'static str = "greatest(onlyonce.now_ms(), ?11)";

    fn records(conditions: &str, only_live: bool) -> String {
        let of = |table: &str| {
            format!(
                "(SELECT {COLUMNS}, k.n FROM onlyonce.{table} k WHERE {conditions} \
                 ORDER BY k.n DESC LIMIT ?2)"
            )
        };
        match only_live {
            true => of("live"),
            false => format!(
                "{} UNION ALL {} ORDER BY n DESC LIMIT ?2",
                of("live"),
                of("keys")
            ),
        }
    }

    /// Live records are few. Settled records have an index of the scopes' hashes. The reader skips rows of
    /// another scope with the same hash: with two conditions the planner would expect so few rows that it
    /// would sort all of them.
    fn in_scope(conditions: &str) -> String {
        let of = |table: &str, scope: &str| {
            format!(
                "(SELECT {COLUMNS}, k.n FROM onlyonce.{table} k WHERE {scope} AND {conditions} \
                 ORDER BY k.n DESC LIMIT ?2)"
            )
        };
        let (live, settled) = (
            of("live", "k.scope = ?3"),
            of("keys", "hashtext(k.scope) = hashtext(?3)"),
        );
        format!("{live} UNION ALL {settled} ORDER BY n DESC LIMIT ?2")
    }

    fn by_ids(ids: &str) -> String {
        let of = |table: &str| {
            format!("SELECT {COLUMNS}, k.n FROM onlyonce.{table} k WHERE k.id IN ({ids})")
        };
        format!("{} UNION ALL {}", of("live"), of("keys"))
    }

    /// Uses no unique index, which would wait for an open transaction that stores the same scope.
    fn keep_scope() -> String {
        "WITH kept AS (UPDATE onlyonce.scopes SET name = ?2 WHERE id = ?1 RETURNING id) \
         INSERT INTO onlyonce.scopes (id, name) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT FROM kept)"
            .to_owned()
    }

    fn put(sql: &mut String, number: usize, _: &Value) {
        sql.push_str(&format!("${number}"));
    }
}

/// `statement` with its values bound.
pub(super) fn bound(statement: Statement) -> Query<'static, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(statement.sql));
    let bind = |query: Query<'static, _, _>, value| match value {
        Value::Id(id) => query.bind(Uuid(id)),
        Value::Number(number) => query.bind(number),
        Value::Flag(flag) => query.bind(flag),
        Value::Text(text) => query.bind(text),
        Value::Bytes(bytes) => query.bind(bytes),
    };
    statement.values.into_iter().fold(query, bind)
}

impl Columns for PgRow {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError> {
        // `bytea` and `uuid` both arrive as bytes.
        Ok(self.try_get_unchecked(column)?)
    }

    fn text(&self, column: usize) -> Result<Option<&str>, RowError> {
        Ok(self.try_get(column)?)
    }

    fn number(&self, column: usize) -> Result<Option<i64>, RowError> {
        let raw = self.try_get_raw(column)?;
        if raw.is_null() {
            return Ok(None);
        }
        let width = raw.type_info();
        let number = match width.name() {
            "INT4" => self.try_get::<i32, _>(column)?.into(),
            "INT2" => self.try_get::<i16, _>(column)?.into(),
            _ => self.try_get(column)?,
        };
        Ok(Some(number))
    }

    fn flag(&self, column: usize) -> Result<bool, RowError> {
        Ok(self.try_get(column)?)
    }
}

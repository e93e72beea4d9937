//! SQL statements in the dialect of one database.
//!
//! Statements outside the hot path are written once, as templates: `?1` stands for the first value, and
//! whatever databases express differently is a constant of [`Dialect`]. A value becomes part of a statement
//! only as the database's own literal of its type.

use onlyonce_core::MessageState;

/// A value in a statement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Sixteen bytes that identify a key, a message or an attempt.
    Id([u8; 16]),
    /// A whole number.
    Number(i64),
    /// A boolean.
    Flag(bool),
    /// Text, or NULL.
    Text(Option<String>),
    /// Bytes, or NULL.
    Bytes(Option<Vec<u8>>),
}

impl Value {
    /// A number for a 64-bit column.
    pub(crate) fn count(count: impl TryInto<i64>) -> Self {
        Self::Number(count.try_into().unwrap_or(i64::MAX))
    }

    /// A text that is not NULL.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(Some(text.into()))
    }

    /// Bytes that are not NULL.
    pub(crate) fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bytes(Some(bytes.into()))
    }
}

/// A statement, and its bound values.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
}

/// The dialect of one database.
pub(crate) trait Dialect {
    /// The prefix of table names.
    const TABLES: &'static str;
    /// The key of a record `k`.
    const KEY: &'static str = "k.key";
    /// Equal, or both NULL.
    const SAME: &'static str;
    /// The condition that a record's state is the value that follows.
    const STATE_IS: &'static str = "k.state = ?";
    /// The condition that a record `k` belongs to the client named `?`.
    const OF_CLIENT: &'static str;
    /// The records `k` that are in progress or unknown, up to a condition.
    const LIVE: &'static str;
    /// When a message `o` is tried next, or may be claimed by another attempt.
    const DUE_AT: &'static str = "o.due_at";
    /// The size of the payload of a message `o`, in bytes.
    const PAYLOAD_BYTES: &'static str;
    /// The payload of a message.
    const PAYLOAD: &'static str;
    /// The conditions under which a message is looked up by its id, one after the other.
    const AMONG: &'static [&'static str] = &[""];
    /// The condition that an operation with several phases is not finished.
    const UNFINISHED: &'static str = "NOT finished";
    /// When a phase ended: `?11`, or now if that is later.
    const ENDED_AT: &'static str;

    /// Records `k` that match the conditions, highest numbers first, with their numbers; `?2` at most. With
    /// `only_live`, all of them are in progress or unknown.
    fn records(conditions: &str, only_live: bool) -> String;

    /// Records `k` of the scope `?3` that match the conditions, highest numbers first, with their numbers;
    /// `?2` at most. An index provides that order. Records of other scopes may be among them.
    fn in_scope(conditions: &str) -> String;

    /// Records `k` with the given ids, and their numbers, in any order.
    fn by_ids(ids: &str) -> String;

    /// Stores the scope with the id `?1` under the name `?2`, replacing an earlier value.
    fn keep_scope() -> String {
        let (tables, or_update) = (Self::TABLES, Self::or_update("id", &["name"]));
        format!("INSERT INTO {tables}scopes (id, name) VALUES (?1, ?2){or_update}")
    }

    /// The index hint for messages `o` of these states.
    fn messages(_states: &[MessageState]) -> &'static str {
        ""
    }

    /// The clause after an insert that updates `columns` of a row with the same `key`.
    fn or_update(key: &str, columns: &[&str]) -> String {
        let set = columns
            .iter()
            .map(|name| format!("{name} = excluded.{name}"));
        let set: Vec<String> = set.collect();
        format!(" ON CONFLICT ({key}) DO UPDATE SET {}", set.join(", "))
    }

    /// The clause after an insert that leaves a row with the same `key` unchanged.
    fn or_nothing(_key: &str) -> String {
        " ON CONFLICT DO NOTHING".to_owned()
    }

    /// Writes a value into the text, or a reference to the bound value with this number.
    fn put(sql: &mut String, number: usize, value: &Value);

    /// Whether values are bound rather than written into the text.
    const BINDS: bool = true;

    /// The statement from `template` and `values`.
    fn statement(template: &str, values: Vec<Value>) -> Statement {
        let mut sql = String::with_capacity(template.len());
        let mut parts = template.split('?');
        sql.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            let number: usize = number.parse().expect("a template numbers its values");
            Self::put(&mut sql, number, &values[number - 1]);
            sql.push_str(rest);
        }
        let values = if Self::BINDS { values } else { Vec::new() };
        Statement { sql, values }
    }
}

#[cfg(all(test, feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;
    use crate::{mysql::dialect::MySqlDialect, postgres::dialect::PgDialect};

    fn both<D: Dialect>() -> (String, usize) {
        let values = vec![Value::text("a' OR '?2"), Value::Number(7)];
        let statement = D::statement("x > ?2 AND (y = ?1 OR z = ?1)", values);
        (statement.sql, statement.values.len())
    }

    #[test]
    fn values_are_bound_or_literals() {
        let (sql, values) = both::<PgDialect>();
        assert_eq!((&*sql, values), ("x > $2 AND (y = $1 OR z = $1)", 2));
        let (sql, values) = both::<crate::sqlite::dialect::SqliteDialect>();
        assert_eq!((&*sql, values), ("x > ?2 AND (y = ?1 OR z = ?1)", 2));
        let (sql, values) = both::<MySqlDialect>();
        let text = "x'6127204f5220273f32'";
        let expected = format!("x > 7 AND (y = {text} OR z = {text})");
        assert_eq!((sql, values), (expected, 0));
    }

    #[test]
    fn a_row_with_the_same_key_is_written_over_or_left() {
        let update = PgDialect::or_update("id", &["a", "b"]);
        let expected = " ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = excluded.b";
        assert_eq!(update, expected);
        let update = MySqlDialect::or_update("id", &["a", "b"]);
        assert_eq!(
            update,
            " ON DUPLICATE KEY UPDATE a = VALUES(a), b = VALUES(b)"
        );
        assert_eq!(PgDialect::or_nothing("id"), " ON CONFLICT DO NOTHING");
        let nothing = MySqlDialect::or_nothing("id");
        assert_eq!(nothing, " ON DUPLICATE KEY UPDATE id = id");
    }
}

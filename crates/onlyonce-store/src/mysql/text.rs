//! Statements as text. Several statements are sent as one message and executed in one round trip. Values are
//! written as numbers, hexadecimal or base 64, so that no value can be taken for SQL and no character set can
//! change one.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use onlyonce_core::{RecordId, time::Stamp};

use crate::sql::dialect::Statement;

/// The server's clock in milliseconds since 1970, whatever its time zone. It is the time at which the
/// statement began, so a statement that reads it must not wait for anybody.
pub(super) const NOW: &str =
    "CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 AS SIGNED)";

/// Values of this length and more are sent in base 64, which is shorter than hexadecimal.
const LONG: usize = 64;

/// Statements that are sent together.
#[derive(Default)]
pub(super) struct Script {
    pub(super) sql: String,
    pub(super) statements: usize,
    /// The index of the COMMIT.
    pub(super) commit: Option<usize>,
}

impl Script {
    /// A script that begins by reading the clock into `@oo_now`.
    pub(super) fn timed() -> Self {
        let mut script = Self::default();
        script.add(format_args!("SET @oo_now = {NOW}"));
        script
    }

    /// Adds a statement.
    pub(super) fn add(&mut self, statement: impl std::fmt::Display) {
        self.write(|sql| {
            // Writing to a string cannot fail.
            let _ = write!(sql, "{statement}");
        });
    }

    /// Adds a statement, written in place.
    pub(super) fn write(&mut self, statement: impl FnOnce(&mut String)) {
        if self.statements > 0 {
            self.sql.push_str(";\n");
        }
        statement(&mut self.sql);
        self.statements += 1;
    }

    /// Adds the COMMIT.
    pub(super) fn commit(&mut self) {
        self.commit = Some(self.statements);
        self.add("COMMIT");
    }
}

impl From<Statement> for Script {
    fn from(statement: Statement) -> Self {
        let mut script = Self::default();
        script.add(statement.sql);
        script
    }
}

/// Writes bytes, or NULL.
pub(super) fn bytes(sql: &mut String, value: Option<&[u8]>) {
    let Some(value) = value else {
        return sql.push_str("NULL");
    };
    if value.len() >= LONG {
        sql.push_str("FROM_BASE64('");
        STANDARD.encode_string(value, sql);
        return sql.push_str("')");
    }
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    sql.push_str("x'");
    for byte in value {
        sql.push(char::from(DIGITS[usize::from(byte >> 4)]));
        sql.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    sql.push('\'');
}

/// Bytes as a literal.
pub(super) fn literal(value: impl AsRef<[u8]>) -> String {
    let mut sql = String::new();
    bytes(&mut sql, Some(value.as_ref()));
    sql
}

/// Writes a number, or NULL.
pub(super) fn number(sql: &mut String, value: Option<impl Into<i64>>) {
    let _ = match value {
        Some(value) => write!(sql, "{}", value.into()),
        None => write!(sql, "NULL"),
    };
}

/// Writes a time: absolute, or relative to `@oo_now`.
pub(super) fn stamp(sql: &mut String, stamp: Stamp) {
    let _ = match stamp {
        Stamp::Never => write!(sql, "NULL"),
        Stamp::At(at) => write!(sql, "{}", at.0),
        Stamp::In(duration) => {
            // Capped so that adding it to any plausible time does not overflow.
            let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
            write!(sql, "@oo_now + {}", millis.min(i64::MAX / 2))
        }
    };
}

/// `(x'…', x'…')`
pub(super) fn ids(ids: impl IntoIterator<Item = RecordId>) -> String {
    let mut sql = String::from("(");
    for id in ids {
        if sql.len() > 1 {
            sql.push_str(", ");
        }
        bytes(&mut sql, Some(&id.0));
    }
    sql.push(')');
    sql
}

/// `(1, 2)`
pub(super) fn numbers(numbers: impl IntoIterator<Item = i64>) -> String {
    let words: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
    format!("({})", words.join(", "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use onlyonce_core::Timestamp;

    use super::*;

    #[test]
    fn no_value_is_sql() {
        assert_eq!(literal("a'; DROP"), "x'61273b2044524f50'");
        assert_eq!(literal(""), "x''");
        let long = literal([0xff; 66]);
        assert!(long.starts_with("FROM_BASE64('/////"), "{long}");
        let mut sql = String::new();
        bytes(&mut sql, None);
        number(&mut sql, Some(-5_i16));
        number(&mut sql, None::<i64>);
        assert_eq!(sql, "NULL-5NULL");
    }

    #[test]
    fn times_count_from_the_servers_now() {
        let text = |value| {
            let mut sql = String::new();
            stamp(&mut sql, value);
            sql
        };
        assert_eq!(text(Stamp::Never), "NULL");
        assert_eq!(text(Stamp::At(Timestamp(7))), "7");
        assert_eq!(text(Stamp::In(Duration::from_secs(60))), "@oo_now + 60000");
    }

    #[test]
    fn the_commit_is_known_by_its_place() {
        let mut script = Script::timed();
        script.add("START TRANSACTION");
        script.commit();
        assert_eq!((script.statements, script.commit), (3, Some(2)));
        assert!(script.sql.ends_with(";\nSTART TRANSACTION;\nCOMMIT"));
    }
}

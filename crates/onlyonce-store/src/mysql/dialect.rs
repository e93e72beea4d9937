//! The SQL dialect of MySQL and MariaDB, and how their rows are read.

use onlyonce_core::MessageState;
use sqlx::{Row as _, mysql::MySqlRow};

use super::text;
use crate::sql::{
    dialect::{Dialect, Value},
    row::{COLUMNS, Columns, RowError},
};

pub(crate) struct MySqlDialect;

impl Dialect for MySqlDialect {
    const TABLES: &'static str = "onlyonce_";
    const SAME: &'static str = "<=>";
    const OF_CLIENT: &'static str = "(k.scope = CONCAT('client:', ?) OR (k.scope LIKE 'route:%' \
         AND SUBSTRING(k.scope, LOCATE('/client:', k.scope)) = CONCAT('/client:', ?)))";
    const LIVE: &'static str = "onlyonce_keys k FORCE INDEX (keys_that_live) WHERE k.is_live = 1";
    const PAYLOAD_BYTES: &'static str = "CAST(LENGTH(o.payload) AS SIGNED)";
    const PAYLOAD: &'static str = "payload";
    const UNFINISHED: &'static str = "finished = 0";
    const ENDED_AT: &'static str = "GREATEST(@oo_now, ?11)";
    // These servers are sent plain text only.
    const BINDS: bool = false;

    fn records(conditions: &str, only_live: bool) -> String {
        let (index, live) = match only_live {
            true => ("keys_that_live", " AND k.is_live = 1"),
            false => ("PRIMARY", ""),
        };
        format!(
            "SELECT {COLUMNS}, k.n FROM onlyonce_keys k FORCE INDEX ({index}) \
             WHERE {conditions}{live} ORDER BY k.n DESC LIMIT ?2"
        )
    }

    fn in_scope(conditions: &str) -> String {
        format!(
            "SELECT {COLUMNS}, k.n FROM onlyonce_keys k FORCE INDEX (keys_by_scope) \
             WHERE k.scope_hash = CRC32(?3) AND k.scope = ?3 AND {conditions} \
             ORDER BY k.n DESC LIMIT ?2"
        )
    }

    fn by_ids(ids: &str) -> String {
        format!(
            "SELECT {COLUMNS}, k.n FROM onlyonce_keys k FORCE INDEX (keys_by_id) \
             WHERE k.id IN ({ids})"
        )
    }

    /// Rare states are found quickly by their index; common ones are not.
    fn messages(states: &[MessageState]) -> &'static str {
        match states.contains(&MessageState::Delivered) {
            true => " FORCE INDEX (PRIMARY)",
            false => " FORCE INDEX (outbox_by_state)",
        }
    }

    fn or_update(_: &str, columns: &[&str]) -> String {
        let set = columns
            .iter()
            .map(|name| format!("{name} = VALUES({name})"));
        let set: Vec<String> = set.collect();
        format!(" ON DUPLICATE KEY UPDATE {}", set.join(", "))
    }

    /// Not IGNORE, which would also ignore values that do not fit.
    fn or_nothing(key: &str) -> String {
        format!(" ON DUPLICATE KEY UPDATE {key} = {key}")
    }

    fn put(sql: &mut String, _: usize, value: &Value) {
        match value {
            Value::Id(id) => text::bytes(sql, Some(id)),
            Value::Number(number) => text::number(sql, Some(*number)),
            Value::Flag(flag) => text::number(sql, Some(*flag)),
            Value::Text(text) => text::bytes(sql, text.as_ref().map(String::as_bytes)),
            Value::Bytes(bytes) => text::bytes(sql, bytes.as_deref()),
        }
    }
}

impl Columns for MySqlRow {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError> {
        Ok(self.try_get(column)?)
    }

    /// Text is stored as bytes. Bytes that are not text were not written by this program.
    fn text(&self, column: usize) -> Result<Option<&str>, RowError> {
        let bytes = self.bytes(column)?;
        bytes
            .map(|bytes| {
                std::str::from_utf8(bytes).map_err(|error| RowError::Unreadable(error.into()))
            })
            .transpose()
    }

    fn number(&self, column: usize) -> Result<Option<i64>, RowError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool, RowError> {
        Ok(self.try_get(column)?)
    }
}

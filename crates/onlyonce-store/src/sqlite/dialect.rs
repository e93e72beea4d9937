//! The SQL dialect of SQLite, and how its rows are read.

use rusqlite::{
    Row, ToSql,
    types::{FromSqlError, ToSqlOutput, ValueRef},
};

use super::schema::LISTED_TO;
use crate::sql::{
    dialect::{Dialect, Value},
    row::{COLUMNS, Columns, RowError},
};

pub(crate) struct SqliteDialect;

impl Dialect for SqliteDialect {
    const TABLES: &'static str = "";
    const SAME: &'static str = "IS";
    const OF_CLIENT: &'static str = "(k.scope = 'client:' || ? OR (k.scope LIKE 'route:%' AND \
         substr(k.scope, instr(k.scope, '/client:')) = '/client:' || ?))";
    const LIVE: &'static str = "live JOIN keys k ON k.n = live.n WHERE true";
    const PAYLOAD_BYTES: &'static str = "octet_length(o.payload)";
    const PAYLOAD: &'static str = "CAST(payload AS BLOB)";
    const ENDED_AT: &'static str = "?11";

    fn records(conditions: &str, only_live: bool) -> String {
        let live = match only_live {
            true => " AND k.n IN (SELECT n FROM live)",
            false => "",
        };
        format!(
            "SELECT {COLUMNS}, k.n FROM keys k WHERE {conditions}{live} ORDER BY k.n DESC LIMIT ?2"
        )
    }

    /// Scans the newest records, and finds the others in the lists of scopes.
    fn in_scope(conditions: &str) -> String {
        let listed_to =
            format!("(SELECT coalesce((SELECT value FROM meta WHERE name = '{LISTED_TO}'), 0))");
        format!(
            "SELECT * FROM (SELECT {COLUMNS}, k.n FROM keys k \
             WHERE k.n > {listed_to} AND k.scope = ?3 AND {conditions} ORDER BY k.n DESC LIMIT ?2) \
             UNION ALL SELECT * FROM (SELECT {COLUMNS}, k.n \
             FROM scope_lists s CROSS JOIN keys k ON k.n = s.n \
             WHERE s.scope = (SELECT number FROM scope_numbers WHERE name = ?3) \
             AND s.n <= {listed_to} AND s.n < ?1 AND k.scope = ?3 AND {conditions} \
             ORDER BY s.n DESC LIMIT ?2) ORDER BY n DESC LIMIT ?2"
        )
    }

    fn by_ids(ids: &str) -> String {
        format!("SELECT {COLUMNS}, k.n FROM keys k WHERE k.id IN ({ids})")
    }

    fn put(sql: &mut String, number: usize, _: &Value) {
        sql.push_str(&format!("?{number}"));
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Id(id) => Ok(ToSqlOutput::Borrowed(ValueRef::Blob(id))),
            Self::Number(number) => number.to_sql(),
            Self::Flag(flag) => flag.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl From<FromSqlError> for RowError {
    fn from(error: FromSqlError) -> Self {
        Self::Unreadable(Box::new(error))
    }
}

fn value<'r>(row: &'r Row<'_>, column: usize) -> Result<ValueRef<'r>, RowError> {
    row.get_ref(column)
        .map_err(|error| RowError::Unreadable(Box::new(error)))
}

impl Columns for Row<'_> {
    fn bytes(&self, column: usize) -> Result<Option<&[u8]>, RowError> {
        Ok(value(self, column)?.as_blob_or_null()?)
    }

    fn text(&self, column: usize) -> Result<Option<&str>, RowError> {
        Ok(value(self, column)?.as_str_or_null()?)
    }

    fn number(&self, column: usize) -> Result<Option<i64>, RowError> {
        Ok(value(self, column)?.as_i64_or_null()?)
    }

    fn flag(&self, column: usize) -> Result<bool, RowError> {
        Ok(value(self, column)?.as_i64()? != 0)
    }
}

#[cfg(test)]
mod tests {
    use onlyonce_core::{CallerMark, RecipeId, Record, State};
    use proptest::prelude::*;
    use rusqlite::{Connection, params_from_iter, types::Value};

    use super::RowError;
    use crate::sql::row::read_whole;

    /// A row as this version writes it, with the body in the column after [`COLUMNS`].
    fn ours() -> Vec<Value> {
        let mut row = vec![Value::Null; 34];
        for (columns, value) in [
            (&[0, 9][..], Value::Blob(vec![7; 16])),
            (&[12, 14], Value::Blob(vec![7; 32])),
            (&[1, 7, 10, 11], Value::Integer(1)),
            (&[15, 29, 30, 31], Value::Integer(0)),
            (&[17, 19, 20], Value::Integer(1_700_000_000_000)),
            (&[2], Value::Text("global".into())),
            (&[3, 4, 5, 6], Value::Text("x".into())),
            (&[8], Value::Text("completed".into())),
            (&[13], Value::Blob(vec![7; size_of::<RecipeId>()])),
            (&[14], Value::Blob(vec![7; size_of::<CallerMark>()])),
            (&[27], Value::Blob(vec![1, 201, 0, 1, 0, 0])),
            (&[33], Value::Blob(b"{}".to_vec())),
        ] {
            for column in columns {
                row[*column] = value.clone();
            }
        }
        row
    }

    /// The result of reading `row` as a record with its response.
    fn reads(row: Vec<Value>) -> Result<Record, RowError> {
        let connection = Connection::open_in_memory().unwrap();
        let places: Vec<String> = (1..=row.len()).map(|place| format!("?{place}")).collect();
        let sql = format!("SELECT {}", places.join(", "));
        let mut statement = connection.prepare(&sql).unwrap();
        let mut rows = statement.query(params_from_iter(row)).unwrap();
        read_whole(rows.next().unwrap().expect("a row"))
    }

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::Integer),
            any::<f64>().prop_map(Value::Real),
            "\\PC{0,12}".prop_map(Value::Text),
            "(in_progress|completed|expired|client:x|route:)".prop_map(Value::Text),
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(Value::Blob),
        ]
    }

    #[test]
    fn a_row_of_ours_is_read() {
        let record = reads(ours()).expect("readable");
        assert_eq!(record.state, State::Completed);
        assert!(record.response.is_some());
    }

    proptest! {
        #![proptest_config(onlyonce_testkit::soak::cases(256))]

        /// A damaged row is an error, so that the engine fails closed: no panic, no default.
        #[test]
        fn damaged_rows_are_errors_not_panics(
            damage in proptest::collection::vec((0usize..34, any_value()), 1..4),
        ) {
            let mut row = ours();
            for (column, value) in damage {
                row[column] = value;
            }
            let state = row[8].clone();
            if let Ok(record) = reads(row) {
                prop_assert_eq!(state, Value::Text(record.state.as_str().to_owned()));
            }
        }

        #[test]
        fn random_rows_are_errors_not_panics(row in proptest::collection::vec(any_value(), 34)) {
            prop_assert!(reads(row).is_err());
        }
    }
}

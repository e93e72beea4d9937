//! The versioned row: how a record is laid out in `keys`, and how it is read back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use onlyonce_core::{
    AttemptId, Fence, Fingerprint, Key, RecipeId, Record, RecordId, Scope, State, Timestamp,
    record::{Actor, JournalEntry, JournalEvent, LastError, Revision, StoredResponse, Times},
    secret::CallerMark,
};
use rusqlite::Row;

use super::ReadError;
use crate::{JournalRow, codec};

/// The version of a row. A row of another version is not read as if it were this one.
pub(super) const ROW_VERSION: i64 = 1;

/// The columns of `keys` in the order in which [`read`] takes them.
pub(super) const COLUMNS: &str = "id, row_version, scope, key, route, method, path, revision, \
     state, attempt_id, fence, generation, fingerprint, recipe, caller, tombstone_ttl, last_error, \
     created_at, last_run_at, completed_at, expires_at, lease_until, unknown_since, \
     reconcile_after, delete_at, response_status, response_bytes, response_head, evidence, \
     negatives, inconclusive, dead_letter, notes";

fn unreadable(what: &'static str) -> ReadError {
    ReadError::Unreadable(what.into())
}

fn bytes<const N: usize>(row: &Row<'_>, column: usize) -> Result<[u8; N], ReadError> {
    optional_bytes(row, column)?.ok_or_else(|| unreadable("a stored id is missing"))
}

fn optional_bytes<const N: usize>(
    row: &Row<'_>,
    column: usize,
) -> Result<Option<[u8; N]>, ReadError> {
    let value = row.get_ref(column)?;
    let blob = value
        .as_blob_or_null()
        .map_err(|_| unreadable("a stored id is not bytes"))?;
    blob.map(|blob| {
        blob.try_into()
            .map_err(|_| unreadable("a stored id has a wrong length"))
    })
    .transpose()
}

fn text<'a>(row: &'a Row<'_>, column: usize) -> Result<&'a str, ReadError> {
    row.get_ref(column)?
        .as_str()
        .map_err(|_| unreadable("a stored text is not text"))
}

/// The record in `row`, whose columns are [`COLUMNS`]; without its response.
pub(super) fn read(row: &Row<'_>) -> Result<Record, ReadError> {
    let version: i64 = row.get(1)?;
    if version != ROW_VERSION {
        return Err(unreadable(
            "a stored row has a version that this program does not know",
        ));
    }
    let last_error = match row.get_ref(16)?.as_str_or_null() {
        Ok(None) => None,
        Ok(Some(word)) => {
            Some(LastError::from_word(word).ok_or_else(|| unreadable("an unknown last_error"))?)
        }
        Err(_) => return Err(unreadable("a stored last_error is not text")),
    };
    let evidence = match row.get_ref(28)?.as_blob_or_null() {
        Ok(block) => block.map(codec::decode_evidence).transpose()?,
        Err(_) => return Err(unreadable("stored evidence is not bytes")),
    };
    let notes = match row.get_ref(32)?.as_blob_or_null() {
        Ok(block) => codec::decode_notes(block)?,
        Err(_) => return Err(unreadable("stored notes are not bytes")),
    };
    let time = |column: usize| {
        row.get::<_, Option<i64>>(column)
            .map(|at| at.map(Timestamp))
    };
    let millis: i64 = row.get(15)?;
    Ok(Record {
        id: RecordId(bytes(row, 0)?),
        scope: Scope::from_stored(text(row, 2)?),
        key: Key::from_stored(text(row, 3)?),
        route: Arc::from(text(row, 4)?),
        method: Arc::from(text(row, 5)?),
        path: Arc::from(text(row, 6)?),
        revision: Revision(row.get::<_, i64>(7)?.unsigned_abs()),
        state: State::from_word(text(row, 8)?).ok_or_else(|| unreadable("an unknown state"))?,
        attempt_id: AttemptId(u128::from_be_bytes(bytes(row, 9)?)),
        fence: Fence(row.get(10)?),
        generation: row.get(11)?,
        fingerprint: optional_bytes(row, 12)?.map(Fingerprint),
        recipe: RecipeId(bytes(row, 13)?),
        caller: optional_bytes(row, 14)?.map(CallerMark),
        tombstone_ttl: Duration::from_millis(millis.unsigned_abs()),
        last_error,
        response: None,
        evidence,
        negatives: row.get(29)?,
        inconclusive: row.get(30)?,
        dead_letter: row.get(31)?,
        notes,
        times: Times {
            created_at: time(17)?,
            last_run_at: time(18)?,
            completed_at: time(19)?,
            expires_at: time(20)?,
            lease_until: time(21)?,
            unknown_since: time(22)?,
            reconcile_after: time(23)?,
            delete_at: time(24)?,
        },
    })
}

/// The response of `row`, whose body stands in the column after [`COLUMNS`].
pub(super) fn read_response(row: &Row<'_>) -> Result<Option<Arc<StoredResponse>>, ReadError> {
    let head = row
        .get_ref(27)?
        .as_blob_or_null()
        .map_err(|_| unreadable("a head is not bytes"))?;
    let body = row
        .get_ref(33)?
        .as_blob_or_null()
        .map_err(|_| unreadable("a body is not bytes"))?;
    let Some(head) = head else { return Ok(None) };
    let response = codec::decode_head(head, body.map(Bytes::copy_from_slice))?;
    Ok(Some(Arc::new(response)))
}

/// The columns of `journal` in the order in which [`read_journal`] takes them.
pub(super) const JOURNAL_COLUMNS: &str =
    "number, at, id, event, from_state, to_state, attempt, actor, detail";

/// The journal row in `row`, whose columns are [`JOURNAL_COLUMNS`].
pub(super) fn read_journal(row: &Row<'_>) -> Result<JournalRow, ReadError> {
    let state = |column: usize| -> Result<Option<State>, ReadError> {
        let word: Option<String> = row.get(column)?;
        word.map(|word| State::from_word(&word).ok_or_else(|| unreadable("an unknown state")))
            .transpose()
    };
    Ok(JournalRow {
        number: row.get::<_, i64>(0)?.unsigned_abs(),
        at: Timestamp(row.get(1)?),
        entry: JournalEntry {
            id: RecordId(bytes(row, 2)?),
            event: JournalEvent::from_word(text(row, 3)?)
                .ok_or_else(|| unreadable("an unknown event"))?,
            from: state(4)?,
            to: state(5)?,
            attempt: row.get(6)?,
            actor: Actor::from_word(text(row, 7)?).ok_or_else(|| unreadable("an unknown actor"))?,
            detail: row.get(8)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rusqlite::{Connection, params_from_iter, types::Value};

    use super::*;

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

    /// What reading it as a record, with its response, comes to.
    fn reads(row: Vec<Value>) -> Result<(Record, Option<Arc<StoredResponse>>), ReadError> {
        let connection = Connection::open_in_memory().unwrap();
        let places: Vec<String> = (1..=row.len()).map(|place| format!("?{place}")).collect();
        let sql = format!("SELECT {}", places.join(", "));
        let mut statement = connection.prepare(&sql).unwrap();
        let mut rows = statement.query(params_from_iter(row)).unwrap();
        let row = rows.next().unwrap().expect("a row");
        Ok((read(row)?, read_response(row)?))
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
        let (record, response) = reads(ours()).expect("readable");
        assert_eq!(record.state, State::Completed);
        assert!(response.is_some());
    }

    proptest! {
        #![proptest_config(crate::soak::cases(256))]

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
            if let Ok((record, _)) = reads(row) {
                prop_assert_eq!(state, Value::Text(record.state.as_str().to_owned()));
            }
        }

        #[test]
        fn random_rows_are_errors_not_panics(row in proptest::collection::vec(any_value(), 34)) {
            prop_assert!(reads(row).is_err());
        }
    }
}

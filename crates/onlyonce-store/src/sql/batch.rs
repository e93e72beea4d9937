//! The columns of a batch's rows beside the record, and the stored form of a response.

use onlyonce_core::{
    Record, RecordId,
    record::{StoredBody, Times},
    time::Stamp,
};

use super::{
    lane::Found,
    row::{self, Columns, RowError, clamped, optional_array},
};
use crate::codec;

/// The id in the first column; `None` in a row that only has the time.
pub(crate) fn id(row: &impl Columns) -> Result<Option<RecordId>, RowError> {
    Ok(optional_array(row, 0)?.map(RecordId))
}

impl Found {
    /// Reads a row with a whole record.
    pub(crate) fn in_row(row: &impl Columns) -> Self {
        match row::read_whole(row) {
            Ok(record) => Self::There(Box::new(record)),
            Err(RowError::Unreadable(error)) => Self::Unreadable(error.to_string()),
        }
    }
}

/// All readable records in `rows`. A row that only has the time has no id.
pub(crate) fn records<R: Columns>(rows: &[R]) -> Vec<Record> {
    let there = rows.iter().filter(|row| !matches!(row.bytes(0), Ok(None)));
    there
        .filter_map(|row| row::readable(row::read(row)))
        .collect()
}

/// The stored form of a response.
#[derive(Default)]
pub(crate) struct Answered<'a> {
    pub(crate) status: Option<i16>,
    pub(crate) length: Option<i32>,
    pub(crate) head: Option<Vec<u8>>,
    pub(crate) body: Option<&'a [u8]>,
}

impl<'a> Answered<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        let Some(response) = record.response.as_deref() else {
            return Self::default();
        };
        Self {
            status: Some(clamped(response.status.as_u16().into(), i16::MAX)),
            length: Some(clamped(response.stored_bytes(), i32::MAX)),
            head: match response.body {
                StoredBody::Packed { .. } => None,
                _ => Some(codec::encode_head(response)),
            },
            body: codec::body_of(response),
        }
    }
}

/// Whether the row is one that the sweeper looks at. The times reveal a lease or an unknown outcome, so no
/// rule about states is repeated.
pub(crate) fn is_live(stamps: &Times<Stamp>) -> bool {
    stamps.lease_until != Stamp::Never
        || stamps.reconcile_after != Stamp::Never
        || stamps.unknown_since != Stamp::Never
}

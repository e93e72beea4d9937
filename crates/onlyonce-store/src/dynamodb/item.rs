//! A record as an item, and its pieces: an item holds 400 KB, so a large answer is stored beside its record
//! in pieces, which are written before the write that names them.

use bytes::Bytes;
use onlyonce_core::{Record, RecordId};

use super::layout::{
    BODY, BODY_BYTES, Item, NATIVE_TTL, NUMBER, PIECE_COUNT, PIECES, REVISION, ROW, ROW_BYTES,
    TIME, WRITE, blob, bytes_of, due_at, native_ttl, number, number_of, strange, text, text_of,
};
use super::layout::{Kind, LANE, shard};
use crate::{
    StoreError, random_bytes,
    row::{self, Row},
};

/// The most bytes of row and body in the item itself, and in one piece.
pub(super) const MAX_ITEM_BYTES: usize = 350 * 1024;
/// The attributes that every write of a record sets or removes.
pub(super) const WRITTEN: [&str; 11] = [
    REVISION,
    ROW,
    BODY,
    WRITE,
    PIECES,
    PIECE_COUNT,
    ROW_BYTES,
    BODY_BYTES,
    NATIVE_TTL,
    LANE,
    TIME,
];
/// The attributes that lists read: all but the body.
pub(super) const LISTED: [&str; 7] = [
    "pk",
    ROW,
    NUMBER,
    PIECES,
    PIECE_COUNT,
    ROW_BYTES,
    BODY_BYTES,
];

/// The id of one write, by which a retry recognises it.
pub(super) type WriteId = [u8; 16];

/// A record to be written to the table.
pub(super) struct Outgoing {
    /// The attributes, without keys and number.
    pub(super) attributes: Item,
    /// The id of the write.
    pub(super) write: WriteId,
    /// The pieces beside the item.
    pub(super) pieces: Option<(String, Vec<Bytes>)>,
}

impl Outgoing {
    pub(super) fn new(record: &Record) -> Self {
        let write = random_bytes();
        let row = row::stored(record);
        let body = row::body(record);
        let lane = Kind::Records(record.state).lane(shard(record.id));
        let mut attributes = Item::from([
            (REVISION.to_owned(), number(record.revision.0)),
            (WRITE.to_owned(), blob(write)),
            (LANE.to_owned(), text(lane)),
            (TIME.to_owned(), number(due_at(record))),
        ]);
        let mut set = |name: &str, value| attributes.insert(name.to_owned(), value);
        if let Some(at) = native_ttl(record) {
            set(NATIVE_TTL, number(at));
        }
        let body_bytes = body.map_or(0, Bytes::len);
        if row.len() + body_bytes <= MAX_ITEM_BYTES {
            set(ROW, blob(row));
            if let Some(body) = body {
                set(BODY, blob(&body[..]));
            }
            return Self {
                attributes,
                write,
                pieces: None,
            };
        }
        let mut beside = Vec::new();
        if row.len() > MAX_ITEM_BYTES {
            set(ROW_BYTES, number(row.len()));
            beside = row;
        } else {
            set(ROW, blob(row));
        }
        if let Some(body) = body {
            set(BODY_BYTES, number(body.len()));
            beside.extend_from_slice(body);
        }
        let beside = Bytes::from(beside);
        let starts = (0..beside.len()).step_by(MAX_ITEM_BYTES);
        let pieces: Vec<Bytes> = starts
            .map(|start| beside.slice(start..beside.len().min(start + MAX_ITEM_BYTES)))
            .collect();
        let name = format!("{:032x}", u128::from_be_bytes(write));
        set(PIECES, text(&name));
        set(PIECE_COUNT, number(pieces.len()));
        Self {
            attributes,
            write,
            pieces: Some((name, pieces)),
        }
    }
}

/// The pieces that an item names.
#[derive(Debug)]
pub(super) struct Beside {
    pub(super) name: String,
    pub(super) count: usize,
    row_bytes: usize,
    body_bytes: Option<usize>,
}

impl Beside {
    pub(super) fn of(item: &Item) -> Result<Option<Self>, StoreError> {
        if !item.contains_key(PIECES) {
            return Ok(None);
        }
        Ok(Some(Self {
            name: text_of(item, PIECES)?.to_owned(),
            count: number_of(item, PIECE_COUNT)?.ok_or_else(strange)?,
            row_bytes: number_of(item, ROW_BYTES)?.unwrap_or(0),
            body_bytes: number_of(item, BODY_BYTES)?,
        }))
    }

    /// Whether the row itself is in the pieces.
    pub(super) fn has_row(&self) -> bool {
        self.row_bytes > 0
    }
}

/// Whether the write `id` made `item`.
pub(super) fn is_of(item: &Item, id: &WriteId) -> bool {
    bytes_of(item, WRITE) == Some(id)
}

/// The row and the body of an item; `beside` are those from its pieces.
fn parts(
    item: &Item,
    beside: Option<(Beside, Bytes)>,
) -> Result<(Bytes, Option<Bytes>), StoreError> {
    let own = |name| bytes_of(item, name).map(Bytes::copy_from_slice);
    let Some((names, bytes)) = beside else {
        return Ok((own(ROW).ok_or_else(strange)?, own(BODY)));
    };
    if bytes.len() != names.row_bytes + names.body_bytes.unwrap_or(0) {
        return Err(strange());
    }
    let row = match names.has_row() {
        true => bytes.slice(..names.row_bytes),
        false => own(ROW).ok_or_else(strange)?,
    };
    let body = names.body_bytes.map(|_| bytes.slice(names.row_bytes..));
    Ok((row, body))
}

/// The whole record in an item.
pub(super) fn whole(
    id: RecordId,
    item: &Item,
    beside: Option<(Beside, Bytes)>,
) -> Result<Record, StoreError> {
    let (row, body) = parts(item, beside)?;
    Ok(row::read_whole(id, &row, body)?)
}

/// The record in an item as shown in lists.
pub(super) fn listed(
    id: RecordId,
    item: &Item,
    beside: Option<(Beside, Bytes)>,
) -> Result<Row, StoreError> {
    let number = number_of(item, NUMBER)?.ok_or_else(strange)?;
    let (row, _) = parts(item, beside)?;
    let row = row::read(id, &row)?;
    Ok(Row { number, ..row })
}

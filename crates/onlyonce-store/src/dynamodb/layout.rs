//! The layout of the table: the names of items, attributes and indexes.
//!
//! One table with two indexes, both of keys only. Everything of one record shares its partition: the record,
//! its journal, the pieces of an answer that is too large for one item. The index [`LANES`] contains what the
//! workers look for, by time; [`ORDER`] contains the records by number. The lanes of each are spread over a
//! fixed number of shards, which is part of the layout: a partition of an index takes 1,000 writes a second.

use std::collections::HashMap;

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use onlyonce_core::{Record, RecordId, State};

use crate::StoreError;

/// The shards of every lane.
pub(super) const SHARDS: u8 = 8;
/// The index of items by time.
pub(super) const LANES: &str = "lanes";
/// The index of records by number.
pub(super) const ORDER: &str = "order";

/// The partition key of an item.
pub(super) const PK: &str = "pk";
/// The sort key of an item.
pub(super) const SK: &str = "sk";
/// The partition key of [`LANES`], and its sort key.
pub(super) const LANE: &str = "ln";
pub(super) const TIME: &str = "tm";
/// The partition key of [`ORDER`], and its sort key: the number of a record in lists.
pub(super) const ORDER_LANE: &str = "od";
pub(super) const NUMBER: &str = "nb";
/// The revision of a record.
pub(super) const REVISION: &str = "rv";
/// The row of a record, unless it is too large.
pub(super) const ROW: &str = "rw";
/// The body of the answer, unless it is too large.
pub(super) const BODY: &str = "bd";
/// The id of the write that made the item.
pub(super) const WRITE: &str = "wr";
/// The name of the pieces, and their number.
pub(super) const PIECES: &str = "gn";
pub(super) const PIECE_COUNT: &str = "pc";
/// The bytes of row and body in the pieces.
pub(super) const ROW_BYTES: &str = "rl";
pub(super) const BODY_BYTES: &str = "bl";
/// When the service may delete the item by itself, in seconds: for tombstones only.
pub(super) const NATIVE_TTL: &str = "xp";
/// The bytes of a journal row, a piece, a block or a recipe.
pub(super) const DATA: &str = "dt";
/// The name of a scope.
pub(super) const NAME: &str = "nm";

/// The item that exists once per store, and its attributes.
pub(super) const META: &str = "M";
pub(super) const META_SECRET: &str = "sc";
pub(super) const META_VERSION: &str = "vs";
pub(super) const META_IDENTITY: &str = "idn";
pub(super) const META_EPOCH: &str = "ep";
pub(super) const META_EPOCH_AT: &str = "ea";
pub(super) const META_ACCEPTED: &str = "ac";
pub(super) const META_LOST: &str = "lost";
pub(super) const META_LOST_NEWEST: &str = "lostnew";
pub(super) const META_PROBED: &str = "pb";

/// The sort key of a record.
pub(super) const RECORD: &str = "R";
/// The prefixes of the sort keys of journal rows and of pieces.
pub(super) const JOURNAL: &str = "J#";
pub(super) const PIECE: &str = "B#";

/// The time of an item that is never due.
const NEVER: i64 = i64::MAX;
/// The low bits of a number, below its microseconds.
const NUMBER_BITS: u32 = 11;
/// How long after `delete_at` the service may delete a tombstone by itself, in seconds. Workers, if any run,
/// delete it long before.
const TTL_BEYOND: i64 = 86_400;

/// An item.
pub(super) type Item = HashMap<String, AttributeValue>;

/// A family of lanes in [`LANES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records of a state: by the end of their lease, by the reconciler's next look, or by when they expire
    /// or may be deleted.
    Records(State),
    /// Journal rows, by number.
    Journal,
    /// Sets of pieces, by the next check whether a record still names them.
    Pieces,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Records(state) => state.as_str(),
            Self::Journal => "journal",
            Self::Pieces => "pieces",
        }
    }

    pub(super) fn lane(self, shard: u8) -> String {
        format!("{}#{shard:x}", self.word())
    }
}

/// The lane of [`ORDER`] in a shard.
pub(super) fn order_lane(shard: u8) -> String {
    format!("all#{shard:x}")
}

pub(super) fn shard(id: RecordId) -> u8 {
    id.0[0] % SHARDS
}

fn hex(id: RecordId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

/// The partition of a record.
pub(super) fn partition(id: RecordId) -> String {
    format!("K#{}", hex(id))
}

/// The record of this partition.
pub(super) fn record_of(partition: &str) -> Result<RecordId, StoreError> {
    let digits = partition.strip_prefix("K#").ok_or_else(strange)?;
    id_of(digits)
}

pub(super) fn id_of(digits: &str) -> Result<RecordId, StoreError> {
    let number = u128::from_str_radix(digits, 16).map_err(|_| strange())?;
    Ok(RecordId(number.to_be_bytes()))
}

/// The partition and the sort key of a scope; partitions are in the order of ids.
pub(super) fn scope_key(id: RecordId) -> (String, String) {
    (scope_partition(id.0[0] >> 4), hex(id))
}

/// One of the sixteen partitions of scopes.
pub(super) fn scope_partition(part: u8) -> String {
    format!("G#{part:x}")
}

/// The key of a journal row.
pub(super) fn journal_key(number: u64) -> String {
    format!("{JOURNAL}{number:020}")
}

/// The key of a piece.
pub(super) fn piece_key(pieces: &str, index: usize) -> String {
    format!("{PIECE}{pieces}#{index:04}")
}

/// A number for lists: later ones are higher, and the low bits distinguish those of concurrent processes.
pub(super) fn numbered(micros: u64, low: u16) -> u64 {
    micros << NUMBER_BITS | u64::from(low) & ((1 << NUMBER_BITS) - 1)
}

/// The low bits of a record's number.
pub(super) fn low_bits(id: RecordId) -> u16 {
    u16::from_be_bytes([id.0[14], id.0[15]])
}

/// When the record is next due: its lease ends, the reconciler looks, it expires.
pub(super) fn due_at(record: &Record) -> i64 {
    let times = &record.times;
    let due = match (times.lease_until, times.unknown_since) {
        (Some(lease), _) => Some(lease),
        (None, Some(_)) => times.reconcile_after,
        // A tombstone has a `delete_at`; its answer expired before.
        (None, None) => times.delete_at.or(times.expires_at),
    };
    due.map_or(NEVER, |at| at.0)
}

/// When the service may delete the record by itself: only a tombstone, some time after its `delete_at`.
pub(super) fn native_ttl(record: &Record) -> Option<i64> {
    let times = &record.times;
    let is_live = times.lease_until.is_some() || times.unknown_since.is_some();
    let delete_at = times
        .delete_at
        .filter(|_| !is_live && record.response.is_none())?;
    Some(delete_at.0.div_euclid(1_000) + TTL_BEYOND)
}

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(super) fn blob(value: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(value.into()))
}

/// The key of an item.
pub(super) fn key(partition: impl Into<String>, sort: impl Into<String>) -> Item {
    HashMap::from([
        (PK.to_owned(), text(partition)),
        (SK.to_owned(), text(sort)),
    ])
}

/// A text attribute.
pub(super) fn text_of<'a>(item: &'a Item, name: &str) -> Result<&'a str, StoreError> {
    let value = item.get(name).and_then(|value| value.as_s().ok());
    value.map(String::as_str).ok_or_else(strange)
}

/// A number attribute, if present.
pub(super) fn number_of<T: std::str::FromStr>(
    item: &Item,
    name: &str,
) -> Result<Option<T>, StoreError> {
    let Some(value) = item.get(name) else {
        return Ok(None);
    };
    let digits = value.as_n().map_err(|_| strange())?;
    digits.parse().map(Some).map_err(|_| strange())
}

/// A bytes attribute, if present.
pub(super) fn bytes_of<'a>(item: &'a Item, name: &str) -> Option<&'a [u8]> {
    let value = item.get(name).and_then(|value| value.as_b().ok());
    value.map(AsRef::as_ref)
}

/// The error for an item that is not of this layout.
pub(super) fn strange() -> StoreError {
    StoreError::Unreadable("the table holds an item that is not of this layout".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back() {
        let id = RecordId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(record_of(&partition(id)).unwrap(), id);
        let (part, sort) = scope_key(RecordId([0xAB; 16]));
        assert_eq!(part, "G#a");
        assert_eq!(id_of(&sort).unwrap(), RecordId([0xAB; 16]));
        assert!(record_of("M").is_err());
    }

    #[test]
    fn numbers_fit_and_rise() {
        // The year 2100, in microseconds.
        let far = numbered(4_102_444_800_000_000, u16::MAX);
        assert!(i64::try_from(far).is_ok());
        assert!(numbered(2, 0) > numbered(1, u16::MAX));
        assert!(journal_key(numbered(2, 0)) > journal_key(numbered(1, 0)));
    }
}

//! An in-memory filter of the ids in the file, so that the first lookup of a new key reads nothing.
//!
//! A Bloom filter: an id that was added is always found; another id is found occasionally, and costs a
//! needless read. The writer adds an id before it commits the record, so the id of every readable record is
//! here. Ids of deleted records stay until the filter is rebuilt from the file.

use std::sync::atomic::{AtomicU64, Ordering};

use onlyonce_core::RecordId;
use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;

use super::batch::{Operation, Writer};
use crate::StoreError;

/// Bits per id of the filter's capacity, and how many of them an id sets: about one in 150 ids that were not
/// added is found all the same.
const BITS_PER_ID: u64 = 12;
const BITS_SET: u32 = 6;
/// All bits of an id are in one block, a cache line of the processor.
const WORDS_PER_BLOCK: usize = 8;
const BITS_PER_BLOCK: u64 = 64 * WORDS_PER_BLOCK as u64;
/// The smallest capacity of a filter, in ids. A filter has room for twice as many ids as it is built with.
const LEAST_ROOM: u64 = 65_536;

pub(super) struct KnownIds {
    filters: RwLock<Filters>,
    /// Held while the filter is rebuilt.
    renewing: Mutex<()>,
}

struct Filters {
    current: Filter,
    /// The replacement, while it is being filled.
    next: Option<Filter>,
}

impl KnownIds {
    /// Reads the ids in the file. Must be called before anything is inserted.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let current = Filter::for_ids(count(connection)?);
        each_id(connection, || true, |id| current.add(id))?;
        let next = None;
        Ok(Self {
            filters: RwLock::new(Filters { current, next }),
            renewing: Mutex::default(),
        })
    }

    /// Whether a record with this id may be in the file. `false` is certain.
    pub(super) fn may_hold(&self, id: RecordId) -> bool {
        self.filters.read().current.may_hold(id)
    }

    /// Adds the id of a record that is about to be committed.
    pub(super) fn add(&self, id: RecordId) {
        let filters = self.filters.read();
        filters.current.add(id);
        if let Some(next) = &filters.next {
            next.add(id);
        }
    }

    /// Rebuilds the filter from the file, if more ids were added than it has room for. Keeps the old filter
    /// if the file cannot be read to its end, or `goes_on` returns false.
    pub(super) fn renew(
        &self,
        connection: &Connection,
        writer: &Writer,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), StoreError> {
        let _alone = self.renewing.lock();
        if !self.filters.read().current.is_full() {
            return Ok(());
        }
        let unavailable = |error| StoreError::Unavailable(Box::new(error));
        let next = Filter::for_ids(count(connection).map_err(unavailable)?);
        self.filters.write().next = Some(next);
        // The group being written may have added its ids before `next` existed. After that group, every id is
        // either in `next` or in the file as read now.
        let read = writer
            .submit_waiting(Operation::Append(Vec::new()))
            .and_then(|()| {
                let add = |id| {
                    if let Some(next) = &self.filters.read().next {
                        next.add(id);
                    }
                };
                each_id(connection, goes_on, add).map_err(unavailable)
            });
        let mut filters = self.filters.write();
        if let Some(next) = filters.next.take()
            && matches!(read, Ok(true))
        {
            filters.current = next;
        }
        read.map(|_| ())
    }
}

fn count(connection: &Connection) -> rusqlite::Result<u64> {
    let count: i64 = connection.query_row("SELECT count(*) FROM keys", [], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Reads the index on ids only, not the records.
pub(super) const ALL_IDS: &str = "SELECT id FROM keys";

/// Calls `found` with each id. Returns whether it reached the end.
fn each_id(
    connection: &Connection,
    goes_on: impl Fn() -> bool,
    mut found: impl FnMut(RecordId),
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare(ALL_IDS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if !goes_on() {
            return Ok(false);
        }
        // A value that is not an id is never looked up.
        if let Ok(id) = row.get_ref(0)?.as_blob().unwrap_or_default().try_into() {
            found(RecordId(id));
        }
    }
    Ok(true)
}

struct Filter {
    blocks: Box<[[AtomicU64; WORDS_PER_BLOCK]]>,
    room: u64,
    added: AtomicU64,
}

impl Filter {
    fn for_ids(count: u64) -> Self {
        let room = count.saturating_mul(2).max(LEAST_ROOM);
        let blocks = room.saturating_mul(BITS_PER_ID).div_ceil(BITS_PER_BLOCK);
        Self {
            blocks: (0..blocks).map(|_| Default::default()).collect(),
            room,
            added: AtomicU64::new(0),
        }
    }

    /// Ids are keyed hashes: the first half selects the block, the second half the bits in it.
    fn bits(&self, id: RecordId) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let id = u128::from_be_bytes(id.0);
        let (first, second) = ((id >> 64) as u64, id as u64);
        let block = (u128::from(first) * self.blocks.len() as u128) >> 64;
        let block = &self.blocks[block as usize];
        (0..BITS_SET).map(move |index| {
            let bit = (second >> (9 * index)) % BITS_PER_BLOCK;
            (&block[(bit / 64) as usize], 1 << (bit % 64))
        })
    }

    fn add(&self, id: RecordId) {
        for (word, bit) in self.bits(id) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        self.added.fetch_add(1, Ordering::Relaxed);
    }

    fn may_hold(&self, id: RecordId) -> bool {
        self.bits(id)
            .all(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn is_full(&self) -> bool {
        self.added.load(Ordering::Relaxed) > self.room
    }
}

#[cfg(test)]
pub(super) mod tests;

//! An in-memory filter of the ids in the file, so that the first lookup of a new key reads nothing.
//!
//! A Bloom filter: an id that was added is always found; another id is found occasionally, and costs a
//! needless read. The writer adds an id before it commits the record, so the id of every readable record is
//! here. Ids of deleted records stay until the filter is rebuilt from the file.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use onlyonce_core::RecordId;
use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;

use super::{
    batch::{Operation, Writer},
    write::Tally,
};
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
/// A file with more ids has no filter, since a filter of so many would take 150 MB: every id may be in it.
const MAX_IDS: u64 = 50_000_000;

pub(super) struct KnownIds {
    tally: Arc<Tally>,
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
    /// Reads the ids in the file, whose records `tally` counts. Must be called before anything is inserted.
    pub(super) fn read(connection: &Connection, tally: Arc<Tally>) -> rusqlite::Result<Self> {
        let current = Filter::for_ids(tally.total());
        if current.is_of_use() {
            each_id(connection, || true, |id| current.add(id))?;
        }
        let next = None;
        Ok(Self {
            tally,
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
        let next = Filter::for_ids(self.tally.total());
        if !next.is_of_use() {
            self.filters.write().current = next;
            return Ok(());
        }
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

/// The next ids, by the index on ids only. A page at a time, so that no read keeps the log from beginning anew.
pub(super) const NEXT_IDS: &str = "SELECT id FROM keys WHERE id > ?1 ORDER BY id LIMIT 10000";

/// Calls `found` with each id. Returns whether it reached the end.
fn each_id(
    connection: &Connection,
    goes_on: impl Fn() -> bool,
    mut found: impl FnMut(RecordId),
) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare(NEXT_IDS)?;
    let mut last = Vec::new();
    while goes_on() {
        let before = last.clone();
        let mut rows = statement.query([&before])?;
        while let Some(row) = rows.next()? {
            last = row.get(0)?;
            // A value that is not an id is never looked up.
            if let Ok(id) = last[..].try_into() {
                found(RecordId(id));
            }
        }
        if last == before {
            return Ok(true);
        }
    }
    Ok(false)
}

struct Filter {
    blocks: Box<[[AtomicU64; WORDS_PER_BLOCK]]>,
    room: u64,
    added: AtomicU64,
}

impl Filter {
    fn for_ids(count: u64) -> Self {
        let room = count.saturating_mul(2).max(LEAST_ROOM);
        let blocks = match count > MAX_IDS {
            true => 0,
            false => room.saturating_mul(BITS_PER_ID).div_ceil(BITS_PER_BLOCK),
        };
        Self {
            blocks: (0..blocks).map(|_| Default::default()).collect(),
            room,
            added: AtomicU64::new(0),
        }
    }

    /// Whether it tells ids apart at all.
    fn is_of_use(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Ids are keyed hashes: the first half selects the block, the second half the bits in it.
    fn bits(&self, id: RecordId) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let id = u128::from_be_bytes(id.0);
        let (first, second) = ((id >> 64) as u64, id as u64);
        let block = (u128::from(first) * self.blocks.len() as u128) >> 64;
        let block = self.blocks.get(block as usize);
        block.into_iter().flat_map(move |block| {
            (0..BITS_SET).map(move |index| {
                let bit = (second >> (9 * index)) % BITS_PER_BLOCK;
                (&block[(bit / 64) as usize], 1 << (bit % 64))
            })
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

//! Which keys may be in the file, in memory: so that a key which nobody has used is not looked for there.
//!
//! A filter of two bytes for each key. It may say of a key that is not there that it may be, once in some
//! four hundred times, and costs a read then. It must not be relied upon the other way either: a key that the
//! filter has missed goes the way of a new one, and is found when it is inserted.
//!
//! Deliberately absent: taking keys out. A filter that has become too small is made anew from the file.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use onlyonce_core::RecordId;
use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;

use super::schema;

/// Keys that the smallest filter is for: 2 MiB.
const MIN_KEYS: usize = 1 << 20;
/// Bits for each key.
const BITS_PER_KEY: usize = 16;
/// Rows between two looks at whether the store is being closed.
const ROWS_AT_ONCE: usize = 1_000;

/// The ids of the keys that may be in the file.
pub(super) struct KnownIds(Arc<Shared>);

struct Shared {
    path: PathBuf,
    filters: RwLock<Filters>,
    is_ending: AtomicBool,
    reading: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Filters {
    /// Knows every key, but for what was missed.
    whole: Option<Arc<Filter>>,
    /// Is being filled from the file.
    filling: Option<Arc<Filter>>,
}

impl KnownIds {
    /// Reads the file in a thread of its own. Until that is done, any key may be there.
    pub(super) fn of(path: &Path) -> Self {
        let known = Self(Arc::new(Shared {
            path: path.to_owned(),
            filters: RwLock::default(),
            is_ending: AtomicBool::new(false),
            reading: Mutex::default(),
        }));
        known.0.read_again();
        known
    }

    /// Whether `id` may be in the file.
    pub(super) fn may_contain(&self, id: RecordId) -> bool {
        let filters = self.0.filters.read();
        let whole = filters.whole.as_ref();
        whole.is_none_or(|filter| filter.may_contain(id))
    }

    /// `id` is about to be in the file.
    pub(super) fn add(&self, id: RecordId) {
        let filters = self.0.filters.read();
        if let Some(filling) = &filters.filling {
            filling.add(id);
        }
        let is_full = match &filters.whole {
            Some(whole) => {
                whole.add(id);
                whole.is_full() && filters.filling.is_none()
            }
            None => false,
        };
        drop(filters);
        if is_full {
            self.0.read_again();
        }
    }

    /// Ends the reading. Every key may be in the file from now on.
    pub(super) fn end(&self) {
        self.0.is_ending.store(true, Ordering::SeqCst);
        if let Some(reading) = self.0.reading.lock().take() {
            // It has no result that anybody waits for.
            let _ = reading.join();
        }
        *self.0.filters.write() = Filters::default();
    }
}

impl Shared {
    fn read_again(self: &Arc<Self>) {
        let mut reading = self.reading.lock();
        let is_read = reading
            .as_ref()
            .is_some_and(|reading| !reading.is_finished());
        if is_read || self.is_ending.load(Ordering::SeqCst) {
            return;
        }
        let shared = self.clone();
        let read = move || {
            if let Err(error) = shared.read() {
                tracing::debug!(%error, "the keys of the store could not be read into memory");
                shared.filters.write().filling = None;
            }
        };
        let name = "onlyonce-known-ids".to_owned();
        *reading = thread::Builder::new().name(name).spawn(read).ok();
    }

    fn read(&self) -> rusqlite::Result<()> {
        let connection = schema::connect_to_read(&self.path)?;
        let count: i64 = connection.query_row("SELECT count(*) FROM keys", [], |row| row.get(0))?;
        let keys = usize::try_from(count).unwrap_or(0);
        let filter = Arc::new(Filter::for_keys(keys.saturating_mul(2).max(MIN_KEYS)));
        // Before the file is read, so that a key which comes meanwhile is in one of the two.
        self.filters.write().filling = Some(filter.clone());
        if self.fill(&connection, &filter)? {
            let mut filters = self.filters.write();
            filters.whole = Some(filter);
            filters.filling = None;
        }
        Ok(())
    }

    /// Whether it came to the end.
    fn fill(&self, connection: &Connection, filter: &Filter) -> rusqlite::Result<bool> {
        let mut statement = connection.prepare("SELECT id FROM keys")?;
        let mut rows = statement.query([])?;
        let mut read = 0;
        while let Some(row) = rows.next()? {
            filter.add(RecordId(row.get(0)?));
            read += 1;
            if read % ROWS_AT_ONCE == 0 && self.is_ending.load(Ordering::SeqCst) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A Bloom filter of ids, which are hashes already.
struct Filter {
    words: Vec<AtomicU64>,
    keys: usize,
    added: AtomicUsize,
}

impl Filter {
    fn for_keys(keys: usize) -> Self {
        let bits = keys.saturating_mul(BITS_PER_KEY).next_power_of_two();
        Self {
            words: (0..bits / 64).map(|_| AtomicU64::new(0)).collect(),
            keys,
            added: AtomicUsize::new(0),
        }
    }

    fn is_full(&self) -> bool {
        self.added.load(Ordering::Relaxed) > self.keys
    }

    fn add(&self, id: RecordId) {
        let mut is_new = false;
        for (word, bit) in self.places(id) {
            is_new |= self.words[word].fetch_or(bit, Ordering::Relaxed) & bit == 0;
        }
        if is_new {
            self.added.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn may_contain(&self, id: RecordId) -> bool {
        self.places(id)
            .all(|(word, bit)| self.words[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// The words and bits of an id: its four quarters.
    fn places(&self, id: RecordId) -> impl Iterator<Item = (usize, u64)> {
        let count = self.words.len();
        let value = u128::from_le_bytes(id.0);
        (0..4).map(move |quarter| {
            // No filter is as large as this: 512 MiB of bits.
            let hash = (value >> (quarter * 32)) as u32 as usize;
            ((hash >> 6) & (count - 1), 1 << (hash & 63))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> RecordId {
        let secret = onlyonce_core::Secret::from_bytes([7; 32]);
        let key = onlyonce_core::Key::from_stored(&number.to_string());
        secret.record_id("global", &key)
    }

    #[test]
    fn what_was_added_may_be_there_and_little_else() {
        let filter = Filter::for_keys(10_000);
        (0..10_000).for_each(|number| filter.add(id(number)));
        assert!((0..10_000).all(|number| filter.may_contain(id(number))));
        let wrong = (10_000..110_000).filter(|number| filter.may_contain(id(*number)));
        let wrong = wrong.count();
        assert!(wrong < 1_000, "{wrong} of 100,000 are taken to be there");
        assert!(!filter.is_full());
        (10_000..10_200).for_each(|number| filter.add(id(number)));
        assert!(filter.is_full());
    }

    /// Goal: what is in the file when it is opened is known, and so is what comes while it is read; and one
    /// that is closed says of every key that it may be there.
    #[test]
    fn the_file_is_read_when_it_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ids.db");
        let connection = Connection::open(&path).expect("a file");
        let schema = "CREATE TABLE keys (id BLOB NOT NULL)";
        connection.execute(schema, []).expect("a table");
        for number in 0..3_000 {
            let row = rusqlite::params![id(number).0];
            connection
                .execute("INSERT INTO keys VALUES (?1)", row)
                .expect("a row");
        }
        let known = KnownIds::of(&path);
        known.add(id(3_000));
        let reading = known.0.reading.lock().take().expect("a thread");
        reading.join().expect("it ends");
        known.add(id(3_001));
        assert!(known.0.filters.read().whole.is_some());
        assert!((0..3_000).all(|number| known.may_contain(id(number))));
        assert!(known.may_contain(id(3_001)));
        let wrong = (4_000..5_000).filter(|number| known.may_contain(id(*number)));
        assert!(wrong.count() < 10);
        known.end();
        assert!((4_000..5_000).all(|number| known.may_contain(id(number))));
    }
}

//! Writes the lists of scopes, a window of records at a time.
//!
//! An index on scopes would add a page of the log to nearly every new key, since each client's keys go to a
//! different page. So new records wait until there are many; then they are sorted by scope and added to the
//! lists in slices that delay nobody. Until then, a list query scans them. Deleted records leave their lists
//! the same way. A crash may leave entries without a record, which list queries skip.

use std::{path::Path, sync::Arc, sync::mpsc, thread, time::Duration};

use parking_lot::Mutex;
use rusqlite::{Connection, params};

use super::{
    batch::{Operation, Writer},
    known_ids::KnownIds,
    schema::{self, LISTED_TO},
    write::{Entry, Step},
};
use crate::{
    StoreError,
    sql::{dialect::Value, meta},
    sqlite::dialect::SqliteDialect,
};

/// Records that may wait to be listed; a list query scans them.
pub(super) const WINDOW: i64 = 32_768;
/// Entries of one write.
const SLICE: usize = 512;
/// Deleted records that may wait to leave their lists. Beyond this, their entries stay.
const MAX_GONE: usize = 65_536;
/// This many of them are worth a round.
const WORTH_IT: usize = 8_192;
/// How often their number is checked.
const EVERY: Duration = Duration::from_secs(1);

/// Deleted records that are still in the lists of their scopes.
#[derive(Default)]
pub(super) struct Gone(Mutex<Vec<Entry>>);

impl Gone {
    /// Notes which of the records were deleted.
    pub(super) fn note(&self, steps: Vec<Step>) {
        let mut left = steps.into_iter().filter_map(|step| step.left).peekable();
        if left.peek().is_some() {
            let mut gone = self.0.lock();
            let room = MAX_GONE.saturating_sub(gone.len());
            gone.extend(left.take(room));
        }
    }
}

/// The thread, which ends when the sender is dropped.
pub(super) struct Lister(Mutex<Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>>);

impl Lister {
    pub(super) fn start(
        path: &Path,
        writer: Arc<Writer>,
        gone: Arc<Gone>,
        known_ids: Arc<KnownIds>,
    ) -> rusqlite::Result<Self> {
        let connection = schema::connect_to_read(path)?;
        let (life, ended) = mpsc::channel();
        let spawned = thread::Builder::new()
            .name("onlyonce-sqlite-lister".into())
            .spawn(move || {
                let goes_on = || ended.try_recv() == Err(mpsc::TryRecvError::Empty);
                while ended.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Err(error) = round(&connection, &writer, &gone, WINDOW, goes_on) {
                        tracing::debug!(%error, "the lists of scopes are written later");
                    }
                    if let Err(error) = known_ids.renew(&connection, &writer, goes_on) {
                        tracing::debug!(%error, "the filter of known ids is made anew later");
                    }
                }
            });
        let thread = match spawned {
            Ok(thread) => Some((life, thread)),
            Err(error) => {
                tracing::warn!(%error, "no thread for the lists of scopes: lists walk the newest keys");
                None
            }
        };
        Ok(Self(Mutex::new(thread)))
    }

    /// Ends the thread, and waits for it.
    pub(super) fn end(&self) {
        if let Some((life, thread)) = self.0.lock().take() {
            drop(life);
            // A thread that panicked has also closed its connection.
            let _ = thread.join();
        }
    }
}

/// Lists full windows of records, and removes deleted ones, while `goes_on`.
pub(super) fn round(
    connection: &Connection,
    writer: &Writer,
    gone: &Gone,
    window: i64,
    goes_on: impl Fn() -> bool,
) -> Result<(), StoreError> {
    let enough = gone.0.lock().len() >= WORTH_IT;
    if enough {
        let mut left = std::mem::take(&mut *gone.0.lock());
        left.sort_unstable();
        in_slices(left, &goes_on, |slice| {
            writer.submit_waiting(Operation::Unlist(slice))
        })?;
    }
    loop {
        let unavailable = |error| StoreError::Unavailable(Box::new(error));
        let from = schema::listed_to(connection).map_err(unavailable)?;
        let last = schema::last_number(connection).map_err(unavailable)?;
        // Numbers become visible in order: one thread assigns and commits them.
        let to = from.saturating_add(window);
        if last < to || !goes_on() {
            return Ok(());
        }
        let mut entries = entries(connection, from, to).map_err(unavailable)?;
        entries.sort_unstable();
        let whole = in_slices(entries, &goes_on, |slice| {
            writer.submit_waiting(Operation::List(slice))
        })?;
        if !whole {
            return Ok(());
        }
        let noted = meta::note::<SqliteDialect>(LISTED_TO, Value::Number(to));
        writer.submit_waiting(Operation::Run(noted))?;
    }
}

/// Writes `entries` a few at a time. Returns whether all were written.
fn in_slices(
    mut entries: Vec<Entry>,
    goes_on: &impl Fn() -> bool,
    write: impl Fn(Vec<Entry>) -> Result<(), StoreError>,
) -> Result<bool, StoreError> {
    while !entries.is_empty() {
        if !goes_on() {
            return Ok(false);
        }
        let rest = entries.split_off(entries.len().min(SLICE));
        write(std::mem::replace(&mut entries, rest))?;
    }
    Ok(true)
}

/// The records with numbers above `from`, up to `to`.
fn entries(connection: &Connection, from: i64, to: i64) -> rusqlite::Result<Vec<Entry>> {
    let sql = "SELECT scope, n FROM keys WHERE n > ?1 AND n <= ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params![from, to], |row| row.try_into())?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use onlyonce_core::{
        AttemptId, Fingerprint, Key, Policy, Recipe, Record, RecordId, Scope,
        machine::{self, Request},
        record::Notes,
    };

    use super::*;
    use crate::{Filter, Inserted, Store, sqlite::SqliteStore};

    async fn reserve(store: &SqliteStore, client: &str, key: &str) -> Record {
        let (scope, key) = (Scope::client(client), Key::from_stored(key));
        let request = Request {
            id: store.secret().record_id(scope.as_str(), &key),
            scope,
            key,
            fingerprint: Fingerprint([7; 32]),
            recipe: Recipe::default().id(),
            caller: None,
            attempt_id: AttemptId(1),
            route: "r".into(),
            method: "POST".into(),
            path: "/".into(),
            other_mark: None,
            notes: Notes::default(),
        };
        let draft = machine::first(&request, &Policy::default());
        match store.insert_or_get(draft).await.unwrap().value {
            Inserted::New(record) => record,
            Inserted::Existing(_) => panic!("the key was there already"),
        }
    }

    async fn listed(store: &SqliteStore, client: &str) -> Vec<RecordId> {
        let scopes = [Scope::client(client)];
        let page = store.list_in(&scopes, &Filter::default(), None, 100).await;
        let items = page.unwrap().unwrap().items;
        items.into_iter().map(|one| one.record.id).collect()
    }

    fn entries_in(path: &Path) -> i64 {
        let connection = schema::connect(path).unwrap();
        let count = "SELECT count(*) FROM scope_lists";
        connection.query_row(count, [], |row| row.get(0)).unwrap()
    }

    /// Goal: a list shows each record once, whether it is already in the list of its scope or waits for it,
    /// and shows no deleted record, whatever the numbers of later records are.
    ///
    /// Method: list some, delete the newest so that its number would be free, open the file again and add more.
    /// Evidence: what is listed, and the entries in the file.
    #[tokio::test(flavor = "multi_thread")]
    async fn records_are_listed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let store = SqliteStore::open(&path).unwrap();
        let reader = schema::connect_to_read(&path).unwrap();
        let mut mine = Vec::new();
        for number in 0..6 {
            mine.push(reserve(&store, "me", &format!("k{number}")).await);
            reserve(&store, "you", &format!("k{number}")).await;
        }
        let gone = Gone::default();
        let list = |store: &SqliteStore, window| {
            tokio::task::block_in_place(|| {
                round(&reader, &store.writer, &gone, window, || true).unwrap();
            });
        };
        let newest_first =
            |records: &[Record]| records.iter().rev().map(|one| one.id).collect::<Vec<_>>();
        assert_eq!(listed(&store, "me").await, newest_first(&mine));
        list(&store, 5);
        assert_eq!(entries_in(&path), 10);
        assert_eq!(listed(&store, "me").await, newest_first(&mine));
        list(&store, 1);
        assert_eq!(entries_in(&path), 12);
        assert_eq!(listed(&store, "me").await, newest_first(&mine));
        assert_eq!(listed(&store, "you").await.len(), 6);
        // The two newest are deleted; later records do not reuse their numbers.
        for client in ["me", "you"] {
            let id = listed(&store, client).await[0];
            let record = store.lookup(id).await.unwrap().value.unwrap();
            assert!(store.delete(id, record.revision).await.unwrap());
        }
        mine.pop();
        drop(store);
        let store = SqliteStore::open(&path).unwrap();
        mine.push(reserve(&store, "me", "late").await);
        assert_eq!(listed(&store, "me").await, newest_first(&mine));
        assert_eq!(listed(&store, "you").await.len(), 5);
    }

    /// Goal: deleted records leave their lists.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_gone_leaves_its_list() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let store = SqliteStore::open(&path).unwrap();
        let reader = schema::connect_to_read(&path).unwrap();
        let gone = Gone::default();
        for number in 0..4 {
            reserve(&store, "me", &format!("k{number}")).await;
        }
        let round = || {
            tokio::task::block_in_place(|| {
                round(&reader, &store.writer, &gone, 1, || true).unwrap();
            });
        };
        round();
        assert_eq!(entries_in(&path), 4);
        let scope = Scope::client("me").as_str().to_owned();
        let mut left = vec![(scope.clone(), 2), ("client:nobody".to_owned(), 3)];
        // Enough for a round; missing entries are skipped.
        left.resize(WORTH_IT, (scope, 99));
        *gone.0.lock() = left;
        round();
        assert_eq!(entries_in(&path), 3);
        assert!(gone.0.lock().is_empty());
    }
}

//! The contract, on every store of this crate.

use onlyonce_store::{memory::MemoryStore, sqlite::SqliteStore};

onlyonce_store::conformance!(memory, || async { MemoryStore::new() });
onlyonce_store::conformance!(sqlite, || async { sqlite_in_a_folder_of_its_own() });

fn sqlite_in_a_folder_of_its_own() -> SqliteStore {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The file stays open, so the folder may go at the end of the test run.
    SqliteStore::open(&folder.keep().join("store.db")).expect("a new store opens")
}

//! Persists keys before they are used.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand,
};
use serde_json::{Value, json};

use crate::call::hex;

/// The journal entry of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// A digest that distinguishes its request from others.
    pub request: String,
}

/// Why an entry could not be written or read. Nothing has been sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The journal cannot be read or written.
    #[error("the journal cannot be used")]
    Io(#[from] io::Error),
    /// The entry is damaged. It is not replaced: it may be the key of a payment.
    #[error("an entry of the journal cannot be read")]
    Damaged,
}

/// Remembers the key of each operation. [`FileJournal`] uses files. A table of the caller's own database is
/// better, since it can be written together with the data that the operation is about.
pub trait Journal: Send + Sync {
    /// The entry of `operation`: the existing one, or `fresh`, which is then stored.
    ///
    /// - **Atomic.** Of any number of concurrent calls, in any number of processes, all get the same entry.
    /// - **Durable.** The returned entry survives a crash of the machine.
    ///
    /// # Errors
    /// If neither can be guaranteed.
    fn entry(&self, operation: &str, fresh: &Entry) -> Result<Entry, JournalError>;

    /// Removes `operation`, once its answer is saved. The next operation of this name gets a new key.
    ///
    /// # Errors
    /// If the entry still exists.
    fn forget(&self, operation: &str) -> Result<(), JournalError>;
}

/// A folder with one small file for each operation.
#[derive(Debug)]
pub struct FileJournal {
    folder: PathBuf,
}

impl FileJournal {
    /// Opens the folder, and creates it if necessary.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: impl AsRef<Path>) -> io::Result<Self> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    fn path(&self, operation: &str) -> PathBuf {
        // Operation names may contain anything; file names may not.
        let name = hex(digest(&SHA256, operation.as_bytes()).as_ref());
        self.folder.join(format!("{name}.json"))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

impl Journal for FileJournal {
    fn entry(&self, operation: &str, fresh: &Entry) -> Result<Entry, JournalError> {
        let path = self.path(operation);
        if !path.exists() {
            let beside = self.folder.join(format!("{}.new", random_name()));
            let text = json!({
                "operation": operation,
                "key": fresh.key,
                "request": fresh.request,
            });
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&beside)?;
            file.write_all(text.to_string().as_bytes())?;
            file.sync_all()?;
            // Of several processes one creates the name; the others find it.
            let linked = fs::hard_link(&beside, &path);
            fs::remove_file(&beside)?;
            match linked {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        // Also if another process has just created it: that process may not have synced it yet.
        self.sync_folder()?;
        let read: Value =
            serde_json::from_slice(&fs::read(&path)?).map_err(|_| JournalError::Damaged)?;
        let field = |name: &str| read[name].as_str().map(str::to_owned);
        match (field("operation"), field("key"), field("request")) {
            (Some(written), Some(key), Some(request)) if written == operation => {
                Ok(Entry { key, request })
            }
            _ => Err(JournalError::Damaged),
        }
    }

    fn forget(&self, operation: &str) -> Result<(), JournalError> {
        match fs::remove_file(self.path(operation)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        Ok(self.sync_folder()?)
    }
}

/// A random UUID (RFC 9562, version 4), which nobody else has.
pub(crate) fn fresh_key() -> String {
    let mut bytes = random_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex(&bytes);
    let cut = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &text[range]);
    cut.join("-")
}

fn random_name() -> String {
    hex(&random_bytes())
}

pub(crate) fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).expect("the system's random source does not fail");
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;

    fn entry(key: &str) -> Entry {
        Entry {
            key: key.to_owned(),
            request: "r".to_owned(),
        }
    }

    #[test]
    fn what_is_written_first_stays_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path()).unwrap();
        assert_eq!(journal.entry("a/b", &entry("1")).unwrap(), entry("1"));
        let again = FileJournal::open(folder.path()).unwrap();
        assert_eq!(again.entry("a/b", &entry("2")).unwrap(), entry("1"));
        assert_eq!(again.entry("other", &entry("2")).unwrap(), entry("2"));
        again.forget("a/b").unwrap();
        again.forget("a/b").unwrap();
        assert_eq!(journal.entry("a/b", &entry("3")).unwrap(), entry("3"));
    }

    #[test]
    fn all_who_ask_at_once_get_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(FileJournal::open(folder.path()).unwrap());
        let asking: Vec<_> = (0..16)
            .map(|number| {
                let journal = journal.clone();
                let fresh = entry(&number.to_string());
                std::thread::spawn(move || journal.entry("one", &fresh).unwrap())
            })
            .collect();
        let mut got: Vec<_> = asking.into_iter().map(|one| one.join().unwrap()).collect();
        got.dedup();
        assert_eq!(got.len(), 1, "{got:?}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "no file but the entry");
    }

    #[test]
    fn a_damaged_entry_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let journal = FileJournal::open(folder.path()).unwrap();
        journal.entry("a", &entry("1")).unwrap();
        fs::write(journal.path("a"), "{").unwrap();
        let again = journal.entry("a", &entry("2"));
        assert!(matches!(again, Err(JournalError::Damaged)), "{again:?}");
    }

    #[test]
    fn keys_are_uuids_and_differ() {
        let key = fresh_key();
        assert_eq!(key.len(), 36);
        assert_eq!(&key[14..15], "4");
        assert_ne!(key, fresh_key());
    }
}

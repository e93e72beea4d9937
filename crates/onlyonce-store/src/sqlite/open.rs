//! The options for opening a file as a store, and the reasons why it cannot be opened.
//!
//! Deliberately absent: opening. [`SqliteStore::open_with`](super::SqliteStore::open_with) does that.

use std::path::{Path, PathBuf};

use crate::clock::StoreClock;

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process uses the file.
    #[error(
        "{0} is in use by another process: an embedded store serves one gateway; stop the other one, or use a shared store"
    )]
    InUse(PathBuf),
    /// A newer program wrote the file.
    #[error(
        "{path} has schema version {found}, and this program knows versions up to {known}: run a newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// An older program wrote the file, and it may not be migrated.
    #[error(
        "{path} has schema version {found}, and store.migrate is off: start once with store.migrate on"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: i64,
    },
    /// The file can be read but not written.
    #[error("{0} cannot be written: the file, its folder or its file system is read-only")]
    ReadOnly(PathBuf),
    /// The file system returned an error.
    #[error("cannot open {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file system does not support a setting that the level `sync` requires.
    #[error("{path} cannot be used with {pragma}: SQLite answered `{found}`")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The setting.
        pragma: &'static str,
        /// The actual value.
        found: String,
    },
    /// SQLite returned an error.
    #[error("cannot open {path} as a SQLite database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rusqlite::Error,
    },
    /// The file was copied while it was in use, or its log was lost.
    #[error(
        "{0} was not stopped in good order, and its log {0}-wal is missing: the newest keys are not in \
         it, and their retries would execute again; put the log back beside it, or copy a store that is \
         stopped. If the log is lost for good, say so once: `onlyonce migrate --store sqlite:{0} \
         --accept-incomplete`; nothing was changed"
    )]
    LogMissing(PathBuf),
    /// The log belongs to another file.
    #[error(
        "{0} is not the file that the log {0}-wal belongs to: the file was replaced, and SQLite would \
         mix the two; put the file back that was there, or move the log away; nothing was changed"
    )]
    LogOfAnother(PathBuf),
    /// There is a log, but not the file that it belongs to.
    #[error(
        "{0} is missing or empty, and its log {0}-wal is there: put the file back, or move the log away \
         to begin with an empty store, which knows no key; nothing was changed"
    )]
    FileMissing(PathBuf),
    /// There is no store, and none may be created.
    #[error(
        "there is no store in {0}: `onlyonce migrate --store sqlite:{0}` makes one, or `store.create: \
         true` lets `serve` do it; a new store knows no key, and retries of earlier requests execute; \
         nothing was changed"
    )]
    Absent(PathBuf),
    /// The file contains no valid secret.
    #[error("{0} holds no usable secret: it is damaged, or not a store of this program")]
    Damaged(PathBuf),
}

impl OpenError {
    /// Wraps an error of SQLite about the file `path`.
    pub(super) fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + Copy {
        move |source| Self::Sqlite {
            path: path.to_owned(),
            source,
        }
    }

    /// Wraps an error of the file system about the file `path`.
    pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// How to open a file.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The store's clock.
    pub clock: StoreClock,
    /// Whether to migrate an old schema.
    pub migrate: bool,
    /// Whether to create a store if there is none.
    pub create: bool,
    /// Whether to open a file whose newest writes were lost with its log.
    pub accept_incomplete: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            clock: StoreClock::system(),
            migrate: true,
            create: true,
            accept_incomplete: false,
        }
    }
}

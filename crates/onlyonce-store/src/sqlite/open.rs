//! How a file is opened as a store, and why one cannot be.
//!
//! Deliberately absent: opening. [`SqliteStore::open_with`](super::SqliteStore::open_with) does that.

use std::path::{Path, PathBuf};

use crate::clock::StoreClock;

/// Why a file could not be opened as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{0} is in use by another process: an embedded store serves one gateway; stop the other one, or use a shared store"
    )]
    InUse(PathBuf),
    /// It was made by a newer version.
    #[error(
        "{path} has schema version {found}, and this program knows versions up to {known}: run a newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It was made by an older version, and may not be changed.
    #[error(
        "{path} has schema version {found}, and store.migrate is off: start once with store.migrate on"
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// It can be read, and not written.
    #[error("{0} cannot be written: the file, its folder or its file system is read-only")]
    ReadOnly(PathBuf),
    /// The file system said no.
    #[error("cannot open {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file system does not allow what the level `sync` stands on.
    #[error("{path} cannot be used with {pragma}: SQLite answered `{found}`")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The setting.
        pragma: &'static str,
        /// What it is instead.
        found: String,
    },
    /// SQLite said no.
    #[error("cannot open {path} as a SQLite database")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// It was in use when it was copied or when its log was lost.
    #[error(
        "{0} was not stopped in good order, and its log {0}-wal is missing: the newest keys are not in \
         it, and their retries would execute again; put the log back beside it, or copy a store that is \
         stopped. If the log is lost for good, say so once: `onlyonce migrate --store sqlite:{0} \
         --accept-incomplete`; nothing was changed"
    )]
    LogMissing(PathBuf),
    /// Another file was in its place when the log was written.
    #[error(
        "{0} is not the file that the log {0}-wal belongs to: the file was replaced, and SQLite would \
         mix the two; put the file back that was there, or move the log away; nothing was changed"
    )]
    LogOfAnother(PathBuf),
    /// There is a log, and no file that it belongs to.
    #[error(
        "{0} is missing or empty, and its log {0}-wal is there: put the file back, or move the log away \
         to begin with an empty store, which knows no key; nothing was changed"
    )]
    FileMissing(PathBuf),
    /// There is no store, and none may be made.
    #[error(
        "there is no store in {0}: `onlyonce migrate --store sqlite:{0}` makes one, or `store.create: \
         true` lets `serve` do it; a new store knows no key, and retries of earlier requests execute; \
         nothing was changed"
    )]
    Absent(PathBuf),
    /// The secret in the file is not one.
    #[error("{0} holds no usable secret: it is damaged, or not a store of this program")]
    Damaged(PathBuf),
}

impl OpenError {
    /// SQLite said no to the file `path`.
    pub(super) fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self + Copy {
        move |source| Self::Sqlite {
            path: path.to_owned(),
            source,
        }
    }

    /// The file system said no to the file `path`.
    pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + Copy {
        move |source| Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// How a file is opened.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The store's clock.
    pub clock: StoreClock,
    /// Whether an old schema is brought up to date.
    pub migrate: bool,
    /// Whether a store is made where there is none.
    pub create: bool,
    /// Whether a file is taken whose newest writes are lost with its log.
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

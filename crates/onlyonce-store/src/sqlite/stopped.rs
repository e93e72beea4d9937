//! Whether a file is complete without its log, and is the file that was last in use here.
//!
//! The newest writes of a running store are in its log, `FILE-wal`. A copy of the file alone lacks them, and
//! a retry of a missing key would execute again. So the file records whether it is in use: opening it begins
//! a *session*, whose id is in the file (not in the log alone) before the first key is; a clean stop moves
//! the log into the file and records that. The lock file beside it also names the session, so that a log of
//! another file is recognised.
//!
//! | the file says | its log | then |
//! |---|---|---|
//! | stopped, or nothing (made by an older program) | none, or its own | it is opened |
//! | in use | its own | the process was killed; SQLite recovers, unattended |
//! | in use, in a session that the lock file names | missing | refused: [`OpenError::LogMissing`] |
//! | a session that the lock file does not name | not empty | refused: [`OpenError::LogOfAnother`] |
//! | a session that the lock file does not name | none | it is opened, and has [lost keys](Loss::Any) |
//! | there is no file, or an empty one | not empty | refused: [`OpenError::FileMissing`] |
//! | there is no file, or an empty one, and the lock file names a session | none | one is made, and has lost keys |
//!
//! With `accept_incomplete` an operator accepts the loss; it never mixes in a log.
//!
//! Not recognised: a copy made while the store was in use and put back in the same session with its log in
//! place; and files left by older programs.

use std::{
    fs::File,
    io::{Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use onlyonce_core::Timestamp;
use rusqlite::{Connection, OpenFlags};

use super::{OpenError, dialect::SqliteDialect, schema, write};
use crate::{
    Loss, random_bytes,
    sql::{dialect::Value, meta},
};

/// Bytes of a session's id.
const SESSION_BYTES: usize = 8;
/// How much of the lock file is read: two ids and the space between them.
const MAX_LOCK_BYTES: u64 = 64;
/// The row of `meta` with the file's current or last session.
const ROW: &str = "session";
const IN_USE: &str = "in use";
const STOPPED: &str = "stopped";

/// The log of the store in `path`.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    PathBuf::from(log)
}

/// The session recorded in the file itself, without its log.
struct Told {
    id: String,
    in_use: bool,
}

/// Whether a file has all keys that were in use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The file has all of them.
    Whole,
    /// The file was restored from a backup, replaced or removed.
    Lost,
}

/// Refuses an incomplete file, or one that its log does not belong to.
pub(super) fn check(
    path: &Path,
    lock: &mut File,
    accept_incomplete: bool,
) -> Result<Memory, OpenError> {
    let lost = match accept_incomplete {
        true => Memory::Whole,
        false => Memory::Lost,
    };
    let length = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.len());
    let log = length(&log_of(path)).ok();
    let has_log = log.is_some_and(|bytes| bytes > 0);
    if length(path).unwrap_or(0) == 0 {
        if has_log {
            return Err(OpenError::FileMissing(path.to_owned()));
        }
        return Ok(match named(lock).is_empty() {
            true => Memory::Whole,
            false => lost,
        });
    }
    let Some(told) = told(path) else {
        return Ok(Memory::Whole);
    };
    let named = named(lock);
    if !named.is_empty() && !named.contains(&told.id) {
        return match has_log {
            true => Err(OpenError::LogOfAnother(path.to_owned())),
            false => Ok(lost),
        };
    }
    if told.in_use && log.is_none() && !accept_incomplete {
        return Err(OpenError::LogMissing(path.to_owned()));
    }
    Ok(Memory::Whole)
}

/// Records in the file that it has lost keys. This happens before the session begins, which makes the file
/// the one last in use here: a process killed between the two steps finds the loss again.
pub(super) fn note_lost(connection: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let now = now.0.to_string();
    let value = Value::bytes(now.as_bytes());
    let statement = meta::note::<SqliteDialect>(Loss::Any.name(), value);
    write::execute(connection, &statement)
}

/// Begins a session: from here on, a copy of the file alone is recognised as incomplete.
pub(super) fn begin(
    connection: &Connection,
    path: &Path,
    lock: &mut File,
) -> Result<(), OpenError> {
    let sqlite = OpenError::sqlite(path);
    let io = OpenError::io(path);
    let id: String = random_bytes::<SESSION_BYTES>()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Both sessions are named until the file has the new one: the process may be killed at any point.
    let last = told(path).map(|told| told.id).unwrap_or_default();
    name(lock, &format!("{last} {id}")).map_err(io)?;
    say(connection, &format!("{id} {IN_USE}")).map_err(sqlite)?;
    if !move_log(connection).map_err(sqlite)? {
        tracing::warn!(
            file = %path.display(),
            "another program reads this file: a copy of it alone would not be recognised"
        );
    }
    name(lock, &id).map_err(io)
}

/// Ends the session of a file that this process has otherwise closed.
pub(super) fn end(connection: &Connection) {
    let ended = read(connection).and_then(|told| {
        if let Some(told) = told {
            say(connection, &format!("{} {STOPPED}", told.id))?;
        }
        move_log(connection)
    });
    match ended {
        Ok(true) => {}
        Ok(false) => tracing::warn!("the log stays beside the file: another program has it open"),
        Err(error) => tracing::warn!(%error, "the log stays beside the file: keep them together"),
    }
}

/// Moves the log into the file and truncates it; `false` if another program is reading.
fn move_log(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
        row.get::<_, i64>(0).map(|busy| busy == 0)
    })
}

fn say(connection: &Connection, value: &str) -> rusqlite::Result<()> {
    let statement = meta::note::<SqliteDialect>(ROW, Value::text(value));
    write::execute(connection, &statement)
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Told>> {
    let value: Option<String> = schema::noted(connection, ROW)?;
    Ok(value.as_deref().and_then(|value| {
        let (id, state) = value.split_once(' ')?;
        Some(Told {
            id: id.to_owned(),
            in_use: state == IN_USE,
        })
    }))
}

/// The session in the file without its log. A file without one, or one that a crash left in the middle of a
/// checkpoint, is left to SQLite.
fn told(path: &Path) -> Option<Told> {
    use std::os::unix::ffi::OsStrExt as _;
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(uri, flags).ok()?;
    read(&connection).ok().flatten()
}

/// The sessions that the lock file names: none if an older program wrote it.
fn named(lock: &mut File) -> Vec<String> {
    let mut text = String::new();
    let read = lock
        .rewind()
        .and_then(|()| lock.take(MAX_LOCK_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => text.split_whitespace().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

fn name(lock: &mut File, text: &str) -> std::io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(text.as_bytes())?;
    lock.sync_all()
}

//! A thread that moves the write-ahead log into the database, so that no commit waits for it.

use std::{path::Path, sync::mpsc, thread, time::Duration};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{schema, stopped::log_of};

/// How often the log is looked at.
const EVERY: Duration = Duration::from_millis(500);
/// Beyond this many bytes the log is moved while others write.
const WORTH_MOVING: u64 = 4 << 20;
/// Beyond this many bytes writers wait until it is moved and cut: disk is finite.
const TOO_LONG: u64 = 256 << 20;

/// The thread, and its life: it ends when the sender is dropped.
pub(super) struct Checkpointer(Mutex<Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>>);

impl Checkpointer {
    pub(super) fn start(path: &Path) -> rusqlite::Result<Self> {
        let connection = schema::connect(path)?;
        let log = log_of(path);
        let (life, ended) = mpsc::channel();
        let spawned = thread::Builder::new()
            .name("onlyonce-sqlite-checkpoint".into())
            .spawn(move || {
                while ended.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                    move_log(&connection, &log);
                }
            });
        let thread = match spawned {
            Ok(thread) => Some((life, thread)),
            Err(error) => {
                tracing::warn!(%error, "no checkpoint thread: the log grows until the store is closed");
                None
            }
        };
        Ok(Self(Mutex::new(thread)))
    }

    /// Ends the thread, and waits for it.
    pub(super) fn end(&self) {
        if let Some((life, thread)) = self.0.lock().take() {
            drop(life);
            // A thread that panicked has closed its connection too.
            let _ = thread.join();
        }
    }
}

fn move_log(connection: &Connection, log: &Path) {
    let length = std::fs::metadata(log)
        .map(|metadata| metadata.len())
        .unwrap_or(0);
    let mode = match length {
        length if length > TOO_LONG => "TRUNCATE",
        length if length > WORTH_MOVING => "PASSIVE",
        _ => return,
    };
    let moved = connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()));
    if let Err(error) = moved {
        // Nothing is lost: the log is still there, and the next round tries again.
        tracing::warn!(%error, "the write-ahead log could not be moved");
    }
}

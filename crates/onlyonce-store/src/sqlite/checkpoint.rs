//! A thread that moves the write-ahead log into the database, so that no commit waits for it, and so that the
//! log is overwritten from its beginning instead of growing: a growing file makes every flush more expensive.
//!
//! The log restarts once all of it was moved, but while others write, a rest always remains. So the thread
//! moves what it can, and the writer moves the rest between two groups.

use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{
    batch::{Operation, Writer},
    schema,
    stopped::log_of,
};

/// How often the log is checked.
const EVERY: Duration = Duration::from_millis(100);
/// Above this many pages the log is moved while others write.
const WORTH_MOVING: i64 = 1_024;
/// Above this many pages the log should restart.
const WORTH_BEGINNING_ANEW: i64 = 4_096;
/// Above this many bytes writers wait until the log is moved and truncated: disk space is finite.
const TOO_LONG: u64 = 256 << 20;

/// The thread, which ends when the sender is dropped.
pub(super) struct Checkpointer(Mutex<Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>>);

impl Checkpointer {
    pub(super) fn start(path: &Path, writer: Arc<Writer>) -> rusqlite::Result<Self> {
        let connection = schema::connect(path)?;
        let log = log_of(path);
        let (life, ended) = mpsc::channel();
        let spawned = thread::Builder::new()
            .name("onlyonce-sqlite-checkpoint".into())
            .spawn(move || {
                while ended.recv_timeout(EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Err(error) = move_log(&connection, &log, &writer) {
                        // Nothing is lost: the log is still there, and the next round tries again.
                        tracing::warn!(%error, "the write-ahead log could not be moved");
                    }
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
            // A thread that panicked has also closed its connection.
            let _ = thread.join();
        }
    }
}

/// The pages in a log, and how many of them have been moved.
struct Log {
    pages: i64,
    moved: i64,
}

impl Log {
    fn rest(&self) -> i64 {
        self.pages - self.moved
    }
}

fn move_log(connection: &Connection, log: &Path, writer: &Writer) -> rusqlite::Result<()> {
    if std::fs::metadata(log).is_ok_and(|found| found.len() > TOO_LONG) {
        return checkpoint(connection, "TRUNCATE").map(|_| ());
    }
    let found = checkpoint(connection, "NOOP")?;
    // A log that has been moved begins anew with the next write, by itself.
    let begins_anew = found.pages > WORTH_BEGINNING_ANEW && found.rest() > 0;
    if found.rest() > WORTH_MOVING || begins_anew {
        checkpoint(connection, "PASSIVE")?;
    }
    if begins_anew {
        // Fewer pages have arrived meanwhile, and what arrives from now on is little enough for the writer.
        checkpoint(connection, "PASSIVE")?;
        // A store that is closing moves its log itself.
        let _ = writer.submit_waiting(Operation::MoveLog);
    }
    Ok(())
}

/// Moves the rest of the log, on the connection of the only writer.
pub(super) fn move_rest(connection: &Connection) {
    if let Err(error) = checkpoint(connection, "PASSIVE") {
        tracing::debug!(%error, "the rest of the write-ahead log is moved later");
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<Log> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        Ok(Log {
            pages: row.get(1)?,
            moved: row.get(2)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store as _, sqlite::SqliteStore};

    /// Goal: the log restarts although something was written while it was moved.
    ///
    /// Evidence: the pages in the log as SQLite reports them, with and without the writer's part.
    #[test]
    fn the_writer_moves_the_rest() {
        for (moves_the_rest, begins_anew) in [(false, false), (true, true)] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s.db");
            drop(SqliteStore::open(&path).unwrap());
            let writing = schema::connect(&path).unwrap();
            let moving = schema::connect(&path).unwrap();
            let write = |bytes: i64| {
                let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('x', zeroblob(?1))";
                writing.execute(sql, [bytes]).unwrap();
            };
            write(1 << 20);
            // Writes after a reader's snapshot cannot be moved while it reads, just as writes after the start
            // of a checkpoint.
            let reading = schema::connect(&path).unwrap();
            reading
                .execute_batch("BEGIN; SELECT name FROM meta")
                .unwrap();
            write(1);
            let moved = checkpoint(&moving, "PASSIVE").unwrap();
            assert!(moved.moved > 0 && moved.rest() > 0);
            reading.execute_batch("COMMIT").unwrap();
            if moves_the_rest {
                move_rest(&writing);
            }
            write(2);
            let pages = checkpoint(&moving, "NOOP").unwrap().pages;
            assert_eq!(pages < 50, begins_anew, "{pages} pages");
        }
    }

    /// Goal: the log does not grow with the amount written while others write continuously.
    ///
    /// Evidence: the length of the log's file.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_log_does_not_grow_with_what_is_written() {
        const BLOCKS: u64 = 1_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let store = Arc::new(SqliteStore::open(&path).unwrap());
        let writes = store.clone();
        let writing = tokio::spawn(async move {
            for number in 0..BLOCKS {
                let block = vec![7; 100 << 10];
                let kept = writes.keep_block(&format!("b{number}"), &block).await;
                kept.unwrap();
            }
        });
        let connection = schema::connect(&path).unwrap();
        let mut longest = 0;
        while !writing.is_finished() {
            tokio::task::block_in_place(|| {
                move_log(&connection, &log_of(&path), &store.writer).unwrap();
            });
            longest = longest.max(std::fs::metadata(log_of(&path)).unwrap().len());
        }
        writing.await.unwrap();
        assert!(longest < 60 << 20, "{longest} bytes of more than 100 MB");
    }
}

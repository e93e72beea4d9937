//! One connection to MySQL or MariaDB, with its statements.
//!
//! A batch is a few statements sent as one text. Who has a new key is decided by reading `attempt_id` back
//! inside the transaction that inserted it: the driver asks the server to count rows that were found, not
//! changed, so a count says nothing about an insert.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures_util::TryStreamExt as _;
use onlyonce_core::{
    AttemptId, Record, RecordId, StoredResponse, Timestamp,
    record::{Draft, JournalEntry, Revision},
};
use sqlx::{AssertSqlSafe, Either, Executor as _, MySqlConnection, mysql::MySqlRow};
use tokio::sync::watch;

use super::{
    connect::Target,
    failure::{judge, judge_commit, was_deadlock},
    text::{self, NOW, Script},
    watch::Watch,
    write,
};
use crate::sql::{
    batch,
    failure::{Failure, is_silence},
    lane::{Answer, Found, How, Server},
    line::{Access, Held, Line},
    queue::Swap,
    row::{self, COLUMNS, Columns as _, RowError},
};

/// How often in all a batch is sent if the server rolls it back to end a deadlock.
pub(super) const DEADLOCK_TRIES: usize = 3;
/// Up to this many bytes of answers, completions go as one statement. The server first builds a table of
/// their rows, which costs more than it saves once they are large.
const MAX_JOINED_BYTES: u64 = 256 << 10;
/// The size of a message beside the text, in bytes.
const MESSAGE_HEAD: usize = 64;

/// The rows of each statement of a script.
pub(super) type Results = Vec<Vec<MySqlRow>>;

/// State shared by the connections of one store.
pub(super) struct Shared {
    pub(super) line: Line<Target>,
    pub(super) watch: Watch,
    /// Counts the messages that this process enqueued.
    pub(super) messages: watch::Sender<u64>,
}

/// Sends a script. On an error, also returns how many of its statements were executed.
pub(super) async fn run(
    connection: &mut MySqlConnection,
    script: &Script,
) -> Result<Results, (usize, sqlx::Error)> {
    let mut results: Results = Vec::with_capacity(script.statements);
    let mut rows = Vec::new();
    // The text comes from `text`: numbers, hexadecimal and base 64.
    let mut stream = connection.fetch_many(AssertSqlSafe(&*script.sql));
    loop {
        match stream.try_next().await {
            Ok(Some(Either::Right(row))) => rows.push(row),
            Ok(Some(Either::Left(_))) => results.push(std::mem::take(&mut rows)),
            Ok(None) => return Ok(results),
            Err(error) => return Err((results.len(), error)),
        }
    }
}

/// A writing batch.
#[derive(Clone, Copy)]
enum Work<'w> {
    Insert(&'w [&'w Draft]),
    Complete(&'w [&'w Swap]),
    Change(&'w [&'w Swap]),
    Delete(&'w [(RecordId, Revision)]),
}

/// The server's time, and the written ids, in order.
type Written = (Timestamp, Vec<RecordId>);

/// A usable connection for one batch: its statements must not be split between two connections.
pub(super) struct Session<'c> {
    pub(super) connection: &'c mut MySqlConnection,
    /// The longest message that the server accepts, in bytes; 0 if it did not say.
    pub(super) longest: usize,
}

impl Session<'_> {
    async fn carry_out(&mut self, work: Work<'_>) -> Result<Written, Failure> {
        match work {
            Work::Insert(drafts) => self.insert(drafts).await,
            Work::Complete(swaps) => self.complete(swaps).await,
            Work::Change(swaps) => self.change(swaps).await,
            Work::Delete(rows) => self.delete(rows).await,
        }
    }

    /// Sends a script. If it fails and the connection survives, no transaction is left open.
    pub(super) async fn send(&mut self, script: &Script) -> Result<Results, Failure> {
        let failure = if self.longest > 0 && script.sql.len() + MESSAGE_HEAD > self.longest {
            let long = "a message would be longer than the server's max_allowed_packet";
            Failure::Content(sqlx::Error::Protocol(long.into()))
        } else {
            match run(self.connection, script).await {
                Ok(results) => return Ok(results),
                Err((done, error)) if script.commit.is_some_and(|commit| done >= commit) => {
                    judge_commit(error)
                }
                Err((_, error)) => judge(error),
            }
        };
        if failure.ends_the_connection() {
            return Err(failure);
        }
        self.roll_back().await?;
        Err(failure)
    }

    /// Rolls back a transaction in which nothing was written. If that fails, the transaction ends with the
    /// connection.
    pub(super) async fn roll_back(&mut self) -> Result<(), Failure> {
        // This also resets an isolation level that was meant for one statement and not used by it.
        let sql = "ROLLBACK; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";
        let outcome = self.connection.execute(sql).await;
        outcome.map(|_| ()).map_err(Failure::Refused)
    }

    /// Locks the unlocked rows among `ids` in a new transaction; also returns the server's time.
    async fn lock(&mut self, ids: &str) -> Result<(Timestamp, Vec<Locked>), Failure> {
        let mut script = Script::timed();
        script.add("START TRANSACTION");
        script.add(lock_rows(ids, "SKIP LOCKED"));
        script.add("SELECT @oo_now");
        let results = self.send(&script).await?;
        understood((|| {
            let locked = results.get(2).into_iter().flatten().map(Locked::read);
            let locked = locked.collect::<Result<Vec<_>, RowError>>()?;
            Ok((time(&results, 3)?, locked))
        })())
    }

    /// Completions, in one round trip.
    async fn complete(&mut self, swaps: &[&Swap]) -> Result<Written, Failure> {
        let ids = text::ids(swaps.iter().map(|swap| id_of(swap)));
        let mut script = Script::timed();
        script.add("START TRANSACTION");
        script.add(lock_rows(&ids, "NOWAIT"));
        if answer_bytes(swaps) <= MAX_JOINED_BYTES {
            script.write(|sql| write::complete(sql, swaps));
        } else {
            for swap in swaps {
                script.write(|sql| write::update(sql, swap.expected, &swap.change));
            }
        }
        script.commit();
        script.add("SELECT @oo_now");
        let results = self.send(&script).await?;
        understood((|| {
            let locked = results.get(2).into_iter().flatten().map(Locked::read);
            let locked = locked.collect::<Result<Vec<_>, RowError>>()?;
            let written = matching(swaps, &locked);
            let now = time(&results, results.len().saturating_sub(1))?;
            Ok((now, written.into_iter().map(id_of).collect()))
        })())
    }

    /// Changes of any kind, with their journal: first locks the rows, then writes those with the expected
    /// revision.
    async fn change(&mut self, swaps: &[&Swap]) -> Result<Written, Failure> {
        let ids = text::ids(swaps.iter().map(|swap| id_of(swap)));
        let (now, locked) = self.lock(&ids).await?;
        let matching = matching(swaps, &locked);
        if matching.is_empty() {
            self.roll_back().await?;
            return Ok((now, Vec::new()));
        }
        let mut script = Script::default();
        for swap in &matching {
            script.write(|sql| write::update(sql, swap.expected, &swap.change));
        }
        let entries = || matching.iter().flat_map(|swap| &swap.change.journal);
        if entries().next().is_some() {
            script.write(|sql| write::journal(sql, entries()));
        }
        script.commit();
        self.send(&script).await?;
        Ok((now, matching.into_iter().map(id_of).collect()))
    }

    async fn delete(&mut self, rows: &[(RecordId, Revision)]) -> Result<Written, Failure> {
        let (now, locked) = self
            .lock(&text::ids(rows.iter().map(|(id, _)| *id)))
            .await?;
        let expected: HashSet<(RecordId, Revision)> = rows.iter().copied().collect();
        let doomed = |row: &Locked| expected.contains(&(row.id, row.revision));
        let doomed: Vec<Locked> = locked.into_iter().filter(doomed).collect();
        if doomed.is_empty() {
            self.roll_back().await?;
            return Ok((now, Vec::new()));
        }
        let numbers = text::numbers(doomed.iter().map(|row| row.n));
        let ids = text::ids(doomed.iter().map(|row| row.id));
        let mut script = Script::default();
        script.add(format_args!(
            "DELETE FROM onlyonce_keys WHERE n IN {numbers}"
        ));
        // Operators' entries stay in the journal; the rest is deleted with its key.
        script.add(format_args!(
            "DELETE FROM onlyonce_journal WHERE id IN {ids} AND actor <> 'operator'"
        ));
        script.add(format_args!(
            "DELETE FROM onlyonce_phases WHERE id IN {ids}"
        ));
        script.commit();
        self.send(&script).await?;
        Ok((now, doomed.into_iter().map(|row| row.id).collect()))
    }

    /// Inserts keys that were absent a moment ago, and returns those that are ours now.
    async fn insert(&mut self, drafts: &[&Draft]) -> Result<Written, Failure> {
        let ids = text::ids(drafts.iter().map(|draft| draft.record.id));
        let mut script = Script::timed();
        script.add("START TRANSACTION");
        script.write(|sql| {
            sql.push_str("INSERT INTO onlyonce_keys (");
            sql.push_str(write::INSERT_COLUMNS);
            sql.push_str(") VALUES ");
            for (index, draft) in drafts.iter().enumerate() {
                sql.push_str(if index == 0 { "" } else { ", " });
                write::insert_row(sql, draft);
            }
            // Not IGNORE, which would also ignore values that do not fit.
            sql.push_str(" ON DUPLICATE KEY UPDATE id = id");
        });
        script.add(format_args!(
            "SELECT id, attempt_id FROM onlyonce_keys FORCE INDEX (keys_by_id) WHERE id IN {ids}"
        ));
        script.commit();
        script.add("SELECT @oo_now");
        let results = self.send(&script).await?;
        understood((|| {
            let mut attempts = HashMap::with_capacity(drafts.len());
            for row in results.get(3).into_iter().flatten() {
                let attempt = row.bytes(1)?.and_then(|bytes| bytes.try_into().ok());
                if let (Some(id), Some(attempt)) = (batch::id(row)?, attempt) {
                    attempts.insert(id, AttemptId(u128::from_be_bytes(attempt)));
                }
            }
            let ours =
                |draft: &&&Draft| attempts.get(&draft.record.id) == Some(&draft.record.attempt_id);
            let ours = drafts.iter().filter(ours).map(|draft| draft.record.id);
            Ok((time(&results, 5)?, ours.collect()))
        })())
    }
}

/// A lane's connection.
pub(super) struct MySqlServer {
    shared: Arc<Shared>,
    slot: Option<Held<Target>>,
}

impl MySqlServer {
    pub(super) fn new(shared: Arc<Shared>, slot: Option<Held<Target>>) -> Self {
        Self { shared, slot }
    }

    /// A usable connection, and the line that limits its time.
    async fn session(&mut self) -> Result<(&Line<Target>, Session<'_>), Failure> {
        let line = &self.shared.line;
        let connection = line.ready(&mut self.slot).await?;
        let longest = line.dial.longest();
        let session = Session {
            connection,
            longest,
        };
        Ok((line, session))
    }

    /// Does `work`. If the server rolls it back to end a deadlock, nothing was written, and it is done again.
    async fn carry_out(&mut self, work: Work<'_>) -> Result<Written, Failure> {
        let mut tries = 0;
        loop {
            let (line, mut session) = self.session().await?;
            let outcome = line.in_time(Access::Write, session.carry_out(work)).await;
            self.shared.line.judge(&mut self.slot, &outcome);
            tries += 1;
            match outcome {
                Err(Failure::Content(error)) if was_deadlock(&error) && tries < DEADLOCK_TRIES => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs a script that writes nothing. If the connection turns out to be gone, as after a restart of the
    /// server, the script is sent once more on a new one; but not if the server does not answer.
    async fn read(&mut self, script: &Script) -> Result<Results, Failure> {
        let outcome = match self.ask(Access::Read, script).await {
            Err(Failure::Lost(error)) if !is_silence(&error) => {
                self.ask(Access::Read, script).await
            }
            outcome => outcome,
        };
        // Nothing was written, whatever became of the query.
        outcome.map_err(|failure| match failure {
            Failure::Lost(error) => Failure::Refused(error),
            other => other,
        })
    }

    /// Runs a script and returns its rows.
    async fn ask(&mut self, access: Access, script: &Script) -> Result<Results, Failure> {
        let (line, mut session) = self.session().await?;
        let outcome = line.in_time(access, session.send(script)).await;
        self.shared.line.judge(&mut self.slot, &outcome);
        outcome
    }
}

/// A row that we have locked until the transaction ends.
struct Locked {
    id: RecordId,
    revision: Revision,
    n: i64,
}

impl Locked {
    fn read(row: &MySqlRow) -> Result<Self, RowError> {
        let id =
            batch::id(row)?.ok_or_else(|| RowError::Unreadable("a row without an id".into()))?;
        Ok(Self {
            id,
            revision: Revision(row::number(row, 1)?),
            n: row::number(row, 2)?,
        })
    }
}

fn lock_rows(ids: &str, how: &str) -> String {
    // By the index, so that no other row is locked, and in its order.
    format!(
        "SELECT id, revision, n FROM onlyonce_keys FORCE INDEX (keys_by_id) WHERE id IN {ids} \
         FOR UPDATE {how}"
    )
}

/// The swaps whose locked row has the expected revision.
fn matching<'s>(swaps: &[&'s Swap], locked: &[Locked]) -> Vec<&'s Swap> {
    let revisions: HashMap<RecordId, Revision> =
        locked.iter().map(|row| (row.id, row.revision)).collect();
    let expected = |swap: &&Swap| revisions.get(&id_of(swap)) == Some(&swap.expected);
    swaps.iter().copied().filter(expected).collect()
}

fn answer_bytes(swaps: &[&Swap]) -> u64 {
    let answers = swaps
        .iter()
        .filter_map(|swap| swap.change.draft.record.response.as_deref());
    answers.map(StoredResponse::stored_bytes).sum()
}

fn id_of(swap: &Swap) -> RecordId {
    swap.change.draft.record.id
}

/// An unreadable answer does not tell what was written.
pub(super) fn understood<T>(read: Result<T, RowError>) -> Result<T, Failure> {
    read.map_err(|RowError::Unreadable(error)| Failure::Lost(sqlx::Error::Decode(error)))
}

pub(super) fn time(results: &Results, statement: usize) -> Result<Timestamp, RowError> {
    let row = results.get(statement).and_then(|rows| rows.first());
    let row = row.ok_or_else(|| RowError::Unreadable("the server told no time".into()))?;
    row::now(row, 0)
}

/// Selects whole records by id.
pub(super) fn select_whole(ids: &str) -> String {
    format!(
        "SELECT {COLUMNS}, k.response_body FROM onlyonce_keys k FORCE INDEX (keys_by_id) \
         WHERE k.id IN {ids}"
    )
}

fn read_whole(rows: &[MySqlRow]) -> Result<HashMap<RecordId, Found>, RowError> {
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        if let Some(id) = batch::id(row)? {
            found.insert(id, Found::in_row(row));
        }
    }
    Ok(found)
}

fn ids_in(rows: &[MySqlRow]) -> Result<HashSet<RecordId>, RowError> {
    let ids = rows.iter().map(batch::id);
    ids.filter_map(Result::transpose).collect()
}

impl Server for MySqlServer {
    /// Reads first: an existing key is answered without a lock, even while its row is locked, and a replay
    /// writes nothing. A row that is visible only to an uncommitted read is being inserted by another
    /// transaction, and is waited for apart from its batch.
    async fn insert(&mut self, drafts: &[&Draft]) -> Result<Answer, Failure> {
        let all = text::ids(drafts.iter().map(|draft| draft.record.id));
        let mut script = Script::default();
        script.add(format_args!("SELECT {NOW}"));
        script.add("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED");
        script.add(format_args!(
            "SELECT id FROM onlyonce_keys FORCE INDEX (keys_by_id) WHERE id IN {all}"
        ));
        script.add(select_whole(&all));
        let results = self.read(&script).await?;
        let (now, uncommitted, mut found) = understood((|| {
            let rows = |statement: usize| results.get(statement).map_or(&[][..], Vec::as_slice);
            Ok((time(&results, 0)?, ids_in(rows(2))?, read_whole(rows(3))?))
        })())?;
        let mut absent = Vec::new();
        for draft in drafts {
            let id = draft.record.id;
            if found.contains_key(&id) {
                continue;
            }
            if uncommitted.contains(&id) {
                found.insert(id, Found::Busy);
            } else {
                absent.push(*draft);
            }
        }
        if absent.is_empty() {
            return Ok((now, found));
        }
        let (now, new) = self.carry_out(Work::Insert(&absent)).await?;
        found.extend(new.into_iter().map(|id| (id, Found::New)));
        Ok((now, found))
    }

    async fn swap(
        &mut self,
        swaps: &[&Swap],
        how: How,
    ) -> Result<(Timestamp, Vec<RecordId>), Failure> {
        let work = match how {
            How::Complete => Work::Complete(swaps),
            How::Any | How::Skipping => Work::Change(swaps),
        };
        self.carry_out(work).await
    }

    async fn lookup(&mut self, ids: &[RecordId]) -> Result<Answer, Failure> {
        let mut script = Script::default();
        script.add(format_args!("SELECT {NOW}"));
        script.add(select_whole(&text::ids(ids.iter().copied())));
        let results = self.read(&script).await?;
        understood((|| {
            let rows = results.get(1).map_or(&[][..], Vec::as_slice);
            Ok((time(&results, 0)?, read_whole(rows)?))
        })())
    }

    async fn delete(&mut self, rows: &[(RecordId, Revision)]) -> Result<Vec<RecordId>, Failure> {
        let (_, deleted) = self.carry_out(Work::Delete(rows)).await?;
        Ok(deleted)
    }

    async fn append(&mut self, journal: &[JournalEntry]) -> Result<(), Failure> {
        if journal.is_empty() {
            return Ok(());
        }
        let mut script = Script::timed();
        script.add("START TRANSACTION");
        script.write(|sql| write::journal(sql, journal.iter()));
        script.commit();
        let outcome = self.ask(Access::Write, &script).await;
        outcome.map(|_| ())
    }

    async fn confirm(&mut self) -> Result<(), Failure> {
        self.shared.line.confirm(&mut self.slot).await
    }

    async fn look(&mut self) {
        self.shared.line.look(&mut self.slot).await;
    }

    fn settled(&self, id: RecordId) {
        self.shared.watch.settled(id);
    }

    fn met(&self, record: &Record) {
        self.shared.watch.met(record);
    }
}

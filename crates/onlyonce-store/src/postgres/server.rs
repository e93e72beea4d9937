//! One connection to PostgreSQL, with its statements.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use onlyonce_core::{
    Record, RecordId, Timestamp,
    record::{Draft, JournalEntry, Revision},
};
use sqlx::{Row as _, postgres::PgRow};

use super::{
    connect::Target,
    notice::unwarned,
    statement::{self, Statement},
    uuid::Uuid,
};
use crate::{
    failpoint,
    sql::{
        batch,
        failure::Failure,
        lane::{Answer, Found, How, Server},
        line::{Access, Held, Line},
        queue::Swap,
        row,
    },
    wake::Wake,
};

/// The columns in rows of an insert or a lookup that tell whether the key is new, and the time.
const IS_NEW: usize = 34;
const NOW: usize = 35;

/// State shared by the connections of one store.
pub(super) struct Shared {
    pub(super) line: Line<Target>,
    pub(super) wake: Wake,
    /// Rows written since the table of live keys was vacuumed.
    pub(super) settled: AtomicU64,
}

impl Shared {
    pub(super) fn target(&self) -> &Target {
        &self.line.dial
    }
}

/// A lane's connection.
pub(super) struct PgServer {
    shared: Arc<Shared>,
    slot: Option<Held<Target>>,
}

impl PgServer {
    pub(super) fn new(shared: Arc<Shared>, slot: Option<Held<Target>>) -> Self {
        Self { shared, slot }
    }

    /// Runs `statement` and returns its rows.
    async fn ask(
        &mut self,
        access: Access,
        statement: Statement<'_>,
    ) -> Result<Vec<PgRow>, Failure> {
        let shared = &self.shared;
        let connection = shared.line.ready(&mut self.slot).await?;
        let statement = statement.persistent(shared.target().pooler() == super::Pooler::None);
        let rows = shared.target().begin(connection, async |connection| {
            statement.fetch_all(connection).await
        });
        let outcome = shared.line.in_time(access, unwarned(rows)).await;
        shared.line.judge(&mut self.slot, &outcome);
        outcome
    }
}

impl Server for PgServer {
    async fn insert(&mut self, drafts: &[&Draft]) -> Result<Answer, Failure> {
        failpoint!("postgres.insert.before");
        let outcome = self.ask(Access::Write, statement::insert(drafts)).await;
        failpoint!("postgres.insert.after");
        read(&outcome?)
    }

    async fn swap(
        &mut self,
        swaps: &[&Swap],
        how: How,
    ) -> Result<(Timestamp, Vec<RecordId>), Failure> {
        failpoint!("postgres.swap.before");
        let outcome = self.ask(Access::Write, statement::swap(swaps, how)).await;
        failpoint!("postgres.swap.after");
        let written = written_ids(&outcome?).map_err(Failure::Lost)?;
        let count = written.1.len() as u64;
        self.shared.settled.fetch_add(count, Ordering::Relaxed);
        Ok(written)
    }

    async fn lookup(&mut self, ids: &[RecordId]) -> Result<Answer, Failure> {
        let rows = self.ask(Access::Read, statement::lookup(ids)).await?;
        read(&rows)
    }

    async fn delete(&mut self, rows: &[(RecordId, Revision)]) -> Result<Vec<RecordId>, Failure> {
        let answer = self.ask(Access::Write, statement::delete(rows)).await?;
        deleted_ids(&answer).map_err(Failure::Lost)
    }

    async fn append(&mut self, journal: &[JournalEntry]) -> Result<(), Failure> {
        failpoint!("postgres.append.before");
        let outcome = self.ask(Access::Write, statement::append(journal)).await;
        failpoint!("postgres.append.after");
        outcome.map(|_| ())
    }

    async fn confirm(&mut self) -> Result<(), Failure> {
        self.shared.line.confirm(&mut self.slot).await
    }

    async fn look(&mut self) {
        self.shared.line.look(&mut self.slot).await;
    }

    fn settled(&self, id: RecordId) {
        self.shared.wake.settled(id);
    }

    fn met(&self, record: &Record) {
        self.shared.wake.ask_for(record);
    }
}

/// Reads the rows of a statement that returns whole records. If they cannot be read, it is not known what was
/// written.
pub(super) fn read(rows: &[PgRow]) -> Result<Answer, Failure> {
    let read = || -> Result<Option<Answer>, row::RowError> {
        let mut now = None;
        let mut found = HashMap::with_capacity(rows.len());
        for row in rows {
            now = Some(row::now(row, NOW)?);
            let Some(id) = batch::id(row)? else { continue };
            let what = match row.try_get(IS_NEW)? {
                true => Found::New,
                false => Found::in_row(row),
            };
            found.insert(id, what);
        }
        Ok(now.map(|now| (now, found)))
    };
    match read() {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(Failure::Lost(sqlx::Error::RowNotFound)),
        Err(row::RowError::Unreadable(error)) => Err(Failure::Lost(sqlx::Error::Decode(error))),
    }
}

/// The ids that a swap wrote, in order, and the server's time.
pub(super) fn written_ids(rows: &[PgRow]) -> Result<(Timestamp, Vec<RecordId>), sqlx::Error> {
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let now = Timestamp(first.try_get(1)?);
    let mut ids = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(Uuid(id)) = row.try_get(0)? {
            ids.push(RecordId(id));
        }
    }
    ids.sort_unstable();
    Ok((now, ids))
}

fn deleted_ids(rows: &[PgRow]) -> Result<Vec<RecordId>, sqlx::Error> {
    rows.iter()
        .map(|row| row.try_get(0).map(|Uuid(id)| RecordId(id)))
        .collect()
}

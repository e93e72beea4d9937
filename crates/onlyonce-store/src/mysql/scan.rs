//! Scans by background loops and people on MySQL or MariaDB, on connections of their own.

use std::{collections::HashSet, sync::Arc};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use onlyonce_core::{Record, RecordId, Timestamp};
use sqlx::mysql::MySqlRow;
use tokio::sync::broadcast;

use super::{
    connect::Target,
    dialect::MySqlDialect,
    failure::{judge, was_deadlock, was_missing},
    server::{self, DEADLOCK_TRIES, Results, Session, Shared},
    text::{self, NOW, Script},
};
use crate::{
    Counts, Epoch, Level, Reply, Standing, StoreError,
    identity::{Numbered, STANDING},
    sql::{
        batch,
        dialect::Statement,
        failure::Failure,
        line::{Access, Dial as _, Pool},
        row::{self, COLUMNS, Columns as _, RowError},
        scan::{Reader, no_row},
        store::{self, Scans},
        stretches::Look,
    },
};

/// The number of connections for scans.
const SCANNERS: usize = 3;
/// Up to this many rows, records are counted exactly; beyond it, from a sample.
const COUNTED_ROWS: i64 = 200_000;
/// A sample: the number of stretches; `SAMPLED_ROWS` is the length of each.
const SAMPLED_STRETCHES: i64 = 32;
const SAMPLED_ROWS: i64 = 500;

/// A small pool of connections for scans.
pub struct Scanners {
    pub(super) shared: Arc<Shared>,
    pool: Pool<Target>,
}

impl Scanners {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self::apart(shared, SCANNERS)
    }

    /// A pool with `room` connections, for one user.
    pub(super) fn apart(shared: Arc<Shared>, room: usize) -> Self {
        let pool = Pool::new(room);
        Self { shared, pool }
    }

    async fn run(&self, access: Access, script: &Script) -> Result<Results, Failure> {
        // Each statement is a transaction of its own, so a failure leaves none open.
        let results = self
            .pool
            .run(&self.shared.line, access, async |connection| {
                let results = server::run(connection, script).await;
                results.map_err(|(_, error)| judge(error))
            });
        results.await
    }

    /// Does `work`, which opens a transaction and ends it. If the server rolls it back to end a deadlock,
    /// nothing was written, and it is done again.
    pub(super) async fn transact<A, T, W>(&self, asked: &A, work: W) -> Result<T, Failure>
    where
        A: Sync + ?Sized,
        W: for<'s> Fn(&'s mut Session<'_>, &'s A) -> BoxFuture<'s, Result<T, Failure>>,
    {
        let line = &self.shared.line;
        let mut tries = 0;
        loop {
            // If the future is dropped, the connection is closed and the server rolls back.
            let outcome = self.pool.run(line, Access::Write, async |connection| {
                let longest = line.dial.longest();
                let mut session = Session {
                    connection,
                    longest,
                };
                work(&mut session, asked).await
            });
            tries += 1;
            match outcome.await {
                Err(Failure::Content(error)) if was_deadlock(&error) && tries < DEADLOCK_TRIES => {}
                outcome => return outcome,
            }
        }
    }

    /// Runs one statement and returns its rows.
    async fn fetch(&self, statement: String) -> Result<Vec<MySqlRow>, StoreError> {
        let mut script = Script::default();
        script.add(statement);
        let results = self
            .run(Access::Read, &script)
            .await
            .map_err(|fault| fault.of_a_read())?;
        Ok(results.into_iter().next().unwrap_or_default())
    }

    /// Runs one statement, which may use `@oo_now`; returns its rows and that time.
    pub(super) async fn read_timed(
        &self,
        statement: String,
    ) -> Result<Reply<Vec<MySqlRow>>, StoreError> {
        let mut script = Script::timed();
        script.add(statement);
        script.add("SELECT @oo_now");
        let mut results = self
            .run(Access::Read, &script)
            .await
            .map_err(|fault| fault.of_a_read())?;
        let now = results.pop().and_then(|rows| rows.into_iter().next());
        let now: Timestamp = row::now(&now.ok_or_else(no_row)?, 0)?;
        let value = results.pop().unwrap_or_default();
        Ok(Reply { now, value })
    }

    /// Runs statements of which the last one writes.
    pub(super) async fn execute(&self, script: &Script) -> Result<(), StoreError> {
        let outcome = self.run(Access::Write, script).await;
        outcome.map(|_| ()).map_err(|fault| fault.of_a_write())
    }

    /// Those of `ids` for which no attempt is running.
    pub(super) async fn no_longer_running(
        &self,
        ids: &[RecordId],
    ) -> Result<Vec<RecordId>, StoreError> {
        let rows = self
            .fetch(format!(
                "SELECT id FROM onlyonce_keys FORCE INDEX (keys_by_id) \
                 WHERE id IN {} AND lease_until IS NOT NULL",
                text::ids(ids.iter().copied())
            ))
            .await?;
        let running = rows.iter().map(batch::id).filter_map(Result::transpose);
        let running = running.collect::<Result<HashSet<_>, RowError>>()?;
        let settled = ids.iter().filter(|id| !running.contains(id));
        Ok(settled.copied().collect())
    }

    /// Makes sure that the natural key with this hash, an expression, has a row. A read without a lock comes
    /// first, since the row may be locked.
    pub(super) async fn natural_key(&self, id: &str) -> Result<(), StoreError> {
        let there = format!("SELECT 1 FROM onlyonce_natural_keys WHERE id = {id}");
        if !self.fetch(there).await?.is_empty() {
            return Ok(());
        }
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_natural_keys (id, made_at) VALUES ({id}, {NOW}) \
             ON DUPLICATE KEY UPDATE id = id"
        ));
        self.execute(&script).await
    }
}

impl Reader for Scanners {
    type Dialect = MySqlDialect;
    type Row<'r> = MySqlRow;

    async fn read<T, F>(&self, statement: Statement, read: F) -> Result<Vec<T>, StoreError>
    where
        T: Send + 'static,
        F: for<'r> Fn(&MySqlRow) -> Result<T, RowError> + Send + 'static,
    {
        let rows = self.fetch(statement.sql).await?;
        Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
    }
}

#[async_trait]
impl Scans for Scanners {
    const NOW_BYTES: &'static str = NOW;

    fn level(&self) -> Level {
        self.shared.line.dial.hosts().level()
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.shared.watch.subscribe()
    }

    async fn write(&self, statement: Statement) -> Result<(), StoreError> {
        self.execute(&statement.into()).await
    }

    async fn tidy(&self) {
        if let Err(error) = self.forget().await {
            // Expired entries stay until a later round; the walk goes on.
            tracing::warn!(%error, "notes of old messages could not be deleted; later again");
        }
    }

    async fn live(
        &self,
        column: &'static str,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let statement = format!(
            "SELECT {COLUMNS} FROM onlyonce_keys k FORCE INDEX (keys_that_live) \
             WHERE k.is_live = 1 AND k.{column} <= @oo_now ORDER BY k.n LIMIT {limit}"
        );
        let reply = self.read_timed(statement).await?;
        let value = batch::records(&reply.value);
        Ok(Reply {
            now: reply.now,
            value,
        })
    }

    async fn walk(&self, from: i64, limit: usize) -> Result<Look, StoreError> {
        let mut script = Script::timed();
        // The end of the stretch is a constant for the next statement, which then reads no further. A
        // tombstone has a `delete_at`; its answer expired before.
        script.add(format_args!(
            "SELECT COUNT(*), MAX(s.n), MIN(IF(s.due > @oo_now, s.due, NULL)) \
             INTO @oo_seen, @oo_last, @oo_next FROM ( \
               SELECT n, COALESCE(delete_at, expires_at) AS due FROM onlyonce_keys \
               WHERE n > {from} ORDER BY n LIMIT {limit} \
             ) s"
        ));
        // Only due rows are returned.
        script.add(format_args!(
            "SELECT {COLUMNS} FROM onlyonce_keys k FORCE INDEX (PRIMARY) \
             WHERE k.n > {from} AND k.n <= @oo_last \
             AND COALESCE(k.delete_at, k.expires_at) <= @oo_now"
        ));
        script.add("SELECT @oo_now, @oo_seen, @oo_last, @oo_next");
        let mut results = self
            .run(Access::Read, &script)
            .await
            .map_err(|fault| fault.of_a_read())?;
        let told = results.pop().and_then(|rows| rows.into_iter().next());
        let told = told.ok_or_else(no_row)?;
        let seen: usize = row::number(&told, 1)?;
        let due = results.pop().unwrap_or_default();
        Ok(Look {
            now: row::now(&told, 0)?,
            due: batch::records(&due),
            end: told.number(2)?.filter(|_| seen >= limit),
            next: told.number(3)?,
        })
    }

    async fn settled(&self) -> Result<Counts, StoreError> {
        let rows = self
            .fetch(
                "SELECT CAST(table_rows AS SIGNED), (SELECT MIN(n) FROM onlyonce_keys), \
                 (SELECT MAX(n) FROM onlyonce_keys) FROM information_schema.tables \
                 WHERE table_schema = DATABASE() AND table_name = 'onlyonce_keys'"
                    .to_owned(),
            )
            .await?;
        let first = rows.first().ok_or_else(no_row)?;
        let number = |column: usize| first.number(column).map(Option::unwrap_or_default);
        let (about, lowest, highest) = (number(0)?, number(1)?, number(2)?);
        if about <= COUNTED_ROWS {
            let everything = "SELECT state, COUNT(*) FROM onlyonce_keys GROUP BY state";
            return store::counted(self, everything).await;
        }
        let step = ((highest - lowest) / SAMPLED_STRETCHES).max(1);
        let stretches: Vec<String> = (0..SAMPLED_STRETCHES)
            .map(|stretch| {
                let from = lowest + stretch * step;
                format!(
                    "(SELECT state FROM onlyonce_keys WHERE n >= {from} ORDER BY n \
                     LIMIT {SAMPLED_ROWS})"
                )
            })
            .collect();
        let sample = format!(
            "SELECT state, COUNT(*) FROM ({}) AS sample GROUP BY state",
            stretches.join(" UNION ALL ")
        );
        let mut counts = store::counted(self, &sample).await?;
        let seen = counts.values().sum::<u64>().max(1);
        let factor = about as f64 / seen as f64;
        for count in counts.values_mut() {
            *count = (*count as f64 * factor).round() as u64;
        }
        Ok(counts)
    }

    /// The number of the next key restarts if the table was emptied.
    async fn standing(&self) -> Result<Standing, StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "SELECT {}, \
             (SELECT CAST(auto_increment AS CHAR) FROM information_schema.tables \
              WHERE table_schema = DATABASE() AND table_name = 'onlyonce_keys'), \
             CAST(CONCAT(HEX(@@hostname), '/', @@port, '/', @@server_id) AS CHAR)",
            store::standing_columns::<MySqlDialect>()
        ));
        let results = match self.run(Access::Read, &script).await {
            Err(Failure::Refused(error)) if was_missing(&error) => return Ok(Standing::default()),
            results => results.map_err(|fault| fault.of_a_read())?,
        };
        let Some(row) = results.first().and_then(|rows| rows.first()) else {
            return Ok(Standing::default());
        };
        let standing = store::read_standing(row)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let next = row.bytes(STANDING.len())?.and_then(text);
        let next = next.and_then(|next| next.parse().ok());
        let server = row.bytes(STANDING.len() + 1)?.and_then(text);
        let numbered = server.zip(next);
        Ok(Standing {
            numbered: numbered.map(|(server, next)| Numbered { server, next }),
            ..standing
        })
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ('epoch', CONCAT('1 ', {NOW})) \
             ON DUPLICATE KEY UPDATE value = CONCAT( \
             CAST(SUBSTRING_INDEX(CAST(value AS CHAR), ' ', 1) AS UNSIGNED) + 1, ' ', {NOW})"
        ));
        self.execute(&script).await?;
        let read = self.fetch("SELECT value FROM onlyonce_meta WHERE name = 'epoch'".to_owned());
        let rows = read
            .await
            .map_err(|error| StoreError::Ambiguous(Box::new(error)))?;
        let value = rows.first().map(|row| row.bytes(0)).transpose()?.flatten();
        let unreadable = || StoreError::Ambiguous("the epoch cannot be read".into());
        value.and_then(Epoch::read).ok_or_else(unreadable)
    }

    async fn prune_audit(&self, keep: i64) -> Result<(), StoreError> {
        // Capped so that subtracting it from any plausible time does not overflow.
        let keep = keep.min(i64::MAX / 2);
        let mut script = Script::default();
        script.add(format_args!("SET @oo_cutoff = {NOW} - {keep}"));
        script.add(
            "SET @oo_young = (SELECT number FROM onlyonce_journal WHERE at >= @oo_cutoff \
             ORDER BY number LIMIT 1)",
        );
        script.add(
            "DELETE FROM onlyonce_journal WHERE number < COALESCE(@oo_young, 9223372036854775807) \
             AND at < @oo_cutoff AND actor = 'operator' \
             AND NOT EXISTS (SELECT 1 FROM onlyonce_keys k WHERE k.id = onlyonce_journal.id)",
        );
        self.execute(&script).await
    }
}

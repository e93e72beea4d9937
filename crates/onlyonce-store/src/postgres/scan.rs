//! Scans by background loops and people on PostgreSQL, on connections of their own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{Policy, Record, RecordId, Timestamp};
use sqlx::{
    AssertSqlSafe, PgConnection, Postgres, Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::sync::broadcast;

use super::{
    Pooler,
    connect::Target,
    dialect::{COLUMNS, PgDialect, bound},
    notice::unwarned,
    schema,
    server::Shared,
};
use crate::{
    Counts, Epoch, Level, Reply, Standing, StoreError,
    outbox::millis,
    sql::{
        batch,
        dialect::Statement,
        failure::Failure,
        line::{Access, Dial as _, Pool},
        row::RowError,
        scan::{self, Reader, no_row},
        store::{self, Scans},
        stretches::Look,
    },
};

/// The number of connections for scans.
const SCANNERS: usize = 3;
/// Inbox entries deleted in one round.
const FORGOTTEN_AT_ONCE: i64 = 5_000;
/// Up to this many pages of `keys`, records are counted exactly; beyond it, from a sample.
const COUNTED_PAGES: u64 = 8_192;
/// Pages in a sample.
const SAMPLED_PAGES: u64 = 2_048;

pub(super) const NOW: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A small pool of connections for scans.
pub struct Scanners {
    pub(super) shared: Arc<Shared>,
    pool: Pool<Target>,
    /// Whether the statements are prepared on the server.
    prepared: bool,
}

impl Scanners {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            pool: Pool::new(SCANNERS),
            prepared: false,
        }
    }

    /// A pool with `room` connections, for one user that repeats the same statements.
    pub(super) fn apart(shared: Arc<Shared>, room: usize) -> Self {
        Self {
            prepared: shared.target().pooler() == Pooler::None,
            shared,
            pool: Pool::new(room),
        }
    }

    /// Runs one statement.
    pub(super) async fn rows(
        &self,
        access: Access,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Failure> {
        let line = &self.shared.line;
        let statement = statement.persistent(self.prepared);
        let rows = self.pool.run(line, access, async |connection| {
            let rows = line.dial.begin(connection, async |connection| {
                statement.fetch_all(connection).await
            });
            unwarned(rows).await
        });
        rows.await
    }

    /// Runs `work` in a transaction, which is committed if `work` returns true.
    pub(super) async fn whole<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<(bool, T), sqlx::Error>,
    ) -> Result<T, StoreError> {
        let line = &self.shared.line;
        let outcome = self.pool.run(line, Access::Write, async |connection| {
            unwarned(line.dial.whole(connection, work)).await
        });
        outcome.await.map_err(|failure| failure.of_a_write())
    }

    async fn fetch(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let outcome = self.rows(Access::Read, statement).await;
        outcome.map_err(|failure| failure.of_a_read())
    }

    /// Runs a statement that writes, and returns its rows.
    pub(super) async fn written(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let outcome = self.rows(Access::Write, statement).await;
        outcome.map_err(|failure| failure.of_a_write())
    }

    pub(super) async fn execute(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        self.written(statement).await.map(|_| ())
    }

    pub(super) async fn ttls(&self) -> Result<HashMap<String, Duration>, StoreError> {
        let rows = self.fetch(sqlx::query("SELECT route, ttl FROM onlyonce.routes"));
        let ttl = |row: &PgRow| -> Result<(String, Duration), RowError> {
            let millis: i64 = row.try_get(1)?;
            let ttl = Duration::from_millis(millis.try_into().unwrap_or_default());
            Ok((row.try_get(0)?, ttl))
        };
        let ttls: Result<_, RowError> = rows.await?.iter().map(ttl).collect();
        Ok(ttls?)
    }
}

impl Reader for Scanners {
    type Dialect = PgDialect;
    type Row<'r> = PgRow;

    async fn read<T, F>(&self, statement: Statement, read: F) -> Result<Vec<T>, StoreError>
    where
        T: Send + 'static,
        F: for<'r> Fn(&PgRow) -> Result<T, RowError> + Send + 'static,
    {
        let rows = self.fetch(bound(statement)).await?;
        Ok(rows.iter().map(read).collect::<Result<_, _>>()?)
    }
}

#[async_trait]
impl Scans for Scanners {
    const STATE: &'static str = "k.state::text";
    const NOW_BYTES: &'static str =
        "convert_to(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint::text, 'UTF8')";

    fn level(&self) -> Level {
        self.shared.target().hosts().level()
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.shared.wake.subscribe()
    }

    async fn write(&self, statement: Statement) -> Result<(), StoreError> {
        self.execute(bound(statement)).await
    }

    /// Deletes expired inbox entries.
    async fn tidy(&self) {
        let sql = format!(
            "DELETE FROM onlyonce.inbox i USING (SELECT ctid FROM onlyonce.inbox \
             WHERE keep_until <= {NOW} ORDER BY keep_until LIMIT {FORGOTTEN_AT_ONCE} \
             FOR UPDATE SKIP LOCKED) AS old WHERE i.ctid = old.ctid"
        );
        if let Err(error) = self.execute(sqlx::query(AssertSqlSafe(sql))).await {
            tracing::debug!(%error, "old notes of messages stay for another round");
        }
    }

    async fn live(
        &self,
        column: &'static str,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS now) \
             SELECT {COLUMNS}, c.now FROM clock c \
             LEFT JOIN onlyonce.live k ON k.{column} <= c.now ORDER BY k.n LIMIT $1"
        );
        let rows = self
            .fetch(sqlx::query(AssertSqlSafe(sql)).bind(limit_of(limit)))
            .await?;
        let now = now_of(rows.first(), 33)?;
        let value = batch::records(&rows);
        Ok(Reply { now, value })
    }

    async fn walk(&self, from: i64, limit: usize) -> Result<Look, StoreError> {
        // Only due rows are returned. A tombstone has a `delete_at`; its answer expired before.
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS now), \
             stretch AS MATERIALIZED ( \
               SELECT n, coalesce(delete_at, expires_at) AS due FROM onlyonce.keys \
               WHERE n > $1 ORDER BY n LIMIT $2 \
             ), \
             whole AS MATERIALIZED ( \
               SELECT count(*) AS seen, max(s.n) AS last, min(s.due) FILTER (WHERE s.due > c.now) AS next \
               FROM stretch s, clock c \
             ) \
             SELECT {COLUMNS}, c.now, w.seen, w.last, w.next FROM clock c CROSS JOIN whole w LEFT JOIN ( \
               stretch s JOIN onlyonce.keys k ON k.n = s.n \
             ) ON s.due <= c.now"
        );
        let statement = sqlx::query(AssertSqlSafe(sql))
            .bind(from)
            .bind(limit_of(limit));
        let rows = self.fetch(statement).await?;
        let now = now_of(rows.first(), 33)?;
        let first = rows.first().ok_or_else(no_row)?;
        let seen: i64 = first.try_get(34).map_err(RowError::from)?;
        let last: Option<i64> = first.try_get(35).map_err(RowError::from)?;
        Ok(Look {
            now,
            due: batch::records(&rows),
            end: last.filter(|_| seen >= limit_of(limit)),
            next: first.try_get(36).map_err(RowError::from)?,
        })
    }

    async fn settled(&self) -> Result<Counts, StoreError> {
        let sql = "SELECT pg_relation_size('onlyonce.keys') / \
                   current_setting('block_size')::bigint";
        let pages = scan::number(self, sql, Vec::new()).await?;
        let (sample, factor) = if pages > COUNTED_PAGES {
            let share = SAMPLED_PAGES as f64 / pages as f64;
            (
                format!(" TABLESAMPLE SYSTEM ({})", share * 100.0),
                1.0 / share,
            )
        } else {
            (String::new(), 1.0)
        };
        let sql = format!("SELECT state::text, count(*) FROM onlyonce.keys{sample} GROUP BY state");
        let mut counts = store::counted(self, &sql).await?;
        for count in counts.values_mut() {
            *count = (*count as f64 * factor).round() as u64;
        }
        Ok(counts)
    }

    async fn standing(&self) -> Result<Standing, StoreError> {
        let sql = format!("SELECT {}", store::standing_columns::<PgDialect>());
        let statement = sqlx::query(AssertSqlSafe(sql));
        let rows = match self.rows(Access::Read, statement).await {
            Err(Failure::Refused(error)) if schema::is_missing(&error) => {
                return Ok(Standing::default());
            }
            rows => rows.map_err(|failure| failure.of_a_read())?,
        };
        let standing = rows.first().map(store::read_standing).transpose()?;
        Ok(standing.unwrap_or_default())
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        let sql = format!(
            "INSERT INTO onlyonce.meta AS m (name, value) \
             VALUES ('epoch', convert_to('1 ' || {NOW}, 'UTF8')) \
             ON CONFLICT (name) DO UPDATE SET value = convert_to( \
             split_part(convert_from(m.value, 'UTF8'), ' ', 1)::bigint + 1 || ' ' || {NOW}, 'UTF8') \
             RETURNING value"
        );
        let rows = self.written(sqlx::query(AssertSqlSafe(sql))).await?;
        let value = rows.first().and_then(|row| row.try_get(0).ok());
        let unreadable = || StoreError::Ambiguous("the epoch cannot be read".into());
        value.and_then(Epoch::read).ok_or_else(unreadable)
    }

    async fn prune_audit(&self, keep: i64) -> Result<(), StoreError> {
        let statement = sqlx::query(include_str!("prune_audit.sql")).bind(keep);
        self.execute(statement).await
    }

    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        // Nothing is written if the row is unchanged, as it nearly always is.
        let sql = "INSERT INTO onlyonce.routes (route, ttl, max_body_size, max_execution, reconcile_after) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (route) DO UPDATE SET \
                   ttl = excluded.ttl, max_body_size = excluded.max_body_size, \
                   max_execution = excluded.max_execution, \
                   reconcile_after = excluded.reconcile_after WHERE routes IS DISTINCT FROM excluded";
        let reconcile = policy.reconcile.as_ref();
        let statement = sqlx::query(sql)
            .bind(route)
            .bind(millis(policy.ttl))
            .bind(i64::try_from(policy.max_body_size).unwrap_or(i64::MAX))
            .bind(millis(policy.max_execution))
            .bind(reconcile.map(|reconcile| millis(reconcile.after)));
        self.execute(statement).await
    }
}

fn now_of(row: Option<&PgRow>, column: usize) -> Result<Timestamp, StoreError> {
    let row = row.ok_or_else(no_row)?;
    let now: i64 = row.try_get(column).map_err(RowError::from)?;
    Ok(Timestamp(now))
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

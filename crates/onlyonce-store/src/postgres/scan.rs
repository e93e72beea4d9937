//! What background loops and people read, on connections of their own.

use std::{collections::HashMap, sync::Arc, time::Duration};

use onlyonce_core::{CallerMark, Recipe, RecipeId, Record, RecordId, Scope, State, Timestamp};
use sqlx::{
    AssertSqlSafe, Postgres, Row as _, ValueRef as _,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{
    notice::unwarned,
    row::COLUMNS,
    schema,
    server::{Dialler, Shared},
    uuid::Uuid,
};
use crate::{
    Counts, Epoch, Filter, JournalRow, Listed, Page, Reply, Standing, StoreError, Walk,
    sql::{
        failure::Failure,
        line::{Access, Pool},
        row::{self, JOURNAL_COLUMNS, RowError},
    },
};

/// Connections for scans.
const SCANNERS: usize = 3;
/// Messages that came in and are forgotten in one round.
const FORGOTTEN_AT_ONCE: i64 = 5_000;
/// Pages of `keys` up to which records are counted one by one; beyond it a sample is taken.
const COUNTED_PAGES: i64 = 8_192;
/// Pages in a sample.
const SAMPLED_PAGES: i64 = 2_048;

pub(super) const NOW: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// A few connections that are shared.
pub(super) struct Scanners {
    shared: Arc<Shared>,
    pool: Pool<Dialler>,
}

impl Scanners {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let pool = Pool::new(SCANNERS);
        Self { shared, pool }
    }

    /// Runs one statement.
    async fn rows(
        &self,
        access: Access,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Failure> {
        let (line, target) = (&self.shared.line, self.shared.target());
        let (_room, mut slot) = self.pool.take(target.timeout()).await?;
        let connection = line.ready(&mut slot).await?;
        let statement = statement.persistent(false);
        let work = target.begin(connection, async |connection| {
            statement.fetch_all(connection).await
        });
        let outcome = line.in_time(access, unwarned(work)).await;
        self.pool.give(slot, &outcome);
        outcome
    }

    async fn read(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.rows(Access::Read, statement)
            .await
            .map_err(|failure| failure.of_a_read())
    }

    pub(super) async fn write(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<(), StoreError> {
        let outcome = self.rows(Access::Write, statement).await;
        outcome.map(|_| ()).map_err(|failure| failure.of_a_write())
    }

    /// Forgets some messages that came in and are past their time.
    pub(super) async fn forget_messages(&self) -> Result<(), StoreError> {
        let sql = format!(
            "DELETE FROM onlyonce.inbox i USING (SELECT ctid FROM onlyonce.inbox \
             WHERE keep_until <= {NOW} ORDER BY keep_until LIMIT {FORGOTTEN_AT_ONCE} \
             FOR UPDATE SKIP LOCKED) AS old WHERE i.ctid = old.ctid"
        );
        self.write(sqlx::query(AssertSqlSafe(sql))).await
    }

    /// Live records whose `column` has passed.
    pub(super) async fn live(
        &self,
        column: &str,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError> {
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS now) \
             SELECT {COLUMNS}, c.now FROM clock c \
             LEFT JOIN onlyonce.live k ON k.{column} <= c.now ORDER BY k.n LIMIT $1"
        );
        let rows = self
            .read(sqlx::query(AssertSqlSafe(sql)).bind(limit_of(limit)))
            .await?;
        let now = now_of(rows.first(), 33)?;
        let value = collect(&rows, row::read);
        Ok(Reply { now, value })
    }

    /// How many keys of one client are in progress. The small table is walked, which the limit of each
    /// client keeps small.
    pub(super) async fn live_of(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM ( \
                     SELECT 1 FROM onlyonce.live k \
                     WHERE k.scope = $1 AND k.caller IS NOT DISTINCT FROM $2 \
                     AND k.lease_until IS NOT NULL LIMIT $3 \
                   ) AS counted";
        let caller = caller.map(|mark| mark.0.to_vec());
        let statement = sqlx::query(sql)
            .bind(scope.as_str())
            .bind(caller)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.read(statement).await?;
        let first = rows.first().ok_or_else(nothing)?;
        let count: i64 = first.try_get(0).map_err(RowError::from)?;
        Ok(count.unsigned_abs())
    }

    /// The next stretch of the reaper's walk after row `from`, and where it ends.
    pub(super) async fn walk(
        &self,
        from: i64,
        limit: usize,
    ) -> Result<(Reply<Walk>, i64), StoreError> {
        // Only what is due travels.
        let sql = format!(
            "WITH clock AS MATERIALIZED (SELECT {NOW} AS now), \
             stretch AS MATERIALIZED ( \
               SELECT n, expires_at, delete_at FROM onlyonce.keys \
               WHERE n > $1 ORDER BY n LIMIT $2 \
             ), \
             whole AS MATERIALIZED (SELECT count(*) AS seen, max(n) AS last FROM stretch) \
             SELECT {COLUMNS}, c.now, w.seen, w.last FROM clock c CROSS JOIN whole w LEFT JOIN ( \
               stretch s JOIN onlyonce.keys k ON k.n = s.n \
             ) ON s.expires_at <= c.now OR s.delete_at <= c.now"
        );
        let rows = self
            .read(
                sqlx::query(AssertSqlSafe(sql))
                    .bind(from)
                    .bind(limit_of(limit)),
            )
            .await?;
        let now = now_of(rows.first(), 33)?;
        let first = rows.first().ok_or_else(nothing)?;
        let seen: i64 = first.try_get(34).map_err(RowError::from)?;
        let last: Option<i64> = first.try_get(35).map_err(RowError::from)?;
        let wrapped = seen < limit_of(limit);
        let position = if wrapped { 0 } else { last.unwrap_or(0) };
        let candidates = collect(&rows, row::read);
        let value = Walk {
            candidates,
            wrapped,
        };
        Ok((Reply { now, value }, position))
    }

    pub(super) async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let mut conditions = vec!["k.n < $1".to_owned()];
        let mut words: Vec<String> = Vec::new();
        let mut also = |condition: &str, word: &str| {
            words.push(word.to_owned());
            conditions.push(condition.replace('?', &format!("${}", words.len() + 2)));
        };
        if let Some(state) = filter.state {
            also("k.state = ?::text::onlyonce.state", state.as_str());
        }
        if let Some(route) = &filter.route {
            also("k.route = ?", route);
        }
        if let Some(key) = &filter.key {
            also("coalesce(k.key, k.key_uuid::text) = ?", key.as_str());
        }
        if let Some(client) = &filter.client {
            also(
                "(k.scope = 'client:' || ? OR (k.scope LIKE 'route:%' AND \
                 substr(k.scope, strpos(k.scope, '/client:')) = '/client:' || ?))",
                client,
            );
        }
        if filter.dead_letters {
            conditions.push("k.dead_letter".to_owned());
        }
        let conditions = conditions.join(" AND ");
        let of = |table: &str| {
            format!(
                "(SELECT {COLUMNS}, k.n FROM onlyonce.{table} k WHERE {conditions} \
                 ORDER BY k.n DESC LIMIT $2)"
            )
        };
        // Some states stand in the small table alone, so that few among many are found at once.
        let sql = match filter.state {
            _ if filter.dead_letters => of("live"),
            Some(State::InProgress | State::Unknown) => of("live"),
            _ => format!(
                "{} UNION ALL {} ORDER BY n DESC LIMIT $2",
                of("live"),
                of("keys")
            ),
        };
        let mut query = sqlx::query(AssertSqlSafe(sql))
            .bind(before(cursor))
            .bind(limit_of(limit.saturating_add(1)));
        for word in words {
            query = query.bind(word);
        }
        let rows = self.read(query).await?;
        Ok(Page::cut(collect(&rows, row::read_listed), limit))
    }

    pub(super) async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        let sql =
            format!("SELECT {JOURNAL_COLUMNS} FROM onlyonce.journal WHERE id = $1 ORDER BY number");
        let rows = self
            .read(sqlx::query(AssertSqlSafe(sql)).bind(Uuid(id.0)))
            .await?;
        Ok(collect(&rows, row::read_journal))
    }

    pub(super) async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        let sql = format!(
            "SELECT {JOURNAL_COLUMNS} FROM onlyonce.journal WHERE number < $1 \
             ORDER BY number DESC LIMIT $2"
        );
        let query = sqlx::query(AssertSqlSafe(sql))
            .bind(before(cursor))
            .bind(limit_of(limit.saturating_add(1)));
        let rows = self.read(query).await?;
        let read = |row: &PgRow| row::read_journal(row).map(|row| (row.number, row));
        Ok(Page::cut(collect(&rows, read), limit))
    }

    /// Records per state: those in progress or unknown to the letter; the others to the letter in a
    /// small table, and from a sample in a large one, since counting would read all of it.
    pub(super) async fn counts(&self) -> Result<Counts, StoreError> {
        let sql = "SELECT pg_relation_size('onlyonce.keys') / \
                   current_setting('block_size')::bigint";
        let rows = self.read(sqlx::query(sql)).await?;
        let first = rows.first().ok_or_else(nothing)?;
        let pages: i64 = first.try_get(0).map_err(RowError::from)?;
        let mut counts: Counts = State::ALL.into_iter().map(|state| (state, 0)).collect();
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
        self.add_counts(&mut counts, sql, factor).await?;
        let sql = "SELECT state::text, count(*) FROM onlyonce.live GROUP BY state";
        for state in [State::InProgress, State::Unknown] {
            counts.insert(state, 0);
        }
        self.add_counts(&mut counts, sql.to_owned(), 1.0).await?;
        Ok(counts)
    }

    async fn add_counts(
        &self,
        counts: &mut Counts,
        sql: String,
        factor: f64,
    ) -> Result<(), StoreError> {
        for row in self.read(sqlx::query(AssertSqlSafe(sql))).await? {
            let word: &str = row.try_get(0).map_err(RowError::from)?;
            let count: i64 = row.try_get(1).map_err(RowError::from)?;
            if let Some(state) = State::from_word(word) {
                counts.insert(state, (count as f64 * factor).round() as u64);
            }
        }
        Ok(())
    }

    pub(super) async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = "SELECT value FROM onlyonce.meta WHERE name = 'block/' || $1";
        let rows = self.read(sqlx::query(sql).bind(name)).await?;
        let value = rows.first().map(|row| row.try_get(0)).transpose();
        Ok(value.map_err(RowError::from)?)
    }

    /// What the store says of itself, and how far it has come.
    pub(super) async fn standing(&self) -> Result<Standing, StoreError> {
        let sql = "SELECT (SELECT value FROM onlyonce.meta WHERE name = 'secret'), \
                   (SELECT value FROM onlyonce.meta WHERE name = 'identity'), \
                   (SELECT value FROM onlyonce.meta WHERE name = 'epoch'), \
                   (SELECT value FROM onlyonce.meta WHERE name = 'accepted')";
        let rows = match self.rows(Access::Read, sqlx::query(sql)).await {
            Err(Failure::Refused(error)) if schema::is_missing(&error) => {
                return Ok(Standing::default());
            }
            rows => rows.map_err(|failure| failure.of_a_read())?,
        };
        let Some(row) = rows.first() else {
            return Ok(Standing::default());
        };
        let value = |column: usize| -> Result<Option<&[u8]>, RowError> { Ok(row.try_get(column)?) };
        Ok(Standing::read(value(0)?, value(1)?, value(2)?, value(3)?))
    }

    /// Raises the epoch by one.
    pub(super) async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        let sql = format!(
            "INSERT INTO onlyonce.meta AS m (name, value) \
             VALUES ('epoch', convert_to('1 ' || {NOW}, 'UTF8')) \
             ON CONFLICT (name) DO UPDATE SET value = convert_to( \
             split_part(convert_from(m.value, 'UTF8'), ' ', 1)::bigint + 1 || ' ' || {NOW}, 'UTF8') \
             RETURNING value"
        );
        let rows = self.rows(Access::Write, sqlx::query(AssertSqlSafe(sql)));
        let rows = rows.await.map_err(|failure| failure.of_a_write())?;
        let value = rows.first().and_then(|row| row.try_get(0).ok());
        let unreadable = || StoreError::Ambiguous("the epoch cannot be read".into());
        value.and_then(Epoch::read).ok_or_else(unreadable)
    }

    /// Notes that an operator accepts what is missing.
    pub(super) async fn accept_incomplete(&self) -> Result<(), StoreError> {
        let sql = format!(
            "INSERT INTO onlyonce.meta (name, value) \
             VALUES ('accepted', convert_to({NOW}::text, 'UTF8')) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        );
        self.write(sqlx::query(AssertSqlSafe(sql))).await
    }

    pub(super) async fn ttls(&self) -> Result<HashMap<String, Duration>, StoreError> {
        let rows = self.read(sqlx::query("SELECT route, ttl FROM onlyonce.routes"));
        let ttl = |row: &PgRow| -> Result<(String, Duration), RowError> {
            let millis: i64 = row.try_get(1)?;
            let ttl = Duration::from_millis(millis.try_into().unwrap_or_default());
            Ok((row.try_get(0)?, ttl))
        };
        let ttls: Result<_, RowError> = rows.await?.iter().map(ttl).collect();
        Ok(ttls?)
    }

    pub(super) async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        let sql = "SELECT recipe FROM onlyonce.recipes WHERE id = $1";
        let rows = self.read(sqlx::query(sql).bind(id.0)).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let bytes: &[u8] = row.try_get(0).map_err(RowError::from)?;
        let recipe = Recipe::decode(bytes).map_err(|error| StoreError::Unreadable(error.into()))?;
        Ok(Some(recipe))
    }
}

pub(super) fn nothing() -> StoreError {
    StoreError::Unavailable("the server returned no row".into())
}

fn now_of(row: Option<&PgRow>, column: usize) -> Result<Timestamp, StoreError> {
    let row = row.ok_or_else(nothing)?;
    let now: i64 = row.try_get(column).map_err(RowError::from)?;
    Ok(Timestamp(now))
}

pub(super) fn before(cursor: Option<u64>) -> i64 {
    cursor.map_or(i64::MAX, |cursor| i64::try_from(cursor).unwrap_or(i64::MAX))
}

pub(super) fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn collect<T>(rows: &[PgRow], read: impl Fn(&PgRow) -> Result<T, RowError>) -> Vec<T> {
    let is_empty = |row: &PgRow| row.try_get_raw(0).is_ok_and(|value| value.is_null());
    row::collect(rows, read, is_empty)
}

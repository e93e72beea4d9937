//! Opens connections, and checks the server before use.

use std::{str::FromStr, time::Duration};

use async_trait::async_trait;
use sqlx::{ConnectOptions, Executor as _, PgConnection, Row as _, postgres::PgConnectOptions};

use super::{
    Migrated, OpenError,
    notice::{can_be_heard, unwarned},
    schema,
};
use crate::{
    Level,
    sql::{
        failure::Failure,
        hosts::{self, Hosts},
        line::Dial,
        open::Found,
    },
};

/// The settings of every session. Statements look up keys by their index, whatever the planner believes about
/// a table that was empty a moment ago, and their plans do not change. Warnings are delivered, even if a role
/// is set not to receive them.
const SETTINGS: [(&str, &str); 7] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("client_min_messages", "warning"),
    ("default_transaction_isolation", "read committed"),
];

/// A commit that must wait for standbys and leaves nothing behind. Its lock is shared with others of its
/// kind. If no standby is attached, it returns no row instead of waiting for ever in a session that nobody
/// could end.
pub(super) const CONFIRM: &str = "SELECT 1 FROM onlyonce.meta WHERE name = 'secret' \
     AND (current_setting('synchronous_standby_names') = '' \
          OR EXISTS (SELECT FROM pg_stat_replication)) FOR KEY SHARE";
/// The meaning of an empty result of [`CONFIRM`].
pub(super) const NO_STANDBY: &str = "no standby is there that a commit could wait for";

/// How long a statement waits for a locked row.
const LOCK_TIMEOUT_MILLIS: u128 = 50;

/// How statements reach the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// Each of our connections is one of the server's.
    #[default]
    None,
    /// A pooler such as PgBouncer gives a server connection for each transaction: no prepared
    /// statement, no setting and no subscription outlives one.
    Transaction,
}

/// How to reach the database.
pub(super) struct Target {
    hosts: Hosts<PgConnectOptions>,
    pooler: Pooler,
}

impl Target {
    /// `postgres://USER@HOST:PORT,HOST:PORT/DATABASE?…`; several hosts are tried in turn.
    pub(super) fn parse(url: &str, pooler: Pooler, timeout: Duration) -> Result<Self, OpenError> {
        let hosts = hosts::split(url)
            .iter()
            .map(|url| {
                let options = PgConnectOptions::from_str(url).map_err(OpenError::Url)?;
                let options = options
                    .application_name("onlyonce")
                    .disable_statement_logging();
                Ok(match pooler {
                    Pooler::None => options.options(SETTINGS).options([
                        ("statement_timeout", timeout.as_millis()),
                        ("lock_timeout", LOCK_TIMEOUT_MILLIS),
                    ]),
                    // A pooler refuses unknown start-up settings.
                    Pooler::Transaction => {
                        options.extra_float_digits(None).statement_cache_capacity(0)
                    }
                })
            })
            .collect::<Result<Vec<_>, OpenError>>()?;
        Ok(Self {
            hosts: Hosts::new(hosts, timeout),
            pooler,
        })
    }

    pub(super) fn pooler(&self) -> Pooler {
        self.pooler
    }

    /// Runs `work`: directly, or, behind a pooler, in a transaction that keeps one server connection for all
    /// of its messages.
    pub(super) async fn begin<T>(
        &self,
        connection: &mut PgConnection,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        if self.pooler == Pooler::None {
            return work(connection).await;
        }
        let work = async |connection: &mut PgConnection| Ok((true, work(connection).await?));
        self.whole(connection, work).await
    }

    /// Runs `work` in a transaction, which is committed if `work` returns true.
    pub(super) async fn whole<T>(
        &self,
        connection: &mut PgConnection,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<(bool, T), sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        match self.pooler {
            Pooler::None => connection.execute("BEGIN").await?,
            Pooler::Transaction => connection.execute(self.begin_behind_a_pooler()).await?,
        };
        let outcome = work(connection).await;
        match outcome {
            Ok((true, value)) => {
                connection.execute("COMMIT").await?;
                Ok(value)
            }
            Ok((false, value)) => {
                connection.execute("ROLLBACK").await?;
                Ok(value)
            }
            Err(error) => {
                // If even this fails, the connection is dropped with the error.
                let _ = connection.execute("ROLLBACK").await;
                Err(error)
            }
        }
    }

    fn begin_behind_a_pooler(&self) -> sqlx::AssertSqlSafe<String> {
        let settings: Vec<String> = SETTINGS
            .iter()
            .filter(|(name, _)| *name != "default_transaction_isolation")
            .map(|(name, value)| format!("SET LOCAL {name} = {value}"))
            .collect();
        sqlx::AssertSqlSafe(format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {}; \
             SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLIS}; {}",
            self.timeout().as_millis(),
            settings.join("; ")
        ))
    }

    /// The options of the host that took the last connection.
    pub(super) fn options(&self) -> PgConnectOptions {
        self.hosts.last().clone()
    }
}

#[async_trait]
impl Dial for Target {
    type Connection = PgConnection;
    type Options = PgConnectOptions;

    fn hosts(&self) -> &Hosts<PgConnectOptions> {
        &self.hosts
    }

    async fn greet(
        &self,
        options: &PgConnectOptions,
    ) -> Result<(PgConnection, Level), sqlx::Error> {
        let mut connection = options.connect().await?;
        let level = self.level_of(&mut connection).await?;
        Ok((connection, level))
    }

    async fn level_of(&self, connection: &mut PgConnection) -> Result<Level, sqlx::Error> {
        let settings = self.begin(connection, async |connection| {
            read_settings(connection).await
        });
        let settings = settings.await?;
        Ok(settings.judge(self.hosts.may_be_replaced(settings.standbys)))
    }

    const VERSION: i64 = schema::VERSION;

    async fn found(&self, connection: &mut PgConnection) -> Result<Found, sqlx::Error> {
        let found = self.begin(connection, async |connection| {
            schema::found(connection).await
        });
        found.await
    }

    async fn migrate(connection: &mut PgConnection) -> Result<Migrated, OpenError> {
        schema::migrate(connection).await
    }

    async fn own_identity(
        &self,
        connection: &mut PgConnection,
    ) -> Result<(Option<Vec<u8>>, Vec<u8>), sqlx::Error> {
        let identity = self.begin(connection, async |connection| {
            let own = schema::own_identity(connection).await?;
            Ok((own, schema::place(connection).await?))
        });
        identity.await
    }

    async fn secret(&self, connection: &mut PgConnection) -> Result<Option<Vec<u8>>, sqlx::Error> {
        let secret = self.begin(connection, async |connection| {
            schema::secret(connection).await
        });
        secret.await
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        schema::is_missing(error)
    }

    async fn confirm(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let commit = self.begin(connection, async |connection| {
            let statement = sqlx::query(CONFIRM).persistent(false);
            // Read to the end: the driver returns a single row before the commit that follows it.
            statement.fetch_all(connection).await
        });
        if unwarned(commit).await?.is_empty() {
            let nobody = std::io::Error::other(NO_STANDBY);
            return Err(Failure::Cancelled(sqlx::Error::Io(nobody)));
        }
        let level = self.level_of(connection).await.map_err(Failure::Refused)?;
        self.hosts.saw_again(level);
        Ok(())
    }
}

/// An absent standby has left its slot, if it had one. Base backups and archivers are not standbys.
const SETTINGS_OF_SERVER: &str = "WITH archives AS (SELECT pid FROM pg_stat_replication \
     WHERE application_name IN ('pg_basebackup', 'pg_receivewal')) \
     SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
     current_setting('synchronous_standby_names'), pg_is_in_recovery(), \
     (SELECT count(*) FROM pg_stat_replication WHERE pid NOT IN (SELECT pid FROM archives)) \
     + (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary \
        AND coalesce(active_pid NOT IN (SELECT pid FROM archives), true)), \
     current_setting('server_encoding')";

/// Reads the settings that determine the level; fails if the server takes no writes.
async fn read_settings(connection: &mut PgConnection) -> Result<Settings, sqlx::Error> {
    let row = sqlx::query(SETTINGS_OF_SERVER)
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if row.try_get::<bool, _>(3)? {
        return Err(sqlx::Error::Io(std::io::Error::other(
            "this server is a standby and takes no writes",
        )));
    }
    let encoding: &str = row.try_get(5)?;
    if encoding != "UTF8" {
        return Err(sqlx::Error::Io(std::io::Error::other(format!(
            "the encoding of this database is {encoding}, which cannot hold every path; make one with \
             `ENCODING 'UTF8' TEMPLATE template0`"
        ))));
    }
    Ok(Settings {
        fsync: row.try_get(0)?,
        commit: row.try_get(1)?,
        names: row.try_get(2)?,
        standbys: u64::try_from(row.try_get::<i64, _>(4)?).unwrap_or(0),
    })
}

struct Settings {
    fsync: String,
    commit: String,
    names: String,
    /// Attached, or expected to be.
    standbys: u64,
}

impl Settings {
    fn judge(&self, may_be_replaced: bool) -> Level {
        let level = judge(&self.fsync, &self.commit, &self.names, may_be_replaced);
        if !self.names.is_empty() && !can_be_heard() {
            // A warning tells whether a commit has waited.
            return level.min(Level::Async);
        }
        level
    }
}

/// - Without `fsync`, a crash of the machine may lose anything.
/// - With `synchronous_commit` off, it loses the newest writes.
/// - With standbys that no write waits for, a failover loses them.
fn judge(fsync: &str, commit: &str, names: &str, may_be_replaced: bool) -> Level {
    let waits_for_standbys = matches!(commit, "on" | "remote_apply") && !names.is_empty();
    match (fsync, commit) {
        ("on", "off") => Level::Async,
        ("on", _) if may_be_replaced && !waits_for_standbys => Level::Async,
        // Standbys are named, but a commit does not wait until they have flushed it.
        ("on", "local" | "remote_write") if !names.is_empty() => Level::Async,
        ("on", _) => Level::Sync,
        _ => Level::Volatile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        for (fsync, commit, names, may_be_replaced, level) in [
            ("on", "on", "", false, Level::Sync),
            ("on", "on", "*", true, Level::Sync),
            ("on", "remote_apply", "*", true, Level::Sync),
            ("on", "local", "", false, Level::Sync),
            ("on", "on", "", true, Level::Async),
            ("on", "local", "*", true, Level::Async),
            ("on", "remote_write", "*", true, Level::Async),
            ("on", "off", "", false, Level::Async),
            ("off", "on", "*", true, Level::Volatile),
        ] {
            let found = judge(fsync, commit, names, may_be_replaced);
            assert_eq!(found, level, "{fsync} {commit} {names} {may_be_replaced}");
        }
    }
}

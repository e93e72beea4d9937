//! How a connection is made, and what is checked before it is used.

use std::{
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use sqlx::{
    ConnectOptions, Connection as _, MySqlConnection, Row as _,
    mysql::{MySqlConnectOptions, MySqlRow},
};

use super::{
    OpenError, schema,
    server::{self, Results},
    text::Script,
};
use crate::{
    Level,
    sql::{
        failure::no_answer,
        hosts::{self, Hosts},
        line::Dial,
    },
};

/// How long a statement waits for a row that somebody holds locked. MySQL knows no less.
const LOCK_WAIT_SECONDS: u64 = 1;
/// How long the server keeps a connection that nobody uses: the most that it can be told.
const IDLE_SECONDS: u64 = 31_536_000;

/// Where the database is.
#[derive(Clone)]
pub(super) struct Target(Arc<Inner>);

struct Inner {
    hosts: Hosts<MySqlConnectOptions>,
    /// The longest message that the server takes, in bytes.
    longest: AtomicUsize,
}

impl Target {
    /// `mysql://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?…`; several hosts are tried in turn.
    pub(super) fn parse(url: &str, timeout: Duration) -> Result<Self, OpenError> {
        let url = match url.strip_prefix("mariadb://") {
            Some(rest) => format!("mysql://{rest}"),
            None => url.to_owned(),
        };
        let hosts = hosts::split(&url)
            .iter()
            .map(|url| {
                let options = MySqlConnectOptions::from_str(url).map_err(OpenError::Url)?;
                let options = options.pipes_as_concat(false).statement_cache_capacity(0);
                Ok(options.disable_statement_logging())
            })
            .collect::<Result<Vec<_>, OpenError>>()?;
        Ok(Self(Arc::new(Inner {
            hosts: Hosts::new(hosts, timeout),
            longest: AtomicUsize::new(0),
        })))
    }

    /// How long a call may take.
    pub(super) fn timeout(&self) -> Duration {
        self.0.hosts.timeout()
    }

    /// What an acknowledged write survives, as the last connection found it.
    pub(super) fn level(&self) -> Level {
        self.0.hosts.level()
    }

    /// The longest message that the server takes, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.0.longest.load(Ordering::Relaxed)
    }

    /// A connection to the host that takes writes.
    pub(super) async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        self.0.hosts.connect(|host| self.connect_to(host)).await
    }

    async fn connect_to(
        &self,
        options: &MySqlConnectOptions,
    ) -> Result<(MySqlConnection, Level), sqlx::Error> {
        let mut connection = options.connect().await?;
        let results = server::run(&mut connection, &self.greeting()).await;
        let results = results.map_err(|(_, error)| error)?;
        let (level, longest) = read_greeting(&results)?;
        self.0.longest.store(longest, Ordering::Relaxed);
        Ok((connection, level))
    }

    /// What every session says of its statements, and what it asks. Bad data is an error, never a
    /// warning, whatever the server's settings are.
    fn greeting(&self) -> Script {
        let mut script = Script::default();
        let seconds = self.timeout().as_secs_f64();
        script.add(format_args!(
            "SET autocommit = 1, \
             sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', \
             innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, lock_wait_timeout = {}, \
             wait_timeout = {IDLE_SECONDS} /*M!100101 , max_statement_time = {seconds} */",
            seconds.ceil()
        ));
        script.add("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
        script.add(
            "SELECT @@read_only, @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, \
             @@log_bin, @@sync_binlog, @@innodb_flush_method",
        );
        script.add(
            "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', \
             'Rpl_semi_sync_master_status', 'Rpl_semi_sync_source_status')",
        );
        script
    }
}

/// A column of whatever type, as the server wrote it.
fn word(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
}

/// What an acknowledged write survives on this server, and the longest message; and that it takes
/// writes at all.
fn read_greeting(results: &Results) -> Result<(Level, usize), sqlx::Error> {
    let missing = || sqlx::Error::RowNotFound;
    let row = results.get(2).and_then(|rows| rows.first());
    let row = row.ok_or_else(missing)?;
    if !matches!(word(row, 0)?.as_str(), "0" | "OFF") {
        return Err(sqlx::Error::Io(std::io::Error::other(
            "this server is read-only and takes no writes",
        )));
    }
    let mut settings = Settings {
        flush: word(row, 2)?,
        binlog: matches!(word(row, 3)?.as_str(), "1" | "ON"),
        sync_binlog: word(row, 4)?,
        flush_method: word(row, 5)?,
        ..Settings::default()
    };
    for row in results.get(3).into_iter().flatten() {
        let value = word(row, 1)?;
        match word(row, 0)?.to_ascii_lowercase().as_str() {
            "slaves_connected" => settings.replicas = value.parse().unwrap_or(0),
            _ => settings.waits_for_replicas |= value == "ON",
        }
    }
    Ok((settings.judge(), word(row, 1)?.parse().unwrap_or(0)))
}

#[derive(Default)]
struct Settings {
    flush: String,
    flush_method: String,
    binlog: bool,
    sync_binlog: String,
    replicas: u64,
    waits_for_replicas: bool,
}

impl Settings {
    /// - Without a flush to disk a crash of the machine loses anything.
    /// - With one flush a second, or none at a commit, the newest writes.
    /// - With a binary log that is not flushed, too: after a crash it decides what was committed.
    /// - With replicas that no write waits for, a failover does.
    fn judge(&self) -> Level {
        if matches!(self.flush_method.as_str(), "nosync" | "littlesync") {
            return Level::Volatile;
        }
        let flushed = matches!(self.flush.as_str(), "1" | "3");
        let logged = !self.binlog || self.sync_binlog == "1";
        let copied = self.replicas == 0 || self.waits_for_replicas;
        match flushed && logged && copied {
            true => Level::Sync,
            false => Level::Async,
        }
    }
}

/// How connections are made.
pub(super) struct Dialler {
    pub(super) target: Target,
    pub(super) secret: Vec<u8>,
}

impl Dial for Dialler {
    type Connection = MySqlConnection;

    async fn dial(&self) -> Result<MySqlConnection, sqlx::Error> {
        let mut connection = self.target.connect().await?;
        let secret = schema::secret(&mut connection);
        let found = tokio::time::timeout(self.timeout(), secret)
            .await
            .map_err(|_| no_answer("the server did not answer in time"))?;
        if found?.as_ref() == Some(&self.secret) {
            return Ok(connection);
        }
        Err(sqlx::Error::Io(std::io::Error::other(
            "this is not the database that the store was opened on: its secret is another",
        )))
    }

    fn timeout(&self) -> Duration {
        self.target.timeout()
    }

    fn abandon(connection: MySqlConnection) {
        tokio::spawn(async move {
            // A server that does not answer would hold the close for ever.
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.close_hard()).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        for (flush, method, binlog, sync_binlog, replicas, waits, level) in [
            ("1", "O_DIRECT", false, "0", 0, false, Level::Sync),
            ("1", "fsync", true, "1", 0, false, Level::Sync),
            ("1", "fsync", true, "1", 1, true, Level::Sync),
            ("1", "fsync", true, "1", 1, false, Level::Async),
            ("1", "fsync", true, "0", 0, false, Level::Async),
            ("2", "fsync", false, "0", 0, false, Level::Async),
            ("0", "fsync", false, "0", 0, false, Level::Async),
            ("1", "nosync", false, "0", 0, false, Level::Volatile),
        ] {
            let settings = Settings {
                flush: flush.into(),
                flush_method: method.into(),
                binlog,
                sync_binlog: sync_binlog.into(),
                replicas,
                waits_for_replicas: waits,
            };
            assert_eq!(
                settings.judge(),
                level,
                "{flush} {method} {binlog} {sync_binlog} {replicas} {waits}"
            );
        }
    }
}

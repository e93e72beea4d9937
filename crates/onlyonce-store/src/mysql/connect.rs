//! Opens connections, and checks the server before use.

use std::{
    str::FromStr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{
    ConnectOptions, MySqlConnection, Row as _,
    mysql::{MySqlConnectOptions, MySqlRow},
};

use super::{
    Migrated, OpenError,
    failure::{judge, was_missing},
    schema,
    server::{self, Results},
    text::Script,
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

/// How long a statement waits for a locked row. MySQL allows no shorter time.
const LOCK_WAIT_SECONDS: u64 = 1;
/// The number of statements in the greeting before the queries.
const GREETINGS: usize = 2;
/// How long the server keeps an idle connection: the longest time it accepts.
const IDLE_SECONDS: u64 = 31_536_000;

/// How to reach the database.
pub(super) struct Target {
    hosts: Hosts<MySqlConnectOptions>,
    /// The longest message that the server accepts, in bytes.
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
        Ok(Self {
            hosts: Hosts::new(hosts, timeout),
            longest: AtomicUsize::new(0),
        })
    }

    /// The longest message that the server accepts, in bytes.
    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }

    /// The settings of every session, and its first queries. Bad data is an error, never a warning, whatever
    /// the server's settings.
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
        ask(&mut script);
        script
    }

    /// Reads what an acknowledged write survives on this server, and the longest message; fails if the server
    /// takes no writes.
    fn read_questions(
        &self,
        results: &Results,
        first: usize,
    ) -> Result<(Level, usize), sqlx::Error> {
        let (settings, longest) = read_settings(results, first)?;
        let may_be_replaced = self.hosts.may_be_replaced(settings.replicas);
        Ok((settings.judge(may_be_replaced), longest))
    }
}

#[async_trait]
impl Dial for Target {
    type Connection = MySqlConnection;
    type Options = MySqlConnectOptions;

    fn hosts(&self) -> &Hosts<MySqlConnectOptions> {
        &self.hosts
    }

    async fn greet(
        &self,
        options: &MySqlConnectOptions,
    ) -> Result<(MySqlConnection, Level), sqlx::Error> {
        let mut connection = options.connect().await?;
        let results = server::run(&mut connection, &self.greeting()).await;
        let results = results.map_err(|(_, error)| error)?;
        let (level, longest) = self.read_questions(&results, GREETINGS)?;
        self.longest.store(longest, Ordering::Relaxed);
        Ok((connection, level))
    }

    async fn level_of(&self, connection: &mut MySqlConnection) -> Result<Level, sqlx::Error> {
        let mut script = Script::default();
        ask(&mut script);
        let results = server::run(connection, &script).await;
        let results = results.map_err(|(_, error)| error)?;
        self.read_questions(&results, 0).map(|(level, _)| level)
    }

    const VERSION: i64 = schema::VERSION;

    async fn found(&self, connection: &mut MySqlConnection) -> Result<Found, sqlx::Error> {
        schema::found(connection).await
    }

    async fn migrate(connection: &mut MySqlConnection) -> Result<Migrated, OpenError> {
        schema::migrate(connection).await
    }

    async fn own_identity(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<(Option<Vec<u8>>, Vec<u8>), sqlx::Error> {
        schema::own_identity(connection).await
    }

    async fn secret(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Option<Vec<u8>>, sqlx::Error> {
        schema::secret(connection).await
    }

    fn is_missing(error: &sqlx::Error) -> bool {
        was_missing(error)
    }

    /// A commit is visible before it is flushed, so one with an unknown outcome may not be durable. This
    /// commit is on disk when it returns.
    async fn confirm(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        let mut script = Script::default();
        // An unchanged row would not be a write.
        let value = "CONCAT(CONNECTION_ID(), '/', UTC_TIMESTAMP(6))";
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ('confirmed_at', {value}) \
             ON DUPLICATE KEY UPDATE value = {value}"
        ));
        ask(&mut script);
        let results = server::run(connection, &script).await;
        let results = results.map_err(|(_, error)| judge(error))?;
        let (level, _) = self.read_questions(&results, 1).map_err(Failure::Refused)?;
        self.hosts.saw_again(level);
        Ok(())
    }
}

/// Queries the server's settings.
fn ask(script: &mut Script) {
    script.add(
        "SELECT @@read_only, @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, \
         @@log_bin, @@sync_binlog, @@innodb_flush_method",
    );
    script.add("SHOW GLOBAL STATUS WHERE Variable_name = 'Slaves_connected'");
    script.add(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
         ('rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'wsrep_on')",
    );
}

/// A column of any type, as text.
fn word(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned())
}

/// Reads the settings that determine the level, and the longest message; fails if the server takes no writes.
fn read_settings(results: &Results, first: usize) -> Result<(Settings, usize), sqlx::Error> {
    let missing = || sqlx::Error::RowNotFound;
    let row = results.get(first).and_then(|rows| rows.first());
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
    for row in results.get(first + 1).into_iter().flatten() {
        settings.replicas = word(row, 1)?.parse().unwrap_or(0);
    }
    for row in results.get(first + 2).into_iter().flatten() {
        let is_on = matches!(word(row, 1)?.as_str(), "1" | "ON");
        match word(row, 0)?.as_str() {
            "wsrep_on" => settings.galera = is_on,
            _ => settings.semi_sync |= is_on,
        }
    }
    Ok((settings, word(row, 1)?.parse().unwrap_or(0)))
}

#[derive(Default)]
struct Settings {
    flush: String,
    flush_method: String,
    binlog: bool,
    sync_binlog: String,
    replicas: u64,
    semi_sync: bool,
    galera: bool,
}

impl Settings {
    /// - Without a flush to disk, a crash of the machine may lose anything.
    /// - With one flush a second, or none at a commit, it loses the newest writes.
    /// - So it does with a binary log that is not flushed, which after a crash decides what was committed.
    /// - With replicas, a failover loses them. Semi-synchronous replication does not change that: a wait that
    ///   ends by its timeout or by KILL QUERY is reported as success, without a warning; a replica need not
    ///   have flushed what it has acknowledged; and others can read a commit before it is acknowledged.
    /// - In a Galera cluster other nodes take writes too, and a node acknowledges what the others have
    ///   received but not yet flushed; published tests have lost updates in a healthy cluster.
    fn judge(&self, may_be_replaced: bool) -> Level {
        if matches!(self.flush_method.as_str(), "nosync" | "littlesync") {
            return Level::Volatile;
        }
        let flushed = matches!(self.flush.as_str(), "1" | "3");
        let logged = !self.binlog || self.sync_binlog == "1";
        let alone = !may_be_replaced && !self.semi_sync && !self.galera;
        match flushed && logged && alone {
            true => Level::Sync,
            false => Level::Async,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels() {
        let galera = Settings {
            flush: "1".into(),
            galera: true,
            ..Settings::default()
        };
        assert_eq!(galera.judge(false), Level::Async, "Galera");
        for (flush, method, binlog, sync_binlog, replicas, semi_sync, level) in [
            ("1", "O_DIRECT", false, "0", 0, false, Level::Sync),
            ("1", "fsync", true, "1", 0, false, Level::Sync),
            ("1", "fsync", true, "1", 1, true, Level::Async),
            ("1", "fsync", true, "1", 0, true, Level::Async),
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
                semi_sync,
                galera: false,
            };
            assert_eq!(
                settings.judge(replicas > 0),
                level,
                "{flush} {method} {binlog} {sync_binlog} {replicas} {semi_sync}"
            );
        }
    }
}

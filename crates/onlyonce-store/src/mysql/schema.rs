//! The MySQL and MariaDB schema: how it is created, and which programs may use it.
//!
//! The tables are in the database of the URL and begin with `onlyonce_`. As with every SQL store, a schema
//! has two numbers: its version, and the oldest program that can still use it. These servers commit before
//! and after every change of a table, so a step consists of repeatable statements, and its number is written
//! last.

use sqlx::{AssertSqlSafe, Executor as _, MySqlConnection, Row as _};

use super::{Migrated, OpenError};
use crate::sql::open::Found;

/// The newest schema version that this program knows.
pub const VERSION: i64 = 5;

/// The steps, each with the version it leads to and the oldest program that can use the result.
const STEPS: [(i64, i64, &str); 5] = [
    (1, 1, include_str!("schema_1.sql")),
    (2, 1, include_str!("schema_2.sql")),
    (3, 1, include_str!("schema_3.sql")),
    (4, 1, include_str!("schema_4.sql")),
    (5, 1, include_str!("schema_5.sql")),
];

/// The name of the lock that keeps two programs from changing a schema at the same time: at most 64
/// characters, one per database. MySQL 9 no longer has `MD5()`.
const LOCK: &str = "CONCAT('onlyonce.', LEFT(SHA2(DATABASE(), 256), 32))";

/// How long a program waits for another one that is creating the schema, in seconds.
const LOCK_SECONDS: u32 = 30;

/// The SQL that leads from version `from` to the newest, for running by hand.
pub fn script(from: i64) -> String {
    let mut script = String::new();
    for (version, oldest, step) in STEPS.iter().filter(|(version, ..)| *version > from) {
        script.push_str(step);
        for (name, number) in [("oldest_program", oldest), ("schema_version", version)] {
            script.push_str(&format!(
                "INSERT INTO onlyonce_meta (name, value) VALUES ('{name}', '{number}')\n    \
                 ON DUPLICATE KEY UPDATE value = '{number}';\n"
            ));
        }
    }
    script
}

/// The version found, and the oldest program that can use it; `None` without a schema.
pub(super) async fn found(connection: &mut MySqlConnection) -> Result<Found, sqlx::Error> {
    let there = connection
        .fetch_optional(
            "SELECT 1 FROM information_schema.tables \
             WHERE table_schema = DATABASE() AND table_name = 'onlyonce_meta'",
        )
        .await?;
    if there.is_none() {
        return Ok(None);
    }
    let rows = connection
        .fetch_all(
            "SELECT name, CAST(value AS CHAR) FROM onlyonce_meta \
             WHERE name IN ('schema_version', 'oldest_program')",
        )
        .await?;
    let number = |name: &str| {
        rows.iter()
            .find(|row| {
                row.try_get::<&[u8], _>(0)
                    .is_ok_and(|found| found == name.as_bytes())
            })
            .and_then(|row| row.try_get::<&str, _>(1).ok())
            .and_then(|text| text.parse().ok())
    };
    Ok(number("schema_version").zip(number("oldest_program")))
}

/// Upgrades the schema if it is older. Safe to run on all nodes at the same time.
pub(super) async fn migrate(connection: &mut MySqlConnection) -> Result<Migrated, OpenError> {
    let lock = format!("SELECT GET_LOCK({LOCK}, {LOCK_SECONDS})");
    // Waiting for the lock takes longer than a statement may.
    let patient = "SET @oo_time = @@max_statement_time, max_statement_time = 0";
    let is_mariadb = connection.execute(patient).await.is_ok();
    let row = connection.fetch_one(AssertSqlSafe(lock)).await;
    let locked: Option<i64> = row.and_then(|row| row.try_get(0)).map_err(OpenError::Sql)?;
    if locked != Some(1) {
        let busy = std::io::Error::other("another program is changing the schema");
        return Err(OpenError::Sql(sqlx::Error::Io(busy)));
    }
    let migrated = migrate_alone(connection).await;
    // A lock that is not released ends with the connection.
    let unlock = AssertSqlSafe(format!("SELECT RELEASE_LOCK({LOCK})"));
    let _ = connection.execute(unlock).await;
    if is_mariadb {
        let back = connection
            .execute("SET max_statement_time = @oo_time")
            .await;
        back.map_err(OpenError::Sql)?;
    }
    migrated
}

async fn migrate_alone(connection: &mut MySqlConnection) -> Result<Migrated, OpenError> {
    let from = found(connection).await.map_err(OpenError::Sql)?;
    let from = from.map_or(0, |(version, _)| version);
    if from < VERSION {
        let script = AssertSqlSafe(script(from));
        connection.execute(script).await.map_err(OpenError::Sql)?;
    }
    Ok(Migrated {
        from,
        to: from.max(VERSION),
    })
}

/// The identity that an operator has renewed, if any, and the name of the database.
pub(super) async fn own_identity(
    connection: &mut MySqlConnection,
) -> Result<(Option<Vec<u8>>, Vec<u8>), sqlx::Error> {
    let sql = "SELECT (SELECT value FROM onlyonce_meta WHERE name = 'identity'), \
               CAST(DATABASE() AS BINARY)";
    let row = connection.fetch_one(sql).await?;
    let name: Option<Vec<u8>> = row.try_get_unchecked(1)?;
    let place = [b"mysql/".as_slice(), &name.unwrap_or_default()].concat();
    Ok((row.try_get_unchecked(0)?, place))
}

/// The secret created with the schema.
pub(super) async fn secret(
    connection: &mut MySqlConnection,
) -> Result<Option<Vec<u8>>, sqlx::Error> {
    connection
        .fetch_optional("SELECT value FROM onlyonce_meta WHERE name = 'secret'")
        .await?
        .map(|row| row.try_get(0))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_whole() {
        let script = script(0);
        assert!(script.contains("CREATE TABLE IF NOT EXISTS onlyonce_keys"));
        assert!(script.contains("CREATE TABLE IF NOT EXISTS onlyonce_outbox"));
        assert!(script.contains(&format!("VALUES ('schema_version', '{VERSION}')")));
        assert!(script.ends_with(";\n"));
    }

    /// Goal: nothing is called that the newest MySQL has removed. The server itself is not in Debian, so
    /// every statement of the store is checked against the list.
    #[test]
    fn nothing_is_called_that_mysql_9_has_removed() {
        let sources = [
            include_str!("schema.rs"),
            include_str!("schema_1.sql"),
            include_str!("schema_2.sql"),
            include_str!("schema_3.sql"),
            include_str!("schema_4.sql"),
            include_str!("schema_5.sql"),
            include_str!("connect.rs"),
            include_str!("dialect.rs"),
            include_str!("outbox.rs"),
            include_str!("scan.rs"),
            include_str!("server.rs"),
            include_str!("text.rs"),
            include_str!("tidy.rs"),
            include_str!("transactional.rs"),
            include_str!("watch.rs"),
            include_str!("write.rs"),
            include_str!("../sql/message.rs"),
            include_str!("../sql/meta.rs"),
            include_str!("../sql/phases.rs"),
            include_str!("../sql/scan.rs"),
            include_str!("../sql/scopes.rs"),
        ];
        let removed = ["md5", "sha1", "sha", "password", "encrypt", "des_encrypt"];
        for (number, source) in sources.iter().enumerate() {
            let lines = source.lines();
            let code = lines.filter(|line| !line.trim_start().starts_with("//"));
            let code = code.collect::<Vec<_>>().join("\n").to_ascii_lowercase();
            for name in removed {
                let called = code.match_indices(&format!("{name}(")).any(|(at, _)| {
                    let before = code[..at].chars().next_back();
                    !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
                });
                assert!(!called, "source {number} calls {name}()");
            }
        }
    }
}

//! The PostgreSQL schema: how it is created, and which programs may use it.
//!
//! A schema has two numbers: its version, and the oldest program that can still use it. An upgrade that only
//! adds (a table, a nullable column) leaves the second number alone, so that old and new programs can run
//! side by side during a rolling upgrade.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::{Migrated, OpenError, indexes};
use crate::{identity::IDENTITY, sql::open::Found};

/// The newest schema version that this program knows.
pub const VERSION: i64 = 13;

/// The steps, each with the version it leads to and the oldest program that can use the result. Functions are
/// replaced as a whole: a change to them gives their step the next number, and every schema gets them.
const STEPS: [(i64, i64, &str); 7] = [
    (1, 1, include_str!("schema_1.sql")),
    (2, 2, include_str!("schema_2.sql")),
    (3, 2, include_str!("schema_3.sql")),
    (6, 2, include_str!("schema_4.sql")),
    (10, 2, include_str!("schema_5.sql")),
    (12, 2, include_str!("schema_6.sql")),
    (
        13,
        2,
        concat!(include_str!("rows.sql"), include_str!("functions.sql")),
    ),
];

/// Keeps two programs from creating the schema at the same time.
const LOCK: i64 = 0x6f6e_6c79_6f6e_6365;

/// How long a program waits for another one that is creating the schema, in seconds. If the other was killed,
/// the server still finishes the statement that it had sent.
const LOCK_SECONDS: u32 = 30;

/// The SQL that leads from version `from` to the newest, for running by hand.
pub fn script(from: i64) -> String {
    let make = match from {
        0 => "CREATE SCHEMA IF NOT EXISTS onlyonce;\n",
        _ => "",
    };
    let mut script = format!("BEGIN;\n{make}{}COMMIT;\n", steps(from));
    // Concurrently with the traffic; this cannot run in a transaction.
    if from > 0 && from < VERSION {
        script.push_str(&indexes::script("CONCURRENTLY "));
    }
    script
}

/// The steps that run in one transaction.
fn steps(from: i64) -> String {
    let mut steps = String::new();
    for (version, oldest, step) in STEPS.iter().filter(|(version, ..)| *version > from) {
        steps.push_str(step);
        steps.push_str(&note(*version, *oldest));
    }
    // A new table has no traffic yet.
    if from == 0 {
        steps.push_str(&indexes::script(""));
    }
    steps
}

fn note(version: i64, oldest: i64) -> String {
    format!(
        "INSERT INTO onlyonce.meta (name, value) VALUES\n    \
         ('schema_version', '{version}'), ('oldest_program', '{oldest}')\n    \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
    )
}

/// The version found, and the oldest program that can use it; `None` without a schema.
pub(super) async fn found(connection: &mut PgConnection) -> Result<Found, sqlx::Error> {
    let there = sqlx::query("SELECT to_regclass('onlyonce.meta') IS NOT NULL")
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?;
    if !there.try_get::<bool, _>(0)? {
        return Ok(None);
    }
    let rows = sqlx::query(
        "SELECT name, convert_from(value, 'UTF8')::bigint FROM onlyonce.meta \
         WHERE name IN ('schema_version', 'oldest_program')",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let number = |name: &str| {
        rows.iter()
            .find(|row| row.try_get::<&str, _>(0).is_ok_and(|found| found == name))
            .and_then(|row| row.try_get::<i64, _>(1).ok())
    };
    Ok(number("schema_version").zip(number("oldest_program")))
}

/// Upgrades the schema if it is older. Safe to run on all nodes at the same time.
pub(super) async fn migrate(connection: &mut PgConnection) -> Result<Migrated, OpenError> {
    let sql = OpenError::Sql;
    // A step may rewrite a large table, and another program may be migrating: both take longer than a
    // statement timeout. But a locked table is not waited for: all gateways would queue behind the wait.
    let lock = format!(
        "BEGIN; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; \
         SELECT pg_advisory_xact_lock({LOCK}); SET LOCAL lock_timeout TO DEFAULT"
    );
    let lock = sqlx::AssertSqlSafe(lock);
    connection.execute(lock).await.map_err(sql)?;
    let from = found(connection).await.map_err(sql)?;
    let from = from.map_or(0, |(version, _)| version);
    if from < VERSION {
        // A role that may use the schema need not be allowed to create one.
        if !has_schema(connection).await.map_err(sql)? {
            let create = "CREATE SCHEMA IF NOT EXISTS onlyonce";
            connection.execute(create).await.map_err(sql)?;
        }
        let steps = sqlx::AssertSqlSafe(steps(from));
        connection.execute(steps).await.map_err(sql)?;
    }
    connection.execute("COMMIT").await.map_err(sql)?;
    Ok(Migrated {
        from,
        to: from.max(VERSION),
    })
}

async fn has_schema(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query("SELECT to_regnamespace('onlyonce') IS NOT NULL")
        .persistent(false)
        .fetch_one(connection)
        .await?
        .try_get(0)
}

/// Whether a statement failed because the table or the schema does not exist.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("42P01" | "3F000"))
}

/// What distinguishes this database from copies elsewhere: its name, and the server's system identifier if
/// the role may read it.
pub(super) async fn place(connection: &mut PgConnection) -> Result<Vec<u8>, sqlx::Error> {
    let may_read = "SELECT current_database()::text, \
                    has_function_privilege('pg_catalog.pg_control_system()', 'execute')";
    let row = sqlx::query(may_read).persistent(false);
    let row = row.fetch_one(&mut *connection).await?;
    let (name, may_read): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
    let mut place = format!("postgres/{name}");
    if may_read {
        let sql = "SELECT system_identifier::text FROM pg_catalog.pg_control_system()";
        let row = sqlx::query(sql).persistent(false).fetch_one(connection);
        let system: String = row.await?.try_get(0)?;
        place.push_str(&format!("/{system}"));
    }
    Ok(place.into_bytes())
}

/// The identity that an operator has renewed, if any.
pub(super) async fn own_identity(
    connection: &mut PgConnection,
) -> Result<Option<Vec<u8>>, sqlx::Error> {
    noted(connection, IDENTITY).await
}

/// The secret created with the schema.
pub(super) async fn secret(connection: &mut PgConnection) -> Result<Option<Vec<u8>>, sqlx::Error> {
    noted(connection, "secret").await
}

async fn noted(connection: &mut PgConnection, name: &str) -> Result<Option<Vec<u8>>, sqlx::Error> {
    sqlx::query("SELECT value FROM onlyonce.meta WHERE name = $1")
        .bind(name)
        .persistent(false)
        .fetch_optional(connection)
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
        assert!(script.starts_with("BEGIN;\nCREATE SCHEMA IF NOT EXISTS onlyonce;\n"));
        assert!(script.ends_with("COMMIT;\n"));
        assert!(script.contains(&format!("('schema_version', '{VERSION}')")));
        let upgrade = super::script(VERSION - 1);
        let (whole, beside) = upgrade.split_once("COMMIT;\n").unwrap();
        assert!(!whole.contains("CREATE INDEX"));
        assert!(beside.contains("CREATE INDEX CONCURRENTLY IF NOT EXISTS keys_by_scope"));
    }
}

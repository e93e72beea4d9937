//! The tables on a PostgreSQL server, how they are created, and which programs may use them.
//!
//! A schema carries two numbers: the version it is at, and the oldest program that can still use it.
//! An upgrade that only adds (a table, a column that may be empty) leaves the second alone, so old
//! and new programs run side by side while they are replaced one by one.

use sqlx::{Executor as _, PgConnection, Row as _};

use super::{Migrated, OpenError, indexes};
use crate::{identity::IDENTITY, sql::open::Found};

/// The newest schema this program knows.
pub const VERSION: i64 = 13;

/// The steps, each with the version it leads to and the oldest program that can use the result. The
/// functions replace themselves: whoever changes them gives their step the next number, and every schema
/// gets them.
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

/// Keeps two programs from creating the schema at once.
const LOCK: i64 = 0x6f6e_6c79_6f6e_6365;

/// How long a program waits for another that is creating the schema, in seconds. One that was killed goes on
/// at the server until the statement ends that it had sent.
const LOCK_SECONDS: u32 = 30;

/// The SQL that leads from version `from` to the newest, for whoever runs it by hand.
pub fn script(from: i64) -> String {
    let make = match from {
        0 => "CREATE SCHEMA IF NOT EXISTS onlyonce;\n",
        _ => "",
    };
    let mut script = format!("BEGIN;\n{make}{}COMMIT;\n", steps(from));
    // Beside the traffic, which goes on meanwhile; no transaction can hold it.
    if from > 0 && from < VERSION {
        script.push_str(&indexes::script("CONCURRENTLY "));
    }
    script
}

/// What is done in one transaction.
fn steps(from: i64) -> String {
    let mut steps = String::new();
    for (version, oldest, step) in STEPS.iter().filter(|(version, ..)| *version > from) {
        steps.push_str(step);
        steps.push_str(&note(*version, *oldest));
    }
    // Nobody uses a new table yet.
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

/// The version that is there, and the oldest program that can use it; `None` for no schema.
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

/// Brings the schema up to date, unless it is or is newer. Safe to run on every node at once.
pub(super) async fn migrate(connection: &mut PgConnection) -> Result<Migrated, OpenError> {
    let sql = OpenError::Sql;
    // A step may rewrite a large table, and another program may be at it: both take longer than a statement
    // of the store may. A table that somebody holds is not waited for: all gateways would wait behind it.
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

/// Whether a statement failed because there is no such table, or no such schema.
pub(super) fn is_missing(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("42P01" | "3F000"))
}

/// What tells this database from copies of it elsewhere: its name, and the server's own identifier, where
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

/// The identity that an operator has made, where one has.
pub(super) async fn own_identity(
    connection: &mut PgConnection,
) -> Result<Option<Vec<u8>>, sqlx::Error> {
    noted(connection, IDENTITY).await
}

/// The secret that was created with the schema.
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

//! The tables on a PostgreSQL server, how they are created, and which programs may use them.
//!
//! A schema carries two numbers: the version it is at, and the oldest program that can still use it.
//! An upgrade that only adds (a table, a column that may be empty) leaves the second alone, so old
//! and new programs run side by side while they are replaced one by one.

use onlyonce_core::Secret;
use sqlx::{Executor as _, PgConnection, Row as _};

use super::OpenError;

/// The newest schema this program knows.
pub const VERSION: i64 = 2;

/// The steps, each with the version it leads to and the oldest program that can use the result.
const STEPS: [(i64, i64, &str); 2] = [
    (1, 1, include_str!("schema_1.sql")),
    (
        2,
        1,
        concat!(include_str!("schema_2.sql"), include_str!("functions.sql")),
    ),
];

/// Keeps two programs from creating the schema at once.
const LOCK: i64 = 0x6f6e_6c79_6f6e_6365;

/// What [`migrate`](super::migrate) did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version that was found; 0 for none.
    pub from: i64,
    /// The version that is there now.
    pub to: i64,
}

/// The SQL that leads from version `from` to the newest, for whoever runs it by hand.
pub fn script(from: i64) -> String {
    let mut script = String::from("BEGIN;\n");
    if from == 0 {
        script.push_str("CREATE SCHEMA IF NOT EXISTS onlyonce;\n");
    }
    for (version, oldest, step) in STEPS.iter().filter(|(version, ..)| *version > from) {
        script.push_str(step);
        script.push_str(&note(*version, *oldest));
    }
    script.push_str("COMMIT;\n");
    script
}

fn note(version: i64, oldest: i64) -> String {
    format!(
        "INSERT INTO onlyonce.meta (name, value) VALUES\n    \
         ('schema_version', '{version}'), ('oldest_program', '{oldest}')\n    \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value;\n"
    )
}

/// The version that is there, and the oldest program that can use it; `None` for no schema.
pub(super) async fn found(
    connection: &mut PgConnection,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
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
    connection.execute("BEGIN").await.map_err(sql)?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .persistent(false)
        .execute(&mut *connection)
        .await
        .map_err(sql)?;
    let from = found(connection).await.map_err(sql)?;
    let from = from.map_or(0, |(version, _)| version);
    if from < VERSION {
        let script = script(from);
        let inner = script
            .trim_start_matches("BEGIN;\n")
            .trim_end_matches("COMMIT;\n");
        // A role that may use the schema need not be allowed to create one.
        let inner = match has_schema(connection).await.map_err(sql)? {
            true => inner.trim_start_matches("CREATE SCHEMA IF NOT EXISTS onlyonce;\n"),
            false => inner,
        };
        let inner = sqlx::AssertSqlSafe(inner.to_owned());
        connection.execute(inner).await.map_err(sql)?;
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

/// Whether this program may use what is there.
pub(super) fn check(found: Option<(i64, i64)>) -> Result<(), OpenError> {
    match found {
        None => Err(OpenError::Older { found: 0 }),
        Some((version, _)) if version < VERSION => Err(OpenError::Older { found: version }),
        Some((version, oldest)) if oldest > VERSION => Err(OpenError::Newer {
            found: version,
            oldest,
            known: VERSION,
        }),
        Some(_) => Ok(()),
    }
}

/// The secret that was created with the schema.
pub(super) async fn secret(connection: &mut PgConnection) -> Result<Option<Vec<u8>>, sqlx::Error> {
    sqlx::query("SELECT value FROM onlyonce.meta WHERE name = 'secret'")
        .persistent(false)
        .fetch_optional(connection)
        .await?
        .map(|row| row.try_get(0))
        .transpose()
}

/// The secret in its own type.
pub(super) fn as_secret(bytes: Option<Vec<u8>>) -> Result<Secret, OpenError> {
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map(Secret::from_bytes)
        .ok_or(OpenError::Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_programs_may_use_what() {
        assert!(matches!(check(None), Err(OpenError::Older { found: 0 })));
        assert!(check(Some((VERSION, VERSION))).is_ok());
        // A newer schema that still takes this program: a rolling upgrade is under way.
        assert!(check(Some((VERSION + 1, VERSION))).is_ok());
        assert!(matches!(
            check(Some((VERSION + 1, VERSION + 1))),
            Err(OpenError::Newer { .. })
        ));
    }

    #[test]
    fn the_script_is_whole() {
        let script = script(0);
        assert!(script.starts_with("BEGIN;\nCREATE SCHEMA IF NOT EXISTS onlyonce;\n"));
        assert!(script.ends_with("COMMIT;\n"));
        assert!(script.contains(&format!("('schema_version', '{VERSION}')")));
    }
}

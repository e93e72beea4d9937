//! Indexes of large tables, built concurrently with the traffic: this cannot run in a transaction, and would
//! exceed any statement timeout.
//!
//! Only the speed of lists depends on them.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::server::Shared;

/// The settled keys of a scope, in order. Two scopes may share a hash.
const BY_SCOPE: (&str, &str) = ("keys_by_scope", "onlyonce.keys (hashtext(scope), n)");

/// Keeps two programs from building at once. The second does not wait: the first does the same.
const LOCK: i64 = 0x6f6f_696e_6465_7800;

/// The statement that builds a missing index.
pub(super) fn script(how: &str) -> String {
    let (name, of) = BY_SCOPE;
    format!("CREATE INDEX {how}IF NOT EXISTS {name} ON {of};\n")
}

/// Builds a missing index, on a connection of its own. Rebuilds one that another program left half built.
pub(super) async fn build(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    connection
        .execute("SET statement_timeout = 0; SET lock_timeout = 0")
        .await?;
    let lock = sqlx::query("SELECT pg_try_advisory_lock($1)").bind(LOCK);
    let locked = lock.persistent(false).fetch_one(&mut *connection).await?;
    if !locked.try_get::<bool, _>(0)? {
        return Ok(());
    }
    let (name, _) = BY_SCOPE;
    let is_valid =
        sqlx::query("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)");
    let is_valid = is_valid.bind(format!("onlyonce.{name}")).persistent(false);
    let found = is_valid.fetch_optional(&mut *connection).await?;
    match found.map(|row| row.try_get::<bool, _>(0)).transpose()? {
        Some(true) => {}
        there => {
            if there.is_some() {
                let drop = format!("DROP INDEX CONCURRENTLY IF EXISTS onlyonce.{name}");
                connection.execute(AssertSqlSafe(drop)).await?;
            }
            let create = AssertSqlSafe(script("CONCURRENTLY "));
            connection.execute(create).await?;
        }
    }
    let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(LOCK);
    unlock.persistent(false).execute(connection).await?;
    Ok(())
}

/// Builds a missing index, once. A role that does not own the tables cannot, and leaves it to `migrate`.
pub(super) async fn build_beside(shared: Arc<Shared>) {
    let Ok((mut connection, _)) = shared.line.connect().await else {
        return;
    };
    if let Err(error) = build(&mut connection).await {
        tracing::warn!(%error, "an index is missing and could not be built: lists of one client's keys walk \
                                all keys until `onlyonce migrate` has built it");
    }
}

//! The tables of the embedded store, the settings of a connection, and schema migrations.

use std::{path::Path, time::Duration};

use onlyonce_core::Secret;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params, types::FromSql};

use super::{OpenError, SqliteOptions};
use crate::{identity::IDENTITY, random_secret};

/// The newest schema this program knows.
pub(super) const VERSION: i64 = 5;
/// The `meta` row with the number up to which records are in the lists of scopes.
pub(super) const LISTED_TO: &str = "listed_to";
/// The length of the secret, in bytes.
const SECRET_BYTES: usize = 32;
/// How long a statement waits for a lock that a checkpoint holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How many prepared statements a connection keeps.
const PREPARED_STATEMENTS: usize = 64;

/// Version 1. Rows are appended to `keys`; the unique hash is the only index here, since an index on times
/// would be written twice for every key. Records in progress or unknown are also in `live`, which stays
/// small, so that the sweeper need not scan everything. Bodies are in a separate table, so that a walk over
/// the keys does not read them.
const VERSION_1: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE keys (
    n INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    row_version INTEGER NOT NULL,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    route TEXT NOT NULL,
    method TEXT NOT NULL,
    path TEXT NOT NULL,
    revision INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempt_id BLOB NOT NULL,
    fence INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    fingerprint BLOB,
    recipe BLOB NOT NULL,
    caller BLOB,
    tombstone_ttl INTEGER NOT NULL,
    last_error TEXT,
    created_at INTEGER,
    last_run_at INTEGER,
    completed_at INTEGER,
    expires_at INTEGER,
    lease_until INTEGER,
    unknown_since INTEGER,
    reconcile_after INTEGER,
    delete_at INTEGER,
    response_status INTEGER,
    response_bytes INTEGER,
    response_head BLOB,
    evidence BLOB,
    negatives INTEGER NOT NULL,
    inconclusive INTEGER NOT NULL,
    dead_letter INTEGER NOT NULL
);
CREATE TABLE bodies (n INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE live (n INTEGER PRIMARY KEY, lease_until INTEGER, reconcile_after INTEGER);
CREATE TABLE journal (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    id BLOB NOT NULL,
    event TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT,
    attempt INTEGER NOT NULL,
    actor TEXT NOT NULL,
    detail TEXT
);
CREATE INDEX journal_by_id ON journal (id);
CREATE TABLE recipes (id BLOB PRIMARY KEY, recipe BLOB NOT NULL) WITHOUT ROWID;
";

/// Version 2: tables for the application's own transactions. The schema reference describes the columns.
const VERSION_2: &str = "
CREATE TABLE outbox (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    claimed_at INTEGER,
    unclear_since INTEGER,
    delivered_at INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    attempt_id BLOB,
    key_id BLOB,
    settles TEXT,
    state TEXT NOT NULL DEFAULT 'pending',
    target TEXT NOT NULL,
    aggregatetype TEXT,
    aggregateid TEXT,
    type TEXT NOT NULL DEFAULT '',
    ordering_key TEXT,
    downstream_key TEXT NOT NULL,
    provider_id TEXT,
    last_error TEXT,
    headers TEXT NOT NULL DEFAULT '{}',
    payload BLOB NOT NULL
);
CREATE INDEX outbox_due ON outbox (target, due_at, n) WHERE state = 'pending';
CREATE INDEX outbox_in_order ON outbox (target, ordering_key, n)
    WHERE ordering_key IS NOT NULL AND state IN ('pending', 'dead', 'unknown');
CREATE INDEX outbox_dead ON outbox (n) WHERE state IN ('dead', 'unknown');
CREATE TABLE inbox (
    consumer TEXT NOT NULL,
    message_id TEXT NOT NULL,
    at INTEGER NOT NULL,
    keep_until INTEGER NOT NULL,
    PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
CREATE INDEX inbox_by_age ON inbox (keep_until);
CREATE TABLE phases (
    id BLOB PRIMARY KEY,
    operation TEXT NOT NULL,
    point TEXT NOT NULL,
    intent TEXT,
    provider_id TEXT,
    parameters BLOB NOT NULL,
    data BLOB NOT NULL,
    attempt_id BLOB NOT NULL,
    generation INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    finished INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX phases_unfinished ON phases (operation, updated_at) WHERE NOT finished;
";

/// Version 3: the notes of a record, besides its columns.
const VERSION_3: &str = "ALTER TABLE keys ADD COLUMN notes BLOB;\n";

/// Version 4: the scopes that have records, so that a key is found by one probe per scope. Whoever inserts a
/// record makes its scope known; for earlier records a gateway does so, by one scan of all records.
const VERSION_4: &str =
    "CREATE TABLE scopes (id BLOB PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;\n";

/// Version 5: the records of each scope in order, up to the number in `meta` under `listed_to`; beyond it,
/// queries scan `keys`. An index on scopes would add a page of the log to nearly every new key.
const VERSION_5: &str = "
CREATE TABLE scope_numbers (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE scope_lists (scope INTEGER, n INTEGER, PRIMARY KEY (scope, n)) WITHOUT ROWID;
";

/// The SQL that creates a store in an empty file.
pub fn script() -> String {
    format!(
        "-- A store does all of this by itself when it is opened, unless `store.migrate` is off.\n\
         BEGIN IMMEDIATE;\n\
         {VERSION_1}\
         -- Nobody else knows this secret, and without it nothing that is stored can be found.\n\
         INSERT INTO meta (name, value) VALUES ('secret', randomblob({SECRET_BYTES}));\n\
         {VERSION_2}\
         {VERSION_3}\
         {VERSION_4}\
         {VERSION_5}\
         PRAGMA user_version = {VERSION};\n\
         COMMIT;\n"
    )
}

/// Opens a connection with the settings that the level `sync` requires.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The checkpoint thread does it; a committing thread would make its group wait.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    Ok(connection)
}

/// Opens a connection for reading only.
pub(super) fn connect_to_read(path: &Path) -> rusqlite::Result<Connection> {
    let connection = connect(path)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Checks that the settings took effect: SQLite returns the actual value, not the requested one.
pub(super) fn check_settings(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let wanted = [("journal_mode", "wal"), ("synchronous", "2")];
    for (pragma, expected) in wanted {
        let found: rusqlite::types::Value = connection
            .pragma_query_value(None, pragma, |row| row.get(0))
            .map_err(OpenError::sqlite(path))?;
        let found = match found {
            rusqlite::types::Value::Text(text) => text,
            rusqlite::types::Value::Integer(number) => number.to_string(),
            _ => String::new(),
        };
        if found != expected {
            return Err(OpenError::Setting {
                path: path.to_owned(),
                pragma,
                found,
            });
        }
    }
    Ok(())
}

/// Creates or upgrades the schema.
pub(super) fn prepare(
    connection: &mut Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<(), OpenError> {
    let sqlite = OpenError::sqlite(path);
    let found: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sqlite)?;
    if found > VERSION {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found,
            known: VERSION,
        });
    }
    if found == VERSION {
        return Ok(());
    }
    if found == 0 && !options.create {
        return Err(OpenError::Absent(path.to_owned()));
    }
    if !options.migrate {
        return Err(OpenError::Older {
            path: path.to_owned(),
            found,
        });
    }
    upgrade(connection, found).map_err(sqlite)
}

fn upgrade(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if found < 1 {
        transaction.execute_batch(VERSION_1)?;
        transaction.execute(
            "INSERT INTO meta (name, value) VALUES ('secret', ?1)",
            params![random_secret().as_bytes()],
        )?;
    } else {
        // Another program's file may have the same number, and must stay unchanged.
        let ours = "SELECT value FROM meta WHERE name = 'secret'";
        transaction.query_row(ours, [], |_| Ok(()))?;
    }
    if found < 2 {
        transaction.execute_batch(VERSION_2)?;
    }
    if found < 3 {
        transaction.execute_batch(VERSION_3)?;
    }
    if found < 4 {
        transaction.execute_batch(VERSION_4)?;
    }
    transaction.execute_batch(VERSION_5)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// The secret that was created with the schema.
pub(super) fn secret(connection: &Connection, path: &Path) -> Result<Secret, OpenError> {
    let found: Option<Vec<u8>> = noted(connection, "secret").map_err(OpenError::sqlite(path))?;
    found
        .and_then(|bytes| bytes.try_into().ok())
        .map(Secret::from_bytes)
        .ok_or_else(|| OpenError::Damaged(path.to_owned()))
}

/// The identity that an operator has set, if any.
pub(super) fn own_identity(connection: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    noted(connection, &format!("block/{IDENTITY}"))
}

/// The position of the reaper's walk.
pub(super) fn walk_position(connection: &Connection) -> rusqlite::Result<i64> {
    Ok(noted(connection, "walked_to")?.unwrap_or(0))
}

/// The number up to which records are in the lists of scopes.
pub(super) fn listed_to(connection: &Connection) -> rusqlite::Result<i64> {
    Ok(noted(connection, LISTED_TO)?.unwrap_or(0))
}

/// The highest number of a record.
pub(super) fn last_number(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT coalesce(max(n), 0) FROM keys";
    connection.query_row(sql, [], |row| row.get(0))
}

/// The value stored under `name`.
pub(super) fn noted<T: FromSql>(
    connection: &Connection,
    name: &str,
) -> rusqlite::Result<Option<T>> {
    let sql = "SELECT value FROM meta WHERE name = ?1";
    let found = connection.query_row(sql, params![name], |row| row.get(0));
    found.optional()
}

#[cfg(test)]
mod tests {
    use onlyonce_core::Scope;

    use super::*;
    use crate::{Filter, Store as _, sqlite::SqliteStore};

    /// Undoes what each version has added, newest first.
    const BACK: [(i64, &str); 4] = [
        (4, "DROP TABLE scope_lists; DROP TABLE scope_numbers;"),
        (3, "DROP TABLE scopes;"),
        (2, "ALTER TABLE keys DROP COLUMN notes;"),
        (1, "DROP TABLE outbox; DROP TABLE inbox; DROP TABLE phases;"),
    ];

    const ROW: &str = "INSERT INTO keys (id, row_version, scope, key, route, method, path, revision, state, \
        attempt_id, fence, generation, recipe, tombstone_ttl, negatives, inconclusive, dead_letter) \
        VALUES (zeroblob(16), 1, 'client:me', 'k', 'r', 'POST', '/', 1, 'completed', zeroblob(16), 1, 1, \
        zeroblob(8), 0, 0, 0, 0)";

    /// Goal: a file of every earlier version is opened, keeps its secret and its rows, and has what this
    /// version needs: the rows of a client are listed.
    #[tokio::test]
    async fn a_file_of_every_earlier_version_is_upgraded() {
        let mut back = String::new();
        for (version, step) in BACK {
            back.push_str(step);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("s.db");
            drop(SqliteStore::open(&path).unwrap());
            let connection = connect(&path).unwrap();
            let before = *secret(&connection, &path).unwrap().as_bytes();
            connection.execute_batch(&back).unwrap();
            connection.execute(ROW, []).unwrap();
            connection
                .pragma_update(None, "user_version", version)
                .unwrap();
            drop(connection);
            let strict = SqliteOptions {
                migrate: false,
                ..SqliteOptions::default()
            };
            let refused = SqliteStore::open_with(&path, &strict).map(drop);
            assert!(matches!(refused, Err(OpenError::Older { .. })), "{version}");
            let store = SqliteStore::open(&path).unwrap();
            assert_eq!(store.secret().as_bytes(), &before, "{version}");
            let scopes = [Scope::client("me")];
            let listed = store.list_in(&scopes, &Filter::default(), None, 10).await;
            assert_eq!(listed.unwrap().unwrap().items.len(), 1, "{version}");
            assert_eq!(store.scopes(None).await.unwrap(), Some(Vec::new()));
            drop(store);
            let connection = connect(&path).unwrap();
            let found = connection.pragma_query_value(None, "user_version", |row| row.get(0));
            let found: i64 = found.unwrap();
            assert_eq!(found, VERSION, "{version}");
        }
    }

    /// Goal: a file of a newer version is refused and not changed.
    #[test]
    fn a_newer_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        drop(SqliteStore::open(&path).unwrap());
        let connection = connect(&path).unwrap();
        connection
            .pragma_update(None, "user_version", VERSION + 1)
            .unwrap();
        drop(connection);
        let refused = SqliteStore::open(&path).map(drop);
        assert!(matches!(refused, Err(OpenError::Newer { .. })));
    }
}

//! Tests how the embedded store finds records: by SQLite's query plan, and by its count of steps.

use std::path::Path;

use onlyonce_core::{Key, RecordId, Scope, Secret};
use rusqlite::{Connection, StatementStatus, params_from_iter};

use super::{SqliteStore, dialect::SqliteDialect, known_ids::NEXT_IDS, lister, schema};
use crate::sql::{
    dialect::{Dialect as _, Statement, Value},
    scan, scopes,
};

/// Records in the large tests, spread over ten clients.
const MANY: usize = 50_000;

/// Rows as the store writes them, as far as a search reads them.
fn fill(connection: &mut Connection, secret: &Secret, from: usize, to: usize) {
    let transaction = connection.transaction().unwrap();
    for number in from..to {
        let scope = Scope::client(&format!("c{}", number % 10));
        let key = Key::from_stored(&format!("k{number}"));
        let id = secret.record_id(scope.as_str(), &key);
        let values: [&dyn rusqlite::ToSql; 3] = [&id.0, &scope.as_str(), &key.as_str()];
        let sql = "INSERT INTO keys (id, row_version, scope, key, route, method, path, revision, state, \
                   attempt_id, fence, generation, recipe, tombstone_ttl, negatives, inconclusive, \
                   dead_letter) VALUES (?1, 1, ?2, ?3, 'r', 'POST', '/', 1, 'completed', zeroblob(16), 1, \
                   1, zeroblob(8), 0, 0, 0, 0)";
        let mut statement = transaction.prepare_cached(sql).unwrap();
        statement.execute(&values[..]).unwrap();
    }
    transaction.commit().unwrap();
}

/// The steps of SQLite's virtual machine for `statement`, the full-scan steps among them, and the rows.
fn steps(connection: &Connection, Statement { sql, values }: Statement) -> (i32, i32, usize) {
    let mut prepared = connection.prepare(&sql).unwrap();
    let mut rows = prepared.query(params_from_iter(values)).unwrap();
    let mut found = 0;
    while rows.next().unwrap().is_some() {
        found += 1;
    }
    drop(rows);
    let status = |status| prepared.get_status(status);
    let walked = status(StatementStatus::FullscanStep);
    (status(StatementStatus::VmStep), walked, found)
}

fn plan(connection: &Connection, Statement { sql, values }: Statement) -> String {
    let sql = format!("EXPLAIN QUERY PLAN {sql}");
    let mut prepared = connection.prepare(&sql).unwrap();
    let lines = prepared.query_map(params_from_iter(values), |row| row.get::<_, String>(3));
    let lines: Result<Vec<String>, _> = lines.unwrap().collect();
    lines.unwrap().join("; ")
}

fn store_at(path: &Path) -> Secret {
    SqliteStore::open(path).unwrap();
    let connection = schema::connect(path).unwrap();
    schema::secret(&connection, path).unwrap()
}

/// Goal: the filter of ids is made from the index on ids, and reads no record.
#[test]
fn ids_are_read_off_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    store_at(&path);
    let connection = schema::connect(&path).unwrap();
    let values = vec![Value::bytes([0; 16])];
    let plan = plan(&connection, SqliteDialect::statement(NEXT_IDS, values));
    assert!(
        plan.contains("COVERING INDEX") && !plan.contains("SCAN"),
        "{plan}"
    );
}

/// Goal: a key is found in the same number of steps among 50,000 records as among ten.
///
/// Evidence: SQLite's count of the steps of its machine, and its plan.
#[test]
fn a_key_is_found_in_the_same_number_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let secret = store_at(&path);
    let mut connection = schema::connect(&path).unwrap();
    let key = Key::from_stored("k7");
    let ids: Vec<RecordId> = (0..10)
        .map(|client| secret.record_id(Scope::client(&format!("c{client}")).as_str(), &key))
        .collect();
    let probes = || scopes::probes::<SqliteDialect>(&ids);
    fill(&mut connection, &secret, 0, 10);
    let among_few = steps(&connection, probes());
    assert_eq!((among_few.1, among_few.2), (0, 1));
    fill(&mut connection, &secret, 10, MANY);
    assert_eq!(steps(&connection, probes()), among_few);
    let plan = plan(&connection, probes());
    assert!(
        plan.contains("SEARCH k USING INDEX") && !plan.contains("SCAN"),
        "{plan}"
    );
}

/// Goal: records in progress or unknown are found through the `live` table, however many records there are.
///
/// Evidence: SQLite's plan and its count of steps, which is the same among many records as among few.
#[test]
fn a_live_state_is_found_among_the_live() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let secret = store_at(&path);
    let mut connection = schema::connect(&path).unwrap();
    fill(&mut connection, &secret, 0, 10);
    connection
        .execute_batch(
            "UPDATE keys SET state = 'unknown' WHERE n = 3; INSERT INTO live (n) VALUES (3)",
        )
        .unwrap();
    let live = || {
        let sql = SqliteDialect::records("k.n < ?1 AND k.state = 'unknown'", true);
        let values = [i64::MAX, 10].map(crate::sql::dialect::Value::Number);
        SqliteDialect::statement(&sql, values.to_vec())
    };
    let among_few = steps(&connection, live());
    assert_eq!(among_few.2, 1);
    fill(&mut connection, &secret, 10, MANY);
    let plan = plan(&connection, live());
    assert_eq!(steps(&connection, live()), among_few, "{plan}");
}

/// Goal: the records of a client are listed in the same number of steps among 50,000 records as among 1,000,
/// once they are in the lists of scopes; of the others, a list query scans at most one window.
///
/// Evidence: SQLite's count of the steps of its machine, and its plan.
#[test]
fn a_client_is_listed_in_the_same_number_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let secret = store_at(&path);
    let mut connection = schema::connect(&path).unwrap();
    let of_client = || {
        let (sql, values) = scan::of_scope::<SqliteDialect>(
            &Scope::client("c7"),
            &crate::Filter::default(),
            Some(900),
            10,
        );
        SqliteDialect::statement(&sql, values)
    };
    let list_all = || {
        let store = SqliteStore::open(&path).unwrap();
        let reader = schema::connect_to_read(&path).unwrap();
        let gone = lister::Gone::default();
        lister::round(&reader, &store.writer, &gone, 1_000, || true).unwrap();
    };
    fill(&mut connection, &secret, 0, 1_000);
    let unlisted = steps(&connection, of_client());
    list_all();
    let among_few = steps(&connection, of_client());
    assert_eq!((among_few.1, among_few.2), (0, 11));
    assert!(among_few.0 < unlisted.0, "{among_few:?} {unlisted:?}");
    fill(&mut connection, &secret, 1_000, MANY);
    list_all();
    let plan = plan(&connection, of_client());
    assert_eq!(steps(&connection, of_client()), among_few, "{plan}");
    assert!(!plan.contains("SCAN k"), "{plan}");
}

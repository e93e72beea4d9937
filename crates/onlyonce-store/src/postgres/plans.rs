//! Tests of PostgreSQL's query plans.

use onlyonce_core::RecordId;
use sqlx::{Connection as _, PgConnection, Row as _, postgres::PgRow};

use super::{
    PostgresOptions,
    dialect::{PgDialect, bound},
    migrate,
};
use onlyonce_testkit::servers::Postgres;

use crate::sql::{
    dialect::{Dialect as _, Statement, Value},
    scan, scopes,
};

/// 200,000 settled keys, a few live ones, and 20,000 scopes.
const FILL: &str = "
    INSERT INTO onlyonce.keys (n, id, revision, state, attempt_id, fence, generation, recipe, scope, key, \
        route, method, path, tombstone_ttl, created_at, row_version)
    SELECT i, md5(i::text)::uuid, 1, 'completed', md5(i::text)::uuid, 1, 1, '\\x0011223344556677', \
        'client:c' || i % 100, 'k' || i, 'r', 'POST', '/', 0, i, 1 FROM generate_series(1, 200000) i;
    INSERT INTO onlyonce.live (n, id, revision, state, attempt_id, fence, generation, recipe, scope, key, \
        route, method, path, tombstone_ttl, created_at, row_version)
    SELECT i, md5(i::text)::uuid, 1, 'unknown', md5(i::text)::uuid, 1, 1, '\\x0011223344556677', \
        'client:c' || i % 100, 'k' || i, 'r', 'POST', '/', 0, i, 1 FROM generate_series(200001, 200005) i;
    INSERT INTO onlyonce.scopes (id, name) SELECT md5(i::text)::uuid, 'client:c' || i \
        FROM generate_series(1, 20000) i;
    ANALYZE onlyonce.keys; ANALYZE onlyonce.live; ANALYZE onlyonce.scopes;";

async fn plan(connection: &mut PgConnection, statement: Statement) -> String {
    let Statement { sql, values } = statement;
    let sql = format!("EXPLAIN {sql}");
    let explain = bound(Statement { sql, values });
    let rows = explain.persistent(false).fetch_all(connection).await;
    let lines = rows.unwrap();
    // Cut before the ids, of which there are many.
    let line = |row: &PgRow| row.get::<String, _>(0).chars().take(100).collect();
    let lines: Vec<String> = lines.iter().map(line).collect();
    lines.join("\n")
}

/// Goal: a key, a scope, a client and a live state are found by indexes, or in the small table of live
/// records; the records are never walked.
///
/// Method: fill the tables, and let the server explain the very statements of the store.
/// Evidence: no plan reads all of `keys` or of `scopes`, by a sequential scan or along an index.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_found_by_a_walk() {
    let server = Postgres::start_with(&["fsync=off"]);
    migrate(&server.url(), &PostgresOptions::default())
        .await
        .unwrap();
    server.sql(FILL);
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    for many in [1, 100, 500] {
        let ids: Vec<RecordId> = (0..many)
            .map(|id: u128| RecordId(id.to_be_bytes()))
            .collect();
        let plan = plan(&mut connection, scopes::probes::<PgDialect>(&ids)).await;
        assert!(plan.contains("keys_by_id"), "{plan}");
        assert!(!plan.contains("Seq Scan on keys"), "{plan}");
    }
    let next = scopes::next::<PgDialect>(Some(RecordId([7; 16])));
    let plan_of_scopes = plan(&mut connection, next).await;
    assert!(plan_of_scopes.contains("scopes_by_id"), "{plan_of_scopes}");
    for client in ["c7", "nobody"] {
        let scope = onlyonce_core::Scope::client(client);
        let filter = crate::Filter::default();
        let (sql, values) = scan::of_scope::<PgDialect>(&scope, &filter, Some(150_000), 50);
        let plan = plan(&mut connection, PgDialect::statement(&sql, values)).await;
        assert!(plan.contains("using keys_by_scope"), "{plan}");
        assert!(!plan.contains("Seq Scan on keys"), "{plan}");
        assert!(!plan.contains("keys_by_number"), "{plan}");
    }
    let sql = PgDialect::records("k.n < ?1 AND k.state = 'unknown'", true);
    let values = vec![Value::Number(i64::MAX), Value::Number(10)];
    let live = plan(&mut connection, PgDialect::statement(&sql, values)).await;
    assert!(
        live.contains("on live k") && !live.contains("on keys"),
        "{live}"
    );
}

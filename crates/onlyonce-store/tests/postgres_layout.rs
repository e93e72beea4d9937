//! The two tables of the PostgreSQL store: that no key is ever in both, that a key which settles while
//! it is asked for is not new, and that what an older program stored is still read.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{sync::Arc, time::Duration};

use onlyonce_core::{Key, RecordId, Secret, State, Timestamp, record::StoredBody};
use onlyonce_store::{
    Filter, Store,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::Postgres;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

/// The schema as the first program made it.
const SCHEMA_1: &str = include_str!("../src/postgres/schema_1.sql");

fn secret(server: &Postgres) -> Secret {
    let hex = server.sql("SELECT encode(value, 'hex') FROM onlyonce.meta WHERE name = 'secret'");
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    Secret::from_bytes(bytes.try_into().unwrap())
}

/// Goal: a key that settles after a reservation has looked and before it has inserted is not new.
///
/// Method: a transaction moves the key from `live` to `keys` and stays open; a second reservation of
/// the key runs into it and waits; the transaction commits.
/// Evidence: the second reservation reports nothing new, and the key stands in `keys` alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_settles_meanwhile_is_not_new() {
    let server = Postgres::start();
    let _store = PostgresStore::open(&server.url(), &PostgresOptions::default()).await;
    let put = "SELECT onlyonce.put_new(1000, ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], \
               '{1}', '{1}', '{1}', '{1}', ARRAY['00000000-0000-0000-0000-000000000002']::uuid[], \
               ARRAY['\\x01']::bytea[], ARRAY['\\x02']::bytea[], ARRAY[NULL]::bytea[], \
               '{in_progress}', '{global}', '{k}', ARRAY[NULL]::uuid[], '{r}', '{POST}', '{/}', \
               '{1}', ARRAY[NULL]::bigint[], '{2}')::text";
    assert_eq!(
        server.sql(put),
        "{00000000-0000-0000-0000-000000000001}",
        "the first is new"
    );
    let mut settling = PgConnection::connect(&server.url()).await.unwrap();
    settling
        .execute(
            "BEGIN; WITH gone AS (DELETE FROM onlyonce.live RETURNING *) \
             INSERT INTO onlyonce.keys SELECT * FROM gone",
        )
        .await
        .unwrap();
    let mut asking = PgConnection::connect(&server.url()).await.unwrap();
    let asked = tokio::spawn(async move {
        let row = asking.fetch_one(put).await.unwrap();
        row.get::<Option<String>, _>(0)
    });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let mut looks = 0;
    while server.sql(waits) == "0" {
        looks += 1;
        assert!(looks < 1_000, "the second reservation never waited");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    settling.execute("COMMIT").await.unwrap();
    let new = asked.await.unwrap();
    assert!(
        new.as_deref().is_none_or(|ids| ids == "{}"),
        "it was settled, not new: {new:?}"
    );
    assert_eq!(server.sql("SELECT count(*) FROM onlyonce.live"), "0");
    assert_eq!(server.sql("SELECT count(*) FROM onlyonce.keys"), "1");
}

/// Goal: rows of the first schema are read after the upgrade, and can be changed.
///
/// Method: the first schema with a completed key and one in progress, as its program wrote them;
/// then this program opens the database.
/// Evidence: both come back with every field, the live one among the live ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_the_first_schema_are_read() {
    let server = Postgres::start();
    server.sql("CREATE SCHEMA onlyonce");
    server.sql(SCHEMA_1);
    server.sql(
        "INSERT INTO onlyonce.meta (name, value) VALUES ('schema_version', '1'), ('oldest_program', '1')",
    );
    let secret = secret(&server);
    let id = |key: &str| secret.record_id("global", &Key::from_stored(key));
    let columns = "id, revision, tombstone_ttl, fence, generation, attempt_id, fingerprint, recipe, \
                   state, scope, key, route, method, path, created_at, last_run_at, row_version, \
                   inconclusive, dead_letter";
    let values = |id: RecordId, key: &str, state: &str, inconclusive: u8| {
        format!(
            "'\\x{id}', 7, 5000, 3, 2, '\\x000102030405060708090a0b0c0d0e0f', sha256('x'), \
             '\\x0102030405060708', '{state}', 'global', '{key}', 'r', 'POST', '/p', 100, 150, 1, \
             {inconclusive}, {}",
            inconclusive > 0
        )
    };
    let done = values(id("done"), "done", "completed", 0);
    let live = values(id("live"), "live", "unknown", 4);
    server.sql(&format!(
        "INSERT INTO onlyonce.keys ({columns}, negatives, completed_at, expires_at, response_status, \
         response_bytes, response_head, response_body) VALUES ({done}, 0, 160, 9000000000000, 201, \
         4, '\\x01c900010000', 'paid'); \
         INSERT INTO onlyonce.keys ({columns}, negatives, unknown_since, reconcile_after) \
         VALUES ({live}, 1, 170, 180); \
         INSERT INTO onlyonce.live SELECT n FROM onlyonce.keys WHERE key = 'live'; \
         INSERT INTO onlyonce.journal (at, attempt, id, event, actor) \
         VALUES (1, 3, '\\x{}', 'became_unknown', 'executor')",
        id("live")
    ));
    let store: Arc<dyn Store> = Arc::new(
        PostgresStore::open(&server.url(), &PostgresOptions::default())
            .await
            .unwrap(),
    );
    let done = store.lookup(id("done")).await.unwrap().value.unwrap();
    assert_eq!((done.state, done.generation), (State::Completed, 2));
    assert_eq!(done.times.last_run_at, Some(Timestamp(150)));
    assert!(matches!(
        &done.response.as_ref().unwrap().body,
        StoredBody::Full { bytes, .. } if bytes == "paid"
    ));
    let live = store.lookup(id("live")).await.unwrap().value.unwrap();
    assert_eq!((live.negatives, live.inconclusive), (1, 4));
    assert!(live.dead_letter);
    assert_eq!(store.due(10).await.unwrap().value.len(), 1);
    assert_eq!(store.history(live.id).await.unwrap().len(), 1);
    let listed = store.list(&Filter::default(), None, 10).await.unwrap();
    assert_eq!(listed.items.len(), 2);
    assert!(store.delete(done.id, done.revision).await.unwrap());
}

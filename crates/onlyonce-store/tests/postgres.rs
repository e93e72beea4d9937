//! What only the PostgreSQL store can show: rows that others hold, neighbours in a batch, hosts.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
    record::{Change, Draft},
};
use onlyonce_store::{
    Filter, Inserted, Store, StoreError, Swapped,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::{Postgres, free_port};
use sqlx::{Connection as _, Executor as _, PgConnection};

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(url, &PostgresOptions::default())
        .await
        .unwrap()
}

fn draft(store: &dyn Store, scope: &Scope, key: &str, number: u128) -> Draft {
    let key = Key::from_stored(key);
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope: scope.clone(),
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(number),
        route: "r".into(),
        method: "POST".into(),
        path: "/".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    machine::first(&request, &Policy::default())
}

async fn reserve(store: &dyn Store, key: &str, number: u128) -> Record {
    let draft = draft(store, &Scope::global(), key, number);
    match store.insert_or_get(draft).await.unwrap().value {
        Inserted::New(record) => record,
        Inserted::Existing(_) => panic!("the key was there"),
    }
}

fn completion(record: &Record) -> Change {
    let answer = Arc::new(StoredResponse::plain(StatusCode::CREATED, "paid"));
    let settlement = Settlement::Complete(answer);
    let settled = machine::apply(
        Some(record),
        &End {
            attempt: record.attempt_id,
            settlement: &settlement,
        },
        Timestamp::default(),
        &Policy::default(),
    );
    match settled.swapped() {
        Some(change) => change,
        other => panic!("{other:?}"),
    }
}

/// Goal: a row that an application holds in its own transaction holds up nobody else.
///
/// Method: twenty keys; one row is locked by another session; all are completed at once.
/// Evidence: nineteen are done while the lock stands; the last one once it is gone, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_holds_up_nobody_else() {
    let server = Postgres::start();
    let store = Arc::new(open(&server.url()).await);
    let mut records = Vec::new();
    for number in 0..20 {
        records.push(reserve(&*store, &format!("k{number}"), number + 1).await);
    }
    let mut other = PgConnection::connect(&server.url()).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    let held = sqlx::query("SELECT 1 FROM onlyonce.live WHERE key = 'k7' FOR UPDATE");
    held.execute(&mut other).await.unwrap();
    let mut tasks: Vec<_> = records
        .iter()
        .map(|record| {
            let (store, revision, change) = (store.clone(), record.revision, completion(record));
            tokio::spawn(async move { store.swap(revision, change).await.unwrap().value })
        })
        .collect();
    let locked = tasks.remove(7);
    for task in tasks {
        let swapped = tokio::time::timeout(Duration::from_secs(5), task).await;
        assert!(matches!(swapped.unwrap().unwrap(), Swapped::Done(_)));
    }
    assert!(!locked.is_finished(), "the lock still stands");
    other.execute("COMMIT").await.unwrap();
    let swapped = tokio::time::timeout(Duration::from_secs(5), locked).await;
    assert!(matches!(swapped.unwrap().unwrap(), Swapped::Done(_)));
}

/// Goal: a row that the server refuses costs its neighbours nothing.
///
/// Method: forty keys at once, one of them in a scope with a NUL, which PostgreSQL takes in no text.
/// Evidence: thirty-nine are new; the one is an error that promises that nothing was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_neighbour_costs_nothing() {
    let server = Postgres::start();
    let store = Arc::new(open(&server.url()).await);
    let tasks: Vec<_> = (0..40_u128)
        .map(|number| {
            let scope = match number {
                13 => Scope::client("a\0b"),
                _ => Scope::global(),
            };
            let draft = draft(&*store, &scope, &format!("k{number}"), number + 1);
            let store = store.clone();
            tokio::spawn(async move { store.insert_or_get(draft).await })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        let outcome = task.await.unwrap();
        match number {
            13 => assert!(
                matches!(outcome, Err(StoreError::Unavailable(_))),
                "{outcome:?}"
            ),
            _ => assert!(matches!(outcome.unwrap().value, Inserted::New(_))),
        }
    }
    assert_eq!(server.sql("SELECT count(*) FROM onlyonce.keys"), "0");
    assert_eq!(server.sql("SELECT count(*) FROM onlyonce.live"), "39");
}

/// Goal: of several hosts, the one that takes writes is used.
///
/// Method: a URL with a port where nobody listens, a standby, and the primary.
/// Evidence: a key is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_that_takes_writes() {
    let primary = Postgres::start();
    let standby = primary.standby("one");
    let url = format!(
        "postgres://onlyonce@127.0.0.1:{},127.0.0.1:{},127.0.0.1:{}/onlyonce",
        free_port(),
        standby.port(),
        primary.port()
    );
    let store = open(&url).await;
    reserve(&store, "k", 1).await;
    assert_eq!(
        store.level(),
        onlyonce_store::Level::Async,
        "a standby that no write waits for"
    );
}

/// Goal: of two programs that reserve a key by SQL at once, one executes.
///
/// Method: one reserves in a transaction that stays open; the other one meets its row and waits; then the
/// first commits, or takes it back.
/// Evidence: what the second one is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_by_sql_that_meets_an_open_one() {
    const RESERVE: &str = "SELECT outcome FROM onlyonce.reserve('app', $1)";
    let server = tokio::task::block_in_place(Postgres::start);
    let _store = open(&server.url()).await;
    for (end, told) in [("COMMIT", "in_progress"), ("ROLLBACK", "execute")] {
        let mut first = PgConnection::connect(&server.url()).await.unwrap();
        let mut second = PgConnection::connect(&server.url()).await.unwrap();
        first.execute("BEGIN").await.unwrap();
        let reserved = sqlx::query_scalar(RESERVE).bind(end);
        let outcome: String = reserved.fetch_one(&mut first).await.unwrap();
        assert_eq!(outcome, "execute");
        let waiting = tokio::spawn(async move {
            let reserved = sqlx::query_scalar(RESERVE).bind(end);
            let outcome: String = reserved.fetch_one(&mut second).await.unwrap();
            outcome
        });
        loop {
            let blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted";
            let blocked: i64 = sqlx::query_scalar(blocked)
                .fetch_one(&mut first)
                .await
                .unwrap();
            if blocked > 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        first.execute(end).await.unwrap();
        assert_eq!(waiting.await.unwrap(), told);
    }
}

/// What the server says of a statement that it refuses: its code and its hint.
async fn refused(connection: &mut PgConnection, sql: &str) -> (String, Option<String>) {
    let failed = connection.fetch_all(sqlx::AssertSqlSafe(sql.to_owned()));
    let Err(sqlx::Error::Database(error)) = failed.await else {
        panic!("it was not refused: {sql}");
    };
    let error = error.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    (error.code().to_owned(), error.hint().map(str::to_owned))
}

/// Goal: whoever passes NULL by mistake has said nothing: no key is given back, none loses its lease. And what
/// only announces an answer is none.
///
/// Method: each argument of each function in turn, and statuses below 200; and a row in progress without a lease.
/// Evidence: the code of the refusal; the row is as it was. The last one can still be swept.
#[tokio::test(flavor = "multi_thread")]
async fn null_is_not_an_argument() {
    let server = tokio::task::block_in_place(Postgres::start);
    let _store = open(&server.url()).await;
    let token = server.sql("SELECT attempt_token FROM onlyonce.reserve('app', 'k')");
    let row = "SELECT md5(l::text) FROM onlyonce.live l";
    let before = server.sql(row);
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let mut calls = vec![
        ("22023", format!("fail('{token}', NULL)")),
        ("22004", format!("renew('{token}', lease => NULL)")),
        ("22004", format!("renew('{token}', max_execution => NULL)")),
        ("22023", "reserve(NULL, 'k')".to_owned()),
        ("22023", "reserve('app', NULL)".to_owned()),
        ("OO001", "complete(NULL, 200)".to_owned()),
        ("22023", format!("complete('{token}', NULL)")),
        ("22023", format!("complete('{token}', 101)")),
        ("22023", format!("settle('{token}', NULL, '{{}}', 'x')")),
        ("22023", format!("settle('{token}', 199, '{{}}', 'x')")),
        ("22004", "enqueue(NULL, 'x')".to_owned()),
        ("22004", "enqueue('t', NULL)".to_owned()),
        ("22004", "process_once(NULL, 'm')".to_owned()),
        ("22004", "process_once('c', NULL)".to_owned()),
        ("22004", "process_once('c', 'm', NULL)".to_owned()),
        ("22004", "sweep(NULL)".to_owned()),
        ("22004", "reap(NULL)".to_owned()),
    ];
    for name in [
        "operation",
        "request",
        "lease",
        "tombstone_ttl",
        "after_expiry",
        "route",
    ] {
        calls.push(("22004", format!("reserve('app', 'new', {name} => NULL)")));
    }
    for name in ["headers", "type", "due_in", "notify"] {
        calls.push(("22004", format!("enqueue('t', 'x', {name} => NULL)")));
    }
    for (code, call) in calls {
        let (found, _) = refused(&mut connection, &format!("SELECT onlyonce.{call}")).await;
        assert_eq!(found, code, "{call}");
        assert_eq!(server.sql(row), before, "{call}");
    }
    for table in ["outbox", "inbox", "keys"] {
        let count = server.sql(&format!("SELECT count(*) FROM onlyonce.{table}"));
        assert_eq!(count, "0", "{table}");
    }
    // A token that is not there is like one that nobody knows.
    assert_eq!(server.sql("SELECT onlyonce.fail(NULL)"), "lost");
    assert_eq!(server.sql("SELECT onlyonce.renew(NULL)"), "f");

    server.sql(
        "DO $$ DECLARE k onlyonce.row; BEGIN \
         SELECT (onlyonce.found(uuid_send(l.id))).* INTO k FROM onlyonce.live l; \
         k.lease_until := NULL; PERFORM onlyonce.put(k); END $$",
    );
    assert_eq!(server.sql("SELECT onlyonce.sweep()"), "1");
    assert_eq!(server.sql("SELECT state FROM onlyonce.live"), "unknown");
}

/// Goal: no argument lets a key be executed again, and none damages what is stored.
///
/// Method: durations of nothing and less for everything that is remembered; headers that are too many, too
/// long or no headers; then headers at the limits, with letters beyond ASCII.
/// Evidence: the code of the refusal, and rows as they were; what is stored is read back by the library and
/// by `reserve`.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_would_do_harm() {
    let server = tokio::task::block_in_place(Postgres::start);
    let store = open(&server.url()).await;
    let token = server.sql("SELECT attempt_token FROM onlyonce.reserve('app', 'k')");
    let row = "SELECT md5(l::text) FROM onlyonce.live l";
    let before = server.sql(row);
    let mut connection = PgConnection::connect(&server.url()).await.unwrap();
    let mut calls = Vec::new();
    for duration in ["0 s", "-1 ms", "-1 day", "0.0004 s"] {
        calls.extend([
            (
                "22023",
                format!("reserve('app', 'n', lease => '{duration}')"),
            ),
            (
                "22023",
                format!("reserve('app', 'n', tombstone_ttl => '{duration}')"),
            ),
            (
                "22023",
                format!("complete('{token}', 200, ttl => '{duration}')"),
            ),
            ("22023", format!("renew('{token}', lease => '{duration}')")),
            (
                "22023",
                format!("renew('{token}', max_execution => '{duration}')"),
            ),
            ("22023", format!("process_once('c', 'm', '{duration}')")),
        ]);
    }
    calls.push(("22023", "enqueue('t', 'x', due_in => '-1 ms')".to_owned()));
    for headers in [
        "'[]'",
        "'\"x\"'",
        "'7'",
        "'{\"a\": 1}'",
        "'{\"a\": [\"b\"]}'",
    ] {
        calls.push(("22023", format!("enqueue('t', 'x', headers => {headers})")));
    }
    let many = "(SELECT jsonb_object_agg('h' || n, 'v') FROM generate_series(1, 65537) n)";
    let long = "jsonb_build_object(repeat('n', 70000), 'v')";
    let large = "jsonb_build_object('n', repeat('v', 1100000))";
    for (code, headers) in [
        ("54000", many),
        ("54000", long),
        ("54000", large),
        ("22023", "'\"x\"'"),
        ("22023", "'7'"),
        ("22023", "'[\"x\"]'"),
        ("22023", "'[[\"x\"]]'"),
        ("22023", "'[[\"x\", \"y\", \"z\"]]'"),
        ("22023", "'{\"x\": {}}'"),
        ("22023", "'{\"x y\": \"z\"}'"),
        ("22023", "'{\"x\": \"a\\nb\"}'"),
    ] {
        calls.push((code, format!("settle('{token}', 200, {headers}, 'x')")));
        calls.push((code, format!("complete('{token}', 200, {headers}, 'x')")));
    }
    for (code, call) in calls {
        let (found, _) = refused(&mut connection, &format!("SELECT onlyonce.{call}")).await;
        assert_eq!(found, code, "{call}");
        assert_eq!(server.sql(row), before, "{call}");
    }
    for table in ["outbox", "inbox", "keys"] {
        let count = server.sql(&format!("SELECT count(*) FROM onlyonce.{table}"));
        assert_eq!(count, "0", "{table}");
    }
    let most = "(SELECT jsonb_object_agg(rpad('h' || n, 256, 'x'), 'caf\u{e9}') FROM generate_series(1, 1000) n)";
    server.sql(&format!(
        "SELECT onlyonce.complete('{token}', 200, {most}, 'x')"
    ));
    let id = server.sql("SELECT id FROM onlyonce.keys").replace('-', "");
    let record = store
        .lookup(id.parse().unwrap())
        .await
        .unwrap()
        .value
        .unwrap();
    let response = record.response.unwrap();
    assert_eq!(response.headers.len(), 1_000);
    for (name, value) in &response.headers {
        assert_eq!(name.as_str().len(), 256);
        assert_eq!(value.as_bytes(), "caf\u{e9}".as_bytes());
    }
    let read = "SELECT count(*) FROM onlyonce.reserve('app', 'k') r, \
         jsonb_array_elements(r.headers) AS h (pair) WHERE h.pair ->> 1 = 'caf\u{e9}'";
    assert_eq!(server.sql(read), "1000");
}

/// Goal: a message may be left in a transaction that is prepared, and becomes visible with it.
///
/// Method: with `notify => false`, as the guide says, on a server that allows prepared transactions.
/// Evidence: one message, after COMMIT PREPARED.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_a_prepared_transaction() {
    let start = || Postgres::start_with(&["max_prepared_transactions=2"]);
    let server = tokio::task::block_in_place(start);
    let _store = open(&server.url()).await;
    let count = "SELECT count(*) FROM onlyonce.outbox";
    server
        .sql("BEGIN; SELECT onlyonce.enqueue('t', 'x', notify => false); PREPARE TRANSACTION 'p'");
    assert_eq!(server.sql(count), "0");
    server.sql("COMMIT PREPARED 'p'");
    assert_eq!(server.sql(count), "1");
}

/// Goal: a reservation that cannot see what was settled since is refused; a completion that cannot is safe.
///
/// Method: a transaction with one snapshot for all statements looks; then another program reserves the
/// key and completes it; then the first one reserves. And a key that is completed in such a transaction.
/// Evidence: the refusal, and its hint; the key stands once. The completion stands, and is replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_sees_too_little() {
    let server = tokio::task::block_in_place(Postgres::start);
    let _store = open(&server.url()).await;
    let mut blind = PgConnection::connect(&server.url()).await.unwrap();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let reserve = |key| {
            format!(
                "SELECT coalesce(attempt_token, outcome) FROM onlyonce.reserve('{level}', '{key}')"
            )
        };
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM onlyonce.keys");
        blind
            .execute(sqlx::AssertSqlSafe(begin.clone()))
            .await
            .unwrap();
        let token = server.sql(&reserve("k"));
        server.sql(&format!("SELECT onlyonce.complete('{token}', 201)"));
        let (code, hint) = refused(&mut blind, &reserve("k")).await;
        assert_eq!(code, "25000", "{level}");
        assert!(hint.is_some_and(|hint| hint.contains("READ COMMITTED")));
        blind.execute("COMMIT").await.unwrap();
        let rows = format!("SELECT count(*) FROM onlyonce.readable_keys WHERE scope = '{level}'");
        assert_eq!(server.sql(&rows), "1");

        let token = server.sql(&reserve("other"));
        blind.execute(sqlx::AssertSqlSafe(begin)).await.unwrap();
        let complete = format!("SELECT onlyonce.complete('{token}', 201)");
        let said: String = sqlx::query_scalar(sqlx::AssertSqlSafe(complete))
            .fetch_one(&mut blind)
            .await
            .unwrap();
        assert_eq!(said, "completed");
        blind.execute("COMMIT").await.unwrap();
        assert_eq!(server.sql(&reserve("other")), "replay");
    }
}

/// Goal: a schema that is there gets the functions of this program, and those who may call them still may.
#[tokio::test(flavor = "multi_thread")]
async fn functions_are_replaced() {
    let server = tokio::task::block_in_place(Postgres::start);
    let (url, options) = (server.url(), PostgresOptions::default());
    let migrate = || onlyonce_store::postgres::migrate(&url, &options);
    migrate().await.unwrap();
    server.sql(
        "CREATE OR REPLACE FUNCTION onlyonce.sweep(at_most integer DEFAULT 1000) RETURNS integer \
         LANGUAGE sql AS 'SELECT -1'; \
         CREATE ROLE app; GRANT EXECUTE ON FUNCTION onlyonce.sweep TO app",
    );
    let before = onlyonce_store::postgres::VERSION - 1;
    server.sql(&format!(
        "UPDATE onlyonce.meta SET value = '{before}' WHERE name = 'schema_version'"
    ));
    let migrated = migrate().await.unwrap();
    assert_eq!(
        (migrated.from, migrated.to),
        (before, onlyonce_store::postgres::VERSION)
    );
    assert_eq!(server.sql("SELECT onlyonce.sweep()"), "0");
    let may = "SELECT has_function_privilege('app', 'onlyonce.sweep(integer)', 'EXECUTE')";
    assert_eq!(server.sql(may), "t");
}

/// Goal: a program that meets another one upgrading the schema waits for it, for longer than a statement may
/// take; and so may a step itself.
///
/// Method: a session holds the lock of upgrades for longer than the store's timeout, as one whose program was
/// killed does.
/// Evidence: the upgrade waits for it, and succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_waits_for_another() {
    const HELD_SECONDS: u64 = 4;
    let server = tokio::task::block_in_place(Postgres::start);
    let (url, options) = (server.url(), PostgresOptions::default());
    assert!(options.timeout.as_secs() < HELD_SECONDS);
    let mut other = PgConnection::connect(&url).await.unwrap();
    let lock = "BEGIN; SELECT pg_advisory_xact_lock(x'6f6e6c796f6e6365'::bigint)";
    other.execute(lock).await.unwrap();
    let holds = tokio::spawn(async move {
        let sql = format!("SELECT pg_sleep({HELD_SECONDS}); COMMIT");
        other.execute(sqlx::AssertSqlSafe(sql)).await.unwrap();
        tokio::time::Instant::now()
    });
    let migrated = onlyonce_store::postgres::migrate(&url, &options);
    migrated.await.unwrap();
    let done = tokio::time::Instant::now();
    assert!(holds.await.unwrap() <= done, "it waited");
}

/// Goal: a schema of version 9 gets the table of scopes, and what it holds stays.
#[tokio::test(flavor = "multi_thread")]
async fn scopes_are_added() {
    let server = tokio::task::block_in_place(Postgres::start);
    let store = open(&server.url()).await;
    reserve(&store, "before", 1).await;
    drop(store);
    server.sql(
        "DROP TABLE onlyonce.scopes; \
         UPDATE onlyonce.meta SET value = '9' WHERE name = 'schema_version'",
    );
    let store = open(&server.url()).await;
    assert_eq!(store.scopes(None).await.unwrap(), Some(Vec::new()));
    let again = draft(&store, &Scope::global(), "before", 2);
    let found = store.insert_or_get(again).await.unwrap().value;
    assert!(matches!(found, Inserted::Existing(_)));
    // A reservation by SQL makes its scope known with itself.
    server.sql("SELECT outcome FROM onlyonce.reserve('app:orders', 'k')");
    let scope = Scope::from_stored("app:orders");
    let id = onlyonce_store::scope_id(store.secret(), &scope);
    let known = store.scopes(None).await.unwrap();
    assert_eq!(known, Some(vec![(id, "app:orders".to_owned())]));
}

/// Goal: an upgrade builds the index of scopes beside the traffic, and builds anew what was left half built.
///
/// Method: 200,000 keys in a schema of version 11, and a transaction that writes to them and stays open; a
/// store is opened and keys are reserved and settled. Then the transaction ends.
/// Evidence: the reservations are acknowledged while the building waits for the transaction; the server calls
/// the index valid afterwards, and a client's keys are listed.
#[tokio::test(flavor = "multi_thread")]
async fn the_index_of_scopes_is_built_beside_the_traffic() {
    let server = tokio::task::block_in_place(Postgres::start);
    drop(open(&server.url()).await);
    server.sql(
        "DROP INDEX onlyonce.keys_by_scope; \
         INSERT INTO onlyonce.keys (id, revision, state, attempt_id, fence, generation, recipe, scope, key, \
            route, method, path, tombstone_ttl, created_at, row_version) \
         SELECT md5(i::text)::uuid, 1, 'completed', md5(i::text)::uuid, 1, 1, '\\x0011223344556677', \
            'client:c' || i % 100, 'k' || i, 'r', 'POST', '/', 0, i, 1 FROM generate_series(1, 200000) i; \
         UPDATE onlyonce.meta SET value = '11' WHERE name = 'schema_version'",
    );
    let state = "SELECT coalesce((SELECT indisvalid::text FROM pg_index \
                 WHERE indexrelid = to_regclass('onlyonce.keys_by_scope')), 'absent')";
    let until = async |wanted: &str| {
        let mut looks = 0;
        while server.sql(state) != wanted {
            looks += 1;
            assert!(looks < 3_000, "the index never became {wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut writing = PgConnection::connect(&server.url()).await.unwrap();
    writing
        .execute("BEGIN; UPDATE onlyonce.keys SET fence = 2 WHERE n = 7")
        .await
        .unwrap();
    let store = open(&server.url()).await;
    until("false").await;
    for number in 0..50 {
        reserve(&store, &format!("beside{number}"), 1).await;
    }
    assert_eq!(
        server.sql(state),
        "false",
        "it waits for the open transaction"
    );
    writing.execute("COMMIT").await.unwrap();
    until("true").await;
    let scopes = [Scope::client("c7")];
    let page = store.list_in(&scopes, &Filter::default(), None, 50).await;
    let page = page.unwrap().unwrap();
    assert_eq!((page.items.len(), page.next.is_some()), (50, true));
    drop(store);
    // What a program left that died while it was building.
    server.sql(
        "UPDATE pg_index SET indisvalid = false \
                WHERE indexrelid = 'onlyonce.keys_by_scope'::regclass",
    );
    let _store = open(&server.url()).await;
    until("true").await;
}

/// Goal: notes of messages that came in do not pile up: the reaper's walk forgets those past their time.
#[tokio::test(flavor = "multi_thread")]
async fn old_messages_are_forgotten() {
    let server = tokio::task::block_in_place(Postgres::start);
    let store = open(&server.url()).await;
    server.sql(
        "INSERT INTO onlyonce.inbox VALUES ('c', 'old', 0, 1), ('c', 'new', 0, 9000000000000000)",
    );
    assert!(store.walk(100).await.unwrap().value.wrapped);
    let left = server.sql("SELECT message_id FROM onlyonce.inbox");
    assert_eq!(left, "new");
}

/// Goal: a key that somebody is making in a transaction that stays open holds up nobody else, and whoever
/// asks for it is told.
///
/// Method: another session inserts a key and does not commit; the same key and fifty others are inserted at
/// once, and the same key again and again beside fifty more.
/// Evidence: the fifty are new while the transaction stands; the one is [`StoreError::Held`]; once it is
/// rolled back, the key can be made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_in_the_making_holds_up_nobody_else() {
    let server = Postgres::start();
    let store = Arc::new(open(&server.url()).await);
    let mut other = PgConnection::connect(&server.url()).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    let made = "SELECT outcome FROM onlyonce.reserve('global', 'poison')";
    sqlx::query(made).execute(&mut other).await.unwrap();
    let insert = |key: String, number: u128| {
        let store = store.clone();
        tokio::spawn(async move {
            let draft = draft(&*store, &Scope::global(), &key, number);
            store.insert_or_get(draft).await.map(|reply| reply.value)
        })
    };
    for round in 0..3_u128 {
        let held = insert("poison".to_owned(), 1_000 + round);
        let others: Vec<_> = (1..=50)
            .map(|number| insert(format!("k{round}-{number}"), round * 100 + number))
            .collect();
        for one in others {
            let one = tokio::time::timeout(Duration::from_secs(20), one).await;
            let one = one.expect("it waits for another's key").unwrap();
            assert!(matches!(one, Ok(Inserted::New(_))), "{one:?}");
        }
        let held = tokio::time::timeout(Duration::from_secs(20), held).await;
        let held = held.expect("an answer").unwrap();
        assert!(matches!(held, Err(StoreError::Held)), "{held:?}");
    }
    other.execute("ROLLBACK").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let free = insert("poison".to_owned(), 2_000).await.unwrap();
    assert!(matches!(free, Ok(Inserted::New(_))), "{free:?}");
}

/// Goal: a database that cannot hold every path is refused at the start, not at the first such path.
///
/// Method: a database in LATIN1.
/// Evidence: the error names the encoding.
#[tokio::test(flavor = "multi_thread")]
async fn another_encoding_is_refused() {
    let server = tokio::task::block_in_place(Postgres::start);
    let latin =
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0";
    server.sql(latin);
    let url = server.url();
    let url = url.rsplit_once('/').unwrap().0.to_owned() + "/latin";
    let opened = PostgresStore::open(&url, &PostgresOptions::default()).await;
    let error = opened.err().map(|error| with_causes(&error));
    assert!(
        error.as_ref().is_some_and(|error| error.contains("LATIN1")),
        "{error:?}"
    );
}

/// An error and its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

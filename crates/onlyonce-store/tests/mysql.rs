//! What only the MySQL store can show: rows that others hold, deadlocks, a server that freezes or
//! dies, replies that are lost, and text that is compared to the letter.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Record, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
    record::{Change, Draft},
};
use onlyonce_store::{
    Filter, Inserted, Store, StoreError, Swapped,
    mysql::{MySqlOptions, MySqlStore},
};
use onlyonce_testkit::{
    servers::MariaDb,
    tcp_faults::{FaultProxy, Mode},
};
use sqlx::{Connection as _, Executor as _, MySqlConnection};

const PATIENCE: Duration = Duration::from_secs(10);

/// A server that these tests share, unless they harm it.
fn server() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    tokio::task::block_in_place(|| SERVER.get_or_init(MariaDb::start))
}

/// A database of its own on that server.
fn database() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = server();
    server.database(&format!("store_{}", COUNT.fetch_add(1, Ordering::Relaxed)))
}

async fn open(url: &str) -> Arc<MySqlStore> {
    open_with(url, Duration::from_secs(4)).await
}

async fn open_with(url: &str, timeout: Duration) -> Arc<MySqlStore> {
    let options = MySqlOptions {
        timeout,
        ..MySqlOptions::default()
    };
    Arc::new(MySqlStore::open(url, &options).await.unwrap())
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

fn completion(record: &Record, body: &str) -> Change {
    let answer = Arc::new(StoredResponse::plain(StatusCode::CREATED, body.to_owned()));
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

async fn done<T>(task: tokio::task::JoinHandle<T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, task).await;
    waited.expect("in time").unwrap()
}

/// Completes all at once, each in a task of its own.
fn complete_all(
    store: &Arc<MySqlStore>,
    records: &[Record],
) -> Vec<tokio::task::JoinHandle<Swapped>> {
    let one = |record: &Record| {
        let (store, revision) = (store.clone(), record.revision);
        let change = completion(record, "paid");
        tokio::spawn(async move { store.swap(revision, change).await.unwrap().value })
    };
    records.iter().map(one).collect()
}

/// Goal: a row that somebody holds in a transaction of his own holds up nobody else, neither when it
/// is changed nor when it is read, nor when it is swept or reaped.
///
/// Method: twenty keys; one row is locked by another session; all are completed at once.
/// Evidence: nineteen are done while the lock stands, and the locked one can be read and asked for;
/// it is completed once the lock is gone, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_holds_up_nobody_else() {
    let url = database();
    let store = open(&url).await;
    let mut records = Vec::new();
    for number in 0..20 {
        records.push(reserve(&*store, &format!("k{number}"), number + 1).await);
    }
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    // By its id, so that no other row is locked on the way.
    let held = "SELECT 1 FROM onlyonce_keys WHERE id = ? FOR UPDATE";
    let held = sqlx::query(held).bind(records[7].id.0.to_vec());
    held.execute(&mut other).await.unwrap();
    let mut tasks = complete_all(&store, &records);
    let locked = tasks.remove(7);
    for task in tasks {
        assert!(matches!(done(task).await, Swapped::Done(_)));
    }
    let again = draft(&*store, &Scope::global(), "k7", 99);
    let found = store.insert_or_get(again).await.unwrap().value;
    assert_eq!(found, Inserted::Existing(records[7].clone()));
    assert!(
        !store
            .delete(records[7].id, records[7].revision)
            .await
            .unwrap()
    );
    assert!(!locked.is_finished(), "the lock still stands");
    other.execute("COMMIT").await.unwrap();
    assert!(matches!(done(locked).await, Swapped::Done(_)));
}

/// Goal: a key that somebody is inserting, and takes long about it, holds up no other new key; and
/// is waited for.
///
/// Method: another session inserts a row under one of twenty ids and does not commit; all twenty are
/// reserved at once. Then it rolls back.
/// Evidence: nineteen are new while it holds; the last one when it has let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_is_inserting() {
    let url = database();
    let store = open(&url).await;
    let drafts: Vec<Draft> = (0..20_u128)
        .map(|number| draft(&*store, &Scope::global(), &format!("k{number}"), number + 1))
        .collect();
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    let insert = "INSERT INTO onlyonce_keys (id, row_version, revision, attempt_id, fence, \
                  generation, tombstone_ttl, recipe, state, scope, `key`, route, method, path) \
                  VALUES (?, 1, 1, ?, 1, 1, 1, '12345678', 'in_progress', 'x', 'x', 'x', 'x', 'x')";
    let id = drafts[7].record.id.0.to_vec();
    let held = sqlx::query(insert).bind(&id).bind(&id);
    held.execute(&mut other).await.unwrap();
    let mut tasks: Vec<_> = drafts
        .into_iter()
        .map(|draft| {
            let store = store.clone();
            tokio::spawn(async move { store.insert_or_get(draft).await })
        })
        .collect();
    let waiting = tasks.remove(7);
    for task in tasks {
        let inserted = done(task).await.unwrap().value;
        assert!(matches!(inserted, Inserted::New(_)));
    }
    assert!(!waiting.is_finished(), "the other transaction is open");
    other.execute("ROLLBACK").await.unwrap();
    let inserted = done(waiting).await.unwrap().value;
    assert!(matches!(inserted, Inserted::New(_)));
}

/// Goal: a key that another node inserts between our look and our insert is that node's, whatever the
/// server says about rows.
///
/// Method: our statements reach the server 100 ms late; the other node's come at once, at a time
/// between our two. Each of five keys is a try.
/// Evidence: one of the two is told that the key is new, and the other gets that record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_comes_between_the_look_and_the_insert() {
    let url = database();
    let proxy = FaultProxy::start(server().port()).await;
    let port = server().port().to_string();
    let far = open(&url.replace(&port, &proxy.port().to_string())).await;
    let near = open(&url).await;
    proxy.set(Mode::Delay(Duration::from_millis(100)));
    for number in 0..5_u128 {
        let key = format!("k{number}");
        let late = draft(&*far, &Scope::global(), &key, number * 2 + 1);
        let task = tokio::spawn({
            let far = far.clone();
            async move { far.insert_or_get(late).await.unwrap().value }
        });
        tokio::time::sleep(Duration::from_millis(180)).await;
        let quick = draft(&*near, &Scope::global(), &key, number * 2 + 2);
        let quick = near.insert_or_get(quick).await.unwrap().value;
        let late = done(task).await;
        match (quick, late) {
            (Inserted::New(record), Inserted::Existing(found))
            | (Inserted::Existing(found), Inserted::New(record)) => assert_eq!(record, found),
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: a deadlock that the server ends at our cost leaves nothing written, and the batch is done
/// again.
///
/// Method: a trigger on the table makes the server report a deadlock, as it does when it ends one:
/// twice, and then not; then for ever, for one of two keys.
/// Evidence: the first key is new; of the two, the one that is not to blame is completed, and the other
/// is told that nothing was written, and has not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_definite() {
    let url = database();
    let store = open(&url).await;
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    let deadlock = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'Deadlock'";
    // What a session counts survives a rollback, unlike a table.
    let twice = format!(
        "CREATE TRIGGER twice BEFORE INSERT ON onlyonce_keys FOR EACH ROW BEGIN \
         SET @met = COALESCE(@met, 0) + 1; IF @met <= 2 THEN {deadlock}; END IF; END"
    );
    other.execute(sqlx::AssertSqlSafe(twice)).await.unwrap();
    let first = reserve(&*store, "first", 1).await;
    other.execute("DROP TRIGGER twice").await.unwrap();
    let second = reserve(&*store, "second", 2).await;

    let for_ever = format!(
        "CREATE TRIGGER for_ever BEFORE UPDATE ON onlyonce_keys FOR EACH ROW BEGIN \
         IF NEW.`key` = 'second' THEN {deadlock}; END IF; END"
    );
    other.execute(sqlx::AssertSqlSafe(for_ever)).await.unwrap();
    let (one, two) = tokio::join!(
        store.swap(first.revision, completion(&first, "paid")),
        store.swap(second.revision, completion(&second, "paid"))
    );
    assert!(matches!(one.unwrap().value, Swapped::Done(_)));
    assert!(matches!(two, Err(StoreError::Unavailable(_))), "{two:?}");
    let found = store.lookup(second.id).await.unwrap().value;
    assert_eq!(found, Some(second));
}

/// Goal: two sessions that lock each other out for real end with one of them told so, and ours done.
///
/// Method: forty rounds in which another session takes two rows in the order that is not ours, while
/// both are changed here.
/// Evidence: every change is done; the other session's failures are its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_taken_in_another_order() {
    let url = database();
    let store = open(&url).await;
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    let rounds = if onlyonce_testkit::soak::is_on() {
        400
    } else {
        40
    };
    for round in 0..rounds {
        let mut pair = Vec::new();
        for number in 0..2_u128 {
            pair.push(reserve(&*store, &format!("k{round}-{number}"), round * 2 + number).await);
        }
        pair.sort_by_key(|record| std::cmp::Reverse(record.id));
        let tasks = complete_all(&store, &pair);
        other.execute("BEGIN").await.unwrap();
        for record in &pair {
            let sql = "UPDATE onlyonce_keys SET negatives = negatives WHERE id = ?";
            let taken = sqlx::query(sql).bind(record.id.0.to_vec());
            let _ = taken.execute(&mut other).await;
        }
        other.execute("COMMIT").await.unwrap();
        for task in tasks {
            assert!(matches!(done(task).await, Swapped::Done(_)));
        }
    }
}

/// Goal: a row that the server refuses costs its neighbours nothing, and is not cut to fit.
///
/// Method: forty keys at once, one of them in a scope that is too long for its column.
/// Evidence: thirty-nine are new; the one is an error that promises that nothing was written, and
/// says nothing of the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_neighbour_costs_nothing() {
    let url = database();
    let store = open(&url).await;
    let long = Scope::client(&"canary".repeat(11_000));
    let tasks: Vec<_> = (0..40_u128)
        .map(|number| {
            let global = Scope::global();
            let scope = if number == 13 { &long } else { &global };
            let draft = draft(&*store, scope, &format!("k{number}"), number + 1);
            let store = store.clone();
            tokio::spawn(async move { store.insert_or_get(draft).await })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        match (number, done(task).await) {
            (13, Err(StoreError::Unavailable(why))) => {
                let why = why.to_string();
                assert!(why.contains("1406") && !why.contains("canary"), "{why}");
            }
            (13, other) => panic!("{other:?}"),
            (_, outcome) => assert!(matches!(outcome.unwrap().value, Inserted::New(_))),
        }
    }
}

/// Goal: keys are compared to the letter: case, accents and trailing spaces make another key.
///
/// Method: names that any of the server's usual collations takes for one, as scopes and in a filter,
/// in a database whose own collation ignores case.
/// Evidence: all are new, none is a collision; a filter finds its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_compared_to_the_letter() {
    let url = database();
    let name = url.rsplit('/').next().unwrap();
    let collation =
        format!("ALTER DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci");
    server().run_sql("mysql", &collation);
    let store = open(&url).await;
    let names = ["acme", "Acme", "acme ", "acmé", "acme\0", "acme\\", "acme'"];
    for (number, name) in (1..).zip(names) {
        let draft = draft(&*store, &Scope::client(name), "k", number);
        let inserted = store.insert_or_get(draft).await.unwrap().value;
        assert!(matches!(inserted, Inserted::New(_)), "{name:?}");
    }
    for name in names {
        let filter = Filter {
            client: Some(name.to_owned()),
            ..Filter::default()
        };
        let page = store.list(&filter, None, 10).await.unwrap();
        let found: Vec<&str> = page
            .items
            .iter()
            .map(|item| item.record.scope.as_str())
            .collect();
        assert_eq!(found, [format!("client:{name}")]);
    }
}

/// Goal: a large answer comes back as it was; one that is longer than the server takes is refused
/// before it is sent, and costs its neighbours nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_large_and_too_large() {
    let url = database();
    // A busy machine takes its time over so many bytes.
    let store = open_with(&url, Duration::from_secs(60)).await;
    let large = "0123456789abcdef".repeat(300_000);
    let (one, two, three) = (
        reserve(&*store, "one", 1).await,
        reserve(&*store, "two", 2).await,
        reserve(&*store, "three", 3).await,
    );
    // Two of these are longer together than the server takes at once.
    let huge = large.repeat(2);
    let (first, second, third) = tokio::join!(
        store.swap(one.revision, completion(&one, &huge)),
        store.swap(two.revision, completion(&two, &large)),
        store.swap(three.revision, completion(&three, &large.repeat(3)))
    );
    let Swapped::Done(record) = first.unwrap().value else {
        panic!("not done")
    };
    assert_eq!(store.lookup(one.id).await.unwrap().value, Some(record));
    assert!(matches!(second.unwrap().value, Swapped::Done(_)));
    assert!(matches!(third, Err(StoreError::Unavailable(_))));
    assert_eq!(store.lookup(three.id).await.unwrap().value, Some(three));
}

/// Goal: a write whose reply is lost is ambiguous, and what became of it can be read.
///
/// Method: a proxy lets a transaction through with its COMMIT, and swallows what the server says: of
/// an insert, and of a change.
/// Evidence: `Ambiguous`; the record under our attempt id; the completed record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_commit_is_lost() {
    let url = database();
    let proxy = FaultProxy::start(server().port()).await;
    let port = server().port().to_string();
    let store = open(&url.replace(&port, &proxy.port().to_string())).await;
    let draft = draft(&*store, &Scope::global(), "k", 77);
    proxy.swallow_reply_to(b"INSERT INTO onlyonce_keys");
    let told = store.insert_or_get(draft.clone()).await;
    assert!(matches!(told, Err(StoreError::Ambiguous(_))), "{told:?}");
    assert_eq!(proxy.swallowed(), 1);
    let again = store.insert_or_get(draft).await.unwrap().value;
    let Inserted::Existing(record) = again else {
        panic!("inserted twice")
    };
    assert_eq!(record.attempt_id, AttemptId(77));
    proxy.swallow_reply_to(b"JOIN onlyonce_keys");
    let told = store
        .swap(record.revision, completion(&record, "paid"))
        .await;
    assert!(matches!(told, Err(StoreError::Ambiguous(_))), "{told:?}");
    let swapped = store
        .swap(record.revision, completion(&record, "paid"))
        .await;
    let Swapped::Conflict(found) = swapped.unwrap().value else {
        panic!("written twice")
    };
    assert_eq!(found.revision, record.revision.next());
    // A question that is lost has written nothing.
    proxy.set(Mode::Silent);
    let told = store.lookup(record.id).await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    proxy.set(Mode::Pass);
}

/// Goal: a server that freezes or is killed loses nothing that was acknowledged.
///
/// Method: clients insert and complete; the server is frozen and woken, then killed with -9 and
/// started again.
/// Evidence: calls end in time while it is away; whatever was told to be done is there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_freezes_and_dies() {
    let mut server = tokio::task::block_in_place(MariaDb::start);
    let options = MySqlOptions {
        timeout: Duration::from_millis(500),
        ..MySqlOptions::default()
    };
    let store = MySqlStore::open(&server.url(), &options).await.unwrap();
    let store = Arc::new(store);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..8_u128)
        .map(|client| tokio::spawn(insert_and_complete(client, store.clone(), stop.clone())))
        .collect();
    let pause = || tokio::time::sleep(Duration::from_millis(400));
    pause().await;
    server.freeze();
    let began = tokio::time::Instant::now();
    let told = store.lookup(onlyonce_core::RecordId([1; 16])).await;
    assert!(told.is_err() && began.elapsed() < PATIENCE, "{told:?}");
    server.thaw();
    pause().await;
    tokio::task::block_in_place(|| {
        server.kill();
        server.boot();
    });
    pause().await;
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    for client in clients {
        acknowledged.extend(done(client).await);
    }
    println!(
        "{} acknowledged before, between and after",
        acknowledged.len()
    );
    assert!(acknowledged.len() > 20);
    for record in acknowledged {
        let found = store.lookup(record.id).await.unwrap().value;
        assert_eq!(found, Some(record));
    }
}

/// The records as they were acknowledged last. A key whose write is in doubt is left out.
async fn insert_and_complete(
    client: u128,
    store: Arc<MySqlStore>,
    stop: Arc<std::sync::atomic::AtomicBool>,
) -> Vec<Record> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let key = format!("{client}-{number}");
        let draft = draft(&*store, &Scope::global(), &key, client << 64 | number);
        let Ok(reply) = store.insert_or_get(draft).await else {
            continue;
        };
        let Inserted::New(record) = reply.value else {
            panic!("a key of ours was there")
        };
        match store.swap(record.revision, completion(&record, &key)).await {
            Ok(reply) => match reply.value {
                Swapped::Done(record) => acknowledged.push(record),
                other => panic!("{other:?}"),
            },
            Err(StoreError::Unavailable(_)) => acknowledged.push(record),
            Err(_) => {}
        }
    }
    acknowledged
}

/// Goal: a database of the version before is brought up to date, its keys stay, and the programs of that
/// version may go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_schema_is_brought_up_to_date() {
    let url = database();
    let record = {
        let store = open(&url).await;
        reserve(&*store, "k", 1).await
    };
    let mut other = MySqlConnection::connect(&url).await.unwrap();
    // What version 2 has added.
    let back = "DROP TABLE onlyonce_outbox, onlyonce_inbox, onlyonce_phases, onlyonce_natural_keys; \
                UPDATE onlyonce_meta SET value = '1' WHERE name = 'schema_version'";
    other.execute(back).await.unwrap();
    let strict = MySqlOptions {
        migrate: false,
        ..MySqlOptions::default()
    };
    assert!(MySqlStore::open(&url, &strict).await.is_err());
    let store = open(&url).await;
    let found = store.lookup(record.id).await.unwrap().value;
    assert_eq!(found, Some(record));
    let depth = store.outbox().unwrap().depth().await.unwrap();
    assert!(depth.values().all(|count| *count == 0));
    let oldest = "SELECT CAST(value AS CHAR) FROM onlyonce_meta WHERE name = 'oldest_program'";
    let oldest = other.fetch_one(oldest).await.unwrap();
    assert_eq!(sqlx::Row::get::<String, _>(&oldest, 0), "1");
}

//! Keys that live again, whose last life has come to something that is not this one's; and operations that
//! nobody can resume, beside one that the sweeper can.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Method, StatusCode};
use onlyonce::{
    Answer, Engine, EngineOptions, Operation, Phases, Policy, Ran, Transactions,
    engine::{Admitted, Arrival},
    phases::CallFailed,
};
use onlyonce_core::{
    AttemptId, Key, RecordId, Scope, Timestamp, machine::Settlement, record::LastError,
};
use onlyonce_store::{
    Store, TransactionalStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
    transactional::{Isolation, Progress},
};
use onlyonce_testkit::servers::{MariaDb, Postgres};

use super::Place;

const NAME: &str = "lives";
const NOT_STARVED: &str = "not starved";
/// More than two pages of the sweeper.
const LEFT_BEHIND: u32 = 250;

/// A key is forgotten a moment after it was used, and nobody reaps it.
fn policy() -> Policy {
    Policy::builder()
        .ttl(Duration::from_millis(20))
        .tombstone_ttl(Duration::from_millis(20))
        .build()
}

async fn forgotten() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn operation<T: TransactionalStore>(store: Arc<dyn Store>, inside: T) -> Operation<T> {
    let engine = Engine::start(store, EngineOptions::default());
    let transactions = Transactions::new(engine, inside);
    transactions.operation(NAME, policy()).await.unwrap()
}

/// One local phase, which answers with what was asked for.
fn local<T: TransactionalStore>(operation: Operation<T>, runs: &Arc<AtomicUsize>) -> Phases<T> {
    let runs = runs.clone();
    Phases::new(operation, |situation| {
        Answer::new(StatusCode::OK, situation.data.to_string())
    })
    .local("done", move |_, situation| {
        runs.fetch_add(1, Ordering::SeqCst);
        situation.data = String::from_utf8_lossy(&situation.parameters).into();
        Box::pin(async { Ok(()) })
    })
}

/// One call, which never reaches its provider.
fn unreachable<T: TransactionalStore>(
    operation: Operation<T>,
    calls: &Arc<AtomicUsize>,
    dedups: bool,
) -> Phases<T> {
    let calls = calls.clone();
    Phases::new(operation, |_| Answer::new(StatusCode::OK, "")).foreign(
        "called",
        dedups,
        move |call, _| {
            let calls = calls.clone();
            Box::pin(call.send(move |_| async move {
                calls.fetch_add(1, Ordering::SeqCst);
                Err(CallFailed::NotSent("nobody there".into()))
            }))
        },
    )
}

fn said(ran: Ran) -> String {
    match ran {
        Ran::Executed(answer) => String::from_utf8_lossy(&answer.body).into_owned(),
        other => panic!("{other:?}"),
    }
}

/// Goal: the second life of a key runs its phases, with its own parameters.
async fn runs_again<T: TransactionalStore>(operation: &Operation<T>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let phases = local(operation.clone(), &runs);
    let key = Key::from_stored("again");
    for (number, request) in ["one", "two", "three"].into_iter().enumerate() {
        let ran = phases.run(Scope::global(), key.clone(), request).await;
        assert_eq!(said(ran.unwrap()), format!("\"{request}\""));
        assert_eq!(runs.load(Ordering::SeqCst), number + 1, "{request}");
        forgotten().await;
    }
}

/// Goal: the sweeper begins no life with what the last one left, and a recovery point of the last one does
/// not keep this one from being tried again.
async fn left_behind<T: TransactionalStore>(operation: &Operation<T>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let key = Key::from_stored("left");
    let engine = operation.transactions().engine();
    let id = engine.secret().record_id(Scope::global().as_str(), &key);
    let retried = unreachable(operation.clone(), &calls, true);
    let ran = retried.run(Scope::global(), key.clone(), "one").await;
    assert!(ran.is_err(), "{ran:?}");
    forgotten().await;
    assert_eq!(retried.resume_once().await.unwrap(), 0);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "the sweeper called");
    let record = engine.store().lookup(id).await.unwrap().value.unwrap();
    assert_eq!((record.generation, record.fence.0), (1, 1));

    for plain in [false, true] {
        // The next life stops before anything is written down.
        let policy = Arc::new(policy());
        let mut arrival = Arrival::new(
            engine,
            Scope::global(),
            key.clone(),
            None,
            NAME.into(),
            &Method::POST,
            NAME,
            HeaderMap::new(),
            "two".into(),
        );
        let Admitted::Execute(attempt) = engine.admit(&mut arrival, &policy).await.unwrap() else {
            panic!("a forgotten key is free");
        };
        let unknown = Settlement::Unknown(LastError::DeclaredUnknown);
        attempt.settle(&unknown).await;
        if plain {
            let work = operation.run(Scope::global(), key.clone(), "two", |_| {
                Box::pin(async { Ok(Answer::new(StatusCode::OK, "done")) })
            });
            assert_eq!(said(work.await.unwrap()), "done");
        } else {
            let careful = unreachable(operation.clone(), &calls, false);
            let ran = careful.run(Scope::global(), key.clone(), "two").await;
            assert!(ran.is_err(), "it was not tried: {ran:?}");
        }
        forgotten().await;
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

/// Goal: a recovery point of an earlier life is not this one's, even where the server's clock has gone back
/// since: the attempts' ids tell, not the times.
///
/// Method: a recovery point of the same generation whose time is ahead, as such a clock leaves it; then a
/// life that runs at once, and one whose first attempt stops before it has written anything.
/// Evidence: each life runs its phase, once, with its own parameters.
async fn clock_went_back<T: TransactionalStore>(operation: Operation<T>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let phases = local(operation.clone(), &runs);
    let (store, engine) = (
        operation.transactions().store(),
        operation.transactions().engine(),
    );
    let now = engine.store().lapsed(1).await.unwrap().now;
    for (number, (name, stops)) in [("at once", false), ("stopped", true)].iter().enumerate() {
        let key = Key::from_stored(name);
        let id = engine.secret().record_id(Scope::global().as_str(), &key);
        let earlier = Progress {
            id,
            operation: NAME.to_owned(),
            point: "done".to_owned(),
            intent: None,
            provider_id: None,
            parameters: b"of an earlier life".to_vec(),
            data: b"\"an earlier answer\"".to_vec(),
            attempt: AttemptId(7),
            generation: 1,
            finished: true,
            updated_at: Timestamp(now.0 + 3_600_000),
        };
        let mut open = store.begin(Isolation::default()).await.unwrap();
        store.advance(&mut open, &earlier).await.unwrap();
        store.commit(open).await.unwrap();
        if *stops {
            let mut arrival = Arrival::new(
                engine,
                Scope::global(),
                key.clone(),
                None,
                NAME.into(),
                &Method::POST,
                NAME,
                HeaderMap::new(),
                "mine".into(),
            );
            let policy = Arc::new(Policy::default());
            let admitted = engine.admit(&mut arrival, &policy).await.unwrap();
            let Admitted::Execute(attempt) = admitted else {
                panic!("nobody has used this key");
            };
            let unknown = Settlement::Unknown(LastError::DeclaredUnknown);
            attempt.settle(&unknown).await;
        }
        let ran = phases.run(Scope::global(), key, "mine").await;
        assert_eq!(said(ran.unwrap()), "\"mine\"", "{name}");
        assert_eq!(runs.load(Ordering::SeqCst), number + 1, "{name}");
    }
}

/// Goal: operations that nobody can resume do not keep the sweeper from those that it can.
///
/// Method: many that lost their keys, some of them touched in the same millisecond; and, touched last, one
/// whose provider was not there and is now.
/// Evidence: one round brings it to its end, with one more call.
async fn not_starved<T: TransactionalStore>(operation: Operation<T>) {
    let store = operation.transactions().store();
    let mut open = store.begin(Isolation::default()).await.unwrap();
    for number in 1..=LEFT_BEHIND {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let progress = Progress {
            id: RecordId(id),
            operation: NOT_STARVED.to_owned(),
            point: "called".to_owned(),
            intent: None,
            provider_id: None,
            parameters: Vec::new(),
            data: b"null".to_vec(),
            attempt: AttemptId(1),
            generation: 1,
            finished: false,
            updated_at: Timestamp(0),
        };
        store.advance(&mut open, &progress).await.unwrap();
    }
    store.commit(open).await.unwrap();
    forgotten().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let phases = Phases::new(operation, |_| Answer::new(StatusCode::OK, "")).foreign(
        "called",
        true,
        move |call, _| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            Box::pin(call.send(move |_| async move {
                match number {
                    0 => Err(CallFailed::NotSent("nobody there".into())),
                    _ => Ok(("provider's".to_owned(), serde_json::Value::Null)),
                }
            }))
        },
    );
    let key = Key::from_stored("last");
    let ran = phases.run(Scope::global(), key.clone(), "one").await;
    assert!(ran.is_err(), "{ran:?}");
    assert_eq!(phases.resume_once().await.unwrap(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

async fn lives<T: TransactionalStore>(store: Arc<dyn Store>, inside: T) {
    let operation = operation(store, inside).await;
    runs_again(&operation).await;
    left_behind(&operation).await;
    let transactions = operation.transactions();
    let lasting = transactions.operation(NAME, Policy::default());
    clock_went_back(lasting.await.unwrap()).await;
    let lasting = transactions.operation(NOT_STARVED, Policy::default());
    not_starved(lasting.await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lives_on_postgres() {
    let server = Postgres::start();
    let place = Place::Postgres(server);
    place.prepare().await;
    let options = PostgresOptions::default();
    let store = PostgresStore::open(&place.url(), &options).await.unwrap();
    let pool = sqlx::PgPool::connect(&place.url()).await.unwrap();
    let inside = store.transactions(pool);
    Box::pin(lives(Arc::new(store), inside)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lives_on_mariadb() {
    let place = Place::MariaDb(MariaDb::start());
    place.prepare().await;
    let options = MySqlOptions::default();
    let store = MySqlStore::open(&place.url(), &options).await.unwrap();
    let pool = sqlx::MySqlPool::connect(&place.url()).await.unwrap();
    let inside = store.transactions(pool);
    lives(Arc::new(store), inside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_lives_on_sqlite() {
    let place = Place::Sqlite(tempfile::tempdir().unwrap());
    place.prepare().await;
    let store = SqliteStore::open(Path::new(&place.url())).unwrap();
    let inside = store.transactions().unwrap();
    lives(Arc::new(store), inside).await;
}

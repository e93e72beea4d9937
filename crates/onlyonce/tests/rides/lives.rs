//! A key that was forgotten lives again: what its last life has come to is not this one's.

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
use onlyonce_core::{Key, Scope, machine::Settlement, record::LastError};
use onlyonce_store::{
    Store, TransactionalStore,
    mysql::{MySqlOptions, MySqlStore},
    postgres::{PostgresOptions, PostgresStore},
    private::{MariaDb, Postgres},
    sqlite::SqliteStore,
};

use super::Place;

const NAME: &str = "lives";

/// A key is forgotten a moment after it was used, and nobody reaps it.
fn policy() -> Policy {
    Policy {
        ttl: Duration::from_millis(20),
        tombstone_ttl: Duration::from_millis(20),
        ..Policy::default()
    }
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

async fn lives<T: TransactionalStore>(store: Arc<dyn Store>, inside: T) {
    let operation = operation(store, inside).await;
    runs_again(&operation).await;
    left_behind(&operation).await;
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
    lives(Arc::new(store), inside).await;
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

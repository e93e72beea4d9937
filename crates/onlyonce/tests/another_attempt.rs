//! An attempt that has lost its key to another: what it then says is never taken for the other's word.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use onlyonce::{
    Body, BoxError, Engine, EngineOptions, IdempotencyLayer, Identity, NotSent, Policy, Spool,
    engine::Seen,
};
use onlyonce_core::{
    Record, State,
    machine::{Grounds, Resolution},
};
use onlyonce_store::{Filter, Store, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

const LEASE: Duration = Duration::from_millis(600);

fn identify(_: &Parts) -> Option<Identity> {
    Some(Identity::client("ada"))
}

fn post() -> Request<Body> {
    Request::post("/pay")
        .header("idempotency-key", "k")
        .body(Body::from(Bytes::from_static(b"{}")))
        .unwrap()
}

async fn record(store: &dyn Store) -> Record {
    let page = store.list(&Filter::default(), None, 1).await.unwrap();
    page.items.into_iter().next().unwrap().record
}

async fn layer(engine: &Engine, policy: &Policy) -> IdempotencyLayer {
    let made = IdempotencyLayer::builder(engine.clone())
        .route("r")
        .policy(policy.clone())
        .identify(identify)
        .build();
    made.prepare().await.unwrap();
    made
}

/// Goal: the spool keeps a result under the attempt that brought it.
///
/// Method: node A's attempt loses the store and its lease; the key is released, and node B executes it.
/// A's heartbeat then learns that the key has moved on, the store freezes for A, its attempt ends with
/// nothing sent, and the result goes to the spool. A dies there, and its successor drains the spool.
/// Evidence: B's attempt is still in progress afterwards, and a retry executes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spooled_result_keeps_its_own_name() {
    let shared: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let well = FaultPlan::default();
    let away = FaultPlan {
        before_per_mille: 1_000,
        ..well
    };
    let frozen = FaultPlan {
        lost_per_mille: 1_000,
        ..well
    };
    let faulty = Arc::new(FaultyStore::new(shared.clone(), well, 1));
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        spool: Some(Spool::open(folder.path()).unwrap()),
        ..EngineOptions::default()
    };
    let a = Engine::start(faulty.clone(), options.clone());
    let b = Engine::start(shared.clone(), EngineOptions::default());
    let short = Policy::builder()
        .lease(LEASE)
        .completion_grace(Duration::from_millis(300));
    let policy = short.clone().build();
    let go = Arc::new(Notify::new());
    let told = go.clone();
    let never_sent = service_fn(move |_: Request<Body>| {
        let told = told.clone();
        async move {
            told.notified().await;
            Err::<Response<Body>, BoxError>(Box::new(NotSent::new("no connection")))
        }
    });
    let first = layer(&a, &policy).await.layer(never_sent);
    let first = tokio::spawn(first.oneshot(post()));
    tokio::time::sleep(Duration::from_millis(100)).await;

    faulty.set_plan(away);
    tokio::time::sleep(LEASE + Duration::from_millis(300)).await;
    b.sweep_some(10).await.unwrap();
    let id = record(&*shared).await.id;
    let released = Resolution::FailedRetryable(Grounds::FORCED);
    b.resolve(id, Seen::AsItIs, &released, "nothing was sent")
        .await
        .unwrap();
    let executed = Arc::new(AtomicUsize::new(0));
    let count = executed.clone();
    let pays = service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok::<_, BoxError>(Response::new(Body::from(Bytes::from_static(b"paid"))))
        }
    });
    let long = short.clone().lease(Duration::from_secs(60)).build();
    let second = layer(&b, &long).await.layer(pays.clone());
    let second = tokio::spawn(second.oneshot(post()));
    while executed.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let running = record(&*shared).await;

    faulty.set_plan(well);
    tokio::time::sleep(LEASE).await;
    faulty.set_plan(frozen);
    go.notify_one();
    let spooled = || std::fs::read_dir(folder.path()).unwrap().count() > 0;
    for _ in 0..200 {
        if spooled() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert!(spooled(), "the result went to the spool");
    let successor = Engine::start(shared.clone(), options);
    let spool = Spool::open(folder.path()).unwrap();
    assert_eq!(spool.drain(&successor).await.unwrap(), 1);

    let after = record(&*shared).await;
    assert_eq!(
        (after.state, after.attempt_id),
        (State::InProgress, running.attempt_id),
        "another attempt's result was taken for this one's"
    );
    let hasty = short.wait_timeout(Duration::ZERO).build();
    let retry = layer(&successor, &hasty).await.layer(pays);
    let retry = retry.oneshot(post()).await.unwrap();
    assert_eq!(retry.status(), http::StatusCode::CONFLICT);
    assert_eq!(executed.load(Ordering::SeqCst), 1, "executed twice");
    first.abort();
    second.abort();
}

/// Goal: whoever asks about a key hears of its end when the key settles, and not when it would look next.
///
/// Method: ask while the key is executed, with a clock that moves only while everybody waits; let the
/// execution end long after the looks have become rare. Evidence: the time at which the question is answered.
#[tokio::test(start_paused = true)]
async fn a_question_is_answered_when_the_key_settles() {
    const TAKES: Duration = Duration::from_millis(10_321);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = Engine::start(store.clone(), EngineOptions::default());
    let slow = service_fn(|_: Request<Body>| async {
        tokio::time::sleep(TAKES).await;
        Ok::<_, BoxError>(Response::new(Body::empty()))
    });
    let layered = layer(&engine, &Policy::default()).await.layer(slow);
    let began = tokio::time::Instant::now();
    let first = tokio::spawn(layered.oneshot(post()));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let id = record(&*store).await.id;
    let asked = engine.find(id, began + Duration::from_secs(30));
    let found = asked.await.unwrap().value.unwrap();
    assert_eq!(found.state, State::Completed);
    assert!(
        began.elapsed() < TAKES + Duration::from_millis(5),
        "{:?}",
        began.elapsed()
    );
    first.await.unwrap().unwrap();
}

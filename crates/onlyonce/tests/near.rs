//! Recent answers that are kept near: they spare the store reads, and nobody is given one that was taken away.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use onlyonce::{Body, Engine, EngineOptions, IdempotencyLayer, Identity, clock::Clock};
use onlyonce_core::{Key, RecordId, Scope};
use onlyonce_store::{Copies, Store, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use tower::{Layer, ServiceExt};

/// How long a copy may be given where other processes write to the store.
const MAX_AGE: Duration = Duration::from_secs(1);

/// A gateway on `store`, with a clock that stands at `hand` where there is one.
struct Node {
    engine: Engine,
    layer: IdempotencyLayer,
    faulty: Arc<FaultyStore>,
    executed: Arc<AtomicU64>,
}

impl Node {
    fn start(store: &Arc<MemoryStore>, copies: Copies, hand: Option<&Arc<AtomicU64>>) -> Self {
        let faulty = FaultyStore::new(store.clone(), FaultPlan::default(), 1).with_copies(copies);
        let faulty = Arc::new(faulty);
        let clock = hand.map_or_else(Clock::system, |hand| Clock::by_hand(hand.clone()));
        let options = EngineOptions {
            clock,
            ..EngineOptions::default()
        };
        let engine = Engine::start(faulty.clone(), options);
        let layer = IdempotencyLayer::builder(engine.clone())
            .route("payments")
            .identify(|_: &http::request::Parts| Some(Identity::client("alice")))
            .build();
        Self {
            engine,
            layer,
            faulty,
            executed: Arc::default(),
        }
    }

    async fn send(&self, key: &str) -> (StatusCode, Bytes) {
        let executed = self.executed.clone();
        let api = tower::service_fn(move |_: Request<Body>| {
            let number = executed.fetch_add(1, Ordering::SeqCst);
            async move {
                let answer = Full::new(Bytes::from(format!("charge {number}")));
                Ok::<_, Infallible>(Response::new(answer))
            }
        });
        let request = Request::post("/payments")
            .header("Idempotency-Key", key)
            .body(Full::new(Bytes::from_static(b"{}")))
            .unwrap();
        let response = self.layer.layer(api).oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, body)
    }

    fn id(&self, key: &str) -> RecordId {
        let key = Key::from_stored(key);
        let scope = Scope::client("alice");
        self.engine.secret().record_id(scope.as_str(), &key)
    }

    /// From now on nothing can be read and nothing written.
    fn cut_off(&self) {
        self.faulty.set_plan(FaultPlan {
            before_per_mille: 1_000,
            ..FaultPlan::default()
        });
    }
}

/// Goal: retries of a recent key cost no read, for as long as a copy may be given and no longer.
///
/// Method: a payment, then a store that cannot be reached; retries at every half second.
/// Evidence: what the retries are told, and executions.
#[tokio::test(start_paused = true)]
async fn retries_cost_no_read_for_a_while() {
    for (copies, longest) in [
        (Copies::Shared, 1_000),
        (Copies::Owned, 60_000),
        (Copies::Needless, 0),
    ] {
        let hand = Arc::new(AtomicU64::new(1_000_000));
        let store = Arc::new(MemoryStore::new());
        let node = Node::start(&store, copies, Some(&hand));
        let first = node.send("k").await;
        assert_eq!(first, (StatusCode::OK, Bytes::from_static(b"charge 0")));
        node.cut_off();
        for passed in [0, 500, 999, 1_000, 1_500, 59_999, 60_000] {
            hand.store(1_000_000 + passed, Ordering::SeqCst);
            let again = node.send("k").await;
            let expected = match passed < longest {
                true => first.clone(),
                false => (StatusCode::SERVICE_UNAVAILABLE, again.1.clone()),
            };
            assert_eq!(again, expected, "{copies:?}, {passed} ms later");
        }
        assert_eq!(node.executed.load(Ordering::SeqCst), 1);
    }
}

/// Goal: what is taken away here is not given here, from the moment that it is.
///
/// Method: forgetting, erasing, extending and reaping a key of which there is a copy.
/// Evidence: the copy is gone, or is that of the changed record.
#[tokio::test(start_paused = true)]
async fn a_change_here_is_seen_here() {
    let node = Node::start(&Arc::new(MemoryStore::new()), Copies::Owned, None);
    for key in ["forgotten", "erased", "extended"] {
        node.send(key).await;
        let id = node.id(key);
        let copy = node.engine.store().peek(id).expect("there is a copy");
        match key {
            "forgotten" => drop(node.engine.forget(id, true, None).await.unwrap()),
            "erased" => drop(node.engine.erase(id, None).await.unwrap()),
            _ => drop(
                node.engine
                    .extend(id, Duration::from_secs(9_999_999))
                    .await
                    .unwrap(),
            ),
        }
        let now = node.engine.store().peek(id).map(|reply| reply.value);
        assert_ne!(now, Some(copy.value), "{key}");
    }
    assert_eq!(node.send("forgotten").await.1, "charge 3", "executed anew");
    assert_eq!(node.send("erased").await.0, StatusCode::CONFLICT);
    assert_eq!(node.send("extended").await.1, "charge 2", "its own answer");
}

/// Goal: whoever is told that a key was forgotten, or erased, finds it so at every gateway.
///
/// Method: two gateways on one store, both with a copy; one forgets, and the other is asked all the while.
/// Evidence: the other gives its copy at first, and none once the first has said that it is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_answer_is_given_nowhere() {
    let store = Arc::new(MemoryStore::new());
    let (here, there) = (
        Node::start(&store, Copies::Shared, None),
        Node::start(&store, Copies::Shared, None),
    );
    for key in ["forgotten", "erased"] {
        here.send(key).await;
        let id = here.id(key);
        // Read as late as can be: just before it is taken away.
        there.engine.store().lookup(id).await.unwrap();
        let engine = here.engine.clone();
        let took = tokio::time::Instant::now();
        let taking = tokio::spawn(async move {
            match key {
                "forgotten" => drop(engine.forget(id, true, None).await.unwrap()),
                _ => drop(engine.erase(id, None).await.unwrap()),
            }
        });
        let answer = |reply: onlyonce_store::Reply<onlyonce_core::Record>| reply.value.response;
        while store
            .peek(id)
            .and_then(answer)
            .is_some_and(|answer| answer.stored_bytes() > 0)
        {
            tokio::task::yield_now().await;
        }
        let copy = there.engine.store().peek(id).and_then(answer);
        // On a machine that stood still for a second there is none any more.
        assert!(
            copy.is_some() || took.elapsed() > MAX_AGE,
            "{key}: the other has its copy"
        );
        taking.await.unwrap();
        assert_eq!(there.engine.store().peek(id), None, "{key}");
        assert!(took.elapsed() >= MAX_AGE, "{key}: a copy may be so old");
    }
}

/// Goal: no two answers of one key are given at the same time.
///
/// Method: two gateways on one store, one of them with a copy. The other forgets the key and, before the
/// forget has returned, executes it anew; the first is asked all the while.
/// Evidence: once the new answer is there, the first gateway gives no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_key_waits_for_copies() {
    let store = Arc::new(MemoryStore::new());
    let (here, there) = (
        Node::start(&store, Copies::Shared, None),
        Node::start(&store, Copies::Shared, None),
    );
    here.send("k").await;
    let id = here.id("k");
    // Read as late as can be: just before it is taken away.
    there.engine.store().lookup(id).await.unwrap();
    let engine = here.engine.clone();
    let forgetting = tokio::spawn(async move { engine.forget(id, true, None).await });
    while store.peek(id).unwrap().value.response.is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(here.send("k").await.1, "charge 1", "executed anew");
    assert_eq!(there.send("k").await.1, "charge 1", "what was told last");
    forgetting.await.unwrap().unwrap();
}

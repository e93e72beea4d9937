//! A layer is made without its store, and asks the store when the first key arrives.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, request::Parts};
use onlyonce::{
    Body, Engine, EngineOptions, IdempotencyLayer, IdempotencyService, Identity, Policy,
    policy::OnStoreError,
};
use onlyonce_store::memory::MemoryStore;
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};
use tokio::time::Instant;
use tower::{Layer, ServiceExt, service_fn};
use tower_service::Service;

fn identify(_: &Parts) -> Option<Identity> {
    Some(Identity::client("ada"))
}

fn post(key: &str) -> Request<Body> {
    Request::post("/payments")
        .header("idempotency-key", key)
        .body(Body::from(Bytes::from_static(b"{}")))
        .unwrap()
}

/// A store that can be made to fail, and a handler that counts.
struct World {
    store: Arc<FaultyStore>,
    engine: Engine,
    calls: Arc<AtomicUsize>,
}

impl World {
    fn failing(plan: FaultPlan) -> Self {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), plan, 1));
        Self {
            engine: Engine::start(store.clone(), EngineOptions::default()),
            store,
            calls: Arc::default(),
        }
    }

    fn service(
        &self,
        policy: Policy,
    ) -> IdempotencyService<
        impl Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + use<>,
    > {
        let calls = self.calls.clone();
        let layer = IdempotencyLayer::builder(self.engine.clone())
            .route("r")
            .policy(policy)
            .identify(identify)
            .build();
        layer.layer(service_fn(move |_: Request<Body>| {
            calls.fetch_add(1, Ordering::SeqCst);
            async { Ok(Response::new(Body::empty())) }
        }))
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Every write fails before it is made.
fn refusing() -> FaultPlan {
    FaultPlan {
        before_per_mille: 1_000,
        ..FaultPlan::default()
    }
}

/// Goal: a layer is a value, which can be made where there is no runtime and no store.
///
/// Method: one is built, cloned and put before a service, outside of any runtime.
/// Evidence: it compiles without an await, and nothing panics for want of a runtime.
#[test]
fn a_layer_is_made_without_a_runtime() {
    let layer = IdempotencyLayer::builder(MemoryStore::new())
        .identify(identify)
        .build();
    let mut service = layer.clone().layer(7);
    assert_eq!((layer.route(), *service.get_ref()), ("default", 7));
    *service.get_mut() = 8;
    assert_eq!(service.into_inner(), 8);
}

/// Goal: nothing is executed before the store has the recipe, and a store that comes back is used.
///
/// Method: every write fails; two requests through two clones of the service. Then the store recovers.
/// Evidence: 503 for both and no call; then one call, and its retry is a replay.
#[tokio::test]
async fn a_store_that_was_down_is_asked_again() {
    let world = World::failing(refusing());
    let service = world.service(Policy::default());
    for _ in 0..2 {
        let refused = service.clone().oneshot(post("k")).await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(world.calls(), 0);
    world.store.set_plan(FaultPlan::default());
    for _ in 0..2 {
        let answered = service.clone().oneshot(post("k")).await.unwrap();
        assert_eq!(answered.status(), StatusCode::OK);
    }
    assert_eq!(world.calls(), 1);
}

/// Goal: a request without a key needs no store.
///
/// Method: every write fails; a request without a key.
/// Evidence: the handler's own count.
#[tokio::test]
async fn a_request_without_a_key_asks_no_store() {
    let world = World::failing(refusing());
    let mut plain = post("k");
    plain.headers_mut().clear();
    let answered = world.service(Policy::default()).oneshot(plain).await;
    assert_eq!(answered.unwrap().status(), StatusCode::OK);
    assert_eq!(world.calls(), 1);
}

/// Goal: a store that hangs is waited for once, however many requests are the first.
///
/// Method: the store takes an hour for each write; fifty requests at once.
/// Evidence: all are refused after one timeout of the store (2 s), in virtual time.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_waited_for_once() {
    let world = World::failing(FaultPlan {
        slow_per_mille: 1_000,
        delay: Duration::from_secs(3_600),
        ..FaultPlan::default()
    });
    let service = world.service(Policy::default());
    let began = Instant::now();
    let asked = (0..50).map(|number| service.clone().oneshot(post(&format!("k{number}"))));
    for answer in join_all(asked).await {
        assert_eq!(answer.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(world.calls(), 0);
}

/// Goal: a policy under which keys would be forgotten at once executes nothing, whatever it says of stores
/// that are down, and does not make the store look ill to others.
///
/// Method: a policy with no `ttl` that lets requests pass without a store; ten requests, then one on a
/// sound layer of the same engine.
/// Evidence: `prepare` fails, ten times 503 and no call; the other layer executes.
#[tokio::test]
async fn an_unsound_policy_executes_nothing() {
    let world = World::failing(FaultPlan::default());
    let policy = Policy::builder()
        .ttl(Duration::ZERO)
        .on_store_error(OnStoreError::Bypass)
        .build();
    let layer = IdempotencyLayer::builder(world.engine.clone())
        .policy(policy.clone())
        .identify(identify)
        .build();
    assert!(layer.prepare().await.is_err());
    let service = world.service(policy);
    for number in 0..10 {
        let refused = service.clone().oneshot(post(&format!("k{number}"))).await;
        assert_eq!(refused.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(world.calls(), 0);
    let sound = world.service(Policy::default()).oneshot(post("k")).await;
    assert_eq!(sound.unwrap().status(), StatusCode::OK);
    assert_eq!(world.calls(), 1);
}

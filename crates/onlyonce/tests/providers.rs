//! Providers that are asked what became of a key: one that does not answer holds up nobody else's keys.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode, request::Parts};
use onlyonce::{
    Engine, EngineOptions, IdempotencyLayer, Policy,
    engine::{Admitted, Arrival},
    reconcile::{Answer, Ask, Judged},
    worker::reconcile,
};
use onlyonce_core::{
    Key, Record, Scope, State, StoredResponse,
    machine::Settlement,
    policy::ReconcilePolicy,
    record::{Evidence, LastError},
};
use onlyonce_store::{Store, memory::MemoryStore};

/// Knows everything about `quick`, and never answers for `silent`.
struct Providers;

impl Ask for Providers {
    fn ask<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            if &*record.route == "silent" {
                std::future::pending::<()>().await;
            }
            let paid = Arc::new(StoredResponse::plain(StatusCode::CREATED, "paid"));
            Answer {
                judged: Judged::Says(Evidence::Completed(paid)),
                question: None,
            }
        })
    }
}

/// Goal: a provider that does not answer holds up its own route alone.
///
/// Method: 400 unknown keys of a route whose provider is silent, and then one of another route.
/// Evidence: the one is settled while the questions about the others are under way.
#[tokio::test]
async fn a_silent_provider_holds_up_its_own_route() {
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(store.clone(), EngineOptions::default());
    let policy = Arc::new(
        Policy::builder()
            .reconcile(ReconcilePolicy {
                after: Duration::ZERO,
                attempts: 8,
                upstream_max_execution: None,
                negative_gap: ReconcilePolicy::NEGATIVE_GAP,
                asks: true,
            })
            .build(),
    );
    for route in ["silent", "quick"] {
        let nobody = |_: &Parts| None;
        let layer = IdempotencyLayer::builder(engine.clone())
            .route(route)
            .policy((*policy).clone())
            .identify(nobody)
            .build();
        layer.prepare().await.unwrap();
    }
    let unknown = async |route: &str, key: String| {
        let mut arrival = Arrival::new(
            &engine,
            Scope::global(),
            Key::from_stored(&key),
            None,
            route.into(),
            &Method::POST,
            "/payments",
            HeaderMap::new(),
            Default::default(),
        );
        let admitted = engine.admit(&mut arrival, &policy).await.unwrap();
        let Admitted::Execute(attempt) = admitted else {
            panic!("{admitted:?}");
        };
        attempt
            .settle(&Settlement::Unknown(LastError::ConnectionLost))
            .await;
        arrival.id()
    };
    for number in 0..400 {
        unknown("silent", format!("silent-{number}")).await;
    }
    let id = unknown("quick", "quick".to_owned()).await;
    let asking = engine.clone();
    let round = tokio::spawn(async move { reconcile::run_once(&asking, &Providers).await });
    let mut state = State::Unknown;
    for _ in 0..400 {
        tokio::time::sleep(Duration::from_millis(25)).await;
        state = store.lookup(id).await.unwrap().value.unwrap().state;
        if state == State::Completed {
            break;
        }
    }
    assert_eq!(state, State::Completed);
    assert!(
        !round.is_finished(),
        "the others are still being asked about"
    );
    round.abort();
}

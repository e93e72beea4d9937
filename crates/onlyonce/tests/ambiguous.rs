//! A store that does not say whether it reserved: whatever it then says, no reservation is left
//! behind that nobody sees through.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Method};
use onlyonce::{
    Engine, EngineOptions, Policy,
    engine::{Admitted, Arrival},
};
use onlyonce_core::{Key, Scope, State};
use onlyonce_store::{
    Store,
    faulty::{FaultPlan, FaultyStore},
    memory::MemoryStore,
};

/// Every call fails, half of them after having written.
const HALF_WRITTEN: FaultPlan = FaultPlan {
    late_per_mille: 0,
    peek_per_mille: 0,
    before_per_mille: 500,
    after_per_mille: 500,
    lost_per_mille: 0,
    slow_per_mille: 0,
    delay: Duration::ZERO,
};

/// Goal: a reservation whose client was told 503 is released, whatever the second look said.
///
/// Method: 64 seeds of "written or not, the store says that it failed"; then it recovers.
/// Evidence: the record is absent or `failed_retryable` when the engine is idle; and both are seen.
#[tokio::test]
async fn a_reservation_that_nobody_heard_of_is_released() {
    let policy = Arc::new(Policy::default());
    let (mut absent, mut released) = (0, 0);
    for seed in 0..64 {
        let store = FaultyStore::new(Arc::new(MemoryStore::new()), FaultPlan::default(), seed);
        let store = Arc::new(store);
        let engine = Engine::start(store.clone(), EngineOptions::default());
        let mut arrival = arrival(&engine);
        store.set_plan(HALF_WRITTEN);
        let admitted = engine.admit(&mut arrival, &policy).await;
        assert!(
            !matches!(admitted, Ok(Admitted::Execute(_))),
            "seed {seed}: {admitted:?}"
        );
        store.set_plan(FaultPlan::default());
        let idle = tokio::time::timeout(Duration::from_secs(10), engine.idle());
        idle.await.expect("the release ends");
        match store.lookup(arrival.id()).await.unwrap().value {
            None => absent += 1,
            Some(record) => {
                assert_eq!(record.state, State::FailedRetryable, "seed {seed}");
                released += 1;
            }
        }
    }
    assert!(
        absent > 0 && released > 0,
        "{absent} absent, {released} released"
    );
}

fn arrival(engine: &Engine) -> Arrival {
    let key = Key::from_stored("k");
    Arrival::new(
        engine,
        Scope::global(),
        key,
        None,
        "r".into(),
        &Method::POST,
        "/payments",
        HeaderMap::new(),
        Default::default(),
    )
}

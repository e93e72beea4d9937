//! A store that does not say whether it reserved, or not soon: whatever it then says, no reservation
//! is left behind that nobody sees through, and none is used once others may settle it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, Method};
use onlyonce::{
    Engine, EngineOptions, GuardFailed, Policy,
    clock::Clock,
    engine::{Admitted, Arrival},
    worker::sweep,
};
use onlyonce_core::{Key, Scope, Secret, State};
use onlyonce_store::{Store, clock::StoreClock, memory::MemoryStore};
use onlyonce_testkit::faulty_store::{FaultPlan, FaultyStore};

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

/// Goal: the lease counts from before the store was asked. Its own count may have begun at any moment
/// since, so whoever counts from its reply sends a first byte when others may settle the key.
///
/// Method: a store that takes its time, and a clock by hand that passes the lease meanwhile.
/// Evidence: the guard's word.
#[tokio::test(start_paused = true)]
async fn the_guard_counts_from_before_the_question() {
    let slow = FaultPlan {
        slow_per_mille: 1_000,
        delay: Duration::from_secs(1),
        ..FaultPlan::default()
    };
    let hand = Arc::new(AtomicU64::new(0));
    let options = EngineOptions {
        clock: Clock::by_hand(hand.clone()),
        ..EngineOptions::default()
    };
    let store = FaultyStore::new(Arc::new(MemoryStore::new()), slow, 0);
    let engine = Engine::start(Arc::new(store), options);
    let policy = Arc::new(Policy::default());
    let lease = u64::try_from(policy.lease.as_millis()).unwrap();
    let mut arrival = arrival(&engine);
    // Polled in this order: the store has been asked when the clock goes on.
    let (admitted, _) = tokio::join!(biased; engine.admit(&mut arrival, &policy), async {
        hand.fetch_add(lease, Ordering::SeqCst)
    });
    let Ok(Admitted::Execute(attempt)) = admitted else {
        panic!("{admitted:?}");
    };
    assert_eq!(attempt.guard().check(), Err(GuardFailed));
}

/// Goal: a reservation that lapsed before it was confirmed is not used: others may have settled the key
/// by now.
///
/// Method: the reply is lost; before the second look the store's clock passes the lease and another
/// node sweeps.
/// Evidence: no attempt begins; the key is as the sweep left it, and is given back, since nothing was sent.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_lapsed_unconfirmed_is_not_used() {
    let hand = Arc::new(AtomicI64::new(0));
    let clock = StoreClock::by_hand(hand.clone());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::with(Secret::from_bytes([7; 32]), clock));
    let lost = FaultPlan {
        lost_per_mille: 1_000,
        ..FaultPlan::default()
    };
    let store = Arc::new(FaultyStore::new(memory.clone(), lost, 0));
    let engine = Engine::start(store.clone(), EngineOptions::default());
    let other = Engine::start(memory.clone(), EngineOptions::default());
    let policy = Arc::new(Policy::default());
    let lease = i64::try_from(policy.lease.as_millis()).unwrap();
    let mut arrival = arrival(&engine);
    let id = arrival.id();
    // Polled in this order: the key is reserved when the clock goes on.
    let (admitted, swept) = tokio::join!(biased; engine.admit(&mut arrival, &policy), async {
        hand.fetch_add(lease, Ordering::SeqCst);
        let swept = sweep::run_once(&other).await.unwrap();
        store.set_plan(FaultPlan::default());
        swept
    });
    assert_eq!(swept, 1);
    assert!(admitted.is_err(), "{admitted:?}");
    let record = memory.lookup(id).await.unwrap().value.unwrap();
    assert_eq!(record.state, State::Unknown);
    engine.idle().await;
    let record = memory.lookup(id).await.unwrap().value.unwrap();
    assert_eq!(record.state, State::FailedRetryable);
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

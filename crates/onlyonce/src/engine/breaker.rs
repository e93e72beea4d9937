//! A circuit breaker: refuses immediately while the store is down, so that not every request has to find out.
//!
//! Repeated failures open it. While it is open, nothing is reserved. A task probes the store with a harmless
//! write, and the first success closes the breaker.
//!
//! Deliberately absent: writing results to the store. The result of an execution is written for as long as it
//! takes, whatever the state of the breaker.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use metrics::{counter, gauge};
use onlyonce_core::Policy;
use onlyonce_store::{Level, StoreError};

use super::{Engine, Inner, Unavailable};

/// Consecutive failures that open the breaker.
const FAILURES: u32 = 5;
/// The first and the longest pause between two probes.
const FIRST_PROBE: Duration = Duration::from_millis(100);
const LONGEST_PROBE: Duration = Duration::from_millis(250);

const OPEN: &str = "onlyonce_store_breaker_open";
const OPENED: &str = "onlyonce_store_breaker_opened_total";

#[derive(Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
}

impl Breaker {
    pub(super) fn new() -> Self {
        gauge!(OPEN).set(0.0);
        counter!(OPENED).increment(0);
        Self::default()
    }
}

impl Engine {
    /// Whether the store failed so often in a row that it is not used until a probe succeeds.
    pub fn breaker_is_open(&self) -> bool {
        self.0.breaker.open.load(Ordering::SeqCst)
    }

    /// Fails immediately while the breaker is open.
    pub(super) fn unless_open(&self) -> Result<(), Unavailable> {
        if self.breaker_is_open() {
            let open = "the store has failed and is being probed";
            return Err(Unavailable(StoreError::Unavailable(open.into())));
        }
        Ok(())
    }

    /// Fails immediately while the store's durability is below what `policy` requires. A reservation made now
    /// could be lost, and the request executed again.
    pub(super) fn unless_below(&self, policy: &Policy) -> Result<(), Unavailable> {
        if !policy.demands_sync() {
            return Ok(());
        }
        let level = self.0.store.level();
        if level < Level::Sync {
            let below = format!("the store is at level {level}, and the route demands sync");
            return Err(Unavailable(StoreError::Unavailable(below.into())));
        }
        Ok(())
    }

    /// Passes on the store's result, and counts failures.
    pub(super) fn watched<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        let breaker = &self.0.breaker;
        match &outcome {
            Ok(_) => breaker.failures.store(0, Ordering::SeqCst),
            Err(StoreError::Unavailable(_) | StoreError::Ambiguous(_)) => {
                let failed = breaker.failures.fetch_add(1, Ordering::SeqCst) + 1;
                if failed >= FAILURES && !breaker.open.swap(true, Ordering::SeqCst) {
                    gauge!(OPEN).set(1.0);
                    counter!(OPENED).increment(1);
                    tracing::error!(failed, "the store fails: new requests are refused at once");
                    tokio::spawn(probe(Arc::downgrade(&self.0)));
                }
            }
            // One unreadable record says nothing about the store.
            Err(_) => {}
        }
        outcome
    }
}

/// Probes the store until it answers, or until the engine is gone.
async fn probe(engine: Weak<Inner>) {
    let mut pause = FIRST_PROBE;
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PROBE);
        let Some(inner) = engine.upgrade() else {
            return;
        };
        let asked = tokio::time::timeout(inner.options.store_timeout, inner.store.probe()).await;
        if matches!(asked, Ok(Ok(()))) {
            inner.breaker.failures.store(0, Ordering::SeqCst);
            inner.breaker.open.store(false, Ordering::SeqCst);
            gauge!(OPEN).set(0.0);
            tracing::warn!("the store answers again");
            return;
        }
    }
}

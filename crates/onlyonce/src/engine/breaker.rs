//! Refuses at once while the store is away, instead of letting every request find out for itself.
//!
//! Some failures in a row open it. While it is open nothing is reserved; a task asks the store by a
//! write of no account, and the first that succeeds closes it.
//!
//! Deliberately absent: the way of a result into the store. What was executed is written for as long as
//! it takes, whatever this says.

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

/// Failures in a row after which it opens.
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
    /// Whether the store failed so often in a row that it is not asked before it answers a probe.
    pub fn breaker_is_open(&self) -> bool {
        self.0.breaker.open.load(Ordering::SeqCst)
    }

    /// An error at once, while it is open.
    pub(super) fn unless_open(&self) -> Result<(), Unavailable> {
        if self.breaker_is_open() {
            let open = "the store has failed and is being probed";
            return Err(Unavailable(StoreError::Unavailable(open.into())));
        }
        Ok(())
    }

    /// An error at once, while the store is seen to promise less than `policy` demands. Whatever would
    /// be reserved now might be forgotten, and executed again.
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

    /// Passes on what the store said to a request, and remembers whether it failed.
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
            // One record that cannot be read says nothing about the store.
            Err(_) => {}
        }
        outcome
    }
}

/// Asks the store until it answers, or until the engine is gone.
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

//! The clock of a store that lives in this process: the only reader of the wall clock in this crate.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use onlyonce_core::Timestamp;

/// The clock for the records of a store.
#[derive(Clone, Debug, Default)]
pub struct StoreClock(Option<Arc<AtomicI64>>);

impl StoreClock {
    /// The machine's wall clock.
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that shows the value of `hand`, in milliseconds: for simulations.
    pub fn by_hand(hand: Arc<AtomicI64>) -> Self {
        Self(Some(hand))
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Some(hand) => Timestamp(hand.load(Ordering::SeqCst)),
            None => Timestamp(wall_clock_millis()),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one place that may")]
fn wall_clock_millis() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

//! What time a request believes it is: the store's, unless that has jumped ahead.
//!
//! An expired key may be executed again, so a clock that is set days ahead by mistake would execute every
//! retry a second time. Time here goes by as well: where the store's clock runs ahead of it by more than
//! clocks drift, expiry waits until the new time has proved steady. The reaper does the same.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use onlyonce_core::Timestamp;

use super::Engine;

/// How far the store's clock may run ahead of the time that goes by.
pub(crate) const MAX_CLOCK_JUMP: Duration = Duration::from_secs(60);
/// How long a clock must go steadily after a jump before anything expires by it.
pub(crate) const STEADY_FOR: Duration = Duration::from_secs(600);

/// What is believed of the store's clock.
pub(super) struct Believed {
    /// By how much it is ahead of the time since this machine was started, in milliseconds; [`UNHEARD`]
    /// before it has said anything.
    ahead: AtomicI64,
    /// When it was first heard to have jumped, in milliseconds since this machine was started; 0 if not.
    jumped_at: AtomicU64,
}

const UNHEARD: i64 = i64::MIN;

impl Default for Believed {
    fn default() -> Self {
        Self {
            ahead: AtomicI64::new(UNHEARD),
            jumped_at: AtomicU64::new(0),
        }
    }
}

impl Engine {
    /// The store says that it is `now`: what of it to believe when something may have expired. To be told of
    /// every reply, so that a jump is seen whatever was asked before it.
    pub(super) fn believed(&self, now: Timestamp) -> Timestamp {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let boot = millis(self.moment().since_boot());
        let believed = &self.0.believed;
        let ahead = now.0.saturating_sub(boot);
        let before = believed.ahead.load(Ordering::Relaxed);
        let most = before.saturating_add(millis(MAX_CLOCK_JUMP));
        if before == UNHEARD || ahead <= most {
            believed.ahead.store(ahead, Ordering::Relaxed);
            believed.jumped_at.store(0, Ordering::Relaxed);
            return now;
        }
        let at = boot.unsigned_abs().max(1);
        let first = believed
            .jumped_at
            .compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed)
            .unwrap_or_else(|first| first);
        if first == 0 {
            tracing::error!("the store's clock jumped ahead: nothing expires for a while");
        } else if at.saturating_sub(first) >= STEADY_FOR.as_millis() as u64 {
            believed.ahead.store(ahead, Ordering::Relaxed);
            believed.jumped_at.store(0, Ordering::Relaxed);
            return now;
        }
        Timestamp(boot.saturating_add(most))
    }
}

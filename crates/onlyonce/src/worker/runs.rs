//! When each background loop last ran, for people who want to check.

use std::{collections::BTreeMap, time::Duration};

use onlyonce_core::Timestamp;
use parking_lot::Mutex;

use crate::{clock::Moment, engine::Engine};

/// One round of a background loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// When the round ended, by this machine's clock.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// How many records it changed; `None` if it failed.
    pub changed: Option<u64>,
}

/// The last round of each loop, by the loop's name.
#[derive(Default)]
pub(crate) struct Runs(Mutex<BTreeMap<&'static str, Run>>);

impl Runs {
    /// Records a round of `name` that began at `began`.
    pub(crate) fn note(
        &self,
        name: &'static str,
        began: Moment,
        now: Moment,
        changed: Option<u64>,
    ) {
        let wall = i64::try_from(now.since_1970().as_millis()).unwrap_or(i64::MAX);
        let run = Run {
            at: Timestamp(wall),
            took: now.since_boot().saturating_sub(began.since_boot()),
            changed,
        };
        self.0.lock().insert(name, run);
    }
}

impl Engine {
    /// The last round of each background loop of this process, by the loop's name.
    pub fn runs(&self) -> Vec<(&'static str, Run)> {
        let runs = self.noted_runs().0.lock();
        runs.iter().map(|(name, run)| (*name, *run)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicU64};

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn the_last_round_of_each_loop_is_kept() {
        let (boot, wall) = (
            Arc::new(AtomicU64::new(100)),
            Arc::new(AtomicU64::new(5_000)),
        );
        let clock = Clock::by_hands(boot.clone(), wall);
        let runs = Runs::default();
        let began = clock.moment();
        boot.store(130, std::sync::atomic::Ordering::SeqCst);
        runs.note("sweep", began, clock.moment(), Some(1));
        runs.note("sweep", began, clock.moment(), None);
        runs.note("reap", began, clock.moment(), Some(0));
        let kept = runs.0.lock().clone();
        let sweep = Run {
            at: Timestamp(5_000),
            took: Duration::from_millis(30),
            changed: None,
        };
        assert_eq!(kept["sweep"], sweep);
        assert_eq!(kept["reap"].changed, Some(0));
    }
}

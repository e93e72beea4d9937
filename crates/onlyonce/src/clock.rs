//! The only reader of local time in this crate. Persisted times come from the store; this clock measures the
//! time between two replies of the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// Where Linux publishes the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A moment by two clocks: one that continues while the machine sleeps, and the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    boot: Duration,
    wall: Duration,
}

impl Moment {
    /// Whether less than `duration` has passed between `self` and `now`, by both clocks. A clock that was set
    /// back counts as too late.
    pub fn is_within(self, duration: Duration, now: Self) -> bool {
        let within = |then: Duration, now: Duration| {
            now.checked_sub(then)
                .is_some_and(|passed| passed < duration)
        };
        within(self.boot, now.boot) && within(self.wall, now.wall)
    }
}

impl Moment {
    /// Time since the machine was started.
    pub fn since_boot(self) -> Duration {
        self.boot
    }

    /// Time since 1970, by the wall clock.
    pub fn since_1970(self) -> Duration {
        self.wall
    }
}

/// Reads local time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Hands>);

/// The readings of a simulated clock, in milliseconds.
#[derive(Clone, Debug)]
struct Hands {
    boot: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
}

impl Clock {
    /// The machine's clocks.
    pub fn system() -> Self {
        Self(None)
    }

    /// A simulated clock that reads `hand`, in milliseconds.
    pub fn by_hand(hand: Arc<AtomicU64>) -> Self {
        Self::by_hands(hand.clone(), hand)
    }

    /// Two simulated clocks, in milliseconds: `wall` may be set, `boot` only advances.
    pub fn by_hands(boot: Arc<AtomicU64>, wall: Arc<AtomicU64>) -> Self {
        Self(Some(Hands { boot, wall }))
    }

    /// The boot from which `since_boot` counts; empty if unknown.
    pub fn boot_id(&self) -> String {
        match &self.0 {
            Some(_) => "by-hand".to_owned(),
            None => std::fs::read_to_string(BOOT_ID)
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }

    /// The current time.
    pub fn moment(&self) -> Moment {
        match &self.0 {
            Some(hands) => Moment {
                boot: Duration::from_millis(hands.boot.load(Ordering::SeqCst)),
                wall: Duration::from_millis(hands.wall.load(Ordering::SeqCst)),
            },
            None => Moment {
                boot: read(ClockId::Boottime),
                wall: read(ClockId::Realtime),
            },
        }
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: u64, wall: u64) -> Moment {
        Moment {
            boot: Duration::from_secs(boot),
            wall: Duration::from_secs(wall),
        }
    }

    #[test]
    fn both_clocks_must_agree() {
        let lease = Duration::from_secs(10);
        assert!(at(100, 500).is_within(lease, at(109, 509)));
        assert!(
            !at(100, 500).is_within(lease, at(110, 509)),
            "the machine slept"
        );
        assert!(
            !at(100, 500).is_within(lease, at(109, 510)),
            "the wall clock jumped"
        );
        assert!(
            !at(100, 500).is_within(lease, at(101, 499)),
            "the wall clock was set back"
        );
    }

    #[test]
    fn the_system_clock_moves_on() {
        let clock = Clock::system();
        let then = clock.moment();
        assert!(then.is_within(Duration::from_secs(60), clock.moment()));
    }
}

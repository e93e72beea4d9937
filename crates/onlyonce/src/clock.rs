//! The only reader of local time in this crate. Persisted times come from the store; this clock is
//! for what happens between two words with it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// Where Linux says it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A moment by two clocks: one that goes on while the machine sleeps, and the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    boot: Duration,
    wall: Duration,
}

impl Moment {
    /// Whether less than `duration` has passed since `self`, by both clocks, when it is `now`. A
    /// clock that was set back says nothing, so it counts as too late.
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

    /// Time since 1970 by the wall clock.
    pub fn since_1970(self) -> Duration {
        self.wall
    }
}

/// Tells local time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<Hands>);

/// What a clock by hand shows, in milliseconds.
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

    /// A clock that shows what `hand` holds, in milliseconds: for simulations.
    pub fn by_hand(hand: Arc<AtomicU64>) -> Self {
        Self::by_hands(hand.clone(), hand)
    }

    /// Two clocks by hand, in milliseconds: `wall` may be set, `boot` only ever goes on.
    pub fn by_hands(boot: Arc<AtomicU64>, wall: Arc<AtomicU64>) -> Self {
        Self(Some(Hands { boot, wall }))
    }

    /// Which start of which machine the time since boot counts from; empty where nobody can tell.
    pub fn boot_id(&self) -> String {
        match &self.0 {
            Some(_) => "by-hand".to_owned(),
            None => std::fs::read_to_string(BOOT_ID)
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }

    /// Now.
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

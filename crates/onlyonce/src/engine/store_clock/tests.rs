//! Every way a clock can go wrong, against the one who says what to believe of it.

use std::sync::{Arc, atomic::AtomicU64};

use onlyonce_core::policy::ReconcilePolicy;

use super::*;

const START: i64 = 1 << 40;
const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const STEADY: i64 = 600 * SECOND;

/// A machine, and a store whose clock is somebody else's.
struct World {
    boot: Arc<AtomicU64>,
    wall: Arc<AtomicU64>,
    store: i64,
    clock: StoreClock,
}

impl World {
    fn new() -> Self {
        let (boot, wall) = (
            Arc::new(AtomicU64::new(7_000)),
            Arc::new(AtomicU64::new(1 << 40)),
        );
        let clock = Clock::by_hands(boot.clone(), wall.clone());
        let clock = StoreClock::new(clock, STEADY_FOR);
        let store = START;
        Self {
            boot,
            wall,
            store,
            clock,
        }
    }

    /// Time goes by, for everybody.
    fn pass(&mut self, millis: i64) {
        let time = u64::try_from(millis).unwrap();
        self.boot.fetch_add(time, Ordering::SeqCst);
        self.wall.fetch_add(time, Ordering::SeqCst);
        self.store += millis;
    }

    /// What is believed when the store answers at once.
    fn hear(&self) -> i64 {
        self.clock
            .hear(self.clock.moment(), Timestamp(self.store))
            .0
    }

    /// The same machine with another process on it, which recalls what the last one noted.
    fn restarted(&mut self) {
        let mark = self.clock.mark().expect("something was heard");
        let mark = Mark::read(mark.write().as_bytes()).expect("as it was written");
        let clock = Clock::by_hands(self.boot.clone(), self.wall.clone());
        self.clock = StoreClock::new(clock, STEADY_FOR);
        self.clock.recall(&mark);
    }

    /// Another machine, or the same one started anew.
    fn elsewhere(&mut self, mark: Mark) {
        self.boot = Arc::new(AtomicU64::new(3_000));
        let clock = Clock::by_hands(self.boot.clone(), self.wall.clone());
        self.clock = StoreClock::new(clock, STEADY_FOR);
        self.clock.recall(&Mark {
            boot_id: "another".to_owned(),
            ..mark
        });
    }
}

/// Believed time is never ahead of the last believed time, plus what went by, plus the tolerance, whatever
/// steps the clock takes; and it comes back to the clock in bounded time.
#[test]
fn every_step_of_the_clock() {
    let steps = [
        -86_400 * SECOND,
        -20 * MINUTE,
        -MINUTE,
        -6 * SECOND,
        -4 * SECOND,
        0,
        SECOND,
        4 * SECOND,
        6 * SECOND,
        MINUTE,
        20 * MINUTE,
        25 * HOUR,
    ];
    for first in steps {
        for pause in [0, SECOND, 30 * SECOND, 4 * MINUTE] {
            for second in steps {
                let mut world = World::new();
                let mut last = world.hear();
                assert_eq!(last, START);
                for (step, pause) in [(first, 10 * SECOND), (second, pause), (0, pause)] {
                    world.pass(pause);
                    world.store += step;
                    let now = world.hear();
                    let what = format!("{first} {second} {pause}: {step}");
                    let most = last + pause + TOLERANCE.as_millis() as i64;
                    assert!(now <= most, "{what}: {now} after {last}");
                    assert!(
                        now <= world.store,
                        "{what}: never later than the store says"
                    );
                    last = now;
                }
                for _ in 0..3 {
                    world.pass(STEADY);
                    world.hear();
                }
                assert_eq!(world.hear(), world.store, "{first} {second}: stuck");
                assert!(world.clock.is_steady());
            }
        }
    }
}

#[test]
fn a_jump_ahead_is_believed_once_it_is_steady() {
    let mut world = World::new();
    world.hear();
    world.pass(SECOND);
    world.store += 20 * MINUTE;
    assert_eq!(world.hear(), START + SECOND);
    assert!(!world.clock.is_steady());
    world.pass(STEADY - SECOND);
    assert_eq!(world.hear(), START + STEADY, "not yet");
    // Another step begins the wait anew.
    world.store += MINUTE;
    world.hear();
    world.pass(STEADY - SECOND);
    assert!(world.hear() < world.store);
    world.pass(SECOND);
    assert_eq!(world.hear(), world.store);
    assert!(world.clock.is_steady());
}

#[test]
fn a_clock_that_creeps_is_not_carried_along() {
    let mut world = World::new();
    world.hear();
    for _ in 0..100 {
        world.pass(SECOND);
        world.store += 4 * SECOND;
        world.hear();
    }
    let went_by = 100 * SECOND;
    // The tolerance of two anchors.
    assert!(
        world.hear() <= START + went_by + 10 * SECOND,
        "{}",
        world.hear() - START
    );
}

#[test]
fn a_reply_that_lay_about_is_no_jump() {
    let mut world = World::new();
    world.hear();
    let (asked, said) = (world.clock.moment(), Timestamp(world.store));
    world.pass(HOUR);
    assert_eq!(world.clock.hear(asked, said), said);
    assert!(world.clock.is_steady());
    assert_eq!(world.hear(), world.store, "and the next one is believed");
    assert!(world.clock.is_steady());
}

#[test]
fn a_process_that_is_started_after_a_jump_notices() {
    for (step, believed) in [(25 * HOUR, 0), (-25 * HOUR, -25 * HOUR)] {
        let mut world = World::new();
        world.hear();
        world.pass(HOUR);
        world.store += step;
        world.restarted();
        assert_eq!(world.hear(), START + HOUR + believed);
        assert!(!world.clock.is_steady());
        // And so does the next one, as long as it is not believed.
        world.pass(MINUTE);
        world.restarted();
        assert_eq!(world.hear(), START + HOUR + MINUTE + believed);
        assert!(!world.clock.is_steady());
        world.pass(STEADY);
        assert_eq!(world.hear(), world.store);
    }
    // However long it was stopped.
    let mut world = World::new();
    world.hear();
    world.pass(1_000 * HOUR);
    world.restarted();
    assert_eq!(world.hear(), world.store);
    assert!(world.clock.is_steady());
}

#[test]
fn another_machine_goes_on_from_the_last_believed_time() {
    let mut world = World::new();
    world.hear();
    let mark = world.clock.mark().expect("something was heard");
    world.pass(30 * SECOND);
    world.elsewhere(mark);
    assert_eq!(world.hear(), world.store, "a node that joins others");
    assert!(world.clock.is_steady());

    let mut world = World::new();
    world.hear();
    let mark = world.clock.mark().expect("something was heard");
    // Nobody knows whether this is a night or a clock.
    world.pass(8 * HOUR);
    world.elsewhere(mark);
    assert_eq!(world.hear(), START);
    world.pass(STEADY);
    assert_eq!(world.hear(), world.store);
}

#[test]
fn a_denial_that_waits_for_long_makes_the_clock_wait_as_long() {
    let mut world = World::new();
    let policy = Policy::builder()
        .lease(Duration::from_secs(60))
        .reconcile(ReconcilePolicy {
            after: Duration::from_secs(5),
            attempts: 8,
            upstream_max_execution: Some(Duration::from_secs(3_600)),
            negative_gap: Duration::from_secs(60),
            asks: true,
        })
        .build();
    world.clock.learn(&policy);
    world.hear();
    world.store += 2 * HOUR;
    world.hear();
    world.pass(HOUR);
    assert!(world.hear() < world.store);
    world.pass(2 * MINUTE);
    assert_eq!(world.hear(), world.store);
}

#[test]
fn a_lease_lapses_by_the_new_time_once_its_owner_could_renew_it() {
    let lease = Duration::from_secs(60);
    let mut world = World::new();
    world.hear();
    world.store += HOUR;
    let by = |world: &World| {
        let believed = Timestamp(world.hear());
        world.clock.lease_time(lease, believed).0
    };
    assert_eq!(by(&world), START);
    world.pass(60 * SECOND);
    assert_eq!(by(&world), START + 60 * SECOND);
    world.pass(1);
    assert_eq!(by(&world), world.store);
    world.clock.has_looked();
    assert!(!world.clock.may_have_been_set_back(lease));
    world.store -= 25 * HOUR;
    world.hear();
    assert!(!world.clock.may_have_been_set_back(lease), "not at once");
    world.pass(60 * SECOND);
    assert!(world.clock.may_have_been_set_back(lease));
    world.pass(2 * STEADY);
    assert!(
        !world.clock.may_have_been_set_back(lease),
        "and not for ever"
    );
}

/// Whoever saw that the clock was set back may be gone before it may look after the leases that are far
/// ahead since. So each process looks once, when whoever is alive has had the time to renew its own.
#[test]
fn every_process_looks_once_for_leases_that_are_far_ahead() {
    let lease = Duration::from_secs(60);
    for ahead in [0, HOUR] {
        let mut world = World::new();
        world.hear();
        world.restarted();
        world.store += ahead;
        world.hear();
        world.pass(59 * SECOND);
        assert!(!world.clock.may_have_been_set_back(lease), "not yet");
        world.pass(2 * SECOND);
        assert!(world.clock.may_have_been_set_back(lease));
        world.clock.has_looked();
        assert!(!world.clock.may_have_been_set_back(lease), "once");
    }
}

#[test]
fn marks_of_another_version_are_not_guessed_at() {
    for text in [
        "",
        "2 boot 1 2 -",
        "1 boot 1",
        "1 boot x 2 -",
        "1 boot 1 2 y",
    ] {
        assert_eq!(Mark::read(text.as_bytes()), None, "{text}");
    }
}

//! A model checker walks every interleaving of a small world around the shipping machine.
//!
//! The world: two nodes, requests with one key of which one has other content, retries, a sweeper,
//! a reaper, a reconciler that asks and is told, a crash, and writes whose reply is lost. Every
//! decision is made by `onlyonce_core::machine`; the model adds only what an engine and a store do
//! with it: compare a revision, swap, and guard the dispatch.
//!
//! Deliberately absent: the moment between guard and first byte, which nothing on this side of the
//! connection can close; operators, and providers that lie.
//!
//! `ONLYONCE_SOAK=1` walks wider worlds, which take minutes instead of seconds.

mod act;
mod engine;
mod world;

use std::time::Duration;

use onlyonce_core::{Policy, State};
use onlyonce_testkit::soak::is_on as soak;
use stateright::{Checker, Model, Property};

use act::{Action, actions, step};
use world::{Note, World};

/// The bounds of a world. Clock units are milliseconds of the store.
#[derive(Clone, Debug)]
struct Bounds {
    /// How far the clock goes.
    clock: i64,
    /// How often the first request is sent, and the one with other content.
    requests: [u8; 2],
    crashes: u8,
    /// Writes whose reply is lost, happened or not.
    lost_replies: u8,
    /// Whether there is a provider that speaks of its own accord and can be asked.
    reconciler: bool,
    /// How often it is asked.
    looks: u8,
    /// How long answers and tombstones stand; `None` is longer than the clock goes.
    ttl: Option<Duration>,
}

/// Some path ends in a step of this kind.
macro_rules! noted {
    ($name:literal, $note:ident) => {
        Property::<Small>::sometimes($name, |_, world| world.last == Note::$note)
    };
}

/// The bounds, and the policy that follows from them.
struct Small {
    bounds: Bounds,
    policy: Policy,
}

impl Model for Small {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new()]
    }

    fn actions(&self, world: &World, all: &mut Vec<Action>) {
        actions(&self.bounds, world, all);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        step(&self.policy, world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let bounds = &self.bounds;
        let mut all = always();
        all.extend(sometimes());
        if bounds.requests[1] > 0 {
            all.push(noted!("mismatch refused", Reused));
        }
        if bounds.lost_replies > 0 {
            all.push(noted!(
                "own write recognised after a lost reply",
                Recognised
            ));
        }
        if bounds.reconciler || bounds.lost_replies > 0 {
            all.push(noted!("zombie refused", ZombieRefused));
        }
        if bounds.reconciler {
            all.extend([
                noted!("reconciled as completed", ReconciledCompleted),
                noted!("reconciled as released", ReconciledReleased),
                noted!("webhook kept while running", EvidenceKept),
                noted!("kept webhook used", KeptUsed),
            ]);
        }
        if bounds.ttl.is_some() {
            all.extend(over_time());
        }
        all
    }
}

fn always() -> Vec<Property<Small>> {
    let always = Property::<Small>::always;
    vec![
        always("a generation takes effect at most once", |_, world| {
            world.took_effect_once()
        }),
        always("a generation starts again only after proof", |_, world| {
            world.every_restart_is_proven()
        }),
        always("other content never executes under the key", |_, world| {
            world.one_content_per_life()
        }),
        always("unknown never becomes in_progress", |_, world| {
            !world.broken.guessed
        }),
        always("a completed answer never changes", |_, world| {
            !world.broken.answer_changed
        }),
        always("nobody writes into another's attempt", |_, world| {
            !world.broken.stolen
        }),
        always("fences rise, revisions count", |_, world| {
            !world.broken.miscounted
        }),
        always("running and unknown keys never expire", |_, world| {
            !world.broken.expired_live
        }),
        always("a release is never wrong", |_, world| {
            world.last != Note::ReleaseWasWrong
        }),
    ]
}

fn sometimes() -> Vec<Property<Small>> {
    let sometimes = Property::<Small>::sometimes;
    vec![
        sometimes("completed", |_, world| {
            world.state() == Some(State::Completed)
        }),
        sometimes("executed again after a release", |_, world| {
            world.executed_again()
        }),
        noted!("replayed", Replayed),
        noted!("unknown by a lapsed lease", Lapsed),
        noted!("late result taken", LateResult),
        noted!("guard held a dispatch back", GuardFailed),
    ]
}

fn over_time() -> Vec<Property<Small>> {
    let sometimes = Property::<Small>::sometimes;
    vec![
        sometimes("expired", |_, world| world.state() == Some(State::Expired)),
        sometimes("second generation", |_, world| {
            world.row.as_ref().is_some_and(|row| row.0.generation == 2)
        }),
        sometimes("second life", |_, world| {
            world.life == 2 && world.row.is_some()
        }),
    ]
}

fn explore(name: &str, bounds: Bounds) {
    let policy = engine::policy(&bounds);
    let small = Small { bounds, policy };
    let properties = small.properties();
    let checker = small.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} of them different, depth {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    for property in &properties {
        println!("  {:?}: {}", property.expectation, property.name);
    }
    checker.assert_properties();
}

#[test]
fn retries_crashes_and_lost_replies_never_execute_twice() {
    let bounds = Bounds {
        clock: 2,
        requests: [if soak() { 3 } else { 2 }, 1],
        crashes: 1,
        lost_replies: 1,
        reconciler: false,
        looks: 0,
        ttl: None,
    };
    explore("faults", bounds);
}

#[test]
fn evidence_releases_only_what_left_nothing_behind() {
    let bounds = Bounds {
        clock: 3,
        requests: [2, u8::from(soak())],
        crashes: 1,
        lost_replies: u8::from(soak()),
        reconciler: true,
        looks: 2,
        ttl: None,
    };
    explore("reconciler", bounds);
}

#[test]
fn expiry_and_deletion_never_let_a_zombie_in() {
    let bounds = Bounds {
        clock: 3,
        requests: [2, 1],
        crashes: u8::from(soak()),
        lost_replies: 1,
        reconciler: false,
        looks: 0,
        ttl: Some(Duration::from_millis(1)),
    };
    explore("expiry", bounds);
}

//! Random histories of one key, from nothing on, with a clock that runs and with one that jumps.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;

use onlyonce_core::{
    machine::{Step, Write},
    policy::Policy,
    record::{AttemptId, Record, State, StoredResponse},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::{
    events::{Effect, Event, Setting, Who, apply},
    world::{GAP, LEASE, MAX_EXECUTION, MILLI, START, TOMBSTONE, TTL, UPSTREAM_MAX, policies},
};

use super::invariants::{check, check_shape};

/// Steps of the clock that land on, just before and just after what the policy says.
fn pauses() -> Vec<Duration> {
    let edges = [
        GAP,
        LEASE,
        LEASE + UPSTREAM_MAX,
        MAX_EXECUTION,
        TTL,
        TOMBSTONE,
    ];
    let mut pauses = vec![Duration::ZERO, MILLI, LEASE / 3];
    pauses.extend(
        edges
            .iter()
            .flat_map(|edge| [*edge - MILLI, *edge, *edge + MILLI]),
    );
    pauses
}

/// One key and what we know of its past beyond the record itself.
struct History<'a> {
    policy: &'a Policy,
    record: Option<Record>,
    now: Timestamp,
    attempts: u128,
    /// The answer of the completed record, from the moment it was written.
    answer: Option<Arc<StoredResponse>>,
    fence: u32,
}

impl<'a> History<'a> {
    fn new(policy: &'a Policy) -> Self {
        Self {
            policy,
            record: None,
            now: START,
            attempts: 0,
            answer: None,
            fence: 0,
        }
    }

    fn step(&mut self, event: Event, stranger: prop::sample::Index) {
        // Attempt 0 never was; the others are earlier owners of this key, or its present one.
        let stranger = AttemptId(stranger.index(self.attempts as usize + 1) as u128);
        let owner = self.record.as_ref().map(|record| record.attempt_id);
        if owner == Some(stranger) {
            return;
        }
        self.attempts += 1;
        let fresh = AttemptId(self.attempts);
        let setting = Setting {
            now: self.now,
            policy: self.policy,
            fresh,
            stranger,
        };
        let step = apply(self.record.as_ref(), event, setting);
        self.check_replay(event, &step);
        let (after, edge) = check(self.record.as_ref(), event, step, setting);
        if edge.is_some() {
            self.remember(after.as_ref());
        }
        self.record = after;
    }

    /// A completed key answers the same request with the same bytes, and does so until it expires.
    fn check_replay(&self, event: Event, step: &Step<Effect>) {
        let Some(record) = &self.record else { return };
        check_shape(record);
        if event != Event::Request(Who::Same)
            || record.state != State::Completed
            || record.is_past_expiry(self.now)
        {
            return;
        }
        let answer = self.answer.as_ref().expect("completed");
        assert_eq!(step.write, Write::Stay);
        match &step.effect {
            Effect::Replay(replayed) => assert_eq!(replayed, answer),
            Effect::NotStored => assert_eq!(answer.stored_bytes(), 0),
            other => panic!("a completed key makes {other:?}"),
        }
    }

    fn remember(&mut self, after: Option<&Record>) {
        let Some(after) = after else {
            (self.answer, self.fence) = (None, 0);
            return;
        };
        assert!(after.fence.0 >= self.fence, "fences only rise");
        self.fence = after.fence.0;
        match (after.state, &self.answer) {
            (State::Completed, Some(answer)) if after.notes.erased => {
                let bare = Arc::new(StoredResponse::bare(answer.status));
                assert_eq!(after.response.as_ref(), Some(&bare));
                self.answer = Some(bare);
            }
            (State::Completed, Some(answer)) => assert_eq!(after.response.as_ref(), Some(answer)),
            (State::Completed, None) => self.answer = after.response.clone(),
            (_, _) => self.answer = None,
        }
    }
}

fn events() -> impl Strategy<Value = Vec<(Event, i64, prop::sample::Index)>> {
    let forward = prop::sample::select(pauses());
    let forward = forward.prop_map(|pause| i64::try_from(pause.as_millis()).unwrap());
    // Histories in which nobody asks are dull, and ones that never stand still are short.
    let event = prop_oneof![
        1 => Just(Event::Request(Who::Same)),
        4 => prop::sample::select(Event::all()),
    ];
    let pause = prop_oneof![2 => Just(0), 1 => forward];
    prop::collection::vec((event, pause, any::<prop::sample::Index>()), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_history_under_a_running_clock_keeps_the_invariants(
        policy in prop::sample::select(policies()),
        events in events(),
    ) {
        let mut history = History::new(&policy);
        for (event, pause, stranger) in events {
            history.now = Timestamp(history.now.0 + pause);
            history.step(event, stranger);
        }
    }

    #[test]
    fn any_history_under_a_clock_that_jumps_keeps_the_invariants(
        policy in prop::sample::select(policies()),
        events in events(),
        jumps in prop::collection::vec(-2_000_000_i64..2_000_000, 80),
    ) {
        let mut history = History::new(&policy);
        for ((event, pause, stranger), jump) in events.into_iter().zip(jumps) {
            let jump = if jump % 4 == 0 { jump } else { pause };
            history.now = Timestamp(history.now.0 + jump);
            history.step(event, stranger);
        }
    }
}

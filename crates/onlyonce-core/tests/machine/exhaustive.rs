//! State x event x clock edge x policy, all of them: every step keeps the invariants, and what is
//! possible is what the design lists, no less and no more.

use std::collections::BTreeSet;

use onlyonce_core::{
    machine::Write,
    policy::AfterExpiry,
    record::{AttemptId, Record, State},
};
use onlyonce_testkit::scenarios::{
    events::{Effect, Event, Setting, Who, apply},
    world::{FRESH, OTHER, START, moments, policies, records},
};

use super::{
    invariants::{check, check_shape, edges},
    steps::stay,
};

#[test]
fn every_step_keeps_the_invariants_and_every_edge_is_reached() {
    let policies = policies();
    let mut seen = BTreeSet::new();
    let mut steps = 0_u64;
    for (name, shared) in records() {
        check_shape(&shared);
        let alone = Record {
            caller: None,
            ..shared.clone()
        };
        for record in [shared, alone] {
            for now in moments(&record) {
                for policy in &policies {
                    for event in Event::all() {
                        let setting = Setting {
                            now,
                            policy,
                            fresh: FRESH,
                            stranger: stranger(&record),
                        };
                        let step = apply(Some(&record), event, setting);
                        let (_, edge) = check(Some(&record), event, step, setting);
                        seen.extend(edge.map(|edge| (event, edge)));
                        steps += 1;
                    }
                }
            }
        }
        assert!(steps > 0, "{name}");
    }
    for event in Event::all() {
        for policy in &policies {
            let setting = Setting {
                now: START,
                policy,
                fresh: FRESH,
                stranger: OTHER,
            };
            let (_, edge) = check(None, event, apply(None, event, setting), setting);
            seen.extend(edge.map(|edge| (event, edge)));
        }
    }
    let listed: BTreeSet<_> = Event::all()
        .into_iter()
        .flat_map(|event| edges(event).iter().map(move |edge| (event, *edge)))
        .collect();
    let never_reached: Vec<_> = listed.difference(&seen).collect();
    let not_in_design: Vec<_> = seen.difference(&listed).collect();
    assert!(never_reached.is_empty(), "never reached: {never_reached:?}");
    assert!(
        not_in_design.is_empty(),
        "not in the design: {not_in_design:?}"
    );
    println!("{steps} steps, {} kinds of write", seen.len());
}

/// Somebody who does not own `record`.
fn stranger(record: &Record) -> AttemptId {
    AttemptId(record.attempt_id.0 ^ 1)
}

#[test]
fn a_mismatch_changes_nothing_in_any_state_until_the_tombstone_is_over() {
    for (name, record) in records() {
        for now in moments(&record) {
            for policy in &policies() {
                for who in [Who::OtherContent, Who::OtherCaller] {
                    let setting = Setting {
                        now,
                        policy,
                        fresh: FRESH,
                        stranger: OTHER,
                    };
                    let step = apply(Some(&record), Event::Request(who), setting);
                    let end = record
                        .times
                        .expires_at
                        .map(|at| at.plus(record.tombstone_ttl));
                    let any = match (record.is_redirected(), record.state) {
                        // A redirect brings other content, and of a released key another caller too.
                        (true, State::FailedRetryable) => true,
                        (true, _) => who == Who::OtherContent,
                        (false, _) => record.fingerprint.is_none(),
                    };
                    if any && policy.after_expiry == AfterExpiry::Reject && record.is_redirected() {
                        continue;
                    }
                    let mut bound = !any && end.is_none_or(|end| now < end);
                    let released =
                        record.state == State::FailedRetryable && !record.is_past_expiry(now);
                    bound &= who == Who::OtherContent || !released;
                    match (step.write, step.effect) {
                        (Write::Stay, Effect::Reused) => {
                            assert!(bound && who == Who::OtherContent, "{name} at {now:?}");
                        }
                        (Write::Stay, Effect::CallerDiffers) => {
                            assert!(bound && who == Who::OtherCaller, "{name} at {now:?}");
                        }
                        (Write::Swap(_), Effect::Execute) => {
                            assert!(!bound, "{name} at {now:?}");
                        }
                        other => panic!("{name} at {now:?}: {other:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn of_two_that_read_the_same_record_one_wins() {
    // Both changes carry the same next revision, so a swap takes one of them, and the loser finds
    // an attempt in flight.
    for (name, record) in records() {
        for now in moments(&record) {
            for policy in &policies() {
                let setting = |fresh| Setting {
                    now,
                    policy,
                    fresh,
                    stranger: OTHER,
                };
                let ask = |record: &Record, fresh| {
                    apply(Some(record), Event::Request(Who::Same), setting(fresh))
                };
                let loser = AttemptId(FRESH.0 + 1);
                let execute = |fresh| {
                    let step = ask(&record, fresh);
                    let executes = step.effect == Effect::Execute;
                    step.swapped().filter(|_| executes)
                };
                let (Some(won), Some(lost)) = (execute(FRESH), execute(loser)) else {
                    continue;
                };
                assert_eq!(won.draft.record.revision, lost.draft.record.revision);
                assert_ne!(won.draft.record.attempt_id, lost.draft.record.attempt_id);
                let current = won.draft.stamp(now);
                assert_eq!(current.state, State::InProgress);
                if now.0 == i64::MAX {
                    continue; // The clock has no room for a lease.
                }
                let in_flight = stay(Effect::InFlight(policy.on_in_flight));
                assert_eq!(ask(&current, loser), in_flight, "{name} at {now:?}");
            }
        }
    }
}

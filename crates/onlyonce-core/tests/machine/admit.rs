//! A request meets each state of the design, at each edge of the clock.

use std::time::Duration;

use onlyonce_core::{
    machine::{Admission, Refusal, Request, Step, Write, first},
    policy::OnInFlight,
    record::{AttemptId, Evidence, JournalEvent, LastError, MarkedBy, Record, State},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::world::{
    FRESH, LEASE, LOOK_AFTER, OWN, START, TOMBSTONE, TTL, again, answer, around, completed,
    dead_letter, expired, failed, forgotten, in_progress, not_stored, policy, records, rejecting,
    request, second_generation, unknown, unstored, with_evidence, written,
};

use super::steps::{admit, stay};

fn ask(record: &Record, now: Timestamp) -> Step<Admission> {
    admit(record, &again(), now, &policy())
}

fn executed(step: Step<Admission>, now: Timestamp) -> (Record, Vec<JournalEvent>) {
    match (step.write, step.effect) {
        (Write::Swap(change), Admission::Execute(_)) => {
            let events = change.journal.iter().map(|entry| entry.event).collect();
            (written(change, now), events)
        }
        other => panic!("not executed: {other:?}"),
    }
}

/// A reservation whose answer was lost is recognised by its attempt, whatever has become of the key.
#[test]
fn an_attempt_knows_its_own_reservation_and_executes_only_while_it_holds() {
    for (name, record) in records() {
        let same = request(1, Some(1), record.attempt_id);
        for now in [START, START.plus(LEASE), START.plus(TTL + TOMBSTONE)] {
            let expected = match record.state {
                State::InProgress => Admission::Reserved,
                _ => Admission::TooLate,
            };
            assert_eq!(
                admit(&record, &same, now, &policy()),
                stay(expected),
                "{name}"
            );
        }
    }
}

#[test]
fn an_absent_key_begins_at_fence_and_generation_1() {
    let record = first(&request(1, Some(1), OWN), &policy()).stamp(START);
    assert_eq!(record.state, State::InProgress);
    assert_eq!(
        (record.fence.0, record.generation, record.attempt_id),
        (1, 1, OWN)
    );
    assert_eq!(record.times.lease_until, Some(START.plus(LEASE)));
    assert_eq!(record.times.expires_at, None);
}

#[test]
fn a_live_attempt_is_waited_for_rejected_or_accepted_and_a_lapsed_one_becomes_unknown() {
    for on_in_flight in [OnInFlight::Wait, OnInFlight::Reject, OnInFlight::Accept] {
        let policy = {
            let mut changed = policy();
            changed.on_in_flight = on_in_flight;
            changed
        };
        let [before, at, after] = around(START.plus(LEASE));
        let record = in_progress();
        let meet = |now| admit(&record, &again(), now, &policy);
        assert_eq!(meet(before).effect, Admission::InFlight(on_in_flight));
        for now in [at, after] {
            let Some(change) = meet(now).swapped() else {
                panic!("not lapsed")
            };
            let record = written(change, now);
            assert_eq!(record.state, State::Unknown);
            assert_eq!(record.last_error, Some(LastError::LeaseLapsed));
            assert_eq!(record.attempt_id, OWN, "a late result must still match");
            let refusal = admit(&record, &again(), now, &policy);
            assert!(matches!(
                refusal.effect,
                Admission::Refuse(Refusal::OutcomeUnknown)
            ));
        }
    }
}

#[test]
fn evidence_of_a_lapsed_attempt_is_due_at_once_and_a_denial_is_none() {
    let denial = (Evidence::NotExecuted, LOOK_AFTER);
    let effect = (Evidence::Completed(answer(OWN)), Duration::ZERO);
    for (evidence, due) in [denial, effect] {
        let now = START.plus(LEASE);
        let Some(change) = ask(&with_evidence(&evidence), now).swapped() else {
            panic!("not lapsed")
        };
        let record = written(change, now);
        assert_eq!(record.evidence, Some(evidence));
        assert_eq!(record.times.reconcile_after, Some(now.plus(due)));
    }
}

#[test]
fn a_completed_key_is_replayed_until_it_expires_and_then_begins_generation_2() {
    let [before, at, after] = around(START.plus(TTL));
    for now in [START, before] {
        assert_eq!(
            ask(&completed(), now).effect,
            Admission::Replay(answer(OWN))
        );
    }
    for now in [at, after] {
        let (record, journal) = executed(ask(&completed(), now), now);
        assert_eq!(
            (record.fence.0, record.generation, record.attempt_id),
            (2, 2, FRESH)
        );
        assert_eq!(journal, [JournalEvent::ExecutedAfterExpiry]);
        let refused = admit(&completed(), &again(), now, &rejecting());
        assert_eq!(refused.effect, Admission::Refuse(Refusal::Expired));
    }
}

#[test]
fn a_response_that_was_not_stored_is_never_executed_again() {
    let [before, at, _] = around(START.plus(TTL));
    let refused = Admission::Refuse(Refusal::ResponseNotStored {
        response: unstored(),
        broke_off: false,
    });
    assert_eq!(ask(&not_stored(), START).effect, refused);
    assert_eq!(ask(&not_stored(), before).effect, refused);
    assert_eq!(executed(ask(&not_stored(), at), at).0.generation, 2);
}

#[test]
fn a_released_key_executes_again_in_its_generation_until_it_expires() {
    let [before, at, after] = around(START.plus(TTL));
    for now in [START, before] {
        for policy in [policy(), rejecting()] {
            let (record, journal) = executed(admit(&failed(), &again(), now, &policy), now);
            assert_eq!(
                (record.fence.0, record.generation, record.attempt_id),
                (2, 1, FRESH)
            );
            assert_eq!(
                record.times.created_at,
                Some(START),
                "the key is as old as it was"
            );
            assert_eq!(record.times.last_run_at, Some(now));
            assert_eq!(record.last_error, None);
            assert_eq!(journal, [JournalEvent::ExecutedAgain]);
        }
    }
    for now in [at, after] {
        let (record, journal) = executed(ask(&failed(), now), now);
        assert_eq!((record.fence.0, record.generation), (2, 2));
        assert_eq!(journal, [JournalEvent::ExecutedAfterExpiry]);
        let refused = admit(&failed(), &again(), now, &rejecting());
        assert_eq!(refused.effect, Admission::Refuse(Refusal::Expired));
    }
}

#[test]
fn the_losers_of_a_released_key_find_the_winner_in_flight() {
    let (winner, _) = executed(ask(&failed(), START), START);
    let loser = request(1, Some(1), AttemptId(99));
    let met = admit(&winner, &loser, START, &policy());
    assert_eq!(met.effect, Admission::InFlight(OnInFlight::Wait));
}

#[test]
fn an_unknown_key_is_refused_and_the_next_look_is_moved_forward_but_not_below_a_second() {
    let due = START.plus(LOOK_AFTER);
    let nudged = |now| {
        let step = ask(&unknown(), now);
        assert_eq!(step.effect, Admission::Refuse(Refusal::OutcomeUnknown));
        step.swapped().map(|change| written(change, now))
    };
    let pause = i64::try_from(LOOK_AFTER.as_millis()).expect("a short one");
    let quarter = Timestamp(START.0 + pause / 4);
    assert_eq!(nudged(START), None, "a quarter of the pause stands");
    assert_eq!(nudged(Timestamp(quarter.0 - 1)), None);
    let record = nudged(quarter).expect("what is left is worth a nudge");
    assert_eq!(
        record.times.reconcile_after,
        Some(Timestamp(quarter.0 + 1_000))
    );
    assert_eq!(record.state, State::Unknown);
    assert!(nudged(Timestamp(due.0 - 1_001)).is_some());
    for now in [
        Timestamp(due.0 - 1_000),
        Timestamp(due.0 - 999),
        due,
        due.plus(TTL),
    ] {
        assert_eq!(nudged(now), None);
    }
}

#[test]
fn nobody_is_nudged_without_a_reconciler_or_for_a_dead_letter() {
    let plain = stay(Admission::Refuse(Refusal::OutcomeUnknown));
    let alone = {
        let mut changed = policy();
        changed.reconcile = None;
        changed
    };
    assert_eq!(admit(&unknown(), &again(), START, &alone), plain);
    assert_eq!(ask(&dead_letter(), START), plain);
}

#[test]
fn unknown_never_expires() {
    for now in [
        START.plus(TTL),
        START.plus(TTL + TOMBSTONE),
        Timestamp(i64::MAX),
    ] {
        let refused = ask(&unknown(), now);
        assert!(matches!(
            refused.effect,
            Admission::Refuse(Refusal::OutcomeUnknown)
        ));
    }
}

#[test]
fn a_tombstone_begins_the_next_generation_or_refuses_by_policy() {
    for record in [expired(&completed()), expired(&failed())] {
        let over = record.times.delete_at.expect("a tombstone goes some day");
        assert_eq!(over, START.plus(TTL + TOMBSTONE));
        let [before, at, after] = around(over);
        let (next, journal) = executed(ask(&record, before), before);
        assert_eq!((next.fence.0, next.generation), (2, 2));
        assert_eq!(journal, [JournalEvent::ExecutedAfterExpiry]);
        let refused = admit(&record, &again(), before, &rejecting());
        assert_eq!(refused.effect, Admission::Refuse(Refusal::Expired));
        for now in [at, after] {
            let (next, journal) = executed(admit(&record, &again(), now, &rejecting()), now);
            assert_eq!(
                (next.fence.0, next.generation),
                (2, 1),
                "deleted, but for the reaper"
            );
            assert_eq!(journal, []);
        }
    }
}

/// What a client sees must not depend on when the reaper came by: a record whose tombstone would be
/// over counts as deleted, even though nobody has turned it into a tombstone yet. Only the fence
/// remembers, because it may never fall while the row exists.
#[test]
fn the_end_of_the_tombstone_does_not_wait_for_the_reaper() {
    let [before, at, after] = around(START.plus(TTL + TOMBSTONE));
    let other = request(2, Some(2), FRESH);
    for record in [
        completed(),
        failed(),
        expired(&completed()),
        expired(&failed()),
    ] {
        let meet = |request: &Request, now| admit(&record, request, now, &rejecting());
        assert_eq!(
            meet(&again(), before).effect,
            Admission::Refuse(Refusal::Expired)
        );
        let reused = Admission::Refuse(Refusal::Reused(State::Expired));
        assert_eq!(meet(&other, before).effect, reused);
        for now in [at, after] {
            for request in [&again(), &other] {
                let (next, journal) = executed(meet(request, now), now);
                assert_eq!((next.fence.0, next.generation), (2, 1));
                assert_eq!(next.fingerprint, Some(request.fingerprint));
                assert_eq!(journal, []);
            }
        }
    }
}

#[test]
fn generations_go_on_rising() {
    let second = second_generation();
    assert_eq!((second.fence.0, second.generation), (2, 2));
    let third = onlyonce_testkit::scenarios::world::settled(
        &second,
        &onlyonce_core::machine::Settlement::Complete(answer(second.attempt_id)),
    );
    let now = third.times.expires_at.expect("completed");
    let (third, _) = executed(ask(&third, now), now);
    assert_eq!((third.fence.0, third.generation), (3, 3));
}

#[test]
fn a_forgotten_key_takes_any_request_even_where_expired_ones_are_refused() {
    for asked in [again(), request(2, Some(2), FRESH), request(3, None, FRESH)] {
        let admission = admit(&forgotten(), &asked, START, &rejecting());
        let (record, journal) = executed(admission, START);
        assert_eq!((record.fence.0, record.generation), (2, 2));
        assert_eq!(record.fingerprint, Some(asked.fingerprint));
        assert_eq!((record.recipe, record.caller), (asked.recipe, asked.caller));
        assert_eq!(journal, [JournalEvent::ExecutedAfterExpiry]);
    }
}

#[test]
fn a_retry_under_a_newer_recipe_keeps_the_recipe_of_its_record() {
    let mut newer = again();
    newer.recipe = onlyonce_core::fingerprint::RecipeId([9; 8]);
    for record in [failed(), expired(&completed())] {
        let (next, _) = executed(admit(&record, &newer, START, &policy()), START);
        assert_eq!(next.recipe, record.recipe);
    }
}

#[test]
fn callers_of_a_shared_scope_are_told_apart_and_a_missing_one_is_another() {
    for (remembered, asking) in [(Some(1), Some(2)), (Some(1), None), (None, Some(1))] {
        let record = first(&request(1, remembered, OWN), &policy()).stamp(START);
        let met = admit(&record, &request(1, asking, FRESH), START, &policy());
        assert_eq!(
            met.effect,
            Admission::Refuse(Refusal::CallerDiffers(State::InProgress)),
            "{remembered:?} {asking:?}"
        );
    }
    let record = first(&request(1, None, OWN), &policy()).stamp(START);
    let met = admit(&record, &request(1, None, FRESH), START, &policy());
    assert_eq!(met.effect, Admission::InFlight(OnInFlight::Wait));
}

/// A record is compared by a mark made in its own way, and keeps that mark for as long as its caller
/// goes on; whoever takes over a released key is marked in the way of its own request.
#[test]
fn a_mark_is_compared_in_the_way_it_was_made() {
    use MarkedBy::{Cookies, Credentials};
    let mark = |of: u8| Some(onlyonce_core::secret::CallerMark([of; 16]));
    let marked = |by: MarkedBy, own: u8, other: Option<u8>| {
        let mut request = request(1, Some(own), FRESH);
        request.other_mark = other.and_then(mark);
        request.notes.marked_by = by;
        request
    };
    for (remembered, asking, same) in [
        (
            marked(Credentials, 1, None),
            marked(Cookies, 2, Some(1)),
            true,
        ),
        (
            marked(Cookies, 1, None),
            marked(Credentials, 2, Some(1)),
            true,
        ),
        (
            marked(Cookies, 1, None),
            marked(Credentials, 1, Some(2)),
            false,
        ),
        (
            marked(Cookies, 1, None),
            marked(Credentials, 1, None),
            false,
        ),
        (
            marked(Credentials, 1, None),
            marked(Cookies, 1, Some(2)),
            false,
        ),
        (marked(Cookies, 1, None), marked(Cookies, 2, Some(1)), false),
    ] {
        let mut record = first(&remembered, &policy()).stamp(START);
        record.attempt_id = OWN;
        let met = admit(&record, &asking, START, &policy());
        let expected = match same {
            true => Admission::InFlight(OnInFlight::Wait),
            false => Admission::Refuse(Refusal::CallerDiffers(State::InProgress)),
        };
        assert_eq!(met.effect, expected, "{remembered:?} {asking:?}");
        let released = onlyonce_core::machine::Settlement::Release(LastError::NotSent);
        let released = onlyonce_testkit::scenarios::world::settled(&record, &released);
        let (next, _) = executed(admit(&released, &asking, START, &policy()), START);
        let kept = match same {
            true => (remembered.caller, remembered.notes.marked_by),
            false => (asking.caller, asking.notes.marked_by),
        };
        assert_eq!((next.caller, next.notes.marked_by), kept);
        assert_eq!(next.fence.0, 2);
    }
}

/// Waiters and newcomers alike are compared with whoever owns the key now.
#[test]
fn who_waited_is_compared_with_the_new_caller() {
    let (alice, bob) = (request(1, Some(1), FRESH), request(1, Some(2), FRESH));
    let (taken, _) = executed(admit(&failed(), &bob, START, &policy()), START);
    let meet = |request: &Request| {
        let later = Request {
            attempt_id: AttemptId(99),
            ..request.clone()
        };
        admit(&taken, &later, START, &policy())
    };
    assert_eq!(
        meet(&alice).effect,
        Admission::Refuse(Refusal::CallerDiffers(State::InProgress))
    );
    assert_eq!(meet(&bob).effect, Admission::InFlight(OnInFlight::Wait));
    let other = request(2, Some(3), FRESH);
    let met = admit(&failed(), &other, START, &policy());
    let reused = Admission::Refuse(Refusal::Reused(State::FailedRetryable));
    assert_eq!(met.effect, reused, "content comes first");
}

#[test]
fn a_completed_record_without_an_answer_is_not_guessed_at() {
    let broken = Record {
        response: None,
        ..completed()
    };
    let refused = stay(Admission::Refuse(Refusal::OutcomeUnknown));
    assert_eq!(ask(&broken, START), refused);
}

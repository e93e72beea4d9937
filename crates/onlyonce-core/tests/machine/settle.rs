//! The end of an attempt, early, late or too late, and its signs of life.

use onlyonce_core::{
    machine::{
        Admission, Lease, Refusal, Request, Settled, Settlement, Wake, absent, is_running, wake,
    },
    record::{AttemptId, Evidence, JournalEvent, LastError, Record, State},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::world::{
    FRESH, LEASE, LOOK_AFTER, MAX_EXECUTION, OTHER, OWN, START, TOMBSTONE, TTL, again, answer,
    around, completed, declined, expired, failed, forgotten, in_progress, lapsed, left_by,
    not_stored, policy, records, redirected, request, settled, unknown, with_evidence, written,
};

use super::steps::{admit, expire, forget, renew, settle, stay};

const NOW: Timestamp = Timestamp(START.0 + 777);

fn ends() -> [Settlement; 3] {
    [
        Settlement::Complete(answer(OTHER)),
        Settlement::Release(LastError::ReleasedStatus),
        Settlement::Unknown(LastError::ConnectionLost),
    ]
}

fn settled_as(record: &Record, settlement: &Settlement) -> (Record, Vec<JournalEvent>) {
    let step = settle(record, record.attempt_id, settlement, &policy());
    let expected = match (record.state, settlement) {
        (State::FailedRetryable, Settlement::Complete(_)) => Settled::ReleaseWasWrong,
        _ => Settled::Done,
    };
    assert_eq!(step.effect, expected);
    let change = step.swapped().expect("written");
    let events = change.journal.iter().map(|entry| entry.event).collect();
    (written(change, NOW), events)
}

#[test]
fn an_answer_completes_a_running_key_and_leaves_no_journal() {
    for record in [in_progress(), with_evidence(&Evidence::NotExecuted)] {
        let (record, journal) = settled_as(&record, &Settlement::Complete(answer(OWN)));
        assert_eq!(record.state, State::Completed);
        assert_eq!(record.response, Some(answer(OWN)));
        assert_eq!(record.times.completed_at, Some(NOW));
        assert_eq!(
            record.times.expires_at,
            Some(NOW.plus(TTL)),
            "counted from completion"
        );
        assert_eq!(record.evidence, None, "what the executor saw is better");
        assert_eq!(journal, []);
    }
}

#[test]
fn a_proven_or_declared_failure_releases_a_running_key() {
    for error in [
        LastError::NotSent,
        LastError::GuardFailed,
        LastError::UpstreamError,
    ] {
        let (record, journal) = settled_as(&in_progress(), &Settlement::Release(error));
        assert_eq!(
            (record.state, record.last_error),
            (State::FailedRetryable, Some(error))
        );
        assert_eq!(record.times.expires_at, Some(NOW.plus(TTL)));
        assert_eq!(journal, [JournalEvent::Released]);
    }
}

#[test]
fn what_nobody_saw_is_unknown_and_looked_into_if_somebody_can() {
    let end = Settlement::Unknown(LastError::Timeout);
    let (record, journal) = settled_as(&in_progress(), &end);
    assert_eq!(
        (record.state, record.last_error),
        (State::Unknown, Some(LastError::Timeout))
    );
    assert_eq!(record.times.unknown_since, Some(NOW));
    assert_eq!(record.times.reconcile_after, Some(NOW.plus(LOOK_AFTER)));
    assert_eq!(journal, [JournalEvent::BecameUnknown]);

    let (record, _) = settled_as(&with_evidence(&Evidence::Completed(answer(OWN))), &end);
    assert_eq!(
        record.times.reconcile_after,
        Some(NOW),
        "the provider has already spoken"
    );

    let alone = {
        let mut changed = policy();
        changed.reconcile = None;
        changed
    };
    let Some(change) = settle(&in_progress(), OWN, &end, &alone).swapped() else {
        panic!("not written")
    };
    let record = written(change, NOW);
    assert!(record.dead_letter, "a person is told at once");
    assert_eq!(record.times.reconcile_after, None);
}

#[test]
fn a_late_result_of_the_current_attempt_settles_an_unknown_key() {
    for record in [
        unknown(),
        lapsed(&in_progress()),
        lapsed(&with_evidence(&Evidence::NotExecuted)),
    ] {
        let (done, journal) = settled_as(&record, &Settlement::Complete(answer(OWN)));
        assert_eq!(
            (done.state, done.response),
            (State::Completed, Some(answer(OWN)))
        );
        assert_eq!(journal, [JournalEvent::LateResult]);

        let (released, journal) = settled_as(&record, &Settlement::Release(LastError::GuardFailed));
        assert_eq!(released.state, State::FailedRetryable);
        assert_eq!(journal, [JournalEvent::Released]);

        let end = Settlement::Unknown(LastError::Panicked);
        assert_eq!(settle(&record, OWN, &end, &policy()), stay(Settled::Kept));
    }
}

/// A release rests on proof, and not to have seen the end is no evidence against it; the design has no
/// edge from failed_retryable to unknown. An answer is evidence, and raises the alarm.
#[test]
fn a_released_key_yields_to_an_answer_of_its_own_attempt_and_to_nothing_else() {
    let (record, journal) = settled_as(&failed(), &Settlement::Complete(answer(OWN)));
    assert_eq!(
        (record.state, record.response),
        (State::Completed, Some(answer(OWN)))
    );
    assert_eq!(record.times.expires_at, Some(NOW.plus(TTL)));
    assert_eq!(journal, [JournalEvent::ReleaseWasWrong]);
    for end in [
        Settlement::Release(LastError::GuardFailed),
        Settlement::Unknown(LastError::ConnectionLost),
    ] {
        assert_eq!(settle(&failed(), OWN, &end, &policy()), stay(Settled::Kept));
    }
}

#[test]
fn a_completed_key_keeps_its_answer_whatever_comes_late() {
    for record in [completed(), declined()] {
        for end in ends() {
            assert_eq!(settle(&record, OWN, &end, &policy()), stay(Settled::Kept));
        }
    }
}

#[test]
fn a_result_of_another_attempt_or_of_an_expired_key_is_refused_and_noted() {
    for (name, record) in records() {
        let stranger = onlyonce_core::record::AttemptId(record.attempt_id.0 ^ 1);
        for end in ends() {
            let Settled::NotOurs(entry) = settle(&record, stranger, &end, &policy()).effect else {
                panic!("{name}: {end:?}")
            };
            assert_eq!(entry.event, JournalEvent::DuplicateExecutionSuspected);
            assert_eq!(
                (entry.from, entry.to),
                (Some(record.state), Some(record.state))
            );
        }
    }
    for record in [expired(&completed()), expired(&failed()), forgotten()] {
        for end in ends() {
            let settled = settle(&record, record.attempt_id, &end, &policy());
            assert!(matches!(settled.effect, Settled::NotOurs(_)), "{end:?}");
        }
    }
}

#[test]
fn no_late_result_matches_a_forgotten_key() {
    assert_ne!(forgotten().attempt_id, OWN);
    let settled = settle(
        &forgotten(),
        OWN,
        &Settlement::Complete(answer(OWN)),
        &policy(),
    );
    assert!(matches!(settled.effect, Settled::NotOurs(_)));
}

#[test]
fn a_result_whose_row_is_gone_is_noted() {
    let entry = absent(&in_progress());
    assert_eq!(entry.event, JournalEvent::DuplicateExecutionSuspected);
    assert_eq!((entry.from, entry.to), (Some(State::InProgress), None));
}

#[test]
fn a_heartbeat_renews_the_lease_of_its_own_attempt_until_max_execution() {
    let lease_end = START.plus(LEASE);
    let [before, at, after] = around(START.plus(MAX_EXECUTION));
    // A lease that has lapsed but was not swept is a late sign of life, and still one.
    for now in [START, lease_end, before] {
        let Some(change) = renew(&in_progress(), OWN, now, &policy()).swapped() else {
            panic!("lost at {now:?}")
        };
        let record = written(change, now);
        assert_eq!(record.times.lease_until, Some(now.plus(LEASE)));
        assert_eq!(
            Record {
                times: in_progress().times,
                ..record.clone()
            },
            Record {
                revision: record.revision,
                ..in_progress()
            }
        );
    }
    for now in [at, after] {
        assert_eq!(
            renew(&in_progress(), OWN, now, &policy()),
            stay(Lease::Lost)
        );
    }
}

#[test]
fn a_heartbeat_of_anybody_else_or_on_a_settled_key_learns_that_the_key_is_lost() {
    assert_eq!(
        renew(&in_progress(), OTHER, START, &policy()),
        stay(Lease::Lost)
    );
    for (name, record) in records() {
        let renewed = renew(&record, record.attempt_id, START, &policy());
        let runs = record.state == State::InProgress;
        assert_eq!(renewed.swapped().is_some(), runs, "{name}");
        assert_eq!(is_running(&record), runs, "{name}");
    }
}

#[test]
fn a_release_wakes_one_waiter_and_everything_else_wakes_all() {
    for (name, record) in records() {
        let one = record.state == State::FailedRetryable;
        assert_eq!(
            wake(&record),
            if one { Wake::One } else { Wake::All },
            "{name}"
        );
    }
}

#[test]
fn an_earlier_attempt_counts_as_unreached_only_where_each_one_was() {
    use LastError::{CredentialRefused, GuardFailed, NotSent, ReleasedStatus, UpstreamError};
    let unreached = [NotSent, GuardFailed, CredentialRefused];
    let next = |record: &Record, error| {
        let released = settled(record, &Settlement::Release(error));
        let again = Request {
            attempt_id: AttemptId(record.attempt_id.0 + 1),
            ..again()
        };
        left_by(admit(&released, &again, START, &policy()), START)
    };
    assert!(!in_progress().reached_before(), "there is no earlier one");
    for error in LastError::ALL {
        let second = next(&in_progress(), error);
        assert_eq!(
            second.reached_before(),
            !unreached.contains(&error),
            "{error:?}"
        );
        for later in [NotSent, CredentialRefused] {
            let third = next(&second, later);
            assert_eq!(third.reached_before(), second.reached_before(), "{error:?}");
        }
        for later in [ReleasedStatus, UpstreamError] {
            assert!(next(&second, later).reached_before(), "{error:?}");
        }
    }
}

/// Every way in which an attempt can begin, after every past of one or two attempts: one that reached the
/// handler counts for as long as it is remembered, and one that reached nobody never does.
#[test]
fn earlier_lives_count_for_as_long_as_they_are_remembered() {
    let ends = [
        Settlement::Release(LastError::NotSent),
        Settlement::Release(LastError::GuardFailed),
        Settlement::Release(LastError::CredentialRefused),
        Settlement::Release(LastError::ReleasedStatus),
        Settlement::Complete(answer(OWN)),
    ];
    let has_reached = |end: &Settlement| match end {
        Settlement::Release(error) => !error.is_unreached(),
        Settlement::Complete(_) | Settlement::Unknown(_) => true,
    };
    // From where it begins, and when: an end that stands, expired or forgotten, reaped or not.
    let begin = |record: &Record, at: Timestamp| {
        let next = Request {
            attempt_id: AttemptId(record.attempt_id.0 + 1),
            ..again()
        };
        left_by(admit(record, &next, at, &policy()), at)
    };
    let (expiry, end_of_tombstone) = (START.plus(TTL), START.plus(TTL + TOMBSTONE));
    for first in &ends {
        let once = settled(&in_progress(), first);
        for second in &ends {
            let pasts = [
                (once.clone(), has_reached(first)),
                (
                    settled(&begin(&once, expiry), second),
                    has_reached(first) || has_reached(second),
                ),
            ];
            for (past, reached) in pasts {
                let why = format!("{first:?}, {second:?}, fence {}", past.fence.0);
                let expires_at = past.times.expires_at.expect("it has ended");
                let buried = left_by(expire(&past, expires_at), expires_at);
                let forgotten = left_by(forget(&past, true, AttemptId(99), None), START);
                if past.state == State::FailedRetryable {
                    assert_eq!(begin(&past, START).reached_before(), reached, "{why}");
                }
                for (from, at) in [
                    (&past, expires_at),
                    (&buried, expires_at),
                    (&forgotten, START),
                ] {
                    let next = begin(from, at);
                    assert_eq!(next.generation, past.generation + 1, "{why}");
                    assert_eq!(
                        next.reached_before(),
                        reached,
                        "{why}, from {:?}",
                        from.state
                    );
                }
                for from in [&past, &buried, &forgotten] {
                    let anew = begin(from, end_of_tombstone.plus(TTL));
                    assert_eq!(anew.generation, 1, "{why}");
                    assert!(!anew.reached_before(), "as if reaped: {why}");
                    let later = settled(&anew, second);
                    let next = begin(&later, later.times.expires_at.expect("it has ended"));
                    assert_eq!(next.reached_before(), has_reached(second), "{why}");
                }
            }
        }
    }
}

#[test]
fn a_redirected_key_takes_another_request_and_remembers_that_one() {
    let redirected = redirected();
    let mut other = request(2, Some(2), OTHER);
    let Some(change) = admit(&redirected, &other, START, &policy()).swapped() else {
        panic!("the client repeats its request elsewhere, under the same key")
    };
    let running = written(change, START);
    assert_eq!(running.fingerprint, Some(other.fingerprint));
    assert_eq!(
        (running.recipe, running.caller),
        (other.recipe, other.caller)
    );
    assert_eq!(running.generation, redirected.generation);
    other.fingerprint.0[0] ^= 1;
    other.attempt_id = FRESH;
    let refused = admit(&running, &other, START, &policy());
    assert_eq!(
        refused.effect,
        Admission::Refuse(Refusal::Reused(State::InProgress)),
        "bound again"
    );
    // A result that comes late is still that of the first request.
    let late = settled(&redirected, &Settlement::Complete(answer(OWN)));
    let refused = admit(&late, &other, START, &policy());
    assert_eq!(
        refused.effect,
        Admission::Refuse(Refusal::Reused(State::Completed))
    );
}

/// A key whose answer was not stored stays completed when the answer breaks off, and says so; one whose
/// answer is stored, and another attempt's, say nothing.
#[test]
fn a_broken_stream_is_noted() {
    let broke_off = Settlement::Unknown(LastError::StreamBroken);
    let (record, journal) = settled_as(&not_stored(), &broke_off);
    assert_eq!(record.state, State::Completed);
    assert_eq!(record.last_error, Some(LastError::StreamBroken));
    assert_eq!(record.response, not_stored().response);
    assert_eq!(record.times, not_stored().times);
    assert_eq!(journal, [JournalEvent::StreamBroken]);
    for (record, attempt) in [(completed(), OWN), (failed(), OWN), (unknown(), OWN)] {
        let kept = settle(&record, attempt, &broke_off, &policy());
        assert_eq!(kept, stay(Settled::Kept), "{:?}", record.state);
    }
    let kept = settle(&not_stored(), OTHER, &broke_off, &policy());
    assert!(matches!(kept.effect, Settled::NotOurs(_)));
    let retry = admit(&record, &again(), NOW, &policy());
    let Admission::Refuse(Refusal::ResponseNotStored { broke_off, .. }) = retry.effect else {
        panic!("{retry:?}");
    };
    assert!(broke_off);
}

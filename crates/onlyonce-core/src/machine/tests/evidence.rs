//! The ways out of unknown, and what operators may do.

use std::time::Duration;

use super::world::{
    FRESH, LEASE, LOOK_AFTER, OTHER, OWN, START, TOMBSTONE, TTL, UPSTREAM_MAX, answer, around,
    completed, dead_letter, declined, expired, failed, in_progress, lapsed, looked, not_stored,
    once_negative, policy, records, settled_down, unknown, with_evidence, written,
};
use crate::{
    machine::{
        Extended, Forgotten, Looked, Negative, Resolution, Resolved, Source, extend, forget, look,
        reconcile, resolve,
    },
    policy::{Policy, ReconcilePolicy},
    record::{Actor, Change, Evidence, JournalEvent, LastError, Record, State},
    time::Timestamp,
};

const PROVEN: Source = Source::Query(Negative::Proven);
const UNPROVEN: Source = Source::Query(Negative::Unproven);
const NO: Evidence = Evidence::NotExecuted;

fn took_effect() -> Evidence {
    Evidence::Completed(answer(OTHER))
}

fn change(looked: Looked) -> Change {
    match looked {
        Looked::Write(change) => change,
        Looked::Ignore => panic!("ignored"),
    }
}

fn event(change: &Change) -> Option<JournalEvent> {
    change.journal.first().map(|entry| entry.event)
}

#[test]
fn any_source_that_saw_the_effect_completes_an_unknown_key() {
    for record in [
        unknown(),
        lapsed(&in_progress()),
        once_negative(),
        dead_letter(),
    ] {
        for source in [Source::Webhook(OWN), Source::Kept, PROVEN, UNPROVEN] {
            let change = change(reconcile(&record, &took_effect(), source, START, &policy()));
            assert_eq!(event(&change), Some(JournalEvent::Reconciled));
            assert_eq!(change.journal[0].actor, Actor::Reconciler);
            let record = written(change, START);
            assert_eq!(
                (record.state, record.response),
                (State::Completed, Some(answer(OTHER)))
            );
            assert!(!record.dead_letter);
        }
    }
}

#[test]
fn a_provider_that_says_of_its_own_accord_that_it_did_not_happen_releases_the_key() {
    for source in [Source::Webhook(OWN), Source::Kept] {
        let change = change(reconcile(&unknown(), &NO, source, START, &policy()));
        assert_eq!(event(&change), Some(JournalEvent::Reconciled));
        let record = written(change, START);
        assert_eq!(record.state, State::FailedRetryable);
        assert_eq!(record.last_error, Some(LastError::ProviderNegative));
        assert_eq!(record.times.expires_at, Some(START.plus(TTL)));
    }
}

#[test]
fn not_found_releases_only_twice_in_a_row_and_late_enough() {
    let [before, at, after] = around(settled_down(&unknown()));
    let negative =
        |record: &Record, now| looked(reconcile(record, &NO, PROVEN, now, &policy()), now);
    let early = negative(&negative(&unknown(), START), before);
    assert_eq!(
        (early.state, early.negatives),
        (State::Unknown, 0),
        "too early to count"
    );
    for now in [at, after] {
        let once = negative(&early, now);
        assert_eq!((once.state, once.negatives), (State::Unknown, 1));
        assert!(once.times.reconcile_after.is_some_and(|due| due > now));
        let twice = negative(&once, now);
        assert_eq!(twice.state, State::FailedRetryable);
        let back = negative(&once, before);
        assert_eq!(
            (back.state, back.negatives),
            (State::Unknown, 0),
            "the clock went back"
        );
    }
}

#[test]
fn a_look_that_finds_nothing_out_breaks_the_row_of_negatives() {
    let now = settled_down(&unknown());
    let between = looked(look(&once_negative(), &policy()), now);
    assert_eq!((between.negatives, between.inconclusive), (0, 1));
    let again = looked(reconcile(&between, &NO, PROVEN, now, &policy()), now);
    assert_eq!((again.state, again.negatives), (State::Unknown, 1));
}

#[test]
fn not_found_is_a_dead_letter_where_it_can_prove_nothing() {
    let now = Timestamp(i64::MAX);
    let unbounded = ReconcilePolicy {
        after: LOOK_AFTER,
        attempts: 3,
        upstream_max_execution: None,
    };
    let without = Policy {
        reconcile: Some(unbounded),
        ..policy()
    };
    let alone = Policy {
        reconcile: None,
        ..policy()
    };
    let cases = [
        (UNPROVEN, policy()),
        (PROVEN, without.clone()),
        (UNPROVEN, without),
        (PROVEN, alone),
    ];
    for (source, policy) in cases {
        for record in [unknown(), once_negative()] {
            let change = change(reconcile(&record, &NO, source, now, &policy));
            assert_eq!(event(&change), Some(JournalEvent::DeadLettered));
            let record = written(change, now);
            assert_eq!((record.state, record.dead_letter), (State::Unknown, true));
            assert_eq!(record.times.reconcile_after, None);
        }
    }
}

#[test]
fn after_so_many_inconclusive_looks_a_person_has_to_look() {
    let first = change(look(&unknown(), &policy()));
    assert_eq!(event(&first), Some(JournalEvent::Inconclusive));
    let first = written(first, START);
    assert_eq!(first.times.reconcile_after, Some(START.plus(LOOK_AFTER)));
    let second = looked(look(&first, &policy()), START);
    assert_eq!(
        second.times.reconcile_after,
        Some(START.plus(2 * LOOK_AFTER)),
        "backs off"
    );
    assert!(!second.dead_letter);
    let third = change(look(&second, &policy()));
    assert_eq!(event(&third), Some(JournalEvent::DeadLettered));
    let third = written(third, START);
    assert_eq!((third.state, third.dead_letter), (State::Unknown, true));
    assert_eq!(third.times.reconcile_after, None);
}

#[test]
fn the_pause_between_looks_has_an_upper_bound() {
    let patient = ReconcilePolicy {
        after: LOOK_AFTER,
        attempts: u16::MAX,
        upstream_max_execution: Some(UPSTREAM_MAX),
    };
    let policy = Policy {
        reconcile: Some(patient),
        ..policy()
    };
    let worn = Record {
        inconclusive: u16::MAX - 2,
        negatives: u16::MAX,
        ..unknown()
    };
    let next = looked(look(&worn, &policy), START);
    assert_eq!(
        next.times.reconcile_after,
        Some(START.plus(Duration::from_secs(3_600)))
    );
}

#[test]
fn a_webhook_about_a_live_attempt_is_kept_and_only_that() {
    for evidence in [NO, took_effect()] {
        let source = Source::Webhook(OWN);
        let change = change(reconcile(
            &in_progress(),
            &evidence,
            source,
            START,
            &policy(),
        ));
        assert_eq!(event(&change), Some(JournalEvent::EvidenceKept));
        let record = written(change, START);
        assert_eq!(
            (record.state, record.evidence.as_ref()),
            (State::InProgress, Some(&evidence))
        );
        assert_eq!(
            record.times.lease_until,
            Some(START.plus(LEASE)),
            "it is no sign of life"
        );
        for source in [Source::Kept, PROVEN, UNPROVEN] {
            let looked = reconcile(&in_progress(), &evidence, source, START, &policy());
            assert_eq!(
                looked,
                Looked::Ignore,
                "{source:?} speaks of an earlier attempt"
            );
        }
    }
}

#[test]
fn of_two_contradicting_webhooks_the_one_that_speaks_for_an_effect_is_kept() {
    let tell = |record: &Record, evidence: &Evidence| {
        reconcile(record, evidence, Source::Webhook(OWN), START, &policy())
    };
    let no = with_evidence(&NO);
    assert_eq!(tell(&no, &NO), Looked::Ignore);
    let yes = looked(tell(&no, &took_effect()), START);
    assert_eq!(yes.evidence, Some(took_effect()));
    assert_eq!(tell(&yes, &NO), Looked::Ignore);
    assert_eq!(
        tell(&yes, &Evidence::Completed(answer(OWN))),
        Looked::Ignore
    );
}

#[test]
fn evidence_about_another_attempt_or_for_a_settled_key_is_ignored() {
    for (name, record) in records() {
        let stranger = Source::Webhook(crate::record::AttemptId(record.attempt_id.0 ^ 1));
        for evidence in [NO, took_effect()] {
            let looked = reconcile(&record, &evidence, stranger, START, &policy());
            assert_eq!(looked, Looked::Ignore, "{name}");
            if matches!(record.state, State::InProgress | State::Unknown) {
                continue;
            }
            for source in [
                Source::Webhook(record.attempt_id),
                Source::Kept,
                PROVEN,
                UNPROVEN,
            ] {
                let looked = reconcile(&record, &evidence, source, START, &policy());
                assert_eq!(looked, Looked::Ignore, "{name}");
            }
        }
        if record.state != State::Unknown {
            assert_eq!(look(&record, &policy()), Looked::Ignore, "{name}");
        }
    }
}

#[test]
fn an_operator_resolves_what_is_unknown_and_nothing_else() {
    let resolutions = [
        (Resolution::Completed(answer(OTHER)), State::Completed),
        (Resolution::FailedRetryable, State::FailedRetryable),
    ];
    for (name, record) in records() {
        for (resolution, to) in &resolutions {
            match resolve(&record, resolution, "seen", &policy()) {
                Resolved::NotUnknown(state) => {
                    assert_eq!(state, record.state, "{name}");
                    assert_ne!(state, State::Unknown, "{name}");
                }
                Resolved::Write(change) => {
                    assert_eq!(record.state, State::Unknown, "{name}");
                    let entry = &change.journal[0];
                    assert_eq!(
                        (entry.event, &entry.actor),
                        (JournalEvent::Resolved, &Actor::Operator)
                    );
                    assert_eq!(entry.detail.as_deref(), Some("seen"));
                    assert_eq!(written(change, START).state, *to, "{name}");
                }
            }
        }
    }
}

#[test]
fn what_may_be_running_cannot_be_forgotten_and_what_took_effect_only_by_force() {
    for (name, record) in records() {
        let live = matches!(record.state, State::InProgress | State::Unknown);
        let forced = forget(&record, true, FRESH, None);
        assert_eq!(
            matches!(forced, Forgotten::Live(state) if state == record.state),
            live,
            "{name}"
        );
        assert_eq!(matches!(forced, Forgotten::Write(_)), !live, "{name}");
    }
    for record in [completed(), not_stored()] {
        assert_eq!(forget(&record, false, FRESH, None), Forgotten::TookEffect);
    }
    for record in [declined(), failed(), expired(&completed())] {
        assert!(matches!(
            forget(&record, false, FRESH, None),
            Forgotten::Write(_)
        ));
    }
}

#[test]
fn a_forgotten_key_is_a_tombstone_that_nothing_matches() {
    let now = START.plus(TTL / 2);
    let Forgotten::Write(change) = forget(&completed(), true, FRESH, Some("gdpr".to_owned()))
    else {
        panic!("not forgotten")
    };
    assert_eq!(event(&change), Some(JournalEvent::Forgotten));
    let record = written(change, now);
    assert_eq!(record.state, State::Expired);
    assert_eq!(
        (record.fingerprint, record.caller, record.attempt_id),
        (None, None, FRESH)
    );
    assert_eq!(record.response, None);
    assert_eq!(record.times.expires_at, Some(now));
    assert_eq!(record.times.delete_at, Some(now.plus(TOMBSTONE)));
}

#[test]
fn only_an_expiry_that_is_still_to_come_can_be_moved() {
    for (name, record) in records() {
        let can = matches!(record.state, State::Completed | State::FailedRetryable);
        assert_eq!(
            matches!(extend(&record, TTL, START), Extended::Write(_)),
            can,
            "{name}"
        );
    }
    let [before, at, after] = around(START.plus(TTL));
    let Extended::Write(change) = extend(&completed(), 3 * TTL, before) else {
        panic!("not extended")
    };
    assert_eq!(event(&change), Some(JournalEvent::Extended));
    let record = written(change, before);
    assert_eq!(record.times.expires_at, Some(before.plus(3 * TTL)));
    assert_eq!(record.response, completed().response);
    for now in [at, after] {
        assert_eq!(
            extend(&completed(), TTL, now),
            Extended::NoExpiry(State::Completed)
        );
    }
}

//! Time passes.

use onlyonce_core::{
    machine::Write,
    record::{Actor, Evidence, JournalEvent, LastError, Record, State},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::world::{
    LEASE, LOOK_AFTER, OWN, START, TOMBSTONE, TTL, answer, around, completed, expired, failed,
    forgotten, in_progress, left_by, policy, records, with_evidence, written,
};

use super::steps::{expire, stay, sweep};

#[test]
fn a_lease_that_lapses_becomes_unknown_at_its_very_end() {
    let [before, at, after] = around(START.plus(LEASE));
    assert_eq!(sweep(&in_progress(), before, Some(&policy())), stay(()));
    for now in [at, after] {
        let Some(change) = sweep(&in_progress(), now, Some(&policy())).swapped() else {
            panic!("alive at {now:?}")
        };
        let entry = &change.journal[0];
        assert_eq!(
            (entry.event, &entry.actor),
            (JournalEvent::LeaseLapsed, &Actor::Sweeper)
        );
        let record = written(change, now);
        assert_eq!(
            (record.state, record.last_error),
            (State::Unknown, Some(LastError::LeaseLapsed))
        );
        assert_eq!((record.attempt_id, record.fence.0), (OWN, 1));
        assert_eq!(record.times.unknown_since, Some(now));
        assert_eq!(record.times.reconcile_after, Some(now.plus(LOOK_AFTER)));
    }
}

#[test]
fn without_a_reconciler_nobody_is_asked_but_a_person_unless_the_provider_has_spoken() {
    let now = START.plus(LEASE);
    let alone = {
        let mut changed = policy();
        changed.reconcile = None;
        changed
    };
    for (policy, told, due) in [(None, false, Some(now)), (Some(&alone), true, None)] {
        let after = |record: &Record| left_by(sweep(record, now, policy), now);
        for record in [in_progress(), with_evidence(&Evidence::NotExecuted)] {
            let lapsed = after(&record);
            assert_eq!(lapsed.dead_letter, told);
            assert_eq!(lapsed.times.reconcile_after, due);
        }
        let spoken = after(&with_evidence(&Evidence::Completed(answer(OWN))));
        assert!(!spoken.dead_letter);
        assert_eq!(spoken.times.reconcile_after, Some(now));
    }
}

#[test]
fn the_sweeper_touches_nothing_but_running_keys() {
    for (name, record) in records() {
        let swept = sweep(&record, Timestamp(i64::MAX), Some(&policy()));
        let running = record.state == State::InProgress;
        assert_eq!(swept.swapped().is_some(), running, "{name}");
    }
}

#[test]
fn an_answer_expires_at_its_very_end_and_leaves_a_tombstone() {
    for record in [completed(), failed()] {
        let [before, at, after] = around(START.plus(TTL));
        assert_eq!(expire(&record, before), stay(()));
        for now in [at, after] {
            let Some(change) = expire(&record, now).swapped() else {
                panic!("kept at {now:?}")
            };
            let tombstone = written(change, now);
            assert_eq!(
                (tombstone.state, &tombstone.response),
                (State::Expired, &None)
            );
            assert_eq!(tombstone.fingerprint, record.fingerprint);
            assert_eq!((tombstone.caller, tombstone.generation), (record.caller, 1));
            let end = START.plus(TTL + TOMBSTONE);
            assert_eq!(
                tombstone.times.delete_at,
                Some(end),
                "however late the reaper came"
            );
        }
    }
}

#[test]
fn a_tombstone_is_deleted_at_its_very_end() {
    for record in [expired(&completed()), expired(&failed()), forgotten()] {
        let [before, at, after] = around(record.times.delete_at.expect("a tombstone"));
        assert_eq!(expire(&record, before), stay(()));
        assert_eq!(expire(&record, at).write, Write::Delete);
        assert_eq!(expire(&record, after).write, Write::Delete);
    }
}

#[test]
fn what_is_in_progress_or_unknown_never_expires() {
    for (name, record) in records() {
        if matches!(record.state, State::InProgress | State::Unknown) {
            assert_eq!(expire(&record, Timestamp(i64::MAX)), stay(()), "{name}");
        }
    }
}

//! The effects of time: leases lapse, answers expire, tombstones are deleted.

use crate::{
    machine::{
        Step, Write, change,
        evidence::{MAX_LOOK_PAUSE, waited},
        note,
        settle::unknown,
    },
    policy::Policy,
    record::{Actor, Change, Draft, JournalEvent, LastError, Notes, Record, State},
    time::{Stamp, Timestamp},
};

/// Makes a key with a lapsed lease unknown. A lapsed lease is never permission to execute.
pub(super) fn sweep(record: &Record, now: Timestamp, policy: Option<&Policy>) -> Step {
    match record.state {
        State::InProgress if record.lease_lapsed(now) => {
            unknown(record, LastError::LeaseLapsed, Actor::Sweeper, policy).into()
        }
        State::InProgress
        | State::Completed
        | State::FailedRetryable
        | State::Unknown
        | State::Expired => Step::stay(()),
    }
}

/// Repairs a record whose time lies so far ahead, from a clock that has been set back since, that nobody
/// would examine it for too long: a lease or a pause between looks that is longer than any can be.
///
/// Apply only to a record whose owner has had time to renew its lease by the corrected clock.
pub(super) fn stranded(record: &Record, now: Timestamp, policy: &Policy) -> Option<Change> {
    let beyond = |time: Option<Timestamp>, most| time.is_some_and(|at| at > now.plus(most));
    match record.state {
        State::InProgress => {
            let longest = policy.lease.max(policy.max_execution);
            beyond(record.times.lease_until, longest)
                .then(|| unknown(record, LastError::LeaseLapsed, Actor::Sweeper, Some(policy)))
        }
        State::Unknown => {
            // The engine's jitter is up to a fifth.
            let strays = beyond(record.times.reconcile_after, 2 * MAX_LOOK_PAUSE);
            strays.then(|| waited(record, "a clock was set back", now, policy))
        }
        State::Completed | State::FailedRetryable | State::Expired => None,
    }
}

/// Wipes an expired answer, keeping its fingerprint as a tombstone, and deletes a tombstone that is due. A
/// key that is in progress or unknown never expires.
pub(super) fn expire(record: &Record, now: Timestamp) -> Step {
    match record.state {
        State::Completed | State::FailedRetryable if record.is_past_expiry(now) => {
            change(tombstone(record), Vec::new()).into()
        }
        State::Expired if record.times.delete_at.is_some_and(|at| at <= now) => Step {
            write: Write::Delete,
            effect: (),
        },
        State::InProgress
        | State::Completed
        | State::FailedRetryable
        | State::Unknown
        | State::Expired => Step::stay(()),
    }
}

fn tombstone(record: &Record) -> Draft {
    let mut draft = Draft::after(record);
    draft.record.state = State::Expired;
    draft.record.response = None;
    // From the moment of expiry, not from the reaper's run.
    draft.stamps.delete_at = match record.times.expires_at {
        Some(at) => Stamp::At(at.plus(record.tombstone_ttl)),
        None => Stamp::In(record.tombstone_ttl),
    };
    draft
}

/// The tombstone of a forgotten key: no late result can match it, and any request may begin a new generation.
pub(super) fn forgotten(
    record: &Record,
    fresh: crate::record::AttemptId,
    reason: Option<String>,
) -> Change {
    let mut draft = Draft::after(record);
    draft.record.state = State::Expired;
    draft.record.response = None;
    draft.record.fingerprint = None;
    draft.record.caller = None;
    draft.record.notes = Notes {
        erased: record.notes.erased,
        never_reached: record.notes.never_reached,
        ..Notes::default()
    };
    draft.record.attempt_id = fresh;
    draft.stamps.expires_at = Stamp::NOW;
    draft.stamps.delete_at = Stamp::In(record.tombstone_ttl);
    let entry = note(
        record,
        State::Expired,
        JournalEvent::Forgotten,
        Actor::Operator,
        reason,
    );
    change(draft, vec![entry])
}

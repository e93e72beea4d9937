//! Time passes: leases lapse, answers expire, tombstones go.

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

/// The sweeper looks at `record`. A lapsed lease becomes unknown; it is never permission to execute.
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

/// A clock that has been set back since has put a time of `record` so far ahead that nobody would come by
/// before: a lease that is longer than any, or a look that is later than any. The write that mends it.
///
/// Only for a record whose owner has had the time to renew its lease by the clock as it is now.
pub(super) fn stranded(record: &Record, now: Timestamp, policy: &Policy) -> Option<Change> {
    let beyond = |time: Option<Timestamp>, most| time.is_some_and(|at| at > now.plus(most));
    match record.state {
        State::InProgress => {
            let longest = policy.lease.max(policy.max_execution);
            beyond(record.times.lease_until, longest)
                .then(|| unknown(record, LastError::LeaseLapsed, Actor::Sweeper, Some(policy)))
        }
        State::Unknown => {
            // The engine moves a look by up to a fifth.
            let strays = beyond(record.times.reconcile_after, 2 * MAX_LOOK_PAUSE);
            strays.then(|| waited(record, "a clock was set back", now, policy))
        }
        State::Completed | State::FailedRetryable | State::Expired => None,
    }
}

/// The reaper looks at `record`: an answer that has expired is wiped, and its fingerprint stays as a
/// tombstone until that is due as well. What is in progress or unknown never expires.
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
    // From the moment it expired, not from the moment the reaper came by.
    draft.stamps.delete_at = match record.times.expires_at {
        Some(at) => Stamp::At(at.plus(record.tombstone_ttl)),
        None => Stamp::In(record.tombstone_ttl),
    };
    draft
}

/// The tombstone of a key that an operator forgot: no late result can match it, and any request may
/// begin a new generation.
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

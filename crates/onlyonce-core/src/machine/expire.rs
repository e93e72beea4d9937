//! Time passes: leases lapse, answers expire, tombstones go.

use crate::{
    machine::{change, note, settle::unknown},
    policy::Policy,
    record::{Actor, Change, Draft, JournalEvent, LastError, Record, State},
    time::{Stamp, Timestamp},
};

/// What the sweeper does with a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Swept {
    /// Nothing: it is alive, or not running at all.
    Alive,
    /// Swap this in: its executor gave no sign of life, so nobody knows.
    Lapsed(Change),
}

/// The sweeper looks at `record`. A lapsed lease becomes unknown; it is never permission to execute.
pub fn sweep(record: &Record, now: Timestamp, policy: Option<&Policy>) -> Swept {
    match record.state {
        State::InProgress if record.lease_lapsed(now) => Swept::Lapsed(unknown(
            record,
            LastError::LeaseLapsed,
            Actor::Sweeper,
            policy,
        )),
        State::InProgress
        | State::Completed
        | State::FailedRetryable
        | State::Unknown
        | State::Expired => Swept::Alive,
    }
}

/// What the reaper does with a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Reaped {
    /// Nothing yet, or ever.
    Keep,
    /// Swap this in: the answer is wiped, the fingerprint stays as a tombstone.
    Expire(Change),
    /// Delete the row at this revision.
    Delete,
}

/// The reaper looks at `record`. What is in progress or unknown never expires.
pub fn expire(record: &Record, now: Timestamp) -> Reaped {
    match record.state {
        State::Completed | State::FailedRetryable if record.is_past_expiry(now) => {
            Reaped::Expire(change(tombstone(record), Vec::new()))
        }
        State::Expired if record.times.delete_at.is_some_and(|at| at <= now) => Reaped::Delete,
        State::InProgress
        | State::Completed
        | State::FailedRetryable
        | State::Unknown
        | State::Expired => Reaped::Keep,
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

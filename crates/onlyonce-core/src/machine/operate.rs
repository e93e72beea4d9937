//! What an operator may do: settle what is unknown, forget what is settled, keep it longer.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{change, evidence::released, expire::forgotten, note, settle::completed},
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, JournalEvent, LastError, Record, State, StoredResponse,
    },
    time::{Stamp, Timestamp},
};

/// What an operator says became of an unknown key.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It took effect; this is the answer.
    Completed(Arc<StoredResponse>),
    /// It left nothing behind.
    FailedRetryable,
}

/// What becomes of an operator's resolution.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
    /// Swap this in.
    Write(Change),
    /// Only an unknown key can be resolved.
    NotUnknown(State),
}

/// An operator settles an unknown key.
pub fn resolve(
    record: &Record,
    resolution: &Resolution,
    reason: &str,
    policy: &Policy,
) -> Resolved {
    if record.state != State::Unknown {
        return Resolved::NotUnknown(record.state);
    }
    let (draft, to) = match resolution {
        Resolution::Completed(response) => (completed(record, response, policy), State::Completed),
        Resolution::FailedRetryable => (
            released(record, LastError::Operator, policy),
            State::FailedRetryable,
        ),
    };
    let reason = Some(reason.to_owned());
    let entry = note(record, to, JournalEvent::Resolved, Actor::Operator, reason);
    Resolved::Write(change(draft, vec![entry]))
}

/// What becomes of an operator's wish to forget.
#[derive(Clone, Debug, PartialEq)]
pub enum Forgotten {
    /// Swap this in.
    Write(Change),
    /// A key whose operation may be running cannot be forgotten.
    Live(State),
    /// A key that took effect is forgotten only by force: its retry would execute again.
    TookEffect,
}

/// An operator removes what is remembered. `fresh` replaces the attempt id, so that no late result
/// can match the tombstone.
pub fn forget(record: &Record, force: bool, fresh: AttemptId, reason: Option<String>) -> Forgotten {
    match record.state {
        State::InProgress | State::Unknown => Forgotten::Live(record.state),
        State::Completed if took_effect(record) && !force => Forgotten::TookEffect,
        State::Completed | State::FailedRetryable | State::Expired => {
            Forgotten::Write(forgotten(record, fresh, reason))
        }
    }
}

fn took_effect(record: &Record) -> bool {
    record
        .response
        .as_ref()
        .is_none_or(|response| response.status.is_success() || response.status.is_redirection())
}

/// What becomes of an operator's wish to keep an answer longer.
#[derive(Clone, Debug, PartialEq)]
pub enum Extended {
    /// Swap this in.
    Write(Change),
    /// Only a completed or released key that has not expired has an expiry to move.
    NoExpiry(State),
}

/// An operator moves the expiry to `ttl` from now.
pub fn extend(record: &Record, ttl: Duration, now: Timestamp) -> Extended {
    match record.state {
        State::Completed | State::FailedRetryable if !record.is_past_expiry(now) => {
            let mut draft = Draft::after(record);
            draft.stamps.expires_at = Stamp::In(ttl);
            let entry = note(
                record,
                record.state,
                JournalEvent::Extended,
                Actor::Operator,
                None,
            );
            Extended::Write(change(draft, vec![entry]))
        }
        State::Completed
        | State::FailedRetryable
        | State::InProgress
        | State::Unknown
        | State::Expired => Extended::NoExpiry(record.state),
    }
}

//! What an operator may do: settle what is unknown, forget what is settled, erase a person's data, keep
//! an answer longer.
//!
//! To *forget* gives a key back: the next request executes. To *erase* removes what is personal and gives
//! nothing back.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{
        change,
        evidence::{released, settles_at},
        expire::forgotten,
        note,
        settle::{NOBODY_TO_ASK, attested},
    },
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, Evidence, JournalEvent, LastError, Record, State,
        StoredResponse,
    },
    time::{Stamp, Timestamp},
};

/// What an operator says became of an unknown key.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It took effect; this is the answer.
    Completed(Arc<StoredResponse>),
    /// It left nothing behind. That lets a retry execute, so it needs more than the operator's word.
    FailedRetryable(Grounds),
}

/// What a release rests on beside the operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// What the provider says.
    pub heard: Heard,
    /// When the provider was asked: an answer may take its time, and is about this moment.
    pub asked_at: Option<Timestamp>,
    /// Whether the operator insists, although the provider does not say or it is too early.
    pub force: bool,
}

impl Grounds {
    /// Nobody was asked, and the operator insists.
    pub const FORCED: Self = Self {
        heard: Heard::Nothing,
        asked_at: None,
        force: true,
    };
}

/// What a provider that was asked before a release says. One that says "executed" settles the key by
/// its evidence, and nothing is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The route has no query: there is nobody to ask.
    Nobody,
    /// It does not know the key.
    Denial,
    /// Nothing that decides; or it could not be asked.
    Nothing,
}

/// What becomes of an operator's resolution.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolved {
    /// Swap this in.
    Write(Change),
    /// Only an unknown key can be resolved.
    NotUnknown(State),
    /// The provider has said that the operation took effect.
    TookEffect,
    /// The provider does not say, so a release needs force.
    Inconclusive,
    /// Until this time the operation may still take effect, so a release needs force.
    TooEarly(Timestamp),
}

/// An operator settles an unknown key.
pub fn resolve(
    record: &Record,
    resolution: &Resolution,
    reason: &str,
    now: Timestamp,
    policy: &Policy,
) -> Resolved {
    if record.state != State::Unknown {
        return Resolved::NotUnknown(record.state);
    }
    let (draft, to, reason) = match resolution {
        Resolution::Completed(response) => {
            let draft = attested(record, response, policy);
            (draft, State::Completed, reason.to_owned())
        }
        Resolution::FailedRetryable(grounds) => {
            let asked_at = grounds.asked_at.map_or(now, |asked_at| asked_at.min(now));
            let reason = match speaks_against(record, grounds.heard, asked_at, policy) {
                Some(Resolved::TookEffect) => return Resolved::TookEffect,
                Some(why) if !grounds.force => return why,
                Some(_) => format!("forced: {reason}"),
                None => reason.to_owned(),
            };
            let draft = released(record, LastError::Operator, policy);
            (draft, State::FailedRetryable, reason)
        }
    };
    let event = JournalEvent::Resolved;
    let entry = note(record, to, event, Actor::Operator, Some(reason));
    Resolved::Write(change(draft, vec![entry]))
}

/// What speaks against a release.
fn speaks_against(
    record: &Record,
    heard: Heard,
    now: Timestamp,
    policy: &Policy,
) -> Option<Resolved> {
    if matches!(record.evidence, Some(Evidence::Completed(_))) {
        return Some(Resolved::TookEffect);
    }
    if heard == Heard::Nothing {
        return Some(Resolved::Inconclusive);
    }
    let from = releasable_from(record, policy).unwrap_or_else(|| settled(now, policy));
    (now < from).then_some(Resolved::TooEarly(from))
}

/// From when on an unknown key may be released without force: nothing of it can be under way any more.
/// `None` where that is not known, and for any other key.
pub fn releasable_from(record: &Record, policy: &Policy) -> Option<Timestamp> {
    let since = record.times.unknown_since;
    let since = since.filter(|_| record.state == State::Unknown)?;
    Some(settled(since, policy))
}

/// When an exchange that ended at `since` cannot take effect any more.
fn settled(since: Timestamp, policy: &Policy) -> Timestamp {
    let reconcile = policy.reconcile.as_ref();
    let upstream_max = reconcile.and_then(|reconcile| reconcile.upstream_max_execution);
    settles_at(since, upstream_max.unwrap_or(policy.max_execution), policy)
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

/// What becomes of an operator's wish to erase.
#[derive(Clone, Debug, PartialEq)]
pub enum Erased {
    /// Swap this in.
    Write(Change),
    /// It is erased already.
    Already,
}

/// An operator removes a person's data: the answer, the key, its spelling and the path. State, hashes,
/// fingerprint and times stay, in any state, so that no operation can be repeated for it; an answer that
/// is still to come is kept by its status alone. A provider cannot be asked about an erased key any more,
/// so one whose outcome is unknown is left to a person.
pub fn erase(record: &Record, reason: Option<String>) -> Erased {
    if record.notes.erased {
        return Erased::Already;
    }
    let mut draft = Draft::after(record);
    draft.record.erase_names();
    let response = record.response.as_ref();
    draft.record.response = response.map(|response| draft.record.keeps(response));
    if let Some(Evidence::Completed(response)) = &record.evidence {
        draft.record.evidence = Some(Evidence::Completed(draft.record.keeps(response)));
    }
    let event = JournalEvent::Erased;
    let mut journal = vec![note(record, record.state, event, Actor::Operator, reason)];
    // What the provider has said already can still settle it.
    let has_an_answer = matches!(record.evidence, Some(Evidence::Completed(_)));
    if record.state == State::Unknown && !has_an_answer {
        draft.stamps.reconcile_after = Stamp::Never;
        if !record.dead_letter {
            draft.record.dead_letter = true;
            journal.push(note(
                record,
                record.state,
                JournalEvent::DeadLettered,
                Actor::Operator,
                Some(NOBODY_TO_ASK.to_owned()),
            ));
        }
    }
    Erased::Write(change(draft, journal))
}

/// What becomes of an operator's wish to keep an answer longer.
#[derive(Clone, Debug, PartialEq)]
pub enum Extended {
    /// Swap this in.
    Write(Change),
    /// Only a completed or released key that has not expired has an expiry to move.
    NoExpiry(State),
}

/// An operator moves the expiry to `ttl` from now, or leaves it where that is later.
pub fn extend(record: &Record, ttl: Duration, now: Timestamp) -> Extended {
    match record.state {
        State::Completed | State::FailedRetryable if !record.is_past_expiry(now) => {
            let mut draft = Draft::after(record);
            // To shorten it would be to release the key, which nobody would expect of this.
            if record.times.expires_at < Some(now.plus(ttl)) {
                draft.stamps.expires_at = Stamp::In(ttl);
            }
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

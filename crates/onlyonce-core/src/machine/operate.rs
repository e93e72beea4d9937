//! What an operator may do: settle what is unknown, forget what is settled, erase a person's data, keep
//! an answer longer.
//!
//! To *forget* gives a key back: the next request executes. To *erase* removes what is personal and gives
//! nothing back.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{
        Step, change,
        evidence::{released, settles_at},
        expire::forgotten,
        note,
        settle::{NOBODY_TO_ASK, attested},
    },
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, Evidence, JournalEvent, LastError, Record, Revision,
        State, StoredResponse,
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

/// What an operator's decision was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The key as it is when the wish is granted.
    AsItIs,
    /// This attempt, whatever else has been written since.
    Attempt(AttemptId),
    /// This very record: anything that was written since speaks against it.
    Revision(Revision),
}

/// Why an operator's wish is not granted. Nothing is written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such key.
    Absent,
    /// A key in this state does not allow it.
    State(State),
    /// The key has another attempt than the one that was seen.
    MovedOn,
    /// The key has been written to since it was seen.
    Changed,
    /// The operation took effect, so that to forget it, or to release it, would let a retry execute again.
    TookEffect,
    /// The provider does not say, so a release needs force.
    Inconclusive,
    /// Until this time the operation may still take effect, so a release needs force.
    TooEarly(Timestamp),
}

/// Whether an operator's wish is granted, once the step's write has succeeded.
pub type Granted = Result<(), Denied>;

fn granted(change: Change) -> Step<Granted> {
    Step::swap(change, Ok(()))
}

fn denied(why: Denied) -> Step<Granted> {
    Step::stay(Err(why))
}

/// An operator settles an unknown key, having seen it.
pub(super) fn resolve(
    record: &Record,
    seen: Seen,
    resolution: &Resolution,
    reason: &str,
    now: Timestamp,
    policy: &Policy,
) -> Step<Granted> {
    match seen {
        Seen::Attempt(attempt) if attempt != record.attempt_id => return denied(Denied::MovedOn),
        Seen::Revision(revision) if revision != record.revision => return denied(Denied::Changed),
        Seen::AsItIs | Seen::Attempt(_) | Seen::Revision(_) => {}
    }
    if record.state != State::Unknown {
        return denied(Denied::State(record.state));
    }
    let (draft, to, reason) = match resolution {
        Resolution::Completed(response) => {
            let draft = attested(record, response, policy);
            (draft, State::Completed, reason.to_owned())
        }
        Resolution::FailedRetryable(grounds) => {
            let asked_at = grounds.asked_at.map_or(now, |asked_at| asked_at.min(now));
            let reason = match speaks_against(record, grounds.heard, asked_at, policy) {
                // No force helps against the provider's own word.
                Some(why) if !grounds.force || why == Denied::TookEffect => return denied(why),
                Some(_) => format!("forced: {reason}"),
                None => reason.to_owned(),
            };
            let draft = released(record, LastError::Operator, policy);
            (draft, State::FailedRetryable, reason)
        }
    };
    let event = JournalEvent::Resolved;
    let entry = note(record, to, event, Actor::Operator, Some(reason));
    granted(change(draft, vec![entry]))
}

/// What speaks against a release.
fn speaks_against(
    record: &Record,
    heard: Heard,
    now: Timestamp,
    policy: &Policy,
) -> Option<Denied> {
    if matches!(record.evidence, Some(Evidence::Completed(_))) {
        return Some(Denied::TookEffect);
    }
    if heard == Heard::Nothing {
        return Some(Denied::Inconclusive);
    }
    let from = releasable_from(record, policy).unwrap_or_else(|| settled(now, policy));
    (now < from).then_some(Denied::TooEarly(from))
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

/// An operator removes what is remembered. `fresh` replaces the attempt id, so that no late result
/// can match the tombstone.
///
/// A key whose operation may be running cannot be forgotten, and one that took effect only by force.
pub(super) fn forget(
    record: &Record,
    force: bool,
    fresh: AttemptId,
    reason: Option<String>,
) -> Step<Granted> {
    match record.state {
        State::InProgress | State::Unknown => denied(Denied::State(record.state)),
        State::Completed if took_effect(record) && !force => denied(Denied::TookEffect),
        State::Completed | State::FailedRetryable | State::Expired => {
            granted(forgotten(record, fresh, reason))
        }
    }
}

fn took_effect(record: &Record) -> bool {
    record
        .response
        .as_ref()
        .is_none_or(|response| response.status.is_success() || response.status.is_redirection())
}

/// An operator removes a person's data: the answer, the key, its spelling and the path. State, hashes,
/// fingerprint and times stay, in any state, so that no operation can be repeated for it; an answer that
/// is still to come is kept by its status alone. A provider cannot be asked about an erased key any more,
/// so one whose outcome is unknown is left to a person. Erasing twice is erasing once.
pub(super) fn erase(record: &Record, reason: Option<String>) -> Step<Granted> {
    if record.notes.erased {
        return Step::stay(Ok(()));
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
    granted(change(draft, journal))
}

/// An operator moves the expiry to `ttl` from now, or leaves it where that is later. Only a completed or
/// released key that has not expired has an expiry to move.
pub(super) fn extend(record: &Record, ttl: Duration, now: Timestamp) -> Step<Granted> {
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
            granted(change(draft, vec![entry]))
        }
        State::Completed
        | State::FailedRetryable
        | State::InProgress
        | State::Unknown
        | State::Expired => denied(Denied::State(record.state)),
    }
}

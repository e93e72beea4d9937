//! Operator actions: settle an unknown key, forget a settled one, erase personal data, extend an answer's
//! life.
//!
//! To *forget* gives a key back: the next request executes. To *erase* removes personal data and gives
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

/// After this long no process has a copy of a forgotten answer, whichever clock is right.
const COPIES_ARE_GONE_AFTER: Duration = Duration::from_secs(60);

/// An operator's decision about an unknown key.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// The operation took effect; this is the answer.
    Completed(Arc<StoredResponse>),
    /// The operation had no effect. A retry will execute, so the operator's word alone is not enough.
    FailedRetryable(Grounds),
}

/// The grounds for a release besides the operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grounds {
    /// The provider's answer.
    pub heard: Heard,
    /// When the provider was asked. The answer is about this moment, however late it arrives.
    pub asked_at: Option<Timestamp>,
    /// Whether to release although the provider's answer is inconclusive or it is too early.
    pub force: bool,
}

impl Grounds {
    /// Nobody was asked; the operator forces the release.
    pub const FORCED: Self = Self {
        heard: Heard::Nothing,
        asked_at: None,
        force: true,
    };
}

/// The answer of a provider that was asked before a release. If it says "executed", its evidence settles the
/// key, and nothing is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The route has no query: there is nobody to ask.
    Nobody,
    /// The provider does not know the key.
    Denial,
    /// The answer decides nothing, or the provider could not be asked.
    Nothing,
}

/// The version of a key that an operator's decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The key as it is when the decision is applied.
    AsItIs,
    /// This attempt, whatever else has been written since.
    Attempt(AttemptId),
    /// This very record: any later write denies the decision.
    Revision(Revision),
}

/// Why an operator's request is denied. Nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no such key.
    Absent,
    /// The key's state does not allow it.
    State(State),
    /// Another attempt owns the key than the one the operator saw.
    MovedOn,
    /// The key has been written to since the operator saw it.
    Changed,
    /// The operation took effect: forgetting or releasing the key would let a retry execute again.
    TookEffect,
    /// The provider's answer is inconclusive; a release needs force.
    Inconclusive,
    /// The operation may still take effect until this time; a release needs force.
    TooEarly(Timestamp),
}

/// Whether an operator's request is granted, once the step's write has succeeded.
pub type Granted = Result<(), Denied>;

fn granted(change: Change) -> Step<Granted> {
    Step::swap(change, Ok(()))
}

fn denied(why: Denied) -> Step<Granted> {
    Step::stay(Err(why))
}

/// Settles an unknown key as an operator decided.
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
                // Force does not override the provider's own evidence.
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

/// The objection to a release, if there is one.
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

/// Whether an operator removed the key's answer so recently that another process may still give a copy of
/// it. Executing the key now would give two answers at the same time.
pub fn is_just_forgotten(record: &Record, now: Timestamp) -> bool {
    let forgotten_at = record.forgotten_at();
    forgotten_at.is_some_and(|at| now < at.plus(COPIES_ARE_GONE_AFTER))
}

/// The time from which an unknown key may be released without force, since its operation can no longer be
/// running. `None` if that is not known, and for a key in any other state.
pub fn releasable_from(record: &Record, policy: &Policy) -> Option<Timestamp> {
    let since = record.times.unknown_since;
    let since = since.filter(|_| record.state == State::Unknown)?;
    Some(settled(since, policy))
}

/// When an exchange that ended at `since` can no longer take effect.
fn settled(since: Timestamp, policy: &Policy) -> Timestamp {
    let reconcile = policy.reconcile.as_ref();
    let upstream_max = reconcile.and_then(|reconcile| reconcile.upstream_max_execution);
    settles_at(since, upstream_max.unwrap_or(policy.max_execution), policy)
}

/// Forgets a key. `fresh` replaces the attempt id, so that no late result can match the tombstone.
///
/// A key whose operation may be running cannot be forgotten. A key whose operation took effect needs force.
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

/// Erases personal data: the answer, the key, its spelling and the path. State, hashes, fingerprint and times
/// stay, in any state, so that the operation is not repeated. Of an answer still to come only the status is
/// kept. A provider cannot be asked about an erased key, so an unknown one becomes a dead letter. Erasing
/// twice changes nothing.
pub(super) fn erase(record: &Record, reason: Option<String>) -> Step<Granted> {
    if record.notes.erased {
        return Step::stay(Ok(()));
    }
    let mut draft = Draft::after(record);
    draft.record.erase_names();
    let response = record.response.as_ref();
    let bare = |response: &Arc<StoredResponse>| Arc::new(StoredResponse::bare(response.status));
    draft.record.response = response.map(bare);
    if let Some(Evidence::Completed(response)) = &record.evidence {
        draft.record.evidence = Some(Evidence::Completed(bare(response)));
    }
    let event = JournalEvent::Erased;
    let mut journal = vec![note(record, record.state, event, Actor::Operator, reason)];
    // Evidence that the provider has already given can still settle the key.
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

/// Moves the expiry to `ttl` from now, unless it is later already. Only a completed or released key that has
/// not expired has an expiry to move.
pub(super) fn extend(record: &Record, ttl: Duration, now: Timestamp) -> Step<Granted> {
    match record.state {
        State::Completed | State::FailedRetryable if !record.is_past_expiry(now) => {
            let mut draft = Draft::after(record);
            // Shortening the life would release the key, which nobody expects of an extension.
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

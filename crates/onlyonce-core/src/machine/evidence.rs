//! The ways out of unknown, and what an operator may do: by evidence, never by guessing.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{change, expire::forgotten, note, settle::completed, settled_draft},
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, Evidence, JournalEvent, LastError, Record, State,
        StoredResponse,
    },
    time::{Stamp, Timestamp},
};

/// The longest pause between two looks of the reconciler.
const MAX_LOOK_PAUSE: Duration = Duration::from_secs(3_600);

/// Where evidence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The provider told us of its own accord about the attempt with this id.
    Webhook(AttemptId),
    /// We kept what the provider had told us.
    Kept,
    /// The provider answered the route's query.
    Query(Negative),
}

/// What a negative answer to the query is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negative {
    /// The same query, under this configuration, has been seen to find some key.
    Proven,
    /// It has not, so "not found" may mean that we ask in the wrong place.
    Unproven,
}

/// What becomes of evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum Looked {
    /// Swap this in.
    Write(Change),
    /// It is about another attempt, or the key needs no evidence.
    Ignore,
}

/// A provider says what became of the key.
pub fn reconcile(
    record: &Record,
    evidence: &Evidence,
    source: Source,
    now: Timestamp,
    policy: &Policy,
) -> Looked {
    if let Source::Webhook(attempt) = source
        && attempt != record.attempt_id
    {
        return Looked::Ignore;
    }
    match record.state {
        State::InProgress => match source {
            Source::Webhook(_) => keep(record, evidence),
            // Asked about an attempt that has since been settled: it says nothing of this one.
            Source::Kept | Source::Query(_) => Looked::Ignore,
        },
        State::Unknown => match (evidence, source) {
            (Evidence::Completed(response), _) => {
                Looked::Write(proven_executed(record, response, Actor::Reconciler, policy))
            }
            (Evidence::NotExecuted, Source::Webhook(_) | Source::Kept) => {
                Looked::Write(proven_not_executed(record, policy))
            }
            (Evidence::NotExecuted, Source::Query(negative)) => {
                Looked::Write(negative_answer(record, negative, now, policy))
            }
        },
        State::Completed | State::FailedRetryable | State::Expired => Looked::Ignore,
    }
}

/// The reconciler looked and found out nothing.
pub fn look(record: &Record, policy: &Policy) -> Looked {
    match record.state {
        State::Unknown => Looked::Write(found_nothing(record, policy)),
        State::InProgress | State::Completed | State::FailedRetryable | State::Expired => {
            Looked::Ignore
        }
    }
}

fn keep(record: &Record, evidence: &Evidence) -> Looked {
    match (&record.evidence, evidence) {
        (None, _) => {}
        // A provider that contradicts itself has proven nothing, so what speaks for an effect stands.
        (Some(Evidence::NotExecuted), Evidence::Completed(_)) => {}
        (Some(_), _) => return Looked::Ignore,
    }
    let mut draft = Draft::after(record);
    draft.record.evidence = Some(evidence.clone());
    let entry = note(
        record,
        record.state,
        JournalEvent::EvidenceKept,
        Actor::Reconciler,
        None,
    );
    Looked::Write(change(draft, vec![entry]))
}

fn proven_executed(
    record: &Record,
    response: &Arc<StoredResponse>,
    actor: Actor,
    policy: &Policy,
) -> Change {
    let entry = note(
        record,
        State::Completed,
        JournalEvent::Reconciled,
        actor,
        None,
    );
    change(completed(record, response, policy), vec![entry])
}

fn released(record: &Record, error: LastError, policy: &Policy) -> Draft {
    let mut draft = settled_draft(record, State::FailedRetryable);
    draft.record.last_error = Some(error);
    draft.stamps.expires_at = Stamp::In(policy.ttl);
    draft
}

fn proven_not_executed(record: &Record, policy: &Policy) -> Change {
    let entry = note(
        record,
        State::FailedRetryable,
        JournalEvent::Reconciled,
        Actor::Reconciler,
        Some(LastError::ProviderNegative.as_str().to_owned()),
    );
    change(
        released(record, LastError::ProviderNegative, policy),
        vec![entry],
    )
}

/// "Not found" counts only twice in a row, only once the operation cannot still be under way, and
/// only from a query that is known to find things.
fn negative_answer(record: &Record, negative: Negative, now: Timestamp, policy: &Policy) -> Change {
    let Some(upstream_max) = policy
        .reconcile
        .as_ref()
        .and_then(|reconcile| reconcile.upstream_max_execution)
    else {
        return dead_letter(record, "negative answer without upstream_max_execution");
    };
    if negative == Negative::Unproven {
        return dead_letter(
            record,
            "negative answer from a query that never found a key",
        );
    }
    let may_still_run = policy.lease + policy.timeout + upstream_max;
    let settled_down = record
        .times
        .unknown_since
        .is_some_and(|since| since.plus(may_still_run) <= now);
    if settled_down && record.negatives >= 1 {
        return proven_not_executed(record, policy);
    }
    let mut draft = Draft::after(record);
    // Looks before that moment are not counted: the first of the two must come after it as well.
    draft.record.negatives = if settled_down {
        record.negatives.saturating_add(1)
    } else {
        0
    };
    draft.stamps.reconcile_after = next_look(record, policy);
    change(draft, Vec::new())
}

fn found_nothing(record: &Record, policy: &Policy) -> Change {
    let tries = record.inconclusive.saturating_add(1);
    let bound = policy
        .reconcile
        .as_ref()
        .map_or(0, |reconcile| reconcile.attempts);
    if tries >= bound {
        return dead_letter(record, "inconclusive");
    }
    let mut draft = Draft::after(record);
    draft.record.inconclusive = tries;
    draft.record.negatives = 0;
    draft.stamps.reconcile_after = next_look(record, policy);
    let entry = note(
        record,
        State::Unknown,
        JournalEvent::Inconclusive,
        Actor::Reconciler,
        None,
    );
    change(draft, vec![entry])
}

fn dead_letter(record: &Record, why: &str) -> Change {
    let mut draft = Draft::after(record);
    draft.record.dead_letter = true;
    draft.record.inconclusive = record.inconclusive.saturating_add(1);
    draft.stamps.reconcile_after = Stamp::Never;
    let entry = note(
        record,
        State::Unknown,
        JournalEvent::DeadLettered,
        Actor::Reconciler,
        Some(why.to_owned()),
    );
    change(draft, vec![entry])
}

/// Exponential in the number of looks. The worker adds the jitter, since chance is not for us.
fn next_look(record: &Record, policy: &Policy) -> Stamp {
    if record.dead_letter {
        // A person may look again, and what they find counts; nobody else is sent.
        return Stamp::Never;
    }
    let first = policy
        .reconcile
        .as_ref()
        .map_or(MAX_LOOK_PAUSE, |reconcile| reconcile.after);
    let doubled = 1_u32 << u32::from(record.inconclusive.saturating_add(record.negatives).min(16));
    Stamp::In(first.saturating_mul(doubled).min(MAX_LOOK_PAUSE))
}

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

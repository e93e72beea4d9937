//! The ways out of unknown that a provider's word opens: by evidence, never by guessing.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{change, note, settle::completed, settled_draft},
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
    /// The provider told us of its own accord.
    Webhook(About),
    /// We kept what the provider had told us.
    Kept,
    /// The provider answered the route's query.
    Query(Negative),
}

/// Which attempt a provider speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The one with this id.
    Attempt(AttemptId),
    /// The one that was under way at some time between these two, by the provider's clock.
    Moment {
        /// Not before.
        from: Timestamp,
        /// Not after.
        until: Timestamp,
    },
}

impl About {
    /// Whether it is, or for a denial may be, an attempt before the one that owns `record`: a denial
    /// releases the key, so it has to be about this very attempt.
    fn is_earlier(self, record: &Record, evidence: &Evidence) -> bool {
        match self {
            Self::Attempt(attempt) => attempt != record.attempt_id,
            Self::Moment { from, until } => {
                let is_denial = *evidence == Evidence::NotExecuted;
                let has_predecessor = record.fence.0 > 1;
                let at = if is_denial && has_predecessor {
                    from
                } else {
                    until
                };
                let dispatched = record.times.last_run_at;
                dispatched.is_some_and(|dispatched| at < dispatched)
            }
        }
    }
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
    /// It changes nothing: the key needs no evidence, or has had this.
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
    if let Source::Webhook(about) = source
        && about.is_earlier(record, evidence)
    {
        return of_an_earlier_attempt(record, evidence);
    }
    match record.state {
        State::InProgress => match source {
            Source::Webhook(_) => keep(record, evidence),
            // Asked about an attempt that has since been settled: it says nothing of this one.
            Source::Kept | Source::Query(_) => Looked::Ignore,
        },
        State::Unknown => on_unknown(record, evidence, source, now, policy),
        State::FailedRetryable => match (evidence, source) {
            (Evidence::Completed(response), Source::Webhook(_)) if !record.is_past_expiry(now) => {
                Looked::Write(release_was_wrong(record, response, policy))
            }
            _ => Looked::Ignore,
        },
        State::Completed | State::Expired => Looked::Ignore,
    }
}

fn on_unknown(
    record: &Record,
    evidence: &Evidence,
    source: Source,
    now: Timestamp,
    policy: &Policy,
) -> Looked {
    if let Some(kept) = &record.evidence
        && kept.contradicts(evidence)
    {
        return match kept {
            // A person has been told already.
            Evidence::Contradictory => Looked::Ignore,
            Evidence::Completed(_) | Evidence::NotExecuted => Looked::Write(contradicted(record)),
        };
    }
    Looked::Write(match (evidence, source) {
        (Evidence::Completed(response), _) => proven_executed(record, response, policy),
        (Evidence::NotExecuted, Source::Webhook(_) | Source::Kept) => {
            match upstream_max_execution(policy) {
                Some(_) => proven_not_executed(record, policy),
                None => unbounded(record),
            }
        }
        (Evidence::NotExecuted, Source::Query(negative)) => {
            negative_answer(record, negative, now, policy)
        }
        (Evidence::Contradictory, _) => contradicted(record),
    })
}

/// The reconciler looked and found out nothing; `why` says what it met.
pub fn look(record: &Record, why: &str, policy: &Policy) -> Looked {
    match record.state {
        State::Unknown => Looked::Write(found_nothing(record, why, policy)),
        State::InProgress | State::Completed | State::FailedRetryable | State::Expired => {
            Looked::Ignore
        }
    }
}

/// The provider speaks of an attempt that no longer owns the key. That settles nothing; where the
/// outcome is unknown, or the word speaks for an effect, a person has to compare the two attempts.
fn of_an_earlier_attempt(record: &Record, evidence: &Evidence) -> Looked {
    const WHY: &str = "the provider's word is about an earlier attempt";
    match (record.state, evidence) {
        (State::Unknown, _) if !record.dead_letter => Looked::Write(dead_letter(record, WHY)),
        (State::InProgress, Evidence::Completed(_))
            if record.evidence != Some(Evidence::Contradictory) =>
        {
            Looked::Write(kept(record, Evidence::Contradictory, Some(WHY)))
        }
        _ => Looked::Ignore,
    }
}

fn keep(record: &Record, evidence: &Evidence) -> Looked {
    match &record.evidence {
        None => Looked::Write(kept(record, evidence.clone(), None)),
        Some(before) if before.contradicts(evidence) => match before {
            Evidence::Contradictory => Looked::Ignore,
            // A provider that contradicts itself has proven nothing.
            Evidence::Completed(_) | Evidence::NotExecuted => {
                let why = Some("the provider contradicts itself");
                Looked::Write(kept(record, Evidence::Contradictory, why))
            }
        },
        Some(_) => Looked::Ignore,
    }
}

fn kept(record: &Record, evidence: Evidence, why: Option<&str>) -> Change {
    let mut draft = Draft::after(record);
    draft.record.evidence = Some(evidence);
    let entry = note(
        record,
        record.state,
        JournalEvent::EvidenceKept,
        Actor::Reconciler,
        why.map(str::to_owned),
    );
    change(draft, vec![entry])
}

/// Unknown, and for a person to decide: no further word of this provider settles it.
fn contradicted(record: &Record) -> Change {
    let mut change = dead_letter(record, "the provider contradicts itself");
    change.draft.record.evidence = Some(Evidence::Contradictory);
    change
}

/// The key had been released, and the provider says that it took effect.
fn release_was_wrong(record: &Record, response: &Arc<StoredResponse>, policy: &Policy) -> Change {
    let event = JournalEvent::ReleaseWasWrong;
    let entry = |to, why: &str| {
        let why = Some(why.to_owned());
        note(record, to, event, Actor::Reconciler, why)
    };
    match record.last_error {
        // A person has decided, and is told; what they said stands.
        Some(LastError::Operator) => {
            let told = entry(record.state, "an operator had released it, which stands");
            change(Draft::after(record), vec![told])
        }
        // The provider itself had said that it did not happen.
        Some(LastError::ProviderNegative) => {
            let mut draft = settled_draft(record, State::Unknown);
            draft.record.dead_letter = true;
            draft.record.evidence = Some(Evidence::Contradictory);
            draft.stamps.expires_at = Stamp::Never;
            draft.stamps.unknown_since = Stamp::NOW;
            let why = "the provider contradicts itself";
            let mut letter = entry(State::Unknown, why);
            letter.event = JournalEvent::DeadLettered;
            change(draft, vec![entry(State::Unknown, why), letter])
        }
        _ => change(
            completed(record, response, policy),
            vec![entry(
                State::Completed,
                "the provider says that it took effect",
            )],
        ),
    }
}

fn proven_executed(record: &Record, response: &Arc<StoredResponse>, policy: &Policy) -> Change {
    let entry = note(
        record,
        State::Completed,
        JournalEvent::Reconciled,
        Actor::Reconciler,
        None,
    );
    change(completed(record, response, policy), vec![entry])
}

pub(super) fn released(record: &Record, error: LastError, policy: &Policy) -> Draft {
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

fn upstream_max_execution(policy: &Policy) -> Option<Duration> {
    let reconcile = policy.reconcile.as_ref()?;
    reconcile.upstream_max_execution
}

/// Whoever says that nothing was executed may be overtaken by the upstream, unless it is known for how
/// long that may go on.
fn unbounded(record: &Record) -> Change {
    dead_letter(record, "negative answer without upstream_max_execution")
}

/// "Not found" counts only twice in a row, only once the operation cannot still be under way, and
/// only from a query that is known to find things.
fn negative_answer(record: &Record, negative: Negative, now: Timestamp, policy: &Policy) -> Change {
    let Some(upstream_max) = upstream_max_execution(policy) else {
        return unbounded(record);
    };
    if negative == Negative::Unproven {
        return dead_letter(
            record,
            "negative answer from a query that never found a key",
        );
    }
    let may_still_run = policy.lease + policy.timeout + upstream_max;
    let settles_at = record
        .times
        .unknown_since
        .map(|since| since.plus(may_still_run));
    let settled_down = settles_at.is_some_and(|at| at <= now);
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
    let why = if settled_down {
        "not found; to be asked once more"
    } else {
        "not found; too early to count"
    };
    draft.stamps.reconcile_after = match settles_at {
        _ if record.dead_letter => Stamp::Never,
        // Ever closer to the moment from which on it counts.
        Some(at) if !settled_down => Stamp::In((at.since(now) / 2).max(first_pause(policy))),
        _ => Stamp::In(look_pause(record, policy)),
    };
    let entry = note(
        record,
        State::Unknown,
        JournalEvent::NegativeAnswer,
        Actor::Reconciler,
        Some(why.to_owned()),
    );
    change(draft, vec![entry])
}

fn found_nothing(record: &Record, why: &str, policy: &Policy) -> Change {
    let Some(reconcile) = &policy.reconcile else {
        return dead_letter(record, "nobody asks the provider: see `reconcile`");
    };
    let tries = record.inconclusive.saturating_add(1);
    if tries >= reconcile.attempts {
        return dead_letter(record, &format!("inconclusive {tries} times: {why}"));
    }
    let mut draft = Draft::after(record);
    draft.record.inconclusive = tries;
    draft.record.negatives = 0;
    draft.stamps.reconcile_after = match record.dead_letter {
        // A person may look again, and what they find counts; nobody else is sent.
        true => Stamp::Never,
        false => Stamp::In(look_pause(&draft.record, policy)),
    };
    let entry = note(
        record,
        State::Unknown,
        JournalEvent::Inconclusive,
        Actor::Reconciler,
        Some(why.to_owned()),
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

fn first_pause(policy: &Policy) -> Duration {
    policy
        .reconcile
        .as_ref()
        .map_or(MAX_LOOK_PAUSE, |reconcile| reconcile.after)
}

/// Exponential in the number of looks. The engine adds the jitter, since chance is not for us.
pub(super) fn look_pause(record: &Record, policy: &Policy) -> Duration {
    let doubled = 1_u32 << u32::from(record.inconclusive.saturating_add(record.negatives).min(16));
    first_pause(policy)
        .saturating_mul(doubled)
        .min(MAX_LOOK_PAUSE)
}

//! How a provider's statements settle an unknown key: by evidence, never by guessing.

use std::{sync::Arc, time::Duration};

use crate::{
    machine::{Step, change, note, settle::attested, settled_draft},
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, Evidence, JournalEntry, JournalEvent, LastError, Record,
        State, StoredResponse,
    },
    time::{Stamp, Timestamp},
};

/// The longest pause between two looks of the reconciler, and the interval of the looks at a dead letter.
pub(super) const MAX_LOOK_PAUSE: Duration = Duration::from_secs(3_600);

pub(super) const CONTRADICTION: &str = "the provider contradicts itself";
pub(super) const NOBODY_ASKS: &str = "nobody asks the provider: see `reconcile`";

/// Where evidence comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The provider told us unasked.
    Webhook(About),
    /// An earlier statement of the provider, kept in the record.
    Kept,
    /// The provider answered the route's query.
    Query(Negative),
}

/// The attempt that a provider's statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The attempt with this id.
    Attempt(AttemptId),
    /// The attempt that was running at some time in this interval, by the provider's clock.
    Moment {
        /// The earliest time.
        from: Timestamp,
        /// The latest time.
        until: Timestamp,
    },
}

impl About {
    /// When the provider looked. A webhook may arrive long after its event.
    fn looked_at(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Attempt(_) => now,
            Self::Moment { until, .. } => until.min(now),
        }
    }

    /// Whether the statement is about an attempt earlier than the one that owns `record`. A denial releases
    /// the key, so a denial that may be about an earlier attempt counts as earlier.
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

/// How much a negative answer to the query is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negative {
    /// The same query, under this configuration, has found a key before.
    Proven,
    /// The query has never found a key, so "not found" may mean that we ask in the wrong place.
    Unproven,
}

/// No change: the key needs no evidence, or already has it.
const IGNORED: Step = Step::stay(());

/// Applies a provider's statement to the key.
pub(super) fn reconcile(
    record: &Record,
    evidence: &Evidence,
    source: Source,
    now: Timestamp,
    policy: &Policy,
) -> Step {
    if let Source::Webhook(about) = source
        && about.is_earlier(record, evidence)
    {
        return of_an_earlier_attempt(record, evidence, policy);
    }
    match record.state {
        State::InProgress => match source {
            Source::Webhook(_) => keep(record, evidence, policy),
            // The query was about an earlier attempt and says nothing about this one.
            Source::Kept | Source::Query(_) => IGNORED,
        },
        State::Unknown => on_unknown(record, evidence, source, now, policy),
        State::FailedRetryable => match (evidence, source) {
            (Evidence::Completed(response), Source::Webhook(_)) if !record.is_past_expiry(now) => {
                release_was_wrong(record, response, policy).into()
            }
            _ => IGNORED,
        },
        State::Completed | State::Expired => IGNORED,
    }
}

fn on_unknown(
    record: &Record,
    evidence: &Evidence,
    source: Source,
    now: Timestamp,
    policy: &Policy,
) -> Step {
    if let Some(kept) = &record.evidence
        && kept.contradicts(evidence)
    {
        return match kept {
            // The key is a dead letter already.
            Evidence::Contradictory => IGNORED,
            Evidence::Completed(_) | Evidence::NotExecuted => contradicted(record).into(),
        };
    }
    let change = match (evidence, source) {
        (Evidence::Completed(response), _) => proven_executed(record, response, policy),
        // Counts as one look, by somebody who knows where to look.
        (Evidence::NotExecuted, Source::Webhook(about)) => {
            negative_answer(record, Negative::Proven, about.looked_at(now), now, policy)
        }
        (Evidence::NotExecuted, Source::Query(negative)) => {
            negative_answer(record, negative, now, now, policy)
        }
        (Evidence::NotExecuted, Source::Kept) => {
            waited(record, "said while the attempt was running", now, policy)
        }
        (Evidence::Contradictory, _) => contradicted(record),
    };
    change.into()
}

/// The reconciler's look was inconclusive; `why` is the reason.
pub(super) fn look(record: &Record, why: &str, policy: &Policy) -> Step {
    on_unknown_only(record, || found_nothing(record, why, policy))
}

/// The provider's answer settles nothing and does not count as a look: the operation is pending, or a clock
/// is known to have jumped. `why` is the reason.
pub(super) fn no_look(record: &Record, why: &str, now: Timestamp, policy: &Policy) -> Step {
    on_unknown_only(record, || waited(record, why, now, policy))
}

/// The provider knows several operations under the key; a person has to tell them apart.
pub(super) fn ambiguous(record: &Record, why: &str, policy: &Policy) -> Step {
    on_unknown_only(record, || dead_letter(record, why, policy))
}

fn on_unknown_only(record: &Record, change: impl FnOnce() -> Change) -> Step {
    match record.state {
        // After contradictory statements only a person can decide; further looks change nothing.
        State::Unknown if record.evidence == Some(Evidence::Contradictory) => IGNORED,
        State::Unknown => change().into(),
        State::InProgress | State::Completed | State::FailedRetryable | State::Expired => IGNORED,
    }
}

/// The provider's statement is about an attempt that no longer owns the key, and settles nothing. If the
/// outcome is unknown, or the statement reports an effect, a person has to compare the two attempts.
fn of_an_earlier_attempt(record: &Record, evidence: &Evidence, policy: &Policy) -> Step {
    const WHY: &str = "the provider's word is about an earlier attempt";
    match (record.state, evidence) {
        (State::Unknown, _) if !record.dead_letter => dead_letter(record, WHY, policy).into(),
        (State::InProgress, Evidence::Completed(_))
            if record.evidence != Some(Evidence::Contradictory) =>
        {
            kept(record, Evidence::Contradictory, Some(WHY), policy).into()
        }
        _ => IGNORED,
    }
}

fn keep(record: &Record, evidence: &Evidence, policy: &Policy) -> Step {
    match &record.evidence {
        None => kept(record, evidence.clone(), None, policy).into(),
        Some(before) if before.contradicts(evidence) => match before {
            Evidence::Contradictory => IGNORED,
            // Contradictory statements prove nothing.
            Evidence::Completed(_) | Evidence::NotExecuted => {
                kept(record, Evidence::Contradictory, Some(CONTRADICTION), policy).into()
            }
        },
        Some(_) => IGNORED,
    }
}

fn kept(record: &Record, evidence: Evidence, why: Option<&str>, policy: &Policy) -> Change {
    let mut draft = Draft::after(record);
    draft.record.evidence = Some(match evidence {
        Evidence::Completed(response) => Evidence::Completed(record.keeps(&response, policy)),
        other => other,
    });
    let entry = note(
        record,
        record.state,
        JournalEvent::EvidenceKept,
        Actor::Reconciler,
        why.map(str::to_owned),
    );
    change(draft, vec![entry])
}

/// The key stays unknown for a person to decide; no further statement of this provider settles it.
fn contradicted(record: &Record) -> Change {
    let mut draft = Draft::after(record);
    draft.record.evidence = Some(Evidence::Contradictory);
    draft.record.dead_letter = true;
    draft.record.inconclusive = record.inconclusive.saturating_add(1);
    draft.stamps.reconcile_after = Stamp::Never;
    change(draft, vec![lettered(record, CONTRADICTION)])
}

/// The key had been released, and the provider now says that the operation took effect.
fn release_was_wrong(record: &Record, response: &Arc<StoredResponse>, policy: &Policy) -> Change {
    let event = JournalEvent::ReleaseWasWrong;
    let entry = |to, why: &str| {
        let why = Some(why.to_owned());
        note(record, to, event, Actor::Reconciler, why)
    };
    match record.last_error {
        // An operator's decision stands; the journal records the contradiction.
        Some(LastError::Operator) => {
            let told = entry(record.state, "an operator had released it, which stands");
            change(Draft::after(record), vec![told])
        }
        // The provider itself had denied the operation.
        Some(LastError::ProviderNegative) => {
            let mut draft = settled_draft(record, State::Unknown);
            draft.record.dead_letter = true;
            draft.record.evidence = Some(Evidence::Contradictory);
            draft.stamps.expires_at = Stamp::Never;
            draft.stamps.unknown_since = Stamp::NOW;
            let mut letter = entry(State::Unknown, CONTRADICTION);
            letter.event = JournalEvent::DeadLettered;
            change(draft, vec![entry(State::Unknown, CONTRADICTION), letter])
        }
        _ => change(
            attested(record, response, policy),
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
    change(attested(record, response, policy), vec![entry])
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

/// "Not found" releases the key only if two answers in a row say so, `negative_gap` apart, after the
/// operation can no longer be running, and from a query known to find keys. The time of the provider's look
/// counts.
fn negative_answer(
    record: &Record,
    negative: Negative,
    looked_at: Timestamp,
    now: Timestamp,
    policy: &Policy,
) -> Change {
    // The upstream may still execute after a denial, unless we know how long an execution may go on.
    let Some(reconcile) = &policy.reconcile else {
        return dead_letter(record, NOBODY_ASKS, policy);
    };
    let Some(upstream_max) = reconcile.upstream_max_execution else {
        let why = "negative answer without upstream_max_execution";
        return dead_letter(record, why, policy);
    };
    if negative == Negative::Unproven {
        let why = "negative answer from a query that never found a key";
        return dead_letter(record, why, policy);
    }
    // A record without the time at which its exchange ended is never old enough.
    let since = record.times.unknown_since.unwrap_or(now);
    let settles_at = settles_at(since, upstream_max, policy);
    let settled_down = settles_at <= looked_at;
    let first = record.notes.negative_at.filter(|_| record.negatives > 0);
    let apart = reconcile.negative_gap;
    if settled_down && first.is_some_and(|first| first.plus(apart) <= looked_at) {
        return proven_not_executed(record, policy);
    }
    let mut draft = Draft::after(record);
    let (why, pause) = if settled_down {
        // A time in the future is from a clock that has been set back.
        let first = first.filter(|first| *first <= now).unwrap_or(looked_at);
        draft.record.negatives = 1;
        draft.record.notes.negative_at = Some(first);
        let left = first.plus(apart).since(now);
        // A quarter more than needed, since the engine's jitter is up to a fifth.
        ("not found; to be asked once more", left + left / 4)
    } else {
        // Earlier looks do not count: the first of the two must also come after that moment.
        draft.record.negatives = 0;
        draft.record.notes.negative_at = None;
        not_before_now(record, now, &mut draft);
        // Halve the remaining time with each look.
        ("not found; too early to count", settles_at.since(now) / 2)
    };
    draft.stamps.reconcile_after = next_look(pause, policy);
    let entry = note(
        record,
        State::Unknown,
        JournalEvent::NegativeAnswer,
        Actor::Reconciler,
        Some(why.to_owned()),
    );
    change(draft, vec![entry])
}

/// The time from which an operation whose exchange ended at `since` can no longer take effect, if the
/// upstream continues for at most `upstream_max` after the exchange.
pub(super) fn settles_at(since: Timestamp, upstream_max: Duration, policy: &Policy) -> Timestamp {
    since.plus(policy.lease + upstream_max)
}

fn found_nothing(record: &Record, why: &str, policy: &Policy) -> Change {
    let Some(reconcile) = &policy.reconcile else {
        return dead_letter(record, NOBODY_ASKS, policy);
    };
    let tries = record.inconclusive.saturating_add(1);
    if tries >= reconcile.attempts || record.dead_letter {
        let why = format!("inconclusive {tries} times: {why}");
        return dead_letter(record, &why, policy);
    }
    let mut draft = Draft::after(record);
    draft.record.inconclusive = tries;
    if reconcile.asks {
        forget_negatives(&mut draft);
    }
    draft.stamps.reconcile_after = Stamp::In(look_pause(&draft.record, policy));
    change(draft, vec![inconclusive(record, why)])
}

/// The look counts for nothing. The pause grows with the time that the key has been unknown.
pub(super) fn waited(record: &Record, why: &str, now: Timestamp, policy: &Policy) -> Change {
    let mut draft = Draft::after(record);
    forget_negatives(&mut draft);
    not_before_now(record, now, &mut draft);
    let age = record.times.unknown_since.map(|since| now.since(since));
    draft.stamps.reconcile_after = next_look(age.unwrap_or_default() / 4, policy);
    change(draft, vec![inconclusive(record, why)])
}

/// If `unknown_since` is in the future, from a clock that has been set back since, count from now: otherwise
/// the key might wait for years.
fn not_before_now(record: &Record, now: Timestamp, draft: &mut Draft) {
    if record.times.unknown_since.is_some_and(|since| since > now) {
        draft.stamps.unknown_since = Stamp::NOW;
    }
}

/// Resets the count: two negative answers must come in a row.
fn forget_negatives(draft: &mut Draft) {
    draft.record.negatives = 0;
    draft.record.notes.negative_at = None;
}

/// Dead-letters the key, telling a person once. A provider that can be asked is still asked now and then.
fn dead_letter(record: &Record, why: &str, policy: &Policy) -> Change {
    let mut draft = Draft::after(record);
    draft.record.dead_letter = true;
    draft.record.inconclusive = record.inconclusive.saturating_add(1);
    forget_negatives(&mut draft);
    let asks = policy.reconcile.as_ref().is_some_and(|how| how.asks) && !record.notes.erased;
    draft.stamps.reconcile_after = match asks {
        true => Stamp::In(MAX_LOOK_PAUSE),
        false => Stamp::Never,
    };
    let entry = match record.dead_letter {
        true => inconclusive(record, why),
        false => lettered(record, why),
    };
    change(draft, vec![entry])
}

fn lettered(record: &Record, why: &str) -> JournalEntry {
    note(
        record,
        State::Unknown,
        JournalEvent::DeadLettered,
        Actor::Reconciler,
        Some(why.to_owned()),
    )
}

fn inconclusive(record: &Record, why: &str) -> JournalEntry {
    note(
        record,
        State::Unknown,
        JournalEvent::Inconclusive,
        Actor::Reconciler,
        Some(why.to_owned()),
    )
}

/// The next look, in `pause`, within bounds.
fn next_look(pause: Duration, policy: &Policy) -> Stamp {
    Stamp::In(pause.min(MAX_LOOK_PAUSE).max(first_pause(policy)))
}

pub(super) fn first_pause(policy: &Policy) -> Duration {
    policy
        .reconcile
        .as_ref()
        .map_or(MAX_LOOK_PAUSE, |reconcile| reconcile.after)
}

/// Exponential in the number of looks. The engine adds the jitter, since this crate has no randomness.
pub(super) fn look_pause(record: &Record, policy: &Policy) -> Duration {
    let doubled = 1_u32 << u32::from(record.inconclusive.saturating_add(record.negatives).min(16));
    first_pause(policy)
        .saturating_mul(doubled)
        .min(MAX_LOOK_PAUSE)
}

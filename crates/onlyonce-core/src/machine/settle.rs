//! The end of an attempt, and its signs of life. Both are judged by the attempt id, never by a number that
//! could repeat after a forget.

use std::sync::Arc;

use crate::{
    machine::{
        Step, change,
        evidence::{CONTRADICTION, NOBODY_ASKS, first_pause},
        note, settled_draft,
    },
    policy::Policy,
    record::{
        Actor, AttemptId, Change, Draft, Evidence, JournalEntry, JournalEvent, LastError, Record,
        State, StoredBody, StoredResponse,
    },
    time::{Stamp, Timestamp},
};

/// The reason for dead-lettering an erased key whose outcome is unknown.
pub(super) const NOBODY_TO_ASK: &str = "its key was erased: no provider can be asked about it";

/// How an attempt ended, as its executor saw it.
#[derive(Clone, Debug, PartialEq)]
pub enum Settlement {
    /// The attempt has this answer.
    Complete(Arc<StoredResponse>),
    /// The attempt left no effect.
    Release(LastError),
    /// The outcome is unknown. For a completed key, [`LastError::StreamBroken`] says that its answer, which
    /// was not stored, was cut off.
    Unknown(LastError),
}

/// What became of an attempt's result, once the step's write has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// The result was written; a release that the provider contradicts, as unknown.
    Done,
    /// The result was written, to a key that had wrongly been released.
    ReleaseWasWrong,
    /// The record already had the same outcome, or a better one, and keeps it.
    Kept,
    /// The attempt no longer owns the key; this journal row reports the suspected duplicate execution.
    NotOurs(Box<JournalEntry>),
    /// The record is gone; [`absent`] makes the journal row.
    Gone,
}

/// Applies the end of `attempt` to `record`.
pub(super) fn settle(
    record: &Record,
    attempt: AttemptId,
    settlement: &Settlement,
    policy: &Policy,
) -> Step<Settled> {
    let write = |change| Step::swap(change, Settled::Done);
    let keep = Step::stay(Settled::Kept);
    if record.attempt_id != attempt {
        return not_ours(record);
    }
    match (record.state, settlement) {
        (State::InProgress | State::Unknown, Settlement::Complete(response)) => {
            let late = record.state == State::Unknown;
            let journal = late.then(|| {
                note(
                    record,
                    State::Completed,
                    JournalEvent::LateResult,
                    Actor::Executor,
                    None,
                )
            });
            write(change(
                completed(record, response, policy),
                journal.into_iter().collect(),
            ))
        }
        // The provider contradicts the executor, which reports no effect.
        (State::InProgress, Settlement::Release(error)) if speaks_for_an_effect(record) => {
            write(unknown(record, *error, Actor::Executor, Some(policy)))
        }
        (State::Unknown, Settlement::Release(_)) if speaks_for_an_effect(record) => keep,
        (State::InProgress | State::Unknown, Settlement::Release(error)) => {
            let mut draft = settled_draft(record, State::FailedRetryable);
            draft.record.last_error = Some(*error);
            draft.stamps.expires_at = Stamp::In(policy.ttl);
            let entry = note(
                record,
                State::FailedRetryable,
                JournalEvent::Released,
                Actor::Executor,
                Some(error.as_str().to_owned()),
            );
            write(change(draft, vec![entry]))
        }
        (State::InProgress, Settlement::Unknown(error)) => {
            write(unknown(record, *error, Actor::Executor, Some(policy)))
        }
        (State::FailedRetryable, Settlement::Complete(response)) => {
            let entry = note(
                record,
                State::Completed,
                JournalEvent::ReleaseWasWrong,
                Actor::Executor,
                None,
            );
            Step::swap(
                change(completed(record, response, policy), vec![entry]),
                Settled::ReleaseWasWrong,
            )
        }
        // The key was completed at the head of an answer that was not to be stored. The outcome is known; the
        // journal records that the answer was cut off.
        (State::Completed, Settlement::Unknown(LastError::StreamBroken))
            if is_not_stored(record) =>
        {
            let mut draft = Draft::after(record);
            draft.record.last_error = Some(LastError::StreamBroken);
            let event = JournalEvent::StreamBroken;
            let entry = note(record, State::Completed, event, Actor::Executor, None);
            write(change(draft, vec![entry]))
        }
        (State::Unknown, Settlement::Unknown(_))
        | (State::FailedRetryable, Settlement::Release(_) | Settlement::Unknown(_))
        | (State::Completed, _) => keep,
        (State::Expired, _) => not_ours(record),
    }
}

/// Whether the provider has told us, unasked, that this attempt took effect, even if it also said the
/// contrary.
fn speaks_for_an_effect(record: &Record) -> bool {
    match &record.evidence {
        Some(Evidence::Completed(_) | Evidence::Contradictory) => true,
        Some(Evidence::NotExecuted) | None => false,
    }
}

fn is_not_stored(record: &Record) -> bool {
    let response = record.response.as_ref();
    response.is_some_and(|response| response.body == StoredBody::NotStored)
}

fn not_ours(record: &Record) -> Step<Settled> {
    let suspected = note(
        record,
        record.state,
        JournalEvent::DuplicateExecutionSuspected,
        Actor::Executor,
        None,
    );
    Step::stay(Settled::NotOurs(Box::new(suspected)))
}

/// `attempt` is about to commit its effect with this answer. Only a step that writes permits the commit, so
/// at most one of any number of transactions commits, under any isolation level.
pub(super) fn commit(
    record: &Record,
    attempt: AttemptId,
    response: &Arc<StoredResponse>,
    policy: &Policy,
) -> Step<Settled> {
    if record.attempt_id == attempt && record.state == State::Completed {
        if !record.notes.attested {
            return Step::stay(Settled::Kept);
        }
        // A provider or an operator completed the key, and this transaction may be the effect they attested.
        // The write keeps every other transaction of the attempt from committing.
        let mut draft = Draft::after(record);
        draft.record.notes.attested = false;
        let entry = note(
            record,
            State::Completed,
            JournalEvent::LateResult,
            Actor::Executor,
            None,
        );
        return Step::swap(change(draft, vec![entry]), Settled::Kept);
    }
    let complete = Settlement::Complete(response.clone());
    settle(record, attempt, &complete, policy)
}

/// The completed record.
fn completed(record: &Record, response: &Arc<StoredResponse>, policy: &Policy) -> Draft {
    let mut draft = settled_draft(record, State::Completed);
    draft.record.last_error = None;
    draft.record.response = Some(record.keeps(response, policy));
    draft.stamps.completed_at = Stamp::NOW;
    draft.stamps.expires_at = Stamp::In(policy.ttl);
    draft
}

/// The completed record, attested by somebody other than its attempt.
pub(super) fn attested(record: &Record, response: &Arc<StoredResponse>, policy: &Policy) -> Draft {
    let mut draft = completed(record, response, policy);
    draft.record.notes.attested = true;
    draft
}

/// The unknown record, for both the executor and the sweeper.
pub(super) fn unknown(
    record: &Record,
    error: LastError,
    actor: Actor,
    policy: Option<&Policy>,
) -> Change {
    let mut draft = Draft::after(record);
    draft.record.state = State::Unknown;
    draft.record.last_error = Some(error);
    draft.stamps.lease_until = Stamp::Never;
    draft.stamps.unknown_since = Stamp::NOW;
    let letter = match (&record.evidence, policy) {
        // The provider has spoken about this attempt, but has contradicted itself.
        (Some(Evidence::Contradictory), _) => Some(CONTRADICTION),
        (Some(Evidence::Completed(_)), _) => None,
        // Nobody can ask the provider, or nobody will: dead-letter the key immediately.
        _ if record.notes.erased => Some(NOBODY_TO_ASK),
        (_, Some(policy)) if policy.reconcile.is_none() => Some(NOBODY_ASKS),
        _ => None,
    };
    draft.stamps.reconcile_after = match (&record.evidence, policy) {
        _ if letter.is_some() => Stamp::Never,
        (Some(Evidence::Completed(_)), _) => Stamp::NOW,
        (_, Some(policy)) => Stamp::In(first_pause(policy)),
        // A process that knows the route decides.
        (_, None) => Stamp::NOW,
    };
    let event = match error {
        LastError::LeaseLapsed => JournalEvent::LeaseLapsed,
        _ => JournalEvent::BecameUnknown,
    };
    let detail = Some(error.as_str().to_owned());
    let mut journal = vec![note(record, State::Unknown, event, actor, detail)];
    if let Some(why) = letter {
        draft.record.dead_letter = true;
        journal.push(note(
            record,
            State::Unknown,
            JournalEvent::DeadLettered,
            Actor::Reconciler,
            Some(why.to_owned()),
        ));
    }
    change(draft, journal)
}

/// Whether an attempt still owns its key, once the step's write has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// The lease was renewed.
    Renewed,
    /// The attempt no longer owns the key, or has run for longer than `max_execution`.
    Lost,
}

/// Renews the lease of `attempt`.
pub(super) fn renew(
    record: &Record,
    attempt: AttemptId,
    now: Timestamp,
    policy: &Policy,
) -> Step<Lease> {
    let overdue = record
        .times
        .last_run_at
        .is_none_or(|started| started.plus(policy.max_execution) <= now);
    let owns = record.state == State::InProgress && record.attempt_id == attempt;
    if !owns || overdue {
        return Step::stay(Lease::Lost);
    }
    let mut draft = Draft::after(record);
    draft.stamps.lease_until = Stamp::In(policy.lease);
    Step::swap(change(draft, Vec::new()), Lease::Renewed)
}

/// `attempt` hands its key over to a message, whose delivery will settle it. Nobody renews the lease
/// meanwhile, so the lease is as long as an execution may take.
pub(super) fn hand_over(record: &Record, attempt: AttemptId, policy: &Policy) -> Step<Lease> {
    if record.state != State::InProgress || record.attempt_id != attempt {
        return Step::stay(Lease::Lost);
    }
    let mut draft = Draft::after(record);
    draft.stamps.lease_until = Stamp::In(policy.max_execution);
    Step::swap(change(draft, Vec::new()), Lease::Renewed)
}

/// The journal row about a result whose record was last seen as `record` and is now gone.
pub fn absent(record: &Record) -> JournalEntry {
    JournalEntry {
        to: None,
        ..note(
            record,
            record.state,
            JournalEvent::DuplicateExecutionSuspected,
            Actor::Executor,
            Some("the record is gone".to_owned()),
        )
    }
}

/// Which waiters to wake once a record has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// One waiter, which executes; the others keep waiting.
    One,
    /// All waiters: the key was not released, so none of them executes.
    All,
}

/// Which waiters to wake after `record` has been written.
pub fn wake(record: &Record) -> Wake {
    match record.state {
        State::FailedRetryable => Wake::One,
        State::InProgress | State::Completed | State::Unknown | State::Expired => Wake::All,
    }
}

/// Whether the outcome of the key's last attempt is known.
pub fn is_settled(record: &Record) -> bool {
    match record.state {
        State::InProgress | State::Unknown => false,
        State::Completed | State::FailedRetryable | State::Expired => true,
    }
}

/// Whether an attempt owns the key, according to the record.
pub fn is_running(record: &Record) -> bool {
    record.state == State::InProgress
}

//! The table of the states once more, written down from what was wanted and not from `machine.rs`:
//! which committed write may follow which record.

use onlyonce_core::{
    Record, State, Timestamp,
    record::{Evidence, JournalEntry, JournalEvent, LastError},
};

use crate::edges::Edge;

/// How a new attempt came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    SameGeneration,
    NextGeneration,
    Anew,
}

/// What a committed write was.
#[derive(Debug)]
pub struct Step {
    pub edge: Edge,
    pub begin: Option<Begin>,
}

fn step(edge: Edge) -> Result<Step, String> {
    Ok(Step { edge, begin: None })
}

/// What the store's clock says, and the latest that it has ever said: whoever decided cannot have been
/// told a later time.
#[derive(Clone, Copy)]
pub struct Clocks {
    pub now: Timestamp,
    pub latest: Timestamp,
}

/// The row of the table that leads from `before` to `after`.
pub fn judge(
    before: Option<&Record>,
    after: Option<&Record>,
    journal: &[JournalEntry],
    clocks: Clocks,
) -> Result<Step, String> {
    match (before, after) {
        (None, None) => Err("8: a write of nothing".into()),
        (None, Some(after)) => inserted(after),
        (Some(before), None) => deleted(before, clocks.latest),
        (Some(before), Some(after)) => {
            sound(before, after)?;
            let found = swapped(before, after, journal, clocks)?;
            told(&found, journal)?;
            Ok(found)
        }
    }
}

fn inserted(after: &Record) -> Result<Step, String> {
    let new = after.state == State::InProgress
        && (after.fence.0, after.generation) == (1, 1)
        && after.fingerprint.is_some();
    if !new {
        return Err(format!("8: inserted as {:?}", after.state));
    }
    Ok(Step {
        edge: Edge::Reserved,
        begin: Some(Begin::Anew),
    })
}

fn deleted(before: &Record, latest: Timestamp) -> Result<Step, String> {
    if before.state != State::Expired {
        return Err(format!("12: deleted from {:?}", before.state));
    }
    if before.times.delete_at.is_none_or(|at| at > latest) {
        return Err("12: a tombstone was deleted before its time".into());
    }
    step(Edge::Deleted)
}

/// What holds for every write, whatever it does.
fn sound(before: &Record, after: &Record) -> Result<(), String> {
    if after.revision.0 != before.revision.0 + 1 {
        return Err("7: a write that is not one revision on".into());
    }
    if after.fence < before.fence {
        return Err(format!(
            "7: the fence fell from {:?} to {:?}",
            before.fence, after.fence
        ));
    }
    if (&after.scope, &after.key) != (&before.scope, &before.key) {
        return Err("3: a record changed its scope or key".into());
    }
    let live = matches!(after.state, State::InProgress | State::Unknown);
    if live && after.times.expires_at.is_some() {
        return Err(format!("12: {:?} has an expiry", after.state));
    }
    if (after.state == State::InProgress) != after.times.lease_until.is_some() {
        return Err(format!(
            "4: {:?} with lease {:?}",
            after.state, after.times.lease_until
        ));
    }
    if (after.state == State::Completed) != after.response.is_some() {
        return Err(format!("2: {:?} and its response", after.state));
    }
    Ok(())
}

fn swapped(
    before: &Record,
    after: &Record,
    journal: &[JournalEntry],
    clocks: Clocks,
) -> Result<Step, String> {
    let latest = clocks.latest;
    use State::{
        Completed as C, Expired as E, FailedRetryable as F, InProgress as I, Unknown as U,
    };
    let says = |event: JournalEvent| journal.iter().any(|entry| entry.event == event);
    if after.attempt_id != before.attempt_id {
        return match (after.state, says(JournalEvent::Forgotten)) {
            (I, false) => begun(before, after, latest),
            (E, true) => forgotten(before, after),
            _ => Err(format!(
                "8: {:?} -> {:?} under a new attempt",
                before.state, after.state
            )),
        };
    }
    if after.fence != before.fence || after.generation != before.generation {
        return Err("7: fence or generation moved without a new attempt".into());
    }
    if after.fingerprint != before.fingerprint || after.caller != before.caller {
        return Err("10: the request of a record was replaced".into());
    }
    match (before.state, after.state) {
        (I, I) if says(JournalEvent::EvidenceKept) => step(Edge::EvidenceKept),
        (I, I) if after.evidence == before.evidence => step(Edge::Renewed),
        (I, C) => completed(after),
        (U, C) if says(JournalEvent::LateResult) => step(Edge::LateToC),
        (U, C | F) if says(JournalEvent::Reconciled) => reconciled(before, after.state),
        (U, C) if says(JournalEvent::Resolved) => step(Edge::ResolvedToC),
        (U, F) if says(JournalEvent::Resolved) => step(Edge::ResolvedToF),
        (F, C | F) if says(JournalEvent::ReleaseWasWrong) => step(Edge::ReleaseWasWrong),
        (F, U) if says(JournalEvent::DeadLettered) => step(Edge::DeadLettered),
        (I | U, F) => released(before.state, after.last_error),
        (I, U) => unknown(before, after, clocks),
        (U, U) if says(JournalEvent::DeadLettered) => step(Edge::DeadLettered),
        (U, U) if says(JournalEvent::Inconclusive) => step(Edge::Inconclusive),
        (U, U) if after.negatives != before.negatives => step(Edge::Inconclusive),
        (U, U) => step(Edge::Nudged),
        (C, C) | (F, F) if says(JournalEvent::Extended) && after.response == before.response => {
            step(Edge::Extended)
        }
        (C, C) if says(JournalEvent::StreamBroken) && after.response == before.response => {
            step(Edge::BrokeOff)
        }
        (C | F, E) if before.times.expires_at.is_none_or(|at| at > latest) => {
            Err(format!("12: {:?} expired before its time", before.state))
        }
        (C, E) => step(Edge::ExpiredC),
        (F, E) => step(Edge::ExpiredF),
        (U, I) => Err("9: U went to I".into()),
        (from, to) => Err(format!("8: {from:?} -> {to:?} is not in the table")),
    }
}

fn begun(before: &Record, after: &Record, latest: Timestamp) -> Result<Step, String> {
    if after.fence.0 != before.fence.0 + 1 {
        return Err("7: a new attempt without a new fence".into());
    }
    let past_expiry = before.times.expires_at.is_some_and(|at| at <= latest);
    let gone = match before.state {
        State::InProgress | State::Unknown => false,
        State::Completed | State::FailedRetryable => before
            .times
            .expires_at
            .is_some_and(|at| at.plus(before.tombstone_ttl) <= latest),
        State::Expired => before.times.delete_at.is_some_and(|at| at <= latest),
    };
    let same_content = after.fingerprint == before.fingerprint;
    let same_life = after.times.created_at == before.times.created_at;
    let next = after.generation == before.generation + 1;
    let begin = |edge, begin| {
        Ok(Step {
            edge,
            begin: Some(begin),
        })
    };
    match before.state {
        State::InProgress => Err("1: a running key was begun again".into()),
        State::Unknown => Err("9: U went to I".into()),
        _ if gone && after.generation == 1 && !same_life => begin(Edge::Anew, Begin::Anew),
        State::Expired if next && before.fingerprint.is_none() => {
            begin(Edge::AfterForget, Begin::NextGeneration)
        }
        _ if !same_content => Err("10: a mismatching request began an attempt".into()),
        // A released key may go over to another caller, and no other key may.
        State::FailedRetryable if after.generation == before.generation && same_life => {
            begin(Edge::Again, Begin::SameGeneration)
        }
        _ if after.caller != before.caller => Err("10: another caller began an attempt".into()),
        State::Expired if next => begin(Edge::AfterExpiryFromE, Begin::NextGeneration),
        State::Completed if next && past_expiry => {
            begin(Edge::AfterExpiryFromC, Begin::NextGeneration)
        }
        State::FailedRetryable if next && past_expiry => {
            begin(Edge::AfterExpiryFromF, Begin::NextGeneration)
        }
        state => Err(format!(
            "1: {state:?} of generation {} was begun as generation {}",
            before.generation, after.generation
        )),
    }
}

fn forgotten(before: &Record, after: &Record) -> Result<Step, String> {
    if after.fingerprint.is_some() || after.response.is_some() {
        return Err("8: forgotten, and yet something is remembered".into());
    }
    match before.state {
        State::Completed => step(Edge::ForgotC),
        State::FailedRetryable => step(Edge::ForgotF),
        State::Expired => step(Edge::ForgotE),
        State::InProgress | State::Unknown => Err(format!("12: {:?} was forgotten", before.state)),
    }
}

fn completed(after: &Record) -> Result<Step, String> {
    let status = after
        .response
        .as_ref()
        .map_or(0, |response| response.status.as_u16());
    match status {
        200..=299 => step(Edge::Completed2xx),
        300..=399 => step(Edge::Completed3xx),
        400..=499 => step(Edge::Completed4xx),
        500..=599 => step(Edge::Completed5xx),
        other => Err(format!("8: completed with status {other}")),
    }
}

fn reconciled(before: &Record, to: State) -> Result<Step, String> {
    let edge = match (&before.evidence, to) {
        (Some(Evidence::Completed(_)), State::Completed)
        | (Some(Evidence::NotExecuted), State::FailedRetryable) => Edge::EvidenceUsed,
        (_, State::Completed) => Edge::ReconciledToC,
        _ => Edge::ReconciledToF,
    };
    step(edge)
}

fn released(from: State, error: Option<LastError>) -> Result<Step, String> {
    let unknown = from == State::Unknown;
    match error {
        Some(LastError::NotSent) if unknown => step(Edge::NotSentFromU),
        Some(LastError::NotSent) => step(Edge::NotSentFromI),
        Some(LastError::GuardFailed) if unknown => step(Edge::GuardFromU),
        Some(LastError::GuardFailed) => step(Edge::GuardFromI),
        Some(
            LastError::ReleasedStatus | LastError::UpstreamError | LastError::DeclaredNotExecuted,
        ) if unknown => step(Edge::LateToF),
        Some(LastError::ReleasedStatus) => step(Edge::ReleasedByStatus),
        Some(LastError::UpstreamError) => step(Edge::ReleasedBy5xx),
        Some(LastError::DeclaredNotExecuted) => step(Edge::ReleasedByWord),
        other => Err(format!("1: released for {other:?}")),
    }
}

/// No lease is as long as this, in milliseconds: one that is was written by a clock that has been set
/// back.
const NO_LEASE: i64 = 8_000;

fn unknown(before: &Record, after: &Record, clocks: Clocks) -> Result<Step, String> {
    match after.last_error {
        Some(LastError::LeaseLapsed) => {
            let live =
                |until: Timestamp| until > clocks.latest && until.0 <= clocks.now.0 + NO_LEASE;
            if before.times.lease_until.is_some_and(live) {
                return Err("8: a live lease was swept".into());
            }
            step(Edge::Swept)
        }
        Some(LastError::UpstreamError) => step(Edge::UnknownBy5xx),
        Some(LastError::Timeout) => step(Edge::UnknownByTimeout),
        Some(LastError::ConnectionLost) => step(Edge::UnknownByReset),
        Some(LastError::Truncated) => step(Edge::UnknownByTruncation),
        Some(LastError::Panicked) => step(Edge::UnknownByPanic),
        Some(LastError::ConflictOnRetry) => step(Edge::UnknownByConflict),
        Some(LastError::DeclaredUnknown) => step(Edge::UnknownByWord),
        // It would have given the key back, and the provider says otherwise.
        Some(
            LastError::NotSent
            | LastError::GuardFailed
            | LastError::ReleasedStatus
            | LastError::DeclaredNotExecuted,
        ) if is_contradicted(before) => step(Edge::ReleaseContradicted),
        other => Err(format!("8: unknown for {other:?}")),
    }
}

/// Whether the provider has said of its own accord that an attempt took effect.
pub fn is_contradicted(record: &Record) -> bool {
    matches!(
        record.evidence,
        Some(Evidence::Completed(_) | Evidence::Contradictory)
    )
}

/// Everything unusual leaves a journal row in the same write.
fn told(found: &Step, journal: &[JournalEntry]) -> Result<(), String> {
    let ordinary = matches!(
        found.edge,
        Edge::Reserved
            | Edge::Renewed
            | Edge::Completed2xx
            | Edge::Completed3xx
            | Edge::Completed4xx
            | Edge::Completed5xx
            | Edge::Nudged
            | Edge::Inconclusive
            | Edge::ExpiredC
            | Edge::ExpiredF
            | Edge::Anew
    );
    if !ordinary && journal.is_empty() {
        return Err(format!("8: {:?} left no journal row", found.edge));
    }
    Ok(())
}

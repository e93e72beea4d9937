//! Admission: what a request may do, given the stored record of its key.

use std::{sync::Arc, time::Duration};

use crate::{
    fingerprint::{Fingerprint, RecipeId},
    key::Key,
    machine::{Step, Write, change, evidence::look_pause, note, sweep},
    policy::{AfterExpiry, OnInFlight, Policy},
    record::{
        Actor, AttemptId, Change, Draft, Fence, JournalEntry, JournalEvent, LastError, Notes,
        Record, Revision, State, StoredBody, StoredResponse, Times,
    },
    scope::Scope,
    secret::{CallerMark, RecordId},
    time::{Stamp, Timestamp},
};

/// A client's retry brings the reconciler's next look forward to this long from now, if it is further away.
const NUDGE_FLOOR: Duration = Duration::from_secs(1);

/// A request, as the machine sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The keyed hash of scope and key.
    pub id: RecordId,
    /// The namespace of the key.
    pub scope: Scope,
    /// The key.
    pub key: Key,
    /// The request's fingerprint, under the recipe of the record it is compared with (for a new key, under
    /// [`recipe`](Self::recipe)).
    pub fingerprint: Fingerprint,
    /// The recipe for a new record.
    pub recipe: RecipeId,
    /// The caller's mark in a shared scope, made in the way that [`notes`](Self::notes) say.
    pub caller: Option<CallerMark>,
    /// The same caller's mark made the other way, for comparison with a record marked that way.
    pub other_mark: Option<CallerMark>,
    /// The attempt that begins if this request executes: fresh random bits.
    pub attempt_id: AttemptId,
    /// The route.
    pub route: Arc<str>,
    /// The method.
    pub method: Arc<str>,
    /// Path and query as forwarded.
    pub path: Arc<str>,
    /// The key's spelling and the kind of caller mark, for a new record.
    pub notes: Notes,
}

/// What a request may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Execute, once the step's write has succeeded.
    Execute(Began),
    /// Execute: this very attempt has reserved the key, in a write whose acknowledgement was lost.
    Reserved,
    /// This attempt reserved the key, but the key is no longer in progress: nothing may be sent.
    TooLate,
    /// The owning attempt's lease has lapsed. Apply the event again once the step's write has succeeded.
    Lapse,
    /// Another attempt is running. The policy says whether to wait or to refuse.
    InFlight(OnInFlight),
    /// The answer of the completed operation.
    Replay(Arc<StoredResponse>),
    /// Do not execute.
    Refuse(Refusal),
}

/// Why an attempt began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Began {
    /// No record of an earlier use exists.
    New,
    /// The key had been released.
    Again,
    /// The key had expired.
    AfterExpiry,
}

impl Began {
    /// Whether a new life of the key begins, the first or a later one. A request that may bring no new key
    /// must not begin one. A released key continues its current life.
    pub fn begins_a_life(self) -> bool {
        match self {
            Self::New | Self::AfterExpiry => true,
            Self::Again => false,
        }
    }
}

/// Why a request is neither executed nor replayed.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The key was used for another request; its current state.
    Reused(State),
    /// The key was used for the same request by another caller; its current state.
    CallerDiffers(State),
    /// The outcome of the last attempt is unknown. If the step has a write, it only brings the reconciler's
    /// next look forward: the refusal stands even if that write fails.
    OutcomeUnknown,
    /// The operation was executed, but its answer was not stored.
    ResponseNotStored {
        /// The head of the answer.
        response: Arc<StoredResponse>,
        /// Whether the answer is known to have been cut off.
        broke_off: bool,
    },
    /// The key has expired and may not be used again.
    Expired,
}

/// The record of a key that nobody has used before.
pub fn first(request: &Request, policy: &Policy) -> Draft {
    Draft {
        record: Record {
            id: request.id,
            scope: request.scope.clone(),
            key: request.key.clone(),
            route: request.route.clone(),
            method: request.method.clone(),
            path: request.path.clone(),
            revision: Revision::first_of(request.attempt_id),
            state: State::InProgress,
            attempt_id: request.attempt_id,
            fence: Fence::FIRST,
            generation: 1,
            fingerprint: Some(request.fingerprint),
            recipe: request.recipe,
            caller: request.caller,
            tombstone_ttl: policy.tombstone_ttl,
            last_error: None,
            response: None,
            evidence: None,
            negatives: 0,
            inconclusive: 0,
            dead_letter: false,
            notes: Notes {
                // No provider or operator has attested this new attempt.
                attested: false,
                ..request.notes.clone()
            },
            times: Times::default(),
        },
        stamps: Times {
            created_at: Stamp::NOW,
            last_run_at: Stamp::NOW,
            lease_until: Stamp::In(policy.lease),
            ..Times::default()
        },
    }
}

/// Decides what `request` may do, given `record`.
pub(super) fn admit(
    record: &Record,
    request: &Request,
    now: Timestamp,
    policy: &Policy,
) -> Step<Admission> {
    if record.attempt_id == request.attempt_id {
        return Step::stay(match record.state {
            State::InProgress => Admission::Reserved,
            // Another actor may have settled the key since.
            State::Completed | State::FailedRetryable | State::Unknown | State::Expired => {
                Admission::TooLate
            }
        });
    }
    if is_forgotten_by_time(record, now) {
        return begin(record, request, policy, Begin::Anew);
    }
    // Other content, or another caller in a shared scope: never a replay, in any state.
    if !same_content(record, request) {
        return refuse(Refusal::Reused(state_now(record, now)));
    }
    if !same_caller(record, request) && !may_be_taken_over(record, now) {
        return refuse(Refusal::CallerDiffers(state_now(record, now)));
    }
    match record.state {
        State::InProgress => match sweep(record, now, Some(policy)).write {
            Write::Stay => Step::stay(Admission::InFlight(policy.on_in_flight)),
            lapse => Step {
                write: lapse,
                effect: Admission::Lapse,
            },
        },
        State::Completed if record.is_past_expiry(now) => after_expiry(record, request, policy),
        State::Completed => match &record.response {
            Some(response) if response.body == StoredBody::NotStored => {
                refuse(Refusal::ResponseNotStored {
                    response: response.clone(),
                    broke_off: record.last_error == Some(LastError::StreamBroken),
                })
            }
            Some(response) => Step::stay(Admission::Replay(response.clone())),
            // A completed record always has a response. If it is missing, we do not guess.
            None => refuse(Refusal::OutcomeUnknown),
        },
        State::FailedRetryable if record.is_past_expiry(now) => {
            after_expiry(record, request, policy)
        }
        State::FailedRetryable => begin(record, request, policy, Begin::SameGeneration),
        State::Unknown => Step {
            write: nudge(record, now, policy).map_or(Write::Stay, Write::Swap),
            effect: Admission::Refuse(Refusal::OutcomeUnknown),
        },
        State::Expired => after_expiry(record, request, policy),
    }
}

fn refuse(refusal: Refusal) -> Step<Admission> {
    Step::stay(Admission::Refuse(refusal))
}

/// The state at `now`, whether or not the sweeper or the reaper has run.
fn state_now(record: &Record, now: Timestamp) -> State {
    match record.state {
        State::InProgress if record.lease_lapsed(now) => State::Unknown,
        State::Completed | State::FailedRetryable if record.is_past_expiry(now) => State::Expired,
        state => state,
    }
}

/// A tombstone that is due for deletion counts as deleted, so that what a client sees does not depend on when
/// the reaper runs.
fn is_forgotten_by_time(record: &Record, now: Timestamp) -> bool {
    match record.state {
        State::InProgress | State::Unknown => false,
        State::Completed | State::FailedRetryable => record
            .times
            .expires_at
            .is_some_and(|at| at.plus(record.tombstone_ttl) <= now),
        State::Expired => record.times.delete_at.is_some_and(|at| at <= now),
    }
}

fn same_content(record: &Record, request: &Request) -> bool {
    match record.fingerprint {
        Some(fingerprint) => record.is_redirected() || fingerprint == request.fingerprint,
        // A forgotten record has nothing to compare with: any request may begin again.
        None => record.state == State::Expired,
    }
}

/// Whether `request` comes from the caller of `record`. The request's mark is made in the record's way, so
/// that neither a configuration change nor an additional credential makes it another caller.
fn same_caller(record: &Record, request: &Request) -> bool {
    if record.fingerprint.is_none() {
        return true;
    }
    match record.notes.marked_by == request.notes.marked_by {
        true => record.caller == request.caller,
        // A request without a mark of that kind matches no caller.
        false => request.other_mark.is_some() && record.caller == request.other_mark,
    }
}

/// Whether another caller may continue the same request. A released key has no effect and no answer to
/// expose, and a client that had to renew its token must not be refused for ever. A redirected key may be
/// taken over even after expiry: many clients follow a redirect to another host without their credential.
fn may_be_taken_over(record: &Record, now: Timestamp) -> bool {
    record.state == State::FailedRetryable
        && (!record.is_past_expiry(now) || record.is_redirected())
}

fn after_expiry(record: &Record, request: &Request, policy: &Policy) -> Step<Admission> {
    // An operator forgot this key so that it can be used again.
    let given_back = record.fingerprint.is_none();
    match policy.after_expiry {
        AfterExpiry::Reject if !given_back => refuse(Refusal::Expired),
        AfterExpiry::Reject | AfterExpiry::New => {
            begin(record, request, policy, Begin::NextGeneration)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    SameGeneration,
    NextGeneration,
    Anew,
}

fn begin(record: &Record, request: &Request, policy: &Policy, how: Begin) -> Step<Admission> {
    let mut draft = first(request, policy);
    let next = &mut draft.record;
    next.revision = record.revision.next();
    next.fence = record.fence.next();
    // The same caller keeps the record's mark; a caller who takes over gets a new one.
    if how != Begin::Anew && record.fingerprint.is_some() && same_caller(record, request) {
        next.caller = record.caller;
        next.notes.marked_by = record.notes.marked_by;
    }
    next.notes.never_reached = match how {
        // As for a row that is gone: whether the reaper has come by makes no difference.
        Begin::Anew => true,
        Begin::SameGeneration | Begin::NextGeneration => record.reached_nobody(),
    };
    let (began, event) = match how {
        Begin::Anew => (Began::New, None),
        Begin::SameGeneration => {
            next.generation = record.generation;
            // The fingerprint and recipe of the first request stay: the contents are equal, and later retries
            // are compared under that recipe. A redirected request has another fingerprint.
            if !record.is_redirected() {
                next.fingerprint = record.fingerprint;
                next.recipe = record.recipe;
            }
            // The first spelling stays too, since the upstream may know the key by it. A row without a
            // spelling stays without one.
            next.notes.spelling.clone_from(&record.notes.spelling);
            draft.stamps.created_at = record.times.created_at.into();
            (Began::Again, Some(JournalEvent::ExecutedAgain))
        }
        Begin::NextGeneration => {
            next.generation = record.generation.saturating_add(1);
            if record.fingerprint.is_some() {
                next.notes.spelling.clone_from(&record.notes.spelling);
            }
            if record.fingerprint.is_some() && !record.is_redirected() {
                next.fingerprint = record.fingerprint;
                next.recipe = record.recipe;
            }
            (Began::AfterExpiry, Some(JournalEvent::ExecutedAfterExpiry))
        }
    };
    if record.notes.erased {
        // An erased row stays erased: the new request's key, spelling and path are the same person's.
        next.erase_names();
    }
    let fence = draft.record.fence;
    let journal = event
        .map(|event| note(record, State::InProgress, event, Actor::Executor, None))
        .map(|entry| JournalEntry {
            attempt: fence.0,
            ..entry
        });
    Step::swap(
        change(draft, journal.into_iter().collect()),
        Admission::Execute(began),
    )
}

fn nudge(record: &Record, now: Timestamp, policy: &Policy) -> Option<Change> {
    policy.reconcile.as_ref()?;
    let due = record.times.reconcile_after?;
    let left = due.since(now);
    if record.dead_letter || left <= NUDGE_FLOOR {
        return None;
    }
    // A quarter of the pause always remains, so that a client's retries cannot use up the looks.
    let pause = look_pause(record, policy);
    if left > pause - pause / 4 {
        return None;
    }
    let mut draft = Draft::after(record);
    draft.stamps.reconcile_after = Stamp::In(NUDGE_FLOOR);
    Some(change(draft, Vec::new()))
}

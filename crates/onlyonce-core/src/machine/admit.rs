//! A request meets what is remembered of its key.

use std::{sync::Arc, time::Duration};

use crate::{
    fingerprint::{Fingerprint, RecipeId},
    key::Key,
    machine::{change, evidence::look_pause, note, sweep},
    policy::{AfterExpiry, OnInFlight, Policy},
    record::{
        Actor, AttemptId, Change, Draft, Fence, JournalEvent, Record, Revision, State, StoredBody,
        StoredResponse, Times,
    },
    scope::Scope,
    secret::{CallerMark, RecordId},
    time::{Stamp, Timestamp},
};

/// How far in the reconciler's future a look must lie before a client's retry moves it forward.
const NUDGE_FLOOR: Duration = Duration::from_secs(1);

/// What a request brings along.
#[derive(Clone, Debug)]
pub struct Request {
    /// The hash of scope and key.
    pub id: RecordId,
    /// Whose key it is.
    pub scope: Scope,
    /// The key.
    pub key: Key,
    /// What the request is, under the recipe of the record it is compared with (or, for a new key,
    /// under [`recipe`](Self::recipe)).
    pub fingerprint: Fingerprint,
    /// The recipe for a new record.
    pub recipe: RecipeId,
    /// Who asks, where callers share the scope.
    pub caller: Option<CallerMark>,
    /// The attempt that begins if this request executes: fresh random bits.
    pub attempt_id: AttemptId,
    /// The route.
    pub route: Arc<str>,
    /// The method.
    pub method: Arc<str>,
    /// Path and query as forwarded.
    pub path: Arc<str>,
}

/// What a request may do.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Swap this in; if the swap succeeds, execute. If it does not, ask again with what is there.
    Execute(Change),
    /// Swap this in, since the lease has lapsed; then ask again.
    Lapse(Change),
    /// Another attempt is running: wait for it, or say so.
    InFlight(OnInFlight),
    /// The answer of the completed operation.
    Replay(Arc<StoredResponse>),
    /// No.
    Refuse(Refusal),
}

/// Why a request is neither executed nor replayed.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The key was used for another request, or by another caller.
    Reused,
    /// Nobody knows how the last attempt ended. `nudge` makes the reconciler look sooner; it is
    /// worth writing but not worth failing for.
    OutcomeUnknown {
        /// The write that moves the next look forward.
        nudge: Option<Change>,
    },
    /// It was executed, but its answer was too large to keep.
    ResponseNotStored(Arc<StoredResponse>),
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

/// What `request` may do, given what is remembered.
pub fn admit(record: &Record, request: &Request, now: Timestamp, policy: &Policy) -> Admission {
    if is_forgotten_by_time(record, now) {
        return Admission::Execute(begin(record, request, policy, Begin::Anew));
    }
    if !same_request(record, request) {
        // Other content, or another caller in a shared scope: never a replay, in any state.
        return Admission::Refuse(Refusal::Reused);
    }
    match record.state {
        State::InProgress => match sweep(record, now, Some(policy)) {
            crate::machine::Swept::Lapsed(lapse) => Admission::Lapse(lapse),
            crate::machine::Swept::Alive => Admission::InFlight(policy.on_in_flight),
        },
        State::Completed if record.is_past_expiry(now) => after_expiry(record, request, policy),
        State::Completed => match &record.response {
            Some(response) if response.body == StoredBody::NotStored => {
                Admission::Refuse(Refusal::ResponseNotStored(response.clone()))
            }
            Some(response) => Admission::Replay(response.clone()),
            // A completed record always has a response; one without is not guessed at.
            None => Admission::Refuse(Refusal::OutcomeUnknown { nudge: None }),
        },
        State::FailedRetryable if record.is_past_expiry(now) => {
            after_expiry(record, request, policy)
        }
        State::FailedRetryable => {
            Admission::Execute(begin(record, request, policy, Begin::SameGeneration))
        }
        State::Unknown => Admission::Refuse(Refusal::OutcomeUnknown {
            nudge: nudge(record, now, policy),
        }),
        State::Expired => after_expiry(record, request, policy),
    }
}

/// A tombstone that is due for deletion counts as deleted, reaped or not, so that what a client
/// sees does not depend on when the reaper came by.
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

fn same_request(record: &Record, request: &Request) -> bool {
    let same_content = match record.fingerprint {
        Some(fingerprint) => fingerprint == request.fingerprint,
        // Forgotten: nothing is left to compare with, so any request may begin again.
        None => return record.state == State::Expired,
    };
    same_content && record.caller == request.caller
}

fn after_expiry(record: &Record, request: &Request, policy: &Policy) -> Admission {
    // A forgotten key was given back by an operator, who meant it to be used again.
    let given_back = record.fingerprint.is_none();
    match policy.after_expiry {
        AfterExpiry::Reject if !given_back => Admission::Refuse(Refusal::Expired),
        AfterExpiry::Reject | AfterExpiry::New => {
            Admission::Execute(begin(record, request, policy, Begin::NextGeneration))
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    SameGeneration,
    NextGeneration,
    Anew,
}

fn begin(record: &Record, request: &Request, policy: &Policy, how: Begin) -> Change {
    let mut draft = first(request, policy);
    let next = &mut draft.record;
    next.revision = record.revision.next();
    next.fence = record.fence.next();
    let event = match how {
        Begin::Anew => None,
        Begin::SameGeneration => {
            next.generation = record.generation;
            // The fingerprint and recipe of the first request stay: they are equal in content, and
            // the recipe is the one that later retries are compared under.
            next.fingerprint = record.fingerprint;
            next.recipe = record.recipe;
            draft.stamps.created_at = record.times.created_at.into();
            Some(JournalEvent::ExecutedAgain)
        }
        Begin::NextGeneration => {
            next.generation = record.generation.saturating_add(1);
            if record.fingerprint.is_some() {
                next.fingerprint = record.fingerprint;
                next.recipe = record.recipe;
            }
            Some(JournalEvent::ExecutedAfterExpiry)
        }
    };
    let fence = draft.record.fence;
    let journal = event
        .map(|event| note(record, State::InProgress, event, Actor::Executor, None))
        .map(|entry| crate::record::JournalEntry {
            attempt: fence.0,
            ..entry
        });
    change(draft, journal.into_iter().collect())
}

fn nudge(record: &Record, now: Timestamp, policy: &Policy) -> Option<Change> {
    policy.reconcile.as_ref()?;
    let due = record.times.reconcile_after?;
    let left = due.since(now);
    if record.dead_letter || left <= NUDGE_FLOOR {
        return None;
    }
    // A quarter of the pause stands, however often a client asks: it must not use up the looks.
    let pause = look_pause(record, policy);
    if left > pause - pause / 4 {
        return None;
    }
    let mut draft = Draft::after(record);
    draft.stamps.reconcile_after = Stamp::In(NUDGE_FLOOR);
    Some(change(draft, Vec::new()))
}

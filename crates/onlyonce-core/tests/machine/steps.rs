//! The machine's events as functions on one record, so that a test reads as one line. Each is the public
//! [`apply`] with its event and nothing else.

use std::time::Duration;

use onlyonce_core::{
    machine::{
        Admission, ClockWasSetBack, End, Event, Extend, Forget, Found, Granted, Heartbeat, Lease,
        Look, Reap, Request, Resolution, Resolve, Seen, Settled, Settlement, Source, Step, Sweep,
        Write, apply,
    },
    policy::Policy,
    record::{AttemptId, Change, Evidence, Record},
    time::Timestamp,
};
use onlyonce_testkit::scenarios::world::START;

/// A step that writes nothing.
pub(crate) fn stay<E>(effect: E) -> Step<E> {
    Step {
        write: Write::Stay,
        effect,
    }
}

/// An event that no policy has a say in.
fn whatever_the_policy<E: Event>(record: &Record, event: &E, now: Timestamp) -> Step<E::Effect> {
    apply(Some(record), event, now, &Policy::default())
}

pub(crate) fn admit(
    record: &Record,
    request: &Request,
    now: Timestamp,
    policy: &Policy,
) -> Step<Admission> {
    apply(Some(record), request, now, policy)
}

/// The end of an attempt is judged without looking at the time.
pub(crate) fn settle(
    record: &Record,
    attempt: AttemptId,
    settlement: &Settlement,
    policy: &Policy,
) -> Step<Settled> {
    let end = End {
        attempt,
        settlement,
    };
    apply(Some(record), &end, START, policy)
}

pub(crate) fn renew(
    record: &Record,
    attempt: AttemptId,
    now: Timestamp,
    policy: &Policy,
) -> Step<Lease> {
    apply(Some(record), &Heartbeat(attempt), now, policy)
}

/// Without a policy, by a sweeper that does not know the key's route.
pub(crate) fn sweep(record: &Record, now: Timestamp, policy: Option<&Policy>) -> Step {
    let sweep = Sweep {
        knows_route: policy.is_some(),
    };
    let unused = Policy::default();
    apply(Some(record), &sweep, now, policy.unwrap_or(&unused))
}

pub(crate) fn stranded(record: &Record, now: Timestamp, policy: &Policy) -> Option<Change> {
    apply(Some(record), &ClockWasSetBack, now, policy).swapped()
}

pub(crate) fn expire(record: &Record, now: Timestamp) -> Step {
    whatever_the_policy(record, &Reap, now)
}

fn found(record: &Record, found: Found<'_>, now: Timestamp, policy: &Policy) -> Step {
    let look = Look {
        found,
        asked_about: None,
    };
    apply(Some(record), &look, now, policy)
}

pub(crate) fn reconcile(
    record: &Record,
    evidence: &Evidence,
    source: Source,
    now: Timestamp,
    policy: &Policy,
) -> Step {
    found(record, Found::Evidence(evidence, source), now, policy)
}

/// A look that brought nothing is judged without looking at the time.
pub(crate) fn look(record: &Record, why: &str, policy: &Policy) -> Step {
    found(record, Found::Nothing(why), START, policy)
}

pub(crate) fn no_look(record: &Record, why: &str, now: Timestamp, policy: &Policy) -> Step {
    found(record, Found::NoLook(why), now, policy)
}

/// Several operations under one key are judged without looking at the time.
pub(crate) fn ambiguous(record: &Record, why: &str, policy: &Policy) -> Step {
    found(record, Found::Several(why), START, policy)
}

pub(crate) fn resolve(
    record: &Record,
    seen: Seen,
    resolution: &Resolution,
    reason: &str,
    now: Timestamp,
    policy: &Policy,
) -> Step<Granted> {
    let resolve = Resolve {
        seen,
        resolution,
        reason,
    };
    apply(Some(record), &resolve, now, policy)
}

pub(crate) fn forget(
    record: &Record,
    force: bool,
    fresh: AttemptId,
    reason: Option<String>,
) -> Step<Granted> {
    let forget = Forget {
        force,
        fresh,
        reason,
    };
    whatever_the_policy(record, &forget, START)
}

pub(crate) fn extend(record: &Record, ttl: Duration, now: Timestamp) -> Step<Granted> {
    whatever_the_policy(record, &Extend(ttl), now)
}

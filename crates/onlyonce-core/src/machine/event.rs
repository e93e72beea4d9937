//! Every event that can happen to a key, each with the type of its effect.
//!
//! The files beside this one hold the rules. This file decides only what an event does to an absent key.

use std::{sync::Arc, time::Duration};

use super::{
    Admission, Began, Denied, Granted, Lease, Request, Resolution, Seen, Settled, Settlement,
    Source, Step, Write, admit, evidence, expire, first, operate, settle,
};
use crate::{
    policy::Policy,
    record::{AttemptId, Change, Evidence, Record, Revision, StoredResponse},
    time::Timestamp,
};

/// Something that happens to a key.
pub trait Event {
    /// The event's meaning to its caller.
    type Effect;

    /// See [`apply`].
    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy)
    -> Step<Self::Effect>;
}

/// The one function of the machine: what `event` does at `now`, under `policy`, to a key whose stored record
/// is `record`.
pub fn apply<E: Event>(
    record: Option<&Record>,
    event: &E,
    now: Timestamp,
    policy: &Policy,
) -> Step<E::Effect> {
    event.apply(record, now, policy)
}

impl<E> Step<E> {
    /// A step that writes nothing.
    pub(super) const fn stay(effect: E) -> Self {
        let write = Write::Stay;
        Self { write, effect }
    }

    pub(super) const fn swap(change: Change, effect: E) -> Self {
        let write = Write::Swap(change);
        Self { write, effect }
    }

    /// The change that this step swaps in, if any.
    pub fn swapped(self) -> Option<Change> {
        match self.write {
            Write::Swap(change) => Some(change),
            Write::Stay | Write::Insert(_) | Write::Delete => None,
        }
    }
}

impl From<Change> for Step {
    fn from(change: Change) -> Self {
        Self::swap(change, ())
    }
}

/// A request arrives.
impl Event for Request {
    type Effect = Admission;

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step<Admission> {
        match record {
            Some(record) => admit::admit(record, self, now, policy),
            None => Step {
                write: Write::Insert(Box::new(first(self, policy))),
                effect: Admission::Execute(Began::New),
            },
        }
    }
}

/// An attempt ended, as its executor saw it.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The attempt.
    pub attempt: AttemptId,
    /// How it ended.
    pub settlement: &'a Settlement,
}

impl Event for End<'_> {
    type Effect = Settled;

    fn apply(&self, record: Option<&Record>, _: Timestamp, policy: &Policy) -> Step<Settled> {
        match record {
            Some(record) => settle::settle(record, self.attempt, self.settlement, policy),
            None => Step::stay(Settled::Gone),
        }
    }
}

/// An attempt is about to commit its effect in the same transaction as this step. The attempt may commit if
/// the step writes, and must roll back otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// The attempt.
    pub attempt: AttemptId,
    /// The attempt's answer.
    pub response: &'a Arc<StoredResponse>,
}

impl Event for Commit<'_> {
    type Effect = Settled;

    fn apply(&self, record: Option<&Record>, _: Timestamp, policy: &Policy) -> Step<Settled> {
        match record {
            Some(record) => settle::commit(record, self.attempt, self.response, policy),
            None => Step::stay(Settled::Gone),
        }
    }
}

/// An attempt shows a sign of life.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat(pub AttemptId);

impl Event for Heartbeat {
    type Effect = Lease;

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step<Lease> {
        match record {
            Some(record) => settle::renew(record, self.0, now, policy),
            None => Step::stay(Lease::Lost),
        }
    }
}

/// An attempt hands its key over to an outbox message, whose delivery will settle the key.
#[derive(Clone, Copy, Debug)]
pub struct HandOver(pub AttemptId);

impl Event for HandOver {
    type Effect = Lease;

    fn apply(&self, record: Option<&Record>, _: Timestamp, policy: &Policy) -> Step<Lease> {
        match record {
            Some(record) => settle::hand_over(record, self.0, policy),
            None => Step::stay(Lease::Lost),
        }
    }
}

/// The sweeper examines a key.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Whether the policy is that of the key's route. A sweeper that does not know the route's policy leaves
    /// the next look to a process that does.
    pub knows_route: bool,
}

impl Event for Sweep {
    type Effect = ();

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step {
        let policy = self.knows_route.then_some(policy);
        record.map_or(Step::stay(()), |record| expire::sweep(record, now, policy))
    }
}

/// The clock was set back, and a key may still carry times far in the future from before that.
///
/// Apply only to a key whose owner has had time to renew its lease by the corrected clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockWasSetBack;

impl Event for ClockWasSetBack {
    type Effect = ();

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step {
        let mended = record.and_then(|record| expire::stranded(record, now, policy));
        mended.map_or(Step::stay(()), Step::from)
    }
}

/// The reaper examines a key.
#[derive(Clone, Copy, Debug)]
pub struct Reap;

impl Event for Reap {
    type Effect = ();

    fn apply(&self, record: Option<&Record>, now: Timestamp, _: &Policy) -> Step {
        record.map_or(Step::stay(()), |record| expire::expire(record, now))
    }
}

/// The reconciler, or a webhook, reports on the outcome of a key.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// The finding.
    pub found: Found<'a>,
    /// The attempt and revision that were asked about, if there was a question. Evidence of an effect holds
    /// for its attempt whatever has been written since. Any other answer holds for that revision only, so
    /// that of two concurrent questions one counts.
    pub asked_about: Option<(AttemptId, Revision)>,
}

/// The finding of a look at a key.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// The provider's statement.
    Evidence(&'a Evidence, Source),
    /// The look was inconclusive, for this reason.
    Nothing(&'a str),
    /// Something that does not count as a look, and why: the operation is pending, or a clock is known to
    /// have jumped.
    NoLook(&'a str),
    /// Several operations under one key; a person has to tell them apart.
    Several(&'a str),
}

impl Look<'_> {
    fn still_counts(&self, record: &Record) -> bool {
        let speaks_for_an_effect = matches!(self.found, Found::Evidence(Evidence::Completed(_), _));
        self.asked_about.is_none_or(|(attempt, revision)| {
            record.revision == revision || speaks_for_an_effect && record.attempt_id == attempt
        })
    }
}

impl Event for Look<'_> {
    type Effect = ();

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step {
        let Some(record) = record.filter(|record| self.still_counts(record)) else {
            return Step::stay(());
        };
        match self.found {
            Found::Evidence(word, source) => evidence::reconcile(record, word, source, now, policy),
            Found::Nothing(why) => evidence::look(record, why, policy),
            Found::NoLook(why) => evidence::no_look(record, why, now, policy),
            Found::Several(why) => evidence::ambiguous(record, why, policy),
        }
    }
}

/// An operator settles an unknown key.
#[derive(Clone, Copy, Debug)]
pub struct Resolve<'a> {
    /// The version of the record that the operator saw.
    pub seen: Seen,
    /// The decision.
    pub resolution: &'a Resolution,
    /// The operator's reason.
    pub reason: &'a str,
}

impl Event for Resolve<'_> {
    type Effect = Granted;

    fn apply(&self, record: Option<&Record>, now: Timestamp, policy: &Policy) -> Step<Granted> {
        let Self {
            seen,
            resolution,
            reason,
        } = *self;
        of_a_key(record, |record| {
            operate::resolve(record, seen, resolution, reason, now, policy)
        })
    }
}

/// An operator removes the record of a key, so that the next request may use the key again.
#[derive(Clone, Debug)]
pub struct Forget {
    /// Whether to forget the key even if the operation took effect.
    pub force: bool,
    /// Replaces the attempt id, so that no late result can match the tombstone.
    pub fresh: AttemptId,
    /// The operator's reason.
    pub reason: Option<String>,
}

impl Event for Forget {
    type Effect = Granted;

    fn apply(&self, record: Option<&Record>, _: Timestamp, _: &Policy) -> Step<Granted> {
        of_a_key(record, |record| {
            operate::forget(record, self.force, self.fresh, self.reason.clone())
        })
    }
}

/// An operator erases the personal data of a key. The key does not become usable again.
#[derive(Clone, Debug)]
pub struct Erase {
    /// The operator's reason.
    pub reason: Option<String>,
}

impl Event for Erase {
    type Effect = Granted;

    fn apply(&self, record: Option<&Record>, _: Timestamp, _: &Policy) -> Step<Granted> {
        of_a_key(record, |record| operate::erase(record, self.reason.clone()))
    }
}

/// An operator extends the life of an answer to this long from now. An expiry that is later already stays.
#[derive(Clone, Copy, Debug)]
pub struct Extend(pub Duration);

impl Event for Extend {
    type Effect = Granted;

    fn apply(&self, record: Option<&Record>, now: Timestamp, _: &Policy) -> Step<Granted> {
        of_a_key(record, |record| operate::extend(record, self.0, now))
    }
}

fn of_a_key(record: Option<&Record>, wish: impl FnOnce(&Record) -> Step<Granted>) -> Step<Granted> {
    record.map_or(Step::stay(Err(Denied::Absent)), wish)
}

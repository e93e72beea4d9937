//! Everything that can happen to a key, and one function that hands it to the machine. The
//! exhaustive sweep, the random histories and the rendered table all go through it.

use std::sync::Arc;

use super::world::{TTL, answer, request, unstored};
use crate::{
    machine::{
        About, Admission, Committed, Erased, Extended, Forgotten, Grounds, Heard, Looked, Negative,
        Reaped, Refusal, Renewed, Resolution, Resolved, Settled, Settlement, Source, Swept, absent,
        admit, ambiguous, commit, erase, expire, extend, first, forget, look, no_look, reconcile,
        renew, resolve, settle, sweep,
    },
    policy::{OnInFlight, Policy},
    record::{AttemptId, Change, Draft, Evidence, JournalEntry, LastError, Record, StoredResponse},
    time::Timestamp,
};

/// Whether a request is the one that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Same,
    OtherContent,
    OtherCaller,
}

/// Whether an attempt is the one that owns the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Whose {
    Own,
    Other,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Complete,
    CompleteUnstored,
    Release,
    Redirect,
    Unknown,
    BrokeOff,
}

/// What somebody says became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Says {
    TookEffect,
    NotExecuted,
}

/// Who says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Voice {
    Webhook(Whose),
    Kept,
    Proven,
    Unproven,
}

/// What the provider says before a release; see [`Heard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Word {
    Nobody,
    Denial,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Request(Who),
    Settle(Whose, End),
    /// A completion in one transaction with the effect; stored, or not.
    Commit(Whose, bool),
    Renew(Whose),
    Sweep,
    Reap,
    Evidence(Says, Voice),
    Inconclusive,
    Pending,
    Several,
    /// An operator says that it took effect.
    Attest,
    /// An operator says that it did not, after what the provider said.
    Release {
        heard: Word,
        force: bool,
    },
    Forget {
        force: bool,
    },
    Extend,
    /// An operator erases a person's data.
    Erase,
}

impl Event {
    pub(super) fn all() -> Vec<Self> {
        use End::{BrokeOff, Complete, CompleteUnstored, Redirect, Release, Unknown};
        use Says::{NotExecuted, TookEffect};
        use Whose::{Other, Own};
        let mut all = vec![
            Self::Request(Who::Same),
            Self::Request(Who::OtherContent),
            Self::Request(Who::OtherCaller),
        ];
        for whose in [Own, Other] {
            for end in [
                Complete,
                CompleteUnstored,
                Release,
                Redirect,
                Unknown,
                BrokeOff,
            ] {
                all.push(Self::Settle(whose, end));
            }
            all.extend([Self::Commit(whose, true), Self::Commit(whose, false)]);
            all.push(Self::Renew(whose));
        }
        all.extend([Self::Sweep, Self::Reap]);
        for says in [TookEffect, NotExecuted] {
            let webhooks = [Voice::Webhook(Own), Voice::Webhook(Other)];
            for voice in webhooks
                .into_iter()
                .chain([Voice::Kept, Voice::Proven, Voice::Unproven])
            {
                all.push(Self::Evidence(says, voice));
            }
        }
        all.push(Self::Attest);
        for heard in [Word::Nobody, Word::Denial, Word::Nothing] {
            all.extend([false, true].map(|force| Self::Release { heard, force }));
        }
        all.extend([
            Self::Inconclusive,
            Self::Pending,
            Self::Several,
            Self::Extend,
            Self::Erase,
        ]);
        all.extend([Self::Forget { force: false }, Self::Forget { force: true }]);
        all
    }
}

/// What the one who caused the event gets.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Execute,
    AskAgain,
    InFlight(OnInFlight),
    Replay(Arc<StoredResponse>),
    Reused,
    CallerDiffers,
    OutcomeUnknown,
    NotStored,
    KeyExpired,
    Written,
    Kept,
    Already,
    Suspected(Box<JournalEntry>),
    Lost,
    Ignored,
    Refused,
}

/// What the machine says about one event.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Insert(Box<Draft>, Effect),
    Write(Change, Effect),
    Delete,
    Stay(Effect),
}

/// The circumstances of an event.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) now: Timestamp,
    pub(super) policy: &'a Policy,
    /// The id for whatever begins now; no record has it yet.
    pub(super) fresh: AttemptId,
    /// The id of somebody who does not own the key.
    pub(super) stranger: AttemptId,
}

pub(super) fn apply(record: Option<&Record>, event: Event, setting: Setting<'_>) -> Step {
    let Setting {
        now,
        policy,
        fresh,
        stranger,
    } = setting;
    let Some(record) = record else {
        return on_absent(event, setting);
    };
    let attempt = |whose| match whose {
        Whose::Own => record.attempt_id,
        Whose::Other => stranger,
    };
    match event {
        Event::Request(who) => on_request(record, who, setting),
        Event::Settle(whose, end) => {
            let attempt = attempt(whose);
            match settle(record, attempt, &settlement(attempt, end), policy) {
                Settled::Write(change) => Step::Write(change, Effect::Written),
                Settled::Keep => Step::Stay(Effect::Kept),
                Settled::NotOurs(entry) => Step::Stay(Effect::Suspected(entry)),
            }
        }
        Event::Commit(whose, stored) => {
            let attempt = attempt(whose);
            let answer = if stored { answer(attempt) } else { unstored() };
            match commit(record, attempt, &answer, policy) {
                Committed::Write(change) => Step::Write(change, Effect::Written),
                Committed::Kept(change) => Step::Write(change, Effect::Kept),
                Committed::Already => Step::Stay(Effect::Already),
                Committed::NotOurs(entry) => Step::Stay(Effect::Suspected(entry)),
            }
        }
        Event::Renew(whose) => match renew(record, attempt(whose), now, policy) {
            Renewed::Write(change) => Step::Write(change, Effect::Written),
            Renewed::Lost => Step::Stay(Effect::Lost),
        },
        Event::Sweep => match sweep(record, now, Some(policy)) {
            Swept::Alive => Step::Stay(Effect::Ignored),
            Swept::Lapsed(change) => Step::Write(change, Effect::Written),
        },
        Event::Reap => match expire(record, now) {
            Reaped::Keep => Step::Stay(Effect::Ignored),
            Reaped::Expire(change) => Step::Write(change, Effect::Written),
            Reaped::Delete => Step::Delete,
        },
        Event::Evidence(says, voice) => {
            let source = match voice {
                Voice::Webhook(whose) => Source::Webhook(About::Attempt(attempt(whose))),
                Voice::Kept => Source::Kept,
                Voice::Proven => Source::Query(Negative::Proven),
                Voice::Unproven => Source::Query(Negative::Unproven),
            };
            on_looked(reconcile(
                record,
                &evidence(record, says),
                source,
                now,
                policy,
            ))
        }
        Event::Inconclusive => on_looked(look(record, "nothing", policy)),
        Event::Pending => on_looked(no_look(record, "pending", now, policy)),
        Event::Several => on_looked(ambiguous(record, "two", policy)),
        Event::Attest => {
            let response = answer(record.attempt_id);
            on_resolved(record, &Resolution::Completed(response), setting)
        }
        Event::Release { heard, force } => {
            let heard = match heard {
                Word::Nobody => Heard::Nobody,
                Word::Denial => Heard::Denial,
                Word::Nothing => Heard::Nothing,
            };
            let grounds = Grounds {
                heard,
                asked_at: None,
                force,
            };
            on_resolved(record, &Resolution::FailedRetryable(grounds), setting)
        }
        Event::Forget { force } => match forget(record, force, fresh, None) {
            Forgotten::Write(change) => Step::Write(change, Effect::Written),
            Forgotten::Live(_) | Forgotten::TookEffect => Step::Stay(Effect::Refused),
        },
        Event::Extend => match extend(record, 2 * TTL, now) {
            Extended::Write(change) => Step::Write(change, Effect::Written),
            Extended::NoExpiry(_) => Step::Stay(Effect::Refused),
        },
        Event::Erase => match erase(record, None) {
            Erased::Write(change) => Step::Write(change, Effect::Written),
            Erased::Already => Step::Stay(Effect::Ignored),
        },
    }
}

fn on_resolved(record: &Record, resolution: &Resolution, setting: Setting<'_>) -> Step {
    match resolve(record, resolution, "a reason", setting.now, setting.policy) {
        Resolved::Write(change) => Step::Write(change, Effect::Written),
        Resolved::NotUnknown(state) => {
            assert_eq!(state, record.state);
            Step::Stay(Effect::Refused)
        }
        Resolved::TookEffect | Resolved::Inconclusive | Resolved::TooEarly(_) => {
            Step::Stay(Effect::Refused)
        }
    }
}

fn on_absent(event: Event, setting: Setting<'_>) -> Step {
    match event {
        Event::Request(who) => {
            let content = if who == Who::OtherContent { 2 } else { 1 };
            let caller = if who == Who::OtherCaller { 2 } else { 1 };
            let request = request(content, Some(caller), setting.fresh);
            Step::Insert(Box::new(first(&request, setting.policy)), Effect::Execute)
        }
        Event::Settle(..) | Event::Commit(..) => {
            let request = request(1, Some(1), setting.stranger);
            let gone = first(&request, setting.policy).stamp(setting.now);
            Step::Stay(Effect::Suspected(Box::new(absent(&gone))))
        }
        Event::Renew(_) => Step::Stay(Effect::Lost),
        // Nobody finds a row to act upon.
        Event::Sweep
        | Event::Reap
        | Event::Evidence(..)
        | Event::Inconclusive
        | Event::Pending
        | Event::Several
        | Event::Attest
        | Event::Release { .. }
        | Event::Forget { .. }
        | Event::Extend
        | Event::Erase => Step::Stay(Effect::Ignored),
    }
}

fn on_request(record: &Record, who: Who, setting: Setting<'_>) -> Step {
    let mut request = request(1, None, setting.fresh);
    if let Some(fingerprint) = record.fingerprint {
        request.fingerprint = fingerprint;
    }
    request.caller = record.caller;
    match who {
        Who::Same => {}
        Who::OtherContent => request.fingerprint.0[0] ^= 1,
        Who::OtherCaller => {
            let mut mark = record.caller.map_or([1; 16], |caller| caller.0);
            mark[0] ^= 1;
            request.caller = Some(crate::secret::CallerMark(mark));
        }
    }
    match admit(record, &request, setting.now, setting.policy) {
        Admission::Execute(change) => Step::Write(change, Effect::Execute),
        Admission::Lapse(change) => Step::Write(change, Effect::AskAgain),
        Admission::InFlight(how) => Step::Stay(Effect::InFlight(how)),
        Admission::Replay(response) => Step::Stay(Effect::Replay(response)),
        Admission::Refuse(refusal) => match refusal {
            Refusal::Reused(now) | Refusal::CallerDiffers(now) => {
                // What the client hears is what a sweeper and a reaper would have left by now.
                let late = match (
                    sweep(record, setting.now, None),
                    expire(record, setting.now),
                ) {
                    (Swept::Lapsed(change), _) | (_, Reaped::Expire(change)) => {
                        change.draft.record.state
                    }
                    _ => record.state,
                };
                assert_eq!(now, late);
                Step::Stay(match refusal {
                    Refusal::CallerDiffers(_) => Effect::CallerDiffers,
                    _ => Effect::Reused,
                })
            }
            Refusal::OutcomeUnknown {
                nudge: Some(change),
            } => Step::Write(change, Effect::OutcomeUnknown),
            Refusal::OutcomeUnknown { nudge: None } => Step::Stay(Effect::OutcomeUnknown),
            Refusal::ResponseNotStored { .. } => Step::Stay(Effect::NotStored),
            Refusal::Expired => Step::Stay(Effect::KeyExpired),
        },
    }
}

fn on_looked(looked: Looked) -> Step {
    match looked {
        Looked::Write(change) => Step::Write(change, Effect::Written),
        Looked::Ignore => Step::Stay(Effect::Ignored),
    }
}

fn settlement(attempt: AttemptId, end: End) -> Settlement {
    match end {
        End::Complete => Settlement::Complete(answer(attempt)),
        End::CompleteUnstored => Settlement::Complete(unstored()),
        End::Release => Settlement::Release(LastError::NotSent),
        End::Redirect => Settlement::Release(LastError::Redirected),
        End::Unknown => Settlement::Unknown(LastError::ConnectionLost),
        End::BrokeOff => Settlement::Unknown(LastError::StreamBroken),
    }
}

fn evidence(record: &Record, says: Says) -> Evidence {
    match says {
        Says::TookEffect => Evidence::Completed(answer(record.attempt_id)),
        Says::NotExecuted => Evidence::NotExecuted,
    }
}

//! Every event that can happen to a key, and one function that applies it to the machine. The exhaustive
//! test, the random histories and the rendered table all use it.

use std::sync::Arc;

use super::world::{TTL, answer, request, unstored};
use onlyonce_core::{
    machine::{
        self, About, Admission, Denied, Found, Granted, Grounds, Heard, Heartbeat, Lease, Negative,
        Refusal, Resolution, Seen, Settled, Settlement, Source, Step, Write, absent, first,
    },
    policy::{OnInFlight, Policy},
    record::{AttemptId, Evidence, JournalEntry, LastError, Record, StoredResponse},
    time::Timestamp,
};

/// Whether a request is the remembered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Same,
    OtherContent,
    OtherCaller,
}

/// Whether an attempt is the one that owns the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    Own,
    Other,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Complete,
    CompleteUnstored,
    Release,
    Redirect,
    Unknown,
    BrokeOff,
}

/// A statement about the outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Says {
    TookEffect,
    NotExecuted,
}

/// The source of the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Voice {
    Webhook(Whose),
    Kept,
    Proven,
    Unproven,
}

/// The provider's answer before a release; see [`Heard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    Nobody,
    Denial,
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    Request(Who),
    Settle(Whose, End),
    /// A completion in one transaction with the effect; stored or not.
    Commit(Whose, bool),
    Renew(Whose),
    Sweep,
    Reap,
    Evidence(Says, Voice),
    Inconclusive,
    Pending,
    Several,
    /// An operator states that it took effect.
    Attest,
    /// An operator states that it did not, after the provider's answer.
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
    pub fn all() -> Vec<Self> {
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

/// The effect for whoever caused the event, in one type for all kinds of events.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
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

/// The circumstances of an event.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub now: Timestamp,
    pub policy: &'a Policy,
    /// The id for whatever begins now; no record has it yet.
    pub fresh: AttemptId,
    /// An attempt id that does not own the key.
    pub stranger: AttemptId,
}

/// Applies `event` to the machine, and renders its effect.
pub fn apply(record: Option<&Record>, event: Event, setting: Setting<'_>) -> Step<Effect> {
    let Setting {
        now,
        policy,
        fresh,
        stranger,
    } = setting;
    let attempt = |whose| match (whose, record) {
        (Whose::Own, Some(record)) => record.attempt_id,
        _ => stranger,
    };
    match event {
        Event::Request(who) => on_request(record, who, setting),
        Event::Settle(whose, end) => {
            let attempt = attempt(whose);
            let settlement = &settlement(attempt, end);
            let end = machine::End {
                attempt,
                settlement,
            };
            let step = machine::apply(record, &end, now, policy);
            settled(step, Effect::Kept, setting)
        }
        Event::Commit(whose, stored) => {
            let attempt = attempt(whose);
            let response = &if stored { answer(attempt) } else { unstored() };
            let commit = machine::Commit { attempt, response };
            let step = machine::apply(record, &commit, now, policy);
            settled(step, Effect::Already, setting)
        }
        Event::Renew(whose) => {
            let step = machine::apply(record, &Heartbeat(attempt(whose)), now, policy);
            rendered(step, |lease, _| match lease {
                Lease::Renewed => Effect::Written,
                Lease::Lost => Effect::Lost,
            })
        }
        Event::Sweep => {
            let sweep = machine::Sweep { knows_route: true };
            plain(machine::apply(record, &sweep, now, policy))
        }
        Event::Reap => plain(machine::apply(record, &machine::Reap, now, policy)),
        Event::Evidence(says, voice) => {
            let source = match voice {
                Voice::Webhook(whose) => Source::Webhook(About::Attempt(attempt(whose))),
                Voice::Kept => Source::Kept,
                Voice::Proven => Source::Query(Negative::Proven),
                Voice::Unproven => Source::Query(Negative::Unproven),
            };
            let evidence = evidence(attempt(Whose::Own), says);
            looked(record, Found::Evidence(&evidence, source), setting)
        }
        Event::Inconclusive => looked(record, Found::Nothing("nothing"), setting),
        Event::Pending => looked(record, Found::NoLook("pending"), setting),
        Event::Several => looked(record, Found::Several("two"), setting),
        Event::Attest => {
            let response = answer(attempt(Whose::Own));
            resolved(record, &Resolution::Completed(response), setting)
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
            resolved(record, &Resolution::FailedRetryable(grounds), setting)
        }
        Event::Forget { force } => {
            let forget = machine::Forget {
                force,
                fresh,
                reason: None,
            };
            wished(record, &forget, setting)
        }
        Event::Extend => wished(record, &machine::Extend(2 * TTL), setting),
        Event::Erase => wished(record, &machine::Erase { reason: None }, setting),
    }
}

/// `step` with its effect rendered by `render`, which also gets whether anything is written.
fn rendered<E>(step: Step<E>, render: impl FnOnce(E, bool) -> Effect) -> Step<Effect> {
    let writes = step.write != Write::Stay;
    Step {
        effect: render(step.effect, writes),
        write: step.write,
    }
}

fn plain(step: Step) -> Step<Effect> {
    rendered(step, |(), writes| match writes {
        true => Effect::Written,
        false => Effect::Ignored,
    })
}

fn settled(step: Step<Settled>, unwritten: Effect, setting: Setting<'_>) -> Step<Effect> {
    rendered(step, |settled, writes| match (settled, writes) {
        (Settled::Done | Settled::ReleaseWasWrong, true) => Effect::Written,
        (Settled::Kept, true) => Effect::Kept,
        (Settled::Kept, false) => unwritten,
        (Settled::NotOurs(entry), false) => Effect::Suspected(entry),
        (Settled::Gone, false) => {
            let request = request(1, Some(1), setting.stranger);
            let gone = first(&request, setting.policy).stamp(setting.now);
            Effect::Suspected(Box::new(absent(&gone)))
        }
        (settled, _) => panic!("{settled:?}"),
    })
}

fn looked(record: Option<&Record>, found: Found<'_>, setting: Setting<'_>) -> Step<Effect> {
    let look = machine::Look {
        found,
        asked_about: record.map(|record| (record.attempt_id, record.revision)),
    };
    plain(machine::apply(record, &look, setting.now, setting.policy))
}

fn resolved(
    record: Option<&Record>,
    resolution: &Resolution,
    setting: Setting<'_>,
) -> Step<Effect> {
    let resolve = machine::Resolve {
        seen: Seen::AsItIs,
        resolution,
        reason: "a reason",
    };
    wished(record, &resolve, setting)
}

fn wished(
    record: Option<&Record>,
    wish: &impl machine::Event<Effect = Granted>,
    setting: Setting<'_>,
) -> Step<Effect> {
    let step = machine::apply(record, wish, setting.now, setting.policy);
    rendered(step, |granted, writes| match granted {
        Ok(()) if writes => Effect::Written,
        Ok(()) => Effect::Ignored,
        Err(Denied::Absent) => {
            assert_eq!(record, None);
            Effect::Ignored
        }
        Err(Denied::State(state)) => {
            assert_eq!(Some(state), record.map(|record| record.state));
            Effect::Refused
        }
        Err(_) => Effect::Refused,
    })
}

fn on_request(record: Option<&Record>, who: Who, setting: Setting<'_>) -> Step<Effect> {
    let Setting {
        now, policy, fresh, ..
    } = setting;
    let mut request = match (record, who) {
        (Some(_), _) => request(1, None, fresh),
        (None, Who::Same) => request(1, Some(1), fresh),
        (None, Who::OtherContent) => request(2, Some(1), fresh),
        (None, Who::OtherCaller) => request(1, Some(2), fresh),
    };
    if let Some(record) = record {
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
                request.caller = Some(onlyonce_core::secret::CallerMark(mark));
            }
        }
    }
    let step = machine::apply(record, &request, now, policy);
    rendered(step, |admission, _| match admission {
        Admission::Execute(_) => Effect::Execute,
        Admission::Lapse => Effect::AskAgain,
        Admission::InFlight(how) => Effect::InFlight(how),
        Admission::Replay(response) => Effect::Replay(response),
        Admission::Reserved | Admission::TooLate => panic!("no record has a fresh attempt"),
        Admission::Refuse(refusal) => refused(record, &refusal, setting),
    })
}

fn refused(record: Option<&Record>, refusal: &Refusal, setting: Setting<'_>) -> Effect {
    if let (Some(record), Refusal::Reused(now) | Refusal::CallerDiffers(now)) = (record, refusal) {
        // The client hears the state that a sweeper and a reaper would have left by now.
        let sweep = machine::Sweep { knows_route: false };
        let swept = machine::apply(Some(record), &sweep, setting.now, setting.policy);
        let reaped = machine::apply(Some(record), &machine::Reap, setting.now, setting.policy);
        let late = swept.swapped().or_else(|| reaped.swapped());
        let late = late.map_or(record.state, |change| change.draft.record.state);
        assert_eq!(*now, late);
    }
    match refusal {
        Refusal::Reused(_) => Effect::Reused,
        Refusal::CallerDiffers(_) => Effect::CallerDiffers,
        Refusal::OutcomeUnknown => Effect::OutcomeUnknown,
        Refusal::ResponseNotStored { .. } => Effect::NotStored,
        Refusal::Expired => Effect::KeyExpired,
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

fn evidence(attempt: AttemptId, says: Says) -> Evidence {
    match says {
        Says::TookEffect => Evidence::Completed(answer(attempt)),
        Says::NotExecuted => Evidence::NotExecuted,
    }
}

//! What was seen besides committed writes: replies to nodes, and the upstream's part.

use bytes::Bytes;
use http::StatusCode;
use onlyonce_core::{
    AttemptId, Record, State,
    policy::{Declared, On5xx},
    record::{JournalEntry, JournalEvent},
};

use onlyonce_testkit::promise::Event;

use crate::{
    edges::Edge,
    history::{Given, History},
    script::mark,
};

/// What nodes were told.
impl History {
    /// A reservation met a record.
    pub fn met(&mut self, record: &Record, attempt: AttemptId) {
        if record.attempt_id != attempt {
            return;
        }
        self.hits.hit(Edge::ReserveWasOurs);
        let moved_on = record.state != State::InProgress;
        if let Some(trial) = self.trials.get_mut(&attempt.0) {
            trial.warned |= moved_on;
        }
    }

    /// A swap of `wanted` met `current` instead of what it expected.
    pub fn conflict(&mut self, wanted: &Record, current: &Record) {
        if wanted.state != State::InProgress {
            return;
        }
        let trial = self.trials.get_mut(&wanted.attempt_id.0);
        let begins = trial.is_none();
        if let Some(trial) = trial
            && trial.call.is_none()
        {
            trial.warned |=
                wanted.attempt_id == current.attempt_id && current.state != State::InProgress;
        }
        if wanted.attempt_id == current.attempt_id && current.state == State::InProgress {
            self.hits.hit(Edge::ReserveWasOurs);
        } else if begins && current.state == State::InProgress {
            self.hits.hit(Edge::LostRace);
        } else if !begins {
            self.hits.hit(Edge::HeartbeatLost);
        }
    }

    /// A swap of `wanted` met nothing.
    pub fn absent(&mut self, wanted: &Record) {
        if wanted.state == State::InProgress && !self.trials.contains_key(&wanted.attempt_id.0) {
            self.hits.hit(Edge::ReapedBetween);
        }
    }

    /// Journal rows without a write: results that came too late.
    pub fn noted(&mut self, journal: &[JournalEntry]) {
        for entry in journal {
            self.say(&format!("noted {:?} at {:?}", entry.event, entry.from));
            if entry.event == JournalEvent::DuplicateExecutionSuspected {
                self.hits.hit(match (entry.from, entry.to) {
                    (_, None) => Edge::LateAbsent,
                    (Some(State::Expired), _) => Edge::LateExpired,
                    _ => Edge::LateOtherAttempt,
                });
            }
        }
    }
}

/// What reached the upstream, and what it answered.
impl History {
    /// The upstream was asked to carry out `attempt` for `call`.
    pub fn asked(&mut self, attempt: u128, call: Option<usize>, variant: Option<usize>) {
        let asked = call
            .and_then(|call| self.calls.get(call))
            .map(|call| call.ask);
        if asked.map(|ask| ask.variant) != variant {
            self.violated("3: another request's body went upstream".into());
        }
        self.asked_for.insert(attempt, (call, variant));
        if let Some(trial) = self.trials.get_mut(&attempt) {
            trial.call = call;
        }
        if let Some(call) = call.and_then(|call| self.calls.get_mut(call)) {
            call.attempt = Some(attempt);
        }
    }

    /// What the upstream writes into its answer: whose it is.
    pub fn mark(&self, attempt: u128) -> String {
        let call = self.asked_for.get(&attempt).and_then(|(call, _)| *call);
        mark(
            attempt,
            call.and_then(|call| self.calls.get(call))
                .map(|call| call.ask),
        )
    }

    /// The upstream has answered `attempt`.
    pub fn given(&mut self, id: u128, status: StatusCode, declared: Option<Declared>, body: Bytes) {
        let (now, on_5xx) = (self.now, self.setup.policy.on_5xx);
        let about_another = self.may_be_about_another(id);
        let means = meaning(status.as_u16(), about_another, declared, on_5xx);
        if means == State::FailedRetryable {
            self.happened(Event::Undone { execution: id });
        }
        self.happened(Event::Ended {
            execution: id,
            conclusive: means == State::Completed,
        });
        let Some(trial) = self.trials.get_mut(&id) else {
            return;
        };
        trial.declared_undone |= means == State::FailedRetryable;
        self.answered.push(id);
        trial.given = Some(Given {
            at: now,
            status,
            body,
            means,
        });
        self.say(&format!("given {id:032x} {status} {means:?}"));
    }

    /// Whether an attempt before this one may have reached the upstream.
    fn may_be_about_another(&self, id: u128) -> bool {
        let Some(trial) = self.trials.get(&id) else {
            return false;
        };
        // An attempt that was never sent, or was begun without anybody to send it, reached nobody. Earlier
        // lives count for as long as the key's past is remembered, which is an epoch.
        let (key, epoch, _) = trial.life;
        let mut earlier = self.trials.values().filter(|other| {
            (other.life.0, other.life.1) == (key, epoch) && other.fence < trial.fence
        });
        earlier.any(|other| !other.unsent)
    }
}

/// What an answer means, once more.
fn meaning(
    status: u16,
    may_be_about_another: bool,
    declared: Option<Declared>,
    on_5xx: On5xx,
) -> State {
    match (declared, status) {
        (Some(Declared::NotExecuted), _) => State::FailedRetryable,
        (Some(Declared::Final), _) => State::Completed,
        (Some(Declared::Unknown), _) => State::Unknown,
        (None, 409 | 423 | 425) if may_be_about_another => State::Unknown,
        (None, 401 | 407 | 408 | 421 | 425 | 429) => State::FailedRetryable,
        (None, 200..=499) => State::Completed,
        (None, 502 | 504) => State::Unknown,
        (None, _) => match on_5xx {
            On5xx::Retry => State::FailedRetryable,
            On5xx::Store => State::Completed,
            On5xx::Unknown => State::Unknown,
        },
    }
}

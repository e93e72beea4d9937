//! What happened, for the checker that knows only the promise: told in the words of clients, the API, the
//! operators and the provider, and of nobody who knows a record.

use std::sync::{Arc, LazyLock};

use onlyonce_core::{Record, StoredResponse, policy::AfterExpiry, record::StoredBody};
use onlyonce_testkit::promise::{self, Asked, At, Broken, Event, Heard, Terms, check};

use crate::{
    calls::Answer,
    history::History,
    setup::{Ask, Setup, is_shared},
};

/// How far a real store's clock may be from that of the run, in milliseconds.
const CLOCKS_APART: u64 = 20;

/// Whether only the promise is judged: so it is seen that the checker finds a planted bug by itself.
static ALONE: LazyLock<bool> = LazyLock::new(|| std::env::var("ONLYONCE_CHECKER").is_ok());

pub fn judges_alone() -> bool {
    *ALONE
}

/// What a request asks for, however it is written down.
pub fn asked(ask: Ask) -> Asked {
    let caller: Arc<str> = format!("caller-{}", ask.caller).into();
    Asked {
        keyspace: match is_shared(ask) {
            true => "shared".into(),
            false => Arc::clone(&caller),
        },
        caller,
        key: format!("order-{}", ask.key).into(),
        request: format!("variant {}", ask.variant).into(),
    }
}

fn bytes(status: u16, body: &[u8]) -> Arc<[u8]> {
    [status.to_string().as_bytes(), body].concat().into()
}

/// The bytes of an operator's or a provider's word.
fn word(response: &StoredResponse) -> Arc<[u8]> {
    match &response.body {
        StoredBody::Full { bytes: body, .. } => bytes(response.status.as_u16(), body),
        StoredBody::NotStored | StoredBody::Packed { .. } => bytes(response.status.as_u16(), b""),
    }
}

/// What a client makes of an answer.
fn heard(answer: &Answer) -> Heard {
    let passed = || {
        let origin = answer
            .mark
            .as_deref()
            .and_then(|mark| mark.split('/').next());
        promise::Answer {
            bytes: bytes(answer.status.as_u16(), &answer.body),
            execution: origin.and_then(|origin| u128::from_str_radix(origin, 16).ok()),
        }
    };
    match answer.code.as_deref() {
        None if !answer.whole => Heard::Nothing,
        None if answer.says_completed => Heard::Outcome(passed()),
        None => Heard::Passed(passed()),
        Some(code) => Heard::of_problem(code),
    }
}

impl History {
    /// Writes down what happened now. The number is for [`History::retract`].
    pub fn happened(&mut self, event: Event) -> usize {
        self.events.push(Some(At {
            at: self.now,
            event,
        }));
        self.events.len() - 1
    }

    /// What was about to happen was refused.
    pub fn retract(&mut self, number: usize) {
        self.events[number] = None;
    }

    pub fn sent(&mut self, call: usize, ask: Ask) {
        let (call, asked, whole) = (call as u64, asked(ask), true);
        self.happened(Event::Sent { call, asked, whole });
    }

    pub fn heard(&mut self, call: usize, answer: &Answer) {
        let (call, heard) = (call as u64, heard(answer));
        self.happened(Event::Heard { call, heard });
    }

    pub fn left(&mut self, call: usize) {
        self.happened(Event::Left { call: call as u64 });
    }

    /// An operator or the provider gives the outcome of what `record` is about.
    pub fn attested(&mut self, record: &Record, response: &StoredResponse) -> Option<usize> {
        let asked = asked(self.owner(record)?);
        let bytes = word(response);
        Some(self.happened(Event::Attested { asked, bytes }))
    }

    /// Which promises were broken.
    pub fn broken_promises(&self) -> Vec<Broken> {
        let policy = &self.setup.policy;
        let ttl = Setup::millis(policy.ttl);
        let once_for = match policy.after_expiry {
            AfterExpiry::Reject => ttl + Setup::millis(policy.tombstone_ttl),
            _ => ttl,
        };
        // Where clocks jump, one that is believed may be ahead; and the clock of a real store is not ours.
        let early = match (self.setup.clocks_jump, self.store_now.0) {
            (true, _) => self.tolerance(),
            (false, 0) => CLOCKS_APART,
            (false, _) => 0,
        };
        let terms = Terms {
            kept_for: ttl.saturating_sub(early),
            once_for: once_for.saturating_sub(early),
            largest_answer: usize::try_from(policy.max_body_size).unwrap_or(usize::MAX)
                + "200".len(),
            longest_wait: None,
            unclear_ends: false,
        };
        let events: Vec<At> = self.events.iter().flatten().cloned().collect();
        check(&terms, &events)
    }
}

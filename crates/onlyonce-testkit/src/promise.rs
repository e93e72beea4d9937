//! A checker that knows only the promise.
//!
//! Its input is a history: what clients sent and heard, what the API executed, and what the API, an operator
//! or a provider said about an execution, each with its time. It knows nothing of records, states, leases or
//! revisions. It checks:
//!
//! 1. **once**: an operation takes effect at most once, until its key has expired or was forgotten, unless
//!    what took effect before is said to have left nothing behind;
//! 2. **same**: everybody who hears the outcome of a key hears the same bytes;
//! 3. **own**: nobody hears an answer to a request other than their own;
//! 4. **kept**: an answer that somebody heard is not lost: a later caller hears it, or is told honestly that
//!    it cannot be looked up now;
//! 5. **honest**: a caller who is told that nothing was executed can rely on it; a caller who is told of
//!    another request, of a running or an unclear one, is told the truth;
//! 6. **whole**: what is executed is what somebody sent, from its first byte to its last;
//! 7. **answered**: nobody waits for ever;
//! 8. **settled**: no key is left running when everything has come to rest.
//!
//! Times are by one clock that no fault moves, in any unit; [`Terms`] use the same unit.

mod check;
#[cfg(test)]
mod planted;

use std::{fmt, sync::Arc};

pub use check::check;

/// A moment by the one true clock.
pub type Moment = u64;

/// Who sent a request, under which key, and what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asked {
    /// The keyspace: callers with the same one may share a key.
    pub keyspace: Arc<str>,
    /// The caller within it. Callers of one keyspace compete for a key; each hears only its own answers.
    pub caller: Arc<str>,
    /// The key, however it was spelled.
    pub key: Arc<str>,
    /// The request's content: method, host, path, body, and whatever else makes it a different request.
    pub request: Arc<str>,
}

impl Asked {
    /// The identity by which executions are counted.
    fn operation(&self) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.keyspace), Arc::clone(&self.key))
    }
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The outcome of the operation, which everybody hears who repeats the request.
    Outcome(Answer),
    /// An answer of the API for this client only: the key may be executed again, or the outcome of the
    /// operation is not known.
    Passed(Answer),
    /// The operation was executed; its answer cannot be returned again.
    ExecutedBefore,
    /// Nothing was executed for this request, and nothing is said about the key: the store was unreachable,
    /// too many requests, an unreadable request, an API that was not reached.
    NotExecuted,
    /// The operation is being executed.
    Running,
    /// It is not known whether the operation was executed.
    Unclear,
    /// The key belongs to another request, or to another caller.
    AnotherRequest,
    /// The key has expired and is not executed again.
    Expired,
    /// No answer: the connection broke.
    Nothing,
}

impl Heard {
    /// The meaning of a problem document's `code`.
    pub fn of_problem(code: &str) -> Self {
        match code {
            "idempotency_key_reused" | "idempotency_caller_differs" => Self::AnotherRequest,
            "idempotency_key_in_progress" => Self::Running,
            "idempotency_outcome_unknown" => Self::Unclear,
            "idempotency_response_not_stored" => Self::ExecutedBefore,
            "idempotency_key_expired" => Self::Expired,
            _ => Self::NotExecuted,
        }
    }
}

/// Bytes given by the API, an operator or a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The bytes that are compared: the status, the stored header lines, and the body.
    pub bytes: Arc<[u8]>,
    /// The execution that the answer comes from; `None` if an operator or a provider gave it.
    pub execution: Option<u128>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client sent a request, completely or in part.
    Sent {
        /// The id of the request.
        call: u64,
        /// The request's content.
        asked: Asked,
        /// Whether its last byte was sent.
        whole: bool,
    },
    /// The client received a complete answer.
    Heard {
        /// The request.
        call: u64,
        /// What was heard.
        heard: Heard,
    },
    /// The client is gone, or its gateway died: nobody waits any more.
    Left {
        /// The request.
        call: u64,
    },
    /// The API began an execution.
    Began {
        /// The id of the execution.
        execution: u128,
        /// The content that the API received.
        asked: Asked,
        /// The request it was executed for, if the API can tell.
        call: Option<u64>,
    },
    /// The API ended an execution.
    Ended {
        /// The execution.
        execution: u128,
        /// Whether it answered, and the answer is final for the operation.
        conclusive: bool,
    },
    /// An authority says that an execution left nothing behind: the API itself, a provider whose denial
    /// counts, or an operator who releases the key.
    Undone {
        /// The execution.
        execution: u128,
    },
    /// An operator or a provider gave the outcome of an operation.
    Attested {
        /// The request's content.
        asked: Asked,
        /// The bytes that may be returned from now on.
        bytes: Arc<[u8]>,
    },
    /// An operator removes everything remembered about a key. A removal that takes time is two events: when
    /// it begins and when it is done.
    Forgotten {
        /// The key's keyspace.
        keyspace: Arc<str>,
        /// The key.
        key: Arc<str>,
    },
    /// Everything has been at rest for long enough that no execution can still be running.
    AtRest,
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// The time.
    pub at: Moment,
    /// The event.
    pub event: Event,
}

/// The promises that whoever runs the program can choose.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an outcome is returned at least, from when it became known.
    pub kept_for: Moment,
    /// How long an operation is not executed again at least, from then.
    pub once_for: Moment,
    /// The largest answer that is returned again, in bytes.
    pub largest_answer: usize,
    /// How long any request may wait.
    pub longest_wait: Option<Moment>,
    /// Whether everything unclear is found out before all is at rest.
    pub unclear_ends: bool,
}

/// The promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// An operation takes effect at most once.
    Once,
    /// Everybody hears the same bytes.
    Same,
    /// Nobody hears another caller's answer.
    Own,
    /// An answer that was heard is not lost.
    Kept,
    /// Statements about the key are true.
    Honest,
    /// What is executed was sent completely.
    Whole,
    /// Nobody waits for ever.
    Answered,
    /// No key is left running.
    Settled,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The promise.
    pub promise: Promise,
    /// When it was broken.
    pub at: Moment,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.at, self.promise, self.what)
    }
}

//! A checker that knows only the promise.
//!
//! Its input is a history: what clients sent and heard, what the API executed, what the API, an operator or a
//! provider said of an execution, each with the time at which it happened. It knows nothing of records,
//! states, leases or revisions. It decides:
//!
//! 1. **once**: an operation takes effect at most once, until its key has expired or was forgotten, unless
//!    what took effect before is said to have left nothing behind;
//! 2. **same**: whoever hears the outcome of a key hears the same bytes as everybody else;
//! 3. **own**: nobody hears an answer to another request than his own;
//! 4. **kept**: an answer that somebody heard is not lost: who asks later hears it, or is told honestly that
//!    it cannot be looked up now;
//! 5. **honest**: who is told that nothing was executed can rely on it; who is told of another request, of a
//!    running or an unclear one, is told the truth;
//! 6. **whole**: what is executed is what somebody sent, from its first byte to its last;
//! 7. **answered**: nobody waits for ever;
//! 8. **settled**: no key is left running when everything has come to rest.
//!
//! Times are those of one clock that no fault moves, in whatever unit; [`Terms`] are in the same.

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
    /// Whoever may share a key: callers with the same keyspace.
    pub keyspace: Arc<str>,
    /// The caller within it. Callers of one keyspace compete for a key; each has only his own answers.
    pub caller: Arc<str>,
    /// The key, however it was spelled.
    pub key: Arc<str>,
    /// What is asked for: method, host, path, body, and whatever else makes another request.
    pub request: Arc<str>,
}

impl Asked {
    /// What executions are counted by.
    fn operation(&self) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.keyspace), Arc::clone(&self.key))
    }
}

/// What a client heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The outcome of the operation, as everybody hears it who sends the request again.
    Outcome(Answer),
    /// An answer of the API that is told to this client alone: the key may be executed again, or it is not
    /// known what became of the operation.
    Passed(Answer),
    /// The operation was executed; its answer cannot be told again.
    ExecutedBefore,
    /// Nothing was executed for this request, and nothing is said of the key: the store was away, too many
    /// requests, a request that cannot be read, an API that was not reached.
    NotExecuted,
    /// The operation is being executed.
    Running,
    /// It is not known whether the operation was executed.
    Unclear,
    /// The key belongs to another request, or to another caller.
    AnotherRequest,
    /// The key has expired and is not executed again.
    Expired,
    /// Not an answer: the connection broke.
    Nothing,
}

impl Heard {
    /// What a problem document says by its `code`.
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

/// Bytes that the API, an operator or a provider gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is compared: the status, the header lines that are kept, and the body.
    pub bytes: Arc<[u8]>,
    /// The execution that it comes from; `None` for the word of an operator or a provider.
    pub execution: Option<u128>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client sent a request: all of it, or as much as it says.
    Sent {
        /// Names the request among all.
        call: u64,
        /// What it asks for.
        asked: Asked,
        /// Whether its last byte was sent.
        whole: bool,
    },
    /// The client heard the end of an answer.
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
    /// The API began to execute.
    Began {
        /// Names the execution among all.
        execution: u128,
        /// What the API was asked for.
        asked: Asked,
        /// The request it was executed for, where the API can tell.
        call: Option<u64>,
    },
    /// The API has ended an execution.
    Ended {
        /// The execution.
        execution: u128,
        /// Whether it answered, and the answer says what became of the operation for good.
        conclusive: bool,
    },
    /// Somebody whose word counts says that an execution left nothing behind: the API itself, a provider whose
    /// denial counts, an operator who releases the key.
    Undone {
        /// The execution.
        execution: u128,
    },
    /// An operator or a provider gave the outcome of an operation.
    Attested {
        /// What was asked for.
        asked: Asked,
        /// What may be told from now on.
        bytes: Arc<[u8]>,
    },
    /// An operator removes all that is remembered of a key. A removal that takes time happens twice: when it
    /// begins and when it is done.
    Forgotten {
        /// The key's keyspace.
        keyspace: Arc<str>,
        /// The key.
        key: Arc<str>,
    },
    /// Everything has been at rest for long enough that no execution can still be running.
    AtRest,
}

/// An event and when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    /// When.
    pub at: Moment,
    /// What.
    pub event: Event,
}

/// What was promised, as far as it is a choice of whoever runs the program.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long an outcome is told again at least, from when it became known.
    pub kept_for: Moment,
    /// How long an operation is not executed again at least, from then.
    pub once_for: Moment,
    /// The longest answer that is told again, in bytes.
    pub largest_answer: usize,
    /// How long the longest request may wait.
    pub longest_wait: Option<Moment>,
    /// Whether somebody finds out about everything that is unclear before all is at rest.
    pub unclear_ends: bool,
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// An operation takes effect at most once.
    Once,
    /// Everybody hears the same bytes.
    Same,
    /// Nobody hears another's answer.
    Own,
    /// What somebody heard is not lost.
    Kept,
    /// What is said of the key is true.
    Honest,
    /// What is executed was sent, whole.
    Whole,
    /// Nobody waits for ever.
    Answered,
    /// No key is left running.
    Settled,
}

/// A promise that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which.
    pub promise: Promise,
    /// When.
    pub at: Moment,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.at, self.promise, self.what)
    }
}

//! Publishers, which take messages to their receivers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use onlyonce_core::{
    MessageId, Timestamp,
    outbox::{Sent, TargetRules},
};

use crate::transaction::Answer;

/// How many messages of one target are sent concurrently, by default.
pub const DEFAULT_AT_ONCE: usize = 64;
/// The timeout for sending one message, by default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A message to send.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Its id.
    pub id: MessageId,
    /// Its target.
    pub target: Arc<str>,
    /// Its type.
    pub kind: String,
    /// The thing it is about: a type and an id.
    pub aggregate: Option<(String, String)>,
    /// Messages with one ordering key arrive in order.
    pub ordering_key: Option<String>,
    /// The key by which the receiver recognises the message: the same for every attempt.
    pub key: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its bytes.
    pub payload: Bytes,
    /// The number of this attempt; the first is 1.
    pub attempt: u32,
    /// When it was created.
    pub created_at: Timestamp,
}

/// The result of sending a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// The receiver has it.
    Delivered {
        /// The receiver's id for the message.
        provider_id: Option<String>,
        /// The receiver's answer, for a key that waits for it.
        answer: Option<Answer>,
    },
    /// The receiver refused the message permanently.
    Refused {
        /// Why.
        reason: String,
        /// The receiver's answer, for a key that waits for it.
        answer: Option<Answer>,
    },
    /// Nothing reached the receiver.
    NotSent(String),
    /// The message may have reached the receiver.
    Unclear(String),
}

impl Delivery {
    /// Delivered, without further information.
    pub fn delivered() -> Self {
        Self::Delivered {
            provider_id: None,
            answer: None,
        }
    }

    /// The result for the machine, and the receiver's answer. An id with control characters is dropped, and
    /// NUL is replaced in reasons: some databases cannot store them.
    pub(super) fn apart(self) -> (Sent, Option<Answer>) {
        match self {
            Self::Delivered {
                provider_id,
                answer,
            } => {
                let provider_id = provider_id.filter(|id| !id.contains(char::is_control));
                (Sent::Delivered(provider_id), answer)
            }
            Self::Refused { reason, answer } => (Sent::Refused(storable(&reason)), answer),
            Self::NotSent(reason) => (Sent::NotSent(storable(&reason)), None),
            Self::Unclear(reason) => (Sent::Unclear(storable(&reason)), None),
        }
    }
}

fn storable(reason: &str) -> String {
    reason.replace('\0', "\u{fffd}")
}

/// Sends messages to one receiver.
pub trait Publish: Send + Sync + 'static {
    /// Sends `parcel` once. Return `NotSent` only if no byte of it can have arrived, and `Delivered` only if
    /// the receiver confirmed that it has the message for good. A dropped future counts as unclear.
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery>;
}

/// A receiver, and the rules for delivering to it.
#[derive(Clone)]
pub struct Target {
    /// Its name, as used in messages.
    pub name: Arc<str>,
    /// The publisher for this receiver.
    pub publisher: Arc<dyn Publish>,
    /// Its delivery rules.
    pub rules: TargetRules,
    /// How many messages are sent concurrently.
    pub at_once: usize,
    /// The timeout for sending one message.
    pub timeout: Duration,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .field("at_once", &self.at_once)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Target {
    /// A receiver that recognises repeated keys.
    pub fn new(name: &str, publisher: impl Publish) -> Self {
        Self {
            name: name.into(),
            publisher: Arc::new(publisher),
            rules: TargetRules::default(),
            at_once: DEFAULT_AT_ONCE,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

//! What takes a message to its receiver.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use onlyonce_core::{
    MessageId, Timestamp,
    outbox::{Sent, TargetRules},
};

use crate::transaction::Answer;

/// How many messages of one target are under way at once, unless said otherwise.
pub const DEFAULT_AT_ONCE: usize = 64;
/// How long sending one message may take, unless said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A message as it is sent.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Its name.
    pub id: MessageId,
    /// Where it goes.
    pub target: Arc<str>,
    /// What it is.
    pub kind: String,
    /// What it is about: a kind of thing and which one.
    pub aggregate: Option<(String, String)>,
    /// Messages of one ordering key arrive in order.
    pub ordering_key: Option<String>,
    /// The key that the receiver knows it by: the same every time.
    pub key: String,
    /// Headers that travel with it.
    pub headers: BTreeMap<String, String>,
    /// Its bytes.
    pub payload: Bytes,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// When it was made.
    pub created_at: Timestamp,
}

/// What came of sending a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// The receiver has it.
    Delivered {
        /// What the receiver calls it.
        provider_id: Option<String>,
        /// What the receiver answered, for a key that waits for it.
        answer: Option<Answer>,
    },
    /// The receiver said no, for good.
    Refused {
        /// Why.
        reason: String,
        /// What the receiver answered, for a key that waits for it.
        answer: Option<Answer>,
    },
    /// Nothing reached the receiver.
    NotSent(String),
    /// It may have reached the receiver.
    Unclear(String),
}

impl Delivery {
    /// Delivered, and nothing more is known.
    pub fn delivered() -> Self {
        Self::Delivered {
            provider_id: None,
            answer: None,
        }
    }

    /// What the machine needs to know of it, and the receiver's answer. A name with control characters is
    /// none, and no reason has a NUL: there are databases that cannot store them.
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

/// Takes messages to one receiver.
pub trait Publish: Send + Sync + 'static {
    /// Sends `parcel` once. It is `NotSent` only if no byte of it can have arrived, and `Delivered` only if
    /// the receiver said that it has it for good. A future that is dropped counts as unclear.
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery>;
}

/// A receiver, and what is agreed with it.
#[derive(Clone)]
pub struct Target {
    /// Its name, as messages have it.
    pub name: Arc<str>,
    /// What takes messages there.
    pub publisher: Arc<dyn Publish>,
    /// What is agreed with it.
    pub rules: TargetRules,
    /// How many messages are under way at once.
    pub at_once: usize,
    /// How long sending one may take.
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
    /// A receiver that knows its keys again.
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

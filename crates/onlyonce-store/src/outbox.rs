//! Outgoing messages, as the worker and people see them.
//! [`TransactionalStore::enqueue`](crate::TransactionalStore::enqueue) adds them.
//!
//! As with records, nothing is decided here: [`onlyonce_core::outbox`] decides what becomes of a message, and
//! a write is accepted only from the attempt that claimed the message.
//!
//! Deliberately absent: claiming "numbers above the last one seen". Rows become visible in the order in which
//! their transactions commit, so messages are claimed by their state.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    AttemptId, MessageId, MessageState, RecordId, Timestamp,
    outbox::{Next, Tried},
    record::{Change, JournalEntry, Revision},
};
use tokio::sync::watch;

use crate::{Page, Reply, StoreError, Swapped, transactional::Message};

/// Which messages to claim, for whom, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Only messages of this target.
    pub target: String,
    /// The most messages to claim.
    pub limit: usize,
    /// How long the messages are reserved for this attempt.
    pub lease: Duration,
    /// The claiming attempt: new for every call.
    pub attempt: AttemptId,
}

/// A claimed message.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// The message's id.
    pub id: MessageId,
    /// The message's number in the store.
    pub number: u64,
    /// The attempt that claimed it.
    pub attempt: AttemptId,
    /// Its previous attempts.
    pub tried: Tried,
    /// When it was created.
    pub created_at: Timestamp,
    /// The message. Its downstream key is always set.
    pub message: Message,
    /// Whether its payload still has to be read, with [`Outbox::payload`].
    pub unread: bool,
}

/// The most bytes of payloads that one claim reads.
pub const CLAIM_BYTES: u64 = 1 << 20;

/// A person's decision about a dead or unknown message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Send it again, immediately, under the same key and with all attempts, unless it may have arrived
    /// longer ago than this. The time since when it may have arrived is kept; a retry does not restart it.
    Retry(Duration),
    /// Send it again in any case, as if it had never arrived.
    RetryByForce,
    /// Never send it again.
    Discard,
}

impl Decision {
    /// The state after the decision.
    pub fn state(self) -> MessageState {
        match self {
            Self::Retry(_) | Self::RetryByForce => MessageState::Pending,
            Self::Discard => MessageState::Discarded,
        }
    }

    /// The age, in milliseconds, beyond which a message that may have arrived is not sent again.
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    pub(crate) fn safe_for(self) -> Option<i64> {
        match self {
            // Capped so that adding it to any plausible time does not overflow.
            Self::Retry(safe_for) => Some(millis(safe_for).min(i64::MAX / 2)),
            Self::RetryByForce | Self::Discard => None,
        }
    }
}

/// How an attempt at a message ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The message.
    pub id: MessageId,
    /// The message's number in the store.
    pub number: u64,
    /// The attempt that claimed the message. Any other attempt changes nothing.
    pub attempt: AttemptId,
    /// What becomes of the message.
    pub next: Next,
}

/// A message as shown in lists: without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedMessage {
    /// The message's id.
    pub id: MessageId,
    /// The message's state.
    pub state: MessageState,
    /// The name of the target.
    pub target: String,
    /// The message's type.
    pub kind: String,
    /// What it is about: a kind of entity and its id.
    pub aggregate: Option<(String, String)>,
    /// The ordering key.
    pub ordering_key: Option<String>,
    /// The key under which the receiver is called.
    pub downstream_key: String,
    /// The key in whose transaction it was created.
    pub key: Option<RecordId>,
    /// Whether the delivery settles that key.
    pub settles: bool,
    /// How often it was claimed.
    pub attempts: u32,
    /// The receiver's id of the message.
    pub provider_id: Option<String>,
    /// Why it is not delivered.
    pub last_error: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it is tried next, or may be claimed by another attempt.
    pub due_at: Timestamp,
    /// When it was delivered.
    pub delivered_at: Option<Timestamp>,
    /// The size of its payload, in bytes.
    pub bytes: u64,
    /// When the first attempt began that may have reached the receiver without confirmation.
    pub unclear_since: Option<Timestamp>,
}

/// The criteria of a list of messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only these states; empty means all.
    pub states: Vec<MessageState>,
    /// Only this target.
    pub target: Option<String>,
}

/// The limit up to which the messages of one state are counted.
pub const MAX_COUNTED: u64 = 100_000;

/// Messages that are not done, per state, each counted up to [`MAX_COUNTED`].
pub type Depth = BTreeMap<MessageState, u64>;

/// The messages of a store.
///
/// All methods are cancel-safe: if a future is dropped, its write happened whole or not at all.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Claims messages that are due, and counts the attempt, in one write.
    ///
    /// - Skips rows that another claim holds.
    /// - Of the messages with one ordering key, claims only the first that is neither delivered nor
    ///   discarded: a message that was given up blocks those behind it until a person decides.
    /// - Reads payloads up to [`CLAIM_BYTES`]. A message that exceeds this is the last one of its claim, and
    ///   its payload is left unread: a message too large to be read in time blocks no other.
    /// - Claims a message again whose claim has lapsed without an [`Ending`]; [`Tried::unclear_since`] says
    ///   since when its outcome is not known.
    ///
    /// # Errors
    /// Any [`StoreError`]. After an ambiguous one, [`give_back`](Self::give_back) undoes the claim; otherwise
    /// the messages become due again when their lease ends.
    async fn claim(&self, claim: &Claim) -> Result<Reply<Vec<Claimed>>, StoreError>;

    /// The payload of a message that `attempt` has claimed; `None` if the claim is no longer valid.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn payload(&self, number: u64, attempt: AttemptId)
    -> Result<Option<Vec<u8>>, StoreError>;

    /// Undoes a claim of `target` whose answer was lost, so that its messages were not sent: they are due
    /// again, and the attempt does not count. What was unclear before stays unclear. Without such a claim,
    /// does nothing.
    ///
    /// # Errors
    /// Any [`StoreError`]; the call may be repeated.
    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError>;

    /// Writes how attempts ended, in one write. Returns for each whether its attempt was still valid.
    ///
    /// # Errors
    /// Any [`StoreError`]; the call may be repeated.
    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError>;

    /// Writes how an attempt ended together with the change of the key that it settles, or neither. `None` if
    /// the attempt was no longer valid.
    ///
    /// # Errors
    /// Any [`StoreError`]; the call may be repeated.
    async fn end_with_key(
        &self,
        ending: &Ending,
        expected: Revision,
        change: &Change,
    ) -> Result<Option<Reply<Swapped>>, StoreError>;

    /// Messages, newest first.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn list(
        &self,
        filter: &MessageFilter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<ListedMessage>, StoreError>;

    /// One message.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn message(&self, id: MessageId) -> Result<Option<ListedMessage>, StoreError>;

    /// A person's decision about a dead or unknown message, written together with the journal row. Returns
    /// whether the message was in one of those states and the decision permitted the change.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn decide(
        &self,
        id: MessageId,
        decision: Decision,
        journal: JournalEntry,
    ) -> Result<bool, StoreError>;

    /// How many messages are pending, dead and unknown.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn depth(&self) -> Result<Depth, StoreError>;

    /// Deletes up to `limit` messages that were delivered or discarded longer than `keep` ago. Returns how
    /// many.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn tidy(&self, keep: Duration, limit: usize) -> Result<usize, StoreError>;

    /// Changes when a message was enqueued. Only a hint: workers must still poll.
    fn arrivals(&self) -> watch::Receiver<u64>;
}

/// Which of the due messages, given by number and bytes of payload, one claim takes: up to and including the
/// first that exceeds [`CLAIM_BYTES`]. Returns for each whether its payload is read with it.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn within_bytes(due: Vec<(i64, u64)>) -> Vec<(i64, bool)> {
    let mut so_far = 0_u64;
    let mut taken = Vec::with_capacity(due.len());
    for (number, bytes) in due {
        if so_far > CLAIM_BYTES {
            break;
        }
        so_far = so_far.saturating_add(bytes);
        taken.push((number, so_far <= CLAIM_BYTES));
    }
    taken
}

/// Milliseconds for a database column.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// An error for a row that cannot be read.
#[cfg(feature = "postgres")]
pub(crate) fn unreadable(error: impl Into<crate::BoxError>) -> StoreError {
    StoreError::Unreadable(error.into())
}

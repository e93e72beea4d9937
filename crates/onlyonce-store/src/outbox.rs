//! Messages on their way out, as the worker and people see them. How they come in is
//! [`TransactionalStore::enqueue`](crate::TransactionalStore::enqueue).
//!
//! As with records, nothing is decided here: [`onlyonce_core::outbox`] says what becomes of a message, and
//! the attempt that claimed it is compared when that is written.
//!
//! Deliberately absent: "numbers above the last one seen". Rows become visible in the order in which
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

/// Which messages are wanted, for whom, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Messages of this target alone.
    pub target: String,
    /// So many at most.
    pub limit: usize,
    /// Nobody else gets them for so long.
    pub lease: Duration,
    /// Who claims: new for every call.
    pub attempt: AttemptId,
}

/// A message that has been claimed.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    /// Its name.
    pub id: MessageId,
    /// Its number in the store.
    pub number: u64,
    /// Who claimed it.
    pub attempt: AttemptId,
    /// What is known of it.
    pub tried: Tried,
    /// When it was made.
    pub created_at: Timestamp,
    /// The message. Its downstream key is there.
    pub message: Message,
    /// Whether its payload is still to be read, by [`Outbox::payload`].
    pub unread: bool,
}

/// Bytes of payloads that one claim reads.
pub const CLAIM_BYTES: u64 = 1 << 20;

/// What a person says of a message that is dead or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is sent again, at once, under the same key and with all attempts; unless it may have arrived longer
    /// ago than this. Since when it may have arrived is kept: a retry does not restart that clock.
    Retry(Duration),
    /// It is sent again in any case, as if it had never arrived.
    RetryByForce,
    /// It is not sent again.
    Discard,
}

impl Decision {
    /// The state that it leads to.
    pub fn state(self) -> MessageState {
        match self {
            Self::Retry(_) | Self::RetryByForce => MessageState::Pending,
            Self::Discard => MessageState::Discarded,
        }
    }

    /// After how many milliseconds what may have arrived is not sent again.
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    pub(crate) fn safe_for(self) -> Option<i64> {
        match self {
            // No clock comes near to where the sum would not fit.
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
    /// Its number in the store.
    pub number: u64,
    /// The attempt that claimed it. Any other changes nothing.
    pub attempt: AttemptId,
    /// What becomes of it.
    pub next: Next,
}

/// A message as lists show it: without its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedMessage {
    /// Its name.
    pub id: MessageId,
    /// Where it stands.
    pub state: MessageState,
    /// Where it goes.
    pub target: String,
    /// What it is.
    pub kind: String,
    /// What it is about: a kind of thing and which one.
    pub aggregate: Option<(String, String)>,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// Under which key the receiver is asked.
    pub downstream_key: String,
    /// The key in whose transaction it was made.
    pub key: Option<RecordId>,
    /// Whether its delivery settles that key.
    pub settles: bool,
    /// How often it was claimed.
    pub attempts: u32,
    /// What the receiver calls it.
    pub provider_id: Option<String>,
    /// Why it is not delivered.
    pub last_error: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it is tried next, or may be claimed by somebody else.
    pub due_at: Timestamp,
    /// When it was delivered.
    pub delivered_at: Option<Timestamp>,
    /// Bytes of its payload.
    pub bytes: u64,
    /// When the first attempt began that may have reached the receiver without anybody knowing.
    pub unclear_since: Option<Timestamp>,
}

/// What a list of messages is to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Only these states; none means all.
    pub states: Vec<MessageState>,
    /// Only this target.
    pub target: Option<String>,
}

/// How many messages of one state are counted.
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
    /// - Rows that another claim holds are passed over.
    /// - Of messages of one ordering key only the first that is neither delivered nor discarded is given
    ///   out: a message that was given up holds up those behind it until a person decides.
    /// - Payloads are read up to [`CLAIM_BYTES`]. A message that goes beyond is the last one of its claim, and
    ///   its payload is left unread: one that is too large to be read in time holds up no other.
    /// - A claim that has lapsed without an [`Ending`] is claimed again, and
    ///   [`Tried::unclear_since`] says since when nobody knows.
    ///
    /// # Errors
    /// Any [`StoreError`]. After an ambiguous one, [`give_back`](Self::give_back) undoes it; otherwise the
    /// messages come back when their lease is over.
    async fn claim(&self, claim: &Claim) -> Result<Reply<Vec<Claimed>>, StoreError>;

    /// The payload of a message that `attempt` has claimed; `None` if it has it no more.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    async fn payload(&self, number: u64, attempt: AttemptId)
    -> Result<Option<Vec<u8>>, StoreError>;

    /// Undoes a claim of `target` whose answer was lost, so that nobody has sent what it claimed: those
    /// messages are due again, and the attempt does not count. What was unclear before it stays so. Without
    /// such a claim, nothing happens.
    ///
    /// # Errors
    /// Any [`StoreError`]; it may be asked again.
    async fn give_back(&self, target: &str, attempt: AttemptId) -> Result<(), StoreError>;

    /// Writes how attempts ended, all at once. Says for each whether it still counted.
    ///
    /// # Errors
    /// Any [`StoreError`]; the same endings may be written again.
    async fn end(&self, endings: &[Ending]) -> Result<Vec<bool>, StoreError>;

    /// Writes how an attempt ended together with the change of the key that it settles, or neither.
    /// `None`: the attempt did not count any more.
    ///
    /// # Errors
    /// Any [`StoreError`]; the same may be written again.
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

    /// A person's word on a message that is dead or unknown. The journal row is written with it. Says whether
    /// the message was in one of those states, and the decision did not forbid it.
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

    /// Deletes up to `limit` messages that were delivered or discarded longer than `keep` ago. Says how
    /// many.
    ///
    /// # Errors
    /// Any [`StoreError`].
    async fn tidy(&self, keep: Duration, limit: usize) -> Result<usize, StoreError>;

    /// Changes when a message has been left. A hint: polling is the truth.
    fn arrivals(&self) -> watch::Receiver<u64>;
}

/// Of messages that are due, by number and bytes of payload, those that one claim takes: up to and with the
/// first that goes beyond [`CLAIM_BYTES`]. Says of each whether its payload is read with it.
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

/// Milliseconds, for databases.
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A row that cannot be understood.
#[cfg(feature = "postgres")]
pub(crate) fn unreadable(error: impl Into<crate::BoxError>) -> StoreError {
    StoreError::Unreadable(error.into())
}

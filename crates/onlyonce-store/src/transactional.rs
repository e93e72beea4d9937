//! Records, messages and recovery points inside a transaction that the caller opened.
//!
//! The contract of stores that share a database with the application's own tables. Everything written here
//! becomes visible with the caller's commit and disappears with a rollback, so that a key, its business write
//! and its messages are one unit.
//!
//! Deliberately absent: decisions. A change comes from the machine, and its revision is compared, as in
//! [`Store::swap`](crate::Store::swap).

use std::{ops::DerefMut, time::Duration};

use onlyonce_core::{
    AttemptId, Fence, MessageId, Record, RecordId, Timestamp,
    record::{Change, Revision},
};

use crate::{BoxError, Reply, Swapped};

/// How much a transaction sees of others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything committed before each statement.
    #[default]
    ReadCommitted,
    /// Everything committed before the first statement.
    RepeatableRead,
    /// As if there were no other transactions.
    Serializable,
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl Isolation {
    /// The level's name in SQL.
    pub(crate) fn as_sql(self) -> &'static str {
        match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        }
    }
}

/// Why an operation in a transaction failed. The transaction is unusable and is rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// A concurrent transaction conflicts with this one. Run it again.
    #[error("the transaction met another one; run it again")]
    Conflict(#[source] BoxError),
    /// The server or the driver failed.
    #[error("the database failed in a transaction")]
    Database(#[source] BoxError),
    /// A row of a newer version, or an unreadable one. The row is left unchanged.
    #[error("a stored row cannot be read by this version")]
    Unreadable(#[source] BoxError),
    /// The caller's own code gave up.
    #[error("the work in the transaction was given up")]
    GivenUp(#[source] BoxError),
}

impl TransactionError {
    /// The caller's own reason to give up.
    pub fn given_up(reason: impl Into<BoxError>) -> Self {
        Self::GivenUp(reason.into())
    }

    /// Whether the same work may succeed if it is run again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict(_))
    }
}

/// A message to be sent once the transaction has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The name of the target, as the delivering worker knows it.
    pub target: String,
    /// The message's type.
    pub kind: String,
    /// What the message is about: a kind of entity and its id, such as `order` and `17`.
    pub aggregate: Option<(String, String)>,
    /// Messages of one target and one ordering key are delivered in order.
    pub ordering_key: Option<String>,
    /// The key under which the receiver is called, every time; the default is the message's own id.
    pub downstream_key: Option<String>,
    /// A JSON object of headers.
    pub headers: String,
    /// The body.
    pub payload: Vec<u8>,
    /// The key in whose transaction the message was created.
    pub key: Option<RecordId>,
    /// Set if the delivery settles that key.
    pub settles: Option<Settles>,
}

/// The default limit on a message, in bytes, headers included.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A message exceeds the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message of {bytes} bytes is larger than the {most} bytes that a message may have; it was not left"
)]
pub struct MessageTooLarge {
    /// Its size in bytes, headers included.
    pub bytes: usize,
    /// The limit in bytes.
    pub most: usize,
}

/// What it takes to settle a key once its message is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settles {
    /// The attempt that owns the key.
    pub attempt: AttemptId,
    /// How long the answer is remembered.
    pub ttl: Duration,
    /// When the reconciler looks, should the outcome become unknown.
    pub look_after: Duration,
    /// The application's version of the answer.
    pub version: u32,
}

impl Settles {
    /// The stored form.
    pub(crate) fn encode(&self) -> String {
        let (ttl, look_after) = (self.ttl.as_millis(), self.look_after.as_millis());
        let version = match self.version {
            0 => String::new(),
            version => format!(" {version}"),
        };
        format!("{} {ttl} {look_after}{version}", self.attempt)
    }

    /// Parses what [`encode`](Self::encode) wrote.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let attempt = u128::from_str_radix(words.next()?, 16).ok()?;
        let mut millis = || Some(Duration::from_millis(words.next()?.parse().ok()?));
        let (ttl, look_after) = (millis()?, millis()?);
        let version = match words.next() {
            Some(word) => word.parse().ok()?,
            None => 0,
        };
        Some(Self {
            attempt: AttemptId(attempt),
            ttl,
            look_after,
            version,
        })
    }
}

impl Message {
    /// A message to `target`.
    pub fn new(target: &str, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            target: target.to_owned(),
            kind: String::new(),
            aggregate: None,
            ordering_key: None,
            downstream_key: None,
            headers: "{}".to_owned(),
            payload: payload.into(),
            key: None,
            settles: None,
        }
    }

    /// Bytes of payload and headers.
    pub fn bytes(&self) -> usize {
        self.payload.len().saturating_add(self.headers.len())
    }
}

/// The progress of an operation with several phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The key that the operation runs under.
    pub id: RecordId,
    /// The operation's name.
    pub operation: String,
    /// The last completed phase.
    pub point: String,
    /// The phase whose external call is about to be made, or may have been made.
    pub intent: Option<String>,
    /// The id that the last provider gave to its result.
    pub provider_id: Option<String>,
    /// The parameters of the first request.
    pub parameters: Vec<u8>,
    /// The results of the phases so far.
    pub data: Vec<u8>,
    /// The attempt that wrote this.
    pub attempt: AttemptId,
    /// The key's generation that the operation belongs to.
    pub generation: u32,
    /// Whether the operation is complete.
    pub finished: bool,
    /// When this was written, and never before the key's current life began. A caller of
    /// [`advance`](TransactionalStore::advance) gives the latter; the store applies the former.
    pub updated_at: Timestamp,
}

impl Progress {
    /// Whether the progress belongs to the key's current life. A forgotten key starts again with the first
    /// generation, so the number alone does not tell. The attempt's id does: the first attempt of a key has
    /// only what it wrote itself. Later attempts continue what earlier ones wrote in this life, which began
    /// before it was written. What an earlier life left behind is [discarded] before there is a second
    /// attempt, since a clock that goes back would make it look like this one's.
    ///
    /// [discarded]: TransactionalStore::discard
    pub fn is_of(&self, record: &Record) -> bool {
        if self.generation != record.generation {
            return false;
        }
        if self.attempt == record.attempt_id || record.fence == Fence::FIRST {
            return self.attempt == record.attempt_id;
        }
        self.updated_at >= record.times.created_at.unwrap_or_default()
    }
}

/// A store that can take part in the caller's transactions.
///
/// Every method that takes a connection works in the transaction open on it, and only there. If a future is
/// dropped, the transaction must be rolled back.
pub trait TransactionalStore: Clone + Send + Sync + 'static {
    /// The connection that the caller's statements run on.
    type Connection: Send;
    /// An open transaction. It is rolled back when it is dropped.
    type Open: DerefMut<Target = Self::Connection> + Send;

    /// Opens a transaction.
    ///
    /// # Errors
    /// [`TransactionError`] if no transaction could be opened.
    fn begin(
        &self,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Self::Open, TransactionError>> + Send;

    /// Commits.
    ///
    /// # Errors
    /// After a [`TransactionError::Conflict`], the transaction was rolled back. After any other error the
    /// outcome is not known, and the record swapped in the transaction must be read.
    fn commit(&self, open: Self::Open)
    -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Returns once everything read before is as durable as an acknowledged commit. A commit whose answer was
    /// lost may be visible before it is durable.
    ///
    /// # Errors
    /// Any [`TransactionError`]: the durability is not known.
    fn confirm(&self) -> impl Future<Output = Result<(), TransactionError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Rolls back. If the server cannot be told, it rolls back when it notices.
    fn rollback(&self, open: Self::Open) -> impl Future<Output = ()> + Send;

    /// The record under `id`, locked until the transaction ends: meanwhile nobody renews, sweeps or settles
    /// it, and it counts as alive. Others can still read it.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn lock(
        &self,
        connection: &mut Self::Connection,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Reply<Record>>, TransactionError>> + Send;

    /// As [`Store::swap`](crate::Store::swap), in this transaction.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn swap(
        &self,
        connection: &mut Self::Connection,
        expected: Revision,
        change: &Change,
    ) -> impl Future<Output = Result<Reply<Swapped>, TransactionError>> + Send;

    /// Notifies waiters that the transaction that changed `id` has been committed.
    fn committed(&self, id: RecordId);

    /// Enqueues a message, and returns its id.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn enqueue(
        &self,
        connection: &mut Self::Connection,
        message: &Message,
    ) -> impl Future<Output = Result<MessageId, TransactionError>> + Send;

    /// Whether `consumer` sees `message_id` for the first time. The message is remembered for at least
    /// `retention`. A second transaction with the same message waits for the end of the first.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn receive(
        &self,
        connection: &mut Self::Connection,
        consumer: &str,
        message_id: &str,
        retention: Duration,
    ) -> impl Future<Output = Result<bool, TransactionError>> + Send;

    /// Locks `natural_key` until the transaction ends.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn hold(
        &self,
        connection: &mut Self::Connection,
        natural_key: &str,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// The progress of the operation under `id`.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn progress(
        &self,
        connection: &mut Self::Connection,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Progress>, TransactionError>> + Send;

    /// Writes progress with the store's time, or with `updated_at` if that is later: a clock that went back
    /// does not make it belong to another life.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn advance(
        &self,
        connection: &mut Self::Connection,
        progress: &Progress,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Removes the progress that `attempt` wrote for `id`, unless another attempt has written since: it
    /// belongs to an earlier life of the key.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn discard(
        &self,
        connection: &mut Self::Connection,
        id: RecordId,
        attempt: AttemptId,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Keys of `operation` that are not finished, with the time of their last update, oldest first: up to
    /// `limit` of those after `after`, a row of the previous page.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn unfinished(
        &self,
        operation: &str,
        after: (Timestamp, RecordId),
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(Timestamp, RecordId)>, TransactionError>> + Send;
}

//! Records, messages and recovery points inside a transaction that the caller opened.
//!
//! The contract of stores whose database the application's own tables are in. What is written here
//! becomes visible with the caller's commit and is gone with its rollback, so that a key, its business
//! write and its messages are one thing.
//!
//! Deliberately absent: deciding. A change comes from the machine, and its revision is compared, as in
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
    /// What was committed before each statement.
    #[default]
    ReadCommitted,
    /// What was committed before its first statement.
    RepeatableRead,
    /// As if there were no others.
    Serializable,
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
impl Isolation {
    /// Its name in SQL.
    pub(crate) fn as_sql(self) -> &'static str {
        match self {
            Self::ReadCommitted => "READ COMMITTED",
            Self::RepeatableRead => "REPEATABLE READ",
            Self::Serializable => "SERIALIZABLE",
        }
    }
}

/// Why something in a transaction failed. The transaction is of no more use: it is rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// Others did something at the same time that does not go together with it. Run it again.
    #[error("the transaction met another one; run it again")]
    Conflict(#[source] BoxError),
    /// The server or the driver failed.
    #[error("the database failed in a transaction")]
    Database(#[source] BoxError),
    /// A row of a newer version, or one that cannot be read. It is left as it is.
    #[error("a stored row cannot be read by this version")]
    Unreadable(#[source] BoxError),
    /// The caller's own code said no.
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

/// A message that is to leave once the transaction has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it goes, by a name that the delivering worker knows.
    pub target: String,
    /// What it is.
    pub kind: String,
    /// What it is about: a kind of thing and which one, such as `order` and `17`.
    pub aggregate: Option<(String, String)>,
    /// Messages of one target and one ordering key are delivered in order.
    pub ordering_key: Option<String>,
    /// Under which key the receiver is asked to do it, every time; the message's own id unless said.
    pub downstream_key: Option<String>,
    /// A JSON object of headers.
    pub headers: String,
    /// Its bytes.
    pub payload: Vec<u8>,
    /// The key in whose transaction it was made.
    pub key: Option<RecordId>,
    /// What its delivery settles: that key.
    pub settles: Option<Settles>,
}

/// Bytes of a message, headers included, unless said otherwise.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// A message that is larger than messages may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message of {bytes} bytes is larger than the {most} bytes that a message may have; it was not left"
)]
pub struct MessageTooLarge {
    /// The bytes it has, headers included.
    pub bytes: usize,
    /// The bytes it may have.
    pub most: usize,
}

/// What is needed to settle a key once its message is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settles {
    /// The attempt that owns the key.
    pub attempt: AttemptId,
    /// How long the answer is remembered.
    pub ttl: Duration,
    /// After which time somebody looks, should the outcome become unknown.
    pub look_after: Duration,
    /// The application's version of the answer.
    pub version: u32,
}

impl Settles {
    /// As it is stored.
    pub(crate) fn encode(&self) -> String {
        let (ttl, look_after) = (self.ttl.as_millis(), self.look_after.as_millis());
        let version = match self.version {
            0 => String::new(),
            version => format!(" {version}"),
        };
        format!("{} {ttl} {look_after}{version}", self.attempt)
    }

    /// What [`encode`](Self::encode) made.
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

/// How far an operation of several phases has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The key that it runs under.
    pub id: RecordId,
    /// Which operation it is.
    pub operation: String,
    /// The last phase that is done.
    pub point: String,
    /// The phase whose foreign call is about to be made, or may have been.
    pub intent: Option<String>,
    /// What the last provider called what it did.
    pub provider_id: Option<String>,
    /// What was asked for, as the first request said it.
    pub parameters: Vec<u8>,
    /// What the phases have found out so far.
    pub data: Vec<u8>,
    /// The attempt that wrote this.
    pub attempt: AttemptId,
    /// The life of the key that it belongs to.
    pub generation: u32,
    /// Whether there is nothing left to do.
    pub finished: bool,
    /// When this was written, and never before that life began. What is given to
    /// [`advance`](TransactionalStore::advance) says the latter; the store adds the former.
    pub updated_at: Timestamp,
}

impl Progress {
    /// Whether it belongs to the life that the key has now. A key that was forgotten begins with the first
    /// generation again, so the number alone does not tell. The attempt's id does: the first attempt of a
    /// key has only what it wrote itself. Later ones go on with what those before them wrote in this life,
    /// which began before it was written; what an earlier life left is [discarded] before there is a
    /// second attempt, since a clock that goes back would make it look like this one's.
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
/// Every method that is given a connection works in the transaction that is open there, and only
/// there. Futures that are dropped leave the transaction to be rolled back.
pub trait TransactionalStore: Clone + Send + Sync + 'static {
    /// What the caller's statements run on.
    type Connection: Send;
    /// An open transaction. It is rolled back when it is dropped.
    type Open: DerefMut<Target = Self::Connection> + Send;

    /// Opens a transaction.
    ///
    /// # Errors
    /// [`TransactionError`] if there is none.
    fn begin(
        &self,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Self::Open, TransactionError>> + Send;

    /// Commits.
    ///
    /// # Errors
    /// A [`TransactionError::Conflict`] was rolled back. Any other failure says nothing: whether it
    /// happened is to be asked of the record that was swapped in it.
    fn commit(&self, open: Self::Open)
    -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Returns once what was read before is as safe as what a commit acknowledges. A commit whose answer was
    /// lost may be seen before it is.
    ///
    /// # Errors
    /// Any [`TransactionError`]: it is not known to be.
    fn confirm(&self) -> impl Future<Output = Result<(), TransactionError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Takes everything back. If that cannot be said to the server, it finds out by itself.
    fn rollback(&self, open: Self::Open) -> impl Future<Output = ()> + Send;

    /// The record under `id`, held until the transaction ends: nobody renews, sweeps or settles it
    /// meanwhile, and it counts as alive. Others can still read it.
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

    /// The transaction that changed `id` has been committed: whoever waits for it is told.
    fn committed(&self, id: RecordId);

    /// Leaves a message, and returns its id.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn enqueue(
        &self,
        connection: &mut Self::Connection,
        message: &Message,
    ) -> impl Future<Output = Result<MessageId, TransactionError>> + Send;

    /// Whether `consumer` sees `message_id` for the first time. It is remembered for `retention` at
    /// least. A second transaction with the same message waits for the end of the first.
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

    /// Until the transaction ends no other one holds `natural_key`.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn hold(
        &self,
        connection: &mut Self::Connection,
        natural_key: &str,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// How far the operation under `id` has come.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn progress(
        &self,
        connection: &mut Self::Connection,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Progress>, TransactionError>> + Send;

    /// Notes how far it has come, at the time by the store's clock, or at `updated_at` if that is later:
    /// a clock that went back does not make it another life's.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn advance(
        &self,
        connection: &mut Self::Connection,
        progress: &Progress,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Removes what `attempt` noted of the operation under `id`, unless another one has noted something since:
    /// it belongs to an earlier life of the key.
    ///
    /// # Errors
    /// Any [`TransactionError`].
    fn discard(
        &self,
        connection: &mut Self::Connection,
        id: RecordId,
        attempt: AttemptId,
    ) -> impl Future<Output = Result<(), TransactionError>> + Send;

    /// Keys of `operation` that have not come to their end, and when they were last touched, the longest
    /// untouched first: up to `limit` of those that come after `after`, a row of the page before.
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

//! Incoming messages and natural keys: effects that happen once although no client sends a key.
//!
//! The id of a message comes from its header or its content, never from an offset: an offset is a position in
//! a broker, and a republished message has another.

mod message_id;

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce_store::{TransactionalStore, transactional::TransactionError};

pub use message_id::{MAX_MESSAGE_ID_BYTES, MessageIdFrom};

use crate::transaction::Transactions;

/// The default retention of a message id: longer than brokers redeliver.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// The result of processing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed<R> {
    /// The message was seen for the first time; this is the result.
    Now(R),
    /// The message had been processed before; nothing was done.
    Before,
}

impl<T: TransactionalStore> Transactions<T> {
    /// Does `effect` unless `consumer` has processed `message_id` before, in the transaction that is open on
    /// `tx`. The entry and the effect are committed together or not at all. A second transaction with the
    /// same message waits for the first, since only its end decides.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is no longer usable.
    pub async fn process_once<R, F>(
        &self,
        tx: &mut T::Connection,
        consumer: &str,
        message_id: &str,
        effect: F,
    ) -> Result<Processed<R>, TransactionError>
    where
        F: for<'c> FnOnce(&'c mut T::Connection) -> BoxFuture<'c, Result<R, TransactionError>>,
    {
        self.process_once_for(tx, consumer, message_id, DEFAULT_RETENTION, effect)
            .await
    }

    /// Like [`process_once`](Self::process_once), remembering the message for `retention`. It must be
    /// positive, and longer than the broker may redeliver.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is no longer usable.
    pub async fn process_once_for<R, F>(
        &self,
        tx: &mut T::Connection,
        consumer: &str,
        message_id: &str,
        retention: Duration,
        effect: F,
    ) -> Result<Processed<R>, TransactionError>
    where
        F: for<'c> FnOnce(&'c mut T::Connection) -> BoxFuture<'c, Result<R, TransactionError>>,
    {
        if retention < Duration::from_millis(1) {
            let why = "the retention of a message must be a positive duration";
            return Err(TransactionError::given_up(why));
        }
        let first = self.store().receive(tx, consumer, message_id, retention);
        if !first.await? {
            return Ok(Processed::Before);
        }
        Ok(Processed::Now(effect(tx).await?))
    }

    /// Does `work` while no other transaction works under `natural_key`, the business's own name for the
    /// thing, such as `order:17`. Other transactions wait until this one has ended.
    ///
    /// On PostgreSQL this is a transaction-level advisory lock on a hash of the key, so at worst two keys
    /// wait for each other. On MySQL and MariaDB it is the lock of a row for the key, created beforehand on
    /// one of the store's own connections; the lock ends with the transaction, however that ends. On SQLite
    /// the transaction is the only writer anyway.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is no longer usable.
    pub async fn with_natural_key<R, F>(
        &self,
        tx: &mut T::Connection,
        natural_key: &str,
        work: F,
    ) -> Result<R, TransactionError>
    where
        F: for<'c> FnOnce(&'c mut T::Connection) -> BoxFuture<'c, Result<R, TransactionError>>,
    {
        self.store().hold(tx, natural_key).await?;
        work(tx).await
    }
}

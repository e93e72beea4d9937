//! Messages that came in, and natural keys: what makes an effect happen once where no client sends a key.
//!
//! The id of a message comes from its header or its content, never from an offset: an offset says where
//! a broker keeps a message, and a republished one has another.

mod message_id;

use std::time::Duration;

use futures_util::future::BoxFuture;
use onlyonce_store::{TransactionalStore, transactional::TransactionError};

pub use message_id::{MAX_MESSAGE_ID_BYTES, MessageIdFrom};

use crate::transaction::Transactions;

/// How long a message is remembered unless said otherwise: longer than brokers redeliver.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processed<R> {
    /// It was seen for the first time, and this came of it.
    Now(R),
    /// It had been processed; nothing was done.
    Before,
}

impl<T: TransactionalStore> Transactions<T> {
    /// Does `effect` unless `consumer` has processed `message_id` before, in the transaction that is
    /// open on `tx`: the note and the effect are committed together or not at all. A second transaction
    /// with the same message waits for the first, since only its end decides.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is of no more use.
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

    /// As [`process_once`](Self::process_once), remembering the message for `retention`, which must be
    /// longer than its broker may deliver it again, and than nothing.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is of no more use.
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

    /// Does `work` while no other transaction does anything under `natural_key`: what the business
    /// itself calls the thing, such as `order:17`. Other transactions wait until this one has ended.
    ///
    /// On PostgreSQL it is an advisory lock of the transaction, under a hash of the key, so that two keys
    /// may at worst wait for each other. On MySQL and MariaDB it is the lock of a row that stands for the
    /// key, made beforehand on a connection of the store's own; it ends with the transaction, however that
    /// ends. On SQLite the transaction is the only one that writes anyway.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is of no more use.
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

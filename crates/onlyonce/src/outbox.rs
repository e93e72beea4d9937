//! Messages that are sent once the caller's transaction has committed. They are written in that transaction,
//! so they exist if and only if the change they report has happened. A worker delivers them, sometimes more
//! than once, always under the same key, so that their effect happens once.

mod deliver;
mod publish;
mod settle;

use onlyonce_core::MessageId;
use onlyonce_store::{TransactionalStore, transactional::TransactionError};

pub use deliver::{Deliveries, Running};
pub use onlyonce_core::outbox::TargetRules;
pub use onlyonce_store::transactional::{MAX_MESSAGE_BYTES, Message, MessageTooLarge};
pub use publish::{DEFAULT_AT_ONCE, DEFAULT_TIMEOUT, Delivery, Parcel, Publish, Target};
pub use settle::Retried;
pub(crate) use settle::settles;

use crate::transaction::Transactions;

impl<T: TransactionalStore> Transactions<T> {
    /// Writes `message` in the transaction that is open on `tx`, and returns its id.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is no longer usable. A message larger than
    /// [`max_message_bytes`](Self::max_message_bytes) is not written ([`MessageTooLarge`]).
    pub async fn enqueue(
        &self,
        tx: &mut T::Connection,
        message: &Message,
    ) -> Result<MessageId, TransactionError> {
        let (bytes, most) = (message.bytes(), self.most_message_bytes());
        if bytes > most {
            return Err(TransactionError::given_up(MessageTooLarge { bytes, most }));
        }
        self.store().enqueue(tx, message).await
    }
}

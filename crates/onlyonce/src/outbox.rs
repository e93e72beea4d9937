//! Messages that leave once the caller's transaction has committed: written in it, so that they are
//! there if and only if what they tell of has happened.
//!
//! Deliberately absent: delivering them. Whoever does claims rows by their state.

use onlyonce_store::{TransactionalStore, transactional::TransactionError};

pub use onlyonce_store::transactional::Message;

use crate::transaction::Transactions;

impl<T: TransactionalStore> Transactions<T> {
    /// Leaves `message` in the transaction that is open on `tx`, and returns its id.
    ///
    /// # Errors
    /// [`TransactionError`]: the transaction is of no more use.
    pub async fn enqueue(
        &self,
        tx: &mut T::Connection,
        message: &Message,
    ) -> Result<String, TransactionError> {
        self.store().enqueue(tx, message).await
    }
}

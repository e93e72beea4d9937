//! The foreign call of a phase.

use onlyonce_store::failpoint;
use serde_json::Value;

use crate::{body::BoxError, transaction::Answer};

/// The right to call a provider once. It cannot be copied, and calling consumes it. Nothing else makes a
/// [`Called`], which the phase must return.
#[derive(Debug)]
pub struct ForeignCall {
    pub(super) key: String,
}

/// The result of a foreign call.
#[derive(Debug)]
pub struct Called {
    pub(super) provider_id: String,
    pub(super) data: Value,
}

/// Why a foreign call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailed {
    /// Nothing was sent: a retry makes the call.
    #[error("the provider was not reached")]
    NotSent(#[source] BoxError),
    /// The call may have happened: a retry repeats it under the same key if the provider recognises keys;
    /// otherwise the outcome is unknown.
    #[error("nobody knows whether the provider did it")]
    Unclear(#[source] BoxError),
    /// The provider refused permanently. This is the operation's answer.
    #[error("the provider refused")]
    Refused(Box<Answer>),
}

impl ForeignCall {
    /// Makes the call. `call` gets the key for the provider, the same for every attempt, and returns the
    /// provider's id for what it did, and the data for the next phases.
    ///
    /// # Errors
    /// [`CallFailed`], as `call` returns it.
    pub async fn send<F>(self, call: impl FnOnce(String) -> F + Send) -> Result<Called, CallFailed>
    where
        F: Future<Output = Result<(String, Value), CallFailed>> + Send,
    {
        failpoint!("phases.call.before");
        let outcome = call(self.key).await;
        failpoint!("phases.call.after");
        let (provider_id, data) = outcome?;
        Ok(Called { provider_id, data })
    }
}

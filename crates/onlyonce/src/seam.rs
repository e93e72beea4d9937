//! The interface between the layer and the service that executes: how an inner service says that nothing was
//! sent, how it asks whether it may still send, and how a handler says what happened.
//!
//! A plain handler needs none of this: once it is called, its request counts as sent.

use std::{fmt, sync::Arc};

use onlyonce_core::policy::Declared;

use crate::{body::BoxError, engine::Attempt};

/// An error of an inner service that *proves* that the operation was not started.
///
/// The layer searches the chain of sources for it. Any other error counts as "may have been executed".
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent")]
pub struct NotSent {
    /// Why nothing was sent.
    #[source]
    pub source: BoxError,
}

impl NotSent {
    /// A proof with its reason.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
        }
    }
}

/// Finds the proof in `error` or its sources that nothing was sent.
pub fn find_not_sent<'a>(mut error: &'a (dyn std::error::Error + 'static)) -> Option<&'a NotSent> {
    loop {
        if let Some(proof) = error.downcast_ref::<NotSent>() {
            return Some(proof);
        }
        error = error.source()?;
    }
}

/// The lease had too little time left when the first byte was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease of this attempt has run out before anything was sent")]
pub struct GuardFailed;

/// A request extension: tells, immediately before the first byte is written, whether this attempt still owns
/// its key.
///
/// An inner service that can delay its first write (a proxy that connects, queues or retries) calls
/// [`check`](Self::check) at that point, and fails with [`NotSent`] if the check fails.
#[derive(Clone)]
pub struct DispatchGuard(Arc<dyn Fn() -> bool + Send + Sync>);

impl DispatchGuard {
    /// A guard that holds as long as `alive` returns true.
    pub fn new(alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(alive))
    }

    /// Checks whether a first byte may be written now.
    ///
    /// # Errors
    /// [`GuardFailed`] if the lease has run out; then nothing may be sent.
    pub fn check(&self) -> Result<(), GuardFailed> {
        if (self.0)() { Ok(()) } else { Err(GuardFailed) }
    }
}

impl fmt::Debug for DispatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DispatchGuard")
    }
}

/// A request extension: how long the first byte of the answer may take, if less than the policy's `timeout`.
///
/// Like `timeout`, it only ends the client's wait: the key stays in progress, and the inner service may
/// answer until `max_execution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstByteWithin(pub std::time::Duration);

/// A response extension: the body of this HTTP/1 answer is delimited only by the end of the upstream's
/// connection, so nothing says whether it is complete.
///
/// Set by an inner service that forwards requests. Such an answer is stored unless it is visibly incomplete:
/// JSON must parse to its end. Under the profile `payments` the key becomes unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedByClose;

/// A response extension with which a handler declares what happened, whatever its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(pub Declared);

/// A request extension: the attempt that owns the request's key, for handlers that complete it in their
/// own transaction with [`Transactions::execute`](crate::transaction::Transactions::execute).
#[derive(Clone, Debug)]
pub struct Reservation(Arc<Attempt>);

impl Reservation {
    pub(crate) fn of(attempt: Arc<Attempt>) -> Self {
        Self(attempt)
    }
}

impl std::ops::Deref for Reservation {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        &self.0
    }
}

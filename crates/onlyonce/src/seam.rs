//! The seam between the layer and whatever executes: how an inner service says that nothing was
//! sent, how it asks whether it may still send, and how a handler says what really happened.
//!
//! A plain handler needs none of this: everything after the call counts as sent.

use std::{fmt, sync::Arc};

use onlyonce_core::policy::Declared;

use crate::{body::BoxError, engine::Attempt};

/// An error of an inner service that *proves* that the operation was not begun.
///
/// The layer looks for it along the chain of sources. Any other error counts as "may have been
/// executed".
#[derive(Debug, thiserror::Error)]
#[error("nothing was sent")]
pub struct NotSent {
    /// Why not.
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

/// Whether `error`, or what caused it, proves that nothing was sent.
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

/// A request extension: asks, at the last moment before the first byte is written, whether this
/// attempt still owns its key.
///
/// An inner service that can delay its first write (a proxy that connects, queues or retries) calls
/// [`check`](Self::check) there and fails with [`NotSent`] if it says no.
#[derive(Clone)]
pub struct DispatchGuard(Arc<dyn Fn() -> bool + Send + Sync>);

impl DispatchGuard {
    /// A guard that holds as long as `alive` says so.
    pub fn new(alive: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(alive))
    }

    /// Whether a first byte may be written now.
    ///
    /// # Errors
    /// [`GuardFailed`] if the lease has run out; nothing may be sent then.
    pub fn check(&self) -> Result<(), GuardFailed> {
        if (self.0)() { Ok(()) } else { Err(GuardFailed) }
    }
}

impl fmt::Debug for DispatchGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DispatchGuard")
    }
}

/// A request extension: how long the first byte of the answer may take, where that is less than the
/// policy's `timeout`.
///
/// It ends the client's wait and nothing else, as `timeout` does: the key stays in progress, and the
/// inner service is listened to until `max_execution`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstByteWithin(pub std::time::Duration);

/// A response extension: nothing but the end of the upstream's connection delimits the body of this
/// HTTP/1 answer, so that nothing in it says whether it came whole.
///
/// An inner service that forwards requests sets it. Such an answer is stored if nothing speaks against
/// it: JSON must parse to its end. Under the profile `payments` the key becomes unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedByClose;

/// A response extension with which a handler says what happened, whatever its status.
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

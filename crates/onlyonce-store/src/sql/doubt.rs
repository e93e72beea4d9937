//! Tracks whether visible data may be less durable than the server promises.
//!
//! A commit that waits for a standby is never rolled back: when its session is ended or told to stop waiting,
//! the record stays on the primary, where everybody can read it, and perhaps nowhere else. So after a write
//! with an unknown outcome, nothing is read until a new commit has waited to its end. A server's log is
//! ordered, so everything before that commit is then as durable as the commit.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rises with every write whose outcome is not known.
#[derive(Default)]
pub(crate) struct Doubt {
    raised: AtomicU64,
    settled: AtomicU64,
}

impl Doubt {
    pub(crate) fn raise(&self) {
        self.raised.fetch_add(1, Ordering::SeqCst);
    }

    /// What a commit that starts now would settle, if anything.
    pub(crate) fn pending(&self) -> Option<u64> {
        let raised = self.raised.load(Ordering::SeqCst);
        (self.settled.load(Ordering::SeqCst) < raised).then_some(raised)
    }

    /// A commit that started after [`pending`](Self::pending) has waited to its end. Anything raised since
    /// then stays.
    pub(crate) fn settle(&self, pending: u64) {
        self.settled.fetch_max(pending, Ordering::SeqCst);
    }

    /// Raises the doubt, unless [`Unanswered::answered`] is called: a future that is dropped while a
    /// statement is under way does not learn its outcome either.
    pub(crate) fn unless_answered(&self) -> Unanswered<'_> {
        Unanswered(Some(self))
    }
}

/// A statement under way.
pub(crate) struct Unanswered<'d>(Option<&'d Doubt>);

impl Unanswered<'_> {
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(doubt) = self.0 {
            doubt.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_raised_meanwhile_stays() {
        let doubt = Doubt::default();
        assert_eq!(doubt.pending(), None);
        doubt.raise();
        let pending = doubt.pending().unwrap();
        doubt.raise();
        doubt.settle(pending);
        let later = doubt.pending().unwrap();
        // A commit that began earlier and ends later settles nothing new.
        doubt.settle(pending);
        assert_eq!(doubt.pending(), Some(later));
        doubt.settle(later);
        assert_eq!(doubt.pending(), None);
    }

    #[test]
    fn silence_is_doubt() {
        let doubt = Doubt::default();
        doubt.unless_answered().answered();
        assert_eq!(doubt.pending(), None);
        drop(doubt.unless_answered());
        assert!(doubt.pending().is_some());
    }
}

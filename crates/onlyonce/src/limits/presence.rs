//! Whether the client at the other end of a connection may have left.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::Attendance;

/// Whether the client of a connection may have left. It has closed its side, and over HTTP/1.1 nobody can
/// tell whether it still reads. It still gets its answer, but the execution counts as detached.
///
/// A server that can tell inserts one per connection into the extensions of its requests, of which one runs
/// at a time, and calls [`Presence::left`].
#[derive(Clone, Default)]
pub struct Presence(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    has_left: bool,
    /// The execution running for the client.
    execution: Weak<Attendance>,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence")
            .field("has_left", &self.0.lock().has_left)
            .finish_non_exhaustive()
    }
}

impl Presence {
    /// The client has closed its side of the connection.
    pub fn left(&self) {
        let mut seen = self.0.lock();
        seen.has_left = true;
        if let Some(execution) = seen.execution.upgrade() {
            execution.detach();
        }
    }

    /// Registers `execution` as running for the client.
    pub(crate) fn waits_for(&self, execution: &Arc<Attendance>) {
        let mut seen = self.0.lock();
        seen.execution = Arc::downgrade(execution);
        if seen.has_left {
            execution.detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::DetachedExecutions, *};

    #[test]
    fn who_leaves_before_or_during_an_execution_is_not_there() {
        let all = DetachedExecutions::default();
        let presence = Presence::default();
        let (ended, running) = (all.execution(None), all.execution(None));
        presence.waits_for(&ended);
        drop(ended);
        presence.waits_for(&running);
        assert_eq!(all.total(), 0);
        presence.left();
        presence.left();
        assert_eq!(all.total(), 1);
        let next = all.execution(None);
        presence.waits_for(&next);
        assert_eq!(all.total(), 2);
        drop((running, next));
        assert_eq!(all.total(), 0);
    }
}

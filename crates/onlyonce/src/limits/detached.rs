//! Executions whose client has left or has already been answered, with a limit for each holder.
//!
//! A client that leaves does not affect its execution, so a client could leave on purpose and start any
//! number of them. Running executions are never stopped; a client beyond the limit may bring no new keys.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use super::Holder;

/// The detached executions of one engine.
#[derive(Clone, Default)]
pub(crate) struct DetachedExecutions(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    total: usize,
    holders: HashMap<Holder, usize>,
}

impl DetachedExecutions {
    /// An execution of `holder`, attended for now.
    pub(crate) fn execution(&self, holder: Option<Holder>) -> Arc<Attendance> {
        Arc::new(Attendance {
            all: self.clone(),
            holder,
            is_detached: AtomicBool::new(false),
            is_streaming: AtomicBool::new(false),
        })
    }

    /// The number of detached executions.
    pub(crate) fn total(&self) -> usize {
        self.0.lock().total
    }

    /// The number of detached executions of `holder`.
    pub(crate) fn of(&self, holder: &Holder) -> usize {
        self.0.lock().holders.get(holder).copied().unwrap_or(0)
    }

    fn add(&self, holder: Option<&Holder>) {
        let mut book = self.0.lock();
        book.total += 1;
        if let Some(holder) = holder {
            *book.holders.entry(holder.clone()).or_default() += 1;
        }
    }

    fn remove(&self, holder: Option<&Holder>) {
        let mut book = self.0.lock();
        book.total -= 1;
        let Some(holder) = holder else { return };
        if let Some(count) = book.holders.get_mut(holder) {
            *count -= 1;
            if *count == 0 {
                book.holders.remove(holder);
            }
        }
    }
}

/// Whether somebody waits for an execution. It lives as long as the execution.
pub(crate) struct Attendance {
    all: DetachedExecutions,
    holder: Option<Holder>,
    is_detached: AtomicBool,
    is_streaming: AtomicBool,
}

impl Attendance {
    /// The client has the head of its answer and takes the rest as it arrives: nobody polls the execution,
    /// but the client is still there.
    pub(crate) fn streams(&self) {
        self.is_streaming.store(true, Ordering::Release);
    }

    /// Nobody polls the execution any more.
    pub(crate) fn unwatched(&self) {
        if !self.is_streaming.load(Ordering::Acquire) {
            self.detach();
        }
    }

    /// The client has left.
    pub(crate) fn detach(&self) {
        if !self.is_detached.swap(true, Ordering::AcqRel) {
            self.all.add(self.holder.as_ref());
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if *self.is_detached.get_mut() {
            self.all.remove(self.holder.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ConnectionId, *};

    #[test]
    fn an_execution_is_counted_once_and_until_it_ends() {
        let all = DetachedExecutions::default();
        let holder = Holder::Connection(ConnectionId::unique());
        let execution = all.execution(Some(holder.clone()));
        assert_eq!((all.of(&holder), all.total()), (0, 0));
        execution.unwatched();
        execution.detach();
        assert_eq!((all.of(&holder), all.total()), (1, 1));
        let nobodys = all.execution(None);
        nobodys.streams();
        nobodys.unwatched();
        assert_eq!(all.total(), 1, "its client takes the answer");
        nobodys.detach();
        assert_eq!((all.of(&holder), all.total()), (1, 2));
        drop((execution, nobodys));
        assert_eq!(all.total(), 0);
        assert!(all.0.lock().holders.is_empty());
    }
}

//! Who waits for which key in this process.
//!
//! A wake-up is a hint to look again; looking is what counts. When a key fails, one waiter is woken,
//! so that one executes and the others go on waiting.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onlyonce_core::RecordId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

#[derive(Default)]
struct Waiting {
    by_key: HashMap<RecordId, VecDeque<(u64, oneshot::Sender<()>)>>,
    total: usize,
    next_ticket: u64,
}

/// The waiters of one engine.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<Waiting>>);

/// A place in the queue; dropping it leaves the queue.
pub(crate) struct Waiter {
    waiters: Waiters,
    id: RecordId,
    ticket: u64,
    woken: oneshot::Receiver<()>,
}

impl Waiters {
    /// A place in the queue for `id`, or `None` where either bound is reached.
    pub(crate) fn join(&self, id: RecordId, per_key: usize, in_all: usize) -> Option<Waiter> {
        let (wake, woken) = oneshot::channel();
        let mut waiting = self.0.lock();
        let queued = waiting.by_key.get(&id).map_or(0, VecDeque::len);
        if waiting.total >= in_all || queued >= per_key {
            return None;
        }
        waiting.next_ticket += 1;
        waiting.total += 1;
        let ticket = waiting.next_ticket;
        waiting
            .by_key
            .entry(id)
            .or_default()
            .push_back((ticket, wake));
        Some(Waiter {
            waiters: self.clone(),
            id,
            ticket,
            woken,
        })
    }

    /// Wakes the longest waiter of `id`.
    pub(crate) fn wake_one(&self, id: RecordId) {
        let mut waiting = self.0.lock();
        while let Some((_, wake)) = waiting.pop(id) {
            if wake.send(()).is_ok() {
                return;
            }
        }
    }

    /// Wakes every waiter of `id`.
    pub(crate) fn wake_all(&self, id: RecordId) {
        let queue = {
            let mut waiting = self.0.lock();
            let queue = waiting.by_key.remove(&id).unwrap_or_default();
            waiting.total -= queue.len();
            queue
        };
        for (_, wake) in queue {
            // One that has just left needs no waking.
            let _ = wake.send(());
        }
    }

    /// How many wait.
    pub(crate) fn total(&self) -> usize {
        self.0.lock().total
    }

    /// Wakes everybody, when it is not known who has reason to look.
    pub(crate) fn wake_everybody(&self) {
        let ids: Vec<RecordId> = self.0.lock().by_key.keys().copied().collect();
        for id in ids {
            self.wake_all(id);
        }
    }
}

impl Waiting {
    fn pop(&mut self, id: RecordId) -> Option<(u64, oneshot::Sender<()>)> {
        let queue = self.by_key.get_mut(&id)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.by_key.remove(&id);
        }
        if first.is_some() {
            self.total -= 1;
        }
        first
    }
}

impl Waiter {
    /// Resolves when somebody says that the key has changed.
    pub(crate) async fn woken(&mut self) {
        // An error means that the sender was dropped by a wake-up: then there is reason to look.
        let _ = (&mut self.woken).await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        let Some(queue) = waiting.by_key.get_mut(&self.id) else {
            return;
        };
        let before = queue.len();
        queue.retain(|(ticket, _)| *ticket != self.ticket);
        let left = before - queue.len();
        if queue.is_empty() {
            waiting.by_key.remove(&self.id);
        }
        waiting.total -= left;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> RecordId {
        RecordId([number; 16])
    }

    #[tokio::test]
    async fn one_is_woken_then_all() {
        let waiters = Waiters::default();
        let mut places: Vec<Waiter> = (0..3)
            .map(|_| waiters.join(id(1), 10, 10).expect("there is room"))
            .collect();
        waiters.wake_one(id(1));
        places.remove(0).woken().await;
        assert_eq!(waiters.total(), 2);
        waiters.wake_all(id(1));
        for mut place in places {
            place.woken().await;
        }
        assert_eq!(waiters.total(), 0);
    }

    #[tokio::test]
    async fn one_that_left_is_passed_over() {
        let waiters = Waiters::default();
        let gone = waiters.join(id(1), 10, 10);
        let mut stays = waiters.join(id(1), 10, 10).expect("there is room");
        drop(gone);
        waiters.wake_one(id(1));
        stays.woken().await;
        drop(stays);
        assert!(
            waiters.0.lock().by_key.is_empty(),
            "no empty queue is left behind"
        );
    }

    #[test]
    fn both_bounds_hold() {
        let waiters = Waiters::default();
        let _one = waiters.join(id(1), 1, 2).expect("there is room");
        assert!(waiters.join(id(1), 1, 2).is_none(), "per key");
        let _two = waiters.join(id(2), 1, 2).expect("there is room");
        assert!(waiters.join(id(3), 1, 2).is_none(), "in all");
    }
}

//! The waiters of this process, by key.
//!
//! A wake-up is only a hint to look again. When a key is released, one waiter is woken, so that one executes
//! and the others keep waiting.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use onlyonce_core::RecordId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::limits::Client;

/// Waiters of one process; further ones are refused.
const MAX_WAITERS: usize = 100_000;

#[derive(Default)]
struct Waiting {
    by_key: HashMap<RecordId, VecDeque<Place>>,
    by_client: HashMap<Client, usize>,
    total: usize,
    next_ticket: u64,
}

struct Place {
    ticket: u64,
    client: Client,
    wake: oneshot::Sender<()>,
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
    /// Joins the queue for `id`; `None` if a bound is reached: `per_key`, `per_client` or [`MAX_WAITERS`].
    pub(crate) fn join(
        &self,
        id: RecordId,
        client: Client,
        (per_key, per_client): (usize, usize),
    ) -> Option<Waiter> {
        let (wake, woken) = oneshot::channel();
        let mut waiting = self.0.lock();
        let queued = waiting.by_key.get(&id).map_or(0, VecDeque::len);
        let of_client = waiting.by_client.get(&client).copied().unwrap_or(0);
        if waiting.total >= MAX_WAITERS || queued >= per_key || of_client >= per_client {
            return None;
        }
        waiting.next_ticket += 1;
        waiting.total += 1;
        *waiting.by_client.entry(client.clone()).or_default() += 1;
        let ticket = waiting.next_ticket;
        waiting.by_key.entry(id).or_default().push_back(Place {
            ticket,
            client,
            wake,
        });
        Some(Waiter {
            waiters: self.clone(),
            id,
            ticket,
            woken,
        })
    }

    /// Wakes the waiter of `id` that has waited longest.
    pub(crate) fn wake_one(&self, id: RecordId) {
        let mut waiting = self.0.lock();
        while let Some(place) = waiting.pop(id) {
            if place.wake.send(()).is_ok() {
                return;
            }
        }
    }

    /// Wakes every waiter of `id`.
    pub(crate) fn wake_all(&self, id: RecordId) {
        let queue = {
            let mut waiting = self.0.lock();
            let queue = waiting.by_key.remove(&id).unwrap_or_default();
            for place in &queue {
                waiting.left(&place.client);
            }
            queue
        };
        for place in queue {
            // A waiter that has just left needs no wake-up.
            let _ = place.wake.send(());
        }
    }

    /// The number of waiters.
    pub(crate) fn total(&self) -> usize {
        self.0.lock().total
    }

    /// The number of waiters for `id`.
    pub(crate) fn of(&self, id: RecordId) -> usize {
        self.0.lock().by_key.get(&id).map_or(0, VecDeque::len)
    }

    /// Wakes all waiters, if it is not known which of them should look.
    pub(crate) fn wake_everybody(&self) {
        let ids: Vec<RecordId> = self.0.lock().by_key.keys().copied().collect();
        for id in ids {
            self.wake_all(id);
        }
    }
}

impl Waiting {
    fn pop(&mut self, id: RecordId) -> Option<Place> {
        let queue = self.by_key.get_mut(&id)?;
        let first = queue.pop_front();
        if queue.is_empty() {
            self.by_key.remove(&id);
        }
        if let Some(place) = &first {
            self.left(&place.client);
        }
        first
    }

    /// Counts one waiter of `client` less.
    fn left(&mut self, client: &Client) {
        self.total -= 1;
        if let Some(count) = self.by_client.get_mut(client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(client);
            }
        }
    }
}

impl Waiter {
    /// Resolves when the key may have changed.
    pub(crate) async fn woken(&mut self) {
        // An error means that a wake-up dropped the sender: then there is reason to look too.
        let _ = (&mut self.woken).await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        let Some(queue) = waiting.by_key.get_mut(&self.id) else {
            return;
        };
        let at = queue.iter().position(|place| place.ticket == self.ticket);
        let left = at.and_then(|at| queue.remove(at));
        if queue.is_empty() {
            waiting.by_key.remove(&self.id);
        }
        if let Some(place) = left {
            waiting.left(&place.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: (usize, usize) = (10, 10);

    fn id(number: u8) -> RecordId {
        RecordId([number; 16])
    }

    fn client(name: &str) -> Client {
        Client::Named(name.into())
    }

    #[tokio::test]
    async fn one_is_woken_then_all() {
        let waiters = Waiters::default();
        let mut places: Vec<Waiter> = (0..3)
            .map(|_| {
                waiters
                    .join(id(1), client("a"), ROOM)
                    .expect("there is room")
            })
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
        let gone = waiters.join(id(1), client("a"), ROOM);
        let mut stays = waiters
            .join(id(1), client("a"), ROOM)
            .expect("there is room");
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
        let join = |key: u8, name: &str| waiters.join(id(key), client(name), (1, 2));
        let one = join(1, "a").expect("there is room");
        assert!(join(1, "b").is_none(), "one for each key");
        let two = join(2, "a").expect("there is room");
        assert!(join(3, "a").is_none(), "two for each client");
        let three = join(3, "b").expect("there is room for another client");
        drop(one);
        let again = join(4, "a").expect("there is room again");
        waiters.wake_one(id(2));
        waiters.wake_all(id(4));
        drop((two, three, again));
        let waiting = waiters.0.lock();
        assert!(waiting.by_client.is_empty() && waiting.by_key.is_empty());
        assert_eq!(waiting.total, 0);
    }
}

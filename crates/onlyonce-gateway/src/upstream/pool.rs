//! The idle connections to one backend: newest first, bounded in age and in number.
//!
//! While there are any, a task closes those that are too old or that the backend has closed.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::connect::Link;
use crate::cores;

/// How often idle connections are checked. Connections used within that time are skipped.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Pool {
    idle: Mutex<Resting>,
    max_idle: usize,
    max_age: Duration,
}

#[derive(Default)]
struct Resting {
    /// Oldest in front.
    links: VecDeque<Idle>,
    /// Whether the task is running.
    is_tended: bool,
}

struct Idle {
    link: Link,
    since: Instant,
}

impl Pool {
    pub(super) fn new(max_idle: usize, max_age: Duration) -> Self {
        Self {
            idle: Mutex::default(),
            max_idle,
            max_age,
        }
    }

    /// Takes out the newest usable connection that `suits`. Prefers a connection of this core, since another
    /// core's event loop would have to be woken.
    ///
    /// An HTTP/2 connection may be returned a moment before hyper has finished with its last response; it is
    /// skipped until then.
    pub(super) fn checkout(&self, suits: impl Fn(&Link) -> bool) -> Option<Link> {
        let idle = &mut self.idle.lock().links;
        self.prune(idle, Instant::now());
        let here = cores::here();
        let mut of_another_core = None;
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let link = &idle[at].link;
            if link.is_closed() {
                idle.remove(at);
                // The connections behind it have moved up.
                of_another_core = of_another_core.map(|newest| newest - 1);
            } else if !suits(link) || !link.is_ready() {
            } else if link.core() == here {
                return idle.remove(at).map(|idle| idle.link);
            } else {
                of_another_core = of_another_core.or(Some(at));
            }
        }
        idle.remove(of_another_core?).map(|idle| idle.link)
    }

    /// Returns a connection whose last response was read to its end.
    pub(super) fn give_back(self: &Arc<Self>, link: Link) {
        if link.is_closed() || self.max_idle == 0 {
            return;
        }
        let mut idle = self.idle.lock();
        let now = Instant::now();
        self.prune(&mut idle.links, now);
        if idle.links.len() >= self.max_idle {
            idle.links.pop_front();
        }
        idle.links.push_back(Idle { link, since: now });
        if !std::mem::replace(&mut idle.is_tended, true) {
            tokio::spawn(tend(Arc::downgrade(self)));
        }
    }

    /// Closes connections that are too old or have ended. Returns whether any are left.
    fn close_ended(&self) -> bool {
        let mut idle = self.idle.lock();
        let now = Instant::now();
        self.prune(&mut idle.links, now);
        idle.links
            .retain(|idle| now.duration_since(idle.since) < LOOK_EVERY || idle.link.is_there());
        idle.is_tended = !idle.links.is_empty();
        idle.is_tended
    }

    fn prune(&self, idle: &mut VecDeque<Idle>, now: Instant) {
        while idle
            .front()
            .is_some_and(|idle| now.duration_since(idle.since) > self.max_age)
        {
            idle.pop_front();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.idle.lock().links.len()
    }
}

/// Checks the connections of `pool` until there are none.
async fn tend(pool: Weak<Pool>) {
    loop {
        sleep(LOOK_EVERY).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_ended()) {
            return;
        }
    }
}

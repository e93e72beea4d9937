//! The idle connections to one backend: newest first, none older than the limit, never more than
//! the limit.
//!
//! Deliberately absent: a task that closes old ones. They are closed when the pool is next used,
//! and until then their number is bounded.

use std::{collections::VecDeque, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::connect::Link;
use crate::cores;

pub(super) struct Pool {
    /// Oldest in front.
    idle: Mutex<VecDeque<Idle>>,
    max_idle: usize,
    max_age: Duration,
}

struct Idle {
    link: Link,
    since: Instant,
}

impl Pool {
    pub(super) fn new(max_idle: usize, max_age: Duration) -> Self {
        Self {
            idle: Mutex::new(VecDeque::new()),
            max_idle,
            max_age,
        }
    }

    /// Takes out the newest connection that can be used and that `suits`; rather one of this core than
    /// another's, whose event loop would have to be woken.
    ///
    /// A connection may arrive here a moment before hyper has finished with its last response; it
    /// is passed over until then.
    pub(super) fn checkout(&self, suits: impl Fn(&Link) -> bool) -> Option<Link> {
        let mut idle = self.idle.lock();
        self.prune(&mut idle, Instant::now());
        let here = cores::here();
        let mut of_another_core = None;
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let link = &idle[at].link;
            if link.is_closed() {
                idle.remove(at);
                // What stood behind it has moved up.
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

    /// Puts a connection back whose last response was read to its end.
    pub(super) fn give_back(&self, link: Link) {
        if link.is_closed() || self.max_idle == 0 {
            return;
        }
        let mut idle = self.idle.lock();
        let now = Instant::now();
        self.prune(&mut idle, now);
        if idle.len() >= self.max_idle {
            idle.pop_front();
        }
        idle.push_back(Idle { link, since: now });
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
        self.idle.lock().len()
    }
}

//! One event loop for each core, so that everything of a request happens on one core.
//!
//! A connection of HTTP/1.1 is given to the core that has the fewest. Whatever its requests start there
//! stays there: the execution, the connection to the backend, the timers. With one pool of threads for all of it,
//! each of these wakes a thread on another core, and that costs more than the work itself.
//!
//! The streams of one HTTP/2 connection are many clients' worth of work: they go back to the runtime that
//! accepted the connection, whose threads share what there is to do.

use std::{
    cell::Cell,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

thread_local! {
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The core whose event loop this is, on a thread of one.
pub(crate) fn here() -> Option<usize> {
    HERE.get()
}

/// Threads for blocking work, over all cores: name look-ups, large bodies, and reads of an embedded store.
const MAX_BLOCKING: usize = 512;
/// How long such a thread waits for more. One always stays, so that work is queued where the system has no
/// thread left.
const BLOCKING_WAITS: Duration = Duration::from_secs(24 * 3_600);

/// The event loops. They end when this is dropped, and with them what still runs there.
pub(crate) struct Cores(Vec<Core>);

struct Core {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    _running: oneshot::Sender<()>,
}

impl Cores {
    /// Starts one for each core that this process may use. Where a thread cannot be had, the others do its
    /// work; where none can, the runtime that accepts connections does.
    pub(crate) fn start() -> Self {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let start = |number| Core::start(number, (MAX_BLOCKING / count).max(1));
        Self((0..count).filter_map(start).collect())
    }

    /// The loop that the next connection goes to, and a place there. To be called on the runtime that
    /// accepts connections.
    pub(crate) fn next(&self) -> (Handle, Place) {
        let fewest = |core: &&Core| core.connections.load(Ordering::Relaxed);
        match self.0.iter().min_by_key(fewest) {
            Some(core) => (core.handle.clone(), Place::at(&core.connections)),
            None => (Handle::current(), Place::at(&Arc::default())),
        }
    }
}

impl Core {
    fn start(number: usize, max_blocking: usize) -> Option<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(max_blocking)
            .thread_keep_alive(BLOCKING_WAITS)
            .build()
            .ok()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let run = move || {
            HERE.set(Some(number));
            let _ = runtime.block_on(async {
                // The first of its threads, while there are some to be had.
                tokio::task::spawn_blocking(|| ());
                ended.await
            });
            // What is left has had its time; a blocked name look-up is not waited for.
            runtime.shutdown_background();
        };
        let name = format!("core-{number}");
        thread::Builder::new().name(name).spawn(run).ok()?;
        Some(Self {
            handle,
            connections: Arc::default(),
            _running: running,
        })
    }
}

/// The place of a connection on its core, until it is dropped.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    fn at(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(connections.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every core gets its share of connections, whatever runs on it stays there, and a place that
    /// is given up is taken next.
    #[tokio::test]
    async fn connections_are_spread_and_stay_where_they_are() {
        assert_eq!(here(), None, "not on a core");
        let cores = Cores::start();
        let count = cores.0.len();
        assert!(count > 0);
        let mut places = Vec::new();
        for _ in 0..2 * count {
            let (core, place) = cores.next();
            let started = core.spawn(async {
                let inner = tokio::spawn(async { here() });
                (here(), inner.await.expect("it ran"))
            });
            let (outer, inner) = started.await.expect("it ran");
            assert!(outer.is_some());
            assert_eq!(outer, inner, "what it starts stays on its core");
            places.push((outer, place));
        }
        let on = |core| places.iter().filter(|(on, _)| *on == Some(core)).count();
        assert!((0..count).all(|core| on(core) == 2));
        let (left, place) = places.remove(0);
        drop(place);
        let (core, _place) = cores.next();
        let next = core.spawn(async { here() }).await.expect("it ran");
        assert_eq!(next, left);
    }
}

//! One event loop per core, so that all work for a request happens on one core.
//!
//! An HTTP/1.1 connection is given to the core with the fewest connections. Whatever its requests start stays
//! there: the execution, the connection to the backend, the timers. With one thread pool for everything, each
//! of these would wake a thread on another core, which costs more than the work itself.
//!
//! The streams of one HTTP/2 connection are as much work as many clients. They go back to the runtime that
//! accepted the connection, whose threads share the work.

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

/// The core whose event loop runs on this thread, if one does.
pub(crate) fn here() -> Option<usize> {
    HERE.get()
}

/// Threads for blocking work, over all cores: name lookups, large bodies, and reads of an embedded store.
const MAX_BLOCKING: usize = 512;
/// How long an idle blocking thread is kept. One always stays, so that work is queued if the system has no
/// thread left.
const BLOCKING_WAITS: Duration = Duration::from_secs(24 * 3_600);

/// The event loops. Dropping this ends them, and what still runs there.
pub(crate) struct Cores(Vec<Core>);

struct Core {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    _running: oneshot::Sender<()>,
}

impl Cores {
    /// Starts one for each core that this process may use. If a thread cannot be started, the other cores do
    /// its work; if none can, the accepting runtime does.
    pub(crate) fn start() -> Self {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        let start = |number| Core::start(number, (MAX_BLOCKING / count).max(1));
        Self((0..count).filter_map(start).collect())
    }

    /// The event loop for the next connection, and a place there. Must be called on the accepting runtime.
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
                // Starts the first blocking thread while the system still has one.
                tokio::task::spawn_blocking(|| ());
                ended.await
            });
            // Running tasks have had their time; a blocked name lookup is not waited for.
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

/// The place of a connection on its core, freed when dropped.
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

    /// Goal: connections are spread evenly over the cores, work stays on its core, and a freed place is taken
    /// next.
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

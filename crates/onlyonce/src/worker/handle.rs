//! The running loops as a value: dropping it ends them, and it reports on them.
//!
//! Deliberately absent: finishing a round before the end. What a loop was writing is complete or has not
//! happened, and a walk over all records may take minutes.

use std::{sync::Arc, time::Duration};

use onlyonce_store::StoreError;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Interval};

use super::{Pace, started};
use crate::{
    engine::Engine,
    reconcile::{Ask, Nobody},
};

/// How often to retry loading the last belief about the store's clock.
const RECALL_EVERY: Duration = Duration::from_secs(1);

/// The background loops of one [`Engine`], which keep keys from being stuck or kept for ever. They run in
/// tasks of the tokio runtime in which they are started, and end when this is dropped.
///
/// ```
/// use onlyonce::{Engine, Pace, Workers, store::MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let engine = Engine::from(MemoryStore::new());
/// let workers = Workers::start(&engine, Pace::default());
/// // Serve, until it is time to end.
/// for report in workers.shutdown().await {
///     assert!(!report.panicked, "{report:?}");
/// }
/// # }
/// ```
#[must_use = "the loops end when it is dropped"]
#[derive(Debug)]
pub struct Workers(Loops);

impl Workers {
    /// Starts the loops without a provider: keys with an unknown outcome are left to people.
    pub fn start(engine: &Engine, pace: Pace) -> Self {
        Self::start_with(engine, pace, Arc::new(Nobody))
    }

    /// Starts the loops. `provider` is asked about keys with an unknown outcome.
    pub fn start_with(engine: &Engine, pace: Pace, provider: Arc<dyn Ask>) -> Self {
        engine.asks(provider.clone());
        Self(started(engine, pace, provider))
    }

    /// What each loop has done so far.
    pub fn reports(&self) -> Vec<LoopReport> {
        let reports = self.0.reports.iter();
        reports.map(|report| report.lock().clone()).collect()
    }

    /// Ends the loops, waits until none of them runs any more, and returns what each has done.
    ///
    /// A round in progress is not finished. Whatever it was writing is complete or has not happened, and the
    /// loops of another process, or of the next one, continue with the rest.
    pub async fn shutdown(mut self) -> Vec<LoopReport> {
        self.0.tasks.shutdown().await;
        self.reports()
    }
}

/// What one background loop has done since it was started.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoopReport {
    /// `sweep`, `reap`, `reconcile`, `spool`, `census`, `clock`, `identity`, `scopes` or `audit`.
    pub name: &'static str,
    /// The rounds that have ended.
    pub rounds: u64,
    /// The number of those that failed.
    pub failed: u64,
    /// Why the last of these failed.
    pub last_error: Option<Arc<StoreError>>,
    /// Whether the loop ended by a panic, which is a bug. It is not restarted.
    pub panicked: bool,
}

/// The loops being started.
#[derive(Debug)]
pub(super) struct Loops {
    engine: Engine,
    tasks: JoinSet<()>,
    reports: Vec<Arc<Mutex<LoopReport>>>,
}

impl Loops {
    pub(super) fn of(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            tasks: JoinSet::new(),
            reports: Vec::new(),
        }
    }

    /// Runs `round` at each of `ticks`.
    pub(super) fn spawn<F>(
        &mut self,
        name: &'static str,
        ticks: Interval,
        round: impl FnMut(Engine) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let (engine, noted) = (self.engine.clone(), self.noted(name));
        self.tasks.spawn(noted.rounds(engine, ticks, round));
    }

    /// The same, once the last belief about the store's clock has been loaded: nothing is decided before.
    pub(super) fn spawn_recalled<F>(
        &mut self,
        name: &'static str,
        ticks: Interval,
        round: impl FnMut(Engine) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        let (engine, noted) = (self.engine.clone(), self.noted(name));
        self.tasks.spawn(async move {
            while let Err(error) = engine.recall_time().await {
                tracing::warn!(%error, "the store does not say what was last believed of its clock; asking again");
                noted.ended(Err(error));
                tokio::time::sleep(RECALL_EVERY).await;
            }
            noted.rounds(engine, ticks, round).await;
        });
    }

    fn noted(&mut self, name: &'static str) -> Noted {
        let report = Arc::new(Mutex::new(LoopReport {
            name,
            rounds: 0,
            failed: 0,
            last_error: None,
            panicked: false,
        }));
        self.reports.push(report.clone());
        Noted(report)
    }
}

/// The report of one loop, including its panic.
struct Noted(Arc<Mutex<LoopReport>>);

impl Noted {
    async fn rounds<F>(
        self,
        engine: Engine,
        mut ticks: Interval,
        mut round: impl FnMut(Engine) -> F,
    ) where
        F: Future<Output = Result<(), StoreError>>,
    {
        loop {
            ticks.tick().await;
            self.ended(round(engine.clone()).await);
        }
    }

    fn ended(&self, round: Result<(), StoreError>) {
        let mut report = self.0.lock();
        report.rounds += 1;
        if let Err(error) = round {
            report.failed += 1;
            report.last_error = Some(Arc::new(error));
        }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().panicked = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use onlyonce_store::memory::MemoryStore;
    use tokio::sync::Notify;

    use super::*;

    fn report<'r>(reports: &'r [LoopReport], name: &str) -> &'r LoopReport {
        reports.iter().find(|report| report.name == name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn every_loop_reports_its_rounds() {
        let engine = Engine::from(MemoryStore::new());
        let workers = Workers::start(&engine, Pace::default());
        tokio::time::sleep(Duration::from_secs(11)).await;
        let reports = workers.shutdown().await;
        let rounds = |name| report(&reports, name).rounds;
        assert_eq!((rounds("sweep"), rounds("reconcile")), (3, 3));
        assert_eq!((rounds("reap"), rounds("audit")), (1, 0));
        assert!(reports.iter().all(|report| report.failed == 0));
        assert!(reports.iter().all(|report| !report.panicked));
    }

    /// Goal: a loop that has ended by a bug, or fails, is told from one that is well, while the others go on.
    #[tokio::test(start_paused = true)]
    async fn failures_and_panics_are_reported() {
        let mut loops = Loops::of(&Engine::from(MemoryStore::new()));
        let second = Duration::from_secs(1);
        loops.spawn("fails", tokio::time::interval(second), async |_: Engine| {
            Err(StoreError::Unavailable("away".into()))
        });
        loops.spawn(
            "panics",
            tokio::time::interval(second),
            async |_: Engine| panic!("planted"),
        );
        loops.spawn("well", tokio::time::interval(second), async |_: Engine| {
            Ok(())
        });
        let workers = Workers(loops);
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        for reports in [workers.reports(), workers.shutdown().await] {
            let fails = report(&reports, "fails");
            assert_eq!((fails.rounds, fails.failed), (3, 3));
            assert!(fails.last_error.is_some() && !fails.panicked);
            assert!(report(&reports, "panics").panicked);
            let well = report(&reports, "well");
            assert_eq!((well.rounds, well.failed, well.panicked), (3, 0, false));
        }
    }

    /// Goal: after `shutdown`, and after a drop, no round is under way.
    ///
    /// Method: a round that never ends, and holds something.
    /// Evidence: nobody but the test holds it afterwards.
    #[tokio::test]
    async fn a_round_under_way_is_let_go() {
        let held = Arc::new(Notify::new());
        let started = |held: &Arc<Notify>| {
            let mut loops = Loops::of(&Engine::from(MemoryStore::new()));
            let held = held.clone();
            let every = tokio::time::interval(Duration::from_secs(1));
            loops.spawn("endless", every, move |_: Engine| {
                let held = held.clone();
                async move {
                    held.notify_one();
                    std::future::pending().await
                }
            });
            Workers(loops)
        };
        let workers = started(&held);
        held.notified().await;
        workers.shutdown().await;
        assert_eq!(Arc::strong_count(&held), 1);

        let workers = started(&held);
        held.notified().await;
        drop(workers);
        while Arc::strong_count(&held) > 1 {
            tokio::task::yield_now().await;
        }
    }
}

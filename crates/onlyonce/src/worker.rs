//! The background loops. Each is one `run_once`, safe to run on every node at once: what is right
//! comes from the swap, not from who runs it.

pub mod reap;
pub mod reconcile;
pub mod runs;
pub mod sweep;

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use crate::{
    engine::{Engine, known_store::LOOK_EVERY, store_clock::NOTE_EVERY},
    reconcile::{Ask, Nobody},
};

/// How often the audit is pruned: so often within the time it is kept, and within these bounds.
const PRUNES_PER_RETENTION: u32 = 10;
const MIN_PRUNE_EVERY: Duration = Duration::from_millis(200);
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);
/// How often it is asked what was last believed of the store's clock, until the store says so.
const RECALL_EVERY: Duration = Duration::from_secs(1);
/// How often the spool is looked at.
const DRAIN_EVERY: Duration = Duration::from_secs(2);

/// How often unknown keys are counted.
const CENSUS_EVERY: Duration = Duration::from_secs(60);
/// An outcome that has been unknown for longer raises an alarm every time.
const OLD_UNKNOWN: Duration = Duration::from_secs(3_600);

/// How long it is kept what operators did, unless said otherwise: a year.
pub const DEFAULT_KEEP_AUDIT: Duration = Duration::from_secs(365 * 86_400);

/// How often each loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The search for lapsed leases.
    pub sweep_every: Duration,
    /// The search for what has expired.
    pub reap_every: Duration,
    /// The look at what is unknown.
    pub reconcile_every: Duration,
    /// How long it is kept what operators did to keys that are gone.
    pub keep_audit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sweep_every: Duration::from_secs(5),
            reap_every: Duration::from_secs(60),
            reconcile_every: Duration::from_secs(5),
            keep_audit: DEFAULT_KEEP_AUDIT,
        }
    }
}

/// Starts the loops. They end when the set is dropped. Nobody is asked what became of keys whose
/// outcome is unknown: that is left to people.
pub fn start(engine: &Engine, pace: Pace) -> JoinSet<()> {
    start_with(engine, pace, Arc::new(Nobody))
}

/// Starts the loops. They end when the set is dropped. `provider` is asked what became of keys whose
/// outcome is unknown.
pub fn start_with(engine: &Engine, pace: Pace, provider: Arc<dyn Ask>) -> JoinSet<()> {
    let mut loops = JoinSet::new();
    let reconciler = engine.clone();
    loops.spawn(async move {
        recalled(&reconciler).await;
        let mut ticks = every(pace.reconcile_every);
        loop {
            ticks.tick().await;
            let round = reconcile::run_once(&reconciler, &*provider);
            if let Err(error) = noted(&reconciler, "reconcile", round, |settled| *settled).await {
                tracing::warn!(%error, "unknown keys could not be looked into; the next round tries again");
            }
        }
    });
    let sweeper = engine.clone();
    loops.spawn(async move {
        recalled(&sweeper).await;
        let mut ticks = every(pace.sweep_every);
        loop {
            ticks.tick().await;
            let round = sweep::run_once(&sweeper);
            if let Err(error) = noted(&sweeper, "sweep", round, |swept| *swept).await {
                tracing::warn!(%error, "the sweep could not be finished; the next one tries again");
            }
        }
    });
    if let Some(spool) = engine.spool().cloned() {
        let drainer = engine.clone();
        loops.spawn(async move {
            let mut ticks = every(DRAIN_EVERY);
            loop {
                ticks.tick().await;
                match noted(&drainer, "spool", spool.drain(&drainer), |taken| *taken).await {
                    Ok(0) => {}
                    Ok(taken) => tracing::info!(taken, "results from the spool are in the store"),
                    Err(error) => tracing::debug!(%error, "the spool waits for the store"),
                }
            }
        });
    }
    let watcher = engine.clone();
    loops.spawn(async move {
        let mut ticks = every(CENSUS_EVERY);
        loop {
            ticks.tick().await;
            match watcher.census().await {
                Ok(census) if census.oldest > OLD_UNKNOWN => {
                    let (oldest, dead_letters) = (census.oldest.as_secs(), census.dead_letters);
                    tracing::error!(
                        oldest_seconds = oldest,
                        dead_letters,
                        "unknown_age: an outcome has been unknown for too long"
                    );
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "unknown keys could not be counted"),
            }
        }
    });
    let reaper = engine.clone();
    loops.spawn(async move {
        recalled(&reaper).await;
        let mut ticks = every(pace.reap_every);
        loop {
            ticks.tick().await;
            // Listening first, so that a jump since the last round is noticed.
            if reaper.store_now().await.is_err() || !reaper.store_clock().is_steady() {
                continue;
            }
            let round = reap::run_once(&reaper);
            let changed = |(expired, deleted): &(usize, usize)| expired + deleted;
            if let Err(error) = noted(&reaper, "reap", round, changed).await {
                tracing::warn!(%error, "the reaping could not be finished; the next one tries again");
            }
        }
    });
    let noter = engine.clone();
    loops.spawn(async move {
        let mut ticks = every(NOTE_EVERY);
        loop {
            ticks.tick().await;
            if let Err(error) = noter.note_time().await {
                tracing::debug!(%error, "the store's clock could not be noted");
            }
        }
    });
    let looker = engine.clone();
    loops.spawn(async move {
        let mut ticks = every(LOOK_EVERY);
        loop {
            ticks.tick().await;
            if let Err(error) = looker.look_at_store().await {
                tracing::debug!(%error, "the store could not be looked at");
            }
        }
    });
    let pruner = engine.clone();
    loops.spawn(async move {
        // It walks the whole journal, so it is not for every round of the reaper.
        let period = (pace.keep_audit / PRUNES_PER_RETENTION).clamp(MIN_PRUNE_EVERY, PRUNE_EVERY);
        let mut ticks = every(period);
        // Nothing has grown old since the last process ended.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            if let Err(error) = pruner.prune_audit(pace.keep_audit).await {
                tracing::warn!(%error, "the audit could not be pruned; the next round tries again");
            }
        }
    });
    loops
}

/// The outcome of a round, noted for whoever asks when the loop last came round.
async fn noted<T, E>(
    engine: &Engine,
    name: &'static str,
    round: impl Future<Output = Result<T, E>>,
    changed: impl Fn(&T) -> usize,
) -> Result<T, E> {
    let clock = crate::clock::Clock::system();
    let began = clock.moment();
    let outcome = round.await;
    let count = outcome.as_ref().ok().map(|done| changed(done) as u64);
    engine.noted_runs().note(name, began, clock.moment(), count);
    outcome
}

/// Returns once it is known what was last believed of the store's clock: nothing is decided before.
async fn recalled(engine: &Engine) {
    while let Err(error) = engine.recall_time().await {
        tracing::warn!(%error, "the store does not say what was last believed of its clock; asking again");
        tokio::time::sleep(RECALL_EVERY).await;
    }
}

fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

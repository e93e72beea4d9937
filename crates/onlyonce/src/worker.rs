//! The background loops. Each is one `run_once`, safe to run on every node at once: what is right
//! comes from the swap, not from who runs it.

pub mod reap;
pub mod runs;
pub mod sweep;

use std::time::Duration;

use tokio::task::JoinSet;

use crate::engine::Engine;

/// A wall clock that moves further than this between two rounds of the reaper is not believed.
const MAX_CLOCK_JUMP: Duration = Duration::from_secs(60);

/// How often the audit is pruned: so often within the time it is kept, and within these bounds.
const PRUNES_PER_RETENTION: u32 = 10;
const MIN_PRUNE_EVERY: Duration = Duration::from_millis(200);
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);
/// How often the spool is looked at.
const DRAIN_EVERY: Duration = Duration::from_secs(2);

/// How long it is kept what operators did, unless said otherwise: a year.
pub const DEFAULT_KEEP_AUDIT: Duration = Duration::from_secs(365 * 86_400);

/// How often each loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The search for lapsed leases.
    pub sweep_every: Duration,
    /// The search for what has expired.
    pub reap_every: Duration,
    /// How long it is kept what operators did to keys that are gone.
    pub keep_audit: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sweep_every: Duration::from_secs(5),
            reap_every: Duration::from_secs(60),
            keep_audit: DEFAULT_KEEP_AUDIT,
        }
    }
}

/// Starts the loops. They end when the set is dropped.
pub fn start(engine: &Engine, pace: Pace) -> JoinSet<()> {
    let mut loops = JoinSet::new();
    let sweeper = engine.clone();
    loops.spawn(async move {
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
    let reaper = engine.clone();
    loops.spawn(async move {
        let mut ticks = every(pace.reap_every);
        let clock = crate::clock::Clock::system();
        let mut last = clock.moment();
        loop {
            ticks.tick().await;
            let now = clock.moment();
            let jump = last.jump(now);
            last = now;
            if jump > MAX_CLOCK_JUMP {
                tracing::error!(?jump, "the wall clock jumped: nothing is expired in this round");
                continue;
            }
            let round = reap::run_once(&reaper);
            let changed = |(expired, deleted): &(usize, usize)| expired + deleted;
            if let Err(error) = noted(&reaper, "reap", round, changed).await {
                tracing::warn!(%error, "the reaping could not be finished; the next one tries again");
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

fn every(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

//! The background loops, which [`Workers`] runs. All of them are safe to run on every node at once:
//! correctness comes from the swap, not from who runs a loop.

mod handle;
pub mod reap;
pub mod reconcile;
pub mod runs;
pub mod sweep;

use std::{sync::Arc, time::Duration};

pub use handle::{LoopReport, Workers};

use crate::{
    engine::{Engine, known_store::LOOK_EVERY, store_clock::NOTE_EVERY},
    reconcile::Ask,
};
use handle::Loops;

/// How often the audit log is pruned: this often within its retention, within these bounds.
const PRUNES_PER_RETENTION: u32 = 10;
const MIN_PRUNE_EVERY: Duration = Duration::from_millis(200);
const PRUNE_EVERY: Duration = Duration::from_secs(3_600);
/// How often the spool is drained.
const DRAIN_EVERY: Duration = Duration::from_secs(2);

/// How often the scopes of all records are registered, for a day after an upgrade, and the pause before
/// another try.
const LEARN_EVERY: Duration = Duration::from_secs(3_600);
const LEARN_AGAIN: Duration = Duration::from_secs(10);

/// How often unknown keys are counted.
const CENSUS_EVERY: Duration = Duration::from_secs(60);
/// An outcome that has been unknown for longer than this raises an alarm at every count.
const OLD_UNKNOWN: Duration = Duration::from_secs(3_600);

/// How long the operator audit log is kept by default: a year.
pub const DEFAULT_KEEP_AUDIT: Duration = Duration::from_secs(365 * 86_400);

/// How often each loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The interval of the sweep for lapsed leases.
    pub sweep_every: Duration,
    /// The interval of the reaper.
    pub reap_every: Duration,
    /// The interval of the reconciler.
    pub reconcile_every: Duration,
    /// How long the operator audit log of deleted keys is kept.
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

/// Starts the loops of `engine`. `provider` is asked about keys whose outcome is unknown.
fn started(engine: &Engine, pace: Pace, provider: Arc<dyn Ask>) -> Loops {
    let mut loops = Loops::of(engine);
    loops.spawn_recalled("reconcile", every(pace.reconcile_every), move |engine| {
        let provider = provider.clone();
        async move {
            let round = reconcile::run_once(&engine, &*provider);
            let round = noted(&engine, "reconcile", round, |settled| *settled).await;
            round.map(drop).inspect_err(|error| {
                tracing::warn!(%error, "unknown keys could not be looked into; the next round tries again");
            })
        }
    });
    loops.spawn_recalled("sweep", every(pace.sweep_every), async |engine: Engine| {
        let round = sweep::run_once(&engine);
        let round = noted(&engine, "sweep", round, |swept| *swept).await;
        round.map(drop).inspect_err(|error| {
            tracing::warn!(%error, "the sweep could not be finished; the next one tries again");
        })
    });
    if let Some(spool) = engine.spool().cloned() {
        loops.spawn("spool", every(DRAIN_EVERY), move |engine| {
            let spool = spool.clone();
            async move {
                match noted(&engine, "spool", spool.drain(&engine), |taken| *taken).await {
                    Ok(0) => Ok(()),
                    Ok(taken) => {
                        tracing::info!(taken, "results from the spool are in the store");
                        Ok(())
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the spool waits for the store");
                        Err(error)
                    }
                }
            }
        });
    }
    loops.spawn("census", every(CENSUS_EVERY), async |engine: Engine| {
        let census = engine.census().await.inspect_err(|error| {
            tracing::debug!(%error, "unknown keys could not be counted");
        })?;
        if census.oldest > OLD_UNKNOWN {
            let (oldest, dead_letters) = (census.oldest.as_secs(), census.dead_letters);
            tracing::error!(
                oldest_seconds = oldest,
                dead_letters,
                "unknown_age: an outcome has been unknown for too long"
            );
        }
        Ok(())
    });
    loops.spawn_recalled("reap", every(pace.reap_every), async |engine: Engine| {
        // Read the clock first, so that a jump since the last round is noticed.
        engine.store_now().await?;
        if !engine.store_clock().is_steady() {
            return Ok(());
        }
        let changed = |(expired, deleted): &(usize, usize)| expired + deleted;
        let round = noted(&engine, "reap", reap::run_once(&engine), changed).await;
        round.map(drop).inspect_err(|error| {
            tracing::warn!(%error, "the reaping could not be finished; the next one tries again");
        })
    });
    loops.spawn("clock", every(NOTE_EVERY), async |engine: Engine| {
        engine.note_time().await.inspect_err(|error| {
            tracing::debug!(%error, "the store's clock could not be noted");
        })
    });
    loops.spawn("identity", every(LOOK_EVERY), async |engine: Engine| {
        engine.look_at_store().await.inspect_err(|error| {
            tracing::debug!(%error, "the store could not be looked at");
        })
    });
    loops.spawn("scopes", every(LEARN_EVERY), async |engine: Engine| {
        while let Err(error) = engine.learn_scopes().await {
            tracing::debug!(%error, "the scopes of all keys are not known yet; trying again");
            tokio::time::sleep(LEARN_AGAIN).await;
        }
        Ok(())
    });
    // Pruning walks the whole journal, so it does not run in every round of the reaper.
    let period = (pace.keep_audit / PRUNES_PER_RETENTION).clamp(MIN_PRUNE_EVERY, PRUNE_EVERY);
    let mut ticks = every(period);
    // Nothing has become old since the last process ended.
    ticks.reset();
    loops.spawn("audit", ticks, move |engine| async move {
        let pruned = engine.prune_audit(pace.keep_audit).await;
        pruned.inspect_err(|error| {
            tracing::warn!(%error, "the audit could not be pruned; the next round tries again");
        })
    });
    loops
}

/// Runs a round, and records its outcome and when it ran.
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

//! The course of one execution, whoever runs it: its heartbeats, and how its result becomes durable.
//!
//! Deliberately absent: what is executed, and what the client is told.

use std::time::Duration;

use onlyonce_core::machine::Settlement;
use tokio::time::Instant;

use super::{Attempt, Ended, Engine};
use crate::at_once::{after, at_once, in_time};

/// Heartbeats in one lease.
const BEATS_PER_LEASE: u32 = 3;

/// Renews the lease of `attempt`. Returns once the lease cannot be renewed: nothing more may be sent
/// for it, but its result is still worth having.
pub(crate) async fn keep_alive(attempt: &Attempt) {
    let beat = attempt.policy().lease / BEATS_PER_LEASE;
    loop {
        tokio::time::sleep(beat).await;
        // Boxed, since most executions end before the first heartbeat and should not carry its size.
        if !Box::pin(attempt.renew()).await {
            attempt.close();
            return;
        }
    }
}

/// Runs `work` while renewing the lease of `attempt`. The work itself finds out whether the key was lost.
pub(crate) async fn alive_during<T>(attempt: &Attempt, work: impl Future<Output = T>) -> T {
    let lost_or_not = async {
        keep_alive(attempt).await;
        std::future::pending().await
    };
    tokio::select! {
        biased;
        outcome = work => outcome,
        never = lost_or_not => never,
    }
}

/// Settles `attempt` in the store. Tries for as long as the execution that began at `started` may take, and
/// for the grace at least. `None` if the store did not take the result in that time.
///
/// After `completion_grace`, calls `at_grace`, since the client need not wait any longer. From then on the
/// result is also on this machine's disk, if there is a spool: if this process ends first, the next one
/// takes it from there.
pub(crate) async fn settle(
    engine: &Engine,
    attempt: &Attempt,
    settlement: &Settlement,
    started: Instant,
    at_grace: impl FnOnce(),
) -> Option<Ended> {
    let policy = attempt.policy();
    let mut settling = std::pin::pin!(settle_within(
        attempt,
        settlement,
        started,
        policy.max_execution,
        policy.completion_grace
    ));
    if let Some(ended) = in_time(policy.completion_grace, settling.as_mut()).await {
        return ended;
    }
    at_grace();
    let Some(spool) = engine.spool() else {
        return settling.await;
    };
    let record = attempt.record();
    let kept = spool
        .keep(&**engine.store(), &record, attempt.id(), settlement)
        .await;
    if let Err(error) = &kept {
        tracing::error!(%error, "a result could be kept neither by the store nor by the spool");
    }
    let ended = settling.await;
    if ended.is_some() && matches!(kept, Ok(true)) {
        spool.remove(record.id, attempt.id()).await;
    }
    ended
}

async fn settle_within(
    attempt: &Attempt,
    settlement: &Settlement,
    started: Instant,
    max_execution: Duration,
    grace: Duration,
) -> Option<Ended> {
    let mut settling = std::pin::pin!(attempt.settle(settlement));
    if let Some(ended) = at_once(settling.as_mut()).await {
        return Some(ended);
    }
    // An execution that used up its time still gets the grace period.
    let end = after(started, max_execution).max(after(Instant::now(), grace));
    tokio::time::timeout_at(end, settling).await.ok()
}

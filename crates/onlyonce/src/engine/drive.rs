//! One execution on its way, whoever runs it: its signs of life, and how its result becomes durable.
//!
//! Deliberately absent: what is executed, and what a client is told of it.

use std::time::Duration;

use onlyonce_core::machine::Settlement;
use tokio::time::Instant;

use super::{Attempt, Ended, Engine};
use crate::at_once::{after, at_once, in_time};

/// Signs of life within one lease.
const BEATS_PER_LEASE: u32 = 3;

/// Renews the lease of `attempt`. Ends when somebody else has settled the key: then nothing more may be sent
/// for it, but the result is worth having all the same.
pub(crate) async fn keep_alive(attempt: &Attempt) {
    let beat = attempt.policy().lease / BEATS_PER_LEASE;
    loop {
        tokio::time::sleep(beat).await;
        // Boxed, as most executions end before and need not carry the room for it.
        if !Box::pin(attempt.renew()).await {
            attempt.close();
            return;
        }
    }
}

/// What `work` comes to, with signs of life of `attempt` meanwhile. The work finds out for itself whether
/// the key was lost.
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

/// How `attempt` ended, once the store has it: tried for as long as the execution that began at `started`
/// may take, and for the grace at least. `None` if the store did not take it in that time.
///
/// After `completion_grace` the client need not wait any longer, and `at_grace` is called. From then on the
/// result is also on this machine's disk, where there is a spool: should the process end first, the next one
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
    // An execution that used up its time still gets the grace.
    let end = after(started, max_execution).max(after(Instant::now(), grace));
    tokio::time::timeout_at(end, settling).await.ok()
}

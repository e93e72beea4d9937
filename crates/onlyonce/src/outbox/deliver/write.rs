//! Writes the results of messages.

use std::collections::VecDeque;

use onlyonce_store::outbox::Ending;
use tokio::sync::mpsc;

use super::{Lane, STORE_PAUSE};

/// The largest number of results written together.
const MAX_GROUP: usize = 256;
/// Consecutive failed writes after which the claims are left to lapse, and the outcomes count as unclear.
const MAX_WRITES: usize = 20;

/// A result to write, and whether other messages of its ordering key wait for that.
pub(super) struct ToWrite {
    pub(super) ending: Ending,
    pub(super) ordered: bool,
}

impl Lane {
    /// Writes results, as many at a time as have accumulated.
    pub(super) async fn write_down(self, mut ended: mpsc::Receiver<ToWrite>) {
        let mut gathered = Vec::with_capacity(MAX_GROUP);
        while ended.recv_many(&mut gathered, MAX_GROUP).await > 0 {
            let endings: Vec<_> = gathered.iter().map(|one| one.ending.clone()).collect();
            self.write(&endings).await;
            if gathered.iter().any(|one| one.ordered) {
                self.gone.notify_one();
            }
            gathered.clear();
        }
    }

    /// Writes `endings`. A group that the store refuses is split in halves, so that one bad result costs only
    /// itself.
    pub(super) async fn write(&self, endings: &[Ending]) {
        let mut groups = VecDeque::from([endings]);
        let mut failed = 0;
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let Err(error) = self.outbox.end(group).await else {
                failed = 0;
                continue;
            };
            let target = &*self.target.name;
            tracing::warn!(%error, target, "what became of messages could not be written; tried again");
            failed += 1;
            if failed == MAX_WRITES {
                return;
            }
            // An ambiguous write was not refused.
            let first = match error.is_ambiguous() {
                true => group.len(),
                false => group.len().div_ceil(2),
            };
            let (some, others) = group.split_at(first);
            groups.extend([some, others]);
            tokio::time::sleep(STORE_PAUSE).await;
        }
    }
}

//! Removes expired records: first the answer, later the tombstone. Records in progress or unknown are never
//! touched. Stores skip stretches of records in which nothing is due.

use std::time::Duration;

use onlyonce_store::StoreError;
use tokio::time::Instant;

use crate::{engine::Engine, stats::Background};

/// Records in one stretch of the walk.
const STRETCH: usize = 1_000;
/// The longest pause after a stretch with something to remove.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Walks all records once. Returns how many records expired and how many tombstones were deleted.
///
/// After a stretch with something to remove it pauses for half as long as that took: a store under load takes
/// longer, and is left alone for longer.
///
/// # Errors
/// A [`StoreError`] if the store cannot be reached; changes made until then stand.
pub async fn run_once(engine: &Engine) -> Result<(usize, usize), StoreError> {
    let (mut expired, mut deleted) = (0, 0);
    loop {
        let begun = Instant::now();
        let (some_expired, some_deleted, wrapped) = engine.reap_some(STRETCH).await?;
        expired += some_expired;
        deleted += some_deleted;
        Background::TtlPruned.count(some_expired as u64);
        if wrapped {
            return Ok((expired, deleted));
        }
        if some_expired + some_deleted > 0 {
            tokio::time::sleep((begun.elapsed() / 2).min(LONGEST_PAUSE)).await;
        }
    }
}

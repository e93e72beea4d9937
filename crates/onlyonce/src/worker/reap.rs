//! Removes what has expired: first the answer, later the tombstone. What is in progress or unknown is never
//! touched. Stores pass over stretches of records in which nothing is due yet.

use std::time::Duration;

use onlyonce_store::StoreError;
use tokio::time::Instant;

use crate::{engine::Engine, stats::Background};

/// Records in one stretch of the walk.
const STRETCH: usize = 1_000;
/// The longest pause after a stretch with something to remove.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Walks once around. Says how many records expired and how many tombstones were deleted.
///
/// After a stretch with something to remove it pauses for half as long as that took: a store that is under
/// load takes longer, and is left alone for longer.
///
/// # Errors
/// A [`StoreError`] if the store cannot be asked; what was done until then stands.
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

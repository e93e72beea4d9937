//! Walks all records and removes what has expired: first the answer, later the tombstone. What is
//! in progress or unknown is never touched.

use std::time::Duration;

use onlyonce_store::StoreError;

use crate::{engine::Engine, stats::Background};

/// Records in one stretch of the walk.
const STRETCH: usize = 200;
/// The pause after a stretch with something to remove, so that requests are not held up.
const PAUSE: Duration = Duration::from_millis(20);

/// Walks once around. Says how many records expired and how many tombstones were deleted.
///
/// # Errors
/// A [`StoreError`] if the store cannot be asked; what was done until then stands.
pub async fn run_once(engine: &Engine) -> Result<(usize, usize), StoreError> {
    let (mut expired, mut deleted) = (0, 0);
    loop {
        let (some_expired, some_deleted, wrapped) = engine.reap_some(STRETCH).await?;
        expired += some_expired;
        deleted += some_deleted;
        Background::TtlPruned.count(some_expired as u64);
        if wrapped {
            return Ok((expired, deleted));
        }
        if some_expired + some_deleted > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

//! Makes keys with lapsed leases `unknown`.

use onlyonce_store::StoreError;

use crate::{engine::Engine, stats::Background};

/// Records in one scan.
const BATCH: usize = 200;

/// Sweeps until no lapsed lease is left. Returns how many keys became unknown, or were repaired because a
/// clock was set back.
///
/// # Errors
/// A [`StoreError`] if the store cannot be reached; changes made until then stand.
pub async fn run_once(engine: &Engine) -> Result<usize, StoreError> {
    let mut total = engine.sweep_stranded().await?;
    loop {
        let (swept, found) = engine.sweep_some(BATCH).await?;
        total += swept;
        Background::ZombieKey.count(swept as u64);
        // A full batch of which nothing could be swept belongs to a faster process.
        if found < BATCH || swept == 0 {
            return Ok(total);
        }
    }
}

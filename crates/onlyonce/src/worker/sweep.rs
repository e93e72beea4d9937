//! Finds leases that have lapsed and turns their keys into `unknown`.

use onlyonce_store::StoreError;

use crate::{engine::Engine, stats::Background};

/// Records in one scan.
const BATCH: usize = 200;

/// Sweeps until nothing lapsed is left. Says how many keys became unknown, or were looked after because a
/// clock was set back.
///
/// # Errors
/// A [`StoreError`] if the store cannot be asked; what was done until then stands.
pub async fn run_once(engine: &Engine) -> Result<usize, StoreError> {
    let mut total = engine.sweep_stranded().await?;
    loop {
        let (swept, found) = engine.sweep_some(BATCH).await?;
        total += swept;
        Background::ZombieKey.count(swept as u64);
        // A full batch of which nothing could be swept belongs to somebody faster.
        if found < BATCH || swept == 0 {
            return Ok(total);
        }
    }
}

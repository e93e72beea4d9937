//! Looks into what is unknown: what the provider has already said first, then the route's query, and
//! in the end a dead letter.

use futures_util::{StreamExt, stream};
use onlyonce_store::StoreError;

use crate::{engine::Engine, reconcile::Ask};

/// Records in one scan.
const BATCH: usize = 200;
/// Questions that are under way at once.
const AT_ONCE: usize = 16;
/// Scans in one round, so that a provider that is slow for all of them does not hold up the rest.
const SCANS: usize = 10;

/// Looks at every key that is due. Says how many of them were settled.
///
/// # Errors
/// A [`StoreError`] if the store cannot be asked; what was done until then stands.
pub async fn run_once(engine: &Engine, provider: &dyn Ask) -> Result<usize, StoreError> {
    let mut settled = 0;
    for _ in 0..SCANS {
        let due = engine.due(BATCH).await?;
        let found = due.value.len();
        let mut looks = stream::iter(due.value)
            .map(|record| engine.look_into(record, due.now, provider))
            .buffer_unordered(AT_ONCE);
        let mut written = 0;
        let mut failed = None;
        while let Some(looked) = looks.next().await {
            match looked {
                Ok(looked) => {
                    written += usize::from(looked.is_some());
                    settled += usize::from(looked == Some(true));
                }
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| written == 0) {
            return Err(error);
        }
        // A full batch of which nothing could be written belongs to somebody faster.
        if found < BATCH || written == 0 {
            break;
        }
    }
    Ok(settled)
}

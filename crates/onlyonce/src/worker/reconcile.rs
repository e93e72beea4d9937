//! Resolves unknown keys: first by what the provider has already said, then by the route's query, and finally
//! as a dead letter.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use onlyonce_core::Record;
use onlyonce_store::StoreError;
use tokio::time::{Instant, timeout_at};

use crate::{engine::Engine, reconcile::Ask};

/// Records in one scan.
const BATCH: usize = 5_000;
/// Of these, about this many are looked into, taking turns by route.
const AT_MOST: usize = 200;
/// The time limit of that: a provider that does not answer holds up only its own route.
const SCAN_TIME: Duration = Duration::from_secs(15);
/// Concurrent queries.
const AT_ONCE: usize = 16;
/// Scans in one round.
const SCANS: usize = 10;

/// Looks into keys that are due, up to the bounds above. Returns how many were settled.
///
/// # Errors
/// A [`StoreError`] if the store cannot be reached; changes made until then stand.
pub async fn run_once(engine: &Engine, provider: &dyn Ask) -> Result<usize, StoreError> {
    let mut settled = 0;
    for _ in 0..SCANS {
        let due = engine.due(BATCH).await?;
        let found = due.value.len();
        let taken = in_turns(due.value);
        let all = taken.len() == found;
        let mut looks = stream::iter(taken)
            .map(|record| engine.look_into(record, due.now, provider))
            .buffer_unordered(AT_ONCE);
        let mut written = 0;
        let mut failed = None;
        let end = Instant::now() + SCAN_TIME;
        // A look still in progress is repeated later: nothing has been written.
        while let Ok(Some(looked)) = timeout_at(end, looks.next()).await {
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
        // Whatever remains and could not be written belongs to a faster process.
        if all || written == 0 {
            break;
        }
    }
    Ok(settled)
}

/// The first keys of each route, taking turns.
fn in_turns(due: Vec<Record>) -> Vec<Record> {
    let mut routes: HashMap<Arc<str>, usize> = HashMap::new();
    let mut lines: Vec<VecDeque<Record>> = Vec::new();
    for record in due {
        let line = *routes.entry(record.route.clone()).or_insert_with(|| {
            lines.push(VecDeque::new());
            lines.len() - 1
        });
        if lines[line].len() < AT_MOST {
            lines[line].push_back(record);
        }
    }
    let mut taken = Vec::new();
    while taken.len() < AT_MOST && lines.iter().any(|line| !line.is_empty()) {
        taken.extend(lines.iter_mut().filter_map(VecDeque::pop_front));
    }
    taken
}

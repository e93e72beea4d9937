//! Dictionaries: the common content of a route's answers, which then need not be repeated in each.
//!
//! One dictionary is built in and covers what most answers of HTTP APIs have in common. Others are trained
//! from recent answers, route by route, in the background. A dictionary never changes: it is written to the
//! store under the hash of its bytes before the first record that names it, and stays.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::{
    block::{self, DictionaryId, Packing},
    keyring::{Keyring, OpenError},
    zip::{self, Zip},
};
use crate::{Store, StoreError};

/// The built-in dictionary. Its bytes must never change, since records name it.
const BUILT_IN: &[u8] = include_bytes!("dictionary_1.bin");
/// The number of the built-in dictionary; trained ones have larger numbers.
pub(super) const BUILT_IN_ID: DictionaryId = 1;
/// Lower numbers are reserved for built-in dictionaries.
const FIRST_TRAINED: DictionaryId = 0x100;

/// The answers that a dictionary is trained from, of which some are held back to test it.
const SAMPLES: usize = 512;
const HELD_BACK: usize = 64;
/// A longer answer is not a sample: it compresses well enough without a dictionary.
const MAX_SAMPLE_BYTES: usize = 4_096;
/// The size of a trained dictionary, in bytes.
const DICTIONARY_BYTES: usize = 8_192;
/// A new dictionary is used if it compresses to less than this share of the current one's result.
const WORTH_IT: f64 = 0.9;
/// How long until a route is trained again.
const TRAIN_AGAIN: Duration = Duration::from_secs(3_600);
/// The most dictionaries that one route may have had.
const MAX_PER_ROUTE: u32 = 32;
/// The most routes that are trained.
const MAX_ROUTES: usize = 256;

/// The state of one route.
#[derive(Default)]
struct Route {
    samples: Vec<Vec<u8>>,
    /// Whether a task works on the route: it takes no samples meanwhile.
    busy: bool,
    /// Whether the store was asked for existing dictionaries.
    asked: bool,
    /// How many dictionaries the route has had.
    count: u32,
    trained_at: Option<Instant>,
    current: Option<(DictionaryId, Arc<Zip>)>,
}

/// All dictionaries that this process has met.
pub(super) struct Dictionaries {
    built_in: Arc<Zip>,
    known: RwLock<HashMap<DictionaryId, Arc<Zip>>>,
    routes: Mutex<HashMap<String, Route>>,
    /// Where the dictionaries are stored; a task that outlives the store does nothing.
    store: Weak<dyn Store>,
    keys: Option<Keyring>,
}

impl Dictionaries {
    pub(super) fn new(store: &Arc<dyn Store>, keys: Option<Keyring>) -> Self {
        Self {
            built_in: Arc::new(Zip::new(zip::QUICK, BUILT_IN.to_vec())),
            known: RwLock::default(),
            routes: Mutex::default(),
            store: Arc::downgrade(store),
            keys,
        }
    }

    /// The dictionary to use for answers of `route`.
    pub(super) fn current(&self, route: &str) -> (DictionaryId, Arc<Zip>) {
        let routes = self.routes.lock();
        let current = routes.get(route).and_then(|route| route.current.clone());
        current.unwrap_or_else(|| (BUILT_IN_ID, self.built_in.clone()))
    }

    /// The built-in dictionary.
    pub(super) fn built_in(&self) -> &Arc<Zip> {
        &self.built_in
    }

    /// The dictionary `id`, if this process has met it.
    pub(super) fn known(&self, id: DictionaryId) -> Option<Arc<Zip>> {
        if id == BUILT_IN_ID {
            return Some(self.built_in.clone());
        }
        self.known.read().get(&id).cloned()
    }

    /// The dictionary `id` from the store.
    pub(super) async fn fetch(&self, id: DictionaryId) -> Result<Arc<Zip>, StoreError> {
        if let Some(known) = self.known(id) {
            return Ok(known);
        }
        let missing = || StoreError::Unreadable("a dictionary is missing".into());
        let store = self.store.upgrade().ok_or_else(missing)?;
        let name = name_of(id);
        let block = store.block(&name).await?.ok_or_else(missing)?;
        let bytes = self.open(&name, &block)?;
        if number_of(&bytes) != id {
            return Err(StoreError::Unreadable("a dictionary was changed".into()));
        }
        Ok(self.remember(id, bytes))
    }

    fn open(&self, name: &str, block: &[u8]) -> Result<Vec<u8>, StoreError> {
        let place = block::nowhere("dictionary", name);
        match block::read(self.keys.as_ref(), &place, block) {
            Ok((Packing::None, bytes)) => Ok(bytes),
            Ok(_) => Err(StoreError::Unreadable(Box::new(OpenError::Damaged))),
            Err(error) => Err(StoreError::Unreadable(Box::new(error))),
        }
    }

    fn remember(&self, id: DictionaryId, bytes: Vec<u8>) -> Arc<Zip> {
        let made = || Arc::new(Zip::new(zip::THOROUGH, bytes));
        self.known.write().entry(id).or_insert_with(made).clone()
    }

    /// Takes an answer of `route` as a sample, and trains in the background once there are enough.
    pub(super) fn sample(self: &Arc<Self>, route: &str, answer: &[u8]) {
        if answer.len() > MAX_SAMPLE_BYTES {
            return;
        }
        let mut routes = self.routes.lock();
        if !routes.contains_key(route) {
            if routes.len() >= MAX_ROUTES {
                return;
            }
            routes.insert(route.to_owned(), Route::default());
        }
        let Some(known) = routes.get_mut(route) else {
            return;
        };
        let resting = known
            .trained_at
            .is_some_and(|at| at.elapsed() < TRAIN_AGAIN);
        if known.busy || known.count >= MAX_PER_ROUTE || resting {
            return;
        }
        if known.asked && known.samples.len() < SAMPLES {
            known.samples.push(answer.to_vec());
        }
        if known.asked && known.samples.len() < SAMPLES {
            return;
        }
        known.busy = true;
        let samples = std::mem::take(&mut known.samples);
        let first_look = !known.asked;
        drop(routes);
        let (dictionaries, route) = (self.clone(), route.to_owned());
        tokio::spawn(async move {
            let outcome = if first_look {
                dictionaries.look(&route).await
            } else {
                dictionaries.train(&route, samples).await
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, route, "no dictionary for this route, for now");
            }
            if let Some(known) = dictionaries.routes.lock().get_mut(&route) {
                known.busy = false;
                if !first_look {
                    known.trained_at = Some(Instant::now());
                }
            }
        });
    }

    /// Asks the store which dictionaries the route has had, and uses the last.
    async fn look(&self, route: &str) -> Result<(), StoreError> {
        let Some(store) = self.store.upgrade() else {
            return Ok(());
        };
        let mut count = 0;
        let mut last = None;
        while count < MAX_PER_ROUTE
            && let Some(block) = store.block(&place_of(route, count + 1)).await?
        {
            count += 1;
            last = <[u8; 4]>::try_from(block.as_slice()).ok();
        }
        let current = match last.map(DictionaryId::from_le_bytes) {
            Some(id) => Some((id, self.fetch(id).await?)),
            None => None,
        };
        if let Some(known) = self.routes.lock().get_mut(route) {
            known.asked = true;
            known.count = count;
            known.trained_at = current.is_some().then(Instant::now);
            known.current = current;
        }
        Ok(())
    }

    /// Trains a dictionary, tests it, and stores it if it is better.
    async fn train(self: &Arc<Self>, route: &str, samples: Vec<Vec<u8>>) -> Result<(), StoreError> {
        let (_, current) = self.current(route);
        let trained = tokio::task::spawn_blocking(move || better(&samples, &current)).await;
        let Ok(Some(bytes)) = trained else {
            return Ok(());
        };
        let Some(store) = self.store.upgrade() else {
            return Ok(());
        };
        let id = number_of(&bytes);
        let name = name_of(id);
        let place = block::nowhere("dictionary", &name);
        let sealed = block::write(self.keys.as_ref(), &place, Packing::None, &bytes);
        let kept = store.keep_block(&name, &sealed).await?;
        if self.open(&name, &kept)? != bytes {
            // Two dictionaries with one number, once in four thousand million: this one is not used.
            return Ok(());
        }
        let zip = self.remember(id, bytes);
        let count = self.routes.lock().get(route).map_or(0, |known| known.count);
        let place = place_of(route, count + 1);
        let kept = store.keep_block(&place, &id.to_le_bytes()).await?;
        if kept != id.to_le_bytes() {
            // Another node was first: use its dictionary.
            return self.look(route).await;
        }
        if let Some(known) = self.routes.lock().get_mut(route) {
            known.count = count + 1;
            known.current = Some((id, zip));
        }
        tracing::info!(
            route,
            dictionary = id,
            "answers of this route have a dictionary now"
        );
        Ok(())
    }
}

/// A dictionary trained from `samples`, if it packs the held-back ones better than `current`.
fn better(samples: &[Vec<u8>], current: &Zip) -> Option<Vec<u8>> {
    let (held_back, samples) = samples.split_at_checked(HELD_BACK)?;
    let bytes = zstd::dict::from_samples(samples, DICTIONARY_BYTES).ok()?;
    let trained = Zip::new(zip::THOROUGH, bytes.clone());
    let size = |zip: &Zip| -> Option<usize> {
        held_back.iter().map(|one| Some(zip.pack(one)?.len())).sum()
    };
    let (before, after) = (size(current)?, size(&trained)?);
    ((after as f64) < before as f64 * WORTH_IT).then_some(bytes)
}

/// The number of a trained dictionary.
fn number_of(bytes: &[u8]) -> DictionaryId {
    let hash = digest(&SHA256, bytes);
    let number = hash
        .as_ref()
        .first_chunk()
        .map_or(0, |first| u32::from_le_bytes(*first));
    number.max(FIRST_TRAINED)
}

fn name_of(id: DictionaryId) -> String {
    format!("dictionary/{id:08x}")
}

/// The name of the block with a route's `count`th dictionary.
fn place_of(route: &str, count: u32) -> String {
    // A hash, since stores limit the names of blocks, and a library's routes have any length.
    let hash = digest(&SHA256, route.as_bytes());
    let short = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}"));
    format!("dictionary-of/{count}/{}", short.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of its bytes would make records unreadable.
    #[test]
    fn the_built_in_one_never_changes() {
        let hash: String = digest(&SHA256, BUILT_IN)
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hash, include_str!("dictionary_1.sha256").trim());
    }
}

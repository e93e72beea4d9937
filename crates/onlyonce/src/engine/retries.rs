//! Counts the retries of recent keys in this process, for people who inspect a key.
//!
//! A replay writes nothing, so no store can count replays. The counts here are bounded, and are lost with the
//! process.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use onlyonce_core::{RecordId, Timestamp};
use parking_lot::Mutex;

use super::Engine;

/// Keys whose retries are remembered, at least. The least recently retried ones are forgotten first.
pub const REMEMBERED_RETRIES: usize = 10_000;
/// Shards with a lock each, so that replays of different keys do not wait for each other.
const SHARDS: usize = 16;
/// Keys in one half of a shard.
const HALF_SHARD: usize = REMEMBERED_RETRIES.div_ceil(SHARDS);

/// The retries of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Retries that got the stored answer: executions that did not happen.
    pub answered: u64,
    /// Retries refused because the key was in progress, or its outcome unknown.
    pub refused: u64,
    /// When the last retry arrived.
    pub last_at: Timestamp,
}

/// The result of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retried {
    Answered,
    Refused,
}

/// Two halves: when the young half is full it becomes the old half, and the previous old half is forgotten.
#[derive(Default)]
struct Shard {
    young: HashMap<RecordId, Retries>,
    old: HashMap<RecordId, Retries>,
}

impl Shard {
    fn count(&mut self, id: RecordId, retried: Retried, at: Timestamp) {
        if !self.young.contains_key(&id) {
            if self.young.len() >= HALF_SHARD {
                self.old = std::mem::take(&mut self.young);
            }
            let known = self.old.remove(&id).unwrap_or(Retries {
                answered: 0,
                refused: 0,
                last_at: at,
            });
            self.young.insert(id, known);
        }
        if let Some(retries) = self.young.get_mut(&id) {
            match retried {
                Retried::Answered => retries.answered += 1,
                Retried::Refused => retries.refused += 1,
            }
            retries.last_at = at;
        }
    }
}

/// The retries of one engine.
#[derive(Default)]
pub(crate) struct RecentRetries {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

impl RecentRetries {
    fn shard(&self, id: RecordId) -> &Mutex<Shard> {
        // The remainder is less than the number of shards.
        &self.shards[(self.hasher.hash_one(id) % SHARDS as u64) as usize]
    }

    pub(crate) fn count(&self, id: RecordId, retried: Retried, at: Timestamp) {
        self.shard(id).lock().count(id, retried, at);
    }

    pub(crate) fn of(&self, id: RecordId) -> Option<Retries> {
        let shard = self.shard(id).lock();
        shard.young.get(&id).or_else(|| shard.old.get(&id)).copied()
    }
}

impl Engine {
    pub(crate) fn note_retry(&self, id: RecordId, retried: Retried) {
        self.0.retries.count(id, retried, at(self.wall_clock()));
    }

    /// The retries of a key that this process has seen recently; `None` if it remembers none.
    pub fn retries_of(&self, id: RecordId) -> Option<Retries> {
        self.0.retries.of(id)
    }

    /// When this engine was started.
    pub fn started_at(&self) -> Timestamp {
        at(self.0.started)
    }
}

fn at(since_1970: Duration) -> Timestamp {
    Timestamp(i64::try_from(since_1970.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> RecordId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        RecordId(bytes)
    }

    #[test]
    fn the_recent_ones_are_remembered_and_memory_is_bounded() {
        let retries = RecentRetries::default();
        let many = u32::try_from(4 * REMEMBERED_RETRIES).unwrap();
        for number in 1..=many {
            retries.count(id(number), Retried::Answered, Timestamp(1));
            // One that comes again and again is never forgotten.
            retries.count(id(0), Retried::Refused, Timestamp(i64::from(number)));
        }
        let busy = retries.of(id(0)).unwrap();
        assert_eq!((busy.answered, busy.refused), (0, u64::from(many)));
        assert_eq!(busy.last_at, Timestamp(i64::from(many)));
        assert_eq!(retries.of(id(many)).unwrap().answered, 1);
        assert_eq!(retries.of(id(1)), None, "long ago");
        let held = retries.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        });
        assert!(held.sum::<usize>() <= 2 * SHARDS * HALF_SHARD);
    }
}

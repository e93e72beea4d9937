//! A bounded table with a line for each active client.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    time::Duration,
};

use parking_lot::Mutex;

/// Shards with a lock each, so that clients rarely contend.
const SHARDS: usize = 16;
/// Lines in total. When they are used up, further clients share one line per shard, which limits them
/// together rather than not at all.
const MAX_LINES: usize = 100_000;
/// How often a full shard is searched for idle lines, at most.
const TIDY_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Clients<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    hasher: RandomState,
}

struct Shard<K, V> {
    lines: HashMap<K, V>,
    shared: V,
    tidied: Option<Duration>,
}

impl<K, V: Default> Default for Clients<K, V> {
    fn default() -> Self {
        let shard = |_| {
            Mutex::new(Shard {
                lines: HashMap::new(),
                shared: V::default(),
                tidied: None,
            })
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl<K: Hash + Eq + Clone, V: Default> Clients<K, V> {
    /// Calls `act` on the line of `key`. A line that `is_idle` is no different from a new one and may be
    /// dropped.
    pub(super) fn with<T>(
        &self,
        key: &K,
        now: Duration,
        is_idle: impl Fn(&V) -> bool,
        act: impl FnOnce(&mut V) -> T,
    ) -> T {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        let mut shard = self.shards[index].lock();
        if let Some(line) = shard.lines.get_mut(key) {
            return act(line);
        }
        if shard.lines.len() >= MAX_LINES / SHARDS {
            let waited = |at: Duration| now.saturating_sub(at) >= TIDY_EVERY;
            if shard.tidied.is_none_or(waited) {
                shard.tidied = Some(now);
                shard.lines.retain(|_, line| !is_idle(line));
            }
            if shard.lines.len() >= MAX_LINES / SHARDS {
                return act(&mut shard.shared);
            }
        }
        act(shard.lines.entry(key.clone()).or_default())
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.lock().lines.len())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_idle_lines_make_room() {
        let clients: Clients<usize, u64> = Clients::default();
        let busy = |_: &u64| false;
        let second = Duration::from_secs(1);
        for client in 0..MAX_LINES * 2 {
            clients.with(&client, second, busy, |line| *line += 1);
        }
        assert!(clients.len() <= MAX_LINES);
        // A newcomer shares a line with the others that found no room.
        let seen = clients.with(&(MAX_LINES * 3), second, busy, |line| *line);
        assert!(seen > 1_000, "{seen}");
        // One second later everybody has become idle.
        let seen = clients.with(&(MAX_LINES * 3), second * 3, |_| true, |line| *line);
        assert_eq!(seen, 0, "a line of its own");
    }
}

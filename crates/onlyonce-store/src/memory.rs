//! Records in this process's memory: for tests, simulation and `memory:`. Gone with the process.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    ops::Bound,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope, Secret, State, Timestamp,
    record::{Actor, Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::{
    CLOCK_MARK, Counts, Filter, Inserted, JournalRow, Level, Listed, Page, Reply, SCOPES_AT_ONCE,
    Store, StoreError, Swapped, WAKEUP_BACKLOG, Walk, clock::StoreClock, random_secret,
};

/// Locks that keys are spread over, to avoid contention.
const SHARDS: usize = 64;
/// Journal rows that are kept; the oldest are dropped first.
const MAX_JOURNAL: usize = 100_000;

/// A store in memory.
pub struct MemoryStore {
    secret: Secret,
    clock: StoreClock,
    shards: Vec<Mutex<Shard>>,
    next_number: AtomicU64,
    walked: AtomicUsize,
    journal: Mutex<Journal>,
    recipes: Mutex<HashMap<RecipeId, Recipe>>,
    blocks: Mutex<HashMap<String, Vec<u8>>>,
    scopes: Mutex<BTreeMap<RecordId, String>>,
    wakeups: broadcast::Sender<RecordId>,
}

#[derive(Default)]
struct Journal {
    rows: VecDeque<JournalRow>,
    written: u64,
}

/// A record and its number, which orders lists.
#[derive(Clone)]
struct Row {
    number: u64,
    record: Record,
}

#[derive(Default)]
struct Shard {
    /// Boxed: a growing table moves everything it holds, and is half empty afterwards.
    records: HashMap<RecordId, Box<Row>, ById>,
    /// Records with a lease, a scheduled query or an unknown outcome, so that neither the sweeper nor a count
    /// of live keys walks all records.
    live: HashSet<RecordId, ById>,
    /// The records of each scope, by their numbers.
    scopes: HashMap<Scope, BTreeMap<u64, RecordId>>,
}

type ById = BuildHasherDefault<IdHasher>;

/// Uses the id itself: record ids are keyed hashes, and nobody without the secret can choose one.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The last bytes: the first byte selects the shard, and so hardly differs within it.
        if let Some(last) = bytes.last_chunk() {
            self.0 = u64::from_ne_bytes(*last);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl MemoryStore {
    /// An empty store with a secret of its own.
    pub fn new() -> Self {
        Self::with(random_secret(), StoreClock::system())
    }

    /// An empty store with a given secret and clock: for simulations.
    pub fn with(secret: Secret, clock: StoreClock) -> Self {
        Self {
            secret,
            clock,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next_number: AtomicU64::new(1),
            walked: AtomicUsize::new(0),
            journal: Mutex::default(),
            recipes: Mutex::default(),
            blocks: Mutex::default(),
            scopes: Mutex::default(),
            wakeups: broadcast::Sender::new(WAKEUP_BACKLOG),
        }
    }

    fn shard(&self, id: RecordId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.0[0]) % SHARDS]
    }

    fn note(&self, at: Timestamp, entries: Vec<JournalEntry>) {
        if entries.is_empty() {
            return;
        }
        let mut journal = self.journal.lock();
        for entry in entries {
            journal.written += 1;
            let number = journal.written;
            journal.rows.push_back(JournalRow { number, at, entry });
            if journal.rows.len() > MAX_JOURNAL {
                journal.rows.pop_front();
            }
        }
    }

    fn live_where(
        &self,
        limit: usize,
        wanted: impl Fn(&Record, Timestamp) -> bool,
    ) -> Reply<Vec<Record>> {
        let now = self.clock.now();
        let mut value = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let records = shard.live.iter().filter_map(|id| shard.records.get(id));
            value.extend(
                records
                    .map(|row| &row.record)
                    .filter(|r| wanted(r, now))
                    .cloned(),
            );
        }
        // The order of a hash set is random, and a simulation must not depend on it.
        value.sort_by_key(|record| record.id);
        value.truncate(limit);
        Reply { now, value }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Shard {
    fn put(&mut self, number: u64, record: Record) {
        if is_live(&record) || record.times.reconcile_after.is_some() {
            self.live.insert(record.id);
        } else {
            self.live.remove(&record.id);
        }
        // The scope of a record written before encryption was enabled changes its name.
        let before = self.records.get(&record.id).map(|row| &row.record.scope);
        if before != Some(&record.scope) {
            let before = before.cloned();
            self.move_scope(before, &record.scope, number, record.id);
        }
        match self.records.entry(record.id) {
            Entry::Occupied(mut row) => row.get_mut().record = record,
            Entry::Vacant(place) => {
                place.insert(Box::new(Row { number, record }));
            }
        }
    }

    fn move_scope(&mut self, before: Option<Scope>, to: &Scope, number: u64, id: RecordId) {
        if let Some(before) = before {
            self.leave_scope(&before, number);
        }
        match self.scopes.get_mut(to) {
            Some(numbers) => {
                numbers.insert(number, id);
            }
            None => {
                let numbers = BTreeMap::from([(number, id)]);
                self.scopes.insert(to.clone(), numbers);
            }
        }
    }

    fn leave_scope(&mut self, scope: &Scope, number: u64) {
        if let Some(numbers) = self.scopes.get_mut(scope) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.scopes.remove(scope);
            }
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn level(&self) -> Level {
        Level::Volatile
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let value = self.shard(id).lock().records.get(&id)?.record.clone();
        Some(Reply {
            now: self.clock.now(),
            value,
        })
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let value = self
            .shard(id)
            .lock()
            .records
            .get(&id)
            .map(|row| row.record.clone());
        Ok(Reply {
            now: self.clock.now(),
            value,
        })
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let now = self.clock.now();
        let id = draft.record.id;
        let mut shard = self.shard(id).lock();
        if let Some(Row { record, .. }) = shard.records.get(&id).map(Box::as_ref) {
            if !record.is_of(&draft.record.scope, &draft.record.key) {
                return Err(StoreError::Collision);
            }
            return Ok(Reply {
                now,
                value: Inserted::Existing(record.clone()),
            });
        }
        let record = draft.stamp(now);
        shard.put(
            self.next_number.fetch_add(1, Ordering::Relaxed),
            record.clone(),
        );
        Ok(Reply {
            now,
            value: Inserted::New(record),
        })
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let now = self.clock.now();
        let id = change.draft.record.id;
        let record = {
            let mut shard = self.shard(id).lock();
            let Some(row) = shard.records.get(&id) else {
                return Ok(Reply {
                    now,
                    value: Swapped::Absent,
                });
            };
            if row.record.revision != expected {
                return Ok(Reply {
                    now,
                    value: Swapped::Conflict(row.record.clone()),
                });
            }
            let number = row.number;
            let record = change.draft.stamp(now);
            shard.put(number, record.clone());
            self.note(now, change.journal);
            record
        };
        // It is not an error if nobody listens.
        let _ = self.wakeups.send(id);
        Ok(Reply {
            now,
            value: Swapped::Done(record),
        })
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        let mut shard = self.shard(id).lock();
        if shard
            .records
            .get(&id)
            .is_none_or(|row| row.record.revision != expected)
        {
            return Ok(false);
        }
        if let Some(row) = shard.records.remove(&id) {
            shard.leave_scope(&row.record.scope, row.number);
        }
        shard.live.remove(&id);
        Ok(true)
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.note(self.clock.now(), journal);
        Ok(())
    }

    async fn prune_audit(&self, keep: std::time::Duration) -> Result<(), StoreError> {
        let cutoff = crate::cutoff(self.clock.now(), keep);
        let is_gone = |id: RecordId| !self.shard(id).lock().records.contains_key(&id);
        self.journal.lock().rows.retain(|row| {
            let entry = &row.entry;
            row.at >= cutoff || entry.actor != Actor::Operator || !is_gone(entry.id)
        });
        Ok(())
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        Ok(self.live_where(limit, |record, now| {
            record.times.lease_until.is_some_and(|until| until <= now)
        }))
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        Ok(self.live_where(limit, |record, now| {
            record.times.reconcile_after.is_some_and(|at| at <= now)
        }))
    }

    async fn walk(&self, _limit: usize) -> Result<Reply<Walk>, StoreError> {
        // One shard at a time: memory needs no slower pace.
        let index = self.walked.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let now = self.clock.now();
        let shard = self.shards[index].lock();
        let mut candidates: Vec<Record> = shard
            .records
            .values()
            .map(|row| &row.record)
            .filter(|record| is_due(record, now))
            .cloned()
            .collect();
        candidates.sort_by_key(|record| record.id);
        Ok(Reply {
            now,
            value: Walk {
                candidates,
                wrapped: index + 1 == SHARDS,
            },
        })
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        let mut found: Vec<Box<Row>> = Vec::new();
        let is_wanted = |row: &Row| {
            cursor.is_none_or(|cursor| row.number < cursor) && filter.admits(&row.record)
        };
        // These states are found quickly among the few live records.
        let only_live = filter.is_live();
        for shard in &self.shards {
            let shard = shard.lock();
            if only_live {
                let live = shard.live.iter().filter_map(|id| shard.records.get(id));
                found.extend(live.filter(|row| is_wanted(row)).cloned());
            } else {
                let all = shard.records.values();
                found.extend(all.filter(|row| is_wanted(row)).cloned());
            }
        }
        found.sort_by_key(|row| std::cmp::Reverse(row.number));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().map(|row| row.number).filter(|_| more);
        let items = found.into_iter().map(|row| listed(row.record)).collect();
        Ok(Page { items, next })
    }

    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        let mut found: Vec<(u64, Listed)> = Vec::new();
        let (below, most) = (cursor.unwrap_or(u64::MAX), limit.saturating_add(1));
        for shard in &self.shards {
            let shard = shard.lock();
            for numbers in scopes.iter().filter_map(|scope| shard.scopes.get(scope)) {
                let newest = numbers.range(..below).rev();
                let rows = newest.filter_map(|(_, id)| shard.records.get(id));
                let wanted = rows.filter(|row| filter.admits(&row.record)).take(most);
                found.extend(wanted.map(|row| (row.number, listed(row.record.clone()))));
            }
        }
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        Ok(Some(Page::cut(found, limit)))
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.scopes.lock().insert(id, name.to_owned());
        Ok(())
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let scopes = self.scopes.lock();
        let next = scopes
            .range((after, Bound::Unbounded))
            .take(SCOPES_AT_ONCE)
            .map(|(id, name)| (*id, name.clone()));
        Ok(Some(next.collect()))
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        let row = |id: &RecordId| self.shard(*id).lock().records.get(id).cloned();
        let rows = ids.iter().filter_map(row);
        Ok(rows.map(|row| (row.number, listed(row.record))).collect())
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        Ok(self
            .journal
            .lock()
            .rows
            .iter()
            .filter(|row| row.entry.id == id)
            .cloned()
            .collect())
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        let journal = self.journal.lock();
        let older = |row: &&JournalRow| cursor.is_none_or(|cursor| row.number < cursor);
        let mut items: Vec<_> = journal
            .rows
            .iter()
            .rev()
            .filter(older)
            .take(limit + 1)
            .cloned()
            .collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().map(|row| row.number).filter(|_| more);
        Ok(Page { items, next })
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut counts: Counts = State::ALL.into_iter().map(|state| (state, 0)).collect();
        for shard in &self.shards {
            for row in shard.lock().records.values() {
                *counts.entry(row.record.state).or_default() += 1;
            }
        }
        Ok(counts)
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        let of_this = |record: &Record| {
            record.times.lease_until.is_some() && record.scope == *scope && record.caller == caller
        };
        let mut count = 0;
        for shard in &self.shards {
            let shard = shard.lock();
            let records = shard.live.iter().filter_map(|id| shard.records.get(id));
            count += records.filter(|row| of_this(&row.record)).count() as u64;
        }
        Ok(count.min(limit))
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        self.recipes.lock().insert(recipe.id(), recipe.clone());
        Ok(())
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        Ok(self.recipes.lock().get(&id).cloned())
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut blocks = self.blocks.lock();
        let kept = blocks.entry(name.to_owned());
        Ok(kept.or_insert_with(|| bytes.to_vec()).clone())
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let mut blocks = self.blocks.lock();
        blocks.insert(CLOCK_MARK.to_owned(), mark.to_vec());
        Ok(())
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.blocks.lock().get(name).cloned())
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.wakeups.subscribe()
    }
}

/// Whether the record has a lease or an unknown outcome, by its times.
fn is_live(record: &Record) -> bool {
    record.times.lease_until.is_some() || record.times.unknown_since.is_some()
}

/// Whether the time that concerns the reaper has come: `delete_at` for a tombstone, `expires_at` for any
/// other record. The machine decides what follows.
fn is_due(record: &Record, now: Timestamp) -> bool {
    let times = &record.times;
    times
        .delete_at
        .or(times.expires_at)
        .is_some_and(|at| at <= now)
}

/// A record in the form that lists show.
pub(crate) fn listed(mut record: Record) -> Listed {
    let response = record.response.take();
    let response = response.map(|response| (response.status, response.stored_bytes()));
    Listed { record, response }
}

//! A cache of recent answers: a storm of retries costs the store only an occasional read of each key.
//!
//! A copy of a shared store's record is used for at most [`MAX_AGE`] after the store was read, by a clock
//! that nobody sets, and never once this process has begun to change the record. Other processes change a
//! record with an answer only to forget or to erase it, and then wait until no copy can be left
//! (`operate.rs`). The machine decides whether an answer has expired: a copy carries its times.
//!
//! Deliberately absent: records without a final answer, and the time, which the store clock decides.

use std::{collections::HashMap, time::Duration};

use onlyonce_core::{Record, RecordId, Timestamp, record::Draft};
use onlyonce_store::{Copies, Reply};
use parking_lot::Mutex;

use crate::clock::Moment;

/// How long a copy is used after the store was read, if other processes write to the store.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The same if none does. A change whose result nobody waited for is seen by then.
const OWNED_MAX_AGE: Duration = Duration::from_secs(60);
/// The default size of the cache, in bytes.
pub(super) const DEFAULT_BYTES: usize = 32 << 20;
/// The number of shards, each with a lock, so that cores rarely contend for one.
const SHARDS: usize = 16;
/// The approximate size of a copy besides its body and key: the record, its headers and its table entries.
const BYTES_BESIDE: usize = 1_024;

/// Waits until no process uses a copy read from a shared store before this call.
pub(super) async fn until_no_copy_is_left() {
    tokio::time::sleep(MAX_AGE).await;
}

/// Copies of records with a final answer.
pub(super) struct Near {
    shards: [Mutex<Shard>; SHARDS],
    /// The size of one generation of one shard, in bytes.
    room: usize,
    max_age: Duration,
}

#[derive(Default)]
struct Shard {
    /// Two generations: when the young one is full, it replaces the old one. A copy in use is read again when
    /// it reaches its maximum age, and so becomes young.
    young: HashMap<RecordId, Copied>,
    old: HashMap<RecordId, Copied>,
    young_bytes: usize,
    /// Counts changes: a record read before a change is not cached after it.
    changes: u64,
}

struct Copied {
    record: Record,
    asked: Moment,
    /// The store's time in the reply.
    said: Timestamp,
    bytes: usize,
}

impl Copied {
    fn given(&self, now: Moment, max_age: Duration) -> Option<Reply<Record>> {
        let passed = now.since_boot().saturating_sub(self.asked.since_boot());
        let latest = self.said.plus(passed);
        let stands =
            self.asked.is_within(max_age, now) && self.record.answers_until() > Some(latest);
        stands.then(|| Reply {
            now: latest,
            value: self.record.clone(),
        })
    }
}

/// The number of changes of a shard before the store was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    changes: u64,
    asked: Moment,
}

/// A change in progress. When it ends, however it ends, no copy is left.
pub(super) struct Changing<'a> {
    near: &'a Near,
    id: RecordId,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.near.shard(self.id).lock().let_go(self.id);
    }
}

impl Near {
    /// A cache of `bytes`, unless the store needs none.
    pub(super) fn new(copies: Copies, bytes: usize) -> Option<Self> {
        let max_age = match copies {
            Copies::Needless => return None,
            Copies::Owned => OWNED_MAX_AGE,
            Copies::Shared => MAX_AGE,
        };
        (bytes > 0).then(|| Self {
            shards: Default::default(),
            room: bytes / SHARDS / 2,
            max_age,
        })
    }

    fn shard(&self, id: RecordId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.0[0]) % SHARDS]
    }

    /// The copy of a record, if it is young enough at `now` and its answer cannot have expired; otherwise
    /// what is needed to make a copy.
    ///
    /// The reply's time is never before the store's own, believed or not: an answer that other processes may
    /// treat as expired is not given here. The time must not be used to conclude that something has expired.
    pub(super) fn get(&self, id: RecordId, now: Moment) -> Result<Reply<Record>, Before> {
        let shard = self.shard(id).lock();
        let copied = shard.young.get(&id).or_else(|| shard.old.get(&id));
        let given = copied.and_then(|copied| copied.given(now, self.max_age));
        given.ok_or(Before {
            changes: shard.changes,
            asked: now,
        })
    }

    /// To be called before the store is read for `id`.
    pub(super) fn before(&self, id: RecordId, asked: Moment) -> Before {
        let changes = self.shard(id).lock().changes;
        Before { changes, asked }
    }

    /// Caches `record` if it has a final answer and nothing was changed since `before`. `said` is the store's
    /// time in the reply.
    pub(super) fn keep(&self, before: Before, record: &Record, said: Timestamp) {
        if record.answers_until().is_none() {
            return;
        }
        let mut shard = self.shard(record.id).lock();
        if shard.changes != before.changes {
            return;
        }
        let bytes = size(record);
        if bytes > self.room {
            return;
        }
        if shard.young_bytes + bytes > self.room {
            shard.old = std::mem::take(&mut shard.young);
            shard.young_bytes = 0;
        }
        shard.young_bytes += bytes;
        let copied = Copied {
            record: record.clone(),
            asked: before.asked,
            said,
            bytes,
        };
        if let Some(replaced) = shard.young.insert(record.id, copied) {
            shard.young_bytes -= replaced.bytes;
        }
    }

    /// To be held while `draft` is written. `None` if every copy stays true: the draft has an answer, and
    /// there is no copy of another record.
    pub(super) fn changing(&self, draft: &Draft) -> Option<Changing<'_>> {
        let id = draft.record.id;
        let mut shard = self.shard(id).lock();
        let is_first_answer = draft.record.response.is_some()
            && !draft.record.notes.erased
            && !shard.young.contains_key(&id)
            && !shard.old.contains_key(&id);
        if is_first_answer {
            return None;
        }
        shard.let_go(id);
        Some(Changing { near: self, id })
    }

    /// To be held while the record is deleted.
    pub(super) fn deleting(&self, id: RecordId) -> Changing<'_> {
        self.shard(id).lock().let_go(id);
        Changing { near: self, id }
    }
}

impl Shard {
    fn let_go(&mut self, id: RecordId) {
        self.changes += 1;
        self.old.remove(&id);
        if let Some(copied) = self.young.remove(&id) {
            self.young_bytes -= copied.bytes;
        }
    }
}

fn size(record: &Record) -> usize {
    let response = record.response.as_ref();
    let body = response.map_or(0, |response| response.stored_bytes());
    let headers = response.iter().flat_map(|response| &response.headers);
    let headers: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum();
    let names = record.key.as_str().len() + record.path.len();
    let body = usize::try_from(body).unwrap_or(usize::MAX);
    body.saturating_add(headers + names + BYTES_BESIDE)
}

#[cfg(test)]
mod tests;

//! Recent answers, kept near: a storm of retries costs the store one read of each key in a while.
//!
//! A copy is given for at most [`MAX_AGE`] after the store was asked for it, by a clock that nobody sets, and
//! never once this process has begun to change its record. Other processes change a record that has an
//! answer only to forget or to erase it, and whoever does either waits until no copy can be left
//! (`operate.rs`). That an answer expires is the machine's to say: a copy carries its times.
//!
//! Deliberately absent: records without a final answer, and the time, which the store clock says.

use std::{collections::HashMap, time::Duration};

use onlyonce_core::{Record, RecordId, Timestamp, record::Draft};
use onlyonce_store::{Copies, Reply};
use parking_lot::Mutex;

use crate::clock::Moment;

/// How long a copy is given after the store was asked for it, where other processes write to the store.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The same where none does. A change of which nobody waited to hear whether it happened is seen by then.
const OWNED_MAX_AGE: Duration = Duration::from_secs(60);
/// Bytes of copies, unless said otherwise.
pub(super) const DEFAULT_BYTES: usize = 32 << 20;
/// Copies are spread over so many locks, so that cores rarely meet at one.
const SHARDS: usize = 16;
/// What a copy takes beside its body and its key, roughly: the record, its headers and its places in tables.
const BYTES_BESIDE: usize = 1_024;

/// Waits until no process gives what it read of a shared store before this was called.
pub(super) async fn until_no_copy_is_left() {
    tokio::time::sleep(MAX_AGE).await;
}

/// Copies of records with a final answer.
pub(super) struct Near {
    shards: [Mutex<Shard>; SHARDS],
    /// Bytes of one generation of one shard.
    room: usize,
    max_age: Duration,
}

#[derive(Default)]
struct Shard {
    /// Two generations: when the younger one is full, the older one makes way for it. What is used again
    /// is asked for again within [`MAX_AGE`], and so is young.
    young: HashMap<RecordId, Copied>,
    old: HashMap<RecordId, Copied>,
    young_bytes: usize,
    /// Counts changes: what was read before one is not kept after it.
    changes: u64,
}

struct Copied {
    record: Record,
    asked: Moment,
    /// What time the store said it was.
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

/// Where a shard's changes stood before the store was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    changes: u64,
    asked: Moment,
}

/// A change under way. No copy is left when it ends, however it ends.
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
    /// Room for `bytes` of copies, where they are worth something.
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

    /// The copy of a record, if it is young enough when it is `now`, and its answer may not have expired; else
    /// what is needed to make one.
    ///
    /// The time is never before the store's own, believed or not: what other processes may take for expired is
    /// not given here. So it is not for saying that something has expired.
    pub(super) fn get(&self, id: RecordId, now: Moment) -> Result<Reply<Record>, Before> {
        let shard = self.shard(id).lock();
        let copied = shard.young.get(&id).or_else(|| shard.old.get(&id));
        let given = copied.and_then(|copied| copied.given(now, self.max_age));
        given.ok_or(Before {
            changes: shard.changes,
            asked: now,
        })
    }

    /// To be asked for before the store is asked for `id`.
    pub(super) fn before(&self, id: RecordId, asked: Moment) -> Before {
        let changes = self.shard(id).lock().changes;
        Before { changes, asked }
    }

    /// Keeps a copy of `record` if it has a final answer, and if nothing was changed since `before`. The
    /// store gave it when it was `said` there.
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

    /// To be held while `draft` is written. `None` where that leaves every copy true: the draft has an answer,
    /// and there is no copy of another.
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

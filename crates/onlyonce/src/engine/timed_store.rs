//! The store as the engine sees it: the time of every reply passes through the [store clock](StoreClock), so
//! that no rule sees any other time, and recent answers are [cached](Near).

use std::sync::Arc;

use async_trait::async_trait;
use onlyonce_core::{
    Record, RecordId,
    record::{Change, Draft, Revision},
};
use onlyonce_store::{Inserted, Reply, Store, StoreError, Swapped, Walk};

use super::{near::Near, store_clock::StoreClock};

pub(super) struct TimedStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) clock: Arc<StoreClock>,
    pub(super) near: Option<Near>,
}

impl TimedStore {
    async fn timed<T>(
        &self,
        call: impl Future<Output = Result<Reply<T>, StoreError>>,
    ) -> Result<Reply<T>, StoreError> {
        let asked = self.clock.moment();
        let Reply { now, value } = call.await?;
        let now = self.clock.hear(asked, now);
        Ok(Reply { now, value })
    }

    /// Like [`timed`](Self::timed), for the record `id`. `found` selects the record in the reply that may be
    /// cached.
    async fn noticed<T>(
        &self,
        id: RecordId,
        call: impl Future<Output = Result<Reply<T>, StoreError>>,
        found: fn(&T) -> Option<&Record>,
    ) -> Result<Reply<T>, StoreError> {
        let Some(near) = &self.near else {
            return self.timed(call).await;
        };
        let asked = self.clock.moment();
        let before = near.before(id, asked);
        let Reply { now: said, value } = call.await?;
        if let Some(record) = found(&value) {
            near.keep(before, record, said);
        }
        let now = self.clock.hear(asked, said);
        Ok(Reply { now, value })
    }
}

fn existing(inserted: &Inserted) -> Option<&Record> {
    match inserted {
        Inserted::Existing(record) => Some(record),
        Inserted::New(_) => None,
    }
}

fn written(swapped: &Swapped) -> Option<&Record> {
    match swapped {
        Swapped::Done(record) => Some(record),
        Swapped::Conflict(_) | Swapped::Absent => None,
    }
}

#[async_trait]
impl Store for TimedStore {
    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let asked = self.clock.moment();
        let copied = self.near.as_ref().map(|near| (near, near.get(id, asked)));
        if let Some((_, Ok(reply))) = copied {
            return Some(reply);
        }
        let Reply { now: said, value } = self.inner.peek(id)?;
        if let Some((near, Err(before))) = copied {
            near.keep(before, &value, said);
        }
        let now = self.clock.hear(asked, said);
        Some(Reply { now, value })
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.noticed(id, self.inner.lookup(id), Option::as_ref)
            .await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        let id = draft.record.id;
        self.noticed(id, self.inner.insert_or_get(draft), existing)
            .await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let id = change.draft.record.id;
        let _changing = self
            .near
            .as_ref()
            .and_then(|near| near.changing(&change.draft));
        self.noticed(id, self.inner.swap(expected, change), written)
            .await
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        let _deleting = self.near.as_ref().map(|near| near.deleting(id));
        self.inner.delete(id, expected).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.timed(self.inner.lapsed(limit)).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.timed(self.inner.due(limit)).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        self.timed(self.inner.walk(limit)).await
    }

    onlyonce_store::forward_store! {
        inner: level, copies, encrypts, secret, append, prune_audit, list, list_in, keep_scope,
        scopes, listed, history, audit, counts, live, keep_recipe, keep_policy, recipe,
        keep_block, block, identity, standing, raise_epoch, note_lost, accept_incomplete,
        renew_identity, note_clock, noted_clock, conceal, reveal, probe, close, sealed,
        sealed_note, outbox, wakeups,
    }
}

#[cfg(test)]
mod tests {
    /// A method with a default that is not passed on would be the default's, and not the store's.
    #[test]
    fn every_method_is_passed_on() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let contract = std::fs::read_to_string(crates.join("onlyonce-store/src/lib.rs")).unwrap();
        let (_, contract) = contract.split_once("\npub trait Store:").unwrap();
        let (contract, _) = contract.split_once("\n}\n").unwrap();
        let names = contract.lines().filter_map(|line| {
            let line = line.strip_prefix("    ")?;
            let line = line.strip_prefix("async ").unwrap_or(line);
            line.strip_prefix("fn ")?.split('(').next()
        });
        let names: Vec<&str> = names.collect();
        assert!(names.len() > 20, "{names:?}");
        let here = include_str!("timed_store.rs");
        let (_, forwarded) = here.split_once("forward_store! {").unwrap();
        let (forwarded, _) = forwarded.split_once('}').unwrap();
        let forwarded: Vec<&str> = forwarded.split([':', ',']).map(str::trim).collect();
        for name in names {
            let is_written = here.contains(&format!("fn {name}("));
            assert!(
                is_written || forwarded.contains(&name),
                "{name} is not passed on"
            );
        }
    }
}

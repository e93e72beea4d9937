//! The store as the engine sees it: the time of every reply passes through the [store clock](StoreClock), so
//! that no rule sees any other time, and recent answers are [cached](Near).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, Secret,
    record::{Change, Draft, JournalEntry, Revision},
};
use onlyonce_store::{
    Copies, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level, Listed, Loss, Outbox,
    Page, Reply, Standing, Store, StoreError, Swapped, Walk,
};
use tokio::sync::broadcast;

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
    fn level(&self) -> Level {
        self.inner.level()
    }

    fn copies(&self) -> Copies {
        self.inner.copies()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn secret(&self) -> &Secret {
        self.inner.secret()
    }

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

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.inner.append(journal).await
    }

    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        self.inner.prune_audit(keep).await
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

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        self.inner.list(filter, cursor, limit).await
    }

    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        self.inner.list_in(scopes, filter, cursor, limit).await
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.inner.keep_scope(id, name).await
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        self.inner.scopes(after).await
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        self.inner.listed(ids).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        self.inner.history(id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        self.inner.audit(cursor, limit).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.inner.counts().await
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        self.inner.live(scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        self.inner.keep_recipe(recipe).await
    }

    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        self.inner.keep_policy(route, policy).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        self.inner.recipe(id).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.inner.keep_block(name, bytes).await
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.block(name).await
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.inner.standing().await
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.inner.raise_epoch().await
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.inner.note_lost(loss).await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        self.inner.accept_incomplete().await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        self.inner.renew_identity().await
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        self.inner.note_clock(mark).await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.noted_clock().await
    }

    fn conceal(&self, id: RecordId, bytes: Vec<u8>) -> Vec<u8> {
        self.inner.conceal(id, bytes)
    }

    fn reveal(&self, id: RecordId, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        self.inner.reveal(id, bytes)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    fn sealed(&self, change: Change) -> Change {
        self.inner.sealed(change)
    }

    fn sealed_note(&self, entry: JournalEntry) -> JournalEntry {
        self.inner.sealed_note(entry)
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        self.inner.outbox()
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.inner.wakeups()
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
        for name in names {
            assert!(
                here.contains(&format!("fn {name}(")),
                "{name} is not passed on"
            );
        }
    }
}

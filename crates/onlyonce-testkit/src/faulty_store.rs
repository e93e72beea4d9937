//! A store that fails on purpose, as real stores do, by a seeded plan: the same seed gives the same faults in
//! the same order.
//!
//! Every fault keeps the contract: an `Unavailable` wrote nothing, an `Ambiguous` may have.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;

use onlyonce_store::{
    Copies, Counts, Epoch, Filter, Inserted, JournalRow, Listed, Loss, Page, Reply, Standing,
    Store, StoreError, Swapped, Walk,
};

/// The rate of each fault, in thousandths of all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The call fails and nothing is written.
    pub before_per_mille: u32,
    /// The call writes but returns an error.
    pub after_per_mille: u32,
    /// The call writes, and its answer never arrives.
    pub lost_per_mille: u32,
    /// The call's answer never arrives, and the write happens [`delay`](Self::delay) later, when nobody waits
    /// for it any more.
    pub late_per_mille: u32,
    /// The call takes [`delay`](Self::delay) longer.
    pub slow_per_mille: u32,
    /// How much longer.
    pub delay: Duration,
    /// How often [`peek`](Store::peek) answers; a store behind a network never does.
    pub peek_per_mille: u32,
}

/// A store with faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<FaultPlan>,
    random: Mutex<u64>,
    copies: Option<Copies>,
}

enum Fault {
    None,
    Before,
    After,
    Lost,
    Late(Duration),
}

impl FaultyStore {
    /// Wraps `inner`, which fails by `plan` with randomness from `seed`.
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan, seed: u64) -> Self {
        Self {
            inner,
            plan: Mutex::new(plan),
            random: Mutex::new(seed),
            copies: None,
        }
    }

    /// Overrides the value of copies of its answers.
    #[must_use]
    pub fn with_copies(mut self, copies: Copies) -> Self {
        self.copies = Some(copies);
        self
    }

    /// Replaces the plan.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.plan.lock() = plan;
    }

    /// A random number below a thousand (splitmix64).
    fn draw(&self) -> u32 {
        let mut state = self.random.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % 1_000).unwrap_or_default()
    }

    async fn fault(&self) -> Fault {
        let plan = *self.plan.lock();
        if self.draw() < plan.slow_per_mille {
            tokio::time::sleep(plan.delay).await;
        }
        let drawn = self.draw();
        let late = plan.late_per_mille;
        let lost = late + plan.lost_per_mille;
        let after = lost + plan.after_per_mille;
        let before = after + plan.before_per_mille;
        match drawn {
            drawn if drawn < late => Fault::Late(plan.delay),
            drawn if drawn < lost => Fault::Lost,
            drawn if drawn < after => Fault::After,
            drawn if drawn < before => Fault::Before,
            _ => Fault::None,
        }
    }

    /// `call` runs on its own handle, since a late call outlives its caller.
    async fn write<T, C>(
        &self,
        call: impl FnOnce(Arc<dyn Store>) -> C + Send,
    ) -> Result<T, StoreError>
    where
        T: Send,
        C: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let fault = self.fault().await;
        let call = call(self.inner.clone());
        match fault {
            Fault::None => call.await,
            Fault::Before => Err(StoreError::Unavailable("a planned fault".into())),
            Fault::After => {
                call.await?;
                Err(StoreError::Ambiguous("a planned fault".into()))
            }
            Fault::Lost => {
                call.await?;
                std::future::pending().await
            }
            Fault::Late(delay) => {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    // Nobody is left to hear the result.
                    drop(call.await);
                });
                std::future::pending().await
            }
        }
    }

    async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.fault().await {
            Fault::None => call.await,
            Fault::Before | Fault::After => Err(StoreError::Unavailable("a planned fault".into())),
            Fault::Lost | Fault::Late(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn copies(&self) -> Copies {
        self.copies.unwrap_or_else(|| self.inner.copies())
    }

    fn peek(&self, id: RecordId) -> Option<Reply<Record>> {
        let often = self.plan.lock().peek_per_mille;
        if often == 0 || self.draw() >= often {
            return None;
        }
        self.inner.peek(id)
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.read(self.inner.lookup(id)).await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        self.write(|inner| async move { inner.insert_or_get(draft).await })
            .await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        self.write(move |inner| async move { inner.swap(expected, change).await })
            .await
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        self.write(move |inner| async move { inner.delete(id, expected).await })
            .await
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.write(|inner| async move { inner.append(journal).await })
            .await
    }

    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        self.write(|inner| async move { inner.prune_audit(keep).await })
            .await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.read(self.inner.lapsed(limit)).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.read(self.inner.due(limit)).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        self.read(self.inner.walk(limit)).await
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        self.read(self.inner.list(filter, cursor, limit)).await
    }

    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        self.read(self.inner.list_in(scopes, filter, cursor, limit))
            .await
    }

    /// Without faults, so that recorded seeds keep their meaning.
    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.inner.keep_scope(id, name).await
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        self.read(self.inner.scopes(after)).await
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        self.read(self.inner.listed(ids)).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        self.read(self.inner.history(id)).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        self.read(self.inner.audit(cursor, limit)).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.read(self.inner.counts()).await
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        self.read(self.inner.live(scope, caller, limit)).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let recipe = recipe.clone();
        self.write(|inner| async move { inner.keep_recipe(&recipe).await })
            .await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        self.read(self.inner.recipe(id)).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.write(|inner| async move { inner.keep_block(&name, &bytes).await })
            .await
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(self.inner.block(name)).await
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let mark = mark.to_vec();
        self.write(|inner| async move { inner.note_clock(&mark).await })
            .await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(self.inner.noted_clock()).await
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.read(self.inner.standing()).await
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.write(|inner| async move { inner.raise_epoch().await })
            .await
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.write(move |inner| async move { inner.note_lost(loss).await })
            .await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.write(move |inner| async move { inner.probe().await })
            .await
    }

    onlyonce_store::forward_store! {
        inner: level, secret, keep_policy, identity, conceal, reveal, close, wakeups,
    }
}

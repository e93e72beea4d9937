//! A store that fails on purpose, in the ways that real ones do, by a seeded plan: the same seed
//! gives the same faults in the same order.
//!
//! Every fault keeps the contract: an `Unavailable` wrote nothing, an `Ambiguous` may have.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    Recipe, RecipeId, Record, RecordId, Secret,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::{
    Counts, Filter, Inserted, JournalRow, Level, Listed, Page, Reply, Store, StoreError, Swapped,
    Walk,
};

/// How often what goes wrong, in thousandths of all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// The call fails and nothing is written.
    pub before_per_mille: u32,
    /// The call writes and fails all the same.
    pub after_per_mille: u32,
    /// The call writes, and its answer never arrives.
    pub lost_per_mille: u32,
    /// The call takes [`delay`](Self::delay) longer.
    pub slow_per_mille: u32,
    /// How much longer.
    pub delay: Duration,
}

/// A store with faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    plan: Mutex<FaultPlan>,
    random: Mutex<u64>,
}

enum Fault {
    None,
    Before,
    After,
    Lost,
}

impl FaultyStore {
    /// `inner`, failing by `plan` with chance drawn from `seed`.
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan, seed: u64) -> Self {
        Self {
            inner,
            plan: Mutex::new(plan),
            random: Mutex::new(seed),
        }
    }

    /// From now on, fail by `plan`.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.plan.lock() = plan;
    }

    /// A number below a thousand (splitmix64).
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
        let lost = plan.lost_per_mille;
        let after = lost + plan.after_per_mille;
        let before = after + plan.before_per_mille;
        match drawn {
            drawn if drawn < lost => Fault::Lost,
            drawn if drawn < after => Fault::After,
            drawn if drawn < before => Fault::Before,
            _ => Fault::None,
        }
    }

    async fn write<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.fault().await {
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
        }
    }

    async fn read<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.fault().await {
            Fault::None => call.await,
            Fault::Before | Fault::After => Err(StoreError::Unavailable("a planned fault".into())),
            Fault::Lost => std::future::pending().await,
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn level(&self) -> Level {
        self.inner.level()
    }

    fn secret(&self) -> &Secret {
        self.inner.secret()
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.read(self.inner.lookup(id)).await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        self.write(self.inner.insert_or_get(draft)).await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        self.write(self.inner.swap(expected, change)).await
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        self.write(self.inner.delete(id, expected)).await
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.write(self.inner.append(journal)).await
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

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        self.write(self.inner.keep_recipe(recipe)).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        self.read(self.inner.recipe(id)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.write(self.inner.probe()).await
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.inner.wakeups()
    }
}

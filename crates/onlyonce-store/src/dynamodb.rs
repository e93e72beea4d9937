//! The shared store on DynamoDB: one table, conditional writes.
//!
//! A record is an item. A new key is one write on the condition that the item is absent, a change is one
//! write on the condition that the revision is unchanged, and a failed condition returns the current item. A
//! change with journal rows is one transaction. The time is the service's own, read from its answers.
//!
//! Deliberately absent: rules about states, expiry by the service of anything but tombstones, and messages.

mod address;
mod item;
mod layout;
mod meta;
mod net;
mod open;
mod scan;
mod server_time;
mod write;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope, Secret, State,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::{sync::broadcast, task::JoinSet, time::Instant};

use crate::{
    CLOCK_MARK, Copies, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level, Listed, Loss,
    Page, Reply, Standing, Store, StoreError, Swapped, Walk, cutoff, wake::Wake,
};
use address::Address;
pub use address::AddressError;
use layout::{Item, Kind};
pub use open::{OpenError, cloudformation};
use scan::Position;
use server_time::ServerTime;

/// The version of the layout.
pub const VERSION: u32 = 1;

/// How long counts are cached, since counting reads an index.
const COUNTS_HOLD: Duration = Duration::from_secs(30);

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct DynamoDbOptions {
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether to create a missing table, and a store in an empty one.
    pub migrate: bool,
    /// Credentials in place of those from the environment, a profile or a role.
    pub credentials: Option<AccessKey>,
}

impl Default for DynamoDbOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            migrate: true,
            credentials: None,
        }
    }
}

/// An access key. Its `Debug` form omits the secret.
#[derive(Clone)]
pub struct AccessKey {
    /// The key's id.
    pub id: String,
    /// The key's secret.
    pub secret: String,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Checks that `url` is valid, without connecting.
///
/// # Errors
/// [`AddressError`] says why not.
pub fn check_url(url: &str) -> Result<(), AddressError> {
    Address::parse(url).map(drop)
}

/// A store on DynamoDB.
pub struct DynamoDbStore {
    secret: Secret,
    identity: Identity,
    inner: Arc<Inner>,
    walked: Mutex<Position>,
    counted: tokio::sync::Mutex<Option<(Instant, Counts)>>,
    /// The task ends with the store.
    _tasks: JoinSet<()>,
}

/// State shared by the store and its task.
struct Inner {
    client: Client,
    table: String,
    timeout: Duration,
    time: Arc<ServerTime>,
    /// Whether the server is AWS: what the writes of any other server survive is not known.
    is_aws: bool,
    level: Mutex<Level>,
    /// The secret as stored in the table.
    secret: Vec<u8>,
    wake: Wake,
}

#[async_trait]
impl Store for DynamoDbStore {
    fn level(&self) -> Level {
        *self.inner.level.lock()
    }

    fn copies(&self) -> Copies {
        Copies::Shared
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        let value = self.inner.record(id).await?;
        let now = self.inner.time.now();
        Ok(Reply { now, value })
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        self.inner.insert(draft).await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        let reply = self.inner.swap(expected, change).await?;
        if let Swapped::Done(record) = &reply.value {
            self.inner.wake.settled(record.id);
        }
        Ok(reply)
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        self.inner.delete(id, expected).await
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.inner.append(journal).await
    }

    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        let before = cutoff(self.inner.time.now(), keep);
        self.inner.prune_audit(before).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        let lane = Kind::Records(State::InProgress);
        self.inner.passed(lane, limit).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.inner
            .passed(Kind::Records(State::Unknown), limit)
            .await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let from = self.walked.lock().clone();
        let (reply, position) = self.inner.walk(from, limit).await?;
        *self.walked.lock() = position;
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        self.inner.list(filter, cursor, limit).await
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.inner.keep_scope(id, name).await
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        self.inner.scopes(after).await.map(Some)
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        let rows = self.inner.rows(ids).await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.number, row.listed))
            .collect())
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

    /// Counted in the index, at most every 30 s; in between returns the last count.
    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut counted = self.counted.lock().await;
        if let Some((at, counts)) = &*counted
            && at.elapsed() < COUNTS_HOLD
        {
            return Ok(counts.clone());
        }
        let counts = self.inner.counts().await?;
        *counted = Some((Instant::now(), counts.clone()));
        Ok(counts)
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
        let name = recipe_name(recipe.id());
        self.inner.keep_once(&name, &recipe.encode()).await?;
        Ok(())
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        let Some(found) = self.inner.kept(&recipe_name(id)).await? else {
            return Ok(None);
        };
        let recipe =
            Recipe::decode(&found).map_err(|error| StoreError::Unreadable(error.into()))?;
        Ok(Some(recipe))
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.inner.keep_once(&block_name(name), bytes).await
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.kept(&block_name(name)).await
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        self.inner.keep(&block_name(CLOCK_MARK), mark).await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.kept(&block_name(CLOCK_MARK)).await
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.inner.standing().await.map(Some)
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.inner.raise_epoch().await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        self.inner.accept_incomplete().await
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        self.inner.note_lost(loss).await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = self.inner.renew_identity().await?;
        Ok(Identity::found(&self.secret, Some(&own)))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.read_level().await;
        self.inner.probe().await
    }

    /// For this process only: other processes on the table poll.
    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.inner.wake.subscribe()
    }
}

fn block_name(name: &str) -> String {
    format!("B#{name}")
}

fn recipe_name(id: RecipeId) -> String {
    let digits: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("P#{digits}")
}

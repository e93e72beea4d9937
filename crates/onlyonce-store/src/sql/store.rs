//! A store on a database server: one database, any number of gateways.
//!
//! What all kinds of servers have in common: which queue or which scan answers a call. The server-specific
//! statements are in its [`Scans`] and in its lanes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, Secret, State,
    record::{Change, Draft, JournalEntry, Revision},
};
use tokio::{sync::broadcast, task::JoinSet};

use super::{
    dialect::{Dialect, Statement, Value},
    lane::{Lane, Server},
    meta,
    queue::Queue,
    row::{self, Columns, RowError},
    scan::{self, Reader},
    scopes,
    stretches::{Look, Stretches},
};
use crate::{
    CLOCK_MARK, Copies, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level, Listed, Loss,
    Outbox, Page, Reply, Standing, Store, StoreError, Swapped, Walk,
    identity::{ACCEPTED, IDENTITY, IDENTITY_BYTES, STANDING},
    outbox::millis,
    random_bytes,
};

/// Connections that carry batches. More of them make the batches smaller, not the server faster.
const LANES: usize = 2;

/// The server-specific queries of background loops and people.
#[async_trait]
pub(crate) trait Scans: Reader + Send + 'static {
    /// The expression for the state of a record `k`.
    const STATE: &'static str = "k.state";
    /// The server's time in milliseconds, as the bytes of its digits.
    const NOW_BYTES: &'static str;

    /// What an acknowledged write survives, as last seen.
    fn level(&self) -> Level;

    /// Ids of records that changed.
    fn wakeups(&self) -> broadcast::Receiver<RecordId>;

    /// Runs a statement that writes.
    async fn write(&self, statement: Statement) -> Result<(), StoreError>;

    /// Live records whose `column` has passed.
    async fn live(
        &self,
        column: &'static str,
        limit: usize,
    ) -> Result<Reply<Vec<Record>>, StoreError>;

    /// The next stretch of the reaper's walk: `limit` rows after row `from`.
    async fn walk(&self, from: i64, limit: usize) -> Result<Look, StoreError>;

    /// Deletes some of the expired data that applications left, after every complete walk.
    async fn tidy(&self);

    /// Records per state: exact in a small table, from a sample in a large one, since counting would read all
    /// of it. Records in progress or unknown are counted separately.
    async fn settled(&self) -> Result<Counts, StoreError>;

    /// The store's identity, epoch and losses.
    async fn standing(&self) -> Result<Standing, StoreError>;

    /// Raises the epoch by one.
    async fn raise_epoch(&self) -> Result<Epoch, StoreError>;

    /// Deletes operators' journal rows older than `keep` milliseconds whose key is gone. Rows are in the
    /// order in which they were written, so that only the old ones are read.
    async fn prune_audit(&self, keep: i64) -> Result<(), StoreError>;

    /// Stores what SQL functions need to know about a route.
    async fn keep_policy(&self, _route: &str, _policy: &Policy) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Records per state, as counted by `sql`.
pub(crate) async fn counted<R: Reader>(reader: &R, sql: &str) -> Result<Counts, StoreError> {
    let rows = reader.ask(sql, Vec::new(), |row| {
        let state = State::from_word(row::text(row, 0)?);
        Ok(state.zip(Some(row::number(row, 1)?)))
    });
    Ok(rows.await?.into_iter().flatten().collect())
}

/// The columns of a standing, as [`read_standing`] reads them.
pub(crate) fn standing_columns<D: Dialect>() -> String {
    let tables = D::TABLES;
    STANDING
        .map(|name| format!("(SELECT value FROM {tables}meta WHERE name = '{name}')"))
        .join(", ")
}

/// Reads a row that begins with [`standing_columns`].
pub(crate) fn read_standing(row: &impl Columns) -> Result<Standing, RowError> {
    let mut values = [None; STANDING.len()];
    for (column, value) in values.iter_mut().enumerate() {
        *value = row.bytes(column)?;
    }
    Ok(Standing::read(values))
}

/// A store in a database of a server.
pub struct ServerStore<S> {
    secret: Secret,
    identity: Identity,
    queue: Arc<Queue>,
    pub(crate) scans: Arc<S>,
    outbox: Arc<dyn Outbox>,
    stretches: Stretches,
    /// The tasks end with the store.
    _tasks: JoinSet<()>,
}

impl<S> ServerStore<S> {
    /// Starts lanes in the current tokio runtime, beside the tasks that already run.
    pub(crate) fn start<L: Server>(
        (secret, identity): (Secret, Identity),
        scans: Arc<S>,
        outbox: Arc<dyn Outbox>,
        mut lane: impl FnMut() -> L,
        mut tasks: JoinSet<()>,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        for _ in 0..LANES {
            tasks.spawn(Lane::new(queue.clone(), lane()).run());
        }
        Self {
            secret,
            identity,
            queue,
            scans,
            outbox,
            stretches: Stretches::after(0),
            _tasks: tasks,
        }
    }
}

#[async_trait]
impl<S: Scans> Store for ServerStore<S> {
    fn level(&self) -> Level {
        self.scans.level()
    }

    fn copies(&self) -> Copies {
        Copies::Shared
    }

    fn secret(&self) -> &Secret {
        &self.secret
    }

    async fn lookup(&self, id: RecordId) -> Result<Reply<Option<Record>>, StoreError> {
        self.queue.ask(Queue::lookup, id).await
    }

    async fn insert_or_get(&self, draft: Draft) -> Result<Reply<Inserted>, StoreError> {
        self.queue.insert_or_get(draft).await
    }

    async fn swap(&self, expected: Revision, change: Change) -> Result<Reply<Swapped>, StoreError> {
        self.queue.swap_from(expected, change).await
    }

    async fn delete(&self, id: RecordId, expected: Revision) -> Result<bool, StoreError> {
        self.queue.ask(Queue::delete, (id, expected)).await
    }

    async fn append(&self, journal: Vec<JournalEntry>) -> Result<(), StoreError> {
        self.queue.ask(Queue::append, journal).await
    }

    async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        self.scans.prune_audit(millis(keep)).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.scans.live("lease_until", limit).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.scans.live("reconcile_after", limit).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let from = self.stretches.next();
        let look = self.scans.walk(from, limit).await?;
        let reply = self.stretches.looked(from, look);
        if reply.value.wrapped {
            self.scans.tidy().await;
        }
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        scan::list(&*self.scans, filter, cursor, limit).await
    }

    async fn list_in(
        &self,
        scopes: &[Scope],
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Option<Page<Listed>>, StoreError> {
        let listed = scan::list_in(&*self.scans, scopes, filter, cursor, limit);
        listed.await.map(Some)
    }

    async fn keep_scope(&self, id: RecordId, name: &str) -> Result<(), StoreError> {
        self.scans.write(scopes::keep::<S::Dialect>(id, name)).await
    }

    async fn scopes(
        &self,
        after: Option<RecordId>,
    ) -> Result<Option<Vec<(RecordId, String)>>, StoreError> {
        scopes::after(&*self.scans, after).await.map(Some)
    }

    async fn listed(&self, ids: &[RecordId]) -> Result<Vec<(u64, Listed)>, StoreError> {
        scopes::listed(&*self.scans, ids).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        scan::history(&*self.scans, id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        scan::audit(&*self.scans, cursor, limit).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        let mut counts: Counts = State::ALL.into_iter().map(|state| (state, 0)).collect();
        counts.extend(self.scans.settled().await?);
        for state in [State::InProgress, State::Unknown] {
            counts.insert(state, 0);
        }
        let (state, live) = (S::STATE, S::Dialect::LIVE);
        let sql = format!("SELECT {state}, count(*) FROM {live} GROUP BY k.state");
        counts.extend(counted(&*self.scans, &sql).await?);
        Ok(counts)
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        scan::live_of(&*self.scans, scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let statement = meta::keep_recipe::<S::Dialect>(recipe.id(), recipe.encode());
        self.scans.write(statement).await
    }

    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        self.scans.keep_policy(route, policy).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        meta::recipe(&*self.scans, id).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let statement = meta::keep_block::<S::Dialect>(name, bytes);
        self.scans.write(statement).await?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        meta::block(&*self.scans, name).await
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.scans.standing().await.map(Some)
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.scans.raise_epoch().await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        let statement = meta::note_time::<S::Dialect>(ACCEPTED, S::NOW_BYTES);
        self.scans.write(statement).await
    }

    async fn note_lost(&self, loss: Loss) -> Result<(), StoreError> {
        let statement = meta::note_time::<S::Dialect>(loss.name(), S::NOW_BYTES);
        self.scans.write(statement).await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>().to_vec();
        let statement = meta::note::<S::Dialect>(IDENTITY, Value::bytes(&*own));
        self.scans.write(statement).await?;
        let place = self.identity.place().to_vec();
        Ok(Identity::found(&self.secret, Some(&own)).at(place))
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let name = format!("block/{CLOCK_MARK}");
        let statement = meta::note::<S::Dialect>(name, Value::bytes(mark));
        self.scans.write(statement).await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let statement = meta::note_time::<S::Dialect>("probed_at", S::NOW_BYTES);
        self.scans.write(statement).await
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        Some(self.outbox.clone())
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.scans.wakeups()
    }
}

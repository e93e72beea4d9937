//! The shared store on MySQL or MariaDB: one database, any number of gateways.
//!
//! As on PostgreSQL, operations gather while the last batch is under way, and a few connections carry
//! one batch each. A batch is a few statements in one message and one transaction at READ COMMITTED.
//! The database's clock is the clock, its unique index decides who is first, and its transactions
//! decide what is durable.
//!
//! Deliberately absent: any rule about states in SQL, and any trust in counts of affected rows.

mod connect;
mod dialect;
mod failure;
mod outbox;
mod scan;
mod schema;
mod server;
mod text;
mod tidy;
mod transactional;
mod watch;
mod write;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Recipe, RecipeId, Record, RecordId, Scope, Secret,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::{sync::broadcast, task::JoinSet};

pub use crate::sql::open::{Migrated, OpenError};
use crate::{
    CLOCK_MARK, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level, Listed, Outbox, Page,
    Reply, Standing, Store, StoreError, Swapped, Walk,
    identity::{IDENTITY, IDENTITY_BYTES},
    random_bytes,
    sql::{self, lane::Lane, line::Line, open, queue::Queue},
};
use connect::{Dialler, Target};
pub(crate) use failure::is_conflict;
use outbox::MySqlOutbox;
use scan::Scanners;
pub use schema::{VERSION, script};
use server::{MySqlServer, Shared};
use text::{NOW, Script, literal};
pub use transactional::{MySqlOpen, MySqlTransactions};
use watch::Watch;

/// Connections that carry batches. More of them make the batches smaller, not the server faster.
const LANES: usize = 2;

/// How a store is reached.
#[derive(Clone, Debug)]
pub struct MySqlOptions {
    /// How long one call may take.
    pub timeout: Duration,
    /// Whether a missing or old schema is brought up to date.
    pub migrate: bool,
    /// Whether a store is made where there is none.
    pub create: bool,
}

impl Default for MySqlOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            migrate: true,
            create: true,
        }
    }
}

/// Whether `url` can be read. Nothing is connected to.
///
/// # Errors
/// [`OpenError::Url`] says why not.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    Target::parse(url, MySqlOptions::default().timeout).map(drop)
}

/// Creates the schema of a store, or brings it up to date.
///
/// # Errors
/// [`OpenError`] says why it could not be done.
pub async fn migrate(url: &str, options: &MySqlOptions) -> Result<Migrated, OpenError> {
    let target = Target::parse(url, options.timeout)?;
    let mut connection = target.connect().await.map_err(OpenError::Connect)?;
    schema::migrate(&mut connection).await
}

/// A store in a MySQL or MariaDB database.
pub struct MySqlStore {
    secret: Secret,
    identity: Identity,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    scanners: Arc<Scanners>,
    outbox: Arc<MySqlOutbox>,
    walked: Mutex<i64>,
    /// End with the store.
    _tasks: JoinSet<()>,
}

impl MySqlStore {
    /// Connects, checks the schema, and starts the lanes in the tokio runtime that this is called
    /// in.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub async fn open(url: &str, options: &MySqlOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.timeout)?;
        let mut connection = target.connect().await.map_err(OpenError::Connect)?;
        let found = schema::found(&mut connection).await;
        let found = found.map_err(OpenError::Sql)?;
        if found.is_none() && !options.create {
            return Err(OpenError::Absent);
        }
        if options.migrate && found.is_none_or(|(version, _)| version < VERSION) {
            schema::migrate(&mut connection).await?;
        } else {
            open::check(found, VERSION)?;
        }
        let secret = schema::secret(&mut connection).await;
        let secret = open::as_secret(secret.map_err(OpenError::Sql)?)?;
        let found = schema::own_identity(&mut connection).await;
        let (own, place) = found.map_err(OpenError::Sql)?;
        let identity = Identity::found(&secret, own.as_deref()).at(place);
        let dialler = Dialler {
            target,
            secret: secret.as_bytes().to_vec(),
        };
        let shared = Arc::new(Shared {
            line: Line::new(dialler),
            watch: Watch::new(),
            messages: tokio::sync::watch::Sender::new(0),
        });
        let queue = Arc::new(Queue::default());
        let mut tasks = JoinSet::new();
        let mut first = Some(shared.line.first(connection));
        for _ in 0..LANES {
            let server = MySqlServer::new(shared.clone(), first.take());
            tasks.spawn(Lane::new(queue.clone(), server).run());
        }
        tasks.spawn(watch::look(shared.clone()));
        Ok(Self {
            secret,
            identity,
            queue,
            scanners: Arc::new(Scanners::new(shared.clone())),
            outbox: Arc::new(MySqlOutbox::new(shared.clone())),
            shared,
            walked: Mutex::new(0),
            _tasks: tasks,
        })
    }

    /// This store in transactions of the application's own pool, which must be one of this database.
    pub fn transactions(&self, pool: sqlx::MySqlPool) -> MySqlTransactions {
        MySqlTransactions::new(pool, self.shared.clone(), self.scanners.clone())
    }
}

#[async_trait]
impl Store for MySqlStore {
    fn level(&self) -> Level {
        self.shared.line.dial.target.level()
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
        // No clock comes near to where the difference would not fit.
        let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        self.scanners.prune_audit(keep.min(i64::MAX / 2)).await
    }

    async fn lapsed(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.scanners.live("lease_until", limit).await
    }

    async fn due(&self, limit: usize) -> Result<Reply<Vec<Record>>, StoreError> {
        self.scanners.live("reconcile_after", limit).await
    }

    async fn walk(&self, limit: usize) -> Result<Reply<Walk>, StoreError> {
        let from = *self.walked.lock();
        let (reply, position) = self.scanners.walk(from, limit).await?;
        *self.walked.lock() = position;
        if reply.value.wrapped
            && let Err(error) = self.scanners.tidy().await
        {
            // What is too old is passed over until it is gone; the walk goes on.
            tracing::warn!(%error, "notes of old messages could not be deleted; later again");
        }
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        sql::scan::list(&*self.scanners, filter, cursor, limit).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        sql::scan::history(&*self.scanners, id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        sql::scan::audit(&*self.scanners, cursor, limit).await
    }

    async fn counts(&self) -> Result<Counts, StoreError> {
        self.scanners.counts().await
    }

    async fn live(
        &self,
        scope: &Scope,
        caller: Option<CallerMark>,
        limit: u64,
    ) -> Result<u64, StoreError> {
        sql::scan::live_of(&*self.scanners, scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_recipes (id, recipe) VALUES ({}, {}) \
             ON DUPLICATE KEY UPDATE id = id",
            literal(recipe.id().0),
            literal(recipe.encode())
        ));
        self.scanners.write(&script).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        sql::scan::recipe(&*self.scanners, id).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ({}, {}) \
             ON DUPLICATE KEY UPDATE name = name",
            literal(format!("block/{name}")),
            literal(bytes)
        ));
        self.scanners.write(&script).await?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        sql::scan::block(&*self.scanners, name).await
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    async fn standing(&self) -> Result<Option<Standing>, StoreError> {
        self.scanners.standing().await.map(Some)
    }

    async fn raise_epoch(&self) -> Result<Epoch, StoreError> {
        self.scanners.raise_epoch().await
    }

    async fn accept_incomplete(&self) -> Result<(), StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ('accepted', {NOW}) \
             ON DUPLICATE KEY UPDATE value = {NOW}"
        ));
        self.scanners.write(&script).await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>().to_vec();
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ({}, {}) ON DUPLICATE KEY UPDATE value = {}",
            literal(IDENTITY),
            literal(&own),
            literal(&own)
        ));
        self.scanners.write(&script).await?;
        let place = self.identity.place().to_vec();
        Ok(Identity::found(&self.secret, Some(&own)).at(place))
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ({}, {}) \
             ON DUPLICATE KEY UPDATE value = {}",
            literal(format!("block/{CLOCK_MARK}")),
            literal(mark),
            literal(mark)
        ));
        self.scanners.write(&script).await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let mut script = Script::default();
        script.add(format_args!(
            "INSERT INTO onlyonce_meta (name, value) VALUES ('probed_at', {NOW}) \
             ON DUPLICATE KEY UPDATE value = {NOW}"
        ));
        self.scanners.write(&script).await
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        Some(self.outbox.clone())
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.shared.watch.subscribe()
    }
}

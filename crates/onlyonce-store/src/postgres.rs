//! The shared store: one PostgreSQL database, any number of gateways.
//!
//! Operations gather while the last statement is under way and go as one over `unnest` arrays, so
//! that one round trip and one flush to disk serve many keys. A few connections ("lanes") carry one
//! statement each. The database's clock is the clock, its unique index decides who is first, and its
//! transactions decide what is durable.
//!
//! Deliberately absent: any rule about states in SQL. A statement compares a revision and writes.

mod connect;
mod dialect;
mod failure;
#[cfg(test)]
mod functions_table;
mod notice;
mod outbox;
mod row;
mod scan;
mod schema;
mod server;
mod statement;
mod tidy;
mod transactional;
mod uuid;
mod wake;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use async_trait::async_trait;
use onlyonce_core::{
    CallerMark, Policy, Recipe, RecipeId, Record, RecordId, Scope, Secret,
    record::{Change, Draft, JournalEntry, Revision},
};
use parking_lot::Mutex;
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
};

pub use crate::sql::open::{Migrated, OpenError};
use crate::{
    CLOCK_MARK, Counts, Epoch, Filter, Identity, Inserted, JournalRow, Level, Listed, Outbox, Page,
    Reply, Standing, Store, StoreError, Swapped, Walk,
    identity::{IDENTITY, IDENTITY_BYTES},
    random_bytes,
    sql::{self, lane::Lane, line::Line, open, queue::Queue},
    wake::{MAX_UNSAID, Wake},
};
pub use connect::Pooler;
use connect::Target;
use outbox::PgOutbox;
use scan::Scanners;
pub use schema::{VERSION, script};
use server::{Dialler, PgServer, Shared};
pub use transactional::PgTransactions;

/// Connections that carry batches. More of them make the batches smaller, not the server faster.
const LANES: usize = 2;

/// How a store is reached.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// How long one call may take.
    pub timeout: Duration,
    /// What stands between us and the server.
    pub pooler: Pooler,
    /// Whether a missing or old schema is brought up to date.
    pub migrate: bool,
    /// Whether a store is made where there is none.
    pub create: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            pooler: Pooler::None,
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
    let options = PostgresOptions::default();
    Target::parse(url, options.pooler, options.timeout).map(drop)
}

/// Creates the schema of a store, or brings it up to date.
///
/// # Errors
/// [`OpenError`] says why it could not be done; what was there is left as it was.
pub async fn migrate(url: &str, options: &PostgresOptions) -> Result<Migrated, OpenError> {
    let target = Target::parse(url, options.pooler, options.timeout)?;
    let mut connection = target.connect().await.map_err(OpenError::Connect)?;
    schema::migrate(&mut connection).await
}

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    secret: Secret,
    identity: Identity,
    queue: Arc<Queue>,
    shared: Arc<Shared>,
    scanners: Scanners,
    outbox: Arc<PgOutbox>,
    walked: Mutex<i64>,
    /// End with the store.
    _tasks: JoinSet<()>,
}

impl PostgresStore {
    /// Says whether SQL functions may write answers as they are: not where they are encrypted, unless
    /// somebody allows it.
    ///
    /// # Errors
    /// Any [`StoreError`]: it could not be said.
    pub async fn allow_plain_answers(&self, allowed: bool) -> Result<(), StoreError> {
        let sql = match allowed {
            true => "DELETE FROM onlyonce.meta WHERE name = 'plain_settle'",
            false => {
                "INSERT INTO onlyonce.meta (name, value) VALUES ('plain_settle', 'refused') \
                 ON CONFLICT (name) DO NOTHING"
            }
        };
        self.scanners.write(sqlx::query(sql)).await
    }

    /// How long each route keeps its answers, as whoever serves it has noted.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    pub async fn ttls(&self) -> Result<HashMap<String, Duration>, StoreError> {
        self.scanners.ttls().await
    }

    /// This store in transactions of the application's own pool, which must be one of this database.
    pub fn transactions(&self, pool: sqlx::PgPool) -> PgTransactions {
        PgTransactions::new(pool, self.shared.clone())
    }

    /// Connects, checks the schema, and starts the lanes in the tokio runtime that this is called
    /// in.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub async fn open(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.pooler, options.timeout)?;
        let mut connection = target.connect().await.map_err(OpenError::Connect)?;
        let found = target.begin(&mut connection, async |connection| {
            schema::found(connection).await
        });
        let found = found.await.map_err(OpenError::Sql)?;
        if found.is_none() && !options.create {
            return Err(OpenError::Absent);
        }
        if options.migrate && found.is_none_or(|(version, _)| version < VERSION) {
            schema::migrate(&mut connection).await?;
        } else {
            open::check(found, VERSION)?;
        }
        let secret = target.begin(&mut connection, async |connection| {
            schema::secret(connection).await
        });
        let secret = open::as_secret(secret.await.map_err(OpenError::Sql)?)?;
        let identity = target.begin(&mut connection, async |connection| {
            let own = schema::own_identity(connection).await?;
            let place = schema::place(connection).await?;
            Ok(Identity::found(&secret, own.as_deref()).at(place))
        });
        let identity = identity.await.map_err(OpenError::Sql)?;
        let (words, unsaid) = match options.pooler {
            Pooler::None => {
                let (words, unsaid) = mpsc::channel(MAX_UNSAID);
                (Some(words), Some(unsaid))
            }
            // Nobody can listen through a pooler, so nobody need speak.
            Pooler::Transaction => (None, None),
        };
        let dialler = Dialler {
            target,
            secret: secret.as_bytes().to_vec(),
        };
        let shared = Arc::new(Shared {
            line: Line::new(dialler),
            wake: Wake::new(words),
            settled: AtomicU64::new(0),
        });
        let queue = Arc::new(Queue::default());
        let mut tasks = JoinSet::new();
        let mut first = Some(shared.line.first(connection));
        for _ in 0..LANES {
            let server = PgServer::new(shared.clone(), first.take());
            tasks.spawn(Lane::new(queue.clone(), server).run());
        }
        if let Some(unsaid) = unsaid {
            tasks.spawn(wake::speak(shared.clone(), unsaid));
            tasks.spawn(wake::listen(shared.clone()));
            // A pooler's transactions could not hold a vacuum.
            tasks.spawn(tidy::keep_small(shared.clone()));
        }
        Ok(Self {
            secret,
            identity,
            queue,
            scanners: Scanners::new(shared.clone()),
            outbox: Arc::new(PgOutbox::new(shared.clone())),
            shared,
            walked: Mutex::new(0),
            _tasks: tasks,
        })
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn level(&self) -> Level {
        self.shared.target().level()
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
        let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let statement = sqlx::query(include_str!("postgres/prune_audit.sql")).bind(keep);
        self.scanners.write(statement).await
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
            && let Err(error) = self.scanners.forget_messages().await
        {
            tracing::debug!(%error, "old notes of messages stay for another round");
        }
        Ok(reply)
    }

    async fn list(
        &self,
        filter: &Filter,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Listed>, StoreError> {
        sql::scan::list(&self.scanners, filter, cursor, limit).await
    }

    async fn history(&self, id: RecordId) -> Result<Vec<JournalRow>, StoreError> {
        sql::scan::history(&self.scanners, id).await
    }

    async fn audit(
        &self,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<JournalRow>, StoreError> {
        sql::scan::audit(&self.scanners, cursor, limit).await
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
        sql::scan::live_of(&self.scanners, scope, caller, limit).await
    }

    async fn keep_recipe(&self, recipe: &Recipe) -> Result<(), StoreError> {
        let sql =
            "INSERT INTO onlyonce.recipes (id, recipe) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        let statement = sqlx::query(sql).bind(recipe.id().0).bind(recipe.encode());
        self.scanners.write(statement).await
    }

    async fn keep_policy(&self, route: &str, policy: &Policy) -> Result<(), StoreError> {
        let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        // Nothing is written where it says so already, which is nearly always.
        let sql = "INSERT INTO onlyonce.routes (route, ttl, max_body_size, max_execution, reconcile_after) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (route) DO UPDATE SET \
                   ttl = excluded.ttl, max_body_size = excluded.max_body_size, \
                   max_execution = excluded.max_execution, \
                   reconcile_after = excluded.reconcile_after WHERE routes IS DISTINCT FROM excluded";
        let reconcile = policy.reconcile.as_ref();
        let statement = sqlx::query(sql)
            .bind(route)
            .bind(millis(policy.ttl))
            .bind(i64::try_from(policy.max_body_size).unwrap_or(i64::MAX))
            .bind(millis(policy.max_execution))
            .bind(reconcile.map(|reconcile| millis(reconcile.after)));
        self.scanners.write(statement).await
    }

    async fn recipe(&self, id: RecipeId) -> Result<Option<Recipe>, StoreError> {
        sql::scan::recipe(&self.scanners, id).await
    }

    async fn keep_block(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
        let sql = "INSERT INTO onlyonce.meta (name, value) VALUES ('block/' || $1, $2) \
                   ON CONFLICT DO NOTHING";
        let statement = sqlx::query(sql).bind(name).bind(bytes);
        self.scanners.write(statement).await?;
        let lost = || StoreError::Unavailable("a block that was written is not there".into());
        self.block(name).await?.ok_or_else(lost)
    }

    async fn block(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        sql::scan::block(&self.scanners, name).await
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
        self.scanners.accept_incomplete().await
    }

    async fn renew_identity(&self) -> Result<Identity, StoreError> {
        let own = random_bytes::<IDENTITY_BYTES>().to_vec();
        let sql = "INSERT INTO onlyonce.meta (name, value) VALUES ($1, $2) \
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let statement = sqlx::query(sql).bind(IDENTITY).bind(&own);
        self.scanners.write(statement).await?;
        let place = self.identity.place().to_vec();
        Ok(Identity::found(&self.secret, Some(&own)).at(place))
    }

    async fn note_clock(&self, mark: &[u8]) -> Result<(), StoreError> {
        let sql = "INSERT INTO onlyonce.meta (name, value) VALUES ('block/' || $1, $2) \
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let statement = sqlx::query(sql).bind(CLOCK_MARK).bind(mark);
        self.scanners.write(statement).await
    }

    async fn noted_clock(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.block(CLOCK_MARK).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let sql = "INSERT INTO onlyonce.meta (name, value) \
                   VALUES ('probed_at', convert_to(clock_timestamp()::text, 'UTF8')) \
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.scanners.write(sqlx::query(sql)).await
    }

    fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        Some(self.outbox.clone())
    }

    fn wakeups(&self) -> broadcast::Receiver<RecordId> {
        self.shared.wake.subscribe()
    }
}

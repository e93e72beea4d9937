//! The shared store: one PostgreSQL database, any number of gateways.
//!
//! Operations collect while the previous statement is under way and are sent as one statement over `unnest`
//! arrays, so that one round trip and one flush to disk serve many keys. A few connections ("lanes") carry
//! one statement each. The database's clock is the clock, its unique index decides who is first, and its
//! transactions decide what is durable.
//!
//! Deliberately absent: any rule about states in SQL. A statement compares a revision and writes.

mod connect;
pub(crate) mod dialect;
mod failure;
#[cfg(test)]
mod functions_table;
mod indexes;
mod notice;
mod outbox;
#[cfg(test)]
mod plans;
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

use tokio::{sync::mpsc, task::JoinSet};

pub use crate::sql::{
    open::{Migrated, OpenError},
    store::ServerStore,
};
use crate::{
    Boxed, Store, StoreError,
    sql::{
        line::{Dial as _, Line},
        open,
    },
    wake::{MAX_UNSAID, Wake},
};
pub use connect::Pooler;
use connect::Target;
use outbox::PgOutbox;
use scan::Scanners;
pub use schema::{VERSION, script};
use server::{PgServer, Shared};
pub use transactional::PgTransactions;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The timeout of one call.
    pub timeout: Duration,
    /// The pooler in front of the server, if any.
    pub pooler: Pooler,
    /// Whether to create or upgrade the schema.
    pub migrate: bool,
    /// Whether to create a store if there is none.
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

/// Checks that `url` is valid, without connecting.
///
/// # Errors
/// [`OpenError::Url`] says why not.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    let options = PostgresOptions::default();
    Target::parse(url, options.pooler, options.timeout).map(drop)
}

/// Creates the schema of a store, or upgrades it.
///
/// # Errors
/// [`OpenError`] says why not; the database is then unchanged.
pub fn migrate<'a>(
    url: &'a str,
    options: &'a PostgresOptions,
) -> Boxed<'a, Result<Migrated, OpenError>> {
    Box::pin(migrated(url, options))
}

async fn migrated(url: &str, options: &PostgresOptions) -> Result<Migrated, OpenError> {
    let target = Target::parse(url, options.pooler, options.timeout)?;
    let mut connection = target.connect().await.map_err(OpenError::Connect)?;
    let migrated = schema::migrate(&mut connection).await?;
    // A newer schema has what its own program needs.
    if migrated.to == VERSION && options.pooler == Pooler::None {
        let built = indexes::build(&mut connection).await;
        built.map_err(OpenError::Sql)?;
    }
    Ok(migrated)
}

/// A store in a PostgreSQL database.
pub type PostgresStore = ServerStore<Scanners>;

/// The generic store is compiled where it becomes a trait object: here, and not in every program.
impl From<PostgresStore> for Arc<dyn Store> {
    fn from(store: PostgresStore) -> Self {
        Arc::new(store)
    }
}

impl PostgresStore {
    /// Sets whether SQL functions may write plain answers: not if answers are encrypted, unless an operator
    /// allows it.
    ///
    /// # Errors
    /// Any [`StoreError`]: the setting was not stored.
    pub async fn allow_plain_answers(&self, allowed: bool) -> Result<(), StoreError> {
        let sql = match allowed {
            true => "DELETE FROM onlyonce.meta WHERE name = 'plain_settle'",
            false => {
                "INSERT INTO onlyonce.meta (name, value) VALUES ('plain_settle', 'refused') \
                 ON CONFLICT (name) DO NOTHING"
            }
        };
        self.scans.execute(sqlx::query(sql)).await
    }

    /// The ttl of each route, as stored by the gateways that serve it.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    pub async fn ttls(&self) -> Result<HashMap<String, Duration>, StoreError> {
        self.scans.ttls().await
    }

    /// This store in transactions of the application's own pool, which must connect to the same database.
    pub fn transactions(&self, pool: sqlx::PgPool) -> PgTransactions {
        PgTransactions::new(pool, self.scans.shared.clone())
    }

    /// Connects, checks the schema, and starts the lanes in the current tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub fn open<'a>(
        url: &'a str,
        options: &'a PostgresOptions,
    ) -> Boxed<'a, Result<Self, OpenError>> {
        Box::pin(Self::opened(url, options))
    }

    async fn opened(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.pooler, options.timeout)?;
        let prepared = open::prepare(&target, options.migrate, options.create);
        let (connection, secret, identity) = prepared.await?;
        let (words, unsaid) = match options.pooler {
            Pooler::None => {
                let (words, unsaid) = mpsc::channel(MAX_UNSAID);
                (Some(words), Some(unsaid))
            }
            // `LISTEN` does not work through a pooler, so there is no point in notifying.
            Pooler::Transaction => (None, None),
        };
        let shared = Arc::new(Shared {
            line: Line::new(target, &secret),
            wake: Wake::new(words),
            settled: AtomicU64::new(0),
        });
        let mut tasks = JoinSet::new();
        if let Some(unsaid) = unsaid {
            tasks.spawn(wake::speak(shared.clone(), unsaid));
            tasks.spawn(wake::listen(shared.clone()));
            // A vacuum cannot run in a pooler's transactions.
            tasks.spawn(tidy::keep_small(shared.clone()));
            if options.migrate {
                tasks.spawn(indexes::build_beside(shared.clone()));
            }
        }
        let mut first = Some(shared.line.first(connection));
        Ok(Self::start(
            (secret, identity),
            Arc::new(Scanners::new(shared.clone())),
            Arc::new(PgOutbox::new(shared.clone())),
            || PgServer::new(shared.clone(), first.take()),
            tasks,
        ))
    }
}

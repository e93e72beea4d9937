//! The shared store: one PostgreSQL database, any number of gateways.
//!
//! Operations gather while the last statement is under way and go as one over `unnest` arrays, so
//! that one round trip and one flush to disk serve many keys. A few connections ("lanes") carry one
//! statement each. The database's clock is the clock, its unique index decides who is first, and its
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
    StoreError,
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
        self.scans.execute(sqlx::query(sql)).await
    }

    /// How long each route keeps its answers, as whoever serves it has noted.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Ambiguous`.
    pub async fn ttls(&self) -> Result<HashMap<String, Duration>, StoreError> {
        self.scans.ttls().await
    }

    /// This store in transactions of the application's own pool, which must be one of this database.
    pub fn transactions(&self, pool: sqlx::PgPool) -> PgTransactions {
        PgTransactions::new(pool, self.scans.shared.clone())
    }

    /// Connects, checks the schema, and starts the lanes in the tokio runtime that this is called
    /// in.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub async fn open(url: &str, options: &PostgresOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.pooler, options.timeout)?;
        let prepared = open::prepare(&target, options.migrate, options.create);
        let (connection, secret, identity) = prepared.await?;
        let (words, unsaid) = match options.pooler {
            Pooler::None => {
                let (words, unsaid) = mpsc::channel(MAX_UNSAID);
                (Some(words), Some(unsaid))
            }
            // Nobody can listen through a pooler, so nobody need speak.
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
            // A pooler's transactions could not hold a vacuum.
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

//! The shared store on MySQL or MariaDB: one database, any number of gateways.
//!
//! As on PostgreSQL, operations gather while the last batch is under way, and a few connections carry
//! one batch each. A batch is a few statements in one message and one transaction at READ COMMITTED.
//! The database's clock is the clock, its unique index decides who is first, and its transactions
//! decide what is durable.
//!
//! Deliberately absent: any rule about states in SQL, and any trust in counts of affected rows.

mod connect;
pub(crate) mod dialect;
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

use tokio::task::JoinSet;

use crate::sql::{
    line::{Dial as _, Line},
    open,
};
pub use crate::sql::{
    open::{Migrated, OpenError},
    store::ServerStore,
};
use connect::Target;
pub(crate) use failure::is_conflict;
use outbox::MySqlOutbox;
use scan::Scanners;
pub use schema::{VERSION, script};
use server::{MySqlServer, Shared};
pub use transactional::{MySqlOpen, MySqlTransactions};
use watch::Watch;

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
pub type MySqlStore = ServerStore<Scanners>;

impl MySqlStore {
    /// Connects, checks the schema, and starts the lanes in the tokio runtime that this is called
    /// in.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub async fn open(url: &str, options: &MySqlOptions) -> Result<Self, OpenError> {
        let target = Target::parse(url, options.timeout)?;
        let prepared = open::prepare(&target, options.migrate, options.create);
        let (connection, secret, identity) = prepared.await?;
        let shared = Arc::new(Shared {
            line: Line::new(target, &secret),
            watch: Watch::new(),
            messages: tokio::sync::watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(watch::look(shared.clone()));
        let mut first = Some(shared.line.first(connection));
        Ok(Self::start(
            (secret, identity),
            Arc::new(Scanners::new(shared.clone())),
            Arc::new(MySqlOutbox::new(shared.clone())),
            || MySqlServer::new(shared.clone(), first.take()),
            tasks,
        ))
    }

    /// This store in transactions of the application's own pool, which must be one of this database.
    pub fn transactions(&self, pool: sqlx::MySqlPool) -> MySqlTransactions {
        MySqlTransactions::new(pool, self.scans.clone())
    }
}

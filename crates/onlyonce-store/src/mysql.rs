//! The shared store on MySQL or MariaDB: one database, any number of gateways.
//!
//! As on PostgreSQL, operations collect while the previous batch is under way, and a few connections carry
//! one batch each. A batch is a few statements in one message and one transaction at READ COMMITTED. The
//! database's clock is the clock, its unique index decides who is first, and its transactions decide what is
//! durable.
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
use crate::{Boxed, Store};
use connect::Target;
pub(crate) use failure::is_conflict;
use outbox::MySqlOutbox;
use scan::Scanners;
pub use schema::{VERSION, script};
use server::{MySqlServer, Shared};
pub use transactional::{MySqlOpen, MySqlTransactions};
use watch::Watch;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct MySqlOptions {
    /// The timeout of one call.
    pub timeout: Duration,
    /// Whether to create or upgrade the schema.
    pub migrate: bool,
    /// Whether to create a store if there is none.
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

/// Checks that `url` is valid, without connecting.
///
/// # Errors
/// [`OpenError::Url`] says why not.
pub fn check_url(url: &str) -> Result<(), OpenError> {
    Target::parse(url, MySqlOptions::default().timeout).map(drop)
}

/// Creates the schema of a store, or upgrades it.
///
/// # Errors
/// [`OpenError`] says why not.
pub fn migrate<'a>(
    url: &'a str,
    options: &'a MySqlOptions,
) -> Boxed<'a, Result<Migrated, OpenError>> {
    Box::pin(migrated(url, options))
}

async fn migrated(url: &str, options: &MySqlOptions) -> Result<Migrated, OpenError> {
    let target = Target::parse(url, options.timeout)?;
    let mut connection = target.connect().await.map_err(OpenError::Connect)?;
    schema::migrate(&mut connection).await
}

/// A store in a MySQL or MariaDB database.
pub type MySqlStore = ServerStore<Scanners>;

/// The generic store is compiled where it becomes a trait object: here, and not in every program.
impl From<MySqlStore> for Arc<dyn Store> {
    fn from(store: MySqlStore) -> Self {
        Arc::new(store)
    }
}

impl MySqlStore {
    /// Connects, checks the schema, and starts the lanes in the current tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`] says why the database cannot be used.
    pub fn open<'a>(url: &'a str, options: &'a MySqlOptions) -> Boxed<'a, Result<Self, OpenError>> {
        Box::pin(Self::opened(url, options))
    }

    async fn opened(url: &str, options: &MySqlOptions) -> Result<Self, OpenError> {
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

    /// This store in transactions of the application's own pool, which must connect to the same database.
    pub fn transactions(&self, pool: sqlx::MySqlPool) -> MySqlTransactions {
        MySqlTransactions::new(pool, self.scans.clone())
    }
}

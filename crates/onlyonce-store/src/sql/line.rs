//! A small pool of connections that reconnect on failure.
//!
//! Deliberately absent: opening a connection and reading a server's settings, which each kind of server does
//! in a [`Dial`].

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use onlyonce_core::Secret;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    doubt::Doubt,
    failure::{Failure, no_answer, unfit},
    hosts::Hosts,
    open::{self, Found, Migrated, OpenError},
};
use crate::Level;

/// How much longer than the server's own timeout a statement is waited for: meanwhile the server can report
/// that it rolled the statement back, which is better than not knowing.
const LAST_WORD: Duration = Duration::from_millis(250);
/// How long closing a dropped connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens connections to one database.
#[async_trait]
pub(crate) trait Dial: Send + Sync + 'static {
    /// A connection.
    type Connection: sqlx::Connection + 'static;
    /// The options for one host.
    type Options: Send + Sync;

    /// The hosts of the database.
    fn hosts(&self) -> &Hosts<Self::Options>;

    /// Connects to this host, which must take writes, and reads what an acknowledged write survives there.
    async fn greet(&self, host: &Self::Options) -> Result<(Self::Connection, Level), sqlx::Error>;

    /// What an acknowledged write survives.
    async fn level_of(&self, connection: &mut Self::Connection) -> Result<Level, sqlx::Error>;

    /// The newest schema version that this program knows.
    const VERSION: i64;

    /// The version of the schema found, and the oldest program that can use it.
    async fn found(&self, connection: &mut Self::Connection) -> Result<Found, sqlx::Error>;

    /// Upgrades the schema if it is older. Safe to run on all nodes at the same time.
    async fn migrate(connection: &mut Self::Connection) -> Result<Migrated, OpenError>;

    /// The identity that an operator has renewed, if any, and what distinguishes this database from copies
    /// elsewhere.
    async fn own_identity(
        &self,
        connection: &mut Self::Connection,
    ) -> Result<(Option<Vec<u8>>, Vec<u8>), sqlx::Error>;

    /// The secret of the store in the database on this connection.
    async fn secret(
        &self,
        connection: &mut Self::Connection,
    ) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// Whether a statement failed because the store's tables do not exist.
    fn is_missing(error: &sqlx::Error) -> bool;

    /// Commits something insignificant, and returns once that commit has waited for everybody it should wait
    /// for: earlier commits are then as durable. Also reads again what an acknowledged write survives: if
    /// commits no longer wait, this one proves nothing.
    async fn confirm(&self, connection: &mut Self::Connection) -> Result<(), Failure>;

    /// Connects to the host that takes writes.
    async fn connect(&self) -> Result<Self::Connection, sqlx::Error> {
        self.hosts().connect(|host| self.greet(host)).await
    }

    /// The timeout of a call.
    fn timeout(&self) -> Duration {
        self.hosts().timeout()
    }
}

/// Closes a connection in the background.
pub(crate) fn abandon<C: sqlx::Connection + 'static>(connection: C) {
    tokio::spawn(async move {
        // A server that does not answer would block the close for ever.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection.close_hard()).await;
    });
}

/// Whether statements change records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No: whatever their outcome, they leave no doubt.
    Read,
    /// Possibly.
    Write,
}

/// The connections of one store.
pub(crate) struct Line<D> {
    pub(crate) dial: D,
    /// The secret of the store that was opened.
    secret: Vec<u8>,
    /// Rises when a connection is lost: the others are then not trusted either.
    epoch: AtomicU64,
    pub(crate) doubt: Doubt,
}

/// A connection, and its epoch.
pub(crate) type Held<D> = (<D as Dial>::Connection, u64);

impl<D: Dial> Line<D> {
    pub(crate) fn new(dial: D, secret: &Secret) -> Self {
        Self {
            dial,
            secret: secret.as_bytes().to_vec(),
            epoch: AtomicU64::new(0),
            doubt: Doubt::default(),
        }
    }

    /// Adopts a connection that was opened before the line.
    pub(crate) fn first(&self, connection: D::Connection) -> Held<D> {
        (connection, 0)
    }

    pub(crate) async fn connect(&self) -> Result<Held<D>, sqlx::Error> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let dialled = self.dial().await.inspect_err(|error| {
            if unfit(error).is_some() {
                // Older connections would write into whatever has taken the store's place.
                self.renew();
            }
        });
        Ok((dialled?, epoch))
    }

    /// Opens a connection, and checks that it leads to the database that the store was opened on.
    async fn dial(&self) -> Result<D::Connection, sqlx::Error> {
        let mut connection = self.dial.connect().await?;
        let secret = self.dial.secret(&mut connection);
        let found = tokio::time::timeout(self.dial.timeout(), secret).await;
        let found = match found {
            Ok(Err(error)) if D::is_missing(&error) => None,
            Ok(found) => found?,
            Err(_) => return Err(no_answer("the server did not answer in time")),
        };
        open::same(found.as_deref(), &self.secret)?;
        Ok(connection)
    }

    /// Reads again, on the connection in use, what an acknowledged write survives.
    pub(crate) async fn look(&self, slot: &mut Option<Held<D>>) {
        let Ok(connection) = self.connected(slot).await else {
            return;
        };
        let look = async {
            let level = self.dial.level_of(connection).await;
            level.map_err(Failure::Lost)
        };
        let outcome = self.in_time(Access::Read, look).await;
        self.judge(slot, &outcome);
        if outcome.is_ok_and(|level| self.dial.hosts().saw_again(level)) {
            self.renew();
            // A new connection is checked before use.
            let _ = self.connected(slot).await;
        }
    }

    /// The connection in `slot`, or a new one if none can be trusted, once there is no doubt about the
    /// durability of what it shows. If this fails, nothing has been sent.
    pub(crate) async fn ready<'s>(
        &self,
        slot: &'s mut Option<Held<D>>,
    ) -> Result<&'s mut D::Connection, Failure> {
        self.connected(slot).await?;
        if self.doubt.pending().is_some() {
            self.confirm(slot).await?;
        }
        self.connected(slot).await
    }

    /// Returns once everything read from the server is as durable as an acknowledged write. If this fails,
    /// that is not known.
    pub(crate) async fn confirm(&self, slot: &mut Option<Held<D>>) -> Result<(), Failure> {
        let pending = self.doubt.pending();
        let connection = self.connected(slot).await?;
        let outcome = self
            .in_time(Access::Read, self.dial.confirm(connection))
            .await;
        self.judge(slot, &outcome);
        if outcome.is_ok()
            && let Some(pending) = pending
        {
            self.doubt.settle(pending);
        }
        // The caller has written nothing yet.
        outcome.map_err(|failure| Failure::Refused(failure.into_error()))
    }

    /// The connection in `slot`, or a new one if none can be trusted.
    pub(crate) async fn connected<'s>(
        &self,
        slot: &'s mut Option<Held<D>>,
    ) -> Result<&'s mut D::Connection, Failure> {
        let current = self.epoch.load(Ordering::SeqCst);
        if let Some((connection, _)) = slot.take_if(|(_, epoch)| *epoch != current) {
            abandon(connection);
        }
        let held = match slot.take() {
            Some(held) => held,
            None => self.connect().await.map_err(Failure::Refused)?,
        };
        Ok(&mut slot.insert(held).0)
    }

    /// Makes every connection reconnect before it is used again.
    pub(crate) fn renew(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// The result of `work` on a connection, within the timeout of a call.
    pub(crate) async fn in_time<T>(
        &self,
        access: Access,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let limit = self.dial.timeout() + LAST_WORD;
        let unanswered = (access == Access::Write).then(|| self.doubt.unless_answered());
        let outcome = match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Lost(no_answer(
                "the server did not answer in time",
            ))),
        };
        if let Some(unanswered) = unanswered
            && !matches!(&outcome, Err(failure) if failure.leaves_doubt())
        {
            unanswered.answered();
        }
        outcome
    }

    /// Drops the connection in `slot` if `outcome` says that it is unusable, and with it all connections of
    /// its epoch.
    pub(crate) fn judge<T>(&self, slot: &mut Option<Held<D>>, outcome: &Result<T, Failure>) {
        if let Err(failure) = outcome
            && failure.ends_the_connection()
            && let Some((connection, epoch)) = slot.take()
        {
            // A second failure in the same epoch does not make newer connections old.
            let _ =
                self.epoch
                    .compare_exchange(epoch, epoch + 1, Ordering::SeqCst, Ordering::SeqCst);
            abandon(connection);
        }
    }
}

/// A small pool of shared connections.
pub(crate) struct Pool<D: Dial> {
    room: Semaphore,
    idle: Mutex<Vec<Held<D>>>,
}

impl<D: Dial> Pool<D> {
    pub(crate) fn new(room: usize) -> Self {
        Self {
            room: Semaphore::new(room),
            idle: Mutex::default(),
        }
    }

    /// The result of `work` on a connection of the pool, within the timeout of a call. If the future is
    /// dropped, the connection is closed.
    pub(crate) async fn run<T>(
        &self,
        line: &Line<D>,
        access: Access,
        work: impl AsyncFnOnce(&mut D::Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (_room, mut slot) = self.take(line.dial.timeout()).await?;
        let connection = line.ready(&mut slot).await?;
        let outcome = line.in_time(access, work(connection)).await;
        self.give(slot, &outcome);
        outcome
    }

    /// A permit for a statement, and an idle connection if there is one.
    async fn take(
        &self,
        limit: Duration,
    ) -> Result<(SemaphorePermit<'_>, Option<Held<D>>), Failure> {
        match tokio::time::timeout(limit, self.room.acquire()).await {
            Ok(Ok(room)) => Ok((room, self.idle.lock().pop())),
            _ => Err(Failure::Refused(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Returns a connection to the pool, unless `outcome` says that it is unusable.
    fn give<T>(&self, slot: Option<Held<D>>, outcome: &Result<T, Failure>) {
        match outcome {
            Err(failure) if failure.ends_the_connection() => {
                slot.into_iter()
                    .for_each(|(connection, _)| abandon(connection));
            }
            _ => self.idle.lock().extend(slot),
        }
    }
}

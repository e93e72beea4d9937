//! A small pool of connections that reconnect on failure.
//!
//! Deliberately absent: how a connection is opened and what a server says of itself, which each kind of
//! server answers in a [`Dial`].

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

/// How much longer than the server's own limit a statement is waited for: within it the server can
/// say that it took the statement back, which is better than not knowing.
const LAST_WORD: Duration = Duration::from_millis(250);
/// How long a connection that is given up may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How connections to one database are made.
#[async_trait]
pub(crate) trait Dial: Send + Sync + 'static {
    /// A connection.
    type Connection: sqlx::Connection + 'static;
    /// How one host is reached.
    type Options: Send + Sync;

    /// The hosts of the database.
    fn hosts(&self) -> &Hosts<Self::Options>;

    /// A connection to this host, which takes writes, and what an acknowledged write survives there.
    async fn greet(&self, host: &Self::Options) -> Result<(Self::Connection, Level), sqlx::Error>;

    /// What an acknowledged write survives.
    async fn level_of(&self, connection: &mut Self::Connection) -> Result<Level, sqlx::Error>;

    /// The newest schema that this program knows.
    const VERSION: i64;

    /// The version of the schema that is there, and the oldest program that can use it.
    async fn found(&self, connection: &mut Self::Connection) -> Result<Found, sqlx::Error>;

    /// Brings the schema up to date, unless it is or is newer. Safe to run on every node at once.
    async fn migrate(connection: &mut Self::Connection) -> Result<Migrated, OpenError>;

    /// The identity that an operator has made, where one has, and what tells this database from copies of
    /// it elsewhere.
    async fn own_identity(
        &self,
        connection: &mut Self::Connection,
    ) -> Result<(Option<Vec<u8>>, Vec<u8>), sqlx::Error>;

    /// The secret of the store in the database that a connection leads to.
    async fn secret(
        &self,
        connection: &mut Self::Connection,
    ) -> Result<Option<Vec<u8>>, sqlx::Error>;

    /// Whether a statement failed because the store's tables are not there.
    fn is_missing(error: &sqlx::Error) -> bool;

    /// Commits something of no account, and returns once that commit has waited for everybody whom commits
    /// wait for: what was committed before it is then as safe. Also looks again at what an acknowledged write
    /// survives: where commits have ceased to wait, this one proves nothing.
    async fn confirm(&self, connection: &mut Self::Connection) -> Result<(), Failure>;

    /// A connection to the host that takes writes.
    async fn connect(&self) -> Result<Self::Connection, sqlx::Error> {
        self.hosts().connect(|host| self.greet(host)).await
    }

    /// How long a call may take.
    fn timeout(&self) -> Duration {
        self.hosts().timeout()
    }
}

/// Ends a connection without waiting for anybody.
pub(crate) fn abandon<C: sqlx::Connection + 'static>(connection: C) {
    tokio::spawn(async move {
        // A server that does not answer would hold the close for ever.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, connection.close_hard()).await;
    });
}

/// What statements do to records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing: however they end, they leave no doubt behind.
    Read,
    /// They may change some.
    Write,
}

/// Connections of one store.
pub(crate) struct Line<D> {
    pub(crate) dial: D,
    /// The secret of the store that was opened.
    secret: Vec<u8>,
    /// Rises when a connection is lost: the others are then not trusted either.
    epoch: AtomicU64,
    pub(crate) doubt: Doubt,
}

/// A connection, and the epoch it is from.
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

    /// A connection that was made before there was a line.
    pub(crate) fn first(&self, connection: D::Connection) -> Held<D> {
        (connection, 0)
    }

    pub(crate) async fn connect(&self) -> Result<Held<D>, sqlx::Error> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let dialled = self.dial().await.inspect_err(|error| {
            if unfit(error).is_some() {
                // Connections from before would write into what has taken the store's place.
                self.renew();
            }
        });
        Ok((dialled?, epoch))
    }

    /// A new connection that has been checked to lead to the database that the store was opened on.
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
            // A new connection is looked at before it is used.
            let _ = self.connected(slot).await;
        }
    }

    /// The connection in `slot`, or a new one where there is none that can be trusted, once there is no
    /// doubt about what it shows. When this fails, nothing has been sent.
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

    /// Returns once what has been read from the server is as safe as what it acknowledges. When this
    /// fails, it is not known to be.
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
        // Whoever asked has written nothing yet.
        outcome.map_err(|failure| Failure::Refused(failure.into_error()))
    }

    /// The connection in `slot`, or a new one where there is none that can be trusted.
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

    /// Lets every connection be made anew before it is used again.
    pub(crate) fn renew(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// What `work` on a connection comes to, within the time that a call may take.
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

    /// Gives up the connection in `slot` where `outcome` says that it is of no more use, and with it
    /// all of its age.
    pub(crate) fn judge<T>(&self, slot: &mut Option<Held<D>>, outcome: &Result<T, Failure>) {
        if let Err(failure) = outcome
            && failure.ends_the_connection()
            && let Some((connection, epoch)) = slot.take()
        {
            // Whoever finds that out second does not make the newest one old.
            let _ =
                self.epoch
                    .compare_exchange(epoch, epoch + 1, Ordering::SeqCst, Ordering::SeqCst);
            abandon(connection);
        }
    }
}

/// A few connections that are shared.
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

    /// What `work` comes to on a connection of the pool, within the time that a call may take. Whoever is
    /// dropped in the middle closes the connection.
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

    /// A place for a statement, and a connection that is idle, if there is one.
    async fn take(
        &self,
        limit: Duration,
    ) -> Result<(SemaphorePermit<'_>, Option<Held<D>>), Failure> {
        match tokio::time::timeout(limit, self.room.acquire()).await {
            Ok(Ok(room)) => Ok((room, self.idle.lock().pop())),
            _ => Err(Failure::Refused(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Keeps a connection for the next one, unless `outcome` says that it is of no more use.
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

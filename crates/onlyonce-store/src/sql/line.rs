//! Connections that are made anew when they are lost, and a few of them that are shared.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::failure::{Failure, no_answer};

/// How much longer than the server's own limit a statement is waited for: within it the server can
/// say that it took the statement back, which is better than not knowing.
const LAST_WORD: Duration = Duration::from_millis(250);

/// How connections to one database are made, and given up.
pub(crate) trait Dial: Send + Sync + 'static {
    /// A connection.
    type Connection: Send + 'static;

    /// A new connection that has been checked to lead to the database that the store was opened on.
    fn dial(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// How long a call may take.
    fn timeout(&self) -> Duration;

    /// Ends a connection without waiting for anybody.
    fn abandon(connection: Self::Connection);
}

/// Connections of one store.
pub(crate) struct Line<D> {
    pub(crate) dial: D,
    /// Rises when a connection is lost: the others are then not trusted either.
    epoch: AtomicU64,
}

/// A connection, and the epoch it is from.
pub(crate) type Held<D> = (<D as Dial>::Connection, u64);

impl<D: Dial> Line<D> {
    pub(crate) fn new(dial: D) -> Self {
        let epoch = AtomicU64::new(0);
        Self { dial, epoch }
    }

    /// A connection that was made before there was a line.
    pub(crate) fn first(&self, connection: D::Connection) -> Held<D> {
        (connection, 0)
    }

    pub(crate) async fn connect(&self) -> Result<Held<D>, sqlx::Error> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        Ok((self.dial.dial().await?, epoch))
    }

    /// The connection in `slot`, or a new one where there is none that can be trusted. When this
    /// fails, nothing has been sent.
    pub(crate) async fn ready<'s>(
        &self,
        slot: &'s mut Option<Held<D>>,
    ) -> Result<&'s mut D::Connection, Failure> {
        let current = self.epoch.load(Ordering::SeqCst);
        if let Some((connection, _)) = slot.take_if(|(_, epoch)| *epoch != current) {
            D::abandon(connection);
        }
        let held = match slot.take() {
            Some(held) => held,
            None => self.connect().await.map_err(Failure::Refused)?,
        };
        Ok(&mut slot.insert(held).0)
    }

    /// What `work` on a connection comes to, within the time that a call may take.
    pub(crate) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let limit = self.dial.timeout() + LAST_WORD;
        match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Failure::Lost(no_answer(
                "the server did not answer in time",
            ))),
        }
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
            D::abandon(connection);
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

    /// A place for a statement, and a connection that is idle, if there is one.
    pub(crate) async fn take(
        &self,
        limit: Duration,
    ) -> Result<(SemaphorePermit<'_>, Option<Held<D>>), Failure> {
        match tokio::time::timeout(limit, self.room.acquire()).await {
            Ok(Ok(room)) => Ok((room, self.idle.lock().pop())),
            _ => Err(Failure::Refused(sqlx::Error::PoolTimedOut)),
        }
    }

    /// Keeps a connection for the next one, unless `outcome` says that it is of no more use.
    pub(crate) fn give<T>(&self, slot: Option<Held<D>>, outcome: &Result<T, Failure>) {
        match outcome {
            Err(failure) if failure.ends_the_connection() => {
                slot.into_iter()
                    .for_each(|(connection, _)| D::abandon(connection));
            }
            _ => self.idle.lock().extend(slot),
        }
    }
}

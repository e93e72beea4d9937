//! Connections that are made anew when they are lost, and a few of them that are shared.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    doubt::Doubt,
    failure::{Failure, no_answer, unfit},
};

/// How much longer than the server's own limit a statement is waited for: within it the server can
/// say that it took the statement back, which is better than not knowing.
const LAST_WORD: Duration = Duration::from_millis(250);

/// How connections to one database are made, and given up.
pub(crate) trait Dial: Send + Sync + 'static {
    /// A connection.
    type Connection: Send + 'static;

    /// A new connection that has been checked to lead to the database that the store was opened on.
    fn dial(&self) -> impl Future<Output = Result<Self::Connection, sqlx::Error>> + Send;

    /// Commits something of no account, and returns once that commit has waited for everybody whom commits
    /// wait for: what was committed before it is then as safe.
    fn confirm(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// How long a call may take.
    fn timeout(&self) -> Duration;

    /// Ends a connection without waiting for anybody.
    fn abandon(connection: Self::Connection);
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
    /// Rises when a connection is lost: the others are then not trusted either.
    epoch: AtomicU64,
    pub(crate) doubt: Doubt,
}

/// A connection, and the epoch it is from.
pub(crate) type Held<D> = (<D as Dial>::Connection, u64);

impl<D: Dial> Line<D> {
    pub(crate) fn new(dial: D) -> Self {
        Self {
            dial,
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
        let dialled = self.dial.dial().await.inspect_err(|error| {
            if unfit(error).is_some() {
                // Connections from before would write into what has taken the store's place.
                self.renew();
            }
        });
        Ok((dialled?, epoch))
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
            D::abandon(connection);
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

//! In the caller's own transaction: the key, the business write and the messages commit together.
//!
//! The reservation stands in a short transaction of its own, so that a duplicate is answered at once
//! and waits for no row. Then one transaction holds the caller's work and the completion of the key, in
//! which the attempt is compared once more. What is rolled back is proven not to have happened, so the
//! key is given back; what is committed is completed, whoever dies afterwards.
//!
//! Deliberately absent: a guess about a commit whose answer was lost. The row itself is asked: as long as
//! the transaction is open it is held, and once it has ended it says how.

mod answer;
mod attempted;
mod deferred;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use onlyonce_core::{
    Key, Policy, RecordId, Scope, machine::Refusal, policy::OnInFlight, record::StoredResponse,
};
use onlyonce_store::{
    StoreError, TransactionalStore,
    transactional::{Isolation, MAX_MESSAGE_BYTES, TransactionError},
};

pub use answer::Answer;
pub(crate) use answer::VERSION;
pub(crate) use attempted::{Abandoned, Completion, give_back};
pub use deferred::DeferredWork;

use crate::{
    at_once::after,
    engine::{Admitted, Arrival, Attempt, Engine, Unavailable, Woken},
    limits::Limited,
};

/// How often work is run again after a conflict, unless said otherwise.
const DEFAULT_RETRIES: usize = 5;

/// Work in a transaction.
pub type Work<'c> = BoxFuture<'c, Result<Answer, TransactionError>>;

/// Turns an answer of an older version of the application into one of today's; `None` if it cannot.
pub type Upgrade = fn(version: u32, answer: Answer) -> Option<Answer>;

/// An engine, and the application's own transactions on the same database.
#[derive(Clone)]
pub struct Transactions<T> {
    engine: Engine,
    store: T,
    isolation: Isolation,
    retries: usize,
    version: u32,
    upgrade: Upgrade,
    max_message_bytes: usize,
}

impl<T> std::fmt::Debug for Transactions<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transactions")
            .field("isolation", &self.isolation)
            .field("retries", &self.retries)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// What `run` came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ran {
    /// The work was done and committed now.
    Executed(Answer),
    /// It had been done; this is its answer.
    Replayed(Answer),
    /// It is committed, and a message is on its way whose delivery will bring the answer: 202, with a place
    /// to ask about this record.
    Accepted(RecordId),
    /// Somebody else is at it.
    InFlight,
    /// No.
    Refused(Refusal),
    /// The key is not known, and its client may not bring a new one.
    Limited(Limited),
}

/// Why it could not be found out, or done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The store could not be asked; nothing was done.
    #[error("the store could not answer; nothing was done")]
    Store(#[source] StoreError),
    /// The transaction was rolled back; the key is free to be tried again.
    #[error("the transaction was rolled back; the key is free")]
    RolledBack(#[source] TransactionError),
    /// The key belongs to somebody else by now; the transaction was rolled back.
    #[error("another attempt owns the key; the transaction was rolled back")]
    Lost,
    /// Nobody can tell yet whether the transaction was committed. The key will say.
    #[error("nobody can tell yet whether the transaction was committed")]
    Unclear(#[source] TransactionError),
    /// The stored answer is of a version that this program cannot read.
    #[error("the stored answer is of version {0}, which this program does not know")]
    UnknownVersion(u32),
}

impl<T: TransactionalStore> Transactions<T> {
    /// Transactions of `store`, which must be on the database of the engine's own store.
    pub fn new(engine: impl Into<Engine>, store: T) -> Self {
        Self {
            engine: engine.into(),
            store,
            isolation: Isolation::default(),
            retries: DEFAULT_RETRIES,
            version: 0,
            upgrade: |_, _| None,
            max_message_bytes: MAX_MESSAGE_BYTES,
        }
    }

    /// The same, with messages of at most so many bytes, headers included, instead of
    /// [`MAX_MESSAGE_BYTES`]. What is large is better left elsewhere, and referred to: a delivery reads a
    /// message within the store's timeout.
    #[must_use]
    pub fn max_message_bytes(self, max_message_bytes: usize) -> Self {
        Self {
            max_message_bytes,
            ..self
        }
    }

    pub(crate) fn most_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    /// The same, with another isolation.
    #[must_use]
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self { isolation, ..self }
    }

    /// The same, with another number of tries after a conflict. With none, conflicts are reported.
    #[must_use]
    pub fn retries(self, retries: usize) -> Self {
        Self { retries, ..self }
    }

    /// The same, whose answers carry the application's `version`. What older versions stored goes
    /// through `upgrade`; what it cannot read is refused, never guessed at.
    #[must_use]
    pub fn version(self, version: u32, upgrade: Upgrade) -> Self {
        Self {
            version,
            upgrade,
            ..self
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The store, for transactions that the caller opens.
    pub fn store(&self) -> &T {
        &self.store
    }

    /// An operation by this name, under `policy`.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep the policy's recipe.
    pub async fn operation(&self, name: &str, policy: Policy) -> Result<Operation<T>, Unavailable> {
        let (name, policy) = (Arc::<str>::from(name), Arc::new(policy));
        self.engine.keep_recipe(&policy.recipe).await?;
        self.engine.keep_policy(&name, &policy).await?;
        self.engine.set_policy(name.clone(), policy.clone());
        Ok(Operation {
            transactions: self.clone(),
            name,
            policy,
        })
    }

    /// An answer as it is stored.
    pub(crate) fn stored(&self, answer: &Answer) -> StoredResponse {
        answer.stored(self.version)
    }

    /// A stored answer, in today's form.
    pub(crate) fn replayed(&self, stored: &StoredResponse) -> Result<Answer, RunError> {
        let (version, answer) = Answer::from_stored(stored);
        if version == self.version {
            return Ok(answer);
        }
        (self.upgrade)(version, answer).ok_or(RunError::UnknownVersion(version))
    }
}

/// One kind of request, by name and policy.
#[derive(Clone)]
pub struct Operation<T> {
    transactions: Transactions<T>,
    name: Arc<str>,
    policy: Arc<Policy>,
}

impl<T> std::fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.name)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<T: TransactionalStore> Operation<T> {
    /// Does `work` once for `key` in `scope`, in one transaction with the key's completion; or says what
    /// is known of the key. `request` is what must be the same when the key comes again.
    ///
    /// After a conflict with another transaction `work` is run again, in a new one. If this future is
    /// dropped, the transaction is rolled back and the key given back, unless it had been committed.
    ///
    /// # Errors
    /// [`RunError`] says why it was not done, or that nobody can tell yet.
    pub async fn run<W>(
        &self,
        scope: Scope,
        key: Key,
        request: impl Into<Bytes>,
        work: W,
    ) -> Result<Ran, RunError>
    where
        W: for<'c> FnMut(&'c mut T::Connection) -> Work<'c> + Send,
    {
        let mut arrival = self.arrival(scope, key, request.into());
        match self.admitted(&mut arrival).await? {
            Admitted::Execute(attempt) => {
                let answer = self.transactions.execute(&attempt, work).await?;
                Ok(Ran::Executed(answer))
            }
            Admitted::Refused(refusal @ Refusal::OutcomeUnknown) => {
                match self.taken_over(arrival.id()).await? {
                    Some(attempt) => {
                        let answer = self.transactions.execute(&attempt, work).await?;
                        Ok(Ran::Executed(answer))
                    }
                    None => Ok(Ran::Refused(refusal)),
                }
            }
            Admitted::Replay(replay) => {
                let answer = self.transactions.replayed(&replay.response)?;
                Ok(Ran::Replayed(answer))
            }
            Admitted::InFlight(_) => Ok(Ran::InFlight),
            Admitted::Refused(refusal) => Ok(Ran::Refused(refusal)),
            Admitted::Limited(limited) => Ok(Ran::Limited(limited)),
        }
    }

    /// The transactions it runs in.
    pub fn transactions(&self) -> &Transactions<T> {
        &self.transactions
    }

    pub(crate) fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn arrival(&self, scope: Scope, key: Key, request: Bytes) -> Arrival {
        let engine = &self.transactions.engine;
        let (name, headers) = (self.name.clone(), HeaderMap::new());
        Arrival::new(
            engine,
            scope,
            key,
            None,
            name,
            &Method::POST,
            &self.name,
            headers,
            request,
        )
    }

    /// A new attempt for a key whose last one showed no more sign of life, where it is proven that this one
    /// left nothing behind: what it did stands in a transaction that did not commit, and cannot any more
    /// once the key has another attempt. A key that was left to a message, or has come to a recovery point,
    /// is not taken over.
    async fn taken_over(&self, id: RecordId) -> Result<Option<Attempt>, RunError> {
        let store = &self.transactions.store;
        let look = async {
            let mut open = store.begin(Isolation::default()).await?;
            let progress = store.progress(&mut open, id).await?;
            store.rollback(open).await;
            Ok(progress)
        };
        let progress = look.await.map_err(RunError::RolledBack)?;
        let engine = &self.transactions.engine;
        let unavailable = |Unavailable(error)| RunError::Store(error);
        if let Some(progress) = progress {
            let record = engine.store().lookup(id).await.map_err(RunError::Store)?;
            if record.value.is_none_or(|record| progress.is_of(&record)) {
                return Ok(None);
            }
        }
        let taken = engine.take_over(id, &self.policy).await;
        taken.map_err(unavailable)
    }

    /// What the key's past permits, once nobody else is at it or the policy's wait is over.
    pub(crate) async fn admitted(&self, arrival: &mut Arrival) -> Result<Admitted, RunError> {
        let engine = &self.transactions.engine;
        let unavailable = |Unavailable(error)| RunError::Store(error);
        let deadline = after(tokio::time::Instant::now(), self.policy.wait_timeout);
        loop {
            let admitted = engine
                .admit(arrival, &self.policy)
                .await
                .map_err(unavailable)?;
            let waits = matches!(admitted, Admitted::InFlight(OnInFlight::Wait));
            // Somebody may be making the key in a transaction that stays open: there is nothing to wait
            // by then, only to ask again.
            if !waits || tokio::time::Instant::now() >= deadline {
                return Ok(admitted);
            }
            let Some(place) = engine.join(arrival, &self.policy) else {
                return Ok(admitted);
            };
            let woken = engine.wait(place, arrival, &self.policy, deadline).await;
            match woken.map_err(unavailable)? {
                Some(Woken::Answer(answer)) => return Ok(*answer),
                Some(Woken::AskAgain) => {}
                None => return Ok(admitted),
            }
        }
    }
}

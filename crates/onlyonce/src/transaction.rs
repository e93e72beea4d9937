//! Idempotency in the caller's own transaction: the key, the business write and the messages commit together.
//!
//! The reservation is a short transaction of its own, so that a duplicate is answered immediately and waits
//! for no row lock. Then one transaction contains the caller's work and the completion of the key, and
//! compares the attempt once more. A rollback proves that nothing happened, so the key is released. A commit
//! completes the key, whatever crashes afterwards.
//!
//! Deliberately absent: a guess about a commit whose reply was lost. The row itself is read: it is locked
//! while the transaction is open, and tells the outcome once the transaction has ended.

mod answer;
mod attempted;
mod deferred;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method};
use onlyonce_core::{
    Key, Policy, RecordId, Scope,
    machine::Refusal,
    policy::{OnInFlight, Remember},
    record::StoredResponse,
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

/// How often work is run again after a conflict, by default.
const DEFAULT_RETRIES: usize = 5;

/// Work in a transaction.
pub type Work<'c> = BoxFuture<'c, Result<Answer, TransactionError>>;

/// Converts an answer of an older version of the application to the current one; `None` if it cannot.
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

/// The result of `run`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Ran {
    /// The work was executed and committed now.
    Executed(Answer),
    /// The work had been done before; this is its answer.
    Replayed(Answer),
    /// The work is committed, and the delivery of a message will bring the answer: respond 202, with a URL to
    /// ask about this record.
    Accepted(RecordId),
    /// Another attempt is running.
    InFlight,
    /// The key was refused.
    Refused(Refusal),
    /// The store does not know the key, and the client may not bring a new one.
    Limited(Limited),
}

/// Why the work was not done, or its outcome is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The store was unavailable; nothing was done.
    #[error("the store could not answer; nothing was done")]
    Store(#[source] StoreError),
    /// The transaction was rolled back; the key is free for another try.
    #[error("the transaction was rolled back; the key is free")]
    RolledBack(#[source] TransactionError),
    /// Another attempt owns the key by now; the transaction was rolled back.
    #[error("another attempt owns the key; the transaction was rolled back")]
    Lost,
    /// It is not known yet whether the transaction was committed. The key will tell.
    #[error("nobody can tell yet whether the transaction was committed")]
    Unclear(#[source] TransactionError),
    /// The stored answer has a version that this program cannot read.
    #[error("the stored answer is of version {0}, which this program does not know")]
    UnknownVersion(u32),
}

impl<T: TransactionalStore> Transactions<T> {
    /// Transactions of `store`, which must be on the same database as the engine's store.
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

    /// Sets the largest message in bytes, headers included, instead of [`MAX_MESSAGE_BYTES`]. Large content
    /// is better stored elsewhere and referred to: a delivery reads a message within the store's timeout.
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

    /// Sets the isolation level.
    #[must_use]
    pub fn isolation(self, isolation: Isolation) -> Self {
        Self { isolation, ..self }
    }

    /// Sets the number of retries after a conflict. With zero, conflicts are reported.
    #[must_use]
    pub fn retries(self, retries: usize) -> Self {
        Self { retries, ..self }
    }

    /// Sets the application's `version` for stored answers. Answers of older versions go through `upgrade`;
    /// one that it cannot convert is refused, never guessed at.
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

    /// Declares an operation with this name and `policy`.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot keep the policy, or if a duration that must be positive is not.
    pub async fn operation(&self, name: &str, policy: Policy) -> Result<Operation<T>, Unavailable> {
        let mut policy = policy;
        // The application's own transaction owns the answer, and a commit whose reply was lost is answered
        // with what it stored.
        policy.remember = Remember::Full;
        policy.hide_card_numbers = false;
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

    /// The stored form of an answer.
    pub(crate) fn stored(&self, answer: &Answer) -> StoredResponse {
        answer.stored(self.version)
    }

    /// A stored answer, converted to the current version.
    pub(crate) fn replayed(&self, stored: &StoredResponse) -> Result<Answer, RunError> {
        let (version, answer) = Answer::from_stored(stored);
        if version == self.version {
            return Ok(answer);
        }
        (self.upgrade)(version, answer).ok_or(RunError::UnknownVersion(version))
    }
}

/// One kind of request, with its name and policy.
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
    /// Does `work` once for `key` in `scope`, in one transaction with the key's completion; otherwise returns
    /// what is known of the key. `request` is what must be equal when the key is used again.
    ///
    /// After a conflict with another transaction `work` is run again, in a new one. If this future is
    /// dropped, the transaction is rolled back and the key released, unless the transaction had been
    /// committed.
    ///
    /// # Errors
    /// [`RunError`] says why the work was not done, or that this is not known yet.
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

    /// The transactions that the operation runs in.
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

    /// A new attempt for a key whose last attempt stopped renewing its lease, if that attempt is proven to
    /// have left nothing behind: its effects are in a transaction that did not commit, and cannot commit once
    /// another attempt owns the key. A key that was handed over to a message, or has reached a recovery
    /// point, is not taken over.
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

    /// What the key's past permits, once no other attempt is running or the policy's wait has ended.
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
            // Another transaction that stays open may be creating the key: then there is no record to wait
            // on, only to ask again.
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

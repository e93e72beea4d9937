//! Work whose answer comes later. The caller's transaction commits the business write, the message that asks
//! another service for the rest, and a key that stays in progress. The delivery of the message settles the
//! key with the receiver's answer, in one transaction with the message. Retries wait for that, or are told
//! where to ask.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use onlyonce_core::{
    Key, Record, RecordId, Scope,
    machine::{self, HandOver, Lease, Refusal},
};
use onlyonce_store::{
    Reply, TransactionalStore, failpoint,
    transactional::{Isolation, Message, Progress, TransactionError},
};

use super::{Abandoned, Operation, Ran, RunError, give_back};
use crate::{
    engine::{
        Admitted, Attempt,
        drive::alive_during,
        transition::{InTransaction, Known, Unanswered, transition},
    },
    outbox,
};

/// The recovery point of a key that was handed over to a message.
const HANDED_OVER: &str = "handed_over";

/// Work in a transaction that ends with a message.
pub type DeferredWork<'c> = BoxFuture<'c, Result<Message, TransactionError>>;

impl<T: TransactionalStore> Operation<T> {
    /// Does `work` once for `key` in `scope`, in one transaction with the message that it returns. The key
    /// stays in progress until that message is delivered, and is then settled with the receiver's answer.
    ///
    /// The message has a downstream key that is derived from the key itself unless `work` names one, so it is
    /// the same even if the key had to be executed again.
    ///
    /// Under a policy that lets retries wait, this call waits as long as they do. A key not settled by then
    /// is [`Ran::Accepted`]. The policy's `max_execution` must be longer than a delivery may take with all
    /// its attempts: beyond it the key is shown as unknown until the message is delivered.
    ///
    /// # Errors
    /// [`RunError`] says why the work was not done, or that this is not known yet.
    pub async fn run_deferred<W>(
        &self,
        scope: Scope,
        key: Key,
        request: impl Into<Bytes>,
        work: W,
    ) -> Result<Ran, RunError>
    where
        W: for<'c> FnOnce(&'c mut T::Connection) -> DeferredWork<'c> + Send,
    {
        let request = request.into();
        let mut arrival = self.arrival(scope.clone(), key.clone(), request.clone());
        let executed = match self.admitted(&mut arrival).await? {
            Admitted::Execute(attempt) => {
                self.hand_over(&attempt, work).await?;
                true
            }
            Admitted::Refused(refusal @ Refusal::OutcomeUnknown) => {
                match self.taken_over(arrival.id()).await? {
                    Some(attempt) => self.hand_over(&attempt, work).await?,
                    None => return Ok(Ran::Refused(refusal)),
                }
                true
            }
            admitted => return self.told(admitted, arrival.id(), false),
        };
        // As a retry, since the reservation is used up.
        let mut arrival = self.arrival(scope, key, request);
        let admitted = self.admitted(&mut arrival).await?;
        self.told(admitted, arrival.id(), executed)
    }

    /// The result for a key whose work was committed, or that another attempt owns.
    fn told(&self, admitted: Admitted, id: RecordId, executed: bool) -> Result<Ran, RunError> {
        Ok(match admitted {
            Admitted::Replay(replay) => {
                let answer = self.transactions.replayed(&replay.response)?;
                if executed {
                    Ran::Executed(answer)
                } else {
                    Ran::Replayed(answer)
                }
            }
            Admitted::InFlight(_) => Ran::Accepted(id),
            Admitted::Refused(refusal) => Ran::Refused(refusal),
            Admitted::Limited(limited) => Ran::Limited(limited),
            // The key was handed over and has been released since: the next request executes it.
            Admitted::Execute(attempt) => {
                attempt.release_later();
                Ran::InFlight
            }
        })
    }

    /// Commits the work, the message and the key that is handed over to it.
    async fn hand_over<W>(&self, attempt: &Attempt, work: W) -> Result<(), RunError>
    where
        W: for<'c> FnOnce(&'c mut T::Connection) -> DeferredWork<'c> + Send,
    {
        let store = &self.transactions.store;
        failpoint!("deferred.begin.before");
        let abandoned = Abandoned::unless_seen_through(attempt);
        let left = alive_during(attempt, self.left(attempt, work)).await;
        // From here on an impatient caller must not release the key: it stays in progress once this is
        // committed, and looks the same as before.
        abandoned.seen_through();
        let (open, left) = match left {
            Ok(done) => done,
            Err(error) => {
                give_back(attempt).await;
                return Err(RunError::RolledBack(error));
            }
        };
        let Some(record) = left else {
            store.rollback(open).await;
            return Err(RunError::Lost);
        };
        failpoint!("deferred.commit.before");
        match store.commit(open).await {
            Ok(()) => {
                failpoint!("deferred.commit.after");
                store.committed(record.id);
                Ok(())
            }
            Err(error) if error.is_conflict() => {
                give_back(attempt).await;
                Err(RunError::RolledBack(error))
            }
            Err(error) => self.asked(attempt, error).await,
        }
    }

    /// Does the work, enqueues the message and hands the key over, in a transaction that is still open.
    /// `None` if the attempt no longer owns its key.
    async fn left<W>(
        &self,
        attempt: &Attempt,
        work: W,
    ) -> Result<(T::Open, Option<Arc<Record>>), TransactionError>
    where
        W: for<'c> FnOnce(&'c mut T::Connection) -> DeferredWork<'c> + Send,
    {
        let store = &self.transactions.store;
        let mut open = store.begin(self.transactions.isolation).await?;
        // A locked row needs no renewal, and gets none that would conflict.
        let held = store.lock(&mut open, attempt.record().id).await?;
        let Some(held) = held.filter(|held| held.value.attempt_id == attempt.id()) else {
            return Ok((open, None));
        };
        let Reply { now, value: record } = held;
        if attempt.record().notes.erased {
            // The provider would know the message by a key that can no longer be derived.
            let erased = "the key was erased; nothing was executed";
            return Err(TransactionError::GivenUp(erased.into()));
        }
        let mut message = work(&mut open).await?;
        let secret = self.transactions.engine.secret();
        // By the names that the engine knows: those in the row may be encrypted.
        let known = attempt.record();
        let downstream = || secret.downstream_key(known.scope.as_str(), &known.key, &self.name);
        message.downstream_key.get_or_insert_with(downstream);
        message.key = Some(record.id);
        let version = self.transactions.version;
        message.settles = Some(outbox::settles(attempt.id(), attempt.policy(), version));
        self.transactions.enqueue(&mut open, &message).await?;
        // Proof, for whoever finds the key without a renewed lease, that it was handed over to a message.
        let progress = Progress {
            id: record.id,
            operation: self.name.to_string(),
            point: HANDED_OVER.to_owned(),
            intent: None,
            provider_id: None,
            parameters: Vec::new(),
            data: b"null".to_vec(),
            attempt: attempt.id(),
            generation: record.generation,
            finished: true,
            updated_at: record.times.created_at.unwrap_or_default(),
        };
        store.advance(&mut open, &progress).await?;
        let (id, hand_over) = (record.id, HandOver(attempt.id()));
        let mut in_transaction = InTransaction {
            store,
            connection: &mut open,
        };
        let known = Known::Read(Arc::new(record), now);
        let moved = transition(&mut in_transaction, id, known, |record, now| {
            let step = machine::apply(record, &hand_over, now, attempt.policy());
            (step, Unanswered::Fail)
        });
        let moved = moved.await?;
        let left = moved.record.filter(|_| moved.effect == Lease::Renewed);
        Ok((open, left))
    }

    /// Finds out whether a commit whose reply was lost took effect: it left a recovery point with the id of
    /// this attempt. Waits for the row, which the transaction locks until it has ended. The revision would
    /// not tell: a late renewal may have raised it.
    async fn asked(&self, attempt: &Attempt, error: TransactionError) -> Result<(), RunError> {
        let store = &self.transactions.store;
        let id = attempt.record().id;
        let look = async {
            let mut open = store.begin(Isolation::ReadCommitted).await?;
            let held = store.lock(&mut open, id).await?;
            let progress = store.progress(&mut open, id).await?;
            store.rollback(open).await;
            // What was seen counts once it is as durable as an acknowledged commit.
            store.confirm().await?;
            Ok::<_, TransactionError>((held, progress))
        };
        let (held, progress) = match in_time(attempt.policy().completion_grace, look).await {
            Some(Ok(found)) => found,
            Some(Err(unclear)) => {
                tracing::warn!(error = %unclear, "nobody can tell yet whether a transaction was committed");
                return Err(RunError::Unclear(error));
            }
            None => return Err(RunError::Unclear(error)),
        };
        if progress.is_some_and(|progress| progress.attempt == attempt.id()) {
            store.committed(id);
            return Ok(());
        }
        match held {
            Some(held) if held.value.attempt_id == attempt.id() => {
                give_back(attempt).await;
                Err(RunError::RolledBack(error))
            }
            _ => Err(RunError::Lost),
        }
    }
}

async fn in_time<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(limit, work).await.ok()
}

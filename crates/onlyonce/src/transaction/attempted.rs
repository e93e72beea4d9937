//! One attempt in the caller's transaction: the work, the completion, the commit, and what becomes of the key
//! if one of them fails.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{
    Record, Timestamp,
    machine::{self, Commit, Settled, Settlement},
    record::{LastError, StoredResponse},
};
use onlyonce_store::{
    TransactionalStore, failpoint,
    transactional::{Isolation, TransactionError},
};

use super::{Answer, RunError, Transactions, Work};
use crate::engine::{
    Attempt, Ended, Kept,
    drive::alive_during,
    transition::{InTransaction, Known, Unanswered, Wrote, transition},
};

/// The pause before work is run again after its first conflict; each further pause is longer by this much.
const CONFLICT_PAUSE: Duration = Duration::from_millis(5);

/// Releases the key if the attempt is dropped before its end: what was not committed by then is rolled back,
/// and what was committed is found completed.
pub(crate) struct Abandoned<'a>(Option<&'a Attempt>);

impl<'a> Abandoned<'a> {
    pub(crate) fn unless_seen_through(attempt: &'a Attempt) -> Self {
        Self(Some(attempt))
    }

    pub(crate) fn seen_through(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if let Some(attempt) = self.0
            && tokio::runtime::Handle::try_current().is_ok()
        {
            attempt.release_later();
        }
    }
}

/// How one try failed.
enum Failed {
    /// Rolled back.
    RolledBack(TransactionError),
    Lost,
    /// Rolled back: the attempt has committed its effect before.
    Already,
    /// The commit was sent, and its reply was lost.
    Unanswered(TransactionError),
}

/// The result of completing a key in a transaction that is still open.
pub(crate) enum Completion {
    /// The key is completed, as in this record, once the transaction commits.
    Done(Arc<Record>),
    /// The attempt has completed the key before, and committed its effect with it.
    Already,
    /// The attempt no longer owns the key.
    Lost,
}

impl From<TransactionError> for Failed {
    fn from(error: TransactionError) -> Self {
        Self::RolledBack(error)
    }
}

impl<T: TransactionalStore> Transactions<T> {
    /// Does `work` in one transaction with the completion of the key that `attempt` owns, renewing the lease
    /// meanwhile. For handlers behind the layer, which has reserved the key; otherwise use
    /// [`Operation::run`](super::Operation::run).
    ///
    /// An attempt commits one effect, however often it is executed. If it has already completed its key,
    /// which is possible after [`RunError::Unclear`], the transaction is rolled back and the stored answer
    /// returned.
    ///
    /// # Errors
    /// [`RunError`] says why the work was not done, or that this is not known yet.
    pub async fn execute<W>(&self, attempt: &Attempt, mut work: W) -> Result<Answer, RunError>
    where
        W: for<'c> FnMut(&'c mut T::Connection) -> Work<'c> + Send,
    {
        if attempt.is_settled_in_transaction() {
            return self.answered_before(attempt).await;
        }
        let abandoned = Abandoned::unless_seen_through(attempt);
        let outcome = alive_during(attempt, self.tried(attempt, &mut work)).await;
        abandoned.seen_through();
        outcome
    }

    async fn tried<W>(&self, attempt: &Attempt, work: &mut W) -> Result<Answer, RunError>
    where
        W: for<'c> FnMut(&'c mut T::Connection) -> Work<'c> + Send,
    {
        let mut conflicts = 0;
        loop {
            let failed = match self.once(attempt, work).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            match failed {
                Failed::RolledBack(error) if error.is_conflict() && conflicts < self.retries => {
                    conflicts += 1;
                    let pause = u32::try_from(conflicts).unwrap_or(u32::MAX);
                    tokio::time::sleep(CONFLICT_PAUSE.saturating_mul(pause)).await;
                }
                Failed::RolledBack(error) => {
                    give_back(attempt).await;
                    return Err(RunError::RolledBack(error));
                }
                Failed::Lost => return Err(RunError::Lost),
                Failed::Already => return self.answered_before(attempt).await,
                Failed::Unanswered(error) => return self.asked(attempt, error).await,
            }
        }
    }

    async fn once<W>(&self, attempt: &Attempt, work: &mut W) -> Result<Answer, Failed>
    where
        W: for<'c> FnMut(&'c mut T::Connection) -> Work<'c> + Send,
    {
        failpoint!("transaction.begin.before");
        let mut open = self.store.begin(self.isolation).await?;
        let mut record = attempt.record();
        if self.isolation != Isolation::ReadCommitted {
            // A renewal after the snapshot would make the completion fail; a locked row needs none.
            match self.store.lock(&mut open, record.id).await? {
                Some(held) => record = Arc::new(held.value),
                None => return Err(Failed::Lost),
            }
        }
        let answer = match work(&mut open).await {
            Ok(answer) => answer,
            Err(error) => {
                self.store.rollback(open).await;
                return Err(error.into());
            }
        };
        let stored = Arc::new(self.stored(&answer));
        if answer.undone {
            self.store.rollback(open).await;
            return match attempt.settle(&Settlement::Complete(stored)).await {
                Ended::Settled(_) => Ok(answer),
                Ended::Kept(Kept::Own(_)) => Err(Failed::Already),
                Ended::Kept(Kept::Lost) => Err(Failed::Lost),
            };
        }
        let completion = self.completed(&mut open, attempt, record, &stored);
        let settled = match completion.await? {
            Completion::Done(settled) => settled,
            Completion::Already => {
                self.store.rollback(open).await;
                return Err(Failed::Already);
            }
            Completion::Lost => {
                self.store.rollback(open).await;
                return Err(Failed::Lost);
            }
        };
        failpoint!("transaction.commit.before");
        if let Err(error) = self.store.commit(open).await {
            return Err(match error.is_conflict() {
                true => Failed::RolledBack(error),
                false => Failed::Unanswered(error),
            });
        }
        failpoint!("transaction.commit.after");
        self.store.committed(settled.id);
        attempt.settled_in_transaction(settled);
        Ok(answer)
    }

    /// Completes the key in the open transaction, which commits only on [`Completion::Done`]. The row has
    /// then been written to, so of several transactions of one attempt only one commits.
    pub(crate) async fn completed(
        &self,
        connection: &mut T::Connection,
        attempt: &Attempt,
        record: Arc<Record>,
        answer: &Arc<StoredResponse>,
    ) -> Result<Completion, TransactionError> {
        let (id, commit) = (
            record.id,
            Commit {
                attempt: attempt.id(),
                response: answer,
            },
        );
        let mut open = InTransaction {
            store: &self.store,
            connection,
        };
        let known = Known::Read(record, Timestamp::default());
        let moved = transition(&mut open, id, known, |record, now| {
            let step = machine::apply(record, &commit, now, attempt.policy());
            (step, Unanswered::Fail)
        });
        let moved = moved.await?;
        Ok(match (moved.effect, moved.wrote, moved.record) {
            // Or an operator has already said that this attempt took effect.
            (_, Wrote::Yes, Some(settled)) => Completion::Done(settled),
            (Settled::Kept, _, _) => Completion::Already,
            (Settled::Done | Settled::ReleaseWasWrong, _, _)
            | (Settled::NotOurs(_) | Settled::Gone, _, _) => Completion::Lost,
        })
    }

    /// The answer of a key that this attempt, a provider or an operator has completed.
    async fn answered_before(&self, attempt: &Attempt) -> Result<Answer, RunError> {
        let id = attempt.record().id;
        let found = self.engine.store().lookup(id).await;
        let found = found.map_err(RunError::Store)?.value;
        match found.filter(|record| record.attempt_id == attempt.id()) {
            Some(record) => match &record.response {
                Some(response) => {
                    let answer = self.replayed(response)?;
                    attempt.settled_in_transaction(Arc::new(record));
                    Ok(answer)
                }
                None => Err(RunError::Lost),
            },
            None => Err(RunError::Lost),
        }
    }

    /// Finds out from the key whether a commit whose reply was lost took effect. While the transaction is
    /// open, the row is locked and the key cannot be released.
    async fn asked(&self, attempt: &Attempt, error: TransactionError) -> Result<Answer, RunError> {
        match given_back(attempt).await {
            // Only attested by somebody else: the commit would have recorded its own effect.
            Some(Ended::Kept(Kept::Own(record))) if record.notes.attested => {
                Err(RunError::RolledBack(error))
            }
            Some(Ended::Kept(Kept::Own(record))) if record.response.is_some() => {
                self.store.committed(record.id);
                self.answered_before(attempt).await
            }
            Some(Ended::Settled(_) | Ended::Kept(Kept::Own(_))) => Err(RunError::RolledBack(error)),
            Some(Ended::Kept(Kept::Lost)) => Err(RunError::Lost),
            None => {
                attempt.release_later();
                Err(RunError::Unclear(error))
            }
        }
    }
}

/// Releases the key after a rollback, now or later.
pub(crate) async fn give_back(attempt: &Attempt) {
    if given_back(attempt).await.is_none() {
        attempt.release_later();
    }
}

async fn given_back(attempt: &Attempt) -> Option<Ended> {
    let release = Settlement::Release(LastError::DeclaredNotExecuted);
    let grace = attempt.policy().completion_grace;
    tokio::time::timeout(grace, attempt.settle(&release))
        .await
        .ok()
}

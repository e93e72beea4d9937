//! Runs phases from one recovery point to the next.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use onlyonce_core::Record;
use onlyonce_store::{
    TransactionalStore, failpoint,
    transactional::{Isolation, Progress, TransactionError},
};

use super::{CallFailed, ForeignCall, Kind, Phase, Phases, STARTED, Situation};
use crate::{
    engine::{Attempt, Began},
    transaction::{Answer, Completion, RunError},
};

/// How often a phase is run again after a conflict with another transaction.
const RETRIES: usize = 5;
/// The pause before the first of these; each further pause is longer by this much.
const CONFLICT_PAUSE: Duration = Duration::from_millis(5);

/// How an operation ended.
pub(super) enum Ended {
    Answer(Answer),
    Unknown,
}

/// The content of a commit at the end of a phase.
#[derive(Clone, Copy)]
struct Point<'a> {
    progress: &'a Progress,
    /// The operation's answer, if nothing is left to do.
    answer: Option<&'a Answer>,
}

impl<T: TransactionalStore> Phases<T> {
    /// Continues after the last recovery point. `request` is the client's current request; the sweeper has
    /// none, and continues only with stored parameters.
    pub(super) async fn go_on(
        &self,
        attempt: &Attempt,
        request: Option<Bytes>,
    ) -> Result<Ended, RunError> {
        let mut progress = self.so_far(attempt, request).await?;
        if !self.can_go_on(&progress) {
            return Ok(Ended::Unknown);
        }
        progress.attempt = attempt.id();
        let Some(first) = self.next(&progress.point) else {
            return Ok(Ended::Unknown);
        };
        self.start(attempt, &mut progress).await?;
        let mut situation = Situation {
            parameters: Bytes::from(progress.parameters.clone()),
            data: serde_json::from_slice(&progress.data).unwrap_or_default(),
            provider_id: progress.provider_id.clone(),
        };
        for (index, phase) in self.phases.iter().enumerate().skip(first) {
            let last = index + 1 == self.phases.len();
            let done = self.phase(attempt, phase, last, &mut progress, &mut situation);
            match done.await {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(error) => {
                    if matches!(error, RunError::RolledBack(_)) {
                        self.unstart(attempt, &mut progress).await;
                    }
                    return Err(error);
                }
            }
        }
        // Reached only by an operation without phases, or one whose last phase was removed.
        let answer = (self.answer)(&situation);
        progress.finished = true;
        let point = Point {
            progress: &progress,
            answer: Some(&answer),
        };
        self.commit(attempt, point).await?;
        Ok(Ended::Answer(answer))
    }

    /// The progress of the operation. The progress of an earlier life of the key does not count.
    async fn so_far(
        &self,
        attempt: &Attempt,
        request: Option<Bytes>,
    ) -> Result<Progress, RunError> {
        let record = attempt.record();
        let found = self.progress(record.id).await;
        let found = found.map_err(RunError::RolledBack)?;
        // A new life has no progress yet.
        let goes_on = attempt.began_as() == Began::Again;
        if let Some(found) = found {
            if found.attempt == attempt.id() || goes_on && found.is_of(&record) {
                return Ok(found);
            }
            let discarded = self.discard(&found).await;
            discarded.map_err(RunError::RolledBack)?;
        }
        let Some(request) = request else {
            let nothing = TransactionError::given_up("nobody wrote down what was asked for");
            return Err(RunError::RolledBack(nothing));
        };
        Ok(Progress {
            id: record.id,
            operation: self.operation.name().to_string(),
            point: STARTED.to_owned(),
            intent: None,
            provider_id: None,
            parameters: request.to_vec(),
            data: b"null".to_vec(),
            attempt: attempt.id(),
            generation: record.generation,
            // There is nothing yet for the sweeper to continue.
            finished: true,
            updated_at: record.times.created_at.unwrap_or_default(),
        })
    }

    /// Stores the parameters before anything is done, so that the sweeper can continue too. A foreign phase
    /// stores them with its intent.
    async fn start(&self, attempt: &Attempt, progress: &mut Progress) -> Result<(), RunError> {
        let begins = progress.finished && progress.point == STARTED;
        progress.finished = false;
        let local =
            matches!(self.phases.first(), Some(phase) if matches!(phase.kind, Kind::Local(_)));
        if !begins || !local {
            return Ok(());
        }
        failpoint!("phases.started.before");
        let point = Point {
            progress,
            answer: None,
        };
        self.commit(attempt, point).await?;
        failpoint!("phases.started.after");
        Ok(())
    }

    /// Notes that nothing was done and that the client is told: the operation starts again when somebody asks
    /// for it, not by itself. If this cannot be written, the sweeper starts it.
    async fn unstart(&self, attempt: &Attempt, progress: &mut Progress) {
        if progress.point != STARTED || progress.intent.is_some() {
            return;
        }
        progress.finished = true;
        let point = Point {
            progress,
            answer: None,
        };
        let _ = self.commit(attempt, point).await;
    }

    /// Runs one phase. An answer ends the operation.
    async fn phase(
        &self,
        attempt: &Attempt,
        phase: &Phase<T>,
        last: bool,
        progress: &mut Progress,
        situation: &mut Situation,
    ) -> Result<Option<Ended>, RunError> {
        match &phase.kind {
            Kind::Local(work) => {
                let before = situation.clone();
                for conflicts in 1.. {
                    *situation = before.clone();
                    let outcome = self
                        .in_one_transaction(attempt, phase.name, last, progress, situation, &**work)
                        .await;
                    match outcome {
                        Err(RunError::RolledBack(error))
                            if error.is_conflict() && conflicts <= RETRIES =>
                        {
                            pause(conflicts).await;
                        }
                        outcome => return outcome,
                    }
                }
                Ok(None)
            }
            Kind::Foreign { call, dedups } => {
                if progress.intent.as_deref() != Some(phase.name) {
                    progress.intent = Some(phase.name.to_owned());
                    failpoint!("phases.intent.before");
                    let point = Point {
                        progress,
                        answer: None,
                    };
                    self.commit(attempt, point).await?;
                    failpoint!("phases.intent.after");
                }
                let record = attempt.record();
                if record.notes.erased {
                    // The provider knows the phase by a key that can no longer be derived.
                    return Ok(Some(Ended::Unknown));
                }
                let secret = self.operation.transactions().engine().secret();
                let key = secret.downstream_key(record.scope.as_str(), &record.key, phase.name);
                let called = call(ForeignCall { key }, situation.clone()).await;
                let refusal = match called {
                    Ok(called) => {
                        situation.data = called.data;
                        situation.provider_id = Some(called.provider_id);
                        None
                    }
                    Err(CallFailed::Refused(answer)) => Some(*answer),
                    Err(CallFailed::Unclear(_)) if !dedups => return Ok(Some(Ended::Unknown)),
                    Err(CallFailed::NotSent(error)) if !dedups => {
                        // Nothing was sent, so the next attempt may send it. If this cannot be written, the
                        // state is the same as after a crash.
                        progress.intent = None;
                        let point = Point {
                            progress,
                            answer: None,
                        };
                        let _ = self.commit(attempt, point).await;
                        let error = TransactionError::GivenUp(error);
                        return Err(RunError::RolledBack(error));
                    }
                    Err(CallFailed::NotSent(error) | CallFailed::Unclear(error)) => {
                        let error = TransactionError::GivenUp(error);
                        return Err(RunError::RolledBack(error));
                    }
                };
                let ends = last || refusal.is_some();
                let answer = match refusal {
                    Some(answer) => Some(answer),
                    None => last.then(|| (self.answer)(situation)),
                };
                reached(progress, phase.name, situation, ends);
                failpoint!("phases.record.before");
                let point = Point {
                    progress,
                    answer: answer.as_ref(),
                };
                self.commit(attempt, point).await?;
                failpoint!("phases.record.after");
                Ok(answer.map(Ended::Answer))
            }
        }
    }

    async fn in_one_transaction(
        &self,
        attempt: &Attempt,
        name: &'static str,
        last: bool,
        progress: &mut Progress,
        situation: &mut Situation,
        work: &super::LocalWork<T>,
    ) -> Result<Option<Ended>, RunError> {
        let store = self.operation.transactions().store();
        failpoint!("phases.local.before");
        let mut open = self.begin(attempt).await?;
        if let Err(error) = work(&mut open.0, situation).await {
            store.rollback(open.0).await;
            return Err(RunError::RolledBack(error));
        }
        let answer = last.then(|| (self.answer)(situation));
        let mut reached_now = progress.clone();
        reached(&mut reached_now, name, situation, last);
        let point = Point {
            progress: &reached_now,
            answer: answer.as_ref(),
        };
        failpoint!("phases.local.commit");
        self.finish(attempt, open, point).await?;
        *progress = reached_now;
        failpoint!("phases.local.after");
        Ok(answer.map(Ended::Answer))
    }

    /// Commits a recovery point in a transaction of its own.
    async fn commit(&self, attempt: &Attempt, point: Point<'_>) -> Result<(), RunError> {
        let mut conflicts = 0;
        loop {
            let open = self.begin(attempt).await?;
            match self.finish(attempt, open, point).await {
                Err(RunError::RolledBack(error)) if error.is_conflict() && conflicts < RETRIES => {
                    conflicts += 1;
                    pause(conflicts).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens a transaction that locks the key's row, if the attempt still owns the key.
    async fn begin(&self, attempt: &Attempt) -> Result<(T::Open, Arc<Record>), RunError> {
        let store = self.operation.transactions().store();
        let begin = async {
            let mut open = store.begin(Isolation::ReadCommitted).await?;
            let held = store.lock(&mut open, attempt.record().id).await?;
            Ok((open, held))
        };
        match begin.await.map_err(RunError::RolledBack)? {
            (open, Some(held)) if held.value.attempt_id == attempt.id() => {
                Ok((open, Arc::new(held.value)))
            }
            (open, _) => {
                store.rollback(open).await;
                Err(RunError::Lost)
            }
        }
    }

    /// Writes the recovery point, completes the key if there is an answer, and commits.
    async fn finish(
        &self,
        attempt: &Attempt,
        (mut open, record): (T::Open, Arc<Record>),
        point: Point<'_>,
    ) -> Result<(), RunError> {
        let transactions = self.operation.transactions();
        let store = transactions.store();
        let write = async {
            store.advance(&mut open, point.progress).await?;
            let Some(answer) = point.answer else {
                return Ok(Some(None));
            };
            let stored = Arc::new(transactions.stored(answer));
            let completion = transactions.completed(&mut open, attempt, record, &stored);
            Ok(match completion.await? {
                Completion::Done(settled) => Some(Some(settled)),
                Completion::Already | Completion::Lost => None,
            })
        };
        let Some(settled) = write.await.map_err(RunError::RolledBack)? else {
            store.rollback(open).await;
            return Err(RunError::Lost);
        };
        if let Err(error) = store.commit(open).await {
            // The next attempt finds out from the recovery point.
            return Err(match error.is_conflict() {
                true => RunError::RolledBack(error),
                false => RunError::Unclear(error),
            });
        }
        if let Some(settled) = settled {
            store.committed(settled.id);
            attempt.settled_in_transaction(settled);
        }
        Ok(())
    }
}

fn reached(progress: &mut Progress, point: &str, situation: &Situation, finished: bool) {
    progress.point = point.to_owned();
    progress.intent = None;
    progress.provider_id.clone_from(&situation.provider_id);
    progress.data = situation.data.to_string().into_bytes();
    progress.finished = finished;
}

async fn pause(conflicts: usize) {
    let times = u32::try_from(conflicts).unwrap_or(u32::MAX);
    tokio::time::sleep(CONFLICT_PAUSE.saturating_mul(times)).await;
}

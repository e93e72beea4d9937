//! An operation of several phases, each of which is done once. A local phase commits together with its
//! recovery point. A foreign phase commits its intent, calls under a key of its own, and commits the result.
//! The next attempt, by a retry or by the sweeper, continues after the last recovery point with the
//! parameters of the first request.
//!
//! Deliberately absent: a restart. A recovery point that this program does not know means `unknown`, and so
//! does a foreign call that may have reached a provider which does not recognise repeated requests.

mod call;
mod steps;

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use onlyonce_core::{
    Key, RecordId, Scope, Timestamp,
    machine::{Refusal, Settlement},
    record::LastError,
};
use onlyonce_store::{
    TransactionalStore,
    transactional::{Progress, TransactionError},
};
use serde_json::Value;

pub use call::{CallFailed, Called, ForeignCall};

use crate::{
    engine::{Admitted, Attempt, Unavailable, drive::alive_during},
    transaction::{Abandoned, Answer, Operation, Ran, RunError, give_back},
};
use steps::Ended;

/// The recovery point of an operation that has done nothing yet. It is written before the first local phase,
/// together with the parameters.
const STARTED: &str = "started";
/// Operations that the sweeper looks up at a time.
const LOOKED_UP_AT_ONCE: usize = 100;

/// The state shared by the phases of one operation.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The parameters, as the first request gave them.
    pub parameters: Bytes,
    /// The results of the phases so far; stored with the recovery point.
    pub data: Value,
    /// The last provider's id for what it did.
    pub provider_id: Option<String>,
}

type LocalWork<T> = dyn for<'c> Fn(
        &'c mut <T as TransactionalStore>::Connection,
        &'c mut Situation,
    ) -> BoxFuture<'c, Result<(), TransactionError>>
    + Send
    + Sync;
type CallWork =
    dyn Fn(ForeignCall, Situation) -> BoxFuture<'static, Result<Called, CallFailed>> + Send + Sync;

enum Kind<T: TransactionalStore> {
    Local(Arc<LocalWork<T>>),
    Foreign { call: Arc<CallWork>, dedups: bool },
}

struct Phase<T: TransactionalStore> {
    name: &'static str,
    kind: Kind<T>,
}

/// An operation of several phases.
pub struct Phases<T: TransactionalStore> {
    operation: Operation<T>,
    phases: Vec<Phase<T>>,
    answer: Box<dyn Fn(&Situation) -> Answer + Send + Sync>,
}

impl<T: TransactionalStore> std::fmt::Debug for Phases<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.phases.iter().map(|phase| phase.name).collect();
        f.debug_struct("Phases")
            .field("operation", &self.operation)
            .field("phases", &names)
            .finish_non_exhaustive()
    }
}

impl<T: TransactionalStore> Phases<T> {
    /// An operation without phases yet, whose answer `answer` makes from the situation.
    pub fn new(
        operation: Operation<T>,
        answer: impl Fn(&Situation) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self {
            operation,
            phases: Vec::new(),
            answer: Box::new(answer),
        }
    }

    /// Adds a phase in the local database: `work` and the recovery point are committed together.
    #[must_use]
    pub fn local(
        mut self,
        name: &'static str,
        work: impl for<'c> Fn(
            &'c mut T::Connection,
            &'c mut Situation,
        ) -> BoxFuture<'c, Result<(), TransactionError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let kind = Kind::Local(Arc::new(work));
        self.phases.push(Phase { name, kind });
        self
    }

    /// Adds a phase that calls a provider once: making the call consumes the [`ForeignCall`]. `dedups` says
    /// whether the provider recognises a repeated key; if not, a call that may have happened is never
    /// repeated.
    #[must_use]
    pub fn foreign(
        mut self,
        name: &'static str,
        dedups: bool,
        call: impl Fn(ForeignCall, Situation) -> BoxFuture<'static, Result<Called, CallFailed>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let call = Arc::new(call);
        let kind = Kind::Foreign { call, dedups };
        self.phases.push(Phase { name, kind });
        self
    }

    /// Does what is left of the operation under `key`, or returns what is known of it.
    ///
    /// # Errors
    /// [`RunError`] says why it stopped. Committed phases stand, and a retry continues from there.
    pub async fn run(
        &self,
        scope: Scope,
        key: Key,
        request: impl Into<Bytes>,
    ) -> Result<Ran, RunError> {
        let request = request.into();
        let mut arrival = self.operation.arrival(scope, key, request.clone());
        match self.operation.admitted(&mut arrival).await? {
            Admitted::Execute(attempt) => self.see_through(&attempt, Some(request)).await,
            Admitted::Replay(replay) => {
                let answer = self.operation.transactions().replayed(&replay.response)?;
                Ok(Ran::Replayed(answer))
            }
            Admitted::Refused(Refusal::OutcomeUnknown) => {
                match self.resumed(arrival.id(), true).await? {
                    Some(attempt) => self.see_through(&attempt, Some(request)).await,
                    None => Ok(Ran::Refused(Refusal::OutcomeUnknown)),
                }
            }
            Admitted::InFlight(_) => Ok(Ran::InFlight),
            Admitted::Refused(refusal) => Ok(Ran::Refused(refusal)),
            Admitted::Limited(limited) => Ok(Ran::Limited(limited)),
        }
    }

    /// One round of the sweeper: continues each operation whose last attempt stopped, once. Returns how many
    /// were finished. Safe to run on every node at once.
    ///
    /// # Errors
    /// [`RunError`] if the operations cannot be listed.
    pub async fn resume_once(&self) -> Result<usize, RunError> {
        let store = self.operation.transactions().store();
        let mut finished = 0;
        // An operation that continues and stops again moves to the end of the order and would be met twice.
        let mut tried = HashSet::new();
        let mut after = (Timestamp::default(), RecordId([0; 16]));
        loop {
            // Operations that nobody can resume remain, and must not hide others: read page after page.
            let page = store.unfinished(self.operation.name(), after, LOOKED_UP_AT_ONCE);
            let page = page.await.map_err(RunError::RolledBack)?;
            for (_, id) in &page {
                if tried.insert(*id) && self.resumed_to_its_end(*id).await? {
                    finished += 1;
                }
            }
            match page.last() {
                Some(last) if page.len() == LOOKED_UP_AT_ONCE => after = *last,
                _ => return Ok(finished),
            }
        }
    }

    /// Continues an operation that stopped, if possible, and returns whether it was finished.
    async fn resumed_to_its_end(&self, id: RecordId) -> Result<bool, RunError> {
        let Some(attempt) = self.resumed(id, false).await? else {
            return Ok(false);
        };
        match self.see_through(&attempt, None).await {
            Ok(ran) => Ok(matches!(ran, Ran::Executed(_))),
            Err(error) => {
                tracing::warn!(%error, "an operation could not go on; later again");
                Ok(false)
            }
        }
    }

    /// A new attempt for an operation that stopped at a point from which this program can continue.
    /// `may_begin` allows an operation without a recovery point: without a request there is nothing to begin
    /// with.
    async fn resumed(&self, id: RecordId, may_begin: bool) -> Result<Option<Attempt>, RunError> {
        let engine = self.operation.transactions().engine();
        let found = engine.store().lookup(id).await.map_err(RunError::Store)?;
        let Some(record) = found.value else {
            return Ok(None);
        };
        let progress = self.progress(id).await.map_err(RunError::RolledBack)?;
        let goes_on = match progress {
            // After expiry another life would begin, and this is not its recovery point.
            Some(progress) if progress.is_of(&record) => {
                self.can_go_on(&progress) && !record.is_past_expiry(found.now)
            }
            // Nothing was committed in this life, so beginning again is safe.
            None => may_begin,
            Some(earlier) if may_begin => {
                // The next attempt could not distinguish it from its own.
                self.discard(&earlier).await.map_err(RunError::RolledBack)?;
                true
            }
            Some(_) => false,
        };
        if !goes_on {
            return Ok(None);
        }
        let taken = engine.take_over(id, self.operation.policy());
        taken
            .await
            .map_err(|Unavailable(error)| RunError::Store(error))
    }

    async fn progress(&self, id: RecordId) -> Result<Option<Progress>, TransactionError> {
        let store = self.operation.transactions().store();
        let mut open = store.begin(Default::default()).await?;
        let progress = store.progress(&mut open, id).await?;
        store.rollback(open).await;
        Ok(progress)
    }

    /// Removes the progress of an earlier life of the key.
    async fn discard(&self, earlier: &Progress) -> Result<(), TransactionError> {
        let store = self.operation.transactions().store();
        let mut open = store.begin(Default::default()).await?;
        store
            .discard(&mut open, earlier.id, earlier.attempt)
            .await?;
        store.commit(open).await
    }

    /// The phase after this recovery point; `None` if this program does not know the point.
    fn next(&self, point: &str) -> Option<usize> {
        if point == STARTED {
            return Some(0);
        }
        let done = self.phases.iter().position(|phase| phase.name == point);
        done.map(|index| index + 1)
    }

    fn can_go_on(&self, progress: &Progress) -> bool {
        let Some(next) = self.next(&progress.point) else {
            return false;
        };
        let Some(intent) = &progress.intent else {
            return true;
        };
        // A call that may have happened is repeated only if the provider recognises it.
        self.phases.get(next).is_some_and(|phase| {
            phase.name == intent && matches!(phase.kind, Kind::Foreign { dedups: true, .. })
        })
    }

    /// Runs to the end, renewing the lease meanwhile.
    async fn see_through(
        &self,
        attempt: &Attempt,
        request: Option<Bytes>,
    ) -> Result<Ran, RunError> {
        let abandoned = Abandoned::unless_seen_through(attempt);
        let outcome = alive_during(attempt, self.go_on(attempt, request)).await;
        abandoned.seen_through();
        match outcome {
            Ok(Ended::Answer(answer)) => Ok(Ran::Executed(answer)),
            Ok(Ended::Unknown) => {
                let unknown = Settlement::Unknown(LastError::DeclaredUnknown);
                attempt.settle(&unknown).await;
                Ok(Ran::Refused(Refusal::OutcomeUnknown))
            }
            Err(RunError::Lost) => Err(RunError::Lost),
            Err(error) => {
                // Committed phases stand with their recovery point; the rest is rolled back.
                give_back(attempt).await;
                Err(error)
            }
        }
    }
}

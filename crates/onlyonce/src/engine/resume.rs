//! Taking over an operation that can go on where its last attempt stopped.

use onlyonce_core::{
    AttemptId, Policy, Record, RecordId,
    machine::{self, Admission, Refusal, Request, Settled, Settlement},
    record::LastError,
};
use onlyonce_store::{StoreError, Swapped};
use std::sync::Arc;

use super::{Attempt, Began, Engine, MAX_ROUNDS, Unavailable};

impl Engine {
    /// A new attempt for a key whose last one stopped, if it did. The caller has proof that nothing of
    /// that attempt is left but what it knows of: everything else was rolled back, and cannot be
    /// committed once the key has a new attempt.
    pub(crate) async fn take_over(
        &self,
        id: RecordId,
        policy: &Arc<Policy>,
    ) -> Result<Option<Attempt>, Unavailable> {
        self.unless_unfit()?;
        let began = self.0.options.clock.moment();
        let fresh = self.0.options.attempt_ids.fresh();
        for _ in 0..MAX_ROUNDS {
            let reply = self.bounded_read(self.0.store.lookup(id)).await;
            let reply = reply.map_err(Unavailable)?;
            let Some(record) = reply.value else {
                return Ok(None);
            };
            if record.attempt_id == fresh {
                return Ok(Some(Attempt::new(
                    self.clone(),
                    record,
                    began,
                    Began::Again,
                    policy,
                )));
            }
            let Some(request) = again(&record, fresh) else {
                return Ok(None);
            };
            let change = match machine::admit(&record, &request, reply.now, policy) {
                Admission::Execute(change) | Admission::Lapse(change) => change,
                Admission::Refuse(Refusal::OutcomeUnknown { .. }) => {
                    let release = Settlement::Release(LastError::DeclaredNotExecuted);
                    match machine::settle(&record, record.attempt_id, &release, policy) {
                        Settled::Write(change) => change,
                        Settled::Keep | Settled::NotOurs(_) => return Ok(None),
                    }
                }
                Admission::InFlight(_) | Admission::Replay(_) | Admission::Refuse(_) => {
                    return Ok(None);
                }
            };
            let swapped = self.swap_twice(&record, change).await;
            if let Swapped::Absent = swapped.map_err(Unavailable)?.value {
                return Ok(None);
            }
        }
        let busy = "the key changes faster than it can be read";
        Err(Unavailable(StoreError::Unavailable(busy.into())))
    }
}

/// The request that `record` remembers, as a new attempt.
fn again(record: &Record, attempt_id: AttemptId) -> Option<Request> {
    Some(Request {
        id: record.id,
        scope: record.scope.clone(),
        key: record.key.clone(),
        fingerprint: record.fingerprint?,
        recipe: record.recipe,
        caller: record.caller,
        other_mark: None,
        attempt_id,
        route: record.route.clone(),
        method: record.method.clone(),
        path: record.path.clone(),
        notes: record.notes.clone(),
    })
}

//! Takes over an operation that can continue where its last attempt stopped.

use std::sync::Arc;

use onlyonce_core::{
    AttemptId, Policy, Record, RecordId, Timestamp,
    machine::{self, Admission, Began, End, Refusal, Request, Settlement, Step, Write},
    record::LastError,
};
use onlyonce_store::StoreError;

use super::{
    Attempt, Engine, Unavailable,
    transition::{Fault as _, Known, MAX_ROUNDS, Unanswered, Wrote},
};

/// The progress of a take-over.
enum Taking {
    /// The new attempt owns the key.
    Over,
    /// One step was made; go on.
    Further,
    /// There is nothing to take over.
    Nothing,
}

impl Engine {
    /// Starts a new attempt for a key whose last one stopped; `None` if it did not. The caller has proof that
    /// nothing of that attempt is left except what the caller knows of: everything else was rolled back, and
    /// cannot be committed once the new attempt owns the key.
    pub(crate) async fn take_over(
        &self,
        id: RecordId,
        policy: &Arc<Policy>,
    ) -> Result<Option<Attempt>, Unavailable> {
        self.unless_unfit()?;
        let began = self.0.options.clock.moment();
        let fresh = self.0.options.attempt_ids.fresh();
        let mut known = Known::Nothing;
        for _ in 0..MAX_ROUNDS {
            let moved = self.transition(id, known, |record, now| {
                (taking(record, fresh, now, policy), Unanswered::AskAgain)
            });
            let moved = self.watched(moved.await).map_err(Unavailable)?;
            match (moved.effect, moved.record) {
                (Taking::Over, Some(record)) => {
                    let engine = self.clone();
                    let attempt = Attempt::new(engine, record, began, Began::Again, policy);
                    return Ok(Some(attempt));
                }
                (Taking::Further, Some(record)) if moved.wrote == Wrote::Yes => {
                    known = Known::Read(record, moved.now);
                }
                (Taking::Over | Taking::Further | Taking::Nothing, _) => return Ok(None),
            }
        }
        Err(Unavailable(StoreError::busy()))
    }
}

fn taking(
    record: Option<&Record>,
    fresh: AttemptId,
    now: Timestamp,
    policy: &Policy,
) -> Step<Taking> {
    let nothing = Step {
        write: Write::Stay,
        effect: Taking::Nothing,
    };
    let Some((record, request)) = record.and_then(|record| Some((record, again(record, fresh)?)))
    else {
        return nothing;
    };
    let step = machine::apply(Some(record), &request, now, policy);
    let (write, effect) = match step.effect {
        Admission::Execute(_) | Admission::Reserved => (step.write, Taking::Over),
        Admission::Lapse => (step.write, Taking::Further),
        Admission::Refuse(Refusal::OutcomeUnknown) => {
            let release = End {
                attempt: record.attempt_id,
                settlement: &Settlement::Release(LastError::DeclaredNotExecuted),
            };
            let released = machine::apply(Some(record), &release, now, policy);
            (released.write, Taking::Further)
        }
        Admission::TooLate
        | Admission::InFlight(_)
        | Admission::Replay(_)
        | Admission::Refuse(_) => return nothing,
    };
    Step { write, effect }
}

/// The request that `record` describes, as a new attempt.
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

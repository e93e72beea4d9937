//! Messages and keys: a message whose delivery settles the key that it was made under, and what operators
//! say of messages that were given up.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{
    AttemptId, MessageId, MessageState, Policy,
    machine::{self, Settlement},
    outbox::{Next, retry_is_safe_for},
    record::{Actor, JournalEntry, JournalEvent, LastError},
};
use onlyonce_store::{
    Outbox, StoreError, Swapped,
    outbox::{Claimed, Decision, Ending},
    transactional::Settles,
};

use crate::{engine::Engine, transaction::Answer};

/// Tries to write an ending together with its key. Afterwards the claim lapses.
const MAX_ROUNDS: usize = 20;
/// The pause between two of them after the store failed.
const PAUSE: Duration = Duration::from_millis(500);

/// What came of an operator's wish to have a message sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It is sent again.
    Done,
    /// There is no such message that is dead or unknown.
    NotThere,
    /// It may have arrived, and its receiver would not know the key again: only by force.
    MayHaveArrived,
}

/// How an ending is written.
pub(super) enum Settled {
    /// It has been, together with its key.
    Together,
    /// It is to be, without a key.
    OnItsOwn,
}

impl Engine {
    /// The messages of the store, where it has any.
    pub fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        self.store().outbox()
    }

    /// An operator has a message sent again that is dead or unknown, under the same key and with all its
    /// attempts. One that may have arrived is sent again only as long as its receiver knows the key again,
    /// counted from the first attempt that may have, or with `force`.
    ///
    /// # Errors
    /// A [`StoreError`] if it could not be written.
    pub async fn retry_message(
        &self,
        id: MessageId,
        reason: &str,
        force: bool,
    ) -> Result<Retried, StoreError> {
        let Some(outbox) = self.outbox() else {
            return Ok(Retried::NotThere);
        };
        let Some(message) = outbox.message(id).await? else {
            return Ok(Retried::NotThere);
        };
        let rules = self.target_rules(&message.target);
        let decision = match force {
            true => Decision::RetryByForce,
            false => Decision::Retry(retry_is_safe_for(message.state, rules.as_ref())),
        };
        if self.decide(id, decision, reason).await? {
            return Ok(Retried::Done);
        }
        let waits = matches!(message.state, MessageState::Dead | MessageState::Unknown);
        Ok(match waits && message.unclear_since.is_some() && !force {
            true => Retried::MayHaveArrived,
            false => Retried::NotThere,
        })
    }

    /// An operator says that a message that is dead or unknown is not to be sent. Says whether there was
    /// such a message.
    ///
    /// # Errors
    /// A [`StoreError`] if it could not be written.
    pub async fn discard_message(&self, id: MessageId, reason: &str) -> Result<bool, StoreError> {
        self.decide(id, Decision::Discard, reason).await
    }

    async fn decide(
        &self,
        id: MessageId,
        decision: Decision,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let Some(outbox) = self.outbox() else {
            return Ok(false);
        };
        let Some(message) = outbox.message(id).await? else {
            return Ok(false);
        };
        let event = match decision {
            Decision::Discard => JournalEvent::MessageDiscarded,
            Decision::Retry(_) | Decision::RetryByForce => JournalEvent::MessageRetried,
        };
        let forced = match decision {
            Decision::RetryByForce => " by force",
            Decision::Retry(_) | Decision::Discard => "",
        };
        let reason = Some(reason.trim()).filter(|reason| !reason.is_empty());
        let entry = JournalEntry {
            id: message.key.unwrap_or(id.as_record()),
            event,
            from: None,
            to: None,
            attempt: message.attempts,
            actor: Actor::Operator,
            detail: Some(match reason {
                Some(reason) => format!("{id} to {}{forced}: {reason}", message.target),
                None => format!("{id} to {}{forced}", message.target),
            }),
        };
        let entry = self.store().sealed_note(entry);
        outbox.decide(id, decision, entry).await
    }

    /// Writes `ending` together with the key that the message settles, if there is one and it is time.
    pub(super) async fn settle_message(
        &self,
        outbox: &dyn Outbox,
        claimed: &Claimed,
        ending: &Ending,
        answer: Option<Answer>,
    ) -> Settled {
        let (Some(key), Some(settles)) = (claimed.message.key, claimed.message.settles) else {
            return Settled::OnItsOwn;
        };
        let settlement = match (&ending.next, answer) {
            (Next::Again { .. }, _) => return Settled::OnItsOwn,
            (Next::Delivered { .. }, answer) => {
                let answer = answer.unwrap_or_else(|| Answer::new(http::StatusCode::OK, ""));
                Settlement::Complete(Arc::new(answer.stored(settles.version)))
            }
            // Whatever a person decides about the message, nobody can tell a client anything until then.
            (Next::Dead { .. } | Next::Unknown { .. }, _) => {
                Settlement::Unknown(LastError::DeclaredUnknown)
            }
        };
        let policy = policy(&settles);
        for _ in 0..MAX_ROUNDS {
            let record = match self.store().lookup(key).await {
                Ok(reply) => reply.value,
                Err(error) => {
                    wait(&error).await;
                    continue;
                }
            };
            let Some(record) = record else {
                return Settled::OnItsOwn;
            };
            let change = match machine::settle(&record, settles.attempt, &settlement, &policy) {
                machine::Settled::Write(change) => change,
                machine::Settled::Keep => return Settled::OnItsOwn,
                machine::Settled::NotOurs(entry) => {
                    note(self, *entry).await;
                    return Settled::OnItsOwn;
                }
            };
            let change = self.store().sealed(change);
            match outbox.end_with_key(ending, record.revision, &change).await {
                Ok(Some(reply)) => match reply.value {
                    Swapped::Done(_) => return Settled::Together,
                    Swapped::Conflict(_) => {}
                    Swapped::Absent => return Settled::OnItsOwn,
                },
                // Somebody else has claimed it since: that attempt settles.
                Ok(None) => return Settled::Together,
                Err(error) => wait(&error).await,
            }
        }
        // Nothing could be written for a long time: the claim lapses, and the message is looked at again.
        Settled::Together
    }
}

async fn wait(error: &StoreError) {
    tracing::warn!(%error, "what became of a message could not be written; tried again");
    tokio::time::sleep(PAUSE).await;
}

async fn note(engine: &Engine, entry: JournalEntry) {
    if let Err(error) = engine.store().append(vec![entry]).await {
        tracing::warn!(%error, "a result that came too late could not be noted");
    }
}

/// What the machine needs to know to settle the key of a message.
fn policy(settles: &Settles) -> Policy {
    Policy {
        ttl: settles.ttl,
        max_execution: settles.look_after,
        ..Policy::default()
    }
}

/// What a message must carry so that its delivery settles the key of `attempt` with an answer of `version`.
pub(crate) fn settles(attempt: AttemptId, policy: &Policy, version: u32) -> Settles {
    Settles {
        attempt,
        ttl: policy.ttl,
        look_after: match &policy.reconcile {
            Some(reconcile) => reconcile.after,
            None => policy.max_execution,
        },
        version,
    }
}

//! Messages and keys: a message whose delivery settles its key, and operator decisions about messages that
//! were given up.

use std::{sync::Arc, time::Duration};

use onlyonce_core::{
    AttemptId, MessageId, MessageState, Policy, Record, RecordId, Timestamp,
    machine::{self, End, Settlement},
    outbox::{Next, retry_is_safe_for},
    record::{Actor, Change, Draft, JournalEntry, JournalEvent, LastError},
};
use onlyonce_store::{
    Inserted, Outbox, Reply, Store, StoreError, Swapped,
    outbox::{Claimed, Decision, Ending},
    transactional::Settles,
};

use crate::{
    engine::{
        Engine,
        transition::{Known, Patience, Records, Unanswered, Wrote, transition},
    },
    transaction::Answer,
};

/// How long to try to write a result together with its key. After that the claim lapses.
const MAX_SETTLING: Duration = Duration::from_secs(10);

const SWAPS_ONLY: &str = "the end of a message only changes keys that are there";

/// The result of an operator's request to send a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// The message is sent again.
    Done,
    /// There is no dead or unknown message with this id.
    NotThere,
    /// The message may have arrived, and the receiver would not recognise its key: needs force.
    MayHaveArrived,
}

/// How a result is written.
pub(super) enum Settled {
    /// Already, together with its key.
    Together,
    /// Separately, without a key.
    OnItsOwn,
}

impl Engine {
    /// The store's outbox, if it has one.
    pub fn outbox(&self) -> Option<Arc<dyn Outbox>> {
        self.store().outbox()
    }

    /// Sends a dead or unknown message again, as an operator decided, under the same key and with all its
    /// attempts. A message that may have arrived is sent again only while its receiver remembers the key,
    /// counted from the first attempt that may have arrived, or with `force`.
    ///
    /// # Errors
    /// A [`StoreError`] if the decision could not be written.
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

    /// Discards a dead or unknown message, which is then never sent. Returns whether there was such a
    /// message.
    ///
    /// # Errors
    /// A [`StoreError`] if the decision could not be written.
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

    /// Writes `ending` together with the key that the message settles, if there is one and the message is
    /// done.
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
            // Until a person decides about the message, nobody can tell a client anything.
            (Next::Dead { .. } | Next::Unknown { .. }, _) => {
                Settlement::Unknown(LastError::DeclaredUnknown)
            }
        };
        let policy = policy(&settles);
        let end = End {
            attempt: settles.attempt,
            settlement: &settlement,
        };
        let mut together = Together {
            store: &**self.store(),
            outbox,
            ending,
            claim_was_lost: false,
        };
        let began = self.moment();
        let moved = transition(&mut together, key, Known::Nothing, |record, now| {
            let step = machine::apply(record, &end, now, &policy);
            let unanswered = match began.is_within(MAX_SETTLING, self.moment()) {
                true => Unanswered::KeepTrying,
                false => Unanswered::Fail,
            };
            (step, unanswered)
        });
        match moved.await {
            // Another worker has claimed the message since: that attempt settles the key.
            _ if together.claim_was_lost => Settled::Together,
            Ok(moved) if moved.wrote == Wrote::Yes => Settled::Together,
            Ok(moved) => {
                if let machine::Settled::NotOurs(entry) = moved.effect {
                    note(self, *entry).await;
                }
                Settled::OnItsOwn
            }
            // Nothing could be written for a long time: the claim lapses, and the message is processed again.
            Err(error) => {
                tracing::warn!(%error, "what became of a message could not be written");
                Settled::Together
            }
        }
    }
}

/// Writes the change of a record together with the result of a message.
struct Together<'a> {
    store: &'a dyn Store,
    outbox: &'a dyn Outbox,
    ending: &'a Ending,
    claim_was_lost: bool,
}

impl Records for Together<'_> {
    type Error = StoreError;

    async fn look_up(
        &mut self,
        id: RecordId,
        _: Patience,
    ) -> Result<Reply<Option<Record>>, StoreError> {
        self.store.lookup(id).await
    }

    async fn insert(&mut self, _: Draft, _: Patience) -> Result<Reply<Inserted>, StoreError> {
        Err(StoreError::Unavailable(SWAPS_ONLY.into()))
    }

    async fn swap(
        &mut self,
        before: &Record,
        change: Change,
        _: Patience,
    ) -> Result<Reply<Swapped>, StoreError> {
        let change = self.store.sealed(change);
        let ended = self
            .outbox
            .end_with_key(self.ending, before.revision, &change);
        Ok(ended.await?.unwrap_or_else(|| {
            self.claim_was_lost = true;
            Reply {
                now: Timestamp::default(),
                value: Swapped::Absent,
            }
        }))
    }

    async fn delete(&mut self, _: &Record) -> Result<bool, StoreError> {
        Err(StoreError::Unavailable(SWAPS_ONLY.into()))
    }
}

async fn note(engine: &Engine, entry: JournalEntry) {
    if let Err(error) = engine.store().append(vec![entry]).await {
        tracing::warn!(%error, "a result that came too late could not be noted");
    }
}

/// The parts of a policy that the machine needs to settle the key of a message.
fn policy(settles: &Settles) -> Policy {
    Policy::builder()
        .ttl(settles.ttl)
        .max_execution(settles.look_after)
        .build()
}

/// What a message carries so that its delivery settles the key of `attempt` with an answer of `version`.
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

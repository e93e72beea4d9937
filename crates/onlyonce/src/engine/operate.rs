//! Operator actions on a key, and the work of the background loops.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use onlyonce_core::{
    Record, RecordId, State, Timestamp,
    machine::{
        self, ClockWasSetBack, Denied, Erase, Event, Extend, Forget, Granted, Reap, Resolution,
        Resolve, Seen, Step, Sweep,
    },
};
use onlyonce_store::{Copies, Filter, Listed, StoreError, failpoint};

use super::{
    Engine, near,
    transition::{Known, Unanswered, Wrote},
};

/// Concurrent writes of the reaper.
const REAP_GROUP: usize = 100;
/// Live keys examined in one go after a clock was set back.
const STRANDED_AT_ONCE: usize = 1_000;
/// The lease assumed for a route that this process does not know.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// Why an operator's request was denied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// There is no such key.
    #[error("there is no such key")]
    Absent,
    /// The key's state does not allow it.
    #[error("the key is {0}, which does not allow this; nothing was changed")]
    State(State),
    /// Another attempt owns the key than the one the operator saw.
    #[error("the key has been executed again since it was looked at; nothing was changed")]
    MovedOn,
    /// The key has been written to since the operator saw it.
    #[error("the key has changed since it was looked at: look again; nothing was changed")]
    Changed,
    /// The operation took effect: forgetting it would let a retry execute it again.
    #[error(
        "the operation took effect, and forgetting it would let a retry execute it again; nothing was changed"
    )]
    TookEffect,
    /// The provider says that the operation took effect, so a retry must not execute it.
    #[error("the provider says that the operation took effect; nothing was released")]
    AlreadyExecuted,
    /// The provider's answer is inconclusive; a release needs force.
    #[error("the provider does not say what became of the operation; nothing was changed")]
    Inconclusive,
    /// The operation may still take effect until this time; a release needs force.
    #[error("the operation may still take effect; nothing was changed")]
    TooEarly(Timestamp),
    /// The store could not be reached.
    #[error("the store could not answer")]
    Store(#[from] StoreError),
}

impl From<Denied> for OperateError {
    fn from(why: Denied) -> Self {
        match why {
            Denied::Absent => Self::Absent,
            Denied::State(state) => Self::State(state),
            Denied::MovedOn => Self::MovedOn,
            Denied::Changed => Self::Changed,
            Denied::TookEffect => Self::TookEffect,
            Denied::Inconclusive => Self::Inconclusive,
            Denied::TooEarly(until) => Self::TooEarly(until),
        }
    }
}

impl Engine {
    /// Settles an unknown key as an operator decided after seeing `seen`. The decision applies only to the
    /// attempt that owns the key when this is called: a slow request could otherwise settle an attempt that
    /// nobody has looked at.
    ///
    /// # Errors
    /// [`OperateError`] says why nothing was changed.
    pub async fn resolve(
        &self,
        id: RecordId,
        seen: Seen,
        resolution: &Resolution,
        reason: &str,
    ) -> Result<Record, OperateError> {
        let mut seen = seen;
        let resolved = self.operate(id, |record, now| {
            if let (Seen::AsItIs, Some(record)) = (seen, record) {
                seen = Seen::Attempt(record.attempt_id);
            }
            let resolve = Resolve {
                seen,
                resolution,
                reason,
            };
            self.applied(record, &resolve, now)
        });
        let record = resolved.await?.map_err(|why| match why {
            Denied::TookEffect => OperateError::AlreadyExecuted,
            why => why.into(),
        })?;
        self.0.waiters.wake_all(id);
        Ok(record)
    }

    /// Forgets a key, leaving a tombstone that no late result can match.
    ///
    /// # Errors
    /// [`OperateError`] says why nothing was changed.
    pub async fn forget(
        &self,
        id: RecordId,
        force: bool,
        reason: Option<String>,
    ) -> Result<Record, OperateError> {
        let fresh = self.0.options.attempt_ids.fresh();
        let forget = Forget {
            force,
            fresh,
            reason,
        };
        let mut had_answer = false;
        let forgotten = self.operate(id, |record, now| {
            had_answer = record.is_some_and(|record| record.response.is_some());
            self.applied(record, &forget, now)
        });
        let record = forgotten.await??;
        self.no_copy_is_left(had_answer).await;
        Ok(record)
    }

    /// Erases the personal data of a key, in any state, and keeps what prevents another execution. Erasing
    /// twice changes nothing.
    ///
    /// # Errors
    /// [`OperateError`] says why nothing was changed.
    pub async fn erase(
        &self,
        id: RecordId,
        reason: Option<String>,
    ) -> Result<Record, OperateError> {
        let erase = Erase { reason };
        let mut had_answer = false;
        let erased = self.operate(id, |record, now| {
            had_answer = record.is_some_and(|record| record.response.is_some());
            self.applied(record, &erase, now)
        });
        let record = erased.await??;
        self.0.waiters.wake_all(id);
        self.no_copy_is_left(had_answer).await;
        Ok(record)
    }

    /// If there was an answer to copy, waits until no other process can still replay a copy of it. This
    /// process has none.
    async fn no_copy_is_left(&self, had_answer: bool) {
        if had_answer && self.0.store.copies() == Copies::Shared {
            near::until_no_copy_is_left().await;
        }
    }

    /// Moves the expiry of a key to `ttl` from now, unless it is later already.
    ///
    /// # Errors
    /// [`OperateError`] says why nothing was changed.
    pub async fn extend(&self, id: RecordId, ttl: Duration) -> Result<Record, OperateError> {
        let extend = Extend(ttl);
        let extended = self.operate(id, |record, now| self.applied(record, &extend, now));
        Ok(extended.await??)
    }

    async fn operate(
        &self,
        id: RecordId,
        mut wish: impl FnMut(Option<&Record>, Timestamp) -> Step<Granted>,
    ) -> Result<Result<Record, Denied>, StoreError> {
        let moved = self.transition(id, Known::Nothing, |record, now| {
            (wish(record, now), Unanswered::Fail)
        });
        let moved = moved.await?;
        Ok(match (moved.effect, moved.record) {
            (Ok(()), Some(record)) => Ok(Arc::unwrap_or_clone(record)),
            (Ok(()), None) => Err(Denied::Absent),
            (Err(why), _) => Err(why),
        })
    }

    /// Applies `event` to `record` under the policy of its route.
    fn applied<E: Event>(
        &self,
        record: Option<&Record>,
        event: &E,
        now: Timestamp,
    ) -> Step<E::Effect> {
        let policy = record.map(|record| self.policy(&record.route));
        machine::apply(record, event, now, &policy.unwrap_or_default())
    }

    /// Makes up to `limit` keys with lapsed leases unknown. Returns how many it changed and how many it
    /// examined.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached; changes made until then stand.
    pub async fn sweep_some(&self, limit: usize) -> Result<(usize, usize), StoreError> {
        let reply = self.bounded_read(self.0.store.lapsed(limit)).await?;
        let found = reply.value.len();
        // Concurrently, so that a store with group commit commits them together.
        let swept = join_all(reply.value.into_iter().map(|record| async {
            let (id, key, route) = (record.id, record.key.clone(), record.route.clone());
            let known = Known::Read(Arc::new(record), reply.now);
            let policy = self.known_policy(&route);
            let sweep = Sweep {
                knows_route: policy.is_some(),
            };
            let lease = policy.as_ref().map_or(DEFAULT_LEASE, |policy| policy.lease);
            let policy = policy.unwrap_or_default();
            let moved = self.transition(id, known, |record, now| {
                let now = self.store_clock().lease_time(lease, now);
                failpoint!("engine.sweep.before");
                // An open transaction may lock its row; the others must not wait for it.
                (
                    machine::apply(record, &sweep, now, &policy),
                    Unanswered::LeaveIt,
                )
            });
            let done = moved.await?.wrote == Wrote::Yes;
            if done {
                failpoint!("engine.sweep.after");
                self.0.waiters.wake_all(id);
                let tag = self.secret().key_tag(&key);
                tracing::warn!(key = %tag, %route, "a lease lapsed: unknown");
            }
            Ok([done])
        }))
        .await;
        let [swept] = count(swept)?;
        Ok((swept, found))
    }

    /// Repairs keys with times far in the future, from a clock that has been set back since: a lease that
    /// nobody renews, or a look that would never come. Returns how many it found.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached; changes made until then stand.
    pub(crate) async fn sweep_stranded(&self) -> Result<usize, StoreError> {
        let policies: Vec<_> = self.0.policies.read().values().cloned().collect();
        let longest = policies.iter().map(|policy| policy.lease).max();
        // By then every living executor has renewed its lease by the corrected clock.
        let longest = longest.unwrap_or(DEFAULT_LEASE);
        let clock = self.store_clock();
        let may_be_there = || clock.may_have_been_set_back(longest);
        if !may_be_there() {
            return Ok(0);
        }
        let mut found = 0;
        for state in [State::InProgress, State::Unknown] {
            let of_this = Filter {
                state: Some(state),
                is_lenient: true,
                ..Filter::default()
            };
            let listed = self.0.store.list(&of_this, None, STRANDED_AT_ONCE);
            let listed = self.bounded_read(listed).await?.items;
            // Read the clock after the records, so that another change of the clock is noticed.
            let now = self.store_now().await?;
            if !may_be_there() {
                return Ok(found);
            }
            let now = clock.lease_time(longest, now);
            for Listed { record, .. } in listed {
                let (id, listed) = (record.id, record.revision);
                let moved = self.transition(id, Known::Read(Arc::new(record), now), |record, _| {
                    // A record written since then has times by the corrected clock.
                    let record = record.filter(|record| record.revision == listed);
                    let step = self.applied(record, &ClockWasSetBack, now);
                    (step, Unanswered::Fail)
                });
                if moved.await?.wrote == Wrote::Yes {
                    found += 1;
                    self.0.waiters.wake_all(id);
                }
            }
        }
        clock.has_looked();
        Ok(found)
    }

    /// The store's clock, as far as it is believed.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn store_now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.bounded_read(self.0.store.lapsed(1)).await?.now)
    }

    /// Deletes audit rows older than `keep` of keys that are gone.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached.
    pub async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        self.bounded_read(self.0.store.prune_audit(keep)).await
    }

    /// Walks one stretch of the records and expires or deletes those that are due. Returns how many it
    /// expired and deleted, and whether the walk has reached the end.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be reached; changes made until then stand.
    pub async fn reap_some(&self, limit: usize) -> Result<(usize, usize, bool), StoreError> {
        let reply = self.bounded_read(self.0.store.walk(limit)).await?;
        let reaped = in_groups(reply.value.candidates.into_iter().map(|record| async {
            let id = record.id;
            let known = Known::Read(Arc::new(record), reply.now);
            let moved = self.transition(id, known, |record, now| {
                (self.applied(record, &Reap, now), Unanswered::Fail)
            });
            let moved = moved.await?;
            let wrote = moved.wrote == Wrote::Yes;
            let is_there = moved.record.is_some();
            Ok([wrote && is_there, wrote && !is_there])
        }));
        let [expired, deleted] = count(reaped.await)?;
        Ok((expired, deleted, reply.value.wrapped))
    }
}

/// Awaits all of them, [`REAP_GROUP`] at a time, so that a request waits for one group at most.
async fn in_groups<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all = all;
    let mut done = Vec::new();
    loop {
        let group: Vec<F> = all.by_ref().take(REAP_GROUP).collect();
        if group.is_empty() {
            return done;
        }
        done.extend(join_all(group).await);
    }
}

/// How many of each kind were done; an error only if nothing was done.
fn count<const KINDS: usize>(
    outcomes: Vec<Result<[bool; KINDS], StoreError>>,
) -> Result<[usize; KINDS], StoreError> {
    let mut done = [0; KINDS];
    let mut failed = None;
    for outcome in outcomes {
        match outcome {
            Ok(one) => {
                for (done, one) in done.iter_mut().zip(one) {
                    *done += usize::from(one);
                }
            }
            // An unreadable record is left alone, and must not keep a loop from the others.
            Err(error @ (StoreError::Unreadable(_) | StoreError::Collision)) => {
                tracing::error!(%error, "a record is left as it is");
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if done.iter().all(|done| *done == 0) => Err(error),
        _ => Ok(done),
    }
}

//! What operators do with a key, and what the background loops do.

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

/// Writes of the reaper that go to the store at once.
const REAP_GROUP: usize = 100;
/// Live keys that are looked at in one go after a clock was set back.
const STRANDED_AT_ONCE: usize = 1_000;
/// The lease of a route that this process has not heard of.
const DEFAULT_LEASE: Duration = Duration::from_secs(60);

/// Why an operator's wish was not granted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperateError {
    /// There is no such key.
    #[error("there is no such key")]
    Absent,
    /// The key's state does not allow it.
    #[error("the key is {0}, which does not allow this; nothing was changed")]
    State(State),
    /// The key has another attempt now than the one that was looked at.
    #[error("the key has been executed again since it was looked at; nothing was changed")]
    MovedOn,
    /// Something was written to the key since it was looked at.
    #[error("the key has changed since it was looked at: look again; nothing was changed")]
    Changed,
    /// The operation took effect, so forgetting it would let a retry execute it again.
    #[error(
        "the operation took effect, and forgetting it would let a retry execute it again; nothing was changed"
    )]
    TookEffect,
    /// The provider says that the operation took effect, so a retry must not execute it.
    #[error("the provider says that the operation took effect; nothing was released")]
    AlreadyExecuted,
    /// The provider does not say what became of the operation, so a release needs force.
    #[error("the provider does not say what became of the operation; nothing was changed")]
    Inconclusive,
    /// Until then the operation may still take effect, so a release needs force.
    #[error("the operation may still take effect; nothing was changed")]
    TooEarly(Timestamp),
    /// The store could not be asked.
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
    /// Settles an unknown key by an operator's word about what was `seen`; at the least it is about the
    /// attempt that the key has when this is called: a wish that is long under way could otherwise
    /// settle an attempt that nobody has looked at.
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

    /// Removes what is remembered of a key, leaving a tombstone that no late result can match.
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

    /// Removes a person's data from a key, in any state, and leaves what keeps it from executing again.
    /// Doing it twice is doing it once.
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

    /// Waits, if there was an answer to copy, until no other process can have a copy of it that it gives. This
    /// one has none.
    async fn no_copy_is_left(&self, had_answer: bool) {
        if had_answer && self.0.store.copies() == Copies::Shared {
            near::until_no_copy_is_left().await;
        }
    }

    /// Moves the expiry of a key to `ttl` from now, or leaves it where that is later.
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

    /// What `event` does to `record` under the policy of its route.
    fn applied<E: Event>(
        &self,
        record: Option<&Record>,
        event: &E,
        now: Timestamp,
    ) -> Step<E::Effect> {
        let policy = record.map(|record| self.policy(&record.route));
        machine::apply(record, event, now, &policy.unwrap_or_default())
    }

    /// Turns lapsed leases into unknown, up to `limit` of them. Says how many it turned and how
    /// many it looked at.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked; what was done until then stands.
    pub async fn sweep_some(&self, limit: usize) -> Result<(usize, usize), StoreError> {
        let reply = self.bounded_read(self.0.store.lapsed(limit)).await?;
        let found = reply.value.len();
        // All at once, so that a store that commits in groups commits them in one.
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
                // An open transaction may hold its row; the others are not to wait for that.
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

    /// Looks after keys whose times a clock that has been set back since has put far ahead: a lease that
    /// nobody renews, and a look that would not come. Says how many it found.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked; what was done until then stands.
    pub(crate) async fn sweep_stranded(&self) -> Result<usize, StoreError> {
        let policies: Vec<_> = self.0.policies.read().values().cloned().collect();
        let longest = policies.iter().map(|policy| policy.lease).max();
        // By then whoever is alive has renewed its lease by the clock as it is.
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
            // Asked after the records were read, so that a clock which has been set again is noticed.
            let now = self.store_now().await?;
            if !may_be_there() {
                return Ok(found);
            }
            let now = clock.lease_time(longest, now);
            for Listed { record, .. } in listed {
                let (id, listed) = (record.id, record.revision);
                let moved = self.transition(id, Known::Read(Arc::new(record), now), |record, _| {
                    // Whoever has written to it since has done so by the clock as it is.
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

    /// What the store's clock says, as far as it is believed.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked.
    pub async fn store_now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.bounded_read(self.0.store.lapsed(1)).await?.now)
    }

    /// Deletes what operators did longer than `keep` ago to keys that are gone.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked.
    pub async fn prune_audit(&self, keep: Duration) -> Result<(), StoreError> {
        self.bounded_read(self.0.store.prune_audit(keep)).await
    }

    /// Walks one stretch of the records and expires or deletes what is due. Says how many it
    /// expired and deleted, and whether the walk has come to its end.
    ///
    /// # Errors
    /// A [`StoreError`] if the store cannot be asked; what was done until then stands.
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

/// All of them, [`REAP_GROUP`] at a time, so that a request waits for one group of them and not for all.
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

/// How many of each kind were done; an error only if none was.
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
            // It is left as it is, and must not keep a loop from the others.
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

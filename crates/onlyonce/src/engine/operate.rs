//! What operators do with a key, and what the background loops do: read, ask the machine, swap.

use std::{sync::OnceLock, time::Duration};

use futures_util::future::join_all;

use onlyonce_core::{
    AttemptId, Record, RecordId, State, Timestamp,
    machine::{self, Erased, Extended, Forgotten, Reaped, Resolution, Resolved, Swept},
    record::{Change, Revision},
};
use onlyonce_store::{Filter, Listed, StoreError, Swapped, failpoint};

use super::{Engine, MAX_ROUNDS};

/// Writes of the reaper that go to the store at once.
const REAP_GROUP: usize = 25;
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

/// What an operator's decision was made on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The key as it is when the wish is granted.
    AsItIs,
    /// This attempt, whatever else has been written since.
    Attempt(AttemptId),
    /// This very record: anything that was written since speaks against it.
    Revision(Revision),
}

enum Wish {
    Write(Change),
    /// It is so already.
    Nothing(Box<Record>),
    No(OperateError),
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
        let about: OnceLock<AttemptId> = match seen {
            Seen::Attempt(attempt) => attempt.into(),
            Seen::AsItIs | Seen::Revision(_) => OnceLock::new(),
        };
        let record = self
            .operate(id, |record, now| {
                if *about.get_or_init(|| record.attempt_id) != record.attempt_id {
                    return Wish::No(OperateError::MovedOn);
                }
                if let Seen::Revision(seen) = seen
                    && seen != record.revision
                {
                    return Wish::No(OperateError::Changed);
                }
                let policy = self.policy(&record.route);
                match machine::resolve(record, resolution, reason, now, &policy) {
                    Resolved::Write(change) => Wish::Write(change),
                    Resolved::NotUnknown(state) => Wish::No(OperateError::State(state)),
                    Resolved::TookEffect => Wish::No(OperateError::AlreadyExecuted),
                    Resolved::Inconclusive => Wish::No(OperateError::Inconclusive),
                    Resolved::TooEarly(until) => Wish::No(OperateError::TooEarly(until)),
                }
            })
            .await?;
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
        self.operate(id, |record, _| {
            match machine::forget(record, force, fresh, reason.clone()) {
                Forgotten::Write(change) => Wish::Write(change),
                Forgotten::Live(state) => Wish::No(OperateError::State(state)),
                Forgotten::TookEffect => Wish::No(OperateError::TookEffect),
            }
        })
        .await
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
        let erased = self.operate(id, |record, _| {
            match machine::erase(record, reason.clone()) {
                Erased::Write(change) => Wish::Write(change),
                Erased::Already => Wish::Nothing(Box::new(record.clone())),
            }
        });
        let record = erased.await?;
        self.0.waiters.wake_all(id);
        Ok(record)
    }

    /// Moves the expiry of a key to `ttl` from now, or leaves it where that is later.
    ///
    /// # Errors
    /// [`OperateError`] says why nothing was changed.
    pub async fn extend(&self, id: RecordId, ttl: Duration) -> Result<Record, OperateError> {
        self.operate(id, |record, now| match machine::extend(record, ttl, now) {
            Extended::Write(change) => Wish::Write(change),
            Extended::NoExpiry(state) => Wish::No(OperateError::State(state)),
        })
        .await
    }

    async fn operate(
        &self,
        id: RecordId,
        wish: impl Fn(&Record, Timestamp) -> Wish,
    ) -> Result<Record, OperateError> {
        let reply = self.bounded_read(self.0.store.lookup(id)).await?;
        let mut now = reply.now;
        let mut record = reply.value.ok_or(OperateError::Absent)?;
        for _ in 0..MAX_ROUNDS {
            let change = match wish(&record, now) {
                Wish::Write(change) => change,
                Wish::Nothing(record) => return Ok(*record),
                Wish::No(error) => return Err(error),
            };
            let reply = self.swap(&record, change).await?;
            now = reply.now;
            match reply.value {
                Swapped::Done(done) => return Ok(done),
                Swapped::Conflict(current) => record = current,
                Swapped::Absent => return Err(OperateError::Absent),
            }
        }
        Err(StoreError::Unavailable("the key changes faster than it can be read".into()).into())
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
        let swept = join_all(reply.value.iter().map(|record| async {
            let policy = self.known_policy(&record.route);
            let lease = policy.as_ref().map_or(DEFAULT_LEASE, |policy| policy.lease);
            let now = self.store_clock().lease_time(lease, reply.now);
            let Swept::Lapsed(change) = machine::sweep(record, now, policy.as_deref()) else {
                return Ok(false);
            };
            failpoint!("engine.sweep.before");
            // A conflict means that somebody else was faster, which is just as well.
            let done = match self.swap(record, change).await {
                Ok(reply) => matches!(reply.value, Swapped::Done(_)),
                // An open transaction may hold its row; the others are not to wait for that.
                Err(error) if error.is_ambiguous() => false,
                Err(error) => return Err(error),
            };
            if done {
                failpoint!("engine.sweep.after");
                self.0.waiters.wake_all(record.id);
                let tag = self.secret().key_tag(&record.key);
                tracing::warn!(key = %tag, route = %record.route, "a lease lapsed: unknown");
            }
            Ok(done)
        }))
        .await;
        Ok((count(swept)?, found))
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
                let policy = self.policy(&record.route);
                if let Some(change) = machine::stranded(&record, now, &policy) {
                    let swapped = self.swap(&record, change).await?;
                    found += usize::from(matches!(swapped.value, Swapped::Done(_)));
                    self.0.waiters.wake_all(record.id);
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
        let (mut expiring, mut deleting) = (Vec::new(), Vec::new());
        for record in reply.value.candidates {
            match machine::expire(&record, reply.now) {
                Reaped::Keep => {}
                Reaped::Expire(change) => expiring.push((record, change)),
                Reaped::Delete => deleting.push((record.id, record.revision)),
            }
        }
        let expired = in_groups(expiring.into_iter().map(|(record, change)| async move {
            let swapped = self.swap(&record, change).await?.value;
            Ok(matches!(swapped, Swapped::Done(_)))
        }));
        let expired = expired.await;
        let deleted = in_groups(deleting.into_iter().map(|(id, revision)| async move {
            self.bounded_read(self.0.store.delete(id, revision)).await
        }));
        let deleted = deleted.await;
        Ok((count(expired)?, count(deleted)?, reply.value.wrapped))
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

/// How many were done; an error only if none was.
fn count(outcomes: Vec<Result<bool, StoreError>>) -> Result<usize, StoreError> {
    let mut done = 0;
    let mut failed = None;
    for outcome in outcomes {
        match outcome {
            Ok(one) => done += usize::from(one),
            // It is left as it is, and must not keep a loop from the others.
            Err(error @ (StoreError::Unreadable(_) | StoreError::Collision)) => {
                tracing::error!(%error, "a record is left as it is");
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

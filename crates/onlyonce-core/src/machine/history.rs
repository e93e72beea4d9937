//! What a new key may do on a store that has lost keys.
//!
//! A store that was emptied, restored from a backup or exchanged for another does not know every key that was
//! executed, so a key that is absent from it need not be new. For one `ttl` after the loss was detected such
//! a key waits, unless the provider denies it or an operator has accepted the loss. After that the lost keys
//! would have expired anyway.
//!
//! Deliberately absent: keys that the store knows. The store's records are trusted.

use super::evidence::settles_at;
use crate::{
    policy::{OnStoreError, Policy, Profile},
    time::Timestamp,
};

/// The losses of a store, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When it was detected that keys are missing.
    pub lost_at: Option<Timestamp>,
    /// When it was detected that a failover lost the newest keys, which the store's durability level permits.
    pub newest_lost_at: Option<Timestamp>,
    /// When an operator last accepted the loss of keys.
    pub accepted_at: Option<Timestamp>,
}

impl History {
    /// When keys were last lost, unless an operator has accepted the loss.
    pub fn lost_since(&self) -> Option<Timestamp> {
        self.unaccepted(self.lost_at.max(self.newest_lost_at))
    }

    /// A loss in the same instant as an acceptance counts as later: accepting again is easy.
    fn unaccepted(&self, lost_at: Option<Timestamp>) -> Option<Timestamp> {
        lost_at.filter(|at| Some(*at) >= self.accepted_at)
    }

    /// The last loss that matters under `policy`.
    fn minded_by(&self, policy: &Policy) -> Option<Timestamp> {
        match (policy.profile, policy.on_store_error) {
            (Profile::Payments, _) => self.lost_since(),
            // A route that runs without its store when the store is down accepts the store's losses too.
            (_, OnStoreError::Bypass) => None,
            // The store's level permits the loss of the newest keys.
            (_, OnStoreError::Refuse) => self.unaccepted(self.lost_at),
        }
    }

    /// Whether keys may be missing that would not have expired by `now`, whether or not `policy` minds.
    pub fn is_felt(&self, now: Timestamp, policy: &Policy) -> bool {
        self.lost_since()
            .is_some_and(|at| now < at.plus(policy.ttl))
    }
}

/// What a key that the store does not know may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKey {
    /// Execute.
    Execute,
    /// Execute only if the provider, asked at this time or later, denies the key.
    OnlyIfDenied(Timestamp),
    /// Wait.
    Wait,
}

/// What a key that the store does not know may do at `now`.
///
/// A denial counts only `negative_gap` after the end of whatever was executed before the loss. One denial is
/// enough, since the client is waiting for the answer.
pub fn new_key(history: &History, now: Timestamp, policy: &Policy) -> NewKey {
    let Some(lost_at) = history.minded_by(policy) else {
        return NewKey::Execute;
    };
    if lost_at.plus(policy.ttl) <= now {
        return NewKey::Execute;
    }
    let asks = policy.reconcile.as_ref().filter(|reconcile| reconcile.asks);
    let ends = asks.and_then(|reconcile| {
        let upstream_max = reconcile.upstream_max_execution?;
        let exchange_ended = lost_at.plus(policy.max_execution);
        let settled = settles_at(exchange_ended, upstream_max, policy);
        Some(settled.plus(reconcile.negative_gap))
    });
    ends.map_or(NewKey::Wait, NewKey::OnlyIfDenied)
}

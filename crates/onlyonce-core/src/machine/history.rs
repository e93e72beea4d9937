//! What a new key may do on a store that has lost keys.
//!
//! A store that was emptied, restored from a backup or exchanged for another does not know every key that was
//! executed: a key that it does not know need not be new. For one `ttl` after the loss was recognised such a
//! key waits, unless the provider denies it or an operator has accepted the loss. After that the missing keys
//! would have expired anyway.
//!
//! Deliberately absent: keys that the store knows. What it holds is held to be true.

use super::evidence::settles_at;
use crate::{
    policy::{OnStoreError, Policy, Profile},
    time::Timestamp,
};

/// What a store has lost, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// When it was recognised that keys are missing.
    pub lost_at: Option<Timestamp>,
    /// When it was recognised that a failover took the newest keys, as the store's level said that one may.
    pub newest_lost_at: Option<Timestamp>,
    /// When an operator last accepted that keys are missing.
    pub accepted_at: Option<Timestamp>,
}

impl History {
    /// When keys were last lost that nobody has accepted.
    pub fn lost_since(&self) -> Option<Timestamp> {
        self.unaccepted(self.lost_at.max(self.newest_lost_at))
    }

    /// A loss in the same instant as an operator's word is the later one: the word is easily repeated.
    fn unaccepted(&self, lost_at: Option<Timestamp>) -> Option<Timestamp> {
        lost_at.filter(|at| Some(*at) >= self.accepted_at)
    }

    /// When keys were last lost, as far as `policy` minds.
    fn minded_by(&self, policy: &Policy) -> Option<Timestamp> {
        match (policy.profile, policy.on_store_error) {
            (Profile::Payments, _) => self.lost_since(),
            // Whoever does without a store that is down does without what it has lost.
            (_, OnStoreError::Bypass) => None,
            // The level of the store has said that the newest keys may be lost.
            (_, OnStoreError::Refuse) => self.unaccepted(self.lost_at),
        }
    }

    /// Whether keys may be missing that would not have expired by `now` under `policy`, minded or not.
    pub fn is_felt(&self, now: Timestamp, policy: &Policy) -> bool {
        self.lost_since()
            .is_some_and(|at| now < at.plus(policy.ttl))
    }
}

/// What a key may do that the store does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKey {
    /// It is executed.
    Execute,
    /// It is executed only if the provider, asked at this time or later, denies it.
    OnlyIfDenied(Timestamp),
    /// It waits.
    Wait,
}

/// What a key that the store does not know may do at `now`.
///
/// A denial counts once whatever was executed before the loss has ended, and `negative_gap` later: the
/// provider is asked once, since the client waits for the answer.
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

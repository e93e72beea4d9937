//! The share of a client's limits that a new key takes.

use std::time::Duration;

use onlyonce_core::Policy;
use onlyonce_store::StoreError;

use super::{Arrival, Engine, Unavailable};
use crate::{
    clock::Moment,
    limits::{Client, Limited, Limiter, LivePlace, Token},
};

/// What a new key has taken from its client's limits. Dropping it returns the share, unless the key was
/// created, or may have been.
#[derive(Default)]
pub(super) struct Room {
    token: Option<Token>,
    place: Option<LivePlace>,
}

impl Room {
    /// Keeps the share: the key was created, or may have been.
    pub(super) fn used(self) {
        if let Some(token) = self.token {
            token.used();
        }
        if let Some(place) = self.place {
            place.used();
        }
    }
}

impl Engine {
    /// Takes a share for a new key, or says which limit was reached.
    pub(super) async fn room_for_new_key(
        &self,
        arrival: &Arrival,
        policy: &Policy,
    ) -> Result<Result<Room, Limited>, Unavailable> {
        if arrival.is_too_old() {
            return Ok(Err(Limited::TooOld));
        }
        if self.detached_is_full(arrival, policy) {
            return Ok(Err(Limited::Detached));
        }
        if self.body_budget().is_exceeded_without(arrival.body_bytes()) {
            return Ok(Err(Limited::Bytes));
        }
        let mut room = Room::default();
        if let Some(rate) = policy.new_keys {
            let now = self.now();
            match Limiter::new_key(&self.0.limiter, arrival.client(), rate, now) {
                Ok(token) => room.token = Some(token),
                Err(limited) => return Ok(Err(limited)),
            }
        }
        if let Some(limit) = policy.live_keys {
            let whose = arrival.whose();
            let live = &self.0.limiter.live;
            let place = live.place(&*self.0.store, whose, limit, || self.now());
            match self.only_looked(self.bounded_read(place).await)? {
                Some(place) => room.place = Some(place),
                None => return Ok(Err(Limited::Quota)),
            }
        }
        Ok(Ok(room))
    }

    /// Whether the client of this request has reached its limit of executions running without it.
    fn detached_is_full(&self, arrival: &Arrival, policy: &Policy) -> bool {
        let holder = arrival.executes_as();
        holder.is_some_and(|holder| self.0.detached.of(holder) >= policy.detached)
    }

    /// The result of a read. A read that failed has written nothing, however it failed.
    pub(super) fn only_looked<T>(&self, looked: Result<T, StoreError>) -> Result<T, Unavailable> {
        self.watched(looked).map_err(|error| {
            Unavailable(match error.is_ambiguous() {
                true => StoreError::Unavailable(Box::new(error)),
                false => error,
            })
        })
    }

    /// Admits a lookup of a key, or one more misuse of one.
    ///
    /// # Errors
    /// The time after which the next one is admitted.
    pub fn room_to_look(&self, client: &Client, policy: &Policy) -> Result<(), Duration> {
        match policy.lookups_per_second {
            Some(per_second) => self.0.limiter.lookup(client, per_second, self.now()),
            None => Ok(()),
        }
    }

    /// The time since 1970, by the wall clock.
    pub(crate) fn wall_clock(&self) -> Duration {
        self.0.options.clock.moment().since_1970()
    }

    /// The current time, by this machine's clocks.
    pub(crate) fn moment(&self) -> Moment {
        self.0.options.clock.moment()
    }

    fn now(&self) -> Duration {
        self.moment().since_boot()
    }
}

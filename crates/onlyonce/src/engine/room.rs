//! Makes the record of a new key, where its client may bring one, and what that takes.

use std::time::Duration;

use onlyonce_core::{AttemptId, Policy, Record};
use onlyonce_store::{Inserted, Reply, StoreError, Swapped, failpoint};

use super::{Arrival, Engine, Unavailable};
use crate::{
    clock::Moment,
    limits::{Client, Limited, Limiter, LivePlace, Token},
};

/// What a new key has taken of its client's share. It goes back when this is dropped, unless the key was
/// made, or may have been.
#[derive(Default)]
pub(super) struct Room {
    token: Option<Token>,
    place: Option<LivePlace>,
}

impl Room {
    /// The key was made, or may have been, unless the store says otherwise.
    pub(super) fn used_unless_refused(self, swapped: &Result<Reply<Swapped>, StoreError>) {
        match swapped {
            Ok(reply) if !matches!(reply.value, Swapped::Done(_)) => {}
            Err(error) if !error.is_ambiguous() => {}
            _ => self.used(),
        }
    }

    /// The key was made, or may have been.
    fn used(self) {
        if let Some(token) = self.token {
            token.used();
        }
        if let Some(place) = self.place {
            place.used();
        }
    }
}

/// What came of making a key's record.
pub(super) enum Made {
    New(Box<Record>),
    /// It was there.
    There(Box<Reply<Record>>),
    /// Somebody else is making it, in a transaction that stays open.
    Held,
    Limited(Limited),
}

impl Engine {
    /// Makes the record of a key that nobody has used, where its client may and the store promises what
    /// the route demands. Otherwise only looks: a key that is known goes on as usual, and one that is not leaves no trace.
    pub(super) async fn make(
        &self,
        attempt_id: AttemptId,
        arrival: &mut Arrival,
        policy: &Policy,
    ) -> Result<Made, Unavailable> {
        let room = match self.unless_below(policy) {
            Ok(()) => self.room_for_new_key(arrival, policy).await?.map_err(Ok),
            Err(below) => Err(Err(below)),
        };
        let room = match room {
            Ok(room) => room,
            Err(why_not) => {
                let looked = self.bounded_read(self.0.store.lookup(arrival.id())).await;
                let reply = self.only_looked(looked)?;
                return match reply.value {
                    Some(record) if arrival.is_about(&record) => Ok(Made::There(Box::new(Reply {
                        now: reply.now,
                        value: record,
                    }))),
                    Some(_) => Err(Unavailable(StoreError::Collision)),
                    None => why_not.map(Made::Limited),
                };
            }
        };
        let request = arrival.request(attempt_id, &policy.recipe);
        failpoint!("engine.reserve.insert.before");
        let reply = match self.watched(self.insert(&request, policy).await) {
            Ok(reply) => reply,
            Err(StoreError::Held) => return Ok(Made::Held),
            Err(error) => {
                if error.is_ambiguous() {
                    // It may have been made after all.
                    room.used();
                }
                return Err(Unavailable(error));
            }
        };
        Ok(match reply.value {
            Inserted::New(record) => {
                failpoint!("engine.reserve.insert.after");
                room.used();
                Made::New(Box::new(record))
            }
            Inserted::Existing(record) => Made::There(Box::new(Reply {
                now: reply.now,
                value: record,
            })),
        })
    }

    /// Room for a new key, or why there is none.
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
        if self.body_budget().is_exceeded() {
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

    /// Whether as many executions of this request's holder as may be are running without their client.
    fn detached_is_full(&self, arrival: &Arrival, policy: &Policy) -> bool {
        let holder = arrival.holder();
        holder.is_some_and(|holder| self.0.detached.of(holder) >= policy.detached)
    }

    /// What a look at the store brought. One that failed has written nothing, however it failed.
    fn only_looked<T>(&self, looked: Result<T, StoreError>) -> Result<T, Unavailable> {
        self.watched(looked).map_err(|error| {
            Unavailable(match error.is_ambiguous() {
                true => StoreError::Unavailable(Box::new(error)),
                false => error,
            })
        })
    }

    /// Room for a question about a key, or for one more misuse of one.
    ///
    /// # Errors
    /// The time after which there is room again.
    pub fn room_to_look(&self, client: &Client, policy: &Policy) -> Result<(), Duration> {
        match policy.lookups_per_second {
            Some(per_second) => self.0.limiter.lookup(client, per_second, self.now()),
            None => Ok(()),
        }
    }

    /// Time since 1970 by the wall clock.
    pub(crate) fn wall_clock(&self) -> Duration {
        self.0.options.clock.moment().since_1970()
    }

    /// Now, by the clocks of this machine.
    pub(crate) fn moment(&self) -> Moment {
        self.0.options.clock.moment()
    }

    fn now(&self) -> Duration {
        self.moment().since_boot()
    }
}

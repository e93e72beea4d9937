//! Reserves a request's key, or says why not.

use std::sync::Arc;

use onlyonce_core::{
    AttemptId, Policy, RecipeId, Record, Timestamp,
    machine::{self, Admission, Began, Step, Write},
};
use onlyonce_store::{Copies, Reply, StoreError, failpoint};

use super::{
    Admitted, Arrival, Attempt, Engine, Unavailable, near, replay,
    room::Room,
    transition::{Fault as _, Known, MAX_ROUNDS, Transition, Unanswered, Wrote},
};
use crate::{clock::Moment, limits::Limited, stats::Background};

/// What a request needs before the machine's decision can be carried out.
enum Need {
    /// The recipe of the record's fingerprint, for the comparison.
    Recipe(RecipeId),
    /// Room for a new generation of a key of this client.
    Room,
    /// A store that guarantees the level the route demands.
    Level(Unavailable),
    /// Certainty that no other process still gives an answer that an operator has removed.
    NoCopies,
}

/// Which of these needs are met.
#[derive(Clone, Copy)]
struct Has {
    room: bool,
    no_copies: bool,
}

/// Why a client may not bring a new key.
enum NoRoom {
    Limited(Limited),
    Unavailable(Unavailable),
}

impl From<NoRoom> for Result<Admitted, Unavailable> {
    fn from(why: NoRoom) -> Self {
        match why {
            NoRoom::Limited(limited) => Ok(Admitted::Limited(limited)),
            NoRoom::Unavailable(unavailable) => Err(unavailable),
        }
    }
}

impl Engine {
    /// Reserves the key, or says why not. On [`Admitted::Execute`] the reservation is durable, and the
    /// caller must settle the attempt.
    ///
    /// # Errors
    /// [`Unavailable`] if it could not be found out. Nothing may be sent upstream then; should the
    /// reservation turn out to stand, it is released in the background.
    pub async fn admit(
        &self,
        arrival: &mut Arrival,
        policy: &Arc<Policy>,
    ) -> Result<Admitted, Unavailable> {
        self.unless_unfit()?;
        self.unless_open()?;
        // The lease is counted from before the reservation was sent.
        let began = self.0.options.clock.moment();
        let attempt_id = self.0.options.attempt_ids.fresh();
        let lost_before = self.lost_since();
        let outcome = self.admit_as(attempt_id, began, arrival, policy).await;
        if let Err(Unavailable(error)) = &outcome
            && error.is_ambiguous()
        {
            self.release_later(arrival.id(), attempt_id, policy.clone());
        }
        // The reservation may have been the first call to reach a server that guarantees less.
        if let Ok(Admitted::Execute(attempt)) = &outcome {
            self.0.known_store.reserved();
            let still = self.unless_below(policy).and_then(|()| self.unless_unfit());
            if let Err(below) = still.and_then(|()| self.unless_lost_since(lost_before)) {
                attempt.release_later();
                return Err(below);
            }
        }
        outcome
    }

    async fn admit_as(
        &self,
        attempt_id: AttemptId,
        mut began_at: Moment,
        arrival: &mut Arrival,
        policy: &Arc<Policy>,
    ) -> Result<Admitted, Unavailable> {
        let id = arrival.id();
        let mut no_copies = self.0.store.copies() != Copies::Shared;
        // Most keys are new, so the record is inserted without a lookup.
        let mut known = Known::Assumed;
        let mut room = match self.room(arrival, policy).await? {
            Ok(room) => Some(room),
            Err(why) => {
                // A key that is known goes on as usual, and one that is not leaves no trace.
                match self.looked_up(arrival).await? {
                    Some(reply) => known = Known::read(reply),
                    None => return why.into(),
                }
                None
            }
        };
        let mut began = Began::New;
        for _ in 0..MAX_ROUNDS {
            let has = Has {
                room: room.is_some(),
                no_copies,
            };
            let mut begins_a_life = false;
            let moved = self.transition(id, known, |record, now| {
                let step = self.decided(attempt_id, arrival, record, now, policy, has);
                begins_a_life = false;
                if let Ok(Admission::Execute(as_)) = step.effect {
                    began = as_;
                    begins_a_life = as_.begins_a_life();
                }
                let unanswered = match &step.effect {
                    Ok(Admission::Lapse) => Unanswered::Look,
                    Ok(Admission::Refuse(_)) => Unanswered::IfPossible,
                    _ => Unanswered::AskAgain,
                };
                (step, unanswered)
            });
            let moved = match self.watched(moved.await) {
                Ok(moved) => moved,
                // Another caller is inserting the record, in a transaction that is still open.
                Err(StoreError::Held) => return Ok(Admitted::InFlight(policy.on_in_flight)),
                Err(error) => {
                    if error.is_ambiguous()
                        && begins_a_life
                        && let Some(room) = room
                    {
                        // The record may have been inserted after all.
                        room.used();
                    }
                    return Err(Unavailable(error));
                }
            };
            let Transition {
                effect,
                wrote,
                record,
                now,
            } = moved;
            match (effect, record) {
                (Ok(Admission::Execute(_) | Admission::Reserved), Some(record)) => {
                    failpoint!(match (began, record.fence.0) {
                        (Began::New, 1) => "engine.reserve.insert.after",
                        (Began::New, _) => "engine.reserve.anew.after",
                        (Began::Again, _) => "engine.reserve.again.after",
                        (Began::AfterExpiry, _) => "engine.reserve.next_generation.after",
                    });
                    if let Some(room) = room.filter(|_| began.begins_a_life()) {
                        room.used();
                    }
                    let attempt = Attempt::new(self.clone(), record, began_at, began, policy);
                    return Ok(Admitted::Execute(Box::new(attempt)));
                }
                (Ok(Admission::TooLate), _) => {
                    self.release_later(id, attempt_id, policy.clone());
                    let lapsed = "the reservation lapsed before it was confirmed";
                    return Err(Unavailable(StoreError::Unavailable(lapsed.into())));
                }
                (Ok(Admission::Lapse), Some(record)) => {
                    if wrote == Wrote::Held {
                        return Ok(Admitted::InFlight(policy.on_in_flight));
                    }
                    failpoint!("engine.reserve.lapse.after");
                    Background::ZombieKey.count(1);
                    known = Known::Read(record, now);
                }
                (Ok(Admission::InFlight(how)), _) => return Ok(Admitted::InFlight(how)),
                (Ok(Admission::Replay(response)), Some(record)) => {
                    return Ok(Admitted::Replay(replay(response, &record)));
                }
                (Ok(Admission::Refuse(refusal)), _) => return Ok(Admitted::Refused(refusal)),
                (Err(Need::Recipe(recipe)), record) => {
                    self.recipe(recipe, policy).await?;
                    known = record.map_or(Known::Nothing, |record| Known::Read(record, now));
                }
                (Err(Need::Room), record) => {
                    match self.room(arrival, policy).await? {
                        Ok(taken) => room = Some(taken),
                        Err(why) => return why.into(),
                    }
                    known = record.map_or(Known::Assumed, |record| Known::Read(record, now));
                }
                (Err(Need::Level(below)), _) => return Err(below),
                (Err(Need::NoCopies), _) => {
                    near::until_no_copy_is_left().await;
                    no_copies = true;
                    began_at = self.0.options.clock.moment();
                    known = Known::Nothing;
                }
                // Each of these effects is about a record.
                (Ok(Admission::Execute(_) | Admission::Reserved), None)
                | (Ok(Admission::Lapse | Admission::Replay(_)), None) => known = Known::Nothing,
            }
        }
        Err(Unavailable(StoreError::busy()))
    }

    /// The machine's decision about a request, or what the request still needs.
    fn decided(
        &self,
        attempt_id: AttemptId,
        arrival: &mut Arrival,
        record: Option<&Record>,
        now: Timestamp,
        policy: &Policy,
        has: Has,
    ) -> Step<Result<Admission, Need>> {
        let need = |what| Step {
            write: Write::Stay,
            effect: Err(what),
        };
        let request = match record {
            None => arrival.request(attempt_id, &policy.recipe),
            Some(record) => match self.known_recipe(record.recipe, policy) {
                Some(recipe) => arrival.request(attempt_id, &recipe),
                None => return need(Need::Recipe(record.recipe)),
            },
        };
        let step = machine::apply(record, &request, now, policy);
        match step.effect {
            Admission::Execute(began) => {
                if let Err(below) = self.unless_below(policy) {
                    return need(Need::Level(below));
                }
                // An expired key is as new as one that was removed, whether it has been reaped or not.
                if began.begins_a_life() && !has.room {
                    return need(Need::Room);
                }
                if !has.no_copies
                    && record.is_some_and(|record| machine::is_just_forgotten(record, now))
                {
                    return need(Need::NoCopies);
                }
                failpoint!(match (record, began) {
                    (None, _) => "engine.reserve.insert.before",
                    (Some(_), Began::New) => "engine.reserve.anew.before",
                    (Some(_), Began::Again) => "engine.reserve.again.before",
                    (Some(_), Began::AfterExpiry) => "engine.reserve.next_generation.before",
                });
            }
            Admission::Lapse => failpoint!("engine.reserve.lapse.before"),
            Admission::Reserved
            | Admission::TooLate
            | Admission::InFlight(_)
            | Admission::Replay(_)
            | Admission::Refuse(_) => {}
        }
        Step {
            write: step.write,
            effect: Ok(step.effect),
        }
    }

    /// Room for a new key, if the store guarantees the level demanded and knows which keys are new.
    async fn room(
        &self,
        arrival: &mut Arrival,
        policy: &Policy,
    ) -> Result<Result<Room, NoRoom>, Unavailable> {
        if let Err(below) = self.unless_below(policy) {
            return Ok(Err(NoRoom::Unavailable(below)));
        }
        let room = match self.room_for_new_key(arrival, policy).await? {
            Ok(_) if !self.may_be_new(arrival, policy).await? => Err(Limited::HistoryLost),
            room => room,
        };
        Ok(room.map_err(NoRoom::Limited))
    }

    /// The store's record of a key whose client may not bring a new one.
    async fn looked_up(&self, arrival: &Arrival) -> Result<Option<Reply<Record>>, Unavailable> {
        let looked = self.bounded_read(self.0.store.lookup(arrival.id())).await;
        let Reply { now, value } = self.only_looked(looked)?;
        match value {
            Some(record) if !arrival.is_about(&record) => Err(Unavailable(StoreError::Collision)),
            found => Ok(found.map(|value| Reply { now, value })),
        }
    }
}

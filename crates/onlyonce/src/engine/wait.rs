//! Waiting for a key that another attempt owns: join the queue, look, then wait for a wake-up or poll.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use onlyonce_core::{Policy, Record, RecordId, machine};
use onlyonce_store::Reply;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    Admitted, Arrival, Engine, Unavailable,
    waiters::{Waiter, Waiters},
};
use crate::limits::Client;

/// The first and the longest interval at which a waiter polls.
const FIRST_POLL: Duration = Duration::from_millis(50);
const LONGEST_POLL: Duration = Duration::from_secs(1);
/// How long to listen for wake-ups after the last waiter has left.
const LINGER: Duration = Duration::from_secs(1);

/// Why a wait ended before its deadline.
#[derive(Debug)]
pub(crate) enum Woken {
    /// The answer for the waiter.
    Answer(Box<Admitted>),
    /// The key may be free: call [`Engine::admit`].
    AskAgain,
}

impl Engine {
    /// Joins the queue for the key of `arrival`; `None` if `policy` permits no more waiters. Separate from
    /// the wait, so that only real waiters are counted.
    pub(crate) fn join(&self, arrival: &Arrival, policy: &Policy) -> Option<Waiter> {
        let bounds = (policy.waiters_per_key, policy.waiters);
        let client = arrival.client().clone();
        self.0.waiters.join(arrival.id(), client, bounds)
    }

    /// Waits in `place` until the key of `arrival` is no longer in flight, and returns what the request may
    /// do now; `None` at `deadline`.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot be read.
    pub(crate) async fn wait(
        &self,
        place: Waiter,
        arrival: &mut Arrival,
        policy: &Policy,
        deadline: tokio::time::Instant,
    ) -> Result<Option<Woken>, Unavailable> {
        let id = arrival.id();
        let mut pause = FIRST_POLL;
        let mut joined = Some(place);
        loop {
            // A waiter woken for nothing does not lose its place to newcomers.
            let anew = || {
                let client = arrival.client().clone();
                self.0.waiters.join(id, client, (usize::MAX, usize::MAX))
            };
            let Some(mut place) = joined.take().or_else(anew) else {
                return Ok(None);
            };
            self.listen();
            // Join before looking, so that no wake-up is missed in between.
            match self.look(arrival, policy).await? {
                Some(Admitted::InFlight(_)) => {}
                Some(other) => {
                    self.0.waiters.wake_all(id);
                    return Ok(Some(Woken::Answer(Box::new(other))));
                }
                None => return Ok(Some(Woken::AskAgain)),
            }
            tokio::select! {
                biased;
                () = place.woken() => pause = FIRST_POLL,
                () = tokio::time::sleep_until(deadline) => return Ok(None),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_POLL),
            }
        }
    }

    /// The record of `id`, once it is settled or `deadline` has passed.
    ///
    /// # Errors
    /// [`Unavailable`] if the store cannot be read.
    pub async fn find(
        &self,
        id: RecordId,
        deadline: tokio::time::Instant,
    ) -> Result<Reply<Option<Record>>, Unavailable> {
        let mut pause = FIRST_POLL;
        loop {
            let mut place = None;
            if tokio::time::Instant::now() < deadline {
                // Join before looking, so that no wake-up is missed in between. An asker that finds no place
                // polls.
                let nobody = Client::Marked(None);
                place = self.0.askers.join(id, nobody, (usize::MAX, usize::MAX));
                self.listen();
            }
            let reply = self
                .bounded_read(self.0.store.lookup(id))
                .await
                .map_err(Unavailable)?;
            let settled = reply.value.as_ref().is_none_or(machine::is_settled);
            if settled || tokio::time::Instant::now() >= deadline {
                return Ok(reply);
            }
            let woken = async {
                match &mut place {
                    Some(place) => place.woken().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => {}
                () = woken => pause = FIRST_POLL,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_POLL),
            }
        }
    }

    /// Makes sure that the store's wake-ups reach the waiters.
    fn listen(&self) {
        let inner = &self.0;
        if !inner.listening.swap(true, Ordering::SeqCst) {
            let wakeups = inner.store.wakeups();
            tokio::spawn(pass_on(
                wakeups,
                (inner.waiters.clone(), inner.askers.clone()),
                inner.listening.clone(),
            ));
        }
    }

    pub(crate) async fn look(
        &self,
        arrival: &mut Arrival,
        policy: &Policy,
    ) -> Result<Option<Admitted>, Unavailable> {
        let reply = match self.0.store.peek(arrival.id()) {
            Some(reply) => Reply {
                now: reply.now,
                value: Some(reply.value),
            },
            None => {
                self.unless_open()?;
                let looked = self.bounded_read(self.0.store.lookup(arrival.id())).await;
                self.watched(looked).map_err(Unavailable)?
            }
        };
        let Some(record) = reply.value else {
            return Ok(None);
        };
        let recipe = self.recipe(record.recipe, policy).await?;
        Ok(self.judge(&record, reply.now, arrival, policy, &recipe))
    }
}

/// Passes the store's wake-ups on to the waiters, until nobody waits. Each wakes one waiter; if the key has
/// settled for good, that waiter wakes the others.
async fn pass_on(
    mut wakeups: broadcast::Receiver<RecordId>,
    (waiters, askers): (Waiters, Waiters),
    listening: Arc<AtomicBool>,
) {
    loop {
        let heard = tokio::select! {
            biased;
            heard = wakeups.recv() => heard,
            () = tokio::time::sleep(LINGER) => {
                if waiters.total() == 0 && askers.total() == 0 {
                    // A waiter that joins at this moment starts another task, or polls.
                    listening.store(false, Ordering::SeqCst);
                    return;
                }
                continue;
            }
        };
        match heard {
            Ok(id) => {
                waiters.wake_one(id);
                askers.wake_all(id);
            }
            Err(RecvError::Lagged(_)) => {
                waiters.wake_everybody();
                askers.wake_everybody();
            }
            Err(RecvError::Closed) => return,
        }
    }
}

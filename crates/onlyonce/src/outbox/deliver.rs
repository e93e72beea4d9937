//! The delivery worker: claims messages that are due, hands them to their publishers, and writes the results.
//!
//! Each target has a loop of its own, so that a slow or failing receiver holds up nobody else. No more
//! messages are claimed than can be sent at once: a claimed message never queues. Results are written in
//! groups of as many as have accumulated while the previous group was written.
//!
//! Deliberately absent: a leader. Every node may run the worker; a claim has one owner.

mod write;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use onlyonce_core::{
    Timestamp,
    outbox::{self, Next, Sent},
};
use onlyonce_store::{
    Outbox, StoreError, failpoint,
    outbox::{Claim, Claimed, Ending},
};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
};

use super::{Delivery, Parcel, Target, settle::Settled};
use crate::{clock::Moment, engine::Engine, stats::Background, transaction::Answer};
use write::ToWrite;

/// How much longer than the sending a claim lasts: the time to write the result. Sending begins within this
/// margin or not at all.
const CLAIM_MARGIN: Duration = Duration::from_secs(30);
/// Concurrent claims of one target: one is made durable while the next is prepared.
const CLAIMERS: usize = 2;
/// Messages in one claim.
const MAX_CLAIM: usize = 64;
/// How long a claim waits until half of its places are free.
const GATHER: Duration = Duration::from_millis(10);
/// The pause after the store failed.
const STORE_PAUSE: Duration = Duration::from_millis(500);
/// How long delivered messages are kept, by default.
const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 3_600);
/// How often old messages are searched for, and how many at a time.
const TIDY_EVERY: Duration = Duration::from_secs(10);
const TIDY_STRETCH: usize = 2_000;
/// The pause between two batches in which something was deleted.
const TIDY_PAUSE: Duration = Duration::from_millis(50);

/// The deliveries of one store.
#[derive(Clone)]
pub struct Deliveries {
    engine: Engine,
    outbox: Arc<dyn Outbox>,
    targets: Vec<Target>,
    keep: Duration,
}

impl std::fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deliveries")
            .field("targets", &self.targets)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

/// Running deliveries. Dropping this ends them; [`stop`](Self::stop) ends them gracefully.
#[derive(Debug)]
pub struct Running {
    stopping: watch::Sender<bool>,
    loops: JoinSet<()>,
}

impl Running {
    /// Claims nothing more, and waits for messages being sent.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        while self.loops.join_next().await.is_some() {}
    }
}

impl Deliveries {
    /// Deliveries of the engine's store, without targets yet. `None` if the store has no outbox.
    pub fn new(engine: &Engine) -> Option<Self> {
        Some(Self {
            outbox: engine.store().outbox()?,
            engine: engine.clone(),
            targets: Vec::new(),
            keep: DEFAULT_KEEP,
        })
    }

    /// Adds a receiver.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.engine.set_target(target.name.clone(), target.rules);
        self.targets.push(target);
        self
    }

    /// Sets how long delivered and discarded messages are kept.
    #[must_use]
    pub fn keep_delivered(self, keep: Duration) -> Self {
        Self { keep, ..self }
    }

    /// Delivers everything that is due now, once. Returns how many messages were claimed.
    ///
    /// # Errors
    /// A [`StoreError`] if messages could not be claimed; changes made until then stand.
    pub async fn run_once(&self) -> Result<usize, StoreError> {
        let mut sent = 0;
        for target in &self.targets {
            let lane = Lane::new(self, target);
            loop {
                let wanted = lane.wanted(target.at_once);
                let claimed = match lane.claim(&wanted).await {
                    Ok(claimed) => claimed,
                    Err(error) => {
                        lane.undo(&wanted, &error).await;
                        return Err(error);
                    }
                };
                if claimed.is_empty() {
                    break;
                }
                sent += claimed.len();
                let mut sending = JoinSet::new();
                for taken in claimed {
                    let lane = lane.clone();
                    sending.spawn(async move { lane.see_off(taken).await });
                }
                let mut endings = Vec::new();
                while let Some(ended) = sending.join_next().await {
                    endings.extend(ended.ok().flatten());
                }
                lane.write(&endings).await;
            }
        }
        Ok(sent)
    }

    /// Starts delivering: whenever a message is enqueued, and at this interval.
    pub fn start(self, every: Duration) -> Running {
        let (stopping, stop) = watch::channel(false);
        let mut loops = JoinSet::new();
        for target in &self.targets {
            loops.spawn(Lane::new(&self, target).run(every, stop.clone()));
        }
        loops.spawn(tidy(self.outbox.clone(), self.keep, stop));
        Running { stopping, loops }
    }
}

/// The deliveries to one target.
#[derive(Clone)]
struct Lane {
    engine: Engine,
    outbox: Arc<dyn Outbox>,
    target: Target,
    /// Notified when a message with an ordering key is done, so that the next one can follow immediately.
    gone: Arc<Notify>,
}

/// A claim, and when it was requested.
struct Wanted {
    claim: Claim,
    asked: Moment,
}

/// A message that has been claimed.
struct Taken {
    claimed: Claimed,
    /// When it was claimed, by the store's clock.
    began: Timestamp,
    /// A moment before that, by this machine's clocks.
    asked: Moment,
}

impl Lane {
    fn new(deliveries: &Deliveries, target: &Target) -> Self {
        Self {
            engine: deliveries.engine.clone(),
            outbox: deliveries.outbox.clone(),
            target: target.clone(),
            gone: Arc::default(),
        }
    }

    /// Delivers until told to stop.
    async fn run(self, every: Duration, stop: watch::Receiver<bool>) {
        let room = Arc::new(Semaphore::new(self.target.at_once.max(1)));
        let (endings, ended) = mpsc::channel(self.target.at_once.max(1));
        let writer = tokio::spawn(self.clone().write_down(ended));
        let mut claimers = JoinSet::new();
        for _ in 0..CLAIMERS {
            let (lane, room, endings) = (self.clone(), room.clone(), endings.clone());
            claimers.spawn(lane.keep_claiming(room, endings, every, stop.clone()));
        }
        drop(endings);
        while claimers.join_next().await.is_some() {}
        let _ = writer.await;
    }

    /// Claims and sends until told to stop, and then waits for messages being sent.
    async fn keep_claiming(
        self,
        room: Arc<Semaphore>,
        endings: mpsc::Sender<ToWrite>,
        every: Duration,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut arrivals = self.outbox.arrivals();
        let mut sending = JoinSet::new();
        let batch = (self.target.at_once / CLAIMERS).clamp(1, MAX_CLAIM);
        let half = u32::try_from(batch / 2).unwrap_or(u32::MAX);
        while !*stop.borrow_and_update() {
            arrivals.mark_unchanged();
            while sending.try_join_next().is_some() {}
            let free = tokio::select! {
                free = places(&room, half) => free,
                _ = stop.changed() => break,
            };
            // A semaphore that is never closed always gives out permits.
            let Some(mut free) = free else { break };
            while free.num_permits() < batch
                && let Ok(one) = room.clone().try_acquire_owned()
            {
                free.merge(one);
            }
            let most = free.num_permits();
            let wanted = self.wanted(most);
            let found = match self.claim(&wanted).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    let target = &*self.target.name;
                    tracing::warn!(%error, target, "messages could not be claimed; tried again soon");
                    drop(free);
                    tokio::select! {
                        () = self.undo(&wanted, &error) => {}
                        _ = stop.wait_for(|stop| *stop) => {}
                    }
                    continue;
                }
            };
            let count = found.len();
            // An unread payload cuts a claim short.
            let cut_short = found.iter().any(|taken| taken.claimed.unread);
            for taken in found {
                let Some(place) = free.split(1) else { break };
                let (lane, endings) = (self.clone(), endings.clone());
                sending.spawn(async move {
                    let ordered = taken.claimed.message.ordering_key.is_some();
                    match lane.see_off(taken).await {
                        // The writer outlives its senders.
                        Some(ending) => drop(endings.send(ToWrite { ending, ordered }).await),
                        None if ordered => lane.gone.notify_one(),
                        None => {}
                    }
                    // The next batch is claimed while this one is written. A writer that falls behind delays
                    // the batches after it.
                    drop(place);
                });
            }
            drop(free);
            // A full claim means that there is more.
            if count < most && !cut_short {
                tokio::select! {
                    _ = arrivals.changed() => {}
                    _ = tokio::time::sleep(every) => {}
                    () = self.gone.notified() => {}
                    _ = stop.changed() => {}
                }
            }
        }
        while sending.join_next().await.is_some() {}
    }

    fn wanted(&self, most: usize) -> Wanted {
        let claim = Claim {
            target: self.target.name.to_string(),
            limit: most,
            lease: self.target.timeout + CLAIM_MARGIN,
            attempt: self.engine.fresh_attempt(),
        };
        let asked = self.engine.moment();
        Wanted { claim, asked }
    }

    async fn claim(&self, wanted: &Wanted) -> Result<Vec<Taken>, StoreError> {
        let reply = self.outbox.claim(&wanted.claim).await?;
        let (began, asked) = (reply.now, wanted.asked);
        let taken = |claimed| Taken {
            claimed,
            began,
            asked,
        };
        Ok(reply.value.into_iter().map(taken).collect())
    }

    /// Pauses after a failed claim. If the claim may have taken effect, its messages are returned: nobody has
    /// sent them, but once the claim has lapsed they would count as possibly sent.
    async fn undo(&self, wanted: &Wanted, error: &StoreError) {
        let Wanted { claim, asked } = wanted;
        tokio::time::sleep(STORE_PAUSE).await;
        while error.is_ambiguous() && asked.is_within(claim.lease, self.engine.moment()) {
            match self.outbox.give_back(&claim.target, claim.attempt).await {
                Ok(()) => return,
                Err(error) => {
                    let target = &*self.target.name;
                    tracing::warn!(%error, target, "a claim without an answer could not be given back; tried again");
                    tokio::time::sleep(STORE_PAUSE).await;
                }
            }
        }
    }

    /// Sends one message, unless its past forbids it, and returns the result to write; `None` if it has been
    /// written, together with the key that the message settles.
    async fn see_off(&self, taken: Taken) -> Option<Ending> {
        let Taken {
            claimed,
            began,
            asked,
        } = taken;
        let tried = claimed.tried;
        let started = self.engine.moment().since_boot();
        let rules = &self.target.rules;
        let (next, answer) = match outbox::before_sending(tried, began, rules) {
            Some(next) => (next, None),
            None => {
                let (sent, answer) = self.send(&claimed, asked).await;
                let now = began.plus(self.engine.moment().since_boot().saturating_sub(started));
                let (settles, random) = (claimed.message.settles.is_some(), self.random());
                let sent = sent.for_its_key(settles, answer.is_some());
                let next = outbox::after_sending(tried, began, sent, now, rules, random);
                (next, answer)
            }
        };
        self.tell(&claimed, &next);
        let ending = Ending {
            id: claimed.id,
            number: claimed.number,
            attempt: claimed.attempt,
            next,
        };
        let settled = self
            .engine
            .settle_message(&*self.outbox, &claimed, &ending, answer);
        match settled.await {
            Settled::Together => None,
            Settled::OnItsOwn => Some(ending),
        }
    }

    async fn send(&self, claimed: &Claimed, asked: Moment) -> (Sent, Option<Answer>) {
        let message = &claimed.message;
        let Ok(headers) = serde_json::from_str::<BTreeMap<String, String>>(&message.headers) else {
            let reason = "its headers are not an object of name to string".to_owned();
            return (Sent::Refused(reason), None);
        };
        let payload = match claimed.unread {
            false => Bytes::from(message.payload.clone()),
            // The attempt is counted: a payload that can never be read in time is given up like any other
            // message.
            true => match self.outbox.payload(claimed.number, claimed.attempt).await {
                Ok(Some(payload)) => Bytes::from(payload),
                Ok(None) => return (Sent::NotSent("the claim was lost".to_owned()), None),
                Err(error) => {
                    let reason = format!("its payload could not be read: {error}");
                    return (Sent::NotSent(reason), None);
                }
            },
        };
        let parcel = Parcel {
            id: claimed.id,
            target: self.target.name.clone(),
            kind: message.kind.clone(),
            aggregate: message.aggregate.clone(),
            ordering_key: message.ordering_key.clone(),
            key: message.downstream_key.clone().unwrap_or_default(),
            headers,
            payload,
            attempt: claimed.tried.attempts,
            created_at: claimed.created_at,
        };
        failpoint!("outbox.send.before");
        // After a pause of this process, another worker may have the message, or a person may have decided.
        if !asked.is_within(CLAIM_MARGIN, self.engine.moment()) {
            return (
                Sent::NotSent("the claim is too old to send".to_owned()),
                None,
            );
        }
        let sending = self.target.publisher.publish(&parcel);
        let delivery = tokio::time::timeout(self.target.timeout, sending).await;
        failpoint!("outbox.send.after");
        let late = || Delivery::Unclear("no answer in time".to_owned());
        delivery.unwrap_or_else(|_| late()).apart()
    }

    fn random(&self) -> u64 {
        // The low half of a random number.
        self.engine.fresh_attempt().0 as u64
    }

    /// Counts and logs the result.
    fn tell(&self, claimed: &Claimed, next: &Next) {
        let (target, id, attempts) = (&*self.target.name, claimed.id, claimed.tried.attempts);
        match next {
            Next::Delivered { .. } => Background::Delivered.count(1),
            Next::Again { reason, .. } => {
                Background::NotDelivered.count(1);
                tracing::info!(%id, target, attempts, reason, "a message was not delivered; it is sent again");
            }
            Next::Dead { reason, .. } => {
                Background::NotDelivered.count(1);
                tracing::error!(%id, target, attempts, reason, "a message was given up: a person has to decide");
            }
            Next::Unknown { reason } => {
                Background::NotDelivered.count(1);
                tracing::error!(%id, target, attempts, reason, "nobody knows whether a message was delivered: a person has to decide");
            }
        }
    }
}

/// Permits for the next claim: enough to be worth a claim, or with slow receivers whatever there is.
async fn places(room: &Arc<Semaphore>, half: u32) -> Option<OwnedSemaphorePermit> {
    let enough = room.clone().acquire_many_owned(half.max(1));
    match tokio::time::timeout(GATHER, enough).await {
        Ok(places) => places.ok(),
        Err(_) => room.clone().acquire_owned().await.ok(),
    }
}

/// Sleeps, unless told to stop.
async fn pause(length: Duration, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = tokio::time::sleep(length) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Deletes old messages at intervals.
async fn tidy(outbox: Arc<dyn Outbox>, keep: Duration, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        match outbox.tidy(keep, TIDY_STRETCH).await {
            // The walk continues where it was.
            Ok(deleted) if deleted > 0 => pause(TIDY_PAUSE, &mut stop).await,
            Ok(_) => pause(TIDY_EVERY, &mut stop).await,
            Err(error) => {
                tracing::warn!(%error, "old messages could not be deleted; tried again");
                pause(TIDY_EVERY, &mut stop).await;
            }
        }
    }
}

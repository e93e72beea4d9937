//! Whether the store is the one that this process knows. No other code answers that question.
//!
//! A store that was emptied, restored from a backup or exchanged for another has lost keys, and their retries
//! would be executed again. A store therefore has an identity, which stays, and an epoch, which only rises.
//! After reserving keys this process raises the epoch, within seconds. It remembers what it saw last, and
//! looks again every [`LOOK_EVERY`]. With a spool, what it saw outlives the process. The spool is written
//! once the store has made it durable, so that the spool is never ahead of the store.
//!
//! A process that finds that the store has gone back, or at its start that it is another store, notes that in
//! the store, so that all gateways know. From then on new keys wait as [`machine::new_key`] says. If the
//! store was emptied or exchanged under a running process, that process takes no keys at all, since it knows
//! another secret.
//!
//! A failover to a lagging replica loses the newest epochs, at most [`MAY_BE_LOST`], where the store's level
//! permits that.
//!
//! Deliberately absent: any judgement of single records. The records of a restored store are trusted.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use onlyonce_core::{
    AttemptId, Policy, RecordId, Timestamp,
    machine::{self, History, NewKey},
    record::{Actor, Evidence, JournalEntry, JournalEvent},
};
use onlyonce_store::{
    Epoch, Level, Loss, Reply, Standing, StoreError, Unfit,
    identity::{Hex, IDENTITY_BYTES, Numbered},
};
use parking_lot::Mutex;

use super::{Arrival, Engine, Unavailable};
use crate::{reconcile::Judged as Heard, spool::Spool, stats::Amount};

/// How often the process looks at the store.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How much of its newest writes a failover may lose if the store's level is below sync.
const MAY_BE_LOST: Duration = Duration::from_secs(60);

/// What is known of the store, and whether that still holds.
#[derive(Default)]
pub(super) struct KnownStore {
    last: Mutex<Option<Known>>,
    /// Why the store must not be used.
    unfit: Mutex<Option<Unfit>>,
    /// The store's losses, as last read.
    history: Mutex<History>,
    /// Whether keys are missing and no operator has accepted that: the only check a request usually makes.
    has_lost: AtomicBool,
    /// Whether a key has been reserved since the epoch was last raised.
    reserved: AtomicBool,
}

/// What was last seen of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) identity: [u8; IDENTITY_BYTES],
    pub(crate) epoch: Epoch,
    /// The durability of acknowledged writes at that time.
    pub(crate) level: Level,
    /// The record number reached when the epoch was last raised: the number is as durable as the epoch.
    pub(crate) numbered: Option<Numbered>,
}

/// The result of a look at the store.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judged {
    /// The store is the known one and complete.
    Same,
    /// Something is missing, and that has been noted, or an operator has accepted it.
    Known,
    /// Something is missing, for this reason, and that has not been noted yet.
    Lost(Loss, String),
    /// The store must not be used.
    Not(Unfit),
}

impl Known {
    /// Compares `standing` with what is known. While `is_starting`, nothing has been derived from another
    /// store's secret yet, so another store may have taken the place of the known one.
    fn judge(&self, standing: &Standing, is_starting: bool) -> Judged {
        let history = &standing.history;
        let is_known = |loss| history.accepted_at.max(loss) > Some(self.epoch.at);
        let lost = |why| match is_known(history.lost_at) {
            true => Judged::Known,
            false => Judged::Lost(Loss::Any, why),
        };
        let Some(identity) = standing.identity else {
            return Judged::Not(emptied());
        };
        if identity != self.identity {
            return match is_starting {
                true => lost(another(self.identity, identity)),
                false => Judged::Not(exchanged(self.identity, identity)),
            };
        }
        let epoch = standing.epoch.unwrap_or_default();
        if epoch.count >= self.epoch.count {
            return match self.began_anew(standing) {
                true => lost(went_back(self.epoch.at, None)),
                false => Judged::Same,
            };
        }
        let why = went_back(self.epoch.at, standing.epoch);
        let behind = self.epoch.at.0.saturating_sub(epoch.at.0);
        let may_be_lost = i64::try_from(MAY_BE_LOST.as_millis()).unwrap_or(i64::MAX);
        match self.level < Level::Sync && behind <= may_be_lost {
            true if is_known(history.lost_at.max(history.newest_lost_at)) => Judged::Known,
            true => Judged::Lost(Loss::Newest, why),
            false => lost(why),
        }
    }

    /// Whether record numbers have restarted on the same server: the table was emptied.
    fn began_anew(&self, standing: &Standing) -> bool {
        let (Some(before), Some(now)) = (&self.numbered, &standing.numbered) else {
            return false;
        };
        // If a crash may lose the newest writes, it may lose the newest numbers.
        let least = match self.level {
            Level::Sync => before.next,
            _ => before.next / 2,
        };
        before.server == now.server && now.next < least
    }
}

const AGAIN: &str = "retries of requests that were executed before would execute again";

fn emptied() -> Unfit {
    Unfit::forgot(format!(
        "the store has lost its records: its tables were dropped or emptied, and {AGAIN}; what to do: \
         restore the database, or make a new store with `onlyonce migrate --store URL`, and start the \
         gateways again"
    ))
}

fn another(known: [u8; IDENTITY_BYTES], found: [u8; IDENTITY_BYTES]) -> String {
    let (known, found) = (Hex(known), Hex(found));
    format!(
        "this is another store: its identity is {found}, and that of the one which this gateway knows is \
         {known}"
    )
}

fn exchanged(known: [u8; IDENTITY_BYTES], found: [u8; IDENTITY_BYTES]) -> Unfit {
    let another = another(known, found);
    Unfit::forgot(format!(
        "{another}; {AGAIN}; what to do: bring the store back, or start the gateways again on this one"
    ))
}

fn went_back(known: Timestamp, found: Option<Epoch>) -> String {
    let known = date(known);
    match found.filter(|found| found.count > 0) {
        Some(found) => format!(
            "the store has gone back to {}, and this gateway knows it as of {known}: a backup was \
             restored, or writes that it had acknowledged are lost",
            date(found.at)
        ),
        None => format!(
            "the store has lost keys that it held at {known}: its tables were emptied, or a backup from \
             before was restored"
        ),
    }
}

/// The message to an operator about a store that has lost keys.
fn told(lost_at: Timestamp) -> String {
    format!(
        "the store has lost keys, which was recognised at {}, and {AGAIN}: new keys wait for one `ttl` from \
         then on, unless the provider denies them; what to do: bring the store back, or, if what is missing \
         is to be missed, say so with `onlyonce migrate --store URL --accept-incomplete` or `POST \
         /store/accept-loss`",
        date(lost_at)
    )
}

fn date(at: Timestamp) -> String {
    let since_1970 = Duration::from_millis(u64::try_from(at.0).unwrap_or_default());
    httpdate::fmt_http_date(std::time::UNIX_EPOCH + since_1970)
}

impl KnownStore {
    fn refuse(&self, why: &Unfit) {
        if self.unfit.lock().replace(why.clone()).is_none() {
            tracing::error!("the store must not be used: {why}");
        }
    }

    /// Adopts the losses that the store reports.
    fn take(&self, history: History) {
        let before = std::mem::replace(&mut *self.history.lock(), history);
        let lost_since = history.lost_since();
        self.has_lost.store(lost_since.is_some(), Ordering::Release);
        match (before.lost_since(), lost_since) {
            (before, Some(at)) if before != Some(at) => tracing::error!("{}", told(at)),
            (Some(_), None) => {
                tracing::warn!("an operator has accepted that the store has lost keys: going on");
            }
            _ => {}
        }
    }

    /// Notes that a key was reserved, so that the epoch will be raised.
    pub(super) fn reserved(&self) {
        self.reserved.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// Why the store must not be used, if it is not the known one or has gone back.
    pub fn store_is_unfit(&self) -> Option<Unfit> {
        self.0.known_store.unfit.lock().clone()
    }

    /// Fails immediately while the store is not the known one.
    pub(super) fn unless_unfit(&self) -> Result<(), Unavailable> {
        match self.store_is_unfit() {
            Some(unfit) => Err(Unavailable(StoreError::Unavailable(Box::new(unfit)))),
            None => Ok(()),
        }
    }

    /// Loads what an earlier process knew of the store, and checks whether that still holds. Call this before
    /// the first request; otherwise the background loops check.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be reached, or is not the known one.
    pub async fn meet_store(&self) -> Result<(), StoreError> {
        if let Some(spool) = self.spool().cloned() {
            let recalled = tokio::task::spawn_blocking(move || spool.known_store()).await;
            let recalled = recalled.map_err(std::io::Error::other).flatten();
            let unreadable = |error: std::io::Error| StoreError::Unavailable(Box::new(error));
            *self.0.known_store.last.lock() = recalled.map_err(unreadable)?;
        }
        self.recognise(true).await?;
        self.unless_unfit().map_err(|Unavailable(error)| error)
    }

    /// Checks that the store is the known one, and raises its epoch if keys were reserved. The background
    /// loops call this.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be reached.
    pub async fn look_at_store(&self) -> Result<(), StoreError> {
        self.recognise(false).await
    }

    async fn recognise(&self, is_starting: bool) -> Result<(), StoreError> {
        let (store, known) = (&self.0.store, &self.0.known_store);
        // Before the look: a loss between the two is then known to be missing.
        let level = store.level();
        let standing = self.bounded_read(store.standing()).await;
        let standing = standing.inspect_err(|error| {
            if let Some(why) = error.unfit() {
                known.refuse(why);
            }
        });
        let Some(standing) = standing? else {
            return Ok(());
        };
        let identity = store.identity().id();
        let last = known.last.lock().clone();
        let begins = Known {
            identity,
            epoch: Epoch::default(),
            level,
            numbered: None,
        };
        let judged = last
            .as_ref()
            .unwrap_or(&begins)
            .judge(&standing, is_starting);
        let mut standing = standing;
        match &judged {
            Judged::Not(why) => {
                known.refuse(why);
                return Ok(());
            }
            Judged::Lost(loss, why) => {
                tracing::error!("{why}");
                // Nothing is reserved here until every process can read the note.
                known.refuse(&Unfit::forgot(format!("{why}; {AGAIN}")));
                self.bounded_read(store.note_lost(*loss)).await?;
                let noted = self.bounded_read(store.standing()).await?;
                let history = noted.map(|noted| noted.history);
                standing.history = history.unwrap_or(standing.history);
            }
            Judged::Known | Judged::Same => {}
        }
        known.take(standing.history);
        let was_reserved = known.reserved.swap(false, Ordering::Relaxed);
        let (epoch, numbered) = match last.as_ref() {
            Some(last) if !was_reserved && judged == Judged::Same => {
                (standing.epoch.unwrap_or_default(), last.numbered.clone())
            }
            _ => {
                let raised = self.bounded_read(store.raise_epoch()).await;
                let raised = raised.inspect_err(|_| known.reserved())?;
                (raised, standing.numbered)
            }
        };
        let now = Known {
            identity,
            epoch,
            level,
            numbered,
        };
        *known.last.lock() = Some(now.clone());
        if known.unfit.lock().take().is_some() {
            tracing::warn!("the store may be used again");
        }
        if let Some(spool) = self.spool().cloned()
            && last.as_ref() != Some(&now)
        {
            keep(spool, now).await;
        }
        self.measure_loss().await
    }
}

impl Engine {
    /// The store's losses, as last read.
    pub fn history(&self) -> History {
        *self.0.known_store.history.lock()
    }

    /// The message to an operator about lost keys whose loss nobody has accepted.
    pub fn history_loss(history: &History) -> Option<String> {
        history.lost_since().map(told)
    }

    /// Accepts that the store has lost keys: retries of the missing ones are executed again.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be written.
    pub async fn accept_loss(&self, reason: &str) -> Result<(), StoreError> {
        let store = &self.0.store;
        self.bounded_read(store.append(vec![loss_accepted(reason)]))
            .await?;
        self.bounded_read(store.accept_incomplete()).await?;
        self.look_at_store().await
    }

    /// When the store lost keys, unless an operator has accepted the loss.
    pub(super) fn lost_since(&self) -> Option<Timestamp> {
        let known = &self.0.known_store;
        let has_lost = known.has_lost.load(Ordering::Acquire);
        has_lost.then(|| known.history.lock().lost_since())?
    }

    /// Fails if a loss of keys was detected since `before`: what was reserved in the meantime may be among
    /// them.
    pub(super) fn unless_lost_since(&self, before: Option<Timestamp>) -> Result<(), Unavailable> {
        match self.lost_since() {
            Some(at) if Some(at) != before => {
                let unfit = Unfit::forgot(told(at));
                Err(Unavailable(StoreError::Unavailable(Box::new(unfit))))
            }
            _ => Ok(()),
        }
    }

    /// Whether a key that the store does not know may be treated as new.
    pub(super) async fn may_be_new(
        &self,
        arrival: &mut Arrival,
        policy: &Policy,
    ) -> Result<bool, Unavailable> {
        if !self.0.known_store.has_lost.load(Ordering::Acquire) {
            return Ok(true);
        }
        let looked = self.bounded_read(self.0.store.lookup(arrival.id())).await;
        let Reply { now, value } = self.only_looked(looked)?;
        if value.is_some() {
            return Ok(true);
        }
        match machine::new_key(&self.history(), now, policy) {
            NewKey::Execute => Ok(true),
            NewKey::OnlyIfDenied(from) if from <= now && self.store_clock().is_steady() => {
                self.is_denied(arrival, policy).await
            }
            NewKey::OnlyIfDenied(_) | NewKey::Wait => Ok(false),
        }
    }

    /// Whether the provider denies a key that is absent from the store, by a query that is known to find
    /// keys.
    async fn is_denied(&self, arrival: &mut Arrival, policy: &Policy) -> Result<bool, Unavailable> {
        let Some(provider) = self.0.provider.read().clone() else {
            return Ok(false);
        };
        let request = arrival.request(AttemptId::NOBODY, &policy.recipe);
        let record = machine::first(&request, policy).record;
        let answer = provider.ask(&record).await;
        let Some(question) = answer.question else {
            return Ok(false);
        };
        let proven = match answer.judged {
            Heard::Says(Evidence::NotExecuted) => self.is_proven(&record.route, &question).await,
            Heard::Says(Evidence::Completed(_)) => {
                let proven = self.prove(&record.route, &question).await;
                proven.map(|()| false)
            }
            _ => Ok(false),
        };
        self.only_looked(proven)
    }

    /// Sets the gauge that tells whether keys may be missing that some policy would still remember.
    async fn measure_loss(&self) -> Result<(), StoreError> {
        let history = self.history();
        let is_felt = match history.lost_since() {
            None => false,
            Some(_) => {
                let now = self.store_now().await?;
                let policies = self.0.policies.read();
                policies.values().any(|policy| history.is_felt(now, policy))
            }
        };
        Amount::HistoryLost.set(u64::from(is_felt));
        Ok(())
    }
}

/// The journal row about an operator who accepts a loss. It belongs to no key.
pub fn loss_accepted(reason: &str) -> JournalEntry {
    JournalEntry {
        id: RecordId([0; 16]),
        event: JournalEvent::LossAccepted,
        from: None,
        to: None,
        attempt: 0,
        actor: Actor::Operator,
        detail: Some(reason.to_owned()),
    }
}

/// Saves what is known for the next process. What that process does not learn, it does not hold against the
/// store.
async fn keep(spool: Spool, known: Known) {
    let kept = tokio::task::spawn_blocking(move || spool.keep_known_store(&known)).await;
    if let Err(error) = kept.map_err(std::io::Error::other).flatten() {
        tracing::warn!(%error, "what is known of the store could not be kept in the spool");
    }
}

#[cfg(test)]
mod tests;

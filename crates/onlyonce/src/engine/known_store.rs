//! Whether the store is the one that we know. The one owner of that question.
//!
//! A store that was emptied, restored from a backup or exchanged for another has forgotten keys, and their
//! retries would be executed again. So the store has an identity, which stays, and an epoch, which only
//! rises: this process raises it every few seconds in which it has reserved keys, remembers what it saw
//! last, and looks again every [`LOOK_EVERY`]. A store that is another, or has gone back, takes no new keys
//! until an operator says that what is missing is to be missed (`onlyonce migrate --accept-incomplete`).
//! Where there is a spool, what was seen last outlives the process.
//!
//! A failover to a replica that lags takes the newest epochs with it. Where the store's level said that this
//! may happen, [`MAY_BE_LOST`] of them are no reason to stop.
//!
//! Deliberately absent: any judgement of single records. What a restored store holds is held to be true.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use onlyonce_core::Timestamp;
use onlyonce_store::{
    Epoch, Level, Standing, StoreError, Unfit,
    identity::{Hex, IDENTITY_BYTES, Numbered},
};
use parking_lot::Mutex;

use super::{Engine, Unavailable};
use crate::spool::Spool;

/// How often the store is looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How much of the newest a failover may take with it, where the store's level is below sync.
const MAY_BE_LOST: Duration = Duration::from_secs(60);

/// What is known of the store, and whether it still is so.
#[derive(Default)]
pub(super) struct KnownStore {
    last: Mutex<Option<Known>>,
    /// Why the store must not be used.
    unfit: Mutex<Option<Unfit>>,
    /// Whether a key was reserved since the epoch was last raised.
    reserved: AtomicBool,
}

/// What was seen of a store last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) identity: [u8; IDENTITY_BYTES],
    pub(crate) epoch: Epoch,
    /// What acknowledged writes survived then.
    pub(crate) level: Level,
    /// How far the records were numbered when the epoch was last raised: that number is as durable.
    pub(crate) numbered: Option<Numbered>,
}

/// What a look at the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judged {
    /// It is the one, and has all that was known.
    Same,
    /// It is the one, and a failover took the newest with it, as its level said that one may.
    Lagged,
    /// Something is missing, and an operator has accepted that.
    Accepted,
    /// It must not be used.
    Not(Unfit),
}

impl Known {
    /// What `standing` says of this store. `is_starting` says that nothing was derived from another store's
    /// secret yet, so that an operator may have put another one in its place.
    fn judge(&self, standing: &Standing, is_starting: bool) -> Judged {
        let accepted = standing.accepted_at > Some(self.epoch.at);
        let Some(identity) = standing.identity else {
            return Judged::Not(emptied());
        };
        if identity != self.identity {
            return match is_starting && accepted {
                true => Judged::Accepted,
                false => Judged::Not(another(self.identity, identity)),
            };
        }
        if accepted {
            return Judged::Accepted;
        }
        let epoch = standing.epoch.unwrap_or_default();
        if epoch.count >= self.epoch.count {
            return match self.began_anew(standing) {
                true => Judged::Not(went_back(self.epoch.at, None)),
                false => Judged::Same,
            };
        }
        let behind = self.epoch.at.0.saturating_sub(epoch.at.0);
        let may_be_lost = i64::try_from(MAY_BE_LOST.as_millis()).unwrap_or(i64::MAX);
        match self.level < Level::Sync && behind <= may_be_lost {
            true => Judged::Lagged,
            false => Judged::Not(went_back(self.epoch.at, standing.epoch)),
        }
    }

    /// Whether the numbers of the records begin anew, on the same server: their table was emptied.
    fn began_anew(&self, standing: &Standing) -> bool {
        let (Some(before), Some(now)) = (&self.numbered, &standing.numbered) else {
            return false;
        };
        // Where a crash may lose the newest writes, it may lose the newest numbers.
        let least = match self.level {
            Level::Sync => before.next,
            _ => before.next / 2,
        };
        before.server == now.server && now.next < least
    }
}

const WHAT_TO_DO: &str = "retries of requests that were executed before would execute again; what to do: bring \
     the store back, or, if what is missing is to be missed, say so with `onlyonce migrate --store URL \
     --accept-incomplete`";

fn emptied() -> Unfit {
    Unfit::new(
        "the store has lost its records: its tables were dropped or emptied, and retries of requests that \
         were executed before would execute again; what to do: restore the database, or make a new store \
         with `onlyonce migrate --store URL`, and start the gateways again",
    )
}

fn another(known: [u8; IDENTITY_BYTES], found: [u8; IDENTITY_BYTES]) -> Unfit {
    let (known, found) = (Hex(known), Hex(found));
    Unfit::new(format!(
        "this is another store: its identity is {found}, and that of the one which this gateway knows is \
         {known}; {WHAT_TO_DO}, and start the gateways again"
    ))
}

fn went_back(known: Timestamp, found: Option<Epoch>) -> Unfit {
    let known = date(known);
    let what = match found.filter(|found| found.count > 0) {
        Some(found) => format!(
            "the store has gone back to {}, and this gateway knows it as of {known}: a backup was \
             restored, or writes that it had acknowledged are lost",
            date(found.at)
        ),
        None => format!(
            "the store has lost keys that it held at {known}: its tables were emptied, or a backup from \
             before was restored"
        ),
    };
    Unfit::new(format!("{what}; {WHAT_TO_DO}"))
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

    /// A key was reserved: the epoch is worth raising.
    pub(super) fn reserved(&self) {
        self.reserved.store(true, Ordering::Relaxed);
    }
}

impl Engine {
    /// Why the store must not be used, where it is not the one that was known, or has gone back.
    pub fn store_is_unfit(&self) -> Option<Unfit> {
        self.0.known_store.unfit.lock().clone()
    }

    /// An error at once, while the store is not the one that is known.
    pub(super) fn unless_unfit(&self) -> Result<(), Unavailable> {
        match self.store_is_unfit() {
            Some(unfit) => Err(Unavailable(StoreError::Unavailable(Box::new(unfit)))),
            None => Ok(()),
        }
    }

    /// Recalls what a process before this one knew of the store, and looks whether that still is so. To be
    /// called before the first request; whoever does not is told by the background loops.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be asked, or is not the one that was known.
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

    /// Looks whether the store is the one that is known, and raises its epoch where keys were reserved. The
    /// background loops do.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be asked.
    pub async fn look_at_store(&self) -> Result<(), StoreError> {
        self.recognise(false).await
    }

    async fn recognise(&self, is_starting: bool) -> Result<(), StoreError> {
        let (store, known) = (&self.0.store, &self.0.known_store);
        // Before the look: what falls between the two is known to be missing.
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
        match &judged {
            Judged::Not(why) => {
                known.refuse(why);
                return Ok(());
            }
            Judged::Lagged => tracing::error!(
                "the store has lost the newest writes in a failover, as its level said that it may"
            ),
            Judged::Accepted => tracing::warn!(
                "the store lacks what it had, and an operator has accepted that: going on"
            ),
            Judged::Same => {}
        }
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
        Ok(())
    }
}

/// Keeps what is known for the next process. What it does not learn, it does not hold against the store.
async fn keep(spool: Spool, known: Known) {
    let kept = tokio::task::spawn_blocking(move || spool.keep_known_store(&known)).await;
    if let Err(error) = kept.map_err(std::io::Error::other).flatten() {
        tracing::warn!(%error, "what is known of the store could not be kept in the spool");
    }
}

#[cfg(test)]
mod tests;

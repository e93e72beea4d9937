//! Redis as a cache: a few bytes under a name for a while, within a bounded time, or nothing.
//!
//! A server that fails is left alone for a while, so that it costs one caller in a while its patience,
//! and the others nothing.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use redis::Value;
use tokio::time::Instant;

use onlyonce_core::RecordId;

use crate::BoxError;

use super::{
    OpenError,
    address::Address,
    failure::Failure,
    layout,
    net::{Does, Net, Use},
    scan::bytes,
    script::{Call, PUT},
};

/// How long one call may take before it counts as unanswered.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// What a cache throws away, or loses with a master, is asked for again.
const OF_A_CACHE: Use = Use {
    timeout: PATIENCE,
    allow_eviction: true,
    is_fenced: false,
};
/// How long a server that failed is not asked.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(1);

/// Whether an entry may take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replace {
    /// Only where there is none.
    Nothing,
    /// Any but one that says that the answer was taken away.
    Older,
}

/// A cache on Redis or Valkey, any of the kinds that a store can be on.
pub(crate) struct Cache {
    net: Arc<Net>,
    prefix: String,
    left_alone_until: Mutex<Option<Instant>>,
}

impl Cache {
    /// The cache of the store `name` at `url`. Nothing is connected to before it is needed.
    pub(crate) fn new(url: &str, name: &str) -> Result<Self, OpenError> {
        let address = Address::parse(url).map_err(OpenError::Url)?;
        Ok(Self {
            prefix: format!("{}:cache:{name}", address.prefix),
            net: Arc::new(Net::new(address, OF_A_CACHE)),
            left_alone_until: Mutex::new(None),
        })
    }

    fn name(&self, id: RecordId) -> Vec<u8> {
        // In hexadecimal: braces in a name would change its slot.
        format!("{}:{:032x}", self.prefix, u128::from_be_bytes(id.0)).into_bytes()
    }

    async fn call(&self, id: RecordId, call: &Call, does: Does) -> Result<Value, Failure> {
        let slot = layout::slot(&self.name(id));
        let outcome = tokio::time::timeout(PATIENCE, self.net.call(slot, call, does)).await;
        let late = || Err(Failure::Lost("the cache did not answer in time".into()));
        let outcome = outcome.unwrap_or_else(|_| late());
        *self.left_alone_until.lock() = match &outcome {
            Ok(_) => None,
            Err(_) => Some(Instant::now() + LEFT_ALONE_FOR),
        };
        outcome
    }

    fn is_left_alone(&self) -> bool {
        let until = *self.left_alone_until.lock();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// What lies under `id`; nothing if it cannot be found out in time.
    pub(crate) async fn take(&self, id: RecordId) -> Option<Vec<u8>> {
        if self.is_left_alone() {
            return None;
        }
        let call = Call::plain("GET").arg(self.name(id));
        bytes(self.call(id, &call, Does::Read).await.ok())
    }

    /// Puts `entry` under `id`, if that can be done in time. Whether it was is of no account.
    pub(crate) async fn put(&self, id: RecordId, entry: &[u8], stays: Duration, replace: Replace) {
        if self.is_left_alone() {
            return;
        }
        let may_replace = u8::from(replace == Replace::Older);
        let call = PUT.call(&[self.name(id)]).arg(entry);
        let call = call.arg(millis(stays)).arg(may_replace);
        let _ = self.call(id, &call, Does::Write).await;
    }

    /// Notes that the answer under `id` was taken away, whatever lies there, or says that it could not.
    pub(crate) async fn take_away(&self, id: RecordId, stays: Duration) -> Result<(), BoxError> {
        let call = Call::plain("SET").arg(self.name(id)).arg("-");
        let call = call.arg("PX").arg(millis(stays));
        match self.call(id, &call, Does::Write).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(error) | Failure::Lost(error)) => Err(error),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

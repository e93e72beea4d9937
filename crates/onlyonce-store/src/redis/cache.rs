//! Redis as a cache: a few bytes under a name for a while, within a bounded time, or nothing.
//!
//! After a failure the server is not asked for a while, so that only one caller per pause waits for it.

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

/// The timeout of one call.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// A cache may evict entries or lose them with a master; they are fetched again.
const OF_A_CACHE: Use = Use {
    timeout: PATIENCE,
    allow_eviction: true,
    is_fenced: false,
};
/// How long a failed server is not asked.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(1);

/// Whether an entry may replace another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replace {
    /// Only if there is none.
    Nothing,
    /// Any entry but one that says that the answer was withdrawn.
    Older,
}

/// A cache on Redis or Valkey, in any topology that a store supports.
pub(crate) struct Cache {
    net: Arc<Net>,
    prefix: String,
    left_alone_until: Mutex<Option<Instant>>,
}

impl Cache {
    /// The cache of the store `name` at `url`. Connects on first use.
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

    /// The entry under `id`; `None` if the answer is not in time.
    pub(crate) async fn take(&self, id: RecordId) -> Option<Vec<u8>> {
        if self.is_left_alone() {
            return None;
        }
        let call = Call::plain("GET").arg(self.name(id));
        bytes(self.call(id, &call, Does::Read).await.ok())
    }

    /// Puts `entry` under `id`, if that succeeds in time. A failure does not matter.
    pub(crate) async fn put(&self, id: RecordId, entry: &[u8], stays: Duration, replace: Replace) {
        if self.is_left_alone() {
            return;
        }
        let may_replace = u8::from(replace == Replace::Older);
        let call = PUT.call(&[self.name(id)]).arg(entry);
        let call = call.arg(millis(stays)).arg(may_replace);
        let _ = self.call(id, &call, Does::Write).await;
    }

    /// Marks the answer under `id` as withdrawn, whatever the entry is, or returns why not.
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

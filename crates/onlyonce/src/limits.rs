//! Per-client limits on shared resources: new keys per second, live keys, lookups of keys, bytes held for the
//! client, and executions that it no longer waits for.
//!
//! The engine checks them before it reserves. Known keys are not affected: replays, waiters and retries of a
//! released key take nothing.
//!
//! Deliberately absent: coordination between nodes. Each process counts for itself, so N nodes together allow
//! a client up to N times its rate. Live keys are counted in the store.

mod age;
mod body_budget;
mod bucket;
mod clients;
mod detached;
mod holder;
mod live;
mod presence;

use std::{sync::Arc, time::Duration};

use onlyonce_core::CallerMark;

pub use age::is_too_old;
pub use body_budget::{BodyBudget, DEFAULT_HELD_BYTES, Held, NoRoom, UNCOUNTED_BYTES};
pub use bucket::{Bucket, Rate};
use clients::Clients;
pub(crate) use detached::{Attendance, DetachedExecutions};
pub use holder::{ConnectionId, Holder};
use live::LiveKeys;
pub(crate) use live::LivePlace;
pub use presence::Presence;

/// A client, for the purpose of limits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// An authenticated client, by its id.
    Named(Arc<str>),
    /// A caller distinguished by what it sends; callers who send nothing count as one client.
    Marked(Option<CallerMark>),
}

/// Why a request may not bring a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// The request is too old, or does not say how old it is.
    TooOld,
    /// The client is too fast; it may try again after this long.
    Rate(Duration),
    /// The client has too many live keys.
    Quota,
    /// Too many executions of the client are running without it.
    Detached,
    /// Too many bytes are held for clients.
    Bytes,
    /// The store has lost keys, and this may be one of them.
    HistoryLost,
}

/// The purpose of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    NewKeys,
    Lookups,
}

type BucketKey = (Client, Of, Rate);

/// The limits taken up by the clients of one engine.
#[derive(Default)]
pub(crate) struct Limiter {
    buckets: Clients<BucketKey, Bucket>,
    pub(crate) live: LiveKeys,
}

impl Limiter {
    /// Takes a token for a new key. Dropping the token returns it, unless it was used.
    pub(crate) fn new_key(
        limiter: &Arc<Self>,
        client: &Client,
        (per_second, burst): (u32, u32),
        now: Duration,
    ) -> Result<Token, Limited> {
        let rate = Rate::per_second(per_second, burst);
        let key = (client.clone(), Of::NewKeys, rate);
        limiter.take(&key, now).map_err(Limited::Rate)?;
        Ok(Token {
            limiter: limiter.clone(),
            key: Some(key),
            now,
        })
    }

    /// Takes a token for a lookup or a misuse of a key; such tokens are not returned.
    pub(crate) fn lookup(
        &self,
        client: &Client,
        per_second: u32,
        now: Duration,
    ) -> Result<(), Duration> {
        let rate = Rate::per_second(per_second, per_second);
        self.take(&(client.clone(), Of::Lookups, rate), now)
    }

    fn take(&self, key: &BucketKey, now: Duration) -> Result<(), Duration> {
        let is_idle = |bucket: &Bucket| bucket.is_full(now);
        self.buckets
            .with(key, now, is_idle, |bucket| bucket.take(key.2, now))
    }
}

/// A token for a new key.
pub(crate) struct Token {
    limiter: Arc<Limiter>,
    key: Option<BucketKey>,
    now: Duration,
}

impl Token {
    /// Keeps the token: a key was created with it.
    pub(crate) fn used(mut self) {
        self.key = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let is_idle = |bucket: &Bucket| bucket.is_full(self.now);
        let buckets = &self.limiter.buckets;
        buckets.with(&key, self.now, is_idle, |bucket| bucket.give_back(key.2));
    }
}

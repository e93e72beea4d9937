//! What one client may take of what all share: new keys a second, live keys, questions about keys, bytes that
//! are held for it, and executions that it no longer waits for.
//!
//! The engine asks before it reserves. Everything that is known goes on as usual: replays, waiters and
//! retries of a released key take nothing.
//!
//! Deliberately absent: anything between nodes. Each process counts for itself, so that several nodes
//! together let a client have up to as many times its rate; the live keys are counted in the store.

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

/// A client, as limits know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// One that is authenticated, by its id.
    Named(Arc<str>),
    /// One that is told apart by what it sends; without anything, everybody is the same client.
    Marked(Option<CallerMark>),
}

/// Why a request may not bring a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// It is too old, or does not say how old it is.
    TooOld,
    /// Its client is too fast; there is room again after this long.
    Rate(Duration),
    /// Its client has too many live keys.
    Quota,
    /// Too many executions of its client are running without it.
    Detached,
    /// More bytes are held for clients than may be.
    Bytes,
    /// The store has lost keys, and this may be one of them.
    HistoryLost,
}

/// What a bucket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    NewKeys,
    Lookups,
}

type BucketKey = (Client, Of, Rate);

/// What the clients of one engine have taken.
#[derive(Default)]
pub(crate) struct Limiter {
    buckets: Clients<BucketKey, Bucket>,
    pub(crate) live: LiveKeys,
}

impl Limiter {
    /// A token for a new key. It is given back when it is dropped unless it was used.
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

    /// A token for a question about a key, or for a misuse of one; they do not come back.
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

/// A token that was taken for a new key.
pub(crate) struct Token {
    limiter: Arc<Limiter>,
    key: Option<BucketKey>,
    now: Duration,
}

impl Token {
    /// A key was made with it.
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

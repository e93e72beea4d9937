//! What a route has counted, for the admin API and for Prometheus: one event, one count.

use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, counter};

/// Counts leases that lapsed, whoever noticed.
pub(crate) const ZOMBIES: &str = "api_idempotency_zombie_key_total";

/// Counts results from attempts that no longer own their key.
pub const DUPLICATES: &str = "onlyonce_duplicate_execution_suspected_total";
/// Counts clocks that jumped, of this machine or of the store.
pub const CLOCK_JUMPS: &str = "onlyonce_clock_jumps_total";

macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $(=> $metric:literal)?,)*) => {
        /// Something that a route counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Event { $($(#[$doc])* $event,)* }

        impl Event {
            const ALL: &[Self] = &[$(Self::$event,)*];

            fn metric(self) -> Option<&'static str> {
                match self {
                    $(Self::$event => events!(@metric $($metric)?),)*
                }
            }
        }
    };
    (@metric $metric:literal) => { Some($metric) };
    (@metric) => { None };
}

events! {
    /// A request with a key, or one that had to have one.
    Request,
    /// A key was reserved for the first time.
    Created => "api_idempotency_reserve_created_total",
    /// A stored answer was given again.
    Replayed => "api_idempotency_reserve_replay_total",
    /// A request met its own first one still running.
    InProgress => "api_idempotency_reserve_in_progress_total",
    /// A key was used for another request or by another caller.
    Misused => "api_idempotency_reserve_key_misuse_total",
    /// A released key was reserved again.
    Retried => "api_idempotency_reserve_failed_retry_total",
    /// A request met an unknown outcome.
    Unknown => "api_idempotency_reserve_unknown_total",
    /// The store could not be asked or written.
    StoreError => "api_idempotency_store_error_total",
    /// An expired key was executed as a new generation.
    ExecutedAfterExpiry => "api_idempotency_executed_after_expiry_total",
    /// A request waited for another one.
    Waited,
    /// A key was missing where it is demanded.
    Enforced,
    /// A key was not one.
    InvalidKey,
    /// A body was too large.
    TooLarge,
    /// No identity came with the request.
    Unauthenticated,
    /// A key had expired and may not be used again.
    Expired,
    /// A retry met an answer that was not stored.
    NotStored,
    /// An answer became durable.
    Stored,
    /// Nothing was sent upstream.
    NotSent,
    /// An attempt ended without anybody seeing how.
    BecameUnknown,
    /// A body took too long or did not arrive whole.
    Incomplete,
    /// A client brought new keys, asked or misused keys too fast.
    RateLimited => "onlyonce_rate_limited_total",
    /// A client had too many live keys.
    KeyQuota => "onlyonce_key_quota_total",
    /// A request with a new key was too old.
    TooOld => "onlyonce_request_too_old_total",
    /// A request went through without protection, since the store was away.
    Bypassed => "onlyonce_bypassed_total",
    /// A key that had been released turned out to have been executed.
    ReleaseWasWrong => "onlyonce_release_was_wrong_total",
}

/// The counts of one route.
pub struct RouteStats {
    counts: Vec<AtomicU64>,
    counters: Vec<Option<Counter>>,
}

impl RouteStats {
    /// All at zero, and declared so to the metrics recorder.
    pub fn new(route: &str) -> Self {
        let declare = |event: &Event| {
            event.metric().map(|name| {
                let counter = counter!(name, "route" => route.to_owned());
                counter.increment(0);
                counter
            })
        };
        Self {
            counts: Event::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            counters: Event::ALL.iter().map(declare).collect(),
        }
    }

    /// Counts `event`.
    pub fn count(&self, event: Event) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(counter) = &self.counters[event as usize] {
            counter.increment(1);
        }
    }

    /// How often `event` was counted.
    pub fn total(&self, event: Event) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }
}

//! Counters and timers for the admin API and for Prometheus: one event, one count.
//!
//! Metric handles are made once, for each route and for a bounded number of its clients, and kept. A
//! request looks up its client's handles and then only adds to numbers.

mod declared;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{Counter, Histogram, counter, gauge, histogram};
use onlyonce_core::{MessageState, record::State};
use parking_lot::RwLock;
use tokio::time::Instant;

pub use declared::{DECLARED, Declared, Kind, LATENCY_BUCKETS};

/// Clients of one route that have series of their own. Further clients are counted together.
pub const MAX_CLIENTS: usize = 100;
/// The `client` label of the clients that are counted together.
pub const OTHER_CLIENTS: &str = "other";

macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $(=> $metric:literal)?,)*) => {
        /// An event that a route counts.
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
    /// A request with a key, or one that needed a key.
    Request,
    /// A key was reserved for the first time.
    Created => "api_idempotency_reserve_created_total",
    /// A stored answer was replayed.
    Replayed => "api_idempotency_reserve_replay_total",
    /// A retry found its first request still running.
    InProgress => "api_idempotency_reserve_in_progress_total",
    /// A key was used for another request.
    Misused => "api_idempotency_reserve_key_misuse_total",
    /// A key was used for the same request by another caller.
    CallerDiffers => "onlyonce_caller_differs_total",
    /// A released key was reserved again.
    Retried => "api_idempotency_reserve_failed_retry_total",
    /// A request found an unknown outcome.
    Unknown => "api_idempotency_reserve_unknown_total",
    /// The store could not be read or written.
    StoreError => "api_idempotency_store_error_total",
    /// An expired key was executed as a new generation.
    ExecutedAfterExpiry => "api_idempotency_executed_after_expiry_total",
    /// A request waited for another one.
    Waited,
    /// A request was refused because its first one was still running.
    SentAway,
    /// A required key was missing.
    Enforced,
    /// A key was invalid.
    InvalidKey,
    /// A body was too large.
    TooLarge,
    /// A gRPC call, whose outcome cannot be judged yet.
    GrpcUnsupported,
    /// The request had no identity.
    Unauthenticated,
    /// The service that vouches for credentials could not be asked.
    AuthenticationUnavailable,
    /// The key had expired and may not be used again.
    Expired,
    /// A retry found an answer that was not stored.
    NotStored,
    /// An answer became durable.
    Stored,
    /// Nothing was sent upstream.
    NotSent,
    /// An attempt ended with an unknown outcome.
    BecameUnknown => "onlyonce_became_unknown_total",
    /// A body took too long or did not arrive complete.
    Incomplete,
    /// A client brought new keys, queried keys or misused keys too fast.
    RateLimited => "onlyonce_rate_limited_total",
    /// A client had too many live keys.
    KeyQuota => "onlyonce_key_quota_total",
    /// There was no room for a client's bytes, or too many of its executions were detached.
    Overloaded => "onlyonce_overloaded_total",
    /// A request with a new key was too old.
    TooOld => "onlyonce_request_too_old_total",
    /// A new key was refused because the store has lost keys.
    HistoryLost => "onlyonce_history_lost_total",
    /// A request was forwarded without protection because the store was unavailable.
    Bypassed => "onlyonce_bypassed_total",
    /// A key that had been released turned out to have been executed.
    ReleaseWasWrong => "onlyonce_release_was_wrong_total",
}

/// An event that is counted for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// A lease lapsed.
    ZombieKey,
    /// An answer expired and was removed.
    TtlPruned,
    /// A query about an unknown key was scheduled.
    ReconcileScheduled,
    /// The outcome of an unknown key was determined.
    ReconcileResolved,
    /// The outcome of an unknown key could not be determined.
    ReconcileFailed,
    /// A result came from an attempt that no longer owns its key.
    DuplicateSuspected,
    /// The clock of this machine or of the store jumped.
    ClockJump,
    /// A message was delivered.
    Delivered,
    /// An attempt to deliver a message failed, or its outcome is unknown.
    NotDelivered,
}

impl Background {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::ZombieKey,
        Self::TtlPruned,
        Self::ReconcileScheduled,
        Self::ReconcileResolved,
        Self::ReconcileFailed,
        Self::DuplicateSuspected,
        Self::ClockJump,
        Self::Delivered,
        Self::NotDelivered,
    ];

    fn metric(self) -> &'static str {
        match self {
            Self::ZombieKey => "api_idempotency_zombie_key_total",
            Self::TtlPruned => "api_idempotency_ttl_pruned_total",
            Self::ReconcileScheduled => "api_idempotency_reconcile_scheduled_total",
            Self::ReconcileResolved => "api_idempotency_reconcile_resolved_total",
            Self::ReconcileFailed => "api_idempotency_reconcile_failed_total",
            Self::DuplicateSuspected => "onlyonce_duplicate_execution_suspected_total",
            Self::ClockJump => "onlyonce_clock_jumps_total",
            Self::Delivered => "onlyonce_outbox_delivered_total",
            Self::NotDelivered => "onlyonce_outbox_failed_total",
        }
    }

    /// Adds `times`. Not for the request path: it looks up the handle.
    pub fn count(self, times: u64) {
        counter!(self.metric()).increment(times);
    }
}

/// A quantity that is reported as a gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Records in a state.
    Keys(State),
    /// Requests of this process that are waiting for another one.
    Waiters,
    /// Messages waiting for delivery.
    OutboxDepth,
    /// Messages in one of [`MessageState::OPEN`].
    Messages(MessageState),
    /// Records that need an operator.
    DeadLetters,
    /// The age of the oldest unknown key, in seconds.
    UnknownAge,
    /// Bytes that this process holds for clients.
    HeldBytes,
    /// Executions of this process without a waiting client.
    Detached,
    /// 1 while the store lacks keys that it had, and nobody has accepted the loss.
    HistoryLost,
}

impl Amount {
    /// Sets the gauge.
    pub fn set(self, count: u64) {
        // Prometheus uses floating point, which is exact up to 2^53.
        let count = count as f64;
        match self {
            Self::Keys(state) => gauge!("onlyonce_keys", "state" => state.as_str()).set(count),
            Self::Waiters => gauge!("onlyonce_waiters").set(count),
            Self::OutboxDepth => gauge!("onlyonce_outbox_depth").set(count),
            Self::Messages(state) => {
                gauge!("onlyonce_outbox_messages", "state" => state.as_str()).set(count);
            }
            Self::DeadLetters => gauge!("onlyonce_dead_letters").set(count),
            Self::UnknownAge => gauge!("onlyonce_unknown_age_seconds").set(count),
            Self::HeldBytes => gauge!("onlyonce_held_bytes").set(count),
            Self::Detached => gauge!("onlyonce_detached_executions").set(count),
            Self::HistoryLost => gauge!("onlyonce_store_history_lost").set(count),
        }
    }
}

/// Describes every metric to the recorder, and declares at zero those that no route owns.
pub fn declare() {
    for declared in DECLARED {
        declared.describe();
    }
    for background in Background::ALL {
        background.count(0);
    }
    for state in State::ALL {
        Amount::Keys(state).set(0);
    }
    for state in MessageState::OPEN {
        Amount::Messages(state).set(0);
    }
    for amount in [
        Amount::Waiters,
        Amount::OutboxDepth,
        Amount::DeadLetters,
        Amount::UnknownAge,
        Amount::HeldBytes,
        Amount::Detached,
        Amount::HistoryLost,
    ] {
        amount.set(0);
    }
}

/// A timed part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Until it is known what the key's past permits, and any reservation is durable.
    Reserve,
    /// From sending the request to the end of the answer.
    Upstream,
    /// Until the end of the attempt is durable.
    Complete,
    /// From the head of the request to the head of the answer.
    Request,
}

/// The bucket bounds of [`UNKNOWN_SETTLED`], in seconds: from an immediate webhook to a week.
pub const UNKNOWN_BUCKETS: [f64; 9] = [
    1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0, 604_800.0,
];
/// How long keys were unknown. Not a part of a request, so not a [`Stage`].
pub const UNKNOWN_SETTLED: &str = "onlyonce_unknown_settled_seconds";

impl Stage {
    const ALL: [Self; 4] = [Self::Reserve, Self::Upstream, Self::Complete, Self::Request];

    fn metric(self) -> &'static str {
        match self {
            Self::Reserve => "onlyonce_reserve_seconds",
            Self::Upstream => "onlyonce_upstream_seconds",
            Self::Complete => "onlyonce_complete_seconds",
            Self::Request => "onlyonce_request_seconds",
        }
    }
}

/// The counters of one set of labels.
struct Series(Vec<Option<Counter>>);

impl Series {
    /// Registers all counters at zero.
    fn declare(route: &str, client: Option<&str>) -> Self {
        let declare = |event: &Event| {
            event.metric().map(|name| {
                let route = route.to_owned();
                let counter = match client {
                    Some(client) => counter!(name, "route" => route, "client" => client.to_owned()),
                    None => counter!(name, "route" => route),
                };
                counter.increment(0);
                counter
            })
        };
        Self(Event::ALL.iter().map(declare).collect())
    }

    fn count(&self, event: Event) {
        if let Some(counter) = &self.0[event as usize] {
            counter.increment(1);
        }
    }
}

/// The counts and times of one route.
pub struct RouteStats {
    route: Arc<str>,
    counts: Vec<AtomicU64>,
    /// The counters of requests without a named client.
    nobody: Arc<Series>,
    clients: RwLock<HashMap<Arc<str>, Arc<Series>>>,
    times: [Histogram; Stage::ALL.len()],
}

impl std::fmt::Debug for RouteStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteStats")
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}

impl RouteStats {
    /// Registers all counters with the metrics recorder, at zero.
    pub fn new(route: &str) -> Self {
        // The handle alone makes the histogram appear with no samples.
        let _ = histogram!(UNKNOWN_SETTLED, "route" => route.to_owned());
        let time = |stage: Stage| histogram!(stage.metric(), "route" => route.to_owned());
        Self {
            route: route.into(),
            counts: Event::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            nobody: Arc::new(Series::declare(route, None)),
            clients: RwLock::default(),
            times: Stage::ALL.map(time),
        }
    }

    /// Counts `event` without a client.
    pub fn count(&self, event: Event) {
        self.counts[event as usize].fetch_add(1, Ordering::Relaxed);
        self.nobody.count(event);
    }

    /// How often `event` was counted, over all clients.
    pub fn total(&self, event: Event) -> u64 {
        self.counts[event as usize].load(Ordering::Relaxed)
    }

    /// Counts for the request's client, if it has a name.
    pub(crate) fn tally(self: &Arc<Self>, client: Option<&Arc<str>>) -> Tally {
        Tally {
            series: client.map_or_else(|| self.nobody.clone(), |client| self.series(client)),
            stats: self.clone(),
        }
    }

    fn series(&self, client: &Arc<str>) -> Arc<Series> {
        if let Some(known) = self.clients.read().get(client) {
            return known.clone();
        }
        let mut clients = self.clients.write();
        let name = match clients.len() < MAX_CLIENTS {
            true => client.clone(),
            false => OTHER_CLIENTS.into(),
        };
        let declare = || Arc::new(Series::declare(&self.route, Some(&name)));
        clients.entry(name.clone()).or_insert_with(declare).clone()
    }

    /// Records the time since `began` for `stage`.
    pub(crate) fn took(&self, stage: Stage, began: Instant) {
        self.times[stage as usize].record(began.elapsed().as_secs_f64());
    }
}

/// Counts for one client of one route.
#[derive(Clone)]
pub(crate) struct Tally {
    stats: Arc<RouteStats>,
    series: Arc<Series>,
}

impl Tally {
    pub(crate) fn stats(&self) -> &Arc<RouteStats> {
        &self.stats
    }

    pub(crate) fn count(&self, event: Event) {
        self.stats.counts[event as usize].fetch_add(1, Ordering::Relaxed);
        self.series.count(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_beyond_the_bound_share_a_series() {
        let stats = Arc::new(RouteStats::new("r"));
        for number in 0..MAX_CLIENTS * 3 {
            let client: Arc<str> = format!("client-{number}").into();
            stats.tally(Some(&client)).count(Event::Created);
        }
        let clients = stats.clients.read();
        assert_eq!(clients.len(), MAX_CLIENTS + 1);
        assert!(clients.contains_key(OTHER_CLIENTS));
        assert_eq!(stats.total(Event::Created), 3 * MAX_CLIENTS as u64);
    }

    #[test]
    fn everything_that_is_counted_is_declared() {
        let named = |name: &str| DECLARED.iter().any(|declared| declared.name == name);
        let events = Event::ALL.iter().filter_map(|event| event.metric());
        let background = Background::ALL.iter().map(|background| background.metric());
        let stages = Stage::ALL.iter().map(|stage| stage.metric());
        for name in events.chain(background).chain(stages) {
            assert!(named(name), "{name} is missing in the table");
        }
    }
}

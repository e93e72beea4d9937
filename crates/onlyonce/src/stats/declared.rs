//! Every metric of this crate and the gateway, as the reference lists them.
//!
//! The table has names, kinds, labels and meanings. A test of the gateway compares it with `/metrics` and
//! with the reference page.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// The upper bounds of the latency histograms, in seconds.
pub const LATENCY_BUCKETS: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
    15.0, 60.0,
];

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Times in buckets.
    Histogram,
}

impl Kind {
    /// The kind's name in the Prometheus format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Declared {
    /// Its Prometheus name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its labels, separated by commas.
    pub labels: &'static str,
    /// Its meaning.
    pub help: &'static str,
}

impl Declared {
    pub(super) fn describe(&self) {
        match self.kind {
            Kind::Counter => describe_counter!(self.name, self.help),
            Kind::Gauge => describe_gauge!(self.name, self.help),
            Kind::Histogram => describe_histogram!(self.name, Unit::Seconds, self.help),
        }
    }
}

const fn metric(
    name: &'static str,
    kind: Kind,
    labels: &'static str,
    help: &'static str,
) -> Declared {
    Declared {
        name,
        kind,
        labels,
        help,
    }
}

const BY_CLIENT: &str = "route, client";

/// Every metric, in the order of the reference.
pub const DECLARED: &[Declared] = &[
    metric(
        "api_idempotency_reserve_created_total",
        Kind::Counter,
        BY_CLIENT,
        "Keys that were reserved for the first time",
    ),
    metric(
        "api_idempotency_reserve_replay_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests that got a stored answer",
    ),
    metric(
        "api_idempotency_reserve_in_progress_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests that met their own first one still running",
    ),
    metric(
        "api_idempotency_reserve_key_misuse_total",
        Kind::Counter,
        BY_CLIENT,
        "Keys that came with another request",
    ),
    metric(
        "api_idempotency_reserve_failed_retry_total",
        Kind::Counter,
        BY_CLIENT,
        "Released keys that were reserved again",
    ),
    metric(
        "api_idempotency_reserve_unknown_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests that met an unknown outcome",
    ),
    metric(
        "api_idempotency_store_error_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests for which the store could not be asked or written",
    ),
    metric(
        "api_idempotency_executed_after_expiry_total",
        Kind::Counter,
        BY_CLIENT,
        "Expired keys that were executed as a new generation",
    ),
    metric(
        "api_idempotency_zombie_key_total",
        Kind::Counter,
        "",
        "Leases that lapsed: the key became unknown",
    ),
    metric(
        "api_idempotency_ttl_pruned_total",
        Kind::Counter,
        "",
        "Answers that expired and were removed",
    ),
    metric(
        "api_idempotency_reconcile_scheduled_total",
        Kind::Counter,
        "",
        "Unknown keys that the provider is to be asked about",
    ),
    metric(
        "api_idempotency_reconcile_resolved_total",
        Kind::Counter,
        "",
        "Unknown keys whose outcome was found out",
    ),
    metric(
        "api_idempotency_reconcile_failed_total",
        Kind::Counter,
        "",
        "Unknown keys whose outcome could not be found out",
    ),
    metric(
        "onlyonce_duplicate_execution_suspected_total",
        Kind::Counter,
        "",
        "Results from attempts that no longer own their key",
    ),
    metric(
        "onlyonce_clock_jumps_total",
        Kind::Counter,
        "",
        "Clocks that jumped, of this machine or of the store",
    ),
    metric(
        "onlyonce_outbox_delivered_total",
        Kind::Counter,
        "",
        "Messages that were delivered",
    ),
    metric(
        "onlyonce_outbox_failed_total",
        Kind::Counter,
        "",
        "Attempts to deliver a message that failed, or of which nobody knows",
    ),
    metric(
        "onlyonce_became_unknown_total",
        Kind::Counter,
        BY_CLIENT,
        "Attempts whose end nobody saw",
    ),
    metric(
        "onlyonce_rate_limited_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests refused since their client was too fast",
    ),
    metric(
        "onlyonce_caller_differs_total",
        Kind::Counter,
        BY_CLIENT,
        "Keys that came with the same request from another caller",
    ),
    metric(
        "onlyonce_key_quota_total",
        Kind::Counter,
        BY_CLIENT,
        "New keys refused since their client has too many live ones",
    ),
    metric(
        "onlyonce_overloaded_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests refused since there was no room for their client's bytes or detached executions",
    ),
    metric(
        "onlyonce_request_too_old_total",
        Kind::Counter,
        BY_CLIENT,
        "New keys refused since the request was too old",
    ),
    metric(
        "onlyonce_history_lost_total",
        Kind::Counter,
        BY_CLIENT,
        "New keys that had to wait since the store has lost keys",
    ),
    metric(
        "onlyonce_bypassed_total",
        Kind::Counter,
        BY_CLIENT,
        "Requests that went through unprotected since the store was away",
    ),
    metric(
        "onlyonce_release_was_wrong_total",
        Kind::Counter,
        BY_CLIENT,
        "Released keys that turned out to have been executed",
    ),
    metric(
        "onlyonce_shadow_total",
        Kind::Counter,
        "route, would",
        "What would have become of requests, in shadow mode",
    ),
    metric(
        "onlyonce_store_breaker_opened_total",
        Kind::Counter,
        "",
        "Times that the store failed so often that it is not asked before a probe succeeds",
    ),
    metric(
        "onlyonce_at_rest_failures_total",
        Kind::Counter,
        "reason",
        "Stored blocks that could not be opened: moved, changed, or of a key that is not configured",
    ),
    metric(
        "onlyonce_config_reloads_total",
        Kind::Counter,
        "result",
        "Reloads of the configuration",
    ),
    metric(
        "onlyonce_reserve_seconds",
        Kind::Histogram,
        "route",
        "Time until it is known what a key's past permits, and a reservation is durable",
    ),
    metric(
        "onlyonce_upstream_seconds",
        Kind::Histogram,
        "route",
        "Time from sending a request upstream to the end of its answer",
    ),
    metric(
        "onlyonce_complete_seconds",
        Kind::Histogram,
        "route",
        "Time until the end of an attempt is durable",
    ),
    metric(
        "onlyonce_request_seconds",
        Kind::Histogram,
        "route",
        "Time from the head of a request to the head of its answer",
    ),
    metric(
        "onlyonce_unknown_settled_seconds",
        Kind::Histogram,
        "route",
        "Time from a key's becoming unknown to its being settled, by whatever way",
    ),
    metric("onlyonce_keys", Kind::Gauge, "state", "Records in a state"),
    metric(
        "onlyonce_waiters",
        Kind::Gauge,
        "",
        "Requests of this process that wait for another one",
    ),
    metric(
        "onlyonce_held_bytes",
        Kind::Gauge,
        "",
        "Bytes of this process that are held for clients",
    ),
    metric(
        "onlyonce_detached_executions",
        Kind::Gauge,
        "",
        "Executions of this process that nobody waits for",
    ),
    metric(
        "onlyonce_outbox_depth",
        Kind::Gauge,
        "",
        "Messages that wait to be delivered",
    ),
    metric(
        "onlyonce_outbox_messages",
        Kind::Gauge,
        "state",
        "Messages that are not done, by state, each counted up to 100,000",
    ),
    metric(
        "onlyonce_dead_letters",
        Kind::Gauge,
        "",
        "Dead letters that nobody has looked into yet",
    ),
    metric(
        "onlyonce_unknown_age_seconds",
        Kind::Gauge,
        "",
        "How long the oldest unknown key has been unknown",
    ),
    metric(
        "onlyonce_store_history_lost",
        Kind::Gauge,
        "",
        "1 while the store lacks keys that it had, for one ttl or until an operator accepts that",
    ),
    metric(
        "onlyonce_store_breaker_open",
        Kind::Gauge,
        "",
        "1 while the store is not asked before a probe succeeds",
    ),
    metric(
        "onlyonce_config_generation",
        Kind::Gauge,
        "",
        "How many configurations have been in effect",
    ),
];

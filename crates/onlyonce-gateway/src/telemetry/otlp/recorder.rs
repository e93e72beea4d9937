//! One recorder for both: Prometheus pulls, a collector gets metrics pushed.
//!
//! Counters and gauges keep a number beside Prometheus's own, which is read at each export. The cost per
//! request is one more addition; labels are converted once.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;
use onlyonce::stats::LATENCY_BUCKETS;
use opentelemetry::{KeyValue, metrics::Meter};
use parking_lot::Mutex;

/// The collector names that are not the Prometheus name with dots.
const NAMES: [(&str, &str); 13] = [
    (
        "api_idempotency_reserve_created_total",
        "api.idempotency.reserve.created.count",
    ),
    (
        "api_idempotency_reserve_replay_total",
        "api.idempotency.reserve.replay.count",
    ),
    (
        "api_idempotency_reserve_in_progress_total",
        "api.idempotency.reserve.in_progress.count",
    ),
    (
        "api_idempotency_reserve_key_misuse_total",
        "api.idempotency.reserve.key_misuse.count",
    ),
    (
        "api_idempotency_reserve_failed_retry_total",
        "api.idempotency.reserve.failed_retry.count",
    ),
    (
        "api_idempotency_reserve_unknown_total",
        "api.idempotency.reserve.unknown.count",
    ),
    (
        "api_idempotency_store_error_total",
        "api.idempotency.store.error.count",
    ),
    (
        "api_idempotency_zombie_key_total",
        "api.idempotency.zombie_key.count",
    ),
    (
        "api_idempotency_ttl_pruned_total",
        "api.idempotency.ttl_pruned.count",
    ),
    (
        "api_idempotency_reconcile_scheduled_total",
        "api.idempotency.reconcile.scheduled.count",
    ),
    (
        "api_idempotency_reconcile_resolved_total",
        "api.idempotency.reconcile.resolved.count",
    ),
    (
        "api_idempotency_reconcile_failed_total",
        "api.idempotency.reconcile.failed.count",
    ),
    (
        "api_idempotency_executed_after_expiry_total",
        "api.idempotency.executed_after_expiry.count",
    ),
];

/// The collector's name of a metric: `onlyonce_key_quota_total` is `onlyonce.key_quota.count`, and
/// `onlyonce_reserve_seconds` is `onlyonce.reserve.duration`.
fn told_as(name: &str) -> String {
    if let Some((_, told)) = NAMES.iter().find(|(own, _)| *own == name) {
        return (*told).to_owned();
    }
    let (rest, end) = match (name.strip_suffix("_total"), name.strip_suffix("_seconds")) {
        (Some(rest), _) => (rest, ".count"),
        (None, Some(rest)) => (rest, ".duration"),
        (None, None) => (name, ""),
    };
    match rest.strip_prefix("onlyonce_") {
        Some(own) => format!("onlyonce.{own}{end}"),
        None => format!("{rest}{end}"),
    }
}

fn labels(key: &Key) -> Vec<KeyValue> {
    key.labels()
        .map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned()))
        .collect()
}

/// The values under one name, each with its labels.
type Numbers<C> = Arc<Mutex<Vec<(Vec<KeyValue>, Arc<C>)>>>;

/// The metrics registered under each name and each set of labels.
struct Registered<C> {
    by_key: HashMap<Key, Arc<C>>,
    by_name: HashMap<String, Numbers<C>>,
}

impl<C> Default for Registered<C> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            by_name: HashMap::new(),
        }
    }
}

impl<C> Registered<C> {
    /// The value of `key`, created by `made` if it is new; `named` is called for a new name.
    fn number(
        &mut self,
        key: &Key,
        made: impl FnOnce() -> C,
        named: impl FnOnce(String, Numbers<C>),
    ) -> Arc<C> {
        if let Some(known) = self.by_key.get(key) {
            return known.clone();
        }
        let number = Arc::new(made());
        self.by_key.insert(key.clone(), number.clone());
        let numbers = self.by_name.entry(key.name().to_owned());
        let numbers = numbers.or_insert_with(|| {
            let numbers = Numbers::default();
            named(told_as(key.name()), numbers.clone());
            numbers
        });
        numbers.lock().push((labels(key), number.clone()));
        number
    }
}

/// Records for Prometheus and for a collector.
pub(super) struct Both {
    prometheus: PrometheusRecorder,
    meter: Meter,
    counters: Mutex<Registered<Count>>,
    gauges: Mutex<Registered<Height>>,
}

impl Both {
    pub(super) fn new(prometheus: PrometheusRecorder, meter: Meter) -> Self {
        Self {
            prometheus,
            meter,
            counters: Mutex::default(),
            gauges: Mutex::default(),
        }
    }
}

impl Recorder for Both {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.prometheus.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let made = || Count {
            prometheus: self.prometheus.register_counter(key, metadata),
            total: AtomicU64::new(0),
        };
        let named = |name: String, numbers: Numbers<Count>| {
            let instrument = self.meter.u64_observable_counter(name);
            instrument
                .with_callback(move |observer| {
                    for (labels, count) in numbers.lock().iter() {
                        observer.observe(count.total.load(Ordering::Relaxed), labels);
                    }
                })
                .build();
        };
        Counter::from_arc(self.counters.lock().number(key, made, named))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let made = || Height {
            prometheus: self.prometheus.register_gauge(key, metadata),
            bits: AtomicU64::new(0),
        };
        let named = |name: String, numbers: Numbers<Height>| {
            let instrument = self.meter.f64_observable_gauge(name);
            instrument
                .with_callback(move |observer| {
                    for (labels, height) in numbers.lock().iter() {
                        let bits = height.bits.load(Ordering::Relaxed);
                        observer.observe(f64::from_bits(bits), labels);
                    }
                })
                .build();
        };
        Gauge::from_arc(self.gauges.lock().number(key, made, named))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let told = self
            .meter
            .f64_histogram(told_as(key.name()))
            .with_unit("s")
            .with_boundaries(LATENCY_BUCKETS.to_vec())
            .build();
        Histogram::from_arc(Arc::new(Times {
            prometheus: self.prometheus.register_histogram(key, metadata),
            told,
            labels: labels(key),
        }))
    }
}

struct Count {
    prometheus: Counter,
    total: AtomicU64,
}

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.prometheus.increment(value);
        self.total.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.prometheus.absolute(value);
        self.total.fetch_max(value, Ordering::Relaxed);
    }
}

struct Height {
    prometheus: Gauge,
    bits: AtomicU64,
}

impl Height {
    fn change(&self, by: f64) {
        // The closure always returns `Some`, so this cannot fail.
        let _ = self
            .bits
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
                Some((f64::from_bits(bits) + by).to_bits())
            });
    }
}

impl GaugeFn for Height {
    fn increment(&self, value: f64) {
        self.prometheus.increment(value);
        self.change(value);
    }

    fn decrement(&self, value: f64) {
        self.prometheus.decrement(value);
        self.change(-value);
    }

    fn set(&self, value: f64) {
        self.prometheus.set(value);
        self.bits.store(value.to_bits(), Ordering::Relaxed);
    }
}

struct Times {
    prometheus: Histogram,
    told: opentelemetry::metrics::Histogram<f64>,
    labels: Vec<KeyValue>,
}

impl HistogramFn for Times {
    fn record(&self, value: f64) {
        self.prometheus.record(value);
        self.told.record(value, &self.labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_a_collector() {
        assert_eq!(
            told_as("onlyonce_key_quota_total"),
            "onlyonce.key_quota.count"
        );
        assert_eq!(
            told_as("onlyonce_reserve_seconds"),
            "onlyonce.reserve.duration"
        );
        assert_eq!(told_as("onlyonce_keys"), "onlyonce.keys");
        for declared in onlyonce::stats::DECLARED {
            let told = told_as(declared.name);
            if declared.name.starts_with("api_idempotency_") {
                assert!(told.starts_with("api.idempotency.") && told.ends_with(".count"));
            }
        }
    }
}

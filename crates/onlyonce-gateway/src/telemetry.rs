//! Logs on standard error, metrics for Prometheus, and with the feature `otlp` traces and metrics for an
//! OpenTelemetry collector.
//!
//! Deliberately absent: the configuration file. Where a process logs and reports to depends on where it runs,
//! so the environment decides it.

#[cfg(feature = "otlp")]
mod otlp;

use std::time::Duration;

use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use onlyonce::{
    Engine,
    stats::{LATENCY_BUCKETS, UNKNOWN_BUCKETS, UNKNOWN_SETTLED},
    trace,
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt as _, filter_fn},
    fmt,
    layer::SubscriberExt as _,
};

/// How often the metrics recorder runs its upkeep.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// The environment variable with the log filter.
const LOG_ENV: &str = "ONLYONCE_LOG";
/// The environment variable with the log format: `json`, or anything else for text.
const LOG_FORMAT_ENV: &str = "ONLYONCE_LOG_FORMAT";
/// The environment variables that name a collector: for everything, for traces, for metrics.
const COLLECTOR_ENV: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];

/// The reporting of a process, for as long as the process lives.
pub(crate) struct Telemetry {
    prometheus: PrometheusHandle,
    #[cfg(feature = "otlp")]
    otlp: Option<otlp::Otlp>,
}

impl Telemetry {
    /// Starts logging and counting. Call it inside the tokio runtime, once per process.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&LATENCY_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full(UNKNOWN_SETTLED.to_owned()), &UNKNOWN_BUCKETS)?
            .build_recorder();
        let prometheus = recorder.handle();
        tidy(prometheus.clone());
        let telemetry = Self::with(recorder, prometheus)?;
        onlyonce::stats::declare();
        Ok(telemetry)
    }

    #[cfg(not(feature = "otlp"))]
    fn with(recorder: PrometheusRecorder, prometheus: PrometheusHandle) -> anyhow::Result<Self> {
        tracing::subscriber::set_global_default(Registry::default().with(log_layer()))?;
        metrics::set_global_recorder(recorder).map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self { prometheus })
    }

    #[cfg(feature = "otlp")]
    fn with(recorder: PrometheusRecorder, prometheus: PrometheusHandle) -> anyhow::Result<Self> {
        if collector().is_none() {
            tracing::subscriber::set_global_default(Registry::default().with(log_layer()))?;
            metrics::set_global_recorder(recorder).map_err(|error| anyhow::anyhow!("{error}"))?;
            let otlp = None;
            return Ok(Self { prometheus, otlp });
        }
        let otlp = otlp::Otlp::start()?;
        let subscriber = Registry::default()
            .with(log_layer())
            .with(otlp.trace_layer());
        tracing::subscriber::set_global_default(subscriber)?;
        let both = otlp.recorder(recorder);
        metrics::set_global_recorder(both).map_err(|error| anyhow::anyhow!("{error}"))?;
        let otlp = Some(otlp);
        Ok(Self { prometheus, otlp })
    }

    /// The handle that renders metrics for Prometheus.
    pub(crate) fn prometheus(&self) -> PrometheusHandle {
        self.prometheus.clone()
    }

    /// Measures `engine` periodically, for a collector that gets metrics pushed.
    pub(crate) fn watch(&self, engine: &Engine) {
        #[cfg(feature = "otlp")]
        if self.otlp.is_some() {
            otlp::watch(engine.clone());
        }
        #[cfg(not(feature = "otlp"))]
        let _ = engine;
    }

    /// Sends everything still pending.
    pub(crate) async fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(otlp) = self.otlp {
            otlp.end().await;
        }
    }
}

/// The set environment variable that names a collector.
fn collector() -> Option<&'static str> {
    let is_set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    COLLECTOR_ENV.into_iter().find(is_set)
}

/// The warning that nothing is sent to the collector that the environment names, because this program was
/// built without `otlp`.
pub(crate) fn unheard() -> Option<String> {
    if cfg!(feature = "otlp") {
        return None;
    }
    let name = collector()?;
    Some(format!(
        "warning: {name} is set, and this program was built without `otlp`: no traces and metrics are sent\n  \
         hint: build it with `--features otlp`"
    ))
}

fn is_json() -> bool {
    std::env::var(LOG_FORMAT_ENV).is_ok_and(|format| format == "json")
}

/// Prints a warning with its line breaks for people, or as one log record if logs are JSON.
pub(crate) fn say(warning: &impl std::fmt::Display) {
    match is_json() {
        true => tracing::warn!("{warning}"),
        false => eprintln!("{warning}"),
    }
}

/// Whether an event is free of message contents: RabbitMQ's client puts returned messages into its warnings.
fn may_be_logged(metadata: &tracing::Metadata<'_>) -> bool {
    !metadata.target().starts_with("lapin") || *metadata.level() == tracing::Level::ERROR
}

/// Logs without the spans of requests, which are for traces only.
fn log_layer<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let filter = EnvFilter::try_from_env(LOG_ENV).unwrap_or_else(|_| EnvFilter::new("info"));
    let filter = match format!("{}=off", trace::TARGET).parse() {
        Ok(silent) => filter.add_directive(silent),
        Err(_) => filter,
    };
    let filter = filter.and(filter_fn(may_be_logged));
    let layer = fmt::layer().with_writer(std::io::stderr);
    match is_json() {
        true => layer.json().with_filter(filter).boxed(),
        false => layer.with_ansi(false).with_filter(filter).boxed(),
    }
}

fn tidy(metrics: PrometheusHandle) {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP_EVERY);
        loop {
            ticks.tick().await;
            metrics.run_upkeep();
        }
    });
}

//! Traces and metrics for an OpenTelemetry collector, over HTTP with protobuf.
//!
//! Configured by the usual OpenTelemetry variables: `OTEL_EXPORTER_OTLP_ENDPOINT`,
//! `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, `OTEL_METRIC_EXPORT_INTERVAL`.

mod client;
mod recorder;

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusRecorder;
use onlyonce::{Engine, trace};
use opentelemetry::{KeyValue, metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{
    MetricExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{Resource, metrics::SdkMeterProvider, trace::SdkTracerProvider};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use crate::admin;
use client::Client;
use recorder::Both;

const NAME: &str = "onlyonce";
const SERVICE_ENV: &str = "OTEL_SERVICE_NAME";
/// How often the keys in each state are counted.
const MEASURE_EVERY: Duration = Duration::from_secs(15);
/// The longest that shutdown waits for the collector.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The exporters of traces and metrics.
pub(super) struct Otlp {
    traces: SdkTracerProvider,
    metrics: SdkMeterProvider,
}

impl Otlp {
    /// Does not connect yet. Whatever cannot be delivered is dropped.
    pub(super) fn start() -> anyhow::Result<Self> {
        let client = Client::new()?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if std::env::var_os(SERVICE_ENV).is_none() {
            resource = resource.with_service_name(NAME);
        }
        let resource = resource.build();
        let spans = SpanExporter::builder()
            .with_http()
            .with_http_client(client.clone())
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        let metrics = MetricExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .build()?;
        Ok(Self {
            traces: SdkTracerProvider::builder()
                .with_resource(resource.clone())
                .with_batch_exporter(spans)
                .build(),
            metrics: SdkMeterProvider::builder()
                .with_resource(resource)
                .with_periodic_exporter(metrics)
                .build(),
        })
    }

    /// Turns the spans of requests, and nothing else, into traces.
    pub(super) fn trace_layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.traces.tracer(NAME))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_filter(Targets::new().with_target(trace::TARGET, tracing::Level::INFO))
    }

    /// A recorder for both Prometheus and the collector.
    pub(super) fn recorder(
        &self,
        prometheus: PrometheusRecorder,
    ) -> impl metrics::Recorder + Send + Sync + use<> {
        Both::new(prometheus, self.metrics.meter(NAME))
    }

    /// Sends everything still pending.
    pub(super) async fn end(self) {
        let last = tokio::task::spawn_blocking(move || {
            (
                self.traces.shutdown_with_timeout(LAST_WORDS),
                self.metrics.shutdown_with_timeout(LAST_WORDS),
            )
        });
        let sent = tokio::time::timeout(LAST_WORDS, last).await;
        if !matches!(sent, Ok(Ok((Ok(()), Ok(()))))) {
            tracing::warn!("the collector did not take everything before the end");
        }
    }
}

/// Measures the gauges periodically.
pub(super) fn watch(engine: Engine) {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(MEASURE_EVERY);
        loop {
            ticks.tick().await;
            admin::measure(&engine).await;
        }
    });
}

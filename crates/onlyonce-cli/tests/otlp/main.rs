//! What an OpenTelemetry collector gets from the real binary, built with the feature `otlp`.
//!
//! The collector is the counting upstream once more: it keeps what was posted to it, and the test
//! decodes that.
#![allow(
    clippy::unwrap_used,
    reason = "in a test a panic is the report, in helpers too"
)]

#[path = "../http"]
mod black_box {
    #[allow(dead_code, unused_imports, reason = "shared with the tests over HTTP")]
    pub(crate) mod harness;
}

use std::collections::{BTreeMap, BTreeSet};

use black_box::harness::{Gateway, Request, Script, Setup, Upstream};
use onlyonce_testkit::servers::free_port;
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::Span,
};
use prost::Message as _;

const FIRST_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const FIRST_PARENT: &str = "b7ad6b7169203331";
const RETRY_TRACE: &str = "11112222333344445555666677778888";

/// The names that operators know these counters by.
const NAMES: [&str; 13] = [
    "api.idempotency.reserve.created.count",
    "api.idempotency.reserve.replay.count",
    "api.idempotency.reserve.in_progress.count",
    "api.idempotency.reserve.key_misuse.count",
    "api.idempotency.reserve.failed_retry.count",
    "api.idempotency.reserve.unknown.count",
    "api.idempotency.store.error.count",
    "api.idempotency.zombie_key.count",
    "api.idempotency.ttl_pruned.count",
    "api.idempotency.reconcile.scheduled.count",
    "api.idempotency.reconcile.resolved.count",
    "api.idempotency.reconcile.failed.count",
    "api.idempotency.executed_after_expiry.count",
];

/// Starts a gateway that reports to `collector`.
async fn reporting(upstream: &Upstream, collector: &Upstream) -> Gateway {
    collector.always(Script::reply(200).body(""));
    Setup::with("")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200")
        .env("OTEL_BSP_SCHEDULE_DELAY", "200")
        .trace()
        .start(upstream)
        .await
}

/// Ends the gateway, which sends what is left.
async fn last_words(gateway: &mut Gateway) {
    gateway.sigterm();
    assert!(gateway.exited().await.success(), "{}", gateway.logs());
}

fn posted(collector: &Upstream, path: &str) -> Vec<Vec<u8>> {
    let requests = collector.requests().into_iter();
    let found = requests.filter(|seen| seen.target == path && seen.method == "POST");
    found.map(|seen| seen.body).collect()
}

fn spans(collector: &Upstream) -> Vec<Span> {
    let decoded = posted(collector, "/v1/traces")
        .into_iter()
        .flat_map(|body| {
            let request =
                ExportTraceServiceRequest::decode(body.as_slice()).expect("a trace request");
            request.resource_spans
        });
    let scopes = decoded.flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

/// The last value of every counter, summed over its labels.
fn counts(collector: &Upstream) -> BTreeMap<String, i64> {
    let bodies = posted(collector, "/v1/metrics");
    let last = bodies.last().expect("metrics were sent");
    let request = ExportMetricsServiceRequest::decode(last.as_slice()).expect("a metrics request");
    let scopes = request
        .resource_metrics
        .into_iter()
        .flat_map(|resource| resource.scope_metrics);
    let metrics = scopes.flat_map(|scope| scope.metrics);
    metrics.filter_map(sum).collect()
}

fn sum(metric: Metric) -> Option<(String, i64)> {
    let Some(Data::Sum(sum)) = metric.data else {
        return None;
    };
    assert!(sum.is_monotonic, "{} only grows", metric.name);
    let values = sum.data_points.iter().map(|point| match point.value {
        Some(number_data_point::Value::AsInt(value)) => value,
        other => panic!("{}: {other:?}", metric.name),
    });
    let total = values.sum();
    Some((metric.name, total))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|pair| pair.key == name)?;
    Some(match found.value.clone()?.value? {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(is) => is.to_string(),
        other => panic!("{name}: {other:?}"),
    })
}

/// The one span of this name in the trace.
fn span<'s>(spans: &'s [Span], trace: &str, name: &str) -> &'s Span {
    let is = |span: &&Span| hex(&span.trace_id) == trace && span.name == name;
    let found: Vec<&Span> = spans.iter().filter(is).collect();
    match found.as_slice() {
        [one] => one,
        others => panic!("{} spans `{name}` in {trace}: {spans:#?}", others.len()),
    }
}

/// The contexts that a span is linked to in this way.
fn linked(span: &Span, how: &str) -> Vec<(String, String)> {
    let is = |link: &&opentelemetry_proto::tonic::trace::v1::span::Link| {
        attribute(&link.attributes, "onlyonce.link").as_deref() == Some(how)
    };
    let links = span.links.iter().filter(is);
    links
        .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
        .collect()
}

fn traced(request: Request, trace: &str) -> Request {
    request.header("traceparent", format!("00-{trace}-{FIRST_PARENT}-01"))
}

/// Goal: all attempts of one operation can be found, and the way of a request can be followed to the
/// upstream.
///
/// Method: a request and its retry, each in a trace of its own client.
/// Evidence: the spans at the collector: the retry's is linked to the first one's, both to the same
/// operation; the upstream was told of the upstream span; neither key nor body in any byte of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_linked_to_its_first_attempt() {
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let mut gateway = reporting(&upstream, &collector).await;
    let pay = |trace| {
        let request = Request::post("/payments").key("CANARYKEY-1");
        traced(request.json(r#"{"card":"CANARYBODY"}"#), trace)
    };
    gateway.send(&pay(FIRST_TRACE)).await.expect(201);
    gateway.send(&pay(RETRY_TRACE)).await.expect(201);
    assert_eq!(upstream.executions(), 1);
    last_words(&mut gateway).await;

    let spans = spans(&collector);
    let (first, retry) = (
        span(&spans, FIRST_TRACE, "request"),
        span(&spans, RETRY_TRACE, "request"),
    );
    assert_eq!(hex(&first.parent_span_id), FIRST_PARENT);
    let first_context = (FIRST_TRACE.to_owned(), hex(&first.span_id));
    assert_eq!(linked(retry, "first_attempt"), [first_context]);
    assert_eq!(linked(first, "first_attempt"), []);
    assert_eq!(linked(retry, "operation"), linked(first, "operation"));
    assert_eq!(linked(first, "operation").len(), 1);
    for (span, decision) in [(first, "created"), (retry, "replay")] {
        let said = |name: &str| attribute(&span.attributes, &format!("onlyonce.{name}"));
        assert_eq!(said("decision").as_deref(), Some(decision));
        assert_eq!(said("state").as_deref(), Some("completed"));
        assert_eq!(said("attempt").as_deref(), Some("1"));
        assert_eq!(said("generation").as_deref(), Some("1"));
        let key = said("key").expect("a tag of the key");
        assert!(key.len() == 8 && key.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(Some(key), attribute(&first.attributes, "onlyonce.key"));
        let status = attribute(&span.attributes, "http.response.status_code");
        assert_eq!(status.as_deref(), Some("201"));
    }
    for name in ["reserve", "upstream", "complete"] {
        let child = span(&spans, FIRST_TRACE, name);
        assert_eq!(child.parent_span_id, first.span_id, "{name}");
    }
    let told = upstream
        .last()
        .headers
        .one("traceparent")
        .map(str::to_owned);
    let sent = hex(&span(&spans, FIRST_TRACE, "upstream").span_id);
    assert_eq!(told, Some(format!("00-{FIRST_TRACE}-{sent}-01")));
    for seen in collector.requests() {
        assert!(!String::from_utf8_lossy(&seen.body).contains("CANARY"));
    }
}

/// Goal: an execution after a failure is linked to the one that failed, and one that is not traced by
/// its client is traced all the same; one that must not be sampled is not.
///
/// Method: a 500 and its retry without any `traceparent`, and a request whose client said not to sample.
/// Evidence: the spans at the collector, beside the upstream's own count.
#[tokio::test(flavor = "multi_thread")]
async fn an_execution_after_a_failure_is_linked_too() {
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let mut gateway = reporting(&upstream, &collector).await;
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay("failed")).await.expect(500);
    gateway.send(&Request::pay("failed")).await.expect(201);
    let silent = format!("00-{RETRY_TRACE}-{FIRST_PARENT}-00");
    gateway
        .send(&Request::pay("silent").header("traceparent", &silent))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 3);
    last_words(&mut gateway).await;

    let spans = spans(&collector);
    let decided = |word: &str| {
        let decision = |span: &&Span| attribute(&span.attributes, "onlyonce.decision");
        let mut found = spans
            .iter()
            .filter(|span| decision(span).as_deref() == Some(word));
        let one = found.next().unwrap_or_else(|| panic!("{word}: {spans:#?}"));
        assert!(found.next().is_none(), "one span that says {word}");
        one
    };
    let (first, second) = (decided("created"), decided("failed_retry"));
    let state = |span: &Span| attribute(&span.attributes, "onlyonce.state");
    assert_eq!(state(first).as_deref(), Some("failed_retryable"));
    assert_eq!(state(second).as_deref(), Some("completed"));
    let attempt = attribute(&second.attributes, "onlyonce.attempt");
    assert_eq!(attempt.as_deref(), Some("2"));
    let context = (hex(&first.trace_id), hex(&first.span_id));
    assert_eq!(linked(second, "first_attempt"), [context]);
    assert!(spans.iter().all(|span| hex(&span.trace_id) != RETRY_TRACE));
    let told = upstream
        .last()
        .headers
        .one("traceparent")
        .map(str::to_owned);
    assert!(told.is_some_and(|told| told.contains(RETRY_TRACE) && told.ends_with("-00")));
}

/// Goal: the counters have the names that operators know, from the start.
///
/// Method: a new key and two replays; the collector's last word.
/// Evidence: every name, at zero where nothing happened, and the same sums as `/metrics`.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_their_names() {
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let mut gateway = reporting(&upstream, &collector).await;
    for _ in 0..3 {
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    last_words(&mut gateway).await;
    let counts = counts(&collector);
    let told: BTreeSet<&str> = counts
        .keys()
        .map(String::as_str)
        .filter(|name| name.starts_with("api."))
        .collect();
    assert_eq!(told, BTreeSet::from(NAMES));
    for name in NAMES {
        let expected = match name {
            "api.idempotency.reserve.created.count" => 1,
            "api.idempotency.reserve.replay.count" => 2,
            _ => 0,
        };
        assert_eq!(counts[name], expected, "{name}");
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a collector that is away harms nobody.
///
/// Method: the collector's address refuses connections.
/// Evidence: requests are answered as ever, and the process ends well.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_harms_nobody() {
    let upstream = Upstream::start();
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let mut gateway = Setup::with("")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &nowhere)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start(&upstream)
        .await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
    last_words(&mut gateway).await;
}

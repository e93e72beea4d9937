//! Metrics are declared at zero, count what happened, and nothing secret is ever shown.

use crate::harness::{Gateway, Request, Response, Script, Setup, Upstream, client::Http2, within};

const COUNTERS: [&str; 13] = [
    "api_idempotency_reserve_created_total",
    "api_idempotency_reserve_replay_total",
    "api_idempotency_reserve_in_progress_total",
    "api_idempotency_reserve_key_misuse_total",
    "api_idempotency_reserve_failed_retry_total",
    "api_idempotency_reserve_unknown_total",
    "api_idempotency_store_error_total",
    "api_idempotency_zombie_key_total",
    "api_idempotency_ttl_pruned_total",
    "api_idempotency_reconcile_scheduled_total",
    "api_idempotency_reconcile_resolved_total",
    "api_idempotency_reconcile_failed_total",
    "api_idempotency_executed_after_expiry_total",
];

/// Goal: a dashboard sees every counter before anything has happened.
///
/// Method: `/metrics` right after the start.
/// Evidence: a sample of zero for each documented name, declared as a counter.
#[tokio::test]
async fn declared_at_zero() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let text = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    for name in COUNTERS {
        assert_eq!(gateway.metric(name).await, Some(0.0), "{name} in\n{text}");
        assert!(
            text.contains(&format!("# TYPE {name} counter")),
            "{name} in\n{text}"
        );
    }
    assert_eq!(upstream.executions(), 0);
}

/// Goal: each way a reservation can go has its counter.
///
/// Method: created, replayed, met in flight, misused, retried after a failure, met unknown, pruned.
/// Evidence: the counters, beside the upstream's own count.
#[tokio::test]
async fn reservations_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "on_in_flight: reject").await;
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay("failed")).await.expect(500);
    gateway.send(&Request::pay("failed")).await.expect(201);
    gateway.send(&Request::pay("failed")).await.expect(201);
    gateway
        .send(&Request::post("/payments").key("failed").json("{}"))
        .await
        .expect(422);
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    gateway.send(&Request::pay("lost")).await.expect(409);
    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(4).await;
    gateway.send(&Request::pay("held")).await.expect(409);
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let expected = [3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    for (name, count) in COUNTERS.into_iter().zip(expected) {
        assert_eq!(gateway.metric(name).await, Some(count), "{name}");
    }
    assert_eq!(upstream.executions(), 4);
}

/// Goal: pruned and zombie keys are counted too.
///
/// Method: `ttl: 1s` and the reaper.
/// Evidence: one key pruned or more, after one execution.
#[tokio::test]
async fn pruned_keys_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    let pruned = gateway.metric("api_idempotency_ttl_pruned_total").await;
    assert!(pruned.is_some_and(|count| count >= 1.0), "{pruned:?}");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: keys, bodies and credentials never appear in logs, metrics or errors, at any level.
///
/// Method: canaries in each, through every path: new, replay, mismatch, in flight, failed,
/// unknown, oversized, invalid key, large body, both protocols; logs at trace.
/// Evidence: no canary in anything the gateway printed, exposed or answered as an error.
#[tokio::test]
async fn nothing_secret_is_logged() {
    let upstream = Upstream::start();
    let options = "on_in_flight: reject, max_body_size: 1KiB, max_request_body: 8KiB";
    let mut gateway = Setup::with(options).trace().start(&upstream).await;
    let request = |key: &str, body: &str| {
        Request::post("/payments")
            .key(format!("CANARYKEY-{key}"))
            .header("Authorization", "Bearer CANARYCREDENTIAL")
            .json(&format!(r#"{{"card":"CANARYBODY-{body}"}}"#))
    };
    upstream.always(Script::created().body("CANARYANSWER"));
    let mut errors: Vec<Response> = Vec::new();
    gateway.send(&request("a", "1")).await.expect(201);
    gateway.send(&request("a", "1")).await.expect(201);
    let mut http2 = Http2::open(gateway.data()).await;
    http2.send(&request("a", "1")).await.expect(201);
    errors.push(http2.send(&request("a", "2")).await.expect(422));
    upstream.next(Script::reply(500).body("CANARYANSWER"));
    gateway.send(&request("b", "1")).await.expect(500);
    upstream.next(Script::truncated(50, b"CANARYANSWER"));
    errors.push(gateway.send(&request("c", "1")).await.expect(502));
    errors.push(gateway.send(&request("c", "1")).await.expect(409));
    upstream.next(Script::created().body("CANARYANSWER".repeat(200)));
    gateway.send(&request("d", "1")).await.expect(201);
    errors.push(gateway.send(&request("d", "1")).await.expect(409));
    errors.push(gateway.send(&request("with space", "1")).await.expect(400));
    errors.push(
        gateway
            .send(&request("e", &"x".repeat(10_000)))
            .await
            .expect(413),
    );
    upstream.next(Script::created().held());
    let held = gateway.send_later(&request("f", "1"));
    upstream.begun(5).await;
    errors.push(gateway.send(&request("f", "1")).await.expect(409));
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let metrics = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    assert!(!metrics.contains("CANARY"), "{metrics}");
    for error in errors {
        assert!(!error.text().contains("CANARY"), "{error}");
    }
    gateway.sigterm();
    gateway.exited().await;
    let logs = gateway.logs();
    assert!(!logs.is_empty(), "something was logged");
    for line in logs.lines() {
        assert!(!line.contains("CANARY"), "logged: {line}");
        assert!(!line.contains("test-token"), "logged: {line}");
    }
    assert_eq!(upstream.executions(), 5);
}

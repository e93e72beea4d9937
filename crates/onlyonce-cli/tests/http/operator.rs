//! What an operator may do to a record: resolve, extend, forget; and the trace it leaves.

use serde_json::{Value, json};

use crate::harness::{
    Gateway, REPLAYED, Request, Response, Script, Setup, Upstream, eventually, within,
};

/// A gateway with one unknown key.
async fn unknown(upstream: &Upstream, key: &str) -> Gateway {
    upstream.next(Script::hang_up());
    let gateway = Gateway::start(upstream, "").await;
    gateway
        .send(&Request::pay(key))
        .await
        .refused(502, "idempotency_outcome_unknown");
    gateway
}

async fn resolve(gateway: &Gateway, key: &str, body: Value) -> Response {
    let path = format!("/idempotency/keys/{}/resolve", gateway.id(key).await);
    gateway.admin_post(&path, &body).await
}

async fn forget(gateway: &Gateway, key: &str, query: &str) -> Response {
    let path = format!("/idempotency/keys/{}{query}", gateway.id(key).await);
    gateway.admin(Request::new("DELETE", &path)).await
}

async fn audit(gateway: &Gateway) -> String {
    gateway
        .admin(Request::get("/audit"))
        .await
        .expect(200)
        .text()
}

/// Goal: how long keys stay unknown can be seen.
///
/// Method: an unknown key that an operator completes. Evidence: the histogram, at zero before and with one
/// time after, in a bucket of its own.
#[tokio::test]
async fn the_time_to_settle_is_measured() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let count = "onlyonce_unknown_settled_seconds_count";
    assert_eq!(gateway.metric(count).await, Some(0.0));
    let outcome = json!({ "outcome": "completed", "response": { "status": 201 }, "reason": "r" });
    resolve(&gateway, "k", outcome).await.expect(200);
    assert_eq!(gateway.metric(count).await, Some(1.0));
    let all = gateway.admin(Request::get("/metrics")).await.text();
    let week = "onlyonce_unknown_settled_seconds_bucket{route=\"r\",le=\"604800\"} 1";
    assert!(all.contains(week), "{all}");
}

/// Goal: an operator who knows the outcome gives the clients their answer.
///
/// Method: resolve an unknown key as completed with status, headers and a text body.
/// Evidence: the record in the answer; the retry is a replay of it; one execution; the audit.
#[tokio::test]
async fn resolved_as_completed() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let body = json!({
        "outcome": "completed",
        "response": {
            "status": 201,
            "headers": {"Content-Type": "application/json", "Link": ["</a>", "</b>"]},
            "body": "{\"found\": \"in the ledger\"}",
        },
        "reason": "canary-reason-17",
    });
    let record = resolve(&gateway, "k", body).await.expect(200).json();
    assert_eq!(
        (&record["state"], &record["key"]),
        (&json!("completed"), &json!("k"))
    );
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.text(), "{\"found\": \"in the ledger\"}");
    assert_eq!(replay.header("content-type"), Some("application/json"));
    assert_eq!(replay.headers.all("link"), ["</a>", "</b>"]);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
    assert!(audit(&gateway).await.contains("canary-reason-17"));
    assert!(
        gateway
            .full_record("k")
            .await
            .to_string()
            .contains("canary-reason-17")
    );
}

/// Goal: an operator's answer is remembered as an upstream's is: without what speaks of one answer only.
///
/// Method: resolve with headers that are never stored, among them some that only a gateway says; one by
/// one, and as one of many dead letters.
/// Evidence: the replay has none of them, a date of its own, and the others.
#[tokio::test]
async fn resolved_without_what_is_never_stored() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let never = [
        "Age",
        "WWW-Authenticate",
        "Proxy-Status",
        "RateLimit",
        "RateLimit-Policy",
        "X-RateLimit-Remaining",
        "Retry-After",
        "traceparent",
        "tracestate",
        "X-Request-Id",
        "X-Correlation-Id",
        "X-Amzn-Trace-Id",
        "Server-Timing",
        "Via",
        "Alt-Svc",
        "Set-Cookie",
        "Keep-Alive",
        "X-Hop",
        "Idempotency-Generation",
        "Idempotency-Outcome",
    ];
    let mut headers = json!({
        "Date": "given", "Location": "/p/1", "Connection": "X-Hop",
        "Idempotency-Key": "given", REPLAYED: "given", "Idempotency-Key-Expires": "given",
        "Idempotency-Status": "given",
    });
    for name in never {
        headers[name] = "given".into();
    }
    let response = json!({"status": 402, "headers": headers, "body": "no"});
    let body = json!({"outcome": "completed", "response": response, "reason": "found"});
    resolve(&gateway, "k", body).await.expect(200);
    let replay = gateway.send(&Request::pay("k")).await.expect(402);
    for name in never {
        assert_eq!(replay.header(name), None, "{name}: {replay}");
    }
    assert!(!replay.to_string().contains("given"), "{replay}");
    assert!(replay.header("date").is_some(), "{replay}");
    assert_eq!(replay.header("location"), Some("/p/1"));
    assert_eq!(replay.header("idempotency-key"), Some("k"));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a binary answer can be given too.
///
/// Method: `body_base64`.
/// Evidence: the retry gets the decoded bytes; one execution.
#[tokio::test]
async fn resolved_with_bytes() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let response = json!({"status": 200, "headers": {}, "body_base64": "AP+AAQ=="});
    let body = json!({"outcome": "completed", "response": response, "reason": "found"});
    resolve(&gateway, "k", body).await.expect(200);
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(200).body,
        [0, 0xff, 0x80, 1]
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an operator who knows that nothing happened lets the client try again.
///
/// Method: resolve as failed_retryable.
/// Evidence: the retry is the second execution; the next one a replay.
#[tokio::test]
async fn resolved_as_retryable() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let body = json!({"outcome": "failed_retryable", "reason": "not in the ledger", "force": true});
    let record = resolve(&gateway, "k", body).await.expect(200).json();
    assert_eq!(record["state"], "failed_retryable");
    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.text(), r#"{"execution":2}"#);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

/// Goal: nothing but an unknown key is resolved, and never without a reason.
///
/// Method: no reason, an empty one, an unknown outcome, no response; then completed, failed and
/// running keys; an id that is not there.
/// Evidence: 400, 409, 404 as problem bodies; the records are as they were.
#[tokio::test]
async fn refused_resolutions() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "k").await;
    let before = gateway.full_record("k").await;
    let retryable = json!({"outcome": "failed_retryable", "reason": "because"});
    for bad in [
        json!({"outcome": "failed_retryable"}),
        json!({"outcome": "failed_retryable", "reason": ""}),
        json!({"outcome": "failed_retryable", "reason": "a\u{0}b"}),
        json!({"outcome": "failed_retryable", "reason": "\u{1b}[2J"}),
        json!({"outcome": "perhaps", "reason": "because"}),
        json!({"outcome": "completed", "reason": "because"}),
        json!({"reason": "because"}),
    ] {
        let refused = resolve(&gateway, "k", bad.clone()).await;
        assert_eq!(refused.status, 400, "{bad}: {refused}");
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json")
        );
    }
    assert_eq!(gateway.full_record("k").await, before);

    gateway.send(&Request::pay("done")).await.expect(201);
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay("failed")).await.expect(500);
    upstream.next(Script::created().held());
    let running = gateway.send_later(&Request::pay("running"));
    upstream.begun(4).await;
    for key in ["done", "failed", "running"] {
        let before = gateway.full_record(key).await;
        resolve(&gateway, key, retryable.clone()).await.expect(409);
        assert_eq!(gateway.full_record(key).await, before);
    }
    gateway
        .admin_post("/idempotency/keys/0000000000/resolve", &retryable)
        .await
        .expect(404);
    upstream.release();
    within("the running one", running)
        .await
        .unwrap()
        .expect(201);
}

/// Goal: a key can be kept for longer.
///
/// Method: extend a completed key to 48 hours, and then to one second.
/// Evidence: `expires_at` moved, and then no more; still a replay; one execution.
#[tokio::test]
async fn extended() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1h").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let before = gateway.record("k").await.unwrap()["expires_at"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/idempotency/keys/{}/extend", gateway.id("k").await);
    gateway
        .admin_post(&path, &json!({"ttl": "48h"}))
        .await
        .expect(200);
    let after = gateway.record("k").await.unwrap()["expires_at"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(after > before, "{before} -> {after}");
    let shorter = gateway.admin_post(&path, &json!({"ttl": "1s"})).await;
    let shorter = shorter.expect(200).json();
    assert_eq!(shorter["expires_at"], after, "{shorter}");
    gateway
        .admin_post(&path, &json!({"ttl": "soon"}))
        .await
        .expect(400);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a stored success is forgotten by force only; then its key is free.
///
/// Method: DELETE without and with `?force=true`; a 302 likewise; then other content.
/// Evidence: 409 and the record as it was; afterwards the key executes again.
#[tokio::test]
async fn forgetting_a_success_needs_force() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (count, status) in [201, 302].into_iter().enumerate() {
        let key = format!("stored-{status}");
        upstream.next(Script::reply(status));
        gateway.send(&Request::pay(&key)).await.expect(status);
        forget(&gateway, &key, "").await.expect(409);
        gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(upstream.executions(), count * 2 + 1);

        let forgotten = forget(&gateway, &key, "?force=true").await;
        assert!((200..300).contains(&forgotten.status), "{forgotten}");
        assert_eq!(gateway.state(&key).await, "expired");
        let other = Request::post("/payments").key(&key).json(r#"{"amount":1}"#);
        gateway.send(&other).await.expect(201);
        assert_eq!(upstream.executions(), count * 2 + 2);
    }
    assert!(audit(&gateway).await.contains("forg"), "an audited forget");
}

/// Goal: errors are forgotten without force, what is open never.
///
/// Method: a 402, a 500, an unknown and a running key.
/// Evidence: success for the first two; 409 for the others even by force; executions to match.
#[tokio::test]
async fn forgetting_what_is_open_is_refused() {
    let upstream = Upstream::start();
    let gateway = unknown(&upstream, "lost").await;
    for status in [402, 500] {
        let key = format!("error-{status}");
        upstream.next(Script::reply(status));
        gateway.send(&Request::pay(&key)).await.expect(status);
        let forgotten = forget(&gateway, &key, "").await;
        assert!(
            (200..300).contains(&forgotten.status),
            "{status}: {forgotten}"
        );
        gateway.send(&Request::pay(&key)).await.expect(201);
    }
    assert_eq!(upstream.executions(), 5);
    upstream.next(Script::created().held());
    let running = gateway.send_later(&Request::pay("running"));
    upstream.begun(6).await;
    for key in ["lost", "running"] {
        for query in ["", "?force=true"] {
            forget(&gateway, key, query).await.expect(409);
        }
    }
    upstream.release();
    within("the running one", running)
        .await
        .unwrap()
        .expect(201);
    gateway
        .send(&Request::pay("lost"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 6);
}

/// What a provider is told to say about a key, and what a release of the key then gets.
struct Word {
    key: &'static str,
    status: u16,
    gentle: Option<&'static str>,
    forced: Option<&'static str>,
}

/// Goal: releasing a key is not the shortest way to a double charge.
///
/// Method: unknown keys of a route with a query, each of which the provider says something else about; each is
/// released without force and with it, early and once nothing can be under way any more; then retried.
/// Evidence: codes, states, the audit, and the upstream's count of executions.
#[tokio::test]
async fn a_release_asks_the_provider_first() {
    let words = [
        Word {
            key: "executed",
            status: 200,
            gentle: Some("already_executed"),
            forced: Some("already_executed"),
        },
        Word {
            key: "silent",
            status: 500,
            gentle: Some("inconclusive"),
            forced: None,
        },
        Word {
            key: "unproven",
            status: 404,
            gentle: Some("inconclusive"),
            forced: None,
        },
        Word {
            key: "denied",
            status: 404,
            gentle: Some("too_early"),
            forced: None,
        },
    ];
    for Word {
        key,
        status,
        gentle,
        forced,
    } in words
    {
        for (force, code) in [(false, gentle), (true, forced)] {
            let (upstream, provider) = (Upstream::start(), Upstream::start());
            let gateway = asking(&provider, "upstream_max_execution: 10m")
                .start(&upstream)
                .await;
            if key != "unproven" {
                prove(&gateway, &provider).await;
            }
            provider.always(Script::reply(status));
            upstream.next(Script::hang_up());
            gateway.send(&Request::pay(key)).await.expect(502);
            let body = json!({"outcome": "failed_retryable", "reason": "x", "force": force});
            let told = resolve(&gateway, key, body).await;
            let state = match code {
                None => {
                    assert_eq!(told.clone().expect(200).json()["state"], "failed_retryable");
                    "failed_retryable"
                }
                Some(code) => {
                    let problem = told.expect(409).json();
                    assert_eq!(problem["code"], code, "{problem}");
                    match code {
                        "too_early" => assert!(problem["not_before"].is_string(), "{problem}"),
                        _ => assert!(problem["provider"]["detail"].is_string(), "{problem}"),
                    }
                    if code == "already_executed" {
                        "completed"
                    } else {
                        "unknown"
                    }
                }
            };
            assert_eq!(gateway.state(key).await, state, "{key} {force}");
            let retry = gateway.send(&Request::pay(key)).await;
            assert_eq!(retry.status == 409, state == "unknown", "{retry}");
            let runs = if state == "failed_retryable" { 2 } else { 1 };
            assert_eq!(upstream.executions_of(key), runs, "{key} {force}");
            assert_eq!(
                audit(&gateway).await.contains("forced: x"),
                force && code.is_none()
            );
        }
    }
}

/// Goal: once nothing can be under way any more, a provider's "not found" or, where there is no query, the
/// operator's word is enough; and before that the answer says when.
///
/// Method: short times, with a query and without one; a release early, and again at the time that was told.
/// Evidence: codes, and the executions.
#[tokio::test]
async fn a_release_in_time_needs_no_force() {
    let (upstream, provider) = (Upstream::start(), Upstream::start());
    let with = asking(&provider, "upstream_max_execution: 1s");
    let without =
        Setup::with("lease: 1s, max_execution: 2s, reconcile: operator").route("timeout: 1s");
    for setup in [with, without] {
        let gateway = setup.start(&upstream).await;
        prove(&gateway, &provider).await;
        provider.always(Script::reply(404));
        upstream.next(Script::hang_up());
        gateway.send(&Request::pay("k")).await.expect(502);
        let body = json!({"outcome": "failed_retryable", "reason": "not in the ledger"});
        let early = resolve(&gateway, "k", body.clone())
            .await
            .expect(409)
            .json();
        assert_eq!(early["code"], "too_early", "{early}");
        let record = gateway.record("k").await.expect("a record");
        assert_eq!(
            record["release_not_before"], early["not_before"],
            "{record}"
        );
        eventually("the time that was told", async || {
            let told = resolve(&gateway, "k", body.clone()).await;
            (told.status == 200).then_some(())
        })
        .await;
        assert!(!audit(&gateway).await.contains("forced"));
        let before = upstream.executions_of("k");
        gateway.send(&Request::pay("k")).await.expect(201);
        assert_eq!(upstream.executions_of("k"), before + 1);
    }
}

/// Lets the route's query find a key, so that its denials count from then on.
async fn prove(gateway: &Gateway, provider: &Upstream) {
    provider.always(Script::reply(200));
    gateway.send(&Request::pay("proof")).await.expect(201);
    let path = format!("/idempotency/keys/{}/probe", gateway.id("proof").await);
    gateway.admin(Request::new("POST", &path)).await.expect(200);
}

/// A gateway whose route asks `provider`, which finds with 200 and knows nothing with 404.
fn asking(provider: &Upstream, more: &str) -> Setup {
    Setup::with(&format!(
        "lease: 1s, reconcile: {{ query: {{ url: \"{}/q?key={{key}}\" }}, after: 1h, {more}, \
         outcomes: [{{ when: {{ status: [200] }}, complete: {{ status: 201 }} }}, \
         {{ when: {{ status: [404] }}, not_executed: true }}] }}",
        provider.url()
    ))
}

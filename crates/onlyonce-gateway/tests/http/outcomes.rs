//! What each end of an execution means for the next request with its key.

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, client::Response, script::Step,
    upstream::ClosedPort,
};

/// A 409 that says nobody knows, and what not to do about it.
#[track_caller]
fn says_unknown(answer: Response) {
    let answer = answer.refused(409, "idempotency_outcome_unknown");
    assert!(answer.retry_after().is_some(), "{answer}");
    let detail = answer.json()["detail"]
        .as_str()
        .unwrap_or_default()
        .to_lowercase();
    assert!(
        detail.contains("new key"),
        "the text must warn of a new key: {detail}"
    );
    assert_eq!(answer.header("stripe-should-retry"), Some("false"));
}

/// Goal: answers of 2xx, 3xx and 4xx are the answer for good.
///
/// Method: one key per status, each sent twice.
/// Evidence: the same status and bytes again, one execution per key.
#[tokio::test]
async fn answers_up_to_499_are_replayed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let statuses = [
        200, 201, 202, 302, 303, 400, 402, 403, 404, 409, 410, 422, 423,
    ];
    for (count, status) in statuses.into_iter().enumerate() {
        upstream.next(Script::reply(status));
        let key = format!("status-{status}");
        let first = gateway.send(&Request::pay(&key)).await.expect(status);
        let second = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(second.body, first.body, "{status}");
        assert_eq!(second.header(REPLAYED), Some("true"), "{status}");
        assert_eq!(
            upstream.executions(),
            count + 1,
            "{status} is executed once"
        );
    }
}

/// Goal: statuses that say "not done" release the key.
///
/// Method: one key per release status, then a retry that succeeds, then another.
/// Evidence: two executions per key; the third is a replay of the second.
#[tokio::test]
async fn release_statuses_are_executed_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for status in [401, 407, 408, 421, 425, 429] {
        let before = upstream.executions();
        upstream.next(Script::reply(status));
        let key = format!("released-{status}");
        let first = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(first.text(), format!("{{\"execution\":{}}}", before + 1));
        assert_eq!(gateway.state(&key).await, "failed_retryable");
        let second = gateway.send(&Request::pay(&key)).await.expect(201);
        let third = gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(third.body, second.body);
        assert_eq!(upstream.executions(), before + 2, "{status}");
    }
}

/// Goal: by default the operator declares that a failed API has undone its work.
///
/// Method: 500, 501, 503 and 507, each followed by a success.
/// Evidence: the error came as it was; the retry is the second execution; then replays.
#[tokio::test]
async fn server_errors_are_executed_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for status in [500, 501, 503, 505, 507] {
        let before = upstream.executions();
        upstream.next(
            Script::reply(status)
                .body("it broke")
                .header("X-From", "upstream"),
        );
        let key = format!("failed-{status}");
        let first = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(
            (first.text().as_str(), first.header("x-from")),
            ("it broke", Some("upstream"))
        );
        assert_eq!(gateway.state(&key).await, "failed_retryable");
        gateway.send(&Request::pay(&key)).await.expect(201);
        gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(upstream.executions(), before + 2, "{status}");
    }
}

/// Goal: 502 and 504 of the upstream say that nobody knows.
///
/// Method: each once, then two retries.
/// Evidence: the first client has the upstream's own body; then 409; one execution per key.
#[tokio::test]
async fn gateway_errors_of_the_upstream_are_unknown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (count, status) in [502, 504].into_iter().enumerate() {
        upstream.next(Script::reply(status).body("from behind"));
        let key = format!("unknown-{status}");
        let first = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(first.text(), "from behind");
        assert_eq!(gateway.state(&key).await, "unknown");
        says_unknown(gateway.send(&Request::pay(&key)).await);
        says_unknown(gateway.send(&Request::pay(&key)).await);
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: an upstream that breaks off after a byte was sent leaves the key unknown.
///
/// Method: close, reset, half a head, a truncated body with a length and one in chunks.
/// Evidence: 502 each, then 409; one execution per key.
#[tokio::test]
async fn a_broken_answer_is_unknown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let half_head = Step::Write(b"HTTP/1.1 201 Cre".to_vec());
    let chunked = "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nwo";
    let scripts = [
        ("close", Script::hang_up()),
        ("reset", Script::reset()),
        ("half-head", Script::steps(vec![half_head, Step::Close])),
        ("length", Script::truncated(100, b"only this")),
        (
            "chunks",
            Script::steps(vec![Step::Write(chunked.into()), Step::Close]),
        ),
    ];
    for (count, (key, script)) in scripts.into_iter().enumerate() {
        upstream.next(script);
        let first = gateway.send(&Request::pay(key)).await;
        let first = first.refused(502, "idempotency_outcome_unknown");
        assert_eq!(first.header("x-should-retry"), Some("false"), "{key}");
        assert_eq!(gateway.state(key).await, "unknown", "{key}");
        says_unknown(gateway.send(&Request::pay(key)).await);
        assert_eq!(upstream.executions(), count + 1, "{key}");
    }
}

/// Goal: a refused connection is proof that nothing was sent.
///
/// Method: a port that refuses, then the same port with an upstream behind it.
/// Evidence: 503 twice, the key retryable; then one execution and its replay.
#[tokio::test]
async fn a_refused_connection_is_retryable() {
    let port = ClosedPort::reserve();
    let gateway = Setup::with("").start_before(&port.url()).await;
    for _ in 0..2 {
        let refused = gateway
            .send(&Request::pay("k"))
            .await
            .refused(503, "upstream_not_reached");
        assert_eq!(refused.header("stripe-should-retry"), Some("true"));
        assert_eq!(gateway.state("k").await, "failed_retryable");
    }
    let upstream = port.open();
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.body, first.body);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a connection that closes before it reads is judged by what was written, never by hope.
///
/// Method: the upstream accepts and closes at once; retry.
/// Evidence: either proof that nothing was sent, and the retry executes; or unknown, and it does
/// not. The upstream counts to match.
#[tokio::test]
async fn a_connection_closed_before_reading() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for number in 0..10 {
        let before = upstream.executions();
        let key = format!("slammed-{number}");
        // More than one: a connection that provably took nothing may be tried again at once.
        upstream.slam(4);
        let first = gateway.send(&Request::pay(&key)).await;
        upstream.slam(0);
        let retry = gateway.send(&Request::pay(&key)).await;
        if first.status == 503 {
            first.refused(503, "upstream_not_reached");
            retry.expect(201);
            assert_eq!(upstream.executions(), before + 1);
        } else if first.status == 201 {
            assert_eq!(retry.expect(201).body, first.body);
            assert_eq!(upstream.executions(), before + 1);
        } else {
            first.refused(502, "idempotency_outcome_unknown");
            says_unknown(retry);
            assert_eq!(upstream.executions(), before);
        }
    }
}

/// Goal: a conflict on a later attempt may speak of the first one.
///
/// Method: 500, then 409, 423 and 425 on the second attempt.
/// Evidence: the client gets the conflict as it came; the key is unknown; two executions.
#[tokio::test]
async fn a_conflict_on_a_second_attempt_is_unknown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for status in [409, 423, 425] {
        let before = upstream.executions();
        let key = format!("conflict-{status}");
        upstream.next(Script::reply(500));
        upstream.next(Script::reply(status).body("still busy"));
        gateway.send(&Request::pay(&key)).await.expect(500);
        let second = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(second.text(), "still busy");
        assert_eq!(gateway.state(&key).await, "unknown");
        says_unknown(gateway.send(&Request::pay(&key)).await);
        assert_eq!(upstream.executions(), before + 2, "{status}");
    }
}

/// Goal: `on_5xx` and `release_statuses` say otherwise where they are set.
///
/// Method: `store`, `unknown`, and a list that replaces the default one.
/// Evidence: replay of the 500; 409; 429 replayed and 418 executed again.
#[tokio::test]
async fn the_rules_are_configurable() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "on_5xx: store").await;
    let first = gateway.send(&Request::pay("k")).await.expect(500);
    let second = gateway.send(&Request::pay("k")).await.expect(500);
    assert_eq!(
        (&second.body, second.header(REPLAYED)),
        (&first.body, Some("true"))
    );
    assert_eq!(
        second.header("stripe-should-retry"),
        Some("false"),
        "a replayed 5xx"
    );

    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "on_5xx: unknown").await;
    gateway.send(&Request::pay("k")).await.expect(500);
    says_unknown(gateway.send(&Request::pay("k")).await);
    assert_eq!(upstream.executions(), 2);

    upstream.next(Script::reply(429));
    upstream.next(Script::reply(418));
    let gateway = Gateway::start(&upstream, "release_statuses: [418]").await;
    gateway.send(&Request::pay("limited")).await.expect(429);
    gateway.send(&Request::pay("limited")).await.expect(429);
    gateway.send(&Request::pay("teapot")).await.expect(418);
    gateway.send(&Request::pay("teapot")).await.expect(201);
    assert_eq!(upstream.executions(), 5);
}

/// Goal: an upstream in any language can say what happened.
///
/// Method: `Idempotency-Outcome` with each word against the status's own rule.
/// Evidence: the word decides the next request; it is never passed on.
#[tokio::test]
async fn the_upstream_may_declare_the_outcome() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let declare = |status, word| Script::reply(status).header("Idempotency-Outcome", word);

    upstream.next(declare(200, "not-executed"));
    let first = gateway
        .send(&Request::pay("not-executed"))
        .await
        .expect(200);
    assert_eq!(first.header("idempotency-outcome"), None);
    gateway
        .send(&Request::pay("not-executed"))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 2);

    upstream.next(declare(500, "final"));
    gateway.send(&Request::pay("final")).await.expect(500);
    let second = gateway.send(&Request::pay("final")).await.expect(500);
    assert_eq!(second.header("idempotency-outcome"), None);
    assert_eq!(upstream.executions(), 3);

    upstream.next(declare(200, "unknown"));
    let first = gateway.send(&Request::pay("unknown")).await.expect(200);
    assert_eq!(first.header("idempotency-outcome"), None);
    says_unknown(gateway.send(&Request::pay("unknown")).await);
    assert_eq!(upstream.executions(), 4);
}

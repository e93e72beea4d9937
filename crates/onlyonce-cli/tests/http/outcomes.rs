//! What each end of an execution means for the next request with its key.

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, client::Response, script::Step,
    upstream::ClosedPort,
};

/// A 409 that says nobody knows, and what not to do about it.
#[track_caller]
fn says_unknown(answer: Response) {
    let answer = answer.refused(409, "idempotency_outcome_unknown");
    assert_eq!(
        answer.retry_after(),
        None,
        "automatic retries would stall: {answer}"
    );
    assert_eq!(answer.header("idempotency-status"), Some("unknown"));
    let place = answer.header("location").unwrap_or_default();
    assert!(place.starts_with("/.onlyonce/keys/"), "{answer}");
    assert!(
        answer.json()["ask_again_after_seconds"].is_u64(),
        "{answer}"
    );
    assert_eq!(answer.json()["error"]["type"], "idempotency_error");
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
    for status in [401, 407, 421, 425, 429] {
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

/// Goal: 408, 499, 502, 504 and everything above 511 say that nobody knows.
///
/// Method: each once, then two retries.
/// Evidence: the first client has the upstream's own body; then 409; one execution per key.
#[tokio::test]
async fn gateway_errors_of_the_upstream_are_unknown() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (count, status) in [408, 499, 502, 504, 512, 520, 522, 524, 530, 599, 999]
        .into_iter()
        .enumerate()
    {
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

/// Goal: a conflict speaks of this request where no earlier one can have reached the handler.
///
/// Method: 401 and 407, then 409, 423 and 425 on the second attempt; and a first attempt that was refused.
/// Evidence: 409 and 423 are the answer for good, 425 releases; the upstream counts to match.
#[tokio::test]
async fn a_conflict_after_an_attempt_that_reached_nobody_is_an_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for turned_away in [401, 407] {
        for status in [409, 423, 425] {
            let before = upstream.executions();
            let key = format!("turned-away-{turned_away}-{status}");
            upstream.next(Script::reply(turned_away));
            upstream.next(Script::reply(status).body("taken"));
            gateway.send(&Request::pay(&key)).await.expect(turned_away);
            gateway.send(&Request::pay(&key)).await.expect(status);
            let expected = match status {
                425 => ("failed_retryable", 201),
                _ => ("completed", status),
            };
            assert_eq!(gateway.state(&key).await, expected.0, "{key}");
            gateway.send(&Request::pay(&key)).await.expect(expected.1);
            let more = 2 + usize::from(status == 425);
            assert_eq!(upstream.executions(), before + more, "{key}");
        }
    }
    let port = ClosedPort::reserve();
    let gateway = Setup::with("").start_before(&port.url()).await;
    let unsent = gateway.send(&Request::pay("k")).await;
    unsent.refused(503, "upstream_not_reached");
    let upstream = port.open();
    upstream.next(Script::reply(409));
    gateway.send(&Request::pay("k")).await.expect(409);
    let again = gateway.send(&Request::pay("k")).await.expect(409);
    assert_eq!(again.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client that follows a redirect sends the same key with another path, and is served.
///
/// Method: 307 and 308 to the slashed path; the client repeats its request there, then once more.
/// Evidence: the redirected request executes and is replayed; another body under that key is refused.
#[tokio::test]
async fn a_redirect_that_repeats_the_request_releases_the_key() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for status in [307, 308] {
        let before = upstream.executions();
        let key = format!("moved-{status}");
        upstream.next(Script::reply(status).header("Location", "/payments/"));
        let moved = gateway.send(&Request::pay(&key)).await.expect(status);
        assert_eq!(moved.header("location"), Some("/payments/"));
        assert_eq!(gateway.state(&key).await, "failed_retryable");
        let there = || {
            let body = r#"{"amount":1000,"currency":"EUR"}"#;
            Request::post("/payments/").key(&key).json(body)
        };
        let first = gateway.send(&there()).await.expect(201);
        let second = gateway.send(&there()).await.expect(201);
        assert_eq!(second.body, first.body);
        assert_eq!(second.header(REPLAYED), Some("true"));
        let other = gateway.send(&Request::pay(&key)).await;
        other.refused(422, "idempotency_key_reused");
        assert_eq!(upstream.executions(), before + 2, "{status}");
    }
}

/// Goal: a proxy that lost the request after sending it does not get it executed again.
///
/// Method: 503 with each of the ways in which proxies say so, and the same ways about a request that was not
/// sent; headers that say so also where `Connection` names them; and with answers too long to be kept.
/// Evidence: unknown and one execution; of the others a second execution, as `on_5xx: retry` says.
#[tokio::test]
async fn a_503_of_a_proxy_that_lost_the_request_is_unknown() {
    for options in ["", "max_body_size: 0", "max_body_size: 50"] {
        proxies_that_lost_the_request(options).await;
    }
}

async fn proxies_that_lost_the_request(options: &str) {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, options).await;
    let text = "upstream connect error or disconnect/reset before headers. reset reason: ";
    let page = "<iframe src=\"//www.herokucdn.com/error-pages/application-error.html\"></iframe>";
    let says = |name, value| Script::reply(503).header(name, value);
    let details = "x-envoy-response-code-details";
    let lost = [
        says("Proxy-Status", "cdn; error=connection_terminated"),
        says(
            "Proxy-Status",
            "\"a, b\"; details=\"x;y\"; error=http_response_timeout",
        ),
        says("X-Envoy-Response-Flags", "UC"),
        says("X-Envoy-Response-Flags", "UF,URX"),
        says(
            details,
            "upstream_reset_before_response_started{connection_termination}",
        ),
        Script::reply(503).body(format!("{text}connection termination")),
        Script::reply(503).chunks([text, "connection termination"]),
        says("Content-Type", "text/html; charset=utf-8").body(page),
        says("Content-Type", "text/html").body(format!("{page}{}", " ".repeat(9_000))),
        says("Proxy-Status", "cdn; error=connection_terminated")
            .header("Connection", "Proxy-Status"),
        says("X-Envoy-Response-Flags", "UC").header("Connection", "x-envoy-response-flags"),
        Script::reply(503)
            .chunks([" ".repeat(60)])
            .trailer("Proxy-Status", "cdn; error=connection_terminated"),
    ];
    for (number, script) in lost.into_iter().enumerate() {
        let before = upstream.executions();
        upstream.next(script);
        let key = format!("lost-{number}");
        gateway.send(&Request::pay(&key)).await.expect(503);
        assert_eq!(gateway.state(&key).await, "unknown", "{key}");
        says_unknown(gateway.send(&Request::pay(&key)).await);
        assert_eq!(upstream.executions(), before + 1, "{key}");
    }
    let unsent = [
        says("Proxy-Status", "cdn; error=connection_refused"),
        says("X-Envoy-Response-Flags", "UF"),
        Script::reply(503).body(format!("{text}connection failure")),
        Script::reply(503).body("no healthy upstream"),
    ];
    for (number, script) in unsent.into_iter().enumerate() {
        let before = upstream.executions();
        upstream.next(script);
        let key = format!("unsent-{number}");
        gateway.send(&Request::pay(&key)).await.expect(503);
        gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(upstream.executions(), before + 2, "{key}");
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

/// Goal: an upstream's word about the operation is heard however it is written.
///
/// Method: each word in other letters, in a list as a proxy may make of two lines, and named in `Connection`.
/// Evidence: the state of the key, by a rule that the status alone would not lead to.
#[tokio::test]
async fn an_outcome_is_heard_however_it_is_written() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (number, (status, word, state)) in [
        (500, "final", "completed"),
        (500, "Final", "completed"),
        (500, "final, final", "completed"),
        (500, "final,", "completed"),
        (500, "unknown", "unknown"),
        (500, "unknown,unknown", "unknown"),
        (500, "final, unknown", "unknown"),
        (200, "not-executed", "failed_retryable"),
        (200, "not-executed, final", "unknown"),
    ]
    .into_iter()
    .enumerate()
    {
        for connection in ["keep-alive", "Idempotency-Outcome"] {
            let script = Script::reply(status).header("Idempotency-Outcome", word);
            upstream.next(script.header("Connection", connection));
            let key = format!("{number}-{connection}");
            let answer = gateway.send(&Request::pay(&key)).await.expect(status);
            assert_eq!(answer.header("idempotency-outcome"), None, "{word}");
            assert_eq!(gateway.state(&key).await, state, "{word}, {connection}");
        }
    }
}

/// Goal: an answer is judged by all that is said about it, behind it and several times over too.
///
/// Method: a part that a proxy owns up to in a trailer; two outcomes that contradict each other, and two that
/// agree; Heroku's error with its description.
/// Evidence: the state of the key; a retry of what is unknown or completed does not reach the upstream.
#[tokio::test]
async fn what_is_said_behind_an_answer_or_twice() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let said = |words: [&str; 2]| {
        let once = Script::created().header("Idempotency-Outcome", words[0]);
        once.header("Idempotency-Outcome", words[1])
    };
    let cut = Script::reply(200).chunks([r#"{"id":"c"#]);
    let cut = cut.trailer("Proxy-Status", "edge; error=http_response_incomplete");
    let heroku = r#"code=H12 desc="Request timeout""#;
    for (key, script, state) in [
        ("behind", cut, "unknown"),
        ("torn", said(["not-executed", "final"]), "unknown"),
        ("turn", said(["final", "not-executed"]), "unknown"),
        ("odd", said(["not-executed", "perhaps"]), "unknown"),
        ("agreed", said(["final", "final"]), "completed"),
        (
            "router",
            Script::reply(503).header("X-Heroku-Error", heroku),
            "unknown",
        ),
    ] {
        upstream.next(script);
        gateway.send(&Request::pay(key)).await;
        assert_eq!(gateway.state(key).await, state, "{key}");
        gateway.send(&Request::pay(key)).await;
        assert_eq!(upstream.executions_of(key), 1, "{key}");
    }
}

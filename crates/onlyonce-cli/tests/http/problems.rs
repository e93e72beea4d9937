//! Error bodies and the hints that SDKs look at.

use serde_json::Value;

use crate::harness::{
    Gateway, Request, Response, Script, Setup, Upstream, upstream::ClosedPort, within,
};

/// Every field of a problem body, and Stripe's beside them.
#[track_caller]
fn is_hybrid(answer: &Response, code: &str) {
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{answer}"
    );
    assert_eq!(
        answer.headers.all("cache-control"),
        ["no-store"],
        "{answer}"
    );
    let body = answer.json();
    assert_eq!(body["status"], answer.status, "{answer}");
    assert_eq!(body["code"], code, "{answer}");
    for field in ["type", "title", "detail"] {
        assert!(
            body[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field}: {answer}"
        );
    }
    assert!(
        body["type"]
            .as_str()
            .is_some_and(|text| text.contains("://")),
        "a URL: {answer}"
    );
    let error = &body["error"];
    assert_eq!(error["code"], code, "{answer}");
    for field in ["type", "message"] {
        assert!(
            error[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field}: {answer}"
        );
    }
}

/// Both hints say `hint`.
#[track_caller]
fn hints(answer: &Response, hint: Option<&str>) {
    assert_eq!(answer.header("stripe-should-retry"), hint, "{answer}");
    assert_eq!(answer.header("x-should-retry"), hint, "{answer}");
}

/// Goal: every refusal of ours has the same shape, and its hint is the right one.
///
/// Method: provoke each code that one gateway can give.
/// Evidence: the fields, the hint, Retry-After where promised; executions as counted.
#[tokio::test]
async fn every_refusal_has_its_shape_and_hint() {
    let upstream = Upstream::start();
    let options =
        "enforce: true, on_in_flight: reject, max_body_size: 1KiB, max_request_body: 4KiB";
    let gateway = Gateway::start(&upstream, options).await;
    let unkeyed = Request::post("/payments").json("{}");
    let expect = async |request: Request, status, code: &str, hint| {
        let answer = gateway.send(&request).await.refused(status, code);
        is_hybrid(&answer, code);
        hints(&answer, hint);
        answer
    };
    expect(
        unkeyed.clone(),
        400,
        "idempotency_key_missing",
        Some("false"),
    )
    .await;
    expect(
        unkeyed.clone().key("a b"),
        400,
        "idempotency_key_invalid",
        Some("false"),
    )
    .await;
    let large = Request::post("/p")
        .key("large")
        .body("text/plain", vec![b'x'; 5_000]);
    expect(large, 413, "request_too_large", None).await;
    assert_eq!(upstream.executions(), 0);

    gateway.send(&Request::pay("done")).await.expect(201);
    expect(
        unkeyed.clone().key("done"),
        422,
        "idempotency_key_reused",
        Some("false"),
    )
    .await;
    upstream.next(Script::created().body(vec![b'x'; 2_000]));
    gateway.send(&Request::pay("big")).await.expect(201);
    let code = "idempotency_response_not_stored";
    let answer = expect(Request::pay("big"), 409, code, Some("false")).await;
    assert_eq!(answer.json()["original_status"], 201);

    upstream.next(Script::hang_up());
    let code = "idempotency_outcome_unknown";
    expect(Request::pay("lost"), 502, code, Some("false")).await;
    let answer = expect(Request::pay("lost"), 409, code, Some("false")).await;
    assert_eq!(answer.retry_after(), None, "{answer}");

    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(4).await;
    let code = "idempotency_key_in_progress";
    let answer = expect(Request::pay("held"), 409, code, Some("true")).await;
    assert!(matches!(answer.retry_after(), Some(1..=60)), "{answer}");
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);
    assert_eq!(upstream.executions(), 4);
}

/// Goal: 202 carries the hints, and so does a connection that was refused.
///
/// Method: `accept` with a held first; a port that refuses.
/// Evidence: `true` on both.
#[tokio::test]
async fn hints_on_202_and_503() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "on_in_flight: accept").await;
    let held = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let accepted = gateway.send(&Request::pay("k")).await;
    hints(
        &accepted.refused(202, "idempotency_key_in_progress"),
        Some("true"),
    );
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let port = ClosedPort::reserve();
    let gateway = Setup::with("").start_before(&port.url()).await;
    let refused = gateway
        .send(&Request::pay("k"))
        .await
        .refused(503, "upstream_not_reached");
    is_hybrid(&refused, "upstream_not_reached");
    hints(&refused, Some("true"));
}

/// Goal: answers of the upstream carry no hint of ours.
///
/// Method: 201, 402, and a 500 as it came; their replays.
/// Evidence: no hint on any of them.
#[tokio::test]
async fn no_hints_elsewhere() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for status in [201, 402] {
        upstream.next(Script::reply(status));
        for _ in 0..2 {
            let request = Request::pay(&format!("s-{status}"));
            hints(&gateway.send(&request).await.expect(status), None);
        }
    }
    upstream.next(Script::reply(500));
    hints(
        &gateway.send(&Request::pay("failed")).await.expect(500),
        None,
    );
    assert_eq!(upstream.executions(), 3);
}

/// Goal: every answer to a request with a key says what the key is now, and no other answer does.
///
/// Method: each end of an execution, each refusal, a replay; requests without a key; an upstream that says the word itself.
/// Evidence: the word beside the state that the admin API shows.
#[tokio::test]
async fn every_keyed_answer_says_what_the_key_is_now() {
    let upstream = Upstream::start();
    let options = "on_in_flight: reject, max_body_size: 1KiB, max_request_body: 4KiB";
    let gateway = Gateway::start(&upstream, options).await;
    let says = |answer: &Response, word: &str| {
        assert_eq!(answer.headers.all("idempotency-status"), [word], "{answer}");
    };
    for (script, word) in [
        (Script::created(), "completed"),
        (Script::reply(402), "completed"),
        (Script::reply(500), "failed_retryable"),
        (Script::reply(401), "failed_retryable"),
        (Script::reply(307), "failed_retryable"),
        (Script::reply(502), "unknown"),
        (Script::hang_up(), "unknown"),
        (Script::created().body(vec![b'x'; 2_000]), "completed"),
    ] {
        let key = format!("first-{}", upstream.executions());
        let lie = script
            .header("Idempotency-Status", "bypassed")
            .header("Idempotency-Generation", "7")
            .header("X-Idempotent-Replayed", "true");
        upstream.next(lie);
        let answer = gateway.send(&Request::pay(&key)).await;
        says(&answer, word);
        assert_eq!(answer.header("idempotency-generation"), None, "{answer}");
        assert_eq!(answer.header("x-idempotent-replayed"), None, "{answer}");
        assert_eq!(gateway.state(&key).await, word);
        if word != "failed_retryable" {
            says(&gateway.send(&Request::pay(&key)).await, word);
            let other = Request::post("/payments").key(&key).json("{}");
            says(&gateway.send(&other).await.expect(422), word);
        }
    }
    upstream.next(Script::created().held());
    let next = upstream.executions() + 1;
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(next).await;
    let running = gateway.send(&Request::pay("held")).await;
    says(
        &running.refused(409, "idempotency_key_in_progress"),
        "in_progress",
    );
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let unkeyed = Request::post("/payments").json("{}");
    says(
        &gateway.send(&unkeyed.clone().key("a b")).await.expect(400),
        "not-looked-up",
    );
    let large = Request::post("/p")
        .key("large")
        .body("text/plain", vec![b'x'; 5_000]);
    says(&gateway.send(&large).await.expect(413), "not-looked-up");

    let lie = || Script::created().header("Idempotency-Status", "completed");
    for request in [unkeyed, Request::get("/payments").key("ignored")] {
        upstream.next(
            lie()
                .header("Idempotency-Outcome", "final")
                .header("Idempotency-Generation", "2"),
        );
        let answer = gateway.send(&request).await.expect(201);
        for name in [
            "idempotency-status",
            "idempotency-generation",
            "idempotency-outcome",
        ] {
            assert_eq!(answer.header(name), None, "{answer}");
        }
    }
    let port = ClosedPort::reserve();
    let gateway = Setup::with("").start_before(&port.url()).await;
    says(
        &gateway.send(&Request::pay("k")).await.expect(503),
        "failed_retryable",
    );
}

/// Goal: what an upstream hinted with an error is not said again with its replays.
///
/// Method: a stored 402 and a stored 503 with `Retry-After` and both hints, each replayed.
/// Evidence: the first client gets them as they came, the second none of them but our own.
#[tokio::test]
async fn hints_of_a_stored_error_are_not_replayed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "on_5xx: store").await;
    for (status, replayed) in [(402, None), (503, Some("false"))] {
        let key = format!("stored-{status}");
        let hinted = Script::reply(status)
            .header("Retry-After", "9")
            .header("Stripe-Should-Retry", "true")
            .header("X-Should-Retry", "true");
        upstream.next(hinted);
        let first = gateway.send(&Request::pay(&key)).await.expect(status);
        hints(&first, Some("true"));
        let second = gateway.send(&Request::pay(&key)).await.expect(status);
        hints(&second, replayed);
        assert_eq!(second.retry_after(), None, "{second}");
        assert_eq!(second.headers.all("cache-control"), ["no-store"]);
    }
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a call of gRPC with a key is refused in its own form and not executed.
///
/// Method: each content type of gRPC with a key; without one; and without one where a key is demanded.
/// Evidence: 200 with `grpc-status: 12` and no body; the upstream counts the call without a key alone.
#[tokio::test]
async fn a_keyed_call_of_grpc_is_not_implemented() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let call = |kind: &str| Request::post("/shop.Payments/Pay").body(kind, b"\0\0\0\0\0");
    let unimplemented = |answer: Response| {
        let answer = answer.expect(200);
        assert_eq!(answer.header("grpc-status"), Some("12"), "{answer}");
        assert_eq!(answer.header("content-type"), Some("application/grpc"));
        assert!(answer.header("grpc-message").is_some(), "{answer}");
        assert!(answer.body.is_empty(), "{answer}");
    };
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "Application/gRPC-Web",
    ] {
        unimplemented(gateway.send(&call(kind).key("k")).await);
    }
    // Of two lines the upstream may believe either.
    let two = call("text/plain").header("Content-Type", "application/grpc");
    unimplemented(gateway.send(&two.key("k")).await);
    assert_eq!(upstream.executions(), 0);
    gateway.send(&call("application/grpc")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
    let enforced = Gateway::start(&upstream, "enforce: true").await;
    unimplemented(enforced.send(&call("application/grpc")).await);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: `error_format` leaves out what is not wanted.
///
/// Method: a missing key under `problem` and `stripe`.
/// Evidence: no `error` object; nothing but an `error` object.
#[tokio::test]
async fn error_formats() {
    let upstream = Upstream::start();
    let refused = async |format: &str| {
        let options = format!("enforce: true, error_format: {format}");
        let gateway = Gateway::start(&upstream, &options).await;
        gateway
            .send(&Request::post("/payments").json("{}"))
            .await
            .expect(400)
    };
    let problem = refused("problem").await;
    assert_eq!(
        problem.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(problem.code(), "idempotency_key_missing");
    assert_eq!(problem.json().get("error"), None, "{problem}");

    let stripe = refused("stripe").await;
    assert_eq!(
        stripe.json()["error"]["code"],
        "idempotency_key_missing",
        "{stripe}"
    );
    assert!(stripe.json()["error"]["message"].is_string(), "{stripe}");
    assert_eq!(
        stripe.json().get("title").unwrap_or(&Value::Null),
        &Value::Null,
        "{stripe}"
    );

    is_hybrid(&refused("hybrid").await, "idempotency_key_missing");
    assert_eq!(upstream.executions(), 0);
}

/// Goal: a path without a route is told so.
///
/// Method: the one route moved away from `/`; then with a format of errors for all routes.
/// Evidence: 404 `no_route` in that format, no execution.
#[tokio::test]
async fn no_route() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").path("/api").start(&upstream).await;
    let refused = gateway
        .send(&Request::pay("k"))
        .await
        .refused(404, "no_route");
    is_hybrid(&refused, "no_route");
    gateway
        .send(&Request::post("/api/x").key("k").json("{}"))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 1);
    let gateway = Setup::with("error_format: stripe").path("/api");
    let gateway = gateway.start(&upstream).await;
    for path in ["/payments", "/.onlyonce/keys/nobody"] {
        let refused = gateway.send(&Request::get(path)).await.expect(404);
        assert!(refused.json()["error"]["code"].is_string(), "{refused}");
        assert_eq!(refused.json().get("title"), None, "{refused}");
    }
}

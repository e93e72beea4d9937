//! What reaches the upstream and what is taken away on the way, and limits on what comes in.

use crate::harness::{Connection, Gateway, Request, Script, Setup, Upstream};

/// Goal: the upstream can deduplicate by itself, and nobody can speak in the gateway's name.
///
/// Method: a keyed request with every reserved header set by the client.
/// Evidence: the upstream saw the key unchanged, the gateway's own attempt, identity encoding.
#[tokio::test]
async fn a_keyed_request_as_the_upstream_sees_it() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "").await;
    let request = Request::pay("order-1")
        .header("Idempotency-Attempt", "forged")
        .header("Idempotency-Outcome", "final")
        .header("X-Idempotent-Replayed", "true")
        .header("Accept-Encoding", "gzip, br")
        .header("X-Own", "kept")
        .header("X-Own", "twice");
    gateway.send(&request).await.expect(500);
    gateway.send(&request).await.expect(201);
    let seen = upstream.requests();
    assert_eq!(seen.len(), 2);
    let mut attempts = Vec::new();
    for request in &seen {
        assert_eq!(request.headers.all("idempotency-key"), ["order-1"]);
        assert_eq!(request.headers.all("idempotency-outcome"), [""; 0]);
        assert_eq!(request.headers.all("x-idempotent-replayed"), [""; 0]);
        assert_eq!(request.headers.all("accept-encoding"), ["identity"]);
        assert_eq!(request.headers.all("x-own"), ["kept", "twice"]);
        let attempt = request.headers.all("idempotency-attempt");
        assert_eq!(attempt.len(), 1, "{:?}", request.headers);
        assert!(!attempt[0].contains("forged") && !attempt[0].is_empty());
        attempts.push(attempt[0].to_owned());
    }
    assert_ne!(attempts[0], attempts[1], "each attempt has its own token");
}

/// Goal: forged headers are removed on every path.
///
/// Method: them on an unkeyed POST, on a GET, and on a route where nothing is enabled.
/// Evidence: the upstream saw none of them.
#[tokio::test]
async fn forged_headers_are_removed_on_every_path() {
    let upstream = Upstream::start();
    let forge = |request: Request| {
        request
            .header("Idempotency-Attempt", "forged")
            .header("idempotency-outcome", "final")
            .header("X-Idempotent-Replayed", "true")
    };
    let protected = Gateway::start(&upstream, "").await;
    let setup = Setup::with("").route("idempotency: { enabled: false }");
    let plain = setup.start(&upstream).await;
    protected
        .send(&forge(Request::post("/x").json("{}")))
        .await
        .expect(201);
    protected
        .send(&forge(Request::get("/x").key("k")))
        .await
        .expect(201);
    plain.send(&forge(Request::pay("k"))).await.expect(201);
    assert_eq!(upstream.executions(), 3);
    for seen in upstream.requests() {
        for name in [
            "idempotency-attempt",
            "idempotency-outcome",
            "x-idempotent-replayed",
        ] {
            assert_eq!(
                seen.headers.one(name),
                None,
                "{name} passed: {:?}",
                seen.headers
            );
        }
    }
}

/// Goal: a header whose name has underscores and reads like one of ours does not reach the upstream, which
/// may not tell the two apart.
///
/// Method: our own names, the override headers and the header of a trusted proxy with underscores, keyed and
/// not; and a header that reads like none of them.
/// Evidence: what the upstream recorded.
#[tokio::test]
async fn underscores_do_not_forge_headers() {
    let upstream = Upstream::start();
    let trusted = "auth: { trusted_header: { name: X-Client-Id, from: [\"127.0.0.0/8\"] } }";
    let gateway = Setup::with("").top(trusted).start(&upstream).await;
    let names = [
        "Idempotency_Attempt",
        "Idempotency-Outcome_",
        "Idempotency_Outcome",
        "IDEMPOTENCY_KEY",
        "Idempotency_Status",
        "X_Idempotent-Replayed",
        "X_HTTP_Method_Override",
        "X-HTTP_Method",
        "X_Original_URL",
        "X_Client_Id",
        "x_client-id",
    ];
    let forge = |request: Request| {
        let request = request.header("X-Client-Id", "acme").header("X_Own", "1");
        names
            .iter()
            .fold(request, |request, name| request.header(name, "POST"))
    };
    gateway.send(&forge(Request::pay("k"))).await.expect(201);
    gateway.send(&forge(Request::get("/x"))).await.expect(201);
    assert_eq!(upstream.executions(), 2);
    for seen in upstream.requests() {
        let mut left: Vec<_> = seen
            .headers
            .0
            .iter()
            .map(|(name, _)| name.to_lowercase())
            .collect();
        left.retain(|name| name.contains('_'));
        left.sort_unstable();
        assert_eq!(left, ["idempotency-outcome_", "x_own"]);
        assert_eq!(seen.headers.one("x-client-id"), Some("acme"));
    }
}

/// Goal: method, path and query are forwarded exactly, hop-by-hop headers are not.
///
/// Method: an encoded path with a query; `Connection: X-Hop`, `TE`, `Keep-Alive`.
/// Evidence: what the upstream recorded.
#[tokio::test]
async fn the_target_is_forwarded_exactly() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let target = "/a%2Fb/c%20d;v=1?q=%41&q=b&empty=";
    let request = Request::new("PATCH", target)
        .key("k")
        .header("Connection", "X-Hop")
        .header("X-Hop", "1")
        .header("Keep-Alive", "timeout=5")
        .json("{}");
    gateway.send(&request).await.expect(201);
    let seen = upstream.last();
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("PATCH", target)
    );
    for hop in ["x-hop", "keep-alive"] {
        assert_eq!(seen.headers.one(hop), None, "{hop} passed");
    }
}

/// Goal: the upstream's declaration and attempt are not for the client.
///
/// Method: an answer with `Idempotency-Outcome`.
/// Evidence: neither it nor an attempt token on the answer or on its replay.
#[tokio::test]
async fn internal_headers_do_not_come_back() {
    let upstream = Upstream::start();
    upstream.next(Script::created().header("Idempotency-Outcome", "final"));
    let gateway = Gateway::start(&upstream, "").await;
    for _ in 0..2 {
        let answer = gateway.send(&Request::pay("k")).await.expect(201);
        assert_eq!(answer.header("idempotency-outcome"), None);
        assert_eq!(answer.header("idempotency-attempt"), None);
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a request body above the limit is refused before anything is reserved.
///
/// Method: `max_request_body: 1KiB`; 2 KiB with a length and in chunks; then the limit itself.
/// Evidence: 413, no record, no execution; the limit's own size is executed under the same key.
#[tokio::test]
async fn a_large_request_body_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "max_request_body: 1KiB").await;
    for (count, chunked) in [false, true].into_iter().enumerate() {
        let key = format!("large-{chunked}");
        let sized = |bytes: usize| {
            let request = Request::post("/up")
                .key(&key)
                .body("text/plain", vec![b'x'; bytes]);
            if chunked { request.chunked() } else { request }
        };
        for bytes in [2_048, 1_025] {
            gateway
                .send(&sized(bytes))
                .await
                .refused(413, "request_too_large");
            assert_eq!(gateway.state(&key).await, "absent");
        }
        assert_eq!(upstream.executions(), count);
        gateway.send(&sized(1_024)).await.expect(201);
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: the default limit is 1 MiB.
///
/// Method: exactly 1 MiB, then one byte more.
/// Evidence: one execution with every byte; 413 or a closed connection, and no second execution.
#[tokio::test]
async fn the_default_limit_is_one_mebibyte() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let sized = |key: &str, bytes| Request::post("/up").key(key).body("a/b", vec![7; bytes]);
    gateway.send(&sized("exact", 1 << 20)).await.expect(201);
    assert_eq!(upstream.last().body.len(), 1 << 20);
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    // The answer may come before the body is taken, and the write may then fail.
    let large = sized("large", (1 << 20) + 1);
    connection.write(&large.head_bytes()).await.unwrap();
    let _ = connection.write(&large.body_bytes()).await;
    if let Ok(answer) = connection.response().await {
        answer.refused(413, "request_too_large");
    }
    assert_eq!(
        (upstream.executions(), gateway.state("large").await),
        (1, "absent".into())
    );
}

/// Goal: a request with two framings cannot be smuggled.
///
/// Method: Content-Length together with Transfer-Encoding, the length pointing into the chunks.
/// Evidence: 400 without execution; or one execution with the chunked body and a closed connection.
#[tokio::test]
async fn two_framings_are_refused_or_read_as_chunked() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let bytes = "POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 4\r\n\
                 Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    connection.write(bytes.as_bytes()).await.unwrap();
    let answer = connection.response().await.unwrap();
    if answer.status == 400 {
        assert_eq!(upstream.executions(), 0);
    } else {
        assert_eq!(
            (answer.status, upstream.last().body.as_slice()),
            (201, &b"hello"[..])
        );
        let again = connection.send(&Request::pay("next")).await;
        assert!(again.is_err(), "the connection must close");
    }
    assert!(upstream.executions() <= 1);
}

//! Answers that are too large to keep: delivered whole, remembered as not stored, never repeated.

use crate::bodies::noise;
use crate::harness::{
    Connection, Gateway, Request, Response, Script, Setup, Upstream, eventually, script::Step,
    within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The refusal of a completed key whose answer was not stored.
#[track_caller]
fn says_not_stored(answer: Response, status: u16) -> Response {
    let answer = answer.refused(409, "idempotency_response_not_stored");
    assert_eq!(answer.json()["original_status"], status, "{answer}");
    assert_eq!(
        answer.header("stripe-should-retry"),
        Some("false"),
        "{answer}"
    );
    answer
}

/// Goal: an oversized answer reaches its client whole and is never executed again.
///
/// Method: 5 MiB under the default limit, with a Content-Length and without.
/// Evidence: every byte arrived; two retries get 409 with the original status; one execution.
#[tokio::test]
async fn delivered_whole_then_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let bytes = noise(5 << 20);
    upstream.next(
        Script::created()
            .body(&bytes)
            .header("Location", "/reports/1"),
    );
    let chunked = Script::created().chunks(bytes.chunks(60_000));
    upstream.next(chunked.header("Location", "/reports/1"));
    for (count, key) in ["declared", "undeclared"].into_iter().enumerate() {
        let first = gateway.send(&Request::pay(key)).await.expect(201);
        assert!(first.body == bytes, "{key}: whole");
        assert_eq!(gateway.state(key).await, "completed");
        for _ in 0..2 {
            let refused = says_not_stored(gateway.send(&Request::pay(key)).await, 201);
            assert_eq!(refused.header("location"), Some("/reports/1"), "{refused}");
        }
        assert_eq!(upstream.executions(), count + 1, "{key}");
    }
}

/// Goal: trailers of an answer that is too long to be stored reach a client of HTTP/1.1 that takes them.
///
/// Method: a chunked answer beyond the limit with a trailer of the API's own and one that only we may say.
/// Evidence: the first arrives, announced; the second does not.
#[tokio::test]
async fn trailers_behind_what_is_not_stored() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "max_body_size: 10").await;
    let long = Script::created().chunks(["x".repeat(50), "y".repeat(50)]);
    let long = long.trailer("X-Sum", "1");
    upstream.next(long.trailer("Idempotency-Status", "forged"));
    let request = Request::pay("k").header("TE", "trailers");
    let answer = gateway.send(&request).await.expect(201);
    assert_eq!(answer.body.len(), 100);
    assert_eq!(answer.header("trailer"), Some("x-sum"), "{answer}");
    assert_eq!(answer.trailers.one("x-sum"), Some("1"), "{answer}");
    assert_eq!(answer.trailers.one("idempotency-status"), None, "{answer}");
    assert_eq!(
        answer.header("idempotency-status"),
        Some("completed"),
        "{answer}"
    );
}

/// Goal: the limit itself is stored, one byte more is not.
///
/// Method: bodies of 1024 and 1025 bytes under `max_body_size: 1KiB`, declared and in chunks.
/// Evidence: replay and 409; one execution each.
#[tokio::test]
async fn the_limit_is_inclusive() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "max_body_size: 1KiB").await;
    for (length, stored) in [(1_024, true), (1_025, false)] {
        let bytes = noise(length);
        for chunked in [false, true] {
            let before = upstream.executions();
            let script = Script::created();
            upstream.next(if chunked {
                script.chunks(bytes.chunks(100))
            } else {
                script.body(&bytes)
            });
            let key = format!("{length}-{chunked}");
            assert_eq!(
                gateway.send(&Request::pay(&key)).await.expect(201).body,
                bytes
            );
            let second = gateway.send(&Request::pay(&key)).await;
            if stored {
                assert_eq!(second.expect(201).body, bytes);
            } else {
                says_not_stored(second, 201);
            }
            assert_eq!(upstream.executions(), before + 1, "{key}");
        }
    }
    let route = gateway.admin(Request::get("/idempotency")).await.json()["r"].clone();
    assert_eq!(route["responses_stored"], 2, "{route}");
}

/// Goal: duplicates of an oversized answer do not execute either.
///
/// Method: ten duplicates at once, released when nine wait; declared and undeclared.
/// Evidence: one execution; one whole answer, nine 409.
#[tokio::test]
async fn ten_duplicates_at_once() {
    let bytes = noise(300_000);
    let whole = Script::created().held();
    for script in [
        whole.clone().body(&bytes),
        whole.chunks(bytes.chunks(10_000)),
    ] {
        let upstream = Upstream::start();
        upstream.next(script);
        let gateway = Gateway::start(&upstream, "max_body_size: 64KiB").await;
        let requests = gateway.send_many(10, &Request::pay("k"));
        upstream.begun(1).await;
        gateway.until_met_in_flight(9).await;
        upstream.release();
        let mut delivered = 0;
        for request in requests {
            let answer = within("an answer", request).await.unwrap();
            if answer.status == 201 {
                assert!(answer.body == bytes);
                delivered += 1;
            } else {
                says_not_stored(answer, 201);
            }
        }
        assert_eq!((delivered, upstream.executions()), (1, 1));
    }
}

/// Goal: an event stream flows at once and is settled at its head.
///
/// Method: one event, a hold, another event.
/// Evidence: the first event is there and the key completed while the upstream holds; then 409.
#[tokio::test]
async fn an_event_stream_flows() {
    let upstream = Upstream::start();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked";
    upstream.next(Script::steps(vec![
        Step::Write(format!("{head}\r\n\r\nb\r\ndata: one\n\n\r\n").into()),
        Step::Hold,
        Step::Write(b"b\r\ndata: two\n\n\r\n0\r\n\r\n".to_vec()),
    ]));
    let gateway = Gateway::start(&upstream, "").await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(&Request::pay("k").bytes()).await.unwrap();
    connection.until("data: one").await.unwrap();
    assert_eq!(gateway.state("k").await, "completed");
    says_not_stored(gateway.send(&Request::pay("k")).await, 200);

    upstream.release();
    let answer = connection.response().await.unwrap().expect(200);
    assert_eq!(answer.text(), "data: one\n\ndata: two\n\n");
    says_not_stored(gateway.send(&Request::pay("k")).await, 200);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a truncation after the commit breaks the client's connection and leaves the state.
///
/// Method: 300 kB promised, 200 kB sent, closed; limit 64 KiB.
/// Evidence: the client's answer is broken, not shortened; then 409; one execution.
#[tokio::test]
async fn a_truncation_beyond_the_limit_aborts() {
    let upstream = Upstream::start();
    upstream.next(Script::truncated(300_000, &noise(200_000)));
    let gateway = Gateway::start(&upstream, "max_body_size: 64KiB").await;
    assert!(
        gateway.try_send(&Request::pay("k")).await.is_err(),
        "no complete answer"
    );
    assert_eq!(gateway.state("k").await, "completed");
    says_broken(&gateway, "k", 201).await;
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client of HTTP/1.0, to whom the end of the connection is the end of the answer, is not told a part
/// for the whole.
///
/// Method: 300 kB promised, 200 kB sent, closed; limit 64 KiB; the client says HTTP/1.0.
/// Evidence: its connection is reset.
#[tokio::test]
async fn a_truncation_is_seen_over_http_10() {
    let upstream = Upstream::start();
    // In chunks, so that the gateway has no length to announce.
    let head = "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n";
    let part = [head.as_bytes(), &noise(200_000), b"\r\n"].concat();
    let steps = vec![Step::Write(part), Step::Hold, Step::Close];
    upstream.next(Script::steps(steps));
    let gateway = Gateway::start(&upstream, "max_body_size: 64KiB").await;
    let request = Request::pay("k").bytes();
    let request = String::from_utf8(request).unwrap();
    let request = request.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut stream = tokio::net::TcpStream::connect(gateway.data())
        .await
        .unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    upstream.release();
    let mut taken = Vec::new();
    let ended = within("the end", stream.read_to_end(&mut taken)).await;
    let error = ended.expect_err("a reset, not an end");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(taken.starts_with(b"HTTP/1.0 201"), "{}", taken.len());
    says_broken(&gateway, "k", 201).await;
    assert_eq!(upstream.executions(), 1);
}

/// The retry of a key whose answer broke off is told so, and so is an operator.
async fn says_broken(gateway: &Gateway, key: &str, status: u16) {
    let retry = says_not_stored(gateway.send(&Request::pay(key)).await, status);
    assert_eq!(retry.json()["stream_complete"], false, "{retry}");
    let record = gateway.record(key).await.unwrap();
    assert_eq!(record["last_error"], "stream_broken", "{record}");
    assert_eq!(record["state"], "completed", "{record}");
}

/// Goal: an event stream that is cut is told from one that came to its end, also after a restart.
///
/// Method: events without a last chunk, ended by FIN and by a reset, with a client that stays and one that
/// has gone; then one that ends.
/// Evidence: the client's answer is broken; `stream_complete: false` for each that was cut, nothing of the
/// kind for the whole one; one execution each.
#[tokio::test]
async fn a_broken_event_stream_is_told() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked";
    let events = format!("{head}\r\n\r\nb\r\ndata: one\n\n\r\n");
    for (number, end) in [Step::Close, Step::Reset].into_iter().enumerate() {
        let steps = || vec![Step::Write(events.clone().into()), Step::Hold, end.clone()];
        let stays = format!("stays-{number}");
        upstream.next(Script::steps(steps()));
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let request = Request::pay(&stays);
        connection.write(&request.bytes()).await.unwrap();
        connection.until("data: one").await.unwrap();
        upstream.release();
        assert!(connection.response().await.is_err(), "no whole answer");
        says_broken(&gateway, &stays, 200).await;

        let leaves = format!("leaves-{number}");
        upstream.next(Script::steps(steps()));
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let request = Request::pay(&leaves);
        connection.write(&request.bytes()).await.unwrap();
        connection.until("data: one").await.unwrap();
        connection.reset();
        upstream.release();
        eventually("the break to be noted", async || {
            let record = gateway.record(&leaves).await?;
            (record["last_error"] == "stream_broken").then_some(())
        })
        .await;
        says_broken(&gateway, &leaves, 200).await;
    }
    let whole = format!("{events}0\r\n\r\n");
    upstream.next(Script::steps(vec![Step::Write(whole.into())]));
    gateway.send(&Request::pay("whole")).await.expect(200);
    gateway.sigterm();
    gateway.exited().await;
    gateway.restart().await;
    says_broken(&gateway, "stays-0", 200).await;
    let retry = says_not_stored(gateway.send(&Request::pay("whole")).await, 200);
    assert!(retry.json().get("stream_complete").is_none(), "{retry}");
    assert_eq!(upstream.executions(), 5);
}

/// Goal: what came of an answer before it broke off reaches its client.
///
/// Method: one chunk beyond the limit, and then the upstream hangs up, so that the break is known before a
/// byte has been sent on.
/// Evidence: the status and the bytes arrive, and no end.
#[tokio::test]
async fn what_came_before_a_break_arrives() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut read = Vec::new();
            while !read.ends_with(b"}") {
                stream.read_buf(&mut read).await.unwrap();
            }
            let head = "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n";
            let answer = format!("{head}{}\r\n", "x".repeat(2_000));
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let gateway = Setup::with("max_body_size: 1KiB")
        .start_before(&format!("http://{addr}"))
        .await;
    for number in 0..10 {
        let mut stream = tokio::net::TcpStream::connect(gateway.data())
            .await
            .unwrap();
        let request = Request::pay(&format!("k{number}"));
        stream.write_all(&request.bytes()).await.unwrap();
        let mut answer = Vec::new();
        // However it ends.
        let _ = within("the answer", stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{number}: {answer:?}");
        assert!(answer.contains(&"x".repeat(2_000)), "{number}: {answer:?}");
        assert!(!answer.ends_with("0\r\n\r\n"), "{number}: {answer:?}");
    }
    serving.abort();
}

/// Goal: an oversized error follows its status, not its size.
///
/// Method: a 500 above the limit, then a success.
/// Evidence: the 500 arrived whole; the retry is the second execution.
#[tokio::test]
async fn an_oversized_server_error_is_still_retryable() {
    let upstream = Upstream::start();
    let bytes = noise(100_000);
    upstream.next(Script::reply(500).body(&bytes));
    let gateway = Gateway::start(&upstream, "max_body_size: 1KiB").await;
    assert!(gateway.send(&Request::pay("k")).await.expect(500).body == bytes);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a client that leaves in the middle of an oversized answer changes nothing.
///
/// Method: read the head of 5 MiB, reset.
/// Evidence: completed, 409 for the retry; one execution.
#[tokio::test]
async fn a_client_that_leaves_midway() {
    let upstream = Upstream::start();
    upstream.next(Script::created().body(noise(5 << 20)));
    let gateway = Gateway::start(&upstream, "").await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(&Request::pay("k").bytes()).await.unwrap();
    connection.until("\r\n\r\n").await.unwrap();
    connection.reset();
    gateway.until_state("k", "completed").await;
    says_not_stored(gateway.send(&Request::pay("k")).await, 201);
    assert_eq!(upstream.executions(), 1);
}

//! Clients that leave: after the body nothing changes, before its end nothing has happened.

use crate::harness::{
    Connection, Gateway, REPLAYED, Request, Script, Upstream, client::Http2, ms, script::Step,
};

/// Goal: a client that leaves as soon as its body is sent has still made one request.
///
/// Method: send everything and close at once, in good order; retry.
/// Evidence: one execution; the retry gets its answer.
#[tokio::test]
async fn at_once_after_the_body() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(50)));
    let gateway = Gateway::start(&upstream, "").await;
    for (count, chunked) in [false, true].into_iter().enumerate() {
        let request = Request::pay(&format!("gone-{chunked}"));
        let request = if chunked { request.chunked() } else { request };
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(&request.bytes()).await.unwrap();
        connection.leave();
        let retry = gateway.send(&request).await.expect(201);
        assert_eq!(retry.text(), format!("{{\"execution\":{}}}", count + 1));
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: leaving while the upstream works does not stop the execution.
///
/// Method: leave or reset while the upstream holds; release; look at the record before any retry.
/// Evidence: the key completes by itself; the retry is a replay; one execution.
#[tokio::test]
async fn while_the_upstream_works() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (count, abrupt) in [false, true].into_iter().enumerate() {
        upstream.next(Script::created().held());
        let key = format!("working-{abrupt}");
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(&Request::pay(&key).bytes()).await.unwrap();
        upstream.begun(count + 1).await;
        if abrupt {
            connection.reset()
        } else {
            connection.leave()
        }
        assert_eq!(gateway.state(&key).await, "in_progress");
        upstream.release();
        gateway.until_state(&key, "completed").await;
        let retry = gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(retry.text(), format!("{{\"execution\":{}}}", count + 1));
        assert_eq!(retry.header(REPLAYED), Some("true"));
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: leaving while the answer comes in from the upstream changes nothing.
///
/// Method: the upstream sends half of its answer and holds; the client resets; release.
/// Evidence: the retry gets the whole answer; one execution.
#[tokio::test]
async fn while_the_answer_arrives() {
    let upstream = Upstream::start();
    upstream.next(Script::steps(vec![
        Step::Write(b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\n01234".to_vec()),
        Step::Hold,
        Step::Write(b"56789".to_vec()),
    ]));
    let gateway = Gateway::start(&upstream, "").await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(&Request::pay("k").bytes()).await.unwrap();
    upstream.begun(1).await;
    connection.reset();
    upstream.release();
    gateway.until_state("k", "completed").await;
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(201).text(),
        "0123456789"
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: leaving after the first bytes of the answer changes nothing.
///
/// Method: read the status line of the answer, reset.
/// Evidence: the retry gets the same bytes; one execution.
#[tokio::test]
async fn while_the_client_reads() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    connection.write(&Request::pay("k").bytes()).await.unwrap();
    connection.until("HTTP/1.1 201").await.unwrap();
    connection.reset();
    let retry = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(retry.text(), r#"{"execution":1}"#);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a waiter or the first client that leaves takes nothing from the others.
///
/// Method: the first client and one of two waiters reset while the upstream holds.
/// Evidence: the remaining waiter gets the answer; one execution.
#[tokio::test]
async fn the_first_leaves_its_waiters_behind() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let mut first = Connection::open(gateway.data()).await.unwrap();
    first.write(&Request::pay("k").bytes()).await.unwrap();
    upstream.begun(1).await;
    let mut leaving = Connection::open(gateway.data()).await.unwrap();
    leaving.write(&Request::pay("k").bytes()).await.unwrap();
    let staying = gateway.send_later(&Request::pay("k"));
    gateway.until_met_in_flight(2).await;
    first.reset();
    leaving.reset();
    upstream.release();
    assert_eq!(
        staying.await.unwrap().expect(201).text(),
        r#"{"execution":1}"#
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an HTTP/2 client that cancels its stream changes nothing either.
///
/// Method: drop the request's future (RST_STREAM) while the upstream holds.
/// Evidence: the key completes; the retry on the same connection is a replay; one execution.
#[tokio::test]
async fn a_cancelled_http2_stream() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let mut http2 = Http2::open(gateway.data()).await;
    let mut cancelled = http2.clone();
    let request = tokio::spawn(async move { cancelled.send(&Request::pay("k")).await });
    upstream.begun(1).await;
    request.abort();
    assert!(request.await.is_err());
    upstream.release();
    gateway.until_state("k", "completed").await;
    let retry = http2.send(&Request::pay("k")).await.expect(201);
    assert_eq!(retry.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a client that vanishes in its body leaves no trace.
///
/// Method: send all but the last byte, with a length and in chunks, and leave or reset; then send
/// something else under the same key.
/// Evidence: no record, no execution; the other request executes and is no mismatch.
#[tokio::test]
async fn mid_body_nothing_is_reserved() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut expected = 0;
    for chunked in [false, true] {
        for (moment, abrupt) in [(1, true), (1, false), (20, true), (20, false)] {
            let key = format!("half-{chunked}-{moment}-{abrupt}");
            let request = Request::pay(&key);
            let request = if chunked { request.chunked() } else { request };
            let bytes = request.bytes();
            let mut connection = Connection::open(gateway.data()).await.unwrap();
            connection
                .write(&bytes[..bytes.len() - moment])
                .await
                .unwrap();
            if abrupt {
                connection.reset()
            } else {
                connection.leave()
            }
            assert_eq!(gateway.state(&key).await, "absent");
            let other = Request::post("/payments").key(&key).json(r#"{"amount":1}"#);
            gateway.send(&other).await.expect(201);
            expected += 1;
            assert_eq!(upstream.executions(), expected, "{key}");
        }
    }
}

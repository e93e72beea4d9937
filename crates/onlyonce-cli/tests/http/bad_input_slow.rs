//! Peers that take their time: each wait has a name, and an end.

use std::time::Duration;

use tokio::time::Instant;

use crate::bad_input::{MAX_GROWTH_KIB, Siege};
use crate::bodies::noise;
use crate::harness::{
    Connection, Gateway, REPLAYED, Request, Script, Setup, Upstream, client::Http2, ms, within,
};

/// The limit that these tests set, whichever it is.
const LIMIT: Duration = ms(800);
/// A connection may be looked at twice before it is closed: for its protocol, then for its head.
const CLOSED_WITHIN: Duration = ms(2 * 800 + 1_000);

async fn impatient(upstream: &Upstream, options: &str) -> Gateway {
    Setup::with(options)
        .top("header_timeout: 800ms")
        .top("body_timeout: 800ms")
        .top("send_timeout: 800ms")
        .start(upstream)
        .await
}

/// Sends `bytes` one at a time until the gateway closes; says how long that took and what came.
async fn dribble(gateway: &Gateway, bytes: &[u8], pause: Duration) -> (Duration, String) {
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let began = Instant::now();
    for byte in bytes {
        let _ = connection.write(&[*byte]).await;
        let closed = tokio::time::timeout(pause, connection.until_closed()).await;
        if let Ok(came) = closed {
            return (began.elapsed(), String::from_utf8_lossy(&came).into_owned());
        }
        assert!(
            began.elapsed() < CLOSED_WITHIN,
            "still open after {:?}",
            began.elapsed()
        );
    }
    let came = connection.until_closed().await;
    (began.elapsed(), String::from_utf8_lossy(&came).into_owned())
}

/// Goal: a head that comes byte by byte is not waited for.
///
/// Method: one byte every 50 ms, in the start line, in the headers, and of an HTTP/2 preface.
/// Evidence: closed within `header_timeout`, counted once for each thing that is waited for.
#[tokio::test]
async fn a_slow_head() {
    let upstream = Upstream::start();
    let gateway = impatient(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let long = format!("POST /{} HTTP/1.1\r\n", "x".repeat(1_000));
    let head = format!("GET / HTTP/1.1\r\nX-Slow: {}", "x".repeat(1_000));
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for bytes in [long.as_str(), head.as_str(), preface] {
        let (took, _) = dribble(&gateway, bytes.as_bytes(), ms(50)).await;
        assert!(took < CLOSED_WITHIN, "open for {took:?}");
    }
    siege.left_nothing().await;
}

/// Goal: a peer that says nothing, or no more, is shown the door.
///
/// Method: silence after connecting, after a request, in half a preface, after a whole one.
/// Evidence: each is closed in time; while 200 of them are there, others are served.
#[tokio::test]
async fn silent_peers() {
    let upstream = Upstream::start();
    let gateway = impatient(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let request = b"GET /once HTTP/1.1\r\nHost: a\r\n\r\n";
    let began = Instant::now();
    let mut silent = Vec::new();
    for number in 0..200 {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let said: &[u8] = match number % 5 {
            0 => b"",
            1 => b"P",
            2 => &preface[..12],
            3 => preface,
            _ => &request[..20],
        };
        connection.write(said).await.unwrap();
        silent.push((number % 5, connection));
    }
    gateway.send(&Request::pay("between")).await.expect(201);
    for (kind, mut connection) in silent {
        connection.until_closed().await;
        let took = began.elapsed();
        assert!(
            took < CLOSED_WITHIN + LIMIT,
            "kind {kind} was open for {took:?}"
        );
    }
    let mut idle = Connection::open(gateway.data()).await.unwrap();
    idle.write(request).await.unwrap();
    idle.response().await.unwrap().expect(201);
    let began = Instant::now();
    idle.until_closed().await;
    assert!(began.elapsed() < CLOSED_WITHIN);
    siege.left_executed().await;
}

/// Goal: a body that comes byte by byte is not waited for, and leaves no trace.
///
/// Method: a keyed request of 10,000 bytes, one every 50 ms, with a length and in chunks; then the
/// same key in one piece.
/// Evidence: 400 within `body_timeout`; no record; then one execution.
#[tokio::test]
async fn a_slow_body() {
    let upstream = Upstream::start();
    let gateway = impatient(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let body = vec![b'x'; 10_000];
    let whole = Request::post("/slow").key("slow").body("text/plain", &body);
    for request in [whole.clone(), whole.clone().chunked()] {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(&request.head_bytes()).await.unwrap();
        let began = Instant::now();
        for byte in request.body_bytes() {
            if connection.write(&[byte]).await.is_err() || began.elapsed() > LIMIT + ms(200) {
                break;
            }
            tokio::time::sleep(ms(50)).await;
        }
        let answer = connection.response().await.unwrap();
        answer.refused(400, "request_incomplete");
        assert!(began.elapsed() < CLOSED_WITHIN);
        assert_eq!(gateway.state("slow").await, "absent");
    }
    siege.left_nothing().await;
    gateway.send(&whole).await.expect(201);
}

/// Goal: a client that never reads its replay costs little, and not for long.
///
/// Method: 7 MiB stored; eight clients with narrow sockets ask for it and do not read.
/// Evidence: memory grows by no more than eight copies; meanwhile others are served at once; after
/// `send_timeout` the connections are closed.
#[tokio::test]
async fn replays_that_nobody_reads() {
    const SIZE: usize = 7 << 20;
    const READERS: usize = 8;
    let upstream = Upstream::start();
    let gateway = impatient(&upstream, "max_body_size: 8MiB").await;
    upstream.next(Script::created().body(noise(SIZE)));
    let first = gateway.send(&Request::pay("large")).await.expect(201);
    let siege = Siege::lay(&gateway, &upstream).await;
    let mut asleep = Vec::new();
    for _ in 0..READERS {
        let mut connection = Connection::open_narrow(gateway.data()).await.unwrap();
        let request = Request::pay("large").bytes();
        connection.write(&request).await.unwrap();
        asleep.push(connection);
    }
    let began = Instant::now();
    gateway.send(&Request::pay("between")).await.expect(201);
    assert!(
        began.elapsed() < ms(1_000),
        "others waited {:?}",
        began.elapsed()
    );
    // Nothing tells from outside that they are closed: being read before would wake them.
    tokio::time::sleep(LIMIT + ms(700)).await;
    let growth = siege.growth_kib();
    let copies = (READERS * SIZE) as u64 >> 10;
    println!("{READERS} sleeping readers of {SIZE} bytes: memory grew by {growth} KiB");
    assert!(growth <= copies + MAX_GROWTH_KIB, "{growth} KiB");
    for mut connection in asleep {
        let cut = connection.response().await;
        assert!(cut.is_err(), "the whole answer was kept for a sleeper");
    }
    let replay = gateway.send(&Request::pay("large")).await.expect(201);
    assert!(replay.body == first.body, "the record is untouched");
    assert_eq!(upstream.executions_of("large"), 1);
}

/// Goal: a slow reader that does read is served to the last byte, however long it takes.
///
/// Method: 7 MiB through a narrow socket, over longer than `send_timeout`; then over HTTP/2.
/// Evidence: every byte.
#[tokio::test]
async fn a_replay_that_is_read_slowly() {
    const SIZE: usize = 7 << 20;
    let upstream = Upstream::start();
    let setup = Setup::with("max_body_size: 8MiB").top("send_timeout: 2s");
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::created().body(noise(SIZE)));
    let first = gateway.send(&Request::pay("large")).await.expect(201);
    let mut connection = Connection::open_narrow(gateway.data()).await.unwrap();
    connection
        .write(&Request::pay("large").bytes())
        .await
        .unwrap();
    let began = Instant::now();
    let mut read = 0;
    while began.elapsed() < ms(3_500) {
        read += within("a part", connection.take(64 << 10)).await.unwrap();
        // The kernel wakes a writer only when a third of its buffer is free, so not too slowly.
        tokio::time::sleep(ms(40)).await;
    }
    assert!(read < SIZE, "the reader was not slow");
    let answer = connection.response().await.unwrap().expect(201);
    assert!(answer.body == first.body, "every byte");
    let mut second = Http2::open(gateway.data()).await;
    let answer = second.send(&Request::pay("large")).await.expect(201);
    assert_eq!(answer.header(REPLAYED), Some("true"));
    assert!(answer.body == first.body, "every byte over HTTP/2");
}

/// Goal: whoever sends slowly hears why it was refused.
///
/// Method: bodies that are refused upon their head, sent steadily for longer than silence is waited for, with
/// a length and in chunks, to either listener; the answer is read only after the last byte.
/// Evidence: the whole body is taken, and the refusal is there.
#[tokio::test]
async fn a_refusal_reaches_slow_senders() {
    let upstream = Upstream::start();
    let gateway = Setup::with("enforce: true").start(&upstream).await;
    let keyless = Request::post("/payments").body("text/plain", vec![b'x'; 4_000]);
    let unsigned = Request::post("/idempotency/keys/0/erase").json(&"x".repeat(4_000));
    let cases = [
        (gateway.data(), keyless.clone(), 400),
        (gateway.data(), keyless.chunked(), 400),
        (gateway.admin_addr(), unsigned, 401),
    ];
    let sending = cases.map(|(addr, request, status)| async move {
        let mut connection = Connection::open(addr).await.unwrap();
        let bytes = request.bytes();
        for piece in bytes.chunks(bytes.len() / 12) {
            connection.write(piece).await.expect("it is read on");
            tokio::time::sleep(ms(300)).await;
        }
        let answer = within("the refusal", connection.response()).await;
        answer.expect("a refusal, not a reset").expect(status);
    });
    futures_util::future::join_all(sending).await;
    assert_eq!(upstream.executions(), 0);
}

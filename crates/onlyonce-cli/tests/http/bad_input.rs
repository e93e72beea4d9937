//! Bodies and heads that are too much: refused in the open, nothing reserved, memory bounded.
//!
//! Keys that are none are in `keys.rs`, broken framing in `bad_input_framing.rs`, peers that take
//! their time in `bad_input_slow.rs`, and HTTP/2 in `bad_input_http2.rs`.

use tokio::time::Instant;

use crate::harness::{Connection, Gateway, REPLAYED, Request, Upstream, ms};

/// What the gateway may keep in memory beyond what it began with, in KiB: buffers, caches, and the
/// allocator's own stock.
pub(crate) const MAX_GROWTH_KIB: u64 = 48 << 10;

/// A gateway under attack, with what it was before.
pub(crate) struct Siege<'a> {
    gateway: &'a Gateway,
    upstream: &'a Upstream,
    rss_kib: u64,
    executions: usize,
}

impl<'a> Siege<'a> {
    /// Remembers how things stand, after one request that warms everything up.
    pub(crate) async fn lay(gateway: &'a Gateway, upstream: &'a Upstream) -> Self {
        gateway.send(&Request::pay("before")).await.expect(201);
        Self {
            gateway,
            upstream,
            rss_kib: gateway.rss_kib(),
            executions: upstream.executions(),
        }
    }

    /// How much memory the gateway has taken since, in KiB.
    pub(crate) fn growth_kib(&self) -> u64 {
        self.gateway.rss_kib().saturating_sub(self.rss_kib)
    }

    /// Panics unless the attack left nothing: no record, no execution, little memory, and a gateway
    /// that works.
    pub(crate) async fn left_nothing(self) {
        let executed = self.upstream.executions() - self.executions;
        assert_eq!(executed, 0, "something of it was executed");
        self.left_executed().await;
        let keys = self.gateway.admin(Request::get("/idempotency/keys")).await;
        let keys = keys.expect(200).json();
        let names: Vec<_> = keys["keys"].as_array().expect("a list").iter().collect();
        let ours = |key: &&serde_json::Value| key["key"] == "before" || key["key"] == "after";
        assert!(names.iter().all(ours), "something was reserved: {keys}");
    }

    /// The same for an attack of which something may have been executed.
    pub(crate) async fn left_executed(&self) {
        let growth = self.growth_kib();
        println!("memory grew by {growth} KiB");
        assert!(growth <= MAX_GROWTH_KIB, "memory grew by {growth} KiB");
        self.gateway.send(&Request::pay("after")).await.expect(201);
        let again = self.gateway.send(&Request::pay("before")).await.expect(201);
        assert_eq!(again.header(REPLAYED), Some("true"));
    }
}

/// Sends `bytes` and expects a 4xx or nothing, then the end of the connection.
pub(crate) async fn turned_away(gateway: &Gateway, bytes: &[u8], what: &str) -> Option<u16> {
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    // The gateway may have closed before the last byte; that is an answer too.
    let _ = connection.write(bytes).await;
    let status = match connection.response().await {
        Ok(answer) => {
            assert!((400..500).contains(&answer.status), "{what}: {answer}");
            Some(answer.status)
        }
        Err(_) => None,
    };
    let more = connection.until_closed().await;
    assert!(more.is_empty(), "{what}: a second answer: {more:?}");
    status
}

/// Goal: a key of one byte too many is no key, quoted or not.
///
/// Method: 257 bytes. (Two headers, open quotes and addresses are in `keys.rs`.)
/// Evidence: 400 with the code; nothing is left.
#[tokio::test]
async fn a_key_of_257_bytes() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for key in ["k".repeat(257), format!("\"{}\"", "k".repeat(257))] {
        let refused = gateway.send(&Request::pay(&key)).await;
        refused.refused(400, "idempotency_key_invalid");
    }
    siege.left_nothing().await;
}

/// Goal: depth is no weapon, and what is too deep to be canonical is compared to the byte.
///
/// Method: 100,000 nested arrays as JSON; again; again with one space more.
/// Evidence: three answers within three seconds; one execution, a replay, then 422.
#[tokio::test]
async fn a_hundred_thousand_nested_arrays() {
    const DEPTH: usize = 100_000;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let nested = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
    let deep = |body: &str| Request::post("/deep").key("deep").json(body);
    let began = Instant::now();
    let first = gateway.send(&deep(&nested)).await.expect(201);
    let again = gateway.send(&deep(&nested)).await.expect(201);
    assert_eq!(
        (again.body, again.headers.one(REPLAYED)),
        (first.body, Some("true"))
    );
    let spaced = gateway.send(&deep(&format!("{nested} "))).await;
    spaced.refused(422, "idempotency_key_reused");
    assert!(began.elapsed() < ms(3_000), "took {:?}", began.elapsed());
    assert_eq!(upstream.executions(), 2);
    siege.left_executed().await;
}

/// Goal: a length that is too large is believed, and nothing of the body is read.
///
/// Method: declare 2 GiB and send none of it, then some of it; the largest number there is.
/// Evidence: 413 at once, or for the last 400 or a closed connection; nothing is left.
#[tokio::test]
async fn two_gibibytes_declared() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let head = |length: &str| {
        format!(
            "POST /big HTTP/1.1\r\nHost: a\r\nIdempotency-Key: big\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    for sent in [0, 300_000] {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection
            .write(head("2147483648").as_bytes())
            .await
            .unwrap();
        if sent > 0 {
            let _ = connection.write(&vec![b'x'; sent]).await;
        }
        match connection.response().await {
            Ok(answer) => drop(answer.refused(413, "request_too_large")),
            Err(_) => assert!(sent > 0, "nothing was in the way of the answer"),
        }
        connection.until_closed().await;
    }
    for length in ["18446744073709551615", "18446744073709551616"] {
        turned_away(&gateway, head(length).as_bytes(), length).await;
    }
    siege.left_nothing().await;
}

/// Goal: a client that writes its whole request before it reads gets its answer, also where that was
/// decided upon the head.
///
/// Method: two requests of 4 MiB that are refused, for their length and for their key; the body
/// is sent when the answer is long there.
/// Evidence: everything can be written, and the answer is read afterwards.
#[tokio::test]
async fn an_answer_that_comes_before_its_request_is_over() {
    const SIZE: usize = 4 << 20;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "methods: [POST]").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for (key, code) in [
        ("large", "request_too_large"),
        ("a b", "idempotency_key_invalid"),
    ] {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let head = format!(
            "POST /big HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: {SIZE}\r\n\r\n"
        );
        connection.write(head.as_bytes()).await.unwrap();
        tokio::time::sleep(ms(300)).await;
        for _ in 0..SIZE / 0x1_0000 {
            connection.write(&[b'x'; 0x1_0000]).await.unwrap();
        }
        let answer = connection.response().await.unwrap();
        assert_eq!(answer.code(), code, "{answer}");
    }
    siege.left_nothing().await;
}

/// Goal: chunks without an end come to one.
///
/// Method: chunks of 64 KiB until the gateway has had enough; chunks of one byte, likewise, with
/// extensions of 4 KiB each.
/// Evidence: 413 or a closed connection not long after the limit of 1 MiB; nothing is left.
#[tokio::test]
async fn endless_chunks() {
    /// The limit, and what socket buffers on both sides may swallow.
    const SENT_AT_MOST: usize = 24 << 20;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let large = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
    let wordy = format!("1;{}\r\nx\r\n", "e".repeat(4_096));
    for chunk in [large, wordy] {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let head = "POST /endless HTTP/1.1\r\nHost: a\r\nIdempotency-Key: endless\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
        connection.write(head.as_bytes()).await.unwrap();
        let mut sent = 0;
        while connection.write(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
            assert!(sent <= SENT_AT_MOST, "{sent} bytes were taken");
        }
        // The answer may be lost to the reset that follows it.
        if let Ok(answer) = connection.response().await {
            assert!([400, 413].contains(&answer.status), "{answer}");
        }
    }
    siege.left_nothing().await;
}

/// Goal: what streams through is not gathered.
///
/// Method: 64 MiB without a key through the gateway, with a length.
/// Evidence: the upstream got every byte; the gateway's memory stayed small.
#[tokio::test]
async fn a_large_upload_without_a_key_streams_through() {
    const SIZE: usize = 64 << 20;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let upload = Request::post("/upload").body("application/octet-stream", vec![7; SIZE]);
    gateway.send(&upload).await.expect(201);
    assert_eq!(upstream.last().body.len(), SIZE);
    siege.left_executed().await;
}

/// Goal: a client that waits to be asked for its body is not asked for one that is too large.
///
/// Method: `Expect: 100-continue` with 2 MiB declared; then with a small body.
/// Evidence: 413 without an interim answer and without the body; then 100 and an execution.
#[tokio::test]
async fn a_body_that_is_too_large_is_not_asked_for() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let expecting = |key: &str, size| {
        Request::post("/up")
            .key(key)
            .header("Expect", "100-continue")
            .body("text/plain", vec![b'x'; size])
    };
    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let large = expecting("large", 2 << 20);
    connection.write(&large.head_bytes()).await.unwrap();
    let answer = connection.response().await.unwrap();
    assert_eq!(answer.interim, [0_u16; 0]);
    answer.refused(413, "request_too_large");
    siege.left_nothing().await;

    let mut connection = Connection::open(gateway.data()).await.unwrap();
    let small = expecting("small", 1_000);
    connection.write(&small.head_bytes()).await.unwrap();
    connection.until("100 Continue\r\n\r\n").await.unwrap();
    connection.write(&small.body_bytes()).await.unwrap();
    assert_eq!(connection.response().await.unwrap().status, 201);
}

/// Goal: heads have a size and a number of lines.
///
/// Method: 2,000 header lines; one of 1 MiB; a target of 1 MiB; a head that never ends.
/// Evidence: a 4xx or a closed connection; nothing is left.
#[tokio::test]
async fn heads_that_are_too_large() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let many: String = (0..2_000)
        .map(|number| format!("X-{number}: 1\r\n"))
        .collect();
    let wide = format!("X-Wide: {}\r\n", "w".repeat(1 << 20));
    let endless = "X-More: yes\r\n".repeat(100_000);
    for (what, lines, end) in [
        ("many headers", many, "\r\n"),
        ("a header of 1 MiB", wide, "\r\n"),
        ("a head without an end", endless, ""),
    ] {
        let bytes = format!("POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: h\r\n{lines}{end}");
        let status = turned_away(&gateway, bytes.as_bytes(), what).await;
        assert!(matches!(status, None | Some(400 | 431)), "{what}");
    }
    let target = format!(
        "POST /{} HTTP/1.1\r\nHost: a\r\nIdempotency-Key: h\r\n\r\n",
        "t".repeat(1 << 20)
    );
    turned_away(&gateway, target.as_bytes(), "a target of 1 MiB").await;
    siege.left_nothing().await;
}

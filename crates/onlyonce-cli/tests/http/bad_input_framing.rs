//! Requests that two readers could take for different ones: refused, or read in one way only.

use crate::bad_input::{Siege, turned_away};
use crate::harness::{Connection, Gateway, Request, Setup, Upstream};

/// What an attacker wants to be taken for a request of its own.
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nHost: a\r\nIdempotency-Key: smuggled\r\n\
                        Content-Length: 0\r\n\r\n";

/// A request with these header lines, followed by `rest`.
fn post(lines: &str, rest: &str) -> Vec<u8> {
    format!("POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: framed\r\n{lines}\r\n{rest}")
        .into_bytes()
}

/// Goal: a length that can be read in two ways is not read.
///
/// Method: two lengths, signs, spaces, lists, letters; each with a second request behind it.
/// Evidence: 400 and a closed connection; neither request is executed or reserved.
#[tokio::test]
async fn doubtful_lengths() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for lines in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: 5;\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5e0\r\n",
        "Content-Length: \r\n",
        "Content-Length : 5\r\n",
        "Content-Length\t: 5\r\n",
        "Content-Length: 5\r\n 5\r\n",
        " Content-Length: 5\r\n",
        // And a host that can.
        "Host: b\r\nContent-Length: 5\r\n",
    ] {
        let bytes = post(lines, &format!("hello{SMUGGLED}"));
        let status = turned_away(&gateway, &bytes, lines).await;
        assert_eq!(status, Some(400), "{lines:?}");
    }
    siege.left_nothing().await;
}

/// Goal: a transfer coding that is not exactly `chunked` is not guessed at.
///
/// Method: codings after `chunked`, look-alikes, odd white space, a version without codings.
/// Evidence: 400 and a closed connection; neither request is executed or reserved.
#[tokio::test]
async fn doubtful_codings() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let body = format!("0\r\n\r\n{SMUGGLED}");
    for lines in [
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked x\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding: chunked\0\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding: chunked\rX: y\r\n",
    ] {
        let status = turned_away(&gateway, &post(lines, &body), lines).await;
        assert_eq!(status, Some(400), "{lines:?}");
    }
    let old = format!(
        "POST /x HTTP/1.0\r\nIdempotency-Key: old\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
    );
    turned_away(&gateway, old.as_bytes(), "chunked in HTTP/1.0").await;
    siege.left_nothing().await;
}

/// Goal: where two framings may be read as one (RFC 9112, 6.3), there is one request, and no more
/// on that connection.
///
/// Method: Content-Length before, after and twice beside chunks; a coding before `chunked`.
/// Evidence: 4xx without execution; or one execution with the chunked body. Never a second request.
#[tokio::test]
async fn chunks_outrank_a_length() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (number, lines) in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: nonsense\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let before = upstream.executions();
        let head =
            format!("POST /x HTTP/1.1\r\nHost: a\r\nIdempotency-Key: both-{number}\r\n{lines}");
        let bytes = format!("{head}\r\n3\r\nabc\r\n0\r\n\r\n{SMUGGLED}");
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        connection.write(bytes.as_bytes()).await.unwrap();
        let answer = connection.response().await.unwrap();
        let executed = upstream.executions() - before;
        if (400..502).contains(&answer.status) {
            assert_eq!(executed, 0, "{lines:?}");
        } else {
            assert_eq!((answer.status, executed), (201, 1), "{lines:?}: {answer}");
            let seen = upstream.last();
            assert_eq!(
                (seen.body.as_slice(), seen.target.as_str()),
                (&b"abc"[..], "/x")
            );
            assert_eq!(seen.headers.all("content-length"), ["3"], "{lines:?}");
            assert_eq!(seen.headers.all("transfer-encoding"), [""; 0], "{lines:?}");
        }
        let more = connection.until_closed().await;
        assert!(more.is_empty(), "{lines:?}: a second answer on it");
        assert_eq!(upstream.executions_of("smuggled"), 0, "{lines:?}");
        assert_eq!(gateway.state("smuggled").await, "absent", "{lines:?}");
    }
}

/// Goal: chunks that are none end the request.
///
/// Method: signs, letters, numbers without an end, a missing line break, a bare line feed.
/// Evidence: 4xx or a closed connection; nothing is left.
#[tokio::test]
async fn broken_chunks() {
    let upstream = Upstream::start();
    // A chunk may be of any size; that it does not come is for `body_timeout` to notice.
    let gateway = Setup::with("")
        .top("body_timeout: 300ms")
        .start(&upstream)
        .await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for chunks in [
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "5g\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5\r\nhelloX\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        "FFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nno colon\r\n\r\n",
    ] {
        let bytes = post(
            "Transfer-Encoding: chunked\r\n",
            &format!("{chunks}{SMUGGLED}"),
        );
        turned_away(&gateway, &bytes, chunks).await;
    }
    siege.left_nothing().await;
}

/// Goal: bytes that end lines or strings elsewhere are not let through in a header.
///
/// Method: NUL, controls, a bare carriage return, DEL in values; spaces and nothing in names.
/// Evidence: 400 and a closed connection; nothing is left.
#[tokio::test]
async fn control_bytes_in_headers() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let values = ["\0", "\x01", "\x08", "\x1b[2J", "\x7f", "\r"];
    let lines = values
        .iter()
        .map(|value| format!("X-Odd: a{value}b\r\n"))
        .chain(["X Odd: 1\r\n", ": 1\r\n", "X-Odd\r\n", "X-\0dd: 1\r\n"].map(str::to_owned));
    for line in lines {
        let bytes = post(&format!("{line}Content-Length: 0\r\n"), "");
        let status = turned_away(&gateway, &bytes, &line).await;
        assert_eq!(status, Some(400), "{line:?}");
    }
    for start in [
        "POST\0/x HTTP/1.1",
        "POST /x\0y HTTP/1.1",
        "POST /x y HTTP/1.1",
        "POST  HTTP/1.1",
        "POST /x HTTP/3.7",
        "POST /x",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0",
    ] {
        let bytes = format!("{start}\r\nHost: a\r\nIdempotency-Key: s\r\n\r\n");
        turned_away(&gateway, bytes.as_bytes(), start).await;
    }
    siege.left_nothing().await;
}

/// Goal: an address that says where it wants to go is still a path here.
///
/// Method: the same payment by path and by a whole URL.
/// Evidence: one execution; the upstream saw a path.
#[tokio::test]
async fn absolute_targets() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let body = r#"{"amount":1}"#;
    let by = |target: &str| Request::post(target).key("absolute").json(body);
    let url = "http://api.test/payments?a=1";
    gateway.send(&by(url)).await.expect(201);
    assert_eq!(upstream.last().target, "/payments?a=1");
    assert_eq!(upstream.last().headers.all("host"), ["api.test"]);
    gateway.send(&by("/payments?a=1")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: targets that name no resource do no harm.
///
/// Method: `OPTIONS *`, `POST *`, CONNECT with and without a key.
/// Evidence: an answer or a closed connection; CONNECT and OPTIONS reserve nothing; whatever is
/// executed is executed once; the gateway goes on.
#[tokio::test]
async fn asterisk_and_connect() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("before")).await.expect(201);
    for (method, target) in [
        ("OPTIONS", "*"),
        ("POST", "*"),
        ("CONNECT", "api.test:443"),
        ("CONNECT", "/payments"),
    ] {
        let key = format!("{method}-{}", target.len());
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: api.test\r\nIdempotency-Key: {key}\r\n\
             Content-Length: 0\r\n\r\n"
        );
        connection.write(head.as_bytes()).await.unwrap();
        let answer = connection.response().await;
        println!(
            "{method} {target}: {:?}",
            answer.map(|answer| answer.status)
        );
        if method != "POST" {
            assert_eq!(gateway.state(&key).await, "absent", "{method} {target}");
        }
        assert!(upstream.executions_of(&key) <= 1, "{method} {target}");
    }
    gateway.send(&Request::pay("after")).await.expect(201);
}

/// Goal: however a path is spelled, it meets the route that its resource has.
///
/// Method: a protected and enforced route `/api/payments`; percent-encoding, dot segments, doubled
/// slashes; and neighbours that only begin alike.
/// Evidence: 400 for a missing key on every spelling; the neighbours are not taken.
#[tokio::test]
async fn spellings_of_a_path() {
    let upstream = Upstream::start();
    let setup = Setup::with("enforce: true").path("/api/payments");
    let gateway = setup.start(&upstream).await;
    for spelling in [
        "/api/payments",
        "/api/payments/",
        "/api/payments?x=/../..",
        "/api/%70ayments",
        "/api/%70%61yments/1",
        "/%61pi/payments",
        "/api/./payments",
        "/api/x/../payments",
        "/api/%2e%2e/api/payments",
        "//api//payments",
        "/api%2Fpayments",
    ] {
        let answer = gateway.send(&Request::post(spelling).json("{}")).await;
        let answer = answer.refused(400, "idempotency_key_missing");
        assert_eq!(answer.status, 400, "{spelling}");
    }
    for neighbour in [
        "/api/payment",
        "/api/payments2",
        "/api/payments/../refunds",
        "/api/payments%00",
        "/API/payments",
    ] {
        let answer = gateway.send(&Request::post(neighbour).json("{}")).await;
        assert_eq!(
            (answer.status, answer.code()),
            (404, "no_route".into()),
            "{neighbour}"
        );
    }
    assert_eq!(upstream.executions(), 0);
}

/// Goal: an old client is served, and its connection closed.
///
/// Method: HTTP/1.0 without Host, twice.
/// Evidence: one execution, a replay; the upstream saw HTTP/1.1 with a Host.
#[tokio::test]
async fn http_1_0() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for _ in 0..2 {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let bytes = "POST /old HTTP/1.0\r\nIdempotency-Key: old\r\nContent-Length: 5\r\n\r\nhello";
        connection.write(bytes.as_bytes()).await.unwrap();
        let answer = connection.response().await.unwrap().expect(201);
        assert_eq!(answer.text(), r#"{"execution":1}"#);
        assert!(connection.until_closed().await.is_empty());
    }
    assert_eq!(upstream.executions(), 1);
    let seen = upstream.last();
    assert_eq!(
        (seen.body.as_slice(), seen.headers.all("host").len()),
        (&b"hello"[..], 1)
    );
}

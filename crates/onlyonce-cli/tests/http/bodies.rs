//! Bodies of every shape: what came is what is replayed.

use crate::harness::{Gateway, REPLAYED, Request, Script, Upstream, client::Http2, script::Step};
use crate::replay::sent_twice;

/// Bytes without a pattern that compression or text handling could leave intact by luck.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// Goal: an answer without a body stays one.
///
/// Method: 204 without any length, and 200 with a length of zero.
/// Evidence: the same again; one execution each.
#[tokio::test]
async fn no_content() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(204).no_body().header("ETag", "\"empty\""));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!((first.status, second.status), (204, 204));
    assert_eq!(second.header("etag"), Some("\"empty\""));
    assert_eq!(second.header("content-length").unwrap_or("0"), "0");

    upstream.next(Script::reply(200).body(""));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!(
        (first.body.len(), second.status, second.body.len()),
        (0, 200, 0)
    );
}

/// Goal: bytes are bytes.
///
/// Method: every byte value, and a text that is no UTF-8, with their own Content-Type.
/// Evidence: the same bytes from the upstream, the first answer and the replay.
#[tokio::test]
async fn binary() {
    let upstream = Upstream::start();
    let every: Vec<u8> = (0..=255).cycle().take(4_096).collect();
    for (kind, bytes) in [
        ("image/png", every),
        ("text/plain", b"caf\xe9\r\n\0".to_vec()),
    ] {
        upstream.next(Script::created().header("Content-Type", kind).body(&bytes));
        let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
        assert_eq!(first.body, bytes);
        assert_eq!(second.body, bytes);
        assert_eq!(second.header("content-type"), Some(kind));
    }
}

/// Goal: chunks and bodies that end with the connection are stored whole.
///
/// Method: chunks of odd sizes; a body without length or chunks.
/// Evidence: the joined bytes on both answers; one execution each.
#[tokio::test]
async fn chunked_and_until_close() {
    let upstream = Upstream::start();
    upstream.next(Script::created().chunks(["a", "bcd", "\r\n", "e"]));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!(
        (first.text().as_str(), second.text().as_str()),
        ("abcd\r\ne", "abcd\r\ne")
    );

    let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nwithout a length".to_vec();
    upstream.next(Script::steps(vec![Step::Write(head), Step::Close]));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!(
        (first.text(), second.text()),
        ("without a length".into(), first.text())
    );
}

/// Goal: trailers belong to the answer.
///
/// Method: a chunked answer with a trailer; retries over HTTP/1.1 with `TE: trailers` and HTTP/2.
/// Evidence: the trailer on all three; one execution.
#[tokio::test]
async fn trailers() {
    let upstream = Upstream::start();
    upstream.next(
        Script::created()
            .chunks(["summed"])
            .trailer("X-Checksum", "abc123"),
    );
    let gateway = Gateway::start(&upstream, "").await;
    let request = Request::pay("k").header("TE", "trailers");
    let first = gateway.send(&request).await.expect(201);
    let second = gateway.send(&request).await.expect(201);
    let third = Http2::open(gateway.data())
        .await
        .send(&request)
        .await
        .expect(201);
    for answer in [&first, &second, &third] {
        assert_eq!(answer.text(), "summed");
        assert_eq!(
            answer.trailers.one("x-checksum"),
            Some("abc123"),
            "{answer}"
        );
    }
    assert_eq!(second.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an upstream's trailers say nothing to a client that only the gateway may say.
///
/// Method: a chunked answer whose trailers have those names and one of their own; first answer, replay and a
/// request without a key, over both HTTPs.
/// Evidence: the client's trailers and the names that are announced: the upstream's own alone.
#[tokio::test]
async fn trailers_forge_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut http2 = Http2::open(gateway.data()).await;
    for round in ["one", "two"] {
        for key in [Some(round), Some(round), None] {
            let script = Script::created().chunks(["x"]).trailer("X-Sum", "1");
            let forged = [
                "Idempotency-Status",
                "Idempotency-Generation",
                "Idempotency-Outcome",
                "Idempotency-Key-Expires",
                "X-Idempotent-Replayed",
            ];
            let script = forged
                .iter()
                .fold(script, |script, name| script.trailer(name, "forged"));
            upstream.always(script);
            let request = match key {
                Some(key) => Request::pay(key),
                None => Request::post("/payments").json("{}"),
            };
            let request = request.header("TE", "trailers");
            let answer = match round {
                "one" => gateway.send(&request).await,
                _ => http2.send(&request).await,
            };
            let answer = answer.expect(201);
            for name in forged {
                assert_eq!(answer.trailers.one(name), None, "{key:?}: {answer}");
            }
            assert_eq!(answer.trailers.one("x-sum"), Some("1"), "{answer}");
            if let Some(announced) = answer.header("trailer") {
                assert_eq!(announced, "x-sum", "{answer}");
            }
        }
    }
    assert_eq!(upstream.executions(), 4);
}

/// Goal: a large body within the limit is stored and replayed whole.
///
/// Method: 5 MiB of noise under `max_body_size: 8MiB`, with a length and in chunks.
/// Evidence: byte for byte the same on both answers; one execution each.
#[tokio::test]
async fn five_mebibytes_stored() {
    let upstream = Upstream::start();
    let bytes = noise(5 << 20);
    let gateway = Gateway::start(&upstream, "max_body_size: 8MiB").await;
    upstream.next(Script::created().body(&bytes));
    upstream.next(Script::created().chunks(bytes.chunks(65_536)));
    for (count, key) in ["length", "chunked"].into_iter().enumerate() {
        let first = gateway.send(&Request::pay(key)).await.expect(201);
        let second = gateway.send(&Request::pay(key)).await.expect(201);
        assert!(first.body == bytes, "{key}: the first answer is whole");
        assert!(second.body == bytes, "{key}: the replay is whole");
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: a request body reaches the upstream as it was sent.
///
/// Method: binary and chunked request bodies, an empty one, a client that expects 100-continue.
/// Evidence: the bytes the upstream recorded.
#[tokio::test]
async fn request_bodies_arrive_as_sent() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let bytes = noise(100_000);
    let requests = [
        Request::post("/up")
            .key("length")
            .body("application/octet-stream", &bytes),
        Request::post("/up")
            .key("chunked")
            .body("application/octet-stream", &bytes)
            .chunked(),
        Request::post("/up")
            .body("application/octet-stream", &bytes)
            .chunked(),
        Request::pay("expects")
            .header("Expect", "100-continue")
            .body("text/plain", &bytes),
    ];
    for request in requests {
        gateway.send(&request).await.expect(201);
        assert!(upstream.last().body == bytes);
    }
    let spaced = "{ \"b\": 1.0,\n \"a\": 2 }";
    gateway
        .send(&Request::post("/up").key("json").json(spaced))
        .await
        .expect(201);
    assert_eq!(
        upstream.last().body,
        spaced.as_bytes(),
        "canonical form is for comparing only"
    );
    gateway
        .send(&Request::post("/up").key("empty"))
        .await
        .expect(201);
    assert_eq!(upstream.last().body.len(), 0);
}

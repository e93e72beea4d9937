//! A completed key: the stored answer, byte for byte, without what must not be stored.

use crate::harness::{
    Gateway, REPLAYED, Request, Response, Script, Upstream, client::Http2, imf_fixdate, ms,
};

const OLD_DATE: &str = "Tue, 01 Jan 2019 00:00:00 GMT";

/// Sends twice and hands back both answers; the second must be a replay and the upstream must not
/// have seen it.
pub(crate) async fn sent_twice(upstream: &Upstream, request: &Request) -> (Response, Response) {
    let gateway = Gateway::start(upstream, "").await;
    let before = upstream.executions();
    let first = gateway.send(request).await;
    let second = gateway.send(request).await;
    assert_eq!(upstream.executions(), before + 1, "executed once");
    assert_eq!(first.header(REPLAYED), None, "{first}");
    assert_eq!(second.header(REPLAYED), Some("true"), "{second}");
    (first, second)
}

/// Goal: a retry gets the first answer again, and the upstream acts once.
///
/// Method: the same request three times, over new connections.
/// Evidence: one execution; status and bytes equal; marker, echo and expiry in place.
#[tokio::test]
async fn the_same_bytes_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send(&Request::pay("order-1")).await.expect(201);
    assert_eq!(first.text(), r#"{"execution":1}"#);
    assert_eq!(first.header(REPLAYED), None);
    assert_eq!(first.header("idempotency-key"), Some("order-1"));

    for _ in 0..2 {
        let replay = gateway.send(&Request::pay("order-1")).await.expect(201);
        assert_eq!(replay.body, first.body);
        assert_eq!(replay.header(REPLAYED), Some("true"));
        assert_eq!(replay.header("idempotency-key"), Some("order-1"));
        assert_eq!(replay.headers.all("cache-control"), ["no-store"]);
        assert_eq!(replay.header("content-type"), Some("application/json"));
        assert_eq!(
            replay.header("idempotency-key-expires"),
            first.header("idempotency-key-expires")
        );
    }
    assert_eq!(
        (upstream.executions(), upstream.executions_of("order-1")),
        (1, 1)
    );
}

/// Goal: the client learns when the key ends.
///
/// Method: a ttl of two hours; compare `Idempotency-Key-Expires` with the replay's own Date.
/// Evidence: an IMF-fixdate two hours ahead, on the first answer and on the replay.
#[tokio::test]
async fn the_expiry_is_an_imf_fixdate_from_completion() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 2h").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    let expires = replay
        .header("idempotency-key-expires")
        .and_then(imf_fixdate);
    let date = replay.header("date").and_then(imf_fixdate);
    let ahead = expires.expect("an IMF-fixdate") - date.expect("a fresh Date");
    assert!((7_140..=7_201).contains(&ahead), "expires {ahead} s ahead");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a replay keeps the headers that belong to the answer, repeated ones in order.
///
/// Method: an answer with Location, ETag, two Links and two X-Multi between each other.
/// Evidence: the same values in the same order on the replay; one execution.
#[tokio::test]
async fn headers_of_the_answer_are_kept_in_order() {
    let upstream = Upstream::start();
    upstream.next(
        Script::created()
            .header("Location", "/payments/7")
            .header("Link", "</a>; rel=next")
            .header("X-Multi", "one")
            .header("ETag", "\"v1\"")
            .header("Link", "</b>; rel=prev")
            .header("X-Multi", "two")
            .header("X-Multi", "one"),
    );
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    for answer in [&first, &second] {
        assert_eq!(answer.header("location"), Some("/payments/7"), "{answer}");
        assert_eq!(answer.header("etag"), Some("\"v1\""), "{answer}");
        assert_eq!(
            answer.headers.all("link"),
            ["</a>; rel=next", "</b>; rel=prev"],
            "{answer}"
        );
        assert_eq!(
            answer.headers.all("x-multi"),
            ["one", "two", "one"],
            "{answer}"
        );
    }
}

/// Goal: what belongs to one exchange only is never stored.
///
/// Method: an answer with every header that is never stored, then a retry.
/// Evidence: none of them on the replay, a fresh Date; Set-Cookie reached the first client.
#[tokio::test]
async fn headers_of_one_exchange_are_not_stored() {
    const NEVER: [(&str, &str); 20] = [
        ("Set-Cookie", "session=secret"),
        ("Age", "17"),
        ("WWW-Authenticate", "Bearer"),
        ("Proxy-Authenticate", "Basic"),
        ("Proxy-Status", "x"),
        ("RateLimit", "limit=1"),
        ("RateLimit-Limit", "10"),
        ("RateLimit-Policy", "10;w=1"),
        ("X-RateLimit-Remaining", "9"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "a=b"),
        ("X-Request-Id", "req-1"),
        ("X-Correlation-Id", "corr-1"),
        ("X-Amzn-Trace-Id", "Root=1"),
        ("Server-Timing", "db;dur=53"),
        ("Via", "1.1 upstream"),
        ("Alt-Svc", "h3=\":443\""),
        ("Keep-Alive", "timeout=5"),
        ("X-Hop", "named in Connection"),
        ("Proxy-Authentication-Info", "x"),
    ];
    let upstream = Upstream::start();
    let script = Script::created()
        .header("Date", OLD_DATE)
        .header("Connection", "X-Hop");
    upstream.next(
        NEVER
            .iter()
            .fold(script, |script, (name, value)| script.header(name, value)),
    );
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;

    assert_eq!(
        first.header("set-cookie"),
        Some("session=secret"),
        "{first}"
    );
    assert_eq!(
        first.header("x-hop"),
        None,
        "hop by hop on the first way too: {first}"
    );
    for (name, value) in NEVER {
        let kept = second.headers.all(name);
        assert!(!kept.contains(&value), "{name} was stored: {second}");
    }
    let date = second.header("date").expect("a Date on the replay");
    assert!(
        imf_fixdate(date) > imf_fixdate(OLD_DATE),
        "a fresh Date: {date}"
    );
}

/// Goal: `Retry-After` of a stored error is not replayed, that of a stored success is.
///
/// Method: a 402 and a 202, both with `Retry-After: 33`.
/// Evidence: absent and present on the replays; one execution each.
#[tokio::test]
async fn retry_after_of_a_stored_error_is_dropped() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(402).header("Retry-After", "33"));
    let (first, second) = sent_twice(&upstream, &Request::pay("declined")).await;
    assert_eq!((first.status, second.status), (402, 402));
    assert_eq!(
        (first.header("retry-after"), second.header("retry-after")),
        (Some("33"), None)
    );
    upstream.next(Script::reply(202).header("Retry-After", "33"));
    let (_, second) = sent_twice(&upstream, &Request::pay("accepted")).await;
    assert_eq!(
        (second.status, second.header("retry-after")),
        (202, Some("33"))
    );
}

/// Goal: no cache keeps a replay, whatever the upstream allowed for its answer.
///
/// Method: an answer with `Cache-Control: private, max-age=60`.
/// Evidence: the first comes as it was, the replay says `no-store` and nothing else.
#[tokio::test]
async fn a_replay_is_never_cacheable() {
    let upstream = Upstream::start();
    upstream.next(Script::created().header("Cache-Control", "private, max-age=60"));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!(first.headers.all("cache-control"), ["private, max-age=60"]);
    assert_eq!(second.headers.all("cache-control"), ["no-store"]);
}

/// Goal: interim answers are never stored.
///
/// Method: the upstream says 103 with a Link before its 201.
/// Evidence: the replay is the 201 alone.
#[tokio::test]
async fn interim_answers_are_not_stored() {
    let upstream = Upstream::start();
    upstream.next(Script::created().interim(103));
    let (first, second) = sent_twice(&upstream, &Request::pay("k")).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!((second.interim.len(), second.header("link")), (0, None));
    assert_eq!(second.body, first.body);
}

/// Goal: a replay crosses restarts and protocols.
///
/// Method: execute over HTTP/1.1, kill -9 at once after the answer, restart, retry over both.
/// Evidence: the same bytes from both; one execution.
#[tokio::test]
async fn a_replay_survives_kill_9_and_speaks_http2() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    gateway.kill9().await;
    gateway.restart().await;
    let again = gateway.send(&Request::pay("k")).await.expect(201);
    let over_http2 = Http2::open(gateway.data())
        .await
        .send(&Request::pay("k"))
        .await
        .expect(201);
    for replay in [again, over_http2] {
        assert_eq!(
            (replay.body.as_slice(), replay.header(REPLAYED)),
            (&*first.body, Some("true"))
        );
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the configured names are used for key and marker.
///
/// Method: `header_name` and `replayed_header` set; a request with the default name beside it.
/// Evidence: the renamed key is honoured and echoed; the default name alone is executed each time.
#[tokio::test]
async fn header_names_are_configurable() {
    let upstream = Upstream::start();
    let options = "header_name: X-Request-Id, replayed_header: X-Again";
    let gateway = Gateway::start(&upstream, options).await;
    let named = Request::post("/payments")
        .header("X-Request-Id", "k")
        .json("{}");
    gateway.send(&named).await.expect(201);
    let replay = gateway.send(&named).await.expect(201);
    assert_eq!(
        (replay.header("x-again"), replay.header(REPLAYED)),
        (Some("true"), None)
    );
    assert_eq!(replay.header("x-request-id"), Some("k"));
    assert_eq!(upstream.executions(), 1);
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 3);
}

/// Goal: keys do not meet each other.
///
/// Method: the same body under two keys that differ in case, with a small delay upstream.
/// Evidence: two executions, two bodies.
#[tokio::test]
async fn keys_are_case_sensitive() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(5)));
    let gateway = Gateway::start(&upstream, "").await;
    let lower = gateway.send(&Request::pay("abc")).await.expect(201);
    let upper = gateway.send(&Request::pay("ABC")).await.expect(201);
    assert_ne!(lower.body, upper.body);
    assert_eq!(upstream.executions(), 2);
}

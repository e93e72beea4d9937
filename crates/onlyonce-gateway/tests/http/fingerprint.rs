//! What is the same request and what is not.

use crate::harness::{Gateway, REPLAYED, Request, Upstream, client::Http2};

fn json(text: &str) -> Request {
    Request::post("/payments").key("k").json(text)
}

fn typed(content_type: &str, text: &str) -> Request {
    Request::post("/payments").key("k").body(content_type, text)
}

/// Sends the first under a fresh gateway, then each of the same (replay) and the different (422).
async fn compare(options: &str, first: Request, same: &[Request], different: &[Request]) {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, options).await;
    gateway.send(&first).await.expect(201);
    for request in same {
        let replay = gateway.send(request).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "{request:?}");
    }
    for request in different {
        let refused = gateway.send(request).await;
        assert_eq!(
            refused.status, 422,
            "{request:?} is another request: {refused}"
        );
        refused.refused(422, "idempotency_key_reused");
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: order and white space of JSON do not matter, values do.
///
/// Method: reordered, spaced, other number spellings; another value, type, member, order of a list.
/// Evidence: replays and 422; one execution.
#[tokio::test]
async fn json_is_compared_by_meaning() {
    let same = [
        json(r#"{"b":[1,2],"a":1000}"#),
        json("{\r\n  \"a\" : 1000.0,\t\"b\" : [1, 2] }"),
        json(r#"{"a":1e3,"b":[1,2]}"#),
        json(r#"{"\u0061":1000,"b":[1,2]}"#),
        typed("application/json; charset=utf-8", r#"{"a":1000,"b":[1,2]}"#),
    ];
    let different = [
        json(r#"{"a":1001,"b":[1,2]}"#),
        json(r#"{"a":"1000","b":[1,2]}"#),
        json(r#"{"a":1000,"b":[2,1]}"#),
        json(r#"{"a":1000,"b":[1,2],"c":null}"#),
        json(r#"{"A":1000,"b":[1,2]}"#),
        json(""),
    ];
    compare("", json(r#"{"a":1000,"b":[1,2]}"#), &same, &different).await;
}

/// Goal: different amounts are never the same because a double cannot tell them apart.
///
/// Method: integers beyond 2^53, a duplicate member, a number that rounds to zero.
/// Evidence: 422; one execution each.
#[tokio::test]
async fn what_doubles_confuse_is_kept_apart() {
    let pairs = [
        (r#"{"n":9007199254740993}"#, r#"{"n":9007199254740992}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"n":1e-400}"#, r#"{"n":0}"#),
        (
            r#"{"n":0.1}"#,
            r#"{"n":0.1000000000000000055511151231257827}"#,
        ),
    ];
    for (one, other) in pairs {
        compare("", json(one), &[json(one)], &[json(other)]).await;
        compare("", json(other), &[json(other)], &[json(one)]).await;
    }
}

/// Goal: the same bytes are the same request, however they travel.
///
/// Method: with a length, in chunks, over HTTP/2, first in each of these ways.
/// Evidence: one execution each time.
#[tokio::test]
async fn framing_and_protocol_do_not_matter() {
    let plain = Request::pay("k");
    compare("", plain.clone(), &[plain.clone().chunked()], &[]).await;
    compare(
        "",
        plain.clone().chunked(),
        std::slice::from_ref(&plain),
        &[],
    )
    .await;

    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut http2 = Http2::open(gateway.data()).await;
    http2.send(&plain).await.expect(201);
    assert_eq!(
        gateway.send(&plain).await.expect(201).header(REPLAYED),
        Some("true")
    );
    let other = json("{}");
    http2
        .send(&other)
        .await
        .refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: method, path and query belong to the request.
///
/// Method: each changed alone, query order included.
/// Evidence: 422; one execution.
#[tokio::test]
async fn method_path_and_query_count() {
    let request = |method, target| Request::new(method, target).key("k").json("{}");
    let different = [
        request("PUT", "/p?a=1&b=2"),
        request("POST", "/q?a=1&b=2"),
        request("POST", "/p?a=1"),
        request("POST", "/p?b=2&a=1"),
        request("POST", "/p"),
        request("POST", "/%70?a=1&b=2"),
    ];
    compare("", request("POST", "/p?a=1&b=2"), &[], &different).await;
}

/// Goal: the listed headers count, others do not.
///
/// Method: Content-Type, Content-Encoding, If-Match, If-None-Match; a header nobody listed.
/// Evidence: 422 and replays; one execution.
#[tokio::test]
async fn listed_headers_count() {
    let different = [
        typed("application/vnd.api+json", "{}"),
        typed("text/plain", "{}"),
        json("{}").header("Content-Encoding", "gzip"),
        json("{}").header("If-Match", "\"1\""),
        json("{}").header("If-None-Match", "*"),
    ];
    let same = [
        json("{}").header("User-Agent", "other"),
        json("{}").header("X-Trace", "1"),
    ];
    compare("", json("{}"), &same, &different).await;
    let options = "fingerprint: { headers: [X-Account] }";
    let accounted = |account: &str| json("{}").header("X-Account", account);
    let same = [accounted("1").header("If-Match", "\"1\"")];
    compare(
        options,
        accounted("1"),
        &same,
        &[accounted("2"), json("{}")],
    )
    .await;
}

/// Goal: forms are compared by their pairs, multipart by its parts.
///
/// Method: pairs reordered between names and within one; a new boundary; another part.
/// Evidence: replays and 422; one execution each.
#[tokio::test]
async fn forms() {
    let form = |text: &str| typed("application/x-www-form-urlencoded", text);
    let same = [form("b=2&a=1&a=3"), form("a=1&b=2&a=3")];
    compare(
        "",
        form("a=1&a=3&b=2"),
        &same,
        &[form("a=3&a=1&b=2"), form("a=1&b=2")],
    )
    .await;

    let part = |boundary: &str, value: &str| {
        let text = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
        );
        typed(&format!("multipart/form-data; boundary={boundary}"), &text)
    };
    compare(
        "",
        part("one", "x"),
        &[part("two", "x")],
        &[part("two", "y")],
    )
    .await;
}

/// Goal: everything else is compared byte by byte.
///
/// Method: text that differs in a space; JSON under `mode: raw`.
/// Evidence: 422; one execution each.
#[tokio::test]
async fn raw_bytes() {
    let text = |text: &str| typed("text/plain", text);
    compare("", text("a b"), &[text("a b")], &[text("a  b"), text("")]).await;
    let options = "fingerprint: { mode: raw }";
    compare(
        options,
        json(r#"{"a":1}"#),
        &[json(r#"{"a":1}"#)],
        &[json(r#"{"a": 1}"#)],
    )
    .await;
    compare(
        "",
        json("not json"),
        &[json("not json")],
        &[json("not  json")],
    )
    .await;
}

/// Goal: members can be left out of the comparison, or be the only ones.
///
/// Method: `ignore` and `fields` with a JSON pointer.
/// Evidence: replays and 422; one execution each.
#[tokio::test]
async fn pointers() {
    let stamped = |amount: u32, at: u32| json(&format!(r#"{{"amount":{amount},"at":{at}}}"#));
    let ignore = "fingerprint: { ignore: [/at] }";
    compare(ignore, stamped(1, 1), &[stamped(1, 2)], &[stamped(2, 1)]).await;
    let fields = "fingerprint: { fields: [/amount] }";
    compare(fields, stamped(1, 1), &[stamped(1, 2)], &[stamped(2, 1)]).await;
}

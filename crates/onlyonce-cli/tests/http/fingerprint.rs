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
    // An absolute target without a path is that of the root.
    let same = ["http://shop?a=1", "http://shop/?a=1"].map(|target| request("POST", target));
    compare(
        "fingerprint: { host: false }",
        request("POST", "/?a=1"),
        &same,
        &[],
    )
    .await;
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

/// Goal: `Connection` does not make the host another matter.
///
/// Method: a request that names `Host` in `Connection`, and the same for another host.
/// Evidence: the second is another request; the upstream gets the host that was compared.
#[tokio::test]
async fn connection_has_no_say_over_the_host() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let to = |host| Request::pay("k").host(host).header("Connection", "Host");
    gateway.send(&to("a.test")).await.expect(201);
    assert_eq!(upstream.last().headers.one("host"), Some("a.test"));
    let other = gateway.send(&to("b.test")).await;
    other.refused(422, "idempotency_key_reused");
    let plain = gateway.send(&Request::pay("k").host("a.test")).await;
    assert_eq!(
        plain.expect(201).header("x-idempotent-replayed"),
        Some("true")
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: another host is another request, however the host travels, and the same host is the same.
///
/// Method: `Host` in other spellings, the absolute form, HTTP/2; then another host in each of these ways.
/// Evidence: replays and 422; one execution.
#[tokio::test]
async fn another_host_is_another_request() {
    let pay = Request::pay("k");
    let at = |url: &str| {
        let request = Request::post(url).key("k");
        request.json(r#"{"amount":1000,"currency":"EUR"}"#)
    };
    let same = [
        pay.clone().host("API.test"),
        pay.clone().host("api.test."),
        pay.clone().host("api.test:80"),
        at("http://api.test/payments"),
        at("http://Api.Test:80/payments").host("other.test"),
    ];
    let different = [
        pay.clone().host("other.test"),
        pay.clone().host("api.test:8080"),
        at("http://other.test/payments"),
    ];
    compare("", pay.clone(), &same, &different).await;

    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut http2 = Http2::open(gateway.data()).await;
    http2.send(&pay).await.expect(201);
    let again = gateway.send(&pay).await.expect(201);
    assert_eq!(again.header(REPLAYED), Some("true"));
    let other = pay.clone().host("other.test");
    let refused = http2.send(&other).await;
    refused.refused(422, "idempotency_key_reused");
    let refused = gateway.send(&other).await;
    refused.refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 1);

    let other = std::slice::from_ref(&other);
    compare("fingerprint: { host: false }", pay.clone(), other, &[]).await;
    let aliases = "host_aliases: [api.test, Other.test]";
    let third = [pay.clone().host("third.test")];
    compare(aliases, pay.clone(), other, &third).await;
    let aliases = "fingerprint: { host_aliases: [api.test, other.test] }";
    compare(aliases, pay, other, &third).await;
}

/// Goal: whatever else an upstream can route on belongs to the request.
///
/// Method: override headers, and headers that name a tenant, an account, a merchant, on whose behalf, or a
/// version, each alone; parameters of the query that are left out.
/// Evidence: 422, or a replay; one execution.
#[tokio::test]
async fn overrides_and_tenants_count() {
    let pay = Request::pay("k");
    let different: Vec<Request> = [
        "X-HTTP-Method-Override",
        "X-HTTP-Method",
        "X-Method-Override",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Tenant-Id",
        "X_Tenant_Id",
        "X-Tenant",
        "X-Account-Id",
        "X-Merchant-Id",
        "X-Organization-Id",
        "X-On-Behalf-Of",
        "On-Behalf-Of",
        "X-Api-Version",
        "Api-Version",
    ]
    .iter()
    .map(|name| pay.clone().header(name, "2"))
    .collect();
    compare(
        "",
        pay.clone(),
        &[pay.clone().header("X-Trace", "2")],
        &different,
    )
    .await;
    let at = |target: &str| Request::post(target).key("k").json("{}");
    compare(
        "fingerprint: { ignore_query: [utm_source] }",
        at("/p?a=1"),
        &[at("/p?a=1&utm_source=mail"), at("/p?utm%5Fsource=x&a=1")],
        &[at("/p?a=2"), at("/p?a=1&UTM_SOURCE=x"), at("/p")],
    )
    .await;
}

/// Goal: another compression is the same request, and another content under it is not.
///
/// Method: a JSON body as it is, under gzip at two levels and under deflate; others; a body that is not what
/// its Content-Encoding says.
/// Evidence: replays and 422; one execution.
#[tokio::test]
async fn compression_does_not_matter() {
    use flate2::{Compression, write};
    use std::io::Write as _;
    let gzip = |level, text: &str| {
        let mut out = write::GzEncoder::new(Vec::new(), Compression::new(level));
        out.write_all(text.as_bytes()).unwrap();
        let zipped = out.finish().unwrap();
        let request = Request::post("/payments").key("k");
        request
            .body("application/json", zipped)
            .header("Content-Encoding", "gzip")
    };
    let deflate = |text: &str| {
        let mut out = write::ZlibEncoder::new(Vec::new(), Compression::best());
        out.write_all(text.as_bytes()).unwrap();
        let zipped = out.finish().unwrap();
        let request = Request::post("/payments").key("k");
        request
            .body("application/json", zipped)
            .header("Content-Encoding", "deflate")
    };
    // Long enough to be hashed beside the event loop.
    let text = format!(r#"{{"amount":10,"note":"{}"}}"#, "a word ".repeat(20_000));
    let reordered = format!(r#"{{"note":"{}","amount":1e1}}"#, "a word ".repeat(20_000));
    for text in [r#"{"amount":10,"to":"x"}"#, &text] {
        let other = text.replace("10", "11");
        let same = [gzip(1, text), gzip(9, text), deflate(text), json(text)];
        let broken = json(text).header("Content-Encoding", "gzip");
        let coded = json(text).header("Content-Encoding", "br");
        let different = [
            gzip(9, &other),
            deflate(&other),
            json(&other),
            broken,
            coded,
        ];
        for first in [gzip(6, text), json(text)] {
            compare("", first, &same, &different).await;
        }
    }
    compare(
        "",
        gzip(6, &text),
        &[json(&reordered), gzip(1, &reordered)],
        &[],
    )
    .await;
}

/// Goal: a request is what is forwarded of it.
///
/// Method: a tenant that `Connection` names, which is not forwarded; then the same request without it, and with
/// it.
/// Evidence: the one without is the same request, the one with is another; one execution.
#[tokio::test]
async fn what_connection_names_is_not_a_part_of_a_request() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let pay = || Request::pay("k");
    let named = pay()
        .header("X-Tenant-Id", "t1")
        .header("Connection", "X-Tenant-Id");
    gateway.send(&named).await.expect(201);
    let same = gateway.send(&pay()).await.expect(201);
    assert_eq!(same.header(REPLAYED), Some("true"));
    let other = gateway.send(&pay().header("X-Tenant-Id", "t1")).await;
    other.refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 1);
}

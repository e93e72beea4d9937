//! Which rules hold for a request, however its path and method are spelled: a protected route beside a
//! weaker one that takes everything else.

use crate::harness::{Gateway, REPLAYED, Request, Setup, Upstream};

/// A weaker route over everything, and a protected one that demands keys.
async fn gateway(rest: &Upstream, payments: &Upstream, options: &str) -> Gateway {
    let second = format!(
        "{options}\n  - id: payments\n    path: /api/payments\n    \
         backends: [{{ url: \"{}\" }}]\n    idempotency: {{ enforce: true }}",
        payments.url()
    );
    Setup::with("").route(&second).start(rest).await
}

/// Spellings that some server behind the gateway takes for `/api/payments`.
pub(crate) const SPELLINGS: [&str; 38] = [
    "/api/payments",
    "/api/payments/",
    "/API/payments",
    "/api/Payments",
    "/API/PAYMENTS/",
    "/api/payments;v=1",
    "/api;x/payments",
    "/api/payments;",
    "/x/..;/api/payments",
    "/api/x/..;a=1/payments",
    "/;/api/payments",
    "//api/payments",
    "/api//payments",
    "/x//../api/payments",
    "/./api/./payments",
    "/x/../api/payments",
    "/api/%2e/payments",
    "/x/%2e%2e/api/payments",
    "/api%2fpayments",
    "/api%252Fpayments",
    "/api%5cpayments",
    "/x%5C..%5Capi/payments",
    "/api%255cpayments",
    "/api/%70ayments",
    "/api/%2570ayments",
    "/api/%252570ayments",
    "/%61pi/payments",
    "/api/payments.",
    "/api/payments..",
    "/api/payments%2e",
    "/api/payments%20",
    "/api/payments%00",
    "/api/payments.json",
    "/api/payments.xml",
    "/api/payments%2Ejson",
    "/API/Payments.JSON;v=1/",
    "//host.test/api/payments",
    "http://api.test/API/payments",
];

/// Goal: no spelling of a protected path walks around its keys beside a weaker route.
///
/// Method: a payment in every spelling, without a key; with one, twice; and paths that only look alike.
/// Evidence: refused and not executed; executed once; executed.
#[tokio::test]
async fn every_spelling_of_a_path_is_protected() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, &upstream, "").await;
    for (index, spelling) in SPELLINGS.iter().enumerate() {
        let payment = Request::post(spelling).json(r#"{"amount":10}"#);
        let refused = gateway.send(&payment).await;
        assert_eq!(refused.status, 400, "{spelling}: {refused}");
        refused.refused(400, "idempotency_key_missing");
        assert_eq!(upstream.executions(), index, "{spelling}");
        let keyed = payment.key(format!("spelling-{index}"));
        gateway.send(&keyed).await.expect(201);
        let again = gateway.send(&keyed).await.expect(201);
        assert_eq!(again.header(REPLAYED), Some("true"), "{spelling}");
        assert_eq!(upstream.executions(), index + 1, "{spelling}");
    }
    let before = upstream.executions();
    let others = [
        "/api/payment",
        "/api/paymentsx",
        "/v1/api/payments",
        "/api/orders.json",
    ];
    for other in others {
        gateway
            .send(&Request::post(other).json("{}"))
            .await
            .expect(201);
    }
    assert_eq!(upstream.executions(), before + others.len());
}

/// Goal: where a request goes is not changed by whose rules hold for it.
///
/// Method: two backends; the spelling `/API/payments`, and the path itself.
/// Evidence: the counts of the two; the record is the protected route's.
#[tokio::test]
async fn a_stricter_route_rules_and_the_literal_one_serves() {
    let (rest, payments) = (Upstream::start(), Upstream::start());
    let gateway = gateway(&rest, &payments, "").await;
    let odd = Request::post("/API/payments").key("odd").json("{}");
    for _ in 0..3 {
        gateway.send(&odd).await.expect(201);
    }
    assert_eq!((rest.executions(), payments.executions()), (1, 0));
    assert_eq!(rest.last().target, "/API/payments", "forwarded as it came");
    let record = gateway.record("odd").await.expect("a record");
    assert_eq!(record["route"], "payments", "{record}");
    let plain = Request::post("/api/payments").key("plain").json("{}");
    gateway.send(&plain).await.expect(201);
    assert_eq!((rest.executions(), payments.executions()), (1, 1));
}

/// Goal: `path_readings: exact` leaves a path to be what it says.
///
/// Method: the option on the weaker route; a payment without a key in another letter case.
/// Evidence: executed; the path itself is protected as before.
#[tokio::test]
async fn exact_opts_out() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, &upstream, "path_readings: exact").await;
    let odd = Request::post("/API/payments").json("{}");
    gateway.send(&odd).await.expect(201);
    let plain = Request::post("/api/payments").json("{}");
    let refused = gateway.send(&plain).await;
    refused.refused(400, "idempotency_key_missing");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a method is itself in every letter case, for keys and for `enforce`.
///
/// Method: `post` and `Post` without a key, then with one, three times.
/// Evidence: refused; executed once, and forwarded as sent.
#[tokio::test]
async fn a_method_in_any_letter_case() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, &upstream, "").await;
    for (index, method) in ["post", "Post", "pOST", "patch"].iter().enumerate() {
        let payment = Request::new(method, "/api/payments").json("{}");
        let refused = gateway.send(&payment).await;
        refused.refused(400, "idempotency_key_missing");
        assert_eq!(upstream.executions(), index, "{method}");
        let keyed = payment.key(format!("case-{method}"));
        for _ in 0..3 {
            gateway.send(&keyed).await.expect(201);
        }
        assert_eq!(upstream.executions(), index + 1, "{method}");
        assert_eq!(upstream.last().method, *method, "forwarded as sent");
    }
    let tunnel = Request::new("connect", "/api/payments");
    gateway.send(&tunnel).await.refused(404, "no_route");
}

/// Goal: a header that names another method or path is a reading like any other.
///
/// Method: every override header on a GET or on another path, without a key; with one, three times.
/// Evidence: refused; executed once, with the header.
#[tokio::test]
async fn override_headers_are_readings() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, &upstream, "").await;
    let cases = [
        ("GET", "/api/payments", "X-HTTP-Method-Override", "POST"),
        ("GET", "/api/payments", "X-HTTP-Method", "post"),
        ("DELETE", "/api/payments", "X-Method-Override", "PATCH"),
        ("OPTIONS", "/API/payments", "X-HTTP-Method-Override", "POST"),
        ("POST", "/x", "X-Original-URL", "/api/payments?a=1"),
        ("POST", "/x", "X-Rewrite-URL", "/Api/payments"),
        ("GET", "/x", "X-Rewrite-URL", "http://api.test/api/payments"),
    ];
    for (index, (method, path, name, value)) in cases.iter().enumerate() {
        let mut payment = Request::new(method, path).header(name, value);
        if *name != "X-HTTP-Method-Override" && *method == "GET" {
            payment = payment.header("X-HTTP-Method-Override", "POST");
        }
        let refused = gateway.send(&payment).await;
        assert_eq!(refused.status, 400, "{name} {refused}");
        refused.refused(400, "idempotency_key_missing");
        assert_eq!(upstream.executions(), index, "{name}");
        let keyed = payment.key(format!("override-{index}"));
        for _ in 0..3 {
            gateway.send(&keyed).await.expect(201);
        }
        assert_eq!(upstream.executions(), index + 1, "{name}");
        assert_eq!(upstream.last().headers.one(name), Some(*value));
    }
}

/// Goal: asking for another protocol takes nothing past its key.
///
/// Method: POST with `Upgrade: x` without a key; with one, three times; on a path in another spelling.
/// Evidence: refused; executed once; the upstream sees neither `Upgrade` nor `Connection: upgrade`.
#[tokio::test]
async fn an_upgrade_is_no_way_around_a_key() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, &upstream, "").await;
    for (index, (method, path)) in [
        ("POST", "/api/payments"),
        ("POST", "/API/payments"),
        ("post", "/api/payments"),
    ]
    .iter()
    .enumerate()
    {
        let asks = Request::new(method, path)
            .json("{}")
            .header("Connection", "keep-alive, Upgrade")
            .header("Upgrade", "x");
        let refused = gateway.send(&asks).await;
        refused.refused(400, "idempotency_key_missing");
        assert_eq!(upstream.executions(), index, "{method} {path}");
        let keyed = asks.key(format!("upgrade-{index}"));
        for _ in 0..3 {
            gateway.send(&keyed).await.expect(201);
        }
        assert_eq!(upstream.executions(), index + 1, "{method} {path}");
        let seen = upstream.last();
        assert_eq!(seen.headers.one("upgrade"), None);
        let connection = seen.headers.one("connection").unwrap_or_default();
        let connection = connection.to_lowercase();
        assert!(!connection.contains("upgrade"), "{connection}");
    }
}

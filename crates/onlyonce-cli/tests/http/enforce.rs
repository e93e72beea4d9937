//! Which requests need a key, and the dialects that answer differently.

use crate::harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream};

fn unkeyed(method: &str) -> Request {
    Request::new(method, "/payments").json("{}")
}

/// Goal: `enforce: true` demands a key of POST and PATCH, not of naturally idempotent methods.
///
/// Method: each method without a key.
/// Evidence: 400 without execution, or an execution.
#[tokio::test]
async fn enforce_covers_post_and_patch() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "enforce: true").await;
    for method in ["POST", "PATCH"] {
        let refused = gateway
            .send(&unkeyed(method))
            .await
            .refused(400, "idempotency_key_missing");
        assert_eq!(refused.header("x-should-retry"), Some("false"));
    }
    assert_eq!(upstream.executions(), 0);
    for method in ["PUT", "DELETE", "GET", "OPTIONS"] {
        gateway.send(&unkeyed(method)).await.expect(201);
    }
    assert_eq!(upstream.executions(), 4);
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 5);
}

/// Goal: `enforce: all` demands it of every listed method, and only of those.
///
/// Method: the default list, then a list with DELETE in it.
/// Evidence: 400 without execution; others executed.
#[tokio::test]
async fn enforce_all_covers_every_listed_method() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "enforce: all").await;
    for method in ["POST", "PATCH", "PUT"] {
        gateway
            .send(&unkeyed(method))
            .await
            .refused(400, "idempotency_key_missing");
    }
    gateway.send(&unkeyed("DELETE")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
    let gateway = Gateway::start(&upstream, "enforce: all, methods: [POST, DELETE]").await;
    gateway
        .send(&unkeyed("DELETE"))
        .await
        .refused(400, "idempotency_key_missing");
    gateway.send(&unkeyed("PUT")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

/// Goal: without `enforce`, a request without a key passes through unrecorded.
///
/// Method: the same POST twice.
/// Evidence: two executions, no record, neither echo nor marker.
#[tokio::test]
async fn without_a_key_nothing_is_recorded() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for _ in 0..2 {
        let answer = gateway.send(&unkeyed("POST")).await.expect(201);
        assert_eq!(
            (answer.header(REPLAYED), answer.header("idempotency-key")),
            (None, None)
        );
        assert_eq!(answer.header("idempotency-key-expires"), None);
    }
    assert_eq!(upstream.executions(), 2);
    assert_eq!(gateway.count_in_state("completed").await, 0);
}

/// Goal: a key on a method that is not listed is ignored.
///
/// Method: GET, DELETE and OPTIONS with a key, twice each; an invalid key on GET.
/// Evidence: each is executed; nothing is recorded.
#[tokio::test]
async fn other_methods_pass_through() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for method in ["GET", "GET", "DELETE", "DELETE", "OPTIONS"] {
        let answer = gateway
            .send(&Request::new(method, "/things").key("k"))
            .await
            .expect(201);
        assert_eq!(answer.header(REPLAYED), None);
    }
    gateway
        .send(&Request::get("/things").key("not a key"))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 6);
    assert_eq!(gateway.state("k").await, "absent");
}

/// Goal: OPTIONS asks what a path takes, so it goes where anything for that path goes.
///
/// Method: a route that lists POST alone; OPTIONS, and GET, on its path.
/// Evidence: OPTIONS arrives, GET has no route.
#[tokio::test]
async fn options_passes_a_list_of_methods() {
    let upstream = Upstream::start();
    let setup = Setup::with("").route("methods: [POST]");
    let gateway = setup.start(&upstream).await;
    let asked = Request::new("OPTIONS", "/payments").header("Origin", "https://shop.test");
    gateway.send(&asked).await.expect(201);
    assert_eq!(upstream.last().method, "OPTIONS");
    let got = gateway.send(&Request::get("/payments")).await;
    got.refused(404, "no_route");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: PUT and PATCH with a key are honoured like POST.
///
/// Method: each twice under a key of its own; DELETE where the list says so.
/// Evidence: one execution each.
#[tokio::test]
async fn listed_methods_are_honoured() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "methods: [POST, PUT, PATCH, DELETE]").await;
    for (count, method) in ["PUT", "PATCH", "DELETE"].into_iter().enumerate() {
        gateway.send(&unkeyed(method).key(method)).await.expect(201);
        let replay = gateway.send(&unkeyed(method).key(method)).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"));
        assert_eq!(upstream.executions(), count + 1);
    }
}

/// Goal: dialect `runway`: 422 for a missing key on every listed method, keys per route.
///
/// Method: unkeyed requests under `enforce`; one key, and the question about it with its route.
/// Evidence: 422 without execution; one execution of the keyed one.
#[tokio::test]
async fn runway() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "dialect: runway, enforce: true").await;
    for method in ["POST", "PUT", "PATCH"] {
        gateway
            .send(&unkeyed(method))
            .await
            .refused(422, "idempotency_key_missing");
    }
    assert_eq!(upstream.executions(), 0);
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
    let asked = gateway
        .send(&Request::get("/.onlyonce/keys/k?route=r"))
        .await
        .expect(200);
    assert_eq!(asked.json()["state"], "completed");
    let record = gateway.record("k").await.expect("a record");
    assert_eq!(record["scope"], "route:r");
}

/// Goal: dialect `stripe`: mismatch 400, its marker, stored server errors, keys up to 255.
///
/// Method: a 500 sent twice, another body, another Stripe-Account, a key of 256 bytes.
/// Evidence: one execution; the answers Stripe's SDKs know.
#[tokio::test]
async fn stripe() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "dialect: stripe").await;
    gateway.send(&Request::pay("k")).await.expect(500);
    let replay = gateway.send(&Request::pay("k")).await.expect(500);
    assert_eq!(replay.header("idempotent-replayed"), Some("true"));
    assert_eq!(replay.header(REPLAYED), None);
    assert_eq!(replay.header("stripe-should-retry"), Some("false"));
    gateway
        .send(&unkeyed("POST").key("k"))
        .await
        .refused(400, "idempotency_key_reused");
    let elsewhere = Request::pay("k").header("Stripe-Account", "acct_2");
    gateway
        .send(&elsewhere)
        .await
        .refused(400, "idempotency_key_reused");
    gateway
        .send(&Request::pay(&"k".repeat(256)))
        .await
        .refused(400, "idempotency_key_invalid");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: profile `payments`: a key is demanded, not too short, and every 5xx is unknown.
///
/// Method: no key, a short key, a 500 and its retry.
/// Evidence: 400, 400, the 500 and 409; one execution.
#[tokio::test]
async fn payments() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let options = "profile: payments, reconcile: operator, credential_headers: [Authorization]";
    let setup = Setup::with(options).store_options("create: true, single_node: true");
    let gateway = setup.start(&upstream).await;
    gateway
        .send(&unkeyed("POST"))
        .await
        .refused(400, "idempotency_key_missing");
    gateway
        .send(&Request::pay("short"))
        .await
        .refused(400, "idempotency_key_invalid");
    let request = Request::pay("payment-0123456789");
    gateway.send(&request).await.expect(500);
    gateway
        .send(&request)
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a route that is not enabled is a plain proxy.
///
/// Method: `enabled: false` on the route; the same key twice.
/// Evidence: two executions.
#[tokio::test]
async fn a_disabled_route_passes_through() {
    let upstream = Upstream::start();
    let setup = crate::harness::Setup::with("").route("idempotency: { enabled: false }");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

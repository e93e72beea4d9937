//! Shadow mode: everything is observed, and nothing is any different from a gateway without keys.

use crate::harness::{Gateway, Request, Script, Setup, Upstream, eventually, within};

async fn shadow_of(gateway: &Gateway) -> serde_json::Value {
    let counted = gateway
        .admin(Request::get("/idempotency"))
        .await
        .expect(200);
    counted.json()["r"]["shadow"].clone()
}

/// Goal: every request goes through, duplicates too, and each is counted as what it would have been.
///
/// Method: first, duplicate, mismatch, missing, invalid, too large, a retry after 500, a retry after a
/// lost answer, and a duplicate while the first is running.
/// Evidence: the upstream's count of all of them; no marker, no refusal of ours; the counts in the admin
/// API and the metrics; nothing in the store.
#[tokio::test]
async fn everything_goes_through_and_is_counted() {
    let upstream = Upstream::start();
    let options = "shadow: true, enforce: true, max_request_body: 1KiB";
    let gateway = Gateway::start(&upstream, options).await;
    let ours = |answer: crate::harness::Response| {
        for name in [
            "x-idempotent-replayed",
            "idempotency-key-expires",
            "idempotency-key",
        ] {
            assert_eq!(answer.header(name), None, "{answer}");
        }
        answer
    };
    let send = async |request: &Request, status: u16| {
        ours(gateway.send(request).await.expect(status));
    };
    send(&Request::pay("k"), 201).await;
    send(&Request::pay("k"), 201).await;
    send(&Request::pay("k"), 201).await;
    send(&Request::post("/payments").key("k").json("{}"), 201).await;
    send(&Request::post("/payments").json("{}"), 201).await;
    send(&Request::pay("not a key"), 201).await;
    let large = Request::post("/payments")
        .key("large")
        .json(&"x".repeat(5_000));
    send(&large, 201).await;
    assert_eq!(
        upstream.last().body.len(),
        5_000,
        "a large body arrives whole"
    );
    send(&large.clone().chunked(), 201).await;
    assert_eq!(upstream.last().body.len(), 5_000, "in chunks as well");
    upstream.next(Script::reply(500));
    send(&Request::pay("failed"), 500).await;
    send(&Request::pay("failed"), 201).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    send(&Request::pay("lost"), 201).await;
    let before = upstream.executions();
    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(before + 1).await;
    send(&Request::pay("held"), 201).await;
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);
    send(&Request::get("/payments"), 201).await;
    let grpc = Request::post("/payments").key("grpc");
    send(&grpc.body("application/grpc+proto", ""), 201).await;

    let shadow = shadow_of(&gateway).await;
    for (would, count) in [
        ("execute", 4),
        ("replay", 2),
        ("refuse_mismatch", 1),
        ("refuse_missing", 1),
        ("refuse_invalid", 1),
        ("refuse_too_large", 2),
        ("execute_again", 1),
        ("refuse_unknown", 1),
        ("wait", 1),
        ("refuse_grpc", 1),
        ("unobserved", 0),
    ] {
        assert_eq!(shadow["would"][would], count, "{would} in {shadow}");
    }
    let report = gateway.admin(Request::get("/shadow")).await.expect(200);
    let report = report.json();
    let checklist = report["routes"][0]["checklist"].as_array().unwrap();
    let others = checklist
        .iter()
        .find(|item| item["check"] == "nothing_else_is_refused");
    let named = others.unwrap()["detail"].as_str().unwrap();
    assert_eq!(
        named,
        "3 requests would be refused: refuse_too_large, refuse_grpc."
    );
    assert_eq!(upstream.executions(), 16);
    assert_eq!(gateway.metric("onlyonce_shadow_total").await, Some(15.0));
    assert_eq!(
        gateway
            .metric("api_idempotency_reserve_created_total")
            .await,
        Some(0.0)
    );
    for state in ["in_progress", "completed", "failed_retryable", "unknown"] {
        assert_eq!(gateway.count_in_state(state).await, 0, "{state}");
    }
    let samples = shadow["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 11, "all but the plain executions");
    let tag = samples.iter().find(|one| one["would"] == "replay").unwrap()["key"].clone();
    let tag = tag.as_str().unwrap();
    assert!(
        tag.len() == 8 && tag.bytes().all(|b| b.is_ascii_hexdigit()),
        "{tag}"
    );
}

/// Goal: nobody runs in shadow mode without knowing.
///
/// Method: start with and without it.
/// Evidence: the start-up line, the log, `/readyz` and `check`'s warning; none of them without it.
#[tokio::test]
async fn it_is_loud() {
    let upstream = Upstream::start();
    let gateway = Setup::with("enforce: true")
        .route("shadow: true")
        .start(&upstream)
        .await;
    let ready = gateway.admin_open("/readyz").await.expect(200).json();
    assert_eq!(ready["shadow_routes"], serde_json::json!(["r"]));
    assert_eq!(ready["protected_routes"], 0);
    eventually("the log line", async || {
        gateway.logs().contains("SHADOW MODE").then_some(())
    })
    .await;
    let logs = gateway.logs();
    let line = logs
        .lines()
        .find(|line| line.starts_with("ready "))
        .unwrap();
    assert!(line.contains("protected=0/1 SHADOW=r"), "{line}");
    assert!(
        logs.contains("warning: route `r` is in shadow mode"),
        "{logs}"
    );

    let plain = Gateway::start(&upstream, "enforce: true").await;
    let ready = plain.admin_open("/readyz").await.expect(200).json();
    assert_eq!(ready["shadow_routes"], serde_json::json!([]));
    assert!(!plain.logs().to_lowercase().contains("shadow"));
    let counted = plain.admin(Request::get("/idempotency")).await.json();
    assert_eq!(counted["r"]["shadow"], serde_json::Value::Null);
}

/// Goal: what was observed is never taken for what was executed under protection.
///
/// Method: observe a key, stop, start on the same store without shadow mode, send the same request.
/// Evidence: it is executed, as the first; from then on it is replayed.
#[tokio::test]
async fn observations_are_forgotten_when_it_is_switched_off() {
    let upstream = Upstream::start();
    let mut observing = Gateway::start(&upstream, "shadow: true").await;
    observing.send(&Request::pay("k")).await.expect(201);
    observing.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
    let folder = observing.folder();
    observing.kill9().await;
    let gateway = match Setup::with("").start_in(folder, &upstream.url()).await {
        Ok(gateway) => gateway,
        Err(exit) => panic!("{exit:?}"),
    };
    assert_eq!(gateway.state("k").await, "absent");
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(first.header("x-idempotent-replayed"), None);
    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.header("x-idempotent-replayed"), Some("true"));
    assert_eq!(upstream.executions(), 3);
}

/// Goal: a store that is down does not matter to a route that only observes.
///
/// Method: a disk that takes no writes.
/// Evidence: requests go through and are counted.
#[tokio::test]
async fn it_needs_no_store() {
    let upstream = Upstream::start();
    let gateway = Setup::with("shadow: true")
        .can_fill_disk()
        .start(&upstream)
        .await;
    gateway.fill_disk(true);
    for _ in 0..10 {
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    assert_eq!(upstream.executions(), 10);
    assert_eq!(shadow_of(&gateway).await["would"]["replay"], 9);
}

/// Goal: authentication is no part of what is only observed.
///
/// Method: shadow mode with clients; one without a credential; two with the same key.
/// Evidence: 401 and nothing upstream; each client's first is a first.
#[tokio::test]
async fn credentials_are_demanded_all_the_same() {
    let upstream = Upstream::start();
    let gateway = Setup::with("shadow: true")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    gateway.send(&Request::pay("k")).await.expect(401);
    assert_eq!(upstream.executions(), 0);
    for client in ["acme", "globex"] {
        gateway
            .send(&Request::pay("k").of_client(client))
            .await
            .expect(201);
    }
    gateway
        .send(&Request::pay("k").of_client("acme"))
        .await
        .expect(201);
    let shadow = shadow_of(&gateway).await;
    assert_eq!(
        (&shadow["would"]["execute"], &shadow["would"]["replay"]),
        (&2.into(), &1.into())
    );
}

/// Goal: before keys are demanded, an operator sees who would break, and what switching on would change.
///
/// Method: two clients on a route that demands no key: a duplicate, a reused key, requests without a key on
/// listed methods and one on another.
/// Evidence: the report by route and client; the checklist; everything was executed.
#[tokio::test]
async fn the_report_is_by_route_and_client() {
    let upstream = Upstream::start();
    let gateway = Setup::with("shadow: true")
        .clients(&["acme", "globex"])
        .start(&upstream)
        .await;
    let keyless = |client: &str| Request::post("/payments").json("{}").of_client(client);
    for request in [
        Request::pay("k").of_client("acme"),
        Request::pay("k").of_client("acme"),
        Request::pay("k").of_client("globex"),
        keyless("globex").key("k"),
        keyless("globex"),
        keyless("globex"),
        Request::get("/payments").of_client("globex"),
    ] {
        gateway.send(&request).await.expect(201);
    }
    assert_eq!(upstream.executions(), 7);
    let report = gateway.admin(Request::get("/shadow")).await.expect(200);
    let report = report.json();
    let figures = |of: &serde_json::Value| {
        ["requests", "duplicates", "refused", "without_key"].map(|name| of[name].as_u64().unwrap())
    };
    assert_eq!(figures(&report["total"]), [6, 1, 1, 2], "{report}");
    let route = &report["routes"][0];
    assert_eq!(
        (&route["route"], figures(route)),
        (&"r".into(), [6, 1, 1, 2])
    );
    assert_eq!(route["would"]["pass_without_key"], 2);
    let by_client: Vec<(&str, [u64; 4])> = route["clients"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["client"].as_str().unwrap(), figures(one)))
        .collect();
    assert_eq!(
        by_client,
        [("globex", [4, 0, 1, 2]), ("acme", [2, 1, 0, 0])],
        "the busiest first"
    );
    assert_eq!(route["other_clients"], serde_json::Value::Null);
    let reused = &route["samples"][0];
    assert_eq!(
        (&reused["client"], &reused["would"]),
        (&"globex".into(), &"refuse_mismatch".into())
    );
    let open: Vec<&str> = route["checklist"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["ok"] == false)
        .map(|item| item["check"].as_str().unwrap())
        .collect();
    let wanted = [
        "observed_for_a_week",
        "requests_have_keys",
        "keys_are_not_reused",
    ];
    assert_eq!(open, wanted, "{route}");
    let overview = gateway.admin(Request::get("/overview")).await.expect(200);
    assert_eq!(figures(&overview.json()["shadow"]), [6, 1, 1, 2]);

    let plain = Gateway::start(&upstream, "").await;
    let report = plain.admin(Request::get("/shadow")).await.expect(200);
    assert_eq!(report.json()["total"], serde_json::Value::Null);
}

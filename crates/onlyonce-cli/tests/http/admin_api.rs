//! The admin listener: who may ask, what it shows, and the counters of a route.

use serde_json::{Value, json};

use crate::asking::is_time;
use crate::harness::{Connection, Gateway, Request, Script, Setup, Upstream, client, within};

/// Goal: nothing but health is open.
///
/// Method: every path without a token, with a wrong one, and with the right one.
/// Evidence: 401 problem bodies; 200; health without a token; nothing of it on the data listener.
#[tokio::test]
async fn a_token_is_needed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for open in ["/healthz", "/readyz"] {
        gateway.admin_open(open).await.expect(200);
    }
    for path in ["/idempotency", "/idempotency/keys", "/audit", "/metrics"] {
        let refused = gateway.admin_open(path).await.expect(401);
        assert_eq!(
            refused.header("content-type"),
            Some("application/problem+json"),
            "{path}"
        );
        for wrong in [
            "Bearer wrong",
            "Bearer test-token2",
            "Basic test-token",
            "Bearer ",
        ] {
            let request = Request::get(path).header("Authorization", wrong);
            client::send(gateway.admin_addr(), &request)
                .await
                .unwrap()
                .expect(401);
        }
        gateway.admin(Request::get(path)).await.expect(200);
    }
    let unsigned = Request::post("/idempotency/keys/x/resolve").json("{}");
    client::send(gateway.admin_addr(), &unsigned)
        .await
        .unwrap()
        .expect(401);
    let unsigned = Request::new("DELETE", "/idempotency/keys/x");
    client::send(gateway.admin_addr(), &unsigned)
        .await
        .unwrap()
        .expect(401);
    assert_eq!(upstream.executions(), 0);
}

/// Goal: the counters tell what happened.
///
/// Method: a new key, a replay, a mismatch, a missing and an invalid key, a waiter.
/// Evidence: every field of the route's line, beside the upstream's own count.
#[tokio::test]
async fn counters_of_a_route() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "enforce: true, ttl: 48h").await;
    gateway.send(&Request::pay("a")).await.expect(201);
    gateway.send(&Request::pay("a")).await.expect(201);
    gateway
        .send(&Request::post("/payments").key("a").json("{}"))
        .await
        .expect(422);
    gateway
        .send(&Request::post("/payments").json("{}"))
        .await
        .expect(400);
    gateway.send(&Request::pay("not a key")).await.expect(400);
    upstream.next(Script::created().held());
    let pair = gateway.send_many(2, &Request::pay("b"));
    upstream.begun(2).await;
    gateway.until_met_in_flight(1).await;
    upstream.release();
    for request in pair {
        within("an answer", request).await.unwrap().expect(201);
    }

    let shown = gateway
        .admin(Request::get("/idempotency"))
        .await
        .expect(200)
        .json();
    let route = find_route(&shown).unwrap_or_else(|| panic!("no route r in {shown}"));
    assert_eq!(
        route["header_name"].as_str().unwrap().to_lowercase(),
        "idempotency-key"
    );
    assert_eq!(route["ttl"], "48h0m0s");
    assert_eq!(route["enforce"], true);
    assert_eq!(route["key_scope"], "global");
    assert_eq!(route["mode"], "local");
    let expected = json!({
        "total_requests": 7, "cache_hits": 2, "cache_misses": 2, "in_flight_waits": 1,
        "enforced": 1, "invalid_key": 1, "store_errors": 0, "responses_stored": 2,
    });
    for (name, count) in expected.as_object().unwrap() {
        assert_eq!(&route[name], count, "{name} in {route}");
    }
    assert_eq!(upstream.executions(), 2);
}

/// The object of route `r`, whether routes are a map by id or a list with ids.
fn find_route(shown: &Value) -> Option<Value> {
    let is_route = |value: &&Value| value.get("total_requests").is_some();
    let by_id = |value: &Value| value.get("r").filter(is_route).cloned();
    let listed = |value: &Value| value.as_array()?.iter().find(is_route).cloned();
    let routes = &shown["routes"];
    by_id(shown)
        .or_else(|| by_id(routes))
        .or_else(|| listed(routes))
        .or_else(|| listed(shown))
}

/// Goal: the list shows every field, and filters and pages work.
///
/// Method: one key in each of four states; filters by state, route and key; pages of one.
/// Evidence: the fields; each key once over all pages.
#[tokio::test]
async fn listing_keys() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("done")).await.expect(201);
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay("failed")).await.expect(500);
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    upstream.next(Script::created().held());
    let mut running = Connection::open(gateway.data()).await.unwrap();
    running
        .write(&Request::pay("running").bytes())
        .await
        .unwrap();
    upstream.begun(4).await;

    let done = gateway.record("done").await.expect("a record");
    assert_eq!(done["scope"], "global");
    assert_eq!(
        (&done["key"], &done["route"]),
        (&json!("done"), &json!("r"))
    );
    assert_eq!(
        (&done["method"], &done["path"]),
        (&json!("POST"), &json!("/payments"))
    );
    assert_eq!(
        (&done["attempt"], &done["generation"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        done["response"],
        json!({"status": 201, "bytes": r#"{"execution":1}"#.len()})
    );
    for time in ["created_at", "last_run_at", "completed_at", "expires_at"] {
        assert!(is_time(&done[time]), "{time}: {done}");
    }
    let object = done.as_object().unwrap();
    for field in ["lease_until", "reconcile_after", "last_error"] {
        assert!(object.contains_key(field), "{field}: {done}");
    }
    let lost = gateway.record("lost").await.expect("a record");
    assert_eq!(lost["response"], Value::Null);
    assert!(lost["last_error"].is_string(), "{lost}");
    let running_record = gateway.record("running").await.expect("a record");
    assert!(is_time(&running_record["lease_until"]), "{running_record}");

    for state in ["completed", "failed_retryable", "unknown", "in_progress"] {
        assert_eq!(gateway.count_in_state(state).await, 1, "{state}");
    }
    assert_eq!(gateway.count_in_state("expired").await, 0);
    let none = gateway
        .admin(Request::get("/idempotency/keys?route=other"))
        .await
        .expect(200);
    assert_eq!(none.json()["keys"], json!([]));
    let all = paged(&gateway).await;
    assert_eq!(all, ["done", "failed", "lost", "running"]);
    upstream.release();
    running.response().await.unwrap().expect(201);
}

/// Every key, one page of one after the other, sorted.
async fn paged(gateway: &Gateway) -> Vec<String> {
    let mut keys = Vec::new();
    let mut cursor = String::new();
    for _ in 0..10 {
        let path = format!("/idempotency/keys?limit=1{cursor}");
        let page = gateway.admin(Request::get(&path)).await.expect(200).json();
        for record in page["keys"].as_array().unwrap() {
            keys.push(record["key"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["next"].as_str() else {
            break;
        };
        cursor = format!("&cursor={}", crate::harness::admin::percent_encoded(next));
    }
    keys.sort();
    keys
}

/// Goal: one record shows its history.
///
/// Method: a key that failed once and then completed; an id that is not there.
/// Evidence: events with their fields, attempt 2 in the end; 404.
#[tokio::test]
async fn showing_a_key_with_its_history() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("k")).await.expect(500);
    gateway.send(&Request::pay("k")).await.expect(201);
    let record = gateway.full_record("k").await;
    assert_eq!(
        (&record["state"], &record["attempt"]),
        (&json!("completed"), &json!(2))
    );
    let history = record["history"].as_array().expect("a history");
    assert!(!history.is_empty(), "{record}");
    for event in history {
        assert!(
            is_time(&event["at"]) && event["event"].is_string(),
            "{event}"
        );
        for field in ["from", "to", "attempt", "actor", "detail"] {
            assert!(
                event.as_object().unwrap().contains_key(field),
                "{field}: {event}"
            );
        }
    }
    let missing = gateway
        .admin(Request::get("/idempotency/keys/00000000000000000000"))
        .await;
    assert_eq!(
        missing.expect(404).header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(upstream.executions(), 2);
}

/// Goal: keys can be masked.
///
/// Method: `mask_keys: true`.
/// Evidence: the raw key is nowhere in the list or the record.
#[tokio::test]
async fn masked_keys() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .admin("mask_keys: true")
        .start(&upstream)
        .await;
    gateway
        .send(&Request::pay("canary-raw-key"))
        .await
        .expect(201);
    let listed = gateway
        .admin(Request::get("/idempotency/keys"))
        .await
        .expect(200);
    assert!(!listed.text().contains("canary-raw-key"), "{listed}");
    let id = listed.json()["keys"][0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let shown = gateway
        .admin(Request::get(&format!("/idempotency/keys/{id}")))
        .await
        .expect(200);
    assert!(!shown.text().contains("canary-raw-key"), "{shown}");
    assert_eq!(upstream.executions(), 1);
}

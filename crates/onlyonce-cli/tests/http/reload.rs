//! A new configuration while the gateway runs: what takes effect, what is refused, and that nobody
//! notices.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::Value;

use crate::harness::{
    Connection, Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, within,
};

async fn config_of(gateway: &Gateway) -> Value {
    gateway.admin_open("/readyz").await.json()["config"].clone()
}

async fn until_generation(gateway: &Gateway, generation: u64) {
    eventually("the new configuration", async || {
        (config_of(gateway).await["generation"] == generation).then_some(())
    })
    .await;
}

/// Why the last reload was refused, once one was.
async fn until_refused(gateway: &Gateway) -> String {
    eventually("a refusal", async || {
        let shown = config_of(gateway).await;
        shown["last_error"].as_str().map(str::to_owned)
    })
    .await
}

/// Its log comes through a pipe, and may be read later than its answer.
async fn until_logged(gateway: &Gateway, text: &str) {
    let logged = async || gateway.logs().contains(text).then_some(());
    eventually(text, logged).await;
}

/// Goal: nobody notices a reload.
///
/// Method: eight clients, each on one connection that stays open, send new keys and replays without a
/// pause, while the file is changed five times.
/// Evidence: every answer is 201 on the connection it was asked on; one execution for each key; five
/// reloads are counted, and the counters of the route go on.
#[tokio::test]
async fn under_load() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (addr, stop) = (gateway.data(), stop.clone());
            tokio::spawn(async move {
                let mut connection = Connection::open(addr).await.unwrap();
                let mut keys = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("load-{client}-{}", keys.len());
                    for replayed in [None, Some("true")] {
                        let request = Request::pay(&key);
                        let answer = connection.send(&request).await.unwrap().expect(201);
                        assert_eq!(answer.header(REPLAYED), replayed, "{key}");
                    }
                    keys.push(key);
                }
                keys
            })
        })
        .collect();
    let first = gateway.config();
    for round in 1..=5_u64 {
        let options = format!(
            "enabled: true, ttl: {}h, fingerprint: {{ ignore: [/n{round}] }}",
            24 + round
        );
        gateway.reconfigure(&first.replace("enabled: true", &options));
        until_generation(&gateway, 1 + round).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut keys = Vec::new();
    for client in clients {
        keys.extend(within("a client", client).await.unwrap());
    }
    assert!(keys.len() > 50, "there was some load: {}", keys.len());
    for key in &keys {
        assert_eq!(upstream.executions_of(key), 1, "{key}");
    }
    let reloads = gateway.admin(Request::get("/metrics")).await.text();
    assert!(
        reloads.contains("onlyonce_config_reloads_total{result=\"applied\"} 5"),
        "{reloads}"
    );
    assert!(
        reloads.contains("onlyonce_config_generation 6"),
        "{reloads}"
    );
    let route = gateway.admin(Request::get("/idempotency")).await.json()["r"].clone();
    assert_eq!(route["ttl"], "29h0m0s");
    assert_eq!(route["total_requests"], 2 * keys.len());
    println!("reload under load: {} keys, no failed request", keys.len());
}

/// Goal: a retry is compared as its first request was.
///
/// Method: a key under `mode: json`; a reload to `mode: raw`; the same JSON in other bytes.
/// Evidence: the old key is replayed without an execution, a new key is held to its bytes.
#[tokio::test]
async fn old_keys_keep_their_recipe() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "fingerprint: { mode: json }").await;
    let request = |key: &str, body: &str| Request::post("/payments").key(key).json(body);
    gateway
        .send(&request("old", "{\"a\":1,\"b\":2}"))
        .await
        .expect(201);
    gateway.reconfigure(&gateway.config().replace("mode: json", "mode: raw"));
    until_generation(&gateway, 2).await;

    let retried = gateway
        .send(&request("old", "{ \"b\": 2, \"a\": 1 }"))
        .await
        .expect(201);
    assert_eq!(retried.header(REPLAYED), Some("true"));
    gateway
        .send(&request("old", "{\"a\":1,\"b\":3}"))
        .await
        .expect(422);
    gateway
        .send(&request("new", "{\"a\":1,\"b\":2}"))
        .await
        .expect(201);
    gateway
        .send(&request("new", "{ \"b\": 2, \"a\": 1 }"))
        .await
        .expect(422);
    assert_eq!(
        (upstream.executions_of("old"), upstream.executions_of("new")),
        (1, 1)
    );
}

/// Goal: what would make retries execute again is refused by its name, and so is what cannot change.
///
/// Method: one change after the other; then the scope's with `allow_scope_change: true`.
/// Evidence: `/readyz` and the log name the option, the counter rises, the key is still replayed; with
/// the permission the change takes effect.
#[tokio::test]
async fn what_is_refused_by_name() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "key_per_route: false").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let good = gateway.config();
    let scoped = good.replace("key_per_route: false", "key_per_route: true");
    let mut refused = 0;
    for (bad, name) in [
        (scoped.clone(), "key_per_route"),
        (good.replace("id: r", "id: other"), "id"),
        (
            format!("auth: {{ trusted_header: {{ name: X-C, from: [10.0.0.0/8] }} }}\n{good}"),
            "auth",
        ),
        (
            good.replacen("listen: 127.0.0.1:0", "listen: 127.0.0.2:0", 1),
            "listen",
        ),
        (
            good.replace(
                "admin: { listen: 127.0.0.1:0",
                "admin: { listen: 127.0.0.2:0",
            ),
            "admin.listen",
        ),
        (
            good.replace("onlyonce.db\"", "onlyonce.db\", timeout: 1s"),
            "store",
        ),
    ] {
        assert_ne!(bad, good, "{name}");
        gateway.reconfigure(&bad);
        refused += 1;
        eventually(name, async || {
            let shown = config_of(&gateway).await;
            assert_eq!(shown["generation"], 1, "{name}");
            let error = shown["last_error"].as_str()?;
            error.contains(&format!("`{name}`")).then_some(())
        })
        .await;
        until_logged(&gateway, &format!("reload refused: `{name}`")).await;
        let metric = gateway.admin(Request::get("/metrics")).await.text();
        let counted = format!("onlyonce_config_reloads_total{{result=\"refused\"}} {refused}");
        assert!(metric.contains(&counted), "{name}: {metric}");
    }
    let replayed = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replayed.header(REPLAYED), Some("true"));
    gateway.reconfigure(&format!("allow_scope_change: true\n{scoped}"));
    until_generation(&gateway, 2).await;
    assert_eq!(config_of(&gateway).await["last_error"], Value::Null);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions_of("k"), 2, "allowed, and so it happens");
}

/// Goal: a bad file changes nothing, and SIGHUP reads the file at once.
///
/// Method: a file with two mistakes; the good one again with another option and SIGHUP.
/// Evidence: where the mistakes are, not what they say, in `/readyz`; the diagnostics in the log; the
/// gateway serves throughout.
#[tokio::test]
async fn a_bad_file_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let good = gateway.config();
    gateway.reconfigure(&good.replace("enabled: true", "enabled: hunter2, tll: 1h"));
    let why = until_refused(&gateway).await;
    assert!(why.starts_with("2 errors, the first in line "), "{why}");
    assert!(!why.contains("hunter2"), "{why}");
    until_logged(&gateway, "unknown field `tll`").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(config_of(&gateway).await["generation"], 1);

    gateway.reconfigure(&good.replace("enabled: true", "enabled: true, enforce: true"));
    gateway.sighup();
    until_generation(&gateway, 2).await;
    gateway
        .send(&Request::post("/payments").json("{}"))
        .await
        .expect(400);
    let replayed = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replayed.header(REPLAYED), Some("true"));
}

/// Goal: an execution that is under way is finished, whatever the new file says of its route.
///
/// Method: the upstream holds a request; its route goes away by reload; the upstream lets go.
/// Evidence: the client gets its answer; the next request meets the new routes; back again, the key is
/// replayed.
#[tokio::test]
async fn what_is_under_way_is_finished() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").path("/payments").start(&upstream).await;
    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(1).await;
    let good = gateway.config();
    gateway.reconfigure(&good.replace("path: /payments", "path: /elsewhere"));
    until_generation(&gateway, 2).await;
    gateway
        .send(&Request::pay("late"))
        .await
        .refused(404, "no_route");
    upstream.release();
    within("the answer", held).await.unwrap().expect(201);
    gateway.reconfigure(&good);
    until_generation(&gateway, 3).await;
    let replayed = gateway.send(&Request::pay("held")).await.expect(201);
    assert_eq!(replayed.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions(), 1);
}

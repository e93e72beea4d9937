//! Bytes at rest: what a forger achieves, how keys are changed, and what is not kept or forgotten.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use onlyonce_testkit::servers::Postgres;

use crate::{
    dumps::files_of,
    harness::{
        Gateway, REPLAYED, Request, Script, Setup, Upstream, client, eventually, ms,
        process::binary,
    },
};

pub(crate) const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HxscHRoZGBcWFRQTEhEQDw4NDAsKCQgHBgUEAwIBAAA=";
pub(crate) const ENV: &str = "TEST_STORE_KEYS";
const FAILURES: &str = "onlyonce_at_rest_failures_total";

fn encrypted(keys: &str) -> Setup {
    Setup::with("")
        .store_options(&format!("encryption_key_env: {ENV}"))
        .env(ENV, keys)
}

/// Goal: an answer that was moved to another row is nobody's, and people are told.
///
/// Method: two keys with keys configured; the database's owner swaps their answers; then a record
/// of a key that this gateway does not have.
/// Evidence: 503 for both, no execution, a line in the log and a count in the metric.
#[tokio::test]
async fn a_moved_answer_is_refused_with_an_alarm() {
    let upstream = Upstream::start();
    let server = Postgres::start();
    // Every retry asks the database.
    let setup = encrypted(OLD).store(&server.url());
    let setup = setup.store_options(&format!("encryption_key_env: {ENV}, near_cache: 0"));
    let gateway = setup.start(&upstream).await;
    for key in ["one", "two"] {
        gateway.send(&Request::pay(key)).await.expect(201);
        gateway.send(&Request::pay(key)).await.expect(201);
    }
    assert_eq!(gateway.metric(FAILURES).await, Some(0.0));
    server.sql(
        "UPDATE onlyonce.keys k SET response_body = o.response_body \
         FROM (SELECT n, response_body FROM onlyonce.keys) o WHERE o.n <> k.n",
    );
    for key in ["one", "two"] {
        let answer = gateway.send(&Request::pay(key)).await;
        answer.refused(503, "idempotency_store_unavailable");
    }
    assert_eq!(upstream.executions(), 2);
    let counted = gateway.metric(FAILURES).await.unwrap();
    assert!(counted >= 2.0, "{counted}");
    eventually("the alarm", async || {
        gateway.logs().contains("cannot be opened").then_some(())
    })
    .await;

    let newer = encrypted(&format!("{NEW},{OLD}")).store(&server.url());
    let newer = newer.start(&upstream).await;
    newer.send(&Request::pay("three")).await.expect(201);
    let answer = gateway.send(&Request::pay("three")).await;
    answer.refused(503, "idempotency_store_unavailable");
    assert_eq!(upstream.executions(), 3);
    newer.send(&Request::pay("three")).await.expect(201);
    assert_eq!(upstream.executions(), 3);
}

/// Goal: keys are changed without a failed request.
///
/// Method: two gateways on one database under load; each is replaced by one that also knows the new
/// key, then by one that encrypts with it. A client whose gateway is being replaced asks the other, as
/// a load balancer does.
/// Evidence: no request fails; every key was executed once; at the end, both old and new records are
/// replayed by gateways of the new order, and the database holds records of both keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_under_load() {
    let upstream = Upstream::start();
    let server = Postgres::start();
    let setup = encrypted(OLD).store(&server.url());
    let mut gateways = [
        setup.clone().start(&upstream).await,
        setup.start(&upstream).await,
    ];
    let addresses = Arc::new(parking_lot::Mutex::new([
        Some(gateways[0].data()),
        Some(gateways[1].data()),
    ]));
    let stop = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (addresses, stop, next) = (addresses.clone(), stop.clone(), next.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    // A new key, and one that was used before.
                    for number in [number, number / 2] {
                        let open: Vec<_> = addresses.lock().iter().flatten().copied().collect();
                        let address = open[number % open.len()];
                        let request = Request::pay(&format!("k{number}"));
                        client::send(address, &request).await.unwrap().expect(201);
                    }
                }
            })
        })
        .collect();
    for keys in [format!("{OLD},{NEW}"), format!("{NEW},{OLD}")] {
        for (at, gateway) in gateways.iter_mut().enumerate() {
            let seen = next.load(Ordering::SeqCst);
            eventually("some load", async || {
                (next.load(Ordering::SeqCst) > seen + 20).then_some(())
            })
            .await;
            // Out of the balancer first; those that are on their way come to their end.
            addresses.lock()[at] = None;
            tokio::time::sleep(ms(300)).await;
            gateway.sigterm();
            gateway.exited().await;
            gateway.set_env(&[(ENV, &keys)]);
            gateway.restart().await;
            addresses.lock()[at] = Some(gateway.data());
        }
    }
    let seen = next.load(Ordering::SeqCst);
    eventually("load after the change", async || {
        (next.load(Ordering::SeqCst) > seen + 20).then_some(())
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let count = next.load(Ordering::SeqCst);
    for number in [0, count / 2, count - 1] {
        let key = format!("k{number}");
        let answer = gateways[0].send(&Request::pay(&key)).await.expect(201);
        assert_eq!(answer.header(REPLAYED), Some("true"));
        assert_eq!(upstream.executions_of(&key), 1);
    }
    assert_eq!(upstream.executions(), count, "each key once");
    for name in ["old", "new"] {
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let sql = format!(
            "SELECT count(*) > 0 FROM onlyonce.keys \
             WHERE position('\\x03{hex}'::bytea in response_body) > 0"
        );
        assert_eq!(server.sql(&sql), "t", "records of the key {name}");
    }
}

/// Goal: of an answer that must not be stored only its status and place are kept.
///
/// Evidence: the first client gets all of it; the file holds none of its body nor of its other headers;
/// retries get 409 with the status and the place; one execution.
#[tokio::test]
async fn remember_head() {
    let upstream = Upstream::start();
    let setup = Setup::with("remember: head").store_options("compression: none");
    let gateway = setup.start(&upstream).await;
    upstream.next(
        Script::created()
            .header("Location", "/cards/1")
            .header("X-Card", "canary-header")
            .body("canary-body"),
    );
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(first.text(), "canary-body");
    assert_eq!(first.header("x-card"), Some("canary-header"));
    for _ in 0..2 {
        let refused = gateway.send(&Request::pay("k")).await;
        let refused = refused.refused(409, "idempotency_response_not_stored");
        assert_eq!(refused.json()["original_status"], 201);
        assert_eq!(refused.header("location"), Some("/cards/1"));
    }
    assert_eq!(upstream.executions(), 1);
    let files = files_of(&gateway);
    assert!(files.windows(8).any(|window| window == b"/cards/1"));
    assert!(!files.windows(6).any(|window| window == b"canary"));
}

fn forget(gateway: &Gateway, more: &[&str]) -> (i32, serde_json::Value) {
    let output = Command::new(binary())
        .args(["keys", "forget", "--client", "acme", "--json"])
        .args(["--admin", &format!("http://{}", gateway.admin_addr())])
        .args(more)
        .env("ONLYONCE_ADMIN_TOKEN", crate::harness::process::TOKEN)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let summary = serde_json::from_str(&said).expect("JSON on standard output");
    (output.status.code().unwrap(), summary)
}

/// Goal: what is remembered of one client can be removed at once, and nothing else is.
///
/// Method: two clients with encrypted records; of one: completed, released, unknown. A dry run, a run
/// without force, a run with it.
/// Evidence: exit codes and counts; the unknown key and the other client's stay; the audit names each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_forgotten() {
    let upstream = Upstream::start();
    let gateway = encrypted(OLD)
        .clients(&["acme", "other"])
        .start(&upstream)
        .await;
    let pay = |client: &str, key: &str| Request::pay(key).of_client(client);
    for key in ["a", "b"] {
        gateway.send(&pay("acme", key)).await.expect(201);
    }
    gateway.send(&pay("other", "a")).await.expect(201);
    upstream.next(Script::reply(429));
    gateway.send(&pay("acme", "released")).await.expect(429);
    upstream.next(Script::hang_up());
    gateway.send(&pay("acme", "unknown")).await.expect(502);

    let (code, summary) = forget(&gateway, &["--dry-run"]);
    assert_eq!(code, 0, "{summary}");
    assert_eq!(
        (&summary["found"], &summary["forgotten"]),
        (&4.into(), &1.into())
    );
    let (code, summary) = forget(&gateway, &[]);
    assert_eq!(code, 1, "{summary}");
    assert_eq!(
        (&summary["found"], &summary["forgotten"]),
        (&4.into(), &1.into())
    );
    assert_eq!(summary["refused"].as_array().unwrap().len(), 3);
    gateway.send(&pay("acme", "a")).await.expect(201);
    assert_eq!(upstream.executions_of("a"), 2, "one of each client");
    let (code, summary) = forget(&gateway, &["--force", "--reason", "asked for by mail"]);
    assert_eq!(code, 1, "the unknown one stays: {summary}");
    assert_eq!(summary["forgotten"], 3, "{summary}");
    assert_eq!(summary["refused"][0]["state"], "unknown", "{summary}");
    assert_eq!(gateway.state("unknown").await, "unknown");
    gateway.send(&pay("other", "a")).await.expect(201);
    assert_eq!(
        upstream.executions_of("a"),
        2,
        "the other's answer is there"
    );
    let audit = gateway
        .admin(Request::get("/audit"))
        .await
        .expect(200)
        .json();
    assert!(audit.to_string().contains("asked for by mail"), "{audit}");
}

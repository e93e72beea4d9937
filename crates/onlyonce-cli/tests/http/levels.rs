//! A store whose level changes while the gateway runs: routes that demand `sync` refuse, others go on.

use std::sync::OnceLock;

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};

use crate::harness::{Gateway, REPLAYED, Request, Setup, Upstream, eventually};

/// A gateway with a route that demands `sync` and one that does not.
async fn gateway(store: &str, upstream: &Upstream) -> Gateway {
    let other = format!(
        "idempotency: {{ profile: payments, reconcile: operator, credential_headers: [Authorization] }}\n  - id: other\n    path: /other\n    \
         backends: [{{ url: \"{}\" }}]",
        upstream.url()
    );
    let setup = Setup::with("").store(store).store_options("create: true");
    let setup = setup.route(&other);
    setup.start(upstream).await
}

fn pay(name: &str) -> Request {
    Request::pay(&format!("levels-of-a-store-{name}"))
}

fn other(name: &str) -> Request {
    let request = Request::new("POST", "/other").json("{}");
    request.key(format!("levels-of-a-store-{name}"))
}

/// Goal: a level that falls under a running gateway stops the routes that demand it, and them alone;
/// when it is back, so are they.
///
/// Method: `lower` and `raise` change the server's settings under connections that stay.
/// Evidence: 503 without a count upstream; a known key is replayed, another route executes; `/readyz`
/// names the reason.
async fn falls_and_rises(store: &str, lower: impl Fn(), raise: impl Fn()) {
    let upstream = Upstream::start();
    let gateway = gateway(store, &upstream).await;
    gateway.send(&pay("known")).await.expect(201);
    let ready = gateway.admin_open("/readyz").await;
    assert_eq!(ready.status, 200, "{ready}");

    lower();
    let body = eventually("the level to be seen", async || {
        let ready = gateway.admin_open("/readyz").await;
        (ready.status == 503).then(|| ready.json())
    })
    .await;
    assert_eq!(body["refusing_routes"], serde_json::json!(["r"]), "{body}");
    assert!(
        body["reason"].as_str().unwrap().contains("demand sync"),
        "{body}"
    );
    let before = upstream.executions();
    for number in 0..10 {
        let answer = gateway.send(&pay(&format!("low-{number}"))).await;
        answer.refused(503, "idempotency_store_unavailable");
    }
    assert_eq!(
        upstream.executions(),
        before,
        "nothing is executed below sync"
    );
    let known = gateway.send(&pay("known")).await.expect(201);
    assert_eq!(known.header(REPLAYED), Some("true"));
    gateway.send(&other("low")).await.expect(201);
    assert_eq!(upstream.executions(), before + 1);

    raise();
    eventually("the level to be back", async || {
        let ready = gateway.admin_open("/readyz").await;
        (ready.status == 200).then_some(())
    })
    .await;
    let back = gateway.send(&pay("low-0")).await.expect(201);
    assert_eq!(back.header(REPLAYED), None, "it was never reserved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let server = Postgres::start();
    let set = |value: &str| {
        server.sql(&format!("ALTER SYSTEM SET synchronous_commit = {value}"));
        server.sql("SELECT pg_reload_conf()");
    };
    falls_and_rises(&server.url(), || set("off"), || set("on")).await;
}

/// As [`falls_and_rises`], with a standby that no commit waits for, then one that they wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_comes_later() {
    let server = Postgres::start();
    let standby = OnceLock::new();
    let attach = || {
        standby.get_or_init(|| server.standby("late"));
    };
    let wait_for_it = || {
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'late'");
        server.sql("SELECT pg_reload_conf()");
    };
    falls_and_rises(&server.url(), attach, wait_for_it).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    let server = MariaDb::start();
    let set = |value: u8| {
        server.sql(&format!(
            "SET GLOBAL innodb_flush_log_at_trx_commit = {value}"
        ));
    };
    falls_and_rises(&server.url(), || set(2), || set(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = Redis::start_with(&["appendonly yes", "appendfsync always"]);
    let set = |value: &str| {
        server.cli(&["CONFIG", "SET", "appendfsync", value]);
    };
    falls_and_rises(&server.url(), || set("everysec"), || set("always")).await;
}

/// Goal: the first reservation on a new connection that finds less than `sync` is not executed either.
///
/// Method: the server is stopped and started with `synchronous_commit` off, and a payment is the first
/// to meet it.
/// Evidence: 503, and no count upstream, however soon it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_with_less() {
    let mut server = Postgres::start();
    let upstream = Upstream::start();
    let gateway = gateway(&server.url(), &upstream).await;
    gateway.send(&pay("known")).await.expect(201);
    server.sql("ALTER SYSTEM SET synchronous_commit = off");
    server.stop();
    server.boot();
    for number in 0..20 {
        let answer = gateway.send(&pay(&format!("back-{number}"))).await;
        assert_eq!(answer.status, 503, "{answer}");
    }
    assert_eq!(upstream.executions(), 1);
}

//! Gateways on one table of DynamoDB, before emulators. What each emulator lacks is said where its server is.
//!
//! Deliberately absent: the faults that other stores are put through under load. After them some keys are
//! released, which is a transaction, and the emulator that survives a kill has none.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../http"]
mod black_box {
    #[allow(dead_code, unused_imports, reason = "shared with the tests over HTTP")]
    pub(crate) mod harness;
}

use std::process::{Command, Output};

use black_box::harness::{self, REPLAYED, Request, Script, Setup, Upstream, eventually, ms};
use onlyonce_testkit::servers::{Dynalite, Moto};
use tokio::time::Instant;

const TABLE: &str = "onlyonce-test";

/// A gateway whose loops leave the emulator to the requests.
fn setup(url: &str, timeout: &str) -> Setup {
    Setup::with("")
        .store(url)
        .store_options(&format!("timeout: {timeout}"))
        .workers("sweep_every: 30s, reap_every: 30s")
}

fn onlyonce(arguments: &[&str]) -> Output {
    Command::new(harness::process::binary())
        .args(arguments)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Goal: a race over two gateways has one winner, where writes really meet.
///
/// Method: 20 equal requests at once, half to each gateway, three times.
/// Evidence: the upstream counts one execution a round; all answers are the same to the byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_over_two_gateways() {
    let server = Dynalite::start();
    let upstream = Upstream::start();
    let setup = setup(&server.url(TABLE), "20s");
    let a = setup.clone().start(&upstream).await;
    let b = setup.start(&upstream).await;
    for round in 1..=3 {
        let request = Request::pay(&format!("race-{round}"));
        let mut running = a.send_many(10, &request);
        running.extend(b.send_many(10, &request));
        let mut bodies = Vec::new();
        for one in running {
            bodies.push(one.await.unwrap().expect(201).body);
        }
        assert!(bodies.iter().all(|body| *body == bodies[0]));
        assert_eq!(upstream.executions(), round);
    }
}

/// Goal: a service that is killed costs availability, never the promise.
///
/// Method: one key is completed; the emulator is killed with -9, asked for another key, and started.
/// Evidence: 503 in time and no execution meanwhile; afterwards the first answer is replayed to the byte and the
/// refused key is executed, once each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed() {
    let mut server = Dynalite::start();
    let upstream = Upstream::start();
    let gateway = setup(&server.url(TABLE), "2s").start(&upstream).await;
    let kept = gateway.send(&Request::pay("kept")).await.expect(201);
    server.kill();
    let began = Instant::now();
    let refused = gateway.send(&Request::pay("refused")).await;
    refused.refused(503, "idempotency_store_unavailable");
    assert!(
        began.elapsed() <= ms(2_000 + 3_000),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(upstream.executions_of("refused"), 0);
    server.boot();
    eventually("the refused key to be taken", async || {
        let answer = gateway.send(&Request::pay("refused")).await;
        (answer.status == 201).then_some(())
    })
    .await;
    let again = eventually("the first key to be answered", async || {
        let answer = gateway.send(&Request::pay("kept")).await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    assert_eq!(again.header(REPLAYED), Some("true"));
    assert_eq!(again.body, kept.body);
    for key in ["kept", "refused"] {
        assert_eq!(upstream.executions_of(key), 1, "{key}");
    }
}

/// Goal: an answer beyond what an item holds is kept and replayed.
///
/// Method: an answer of 900,000 bytes that no compression makes smaller; the gateway is killed and started.
/// Evidence: the replay is the same to the byte, the upstream counts one; the key expires and is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_larger_than_an_item() {
    let server = Moto::start();
    let upstream = Upstream::start();
    let mut state = 1_u64;
    let body: String = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        char::from(b'!' + (state >> 40) as u8 % 90)
    })
    .take(900_000)
    .collect();
    upstream.next(Script::created().body(&body));
    let setup = Setup::with("").store(&server.url(TABLE));
    let mut gateway = setup.store_options("timeout: 20s").start(&upstream).await;
    let first = gateway.send(&Request::pay("large")).await.expect(201);
    gateway.kill9().await;
    gateway.restart().await;
    let again = gateway.send(&Request::pay("large")).await.expect(201);
    assert_eq!(again.header(REPLAYED), Some("true"));
    assert!(first.body == body.as_bytes() && again.body == first.body);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the table is made by the program, once, and it can be told what it is made of.
///
/// Method: `migrate --print`, `keys` before there is a table, `migrate` twice, `keys` on the table of a gateway.
/// Evidence: nothing is made by looking; the identity stays; the key of the gateway is shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_made_by_migrate() {
    let server = Moto::start();
    let url = server.url(TABLE);
    let printed = onlyonce(&["migrate", "--print", "--store", &url]);
    let template = text(&printed.stdout);
    assert!(template.contains("AWS::DynamoDB::Table"), "{template}");
    assert!(template.contains("IndexName: lanes"), "{template}");
    let early = onlyonce(&["keys", "list", "--store", &url]);
    assert!(!early.status.success());
    let said = text(&early.stderr);
    assert!(said.contains("there is no store under this URL"), "{said}");
    let made = text(&onlyonce(&["migrate", "--store", &url]).stdout);
    assert!(made.contains("made the table"), "{made}");
    let again = text(&onlyonce(&["migrate", "--store", &url]).stdout);
    assert!(!again.contains("made the table"), "{again}");
    assert_eq!(made.lines().last(), again.lines().last(), "one identity");
    let upstream = Upstream::start();
    let gateway = Setup::with("").store(&url).start(&upstream).await;
    gateway.send(&Request::pay("shown")).await.expect(201);
    let shown = onlyonce(&["keys", "list", "--store", &url]);
    let shown = text(&shown.stdout) + &text(&shown.stderr);
    assert!(shown.contains("shown"), "{shown}");
    assert!(
        gateway.logs().contains("level=volatile"),
        "{}",
        gateway.logs()
    );
}

//! `kill -9` across an execution: never two executions, every answer seen is replayed.

use std::time::Duration;

use crate::harness::{Gateway, REPLAYED, Request, Script, Upstream, client, eventually, ms, soak};

const STEP: Duration = ms(50);
/// Lease, sweep and a second.
const STUCK_AT_MOST: Duration = ms(1_000 + 200 + 1_000);
const RUNS: u32 = 31;

/// Goal: the promise holds when the gateway dies at any instant.
///
/// Method: kill -9 at steps of 50 ms from before to after a 700 ms execution (31 runs with
/// `ONLYONCE_SOAK=1`, every fifth of them otherwise), restart on the same SQLite file, wait for the
/// lease, retry.
/// Evidence: the upstream never counts two; an answer that a client saw is replayed byte for byte;
/// nothing is in progress beyond lease + sweep.
#[tokio::test]
async fn kill_9_across_an_execution() {
    let every = if soak() { 1 } else { 5 };
    let (mut answered, mut unknown, mut fresh) = (0, 0, 0);
    for run in (0..RUNS).step_by(every) {
        match Box::pin(kill_after(STEP * run)).await {
            Ended::Answered => answered += 1,
            Ended::Unknown => unknown += 1,
            Ended::NeverBegun => fresh += 1,
        }
    }
    println!("kill -9: {answered} answered, {unknown} unknown, {fresh} never begun, 0 twice");
    assert!(
        answered > 0 && unknown > 0,
        "the steps must reach both sides of the execution"
    );
}

enum Ended {
    Answered,
    Unknown,
    NeverBegun,
}

async fn kill_after(time: Duration) -> Ended {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(700)));
    let mut gateway = Gateway::start(&upstream, "lease: 1s").await;
    let addr = gateway.data();
    let client = tokio::spawn(async move { client::send(addr, &Request::pay("k")).await });
    tokio::time::sleep(time).await;
    gateway.kill9().await;
    let seen = client.await.expect("the client does not panic").ok();
    gateway.restart().await;
    let began = tokio::time::Instant::now();
    let state = eventually("the key to leave in_progress", async || {
        let state = gateway.state("k").await;
        (state != "in_progress").then_some(state)
    })
    .await;
    assert!(
        began.elapsed() <= STUCK_AT_MOST,
        "in progress for {:?}",
        began.elapsed()
    );
    let begun = upstream.executions();
    assert!(begun <= 1, "killed after {time:?}: {begun} executions");

    let retry = gateway.send(&Request::pay("k")).await;
    assert!(upstream.executions_of("k") <= 1, "killed after {time:?}");
    if let Some(seen) = seen {
        assert_eq!(seen.status, 201);
        assert_eq!(
            (state.as_str(), retry.status),
            ("completed", 201),
            "{retry}"
        );
    }
    match state.as_str() {
        "completed" => {
            assert_eq!(retry.clone().expect(201).text(), r#"{"execution":1}"#);
            assert_eq!(retry.header(REPLAYED), Some("true"));
            Ended::Answered
        }
        "unknown" => {
            retry.refused(409, "idempotency_outcome_unknown");
            Ended::Unknown
        }
        "absent" | "failed_retryable" => {
            assert_eq!(begun, 0, "a key that may run again must not have run");
            retry.expect(201);
            Ended::NeverBegun
        }
        other => panic!("killed after {time:?}: {other}"),
    }
}

/// Goal: of many clients, each that saw an answer finds it again after a crash.
///
/// Method: 60 keys in flight at once with small delays upstream, kill -9 in the middle, restart.
/// Evidence: every answer seen is replayed byte for byte; no key was executed twice.
#[tokio::test]
async fn kill_9_under_load() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(30)));
    let mut gateway = Gateway::start(&upstream, "lease: 1s").await;
    let addr = gateway.data();
    let clients: Vec<_> = (0..60)
        .map(|number| {
            tokio::spawn(async move {
                tokio::time::sleep(ms(number * 5)).await;
                let key = format!("load-{number}");
                let answer = client::send(addr, &Request::pay(&key)).await.ok();
                (key, answer)
            })
        })
        .collect();
    upstream.begun(30).await;
    gateway.kill9().await;
    let mut ended = Vec::new();
    for client in clients {
        ended.push(client.await.expect("the client does not panic"));
    }
    gateway.restart().await;
    eventually("no key to be in progress", async || {
        (gateway.count_in_state("in_progress").await == 0).then_some(())
    })
    .await;
    assert!(
        ended.iter().any(|(_, seen)| seen.is_some()),
        "some were answered before"
    );
    for (key, seen) in ended {
        let retry = gateway.send(&Request::pay(&key)).await;
        if let Some(seen) = seen {
            assert_eq!(
                (retry.status, &retry.body),
                (seen.status, &seen.body),
                "{key}"
            );
        }
        assert!(
            upstream.executions_of(&key) <= 1,
            "{key} was executed twice"
        );
    }
}

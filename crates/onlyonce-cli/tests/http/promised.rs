//! The real binary under faults, judged by the checker that knows only the promise: from what clients sent
//! and heard and from what the upstream counted, and from nothing that the gateway says of itself.

use std::sync::{Arc, Mutex};

use onlyonce_testkit::{
    promise::{Event, Heard, check},
    servers::{MariaDb, Postgres, Redis, RedisCluster},
};
use tokio::task::block_in_place;

use crate::harness::{
    Gateway, Mortal, Setup, Upstream,
    history::{Crowd, Habits, TERMS},
    ms, soak,
};

/// Longer than the lease of these gateways.
const PAUSE: std::time::Duration = ms(1_500);
/// How often there is trouble.
const ROUNDS: usize = 9;

/// Requests between two troubles.
fn some() -> u64 {
    if soak() { 6_000 } else { 200 }
}

/// Goal: whatever dies or stands still, what was promised holds.
///
/// Method: clients ask at random under a few keys, change their minds, hang up and stop before the last byte;
/// an upstream that answers late, loses answers and sends clients away; meanwhile `trouble`, again and again.
/// Then everything comes to rest, and every key is asked for once more.
/// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed.
async fn holds(
    what: &str,
    mut gateways: Vec<Gateway>,
    upstream: Upstream,
    trouble: impl AsyncFn(usize, &mut Vec<Gateway>),
) {
    let upstream = Arc::new(upstream);
    let habits = Habits {
        new_key_after: None,
        pause: 8,
    };
    let crowd = Crowd::start(&gateways, &upstream, habits);
    for round in 0..ROUNDS {
        crowd.sends(some()).await;
        trouble(round, &mut gateways).await;
        crowd.follow(&gateways);
    }
    crowd.sends(some()).await;
    let calls = crowd.tape().clone();
    let history = crowd.end(&gateways, &upstream).await;
    let is_outcome = |event: &Event| {
        matches!(
            event,
            Event::Heard {
                heard: Heard::Outcome(_),
                ..
            }
        )
    };
    println!(
        "{what}: {} requests, {} outcomes heard, {} executions",
        calls.calls(),
        history.iter().filter(|at| is_outcome(&at.event)).count(),
        upstream.executions()
    );
    let broken = check(&TERMS, &history);
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{what}:\n{}", broken.join("\n"));
}

fn setup() -> Setup {
    Setup::with("lease: 1s, completion_grace: 500ms, wait_timeout: 1s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateway_on_sqlite() {
    let upstream = Upstream::start();
    let gateways = vec![setup().start(&upstream).await];
    holds("SQLite", gateways, upstream, async |round, gateways| {
        let gateway = &mut gateways[0];
        if round % 2 == 0 {
            gateway.kill9().await;
            gateway.restart().await;
        } else {
            gateway.pause();
            tokio::time::sleep(PAUSE).await;
            gateway.wake();
        }
    })
    .await;
}

/// The same with two gateways on a store that others can share. Its level is `sync`.
async fn two_gateways_on<S: Mortal>(what: &str) {
    let upstream = Upstream::start();
    let server = Mutex::new(block_in_place(S::start));
    let url = server.lock().unwrap().url();
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let setup = setup().store(&url).store_options("timeout: 500ms");
        let gateway = setup.start(&upstream).await;
        gateway.says("level=sync").await;
        gateways.push(gateway);
    }
    holds(what, gateways, upstream, async |round, gateways| {
        let gateway = &mut gateways[round / 4 % 2];
        match round % 4 {
            0 => {
                gateway.kill9().await;
                gateway.restart().await;
            }
            1 => {
                gateway.pause();
                tokio::time::sleep(PAUSE).await;
                gateway.wake();
            }
            2 => block_in_place(|| {
                let mut server = server.lock().unwrap();
                server.kill();
                server.boot();
            }),
            _ => {
                block_in_place(|| server.lock().unwrap().freeze());
                tokio::time::sleep(PAUSE).await;
                block_in_place(|| server.lock().unwrap().thaw());
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_postgres() {
    two_gateways_on::<Postgres>("PostgreSQL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_mariadb() {
    two_gateways_on::<MariaDb>("MariaDB").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_redis() {
    two_gateways_on::<Redis>("Redis").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_a_redis_cluster() {
    two_gateways_on::<RedisCluster>("Redis Cluster").await;
}

//! A Redis server that stops, freezes, dies or is cut off: a right answer or an honest one.

use std::sync::Arc;

use onlyonce_testkit::servers::{Redis, RedisSentinels};
use tokio::time::Instant;

use crate::{
    harness::{REPLAYED, Request, Upstream, ms},
    shared_faults::{self, Load, recovered, setup},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_freezes_or_dies() {
    shared_faults::stops_freezes_or_dies::<Redis>().await;
}

/// The connection ends after the script was sent, and carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_script_is_lost() {
    shared_faults::lost_reply::<Redis>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_slow_or_dead() {
    shared_faults::bad_line::<Redis>().await;
}

/// Goal: a server that has forgotten the scripts is told them again.
///
/// Method: SCRIPT FLUSH between requests.
/// Evidence: the next requests succeed, one execution each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgot_the_scripts() {
    let server = Redis::start();
    let upstream = Upstream::start();
    let gateway = setup(&server.url()).start(&upstream).await;
    for number in 0..3 {
        server.cli(&["script", "flush"]);
        let request = Request::pay(&format!("k{number}"));
        gateway.send(&request).await.expect(201);
    }
    assert_eq!(upstream.executions(), 3);
}

/// Goal: Sentinels lead the gateway to the new master.
///
/// Method: keys are completed; the master is killed; the Sentinels choose the replica.
/// Evidence: new keys are taken without a restart; what the replica had heard of is replayed, once
/// executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_another_master() {
    let mut servers = tokio::task::block_in_place(RedisSentinels::start);
    let upstream = Upstream::start();
    let gateway = setup(&servers.url()).start(&upstream).await;
    for number in 0..10 {
        let request = Request::pay(&format!("k{number}"));
        gateway.send(&request).await.expect(201);
    }
    servers.master.cli(&["wait", "1", "5000"]);
    servers.master.kill();
    let answer = gateway.send(&Request::pay("meanwhile")).await;
    answer.refused(503, "idempotency_store_unavailable");
    assert_eq!(upstream.executions_of("meanwhile"), 0);
    tokio::task::block_in_place(|| servers.until_failed_over());
    recovered(&gateway).await;
    for number in 0..10 {
        let key = format!("k{number}");
        let replay = gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "{key}");
        assert_eq!(upstream.executions_of(&key), 1, "{key}");
    }
}

/// Goal: a master that is frozen is left as soon as another one is chosen, and not believed when it wakes.
///
/// Method: under load the master is frozen; the Sentinels choose the replica; the old one wakes and
/// believes itself master until the Sentinels make it a replica. Then every key that was acknowledged is
/// sent once more.
/// Evidence: new keys are taken within two seconds of the Sentinels' choice; the upstream counts one
/// execution of each acknowledged key, before and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_is_left() {
    let servers = tokio::task::block_in_place(RedisSentinels::start);
    let upstream = Arc::new(Upstream::start());
    let gateway = setup(&servers.url()).start(&upstream).await;
    let load = Load::start(&gateway, &upstream);
    load.more(100).await;
    tokio::task::block_in_place(|| servers.master.until_heard_by(&servers.replica));
    servers.master.freeze();
    tokio::task::block_in_place(|| servers.until_failed_over());
    let chosen = Instant::now();
    recovered(&gateway).await;
    let took = chosen.elapsed();
    servers.master.thaw();
    tokio::task::block_in_place(|| servers.master.until_follows());
    load.more(100).await;
    let seen = load.end().await;
    println!(
        "master frozen: followed after {took:?}; {} acknowledged, {} refused",
        seen.acknowledged.len(),
        seen.refused.len()
    );
    assert!(took <= ms(2_000), "{took:?}");
    assert!(!seen.refused.is_empty(), "the fault was felt");
    for (key, body) in &seen.acknowledged {
        let again = gateway.send(&Request::pay(key)).await.expect(201);
        assert_eq!(again.header(REPLAYED), Some("true"), "{key}");
        assert!(again.body == *body, "{key}");
        assert_eq!(upstream.executions_of(key), 1, "{key}");
    }
}

//! A Redis server that stops, freezes, dies or is cut off: a right answer or an honest one.

use onlyonce_store::private::{Redis, RedisSentinels};

use crate::{
    harness::{REPLAYED, Request, Upstream},
    shared_store::{self, recovered, setup},
};

/// A server whose acknowledged writes survive its death.
fn durable() -> Redis {
    Redis::start_with(&["appendonly yes", "appendfsync always"])
}

/// Stopped, frozen, killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_freezes_or_dies() {
    let start = || {
        let server = durable();
        let url = server.url();
        (server, url)
    };
    shared_store::stopped_frozen_killed(start).await;
}

/// The connection ends after the script was sent, and carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_script_is_lost() {
    let server = Redis::start();
    shared_store::replies_are_lost(server.port(), |port| server.url_at(port)).await;
}

/// The line to the server is cut, slow or dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_slow_or_dead() {
    let server = Redis::start();
    shared_store::cut_slow_or_dead(server.port(), |port| server.url_at(port)).await;
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

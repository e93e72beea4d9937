//! Several gateways on a Redis Cluster: one truth, and what a failover loses.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_testkit::servers::RedisCluster;

use crate::{
    harness::{REPLAYED, Request, Upstream},
    shared_faults::{self, Load, recovered, setup},
    shared_store,
};

/// A store of its own on a cluster that these tests share.
fn store() -> String {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let cluster = CLUSTER.get_or_init(RedisCluster::start);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{}?prefix=t{number}", cluster.url())
}

/// One winner of a race over two gateways.
#[tokio::test]
async fn a_race_over_two_gateways() {
    shared_store::race(&store()).await;
}

/// A node that dies leaves an honest answer.
#[tokio::test]
async fn the_death_of_a_node() {
    shared_store::death_of_a_node(&store()).await;
}

/// All of its masters at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_stops_freezes_or_dies() {
    shared_faults::stops_freezes_or_dies::<RedisCluster>().await;
}

/// Goal: a plain URL of one node of a cluster is enough.
#[tokio::test]
async fn a_cluster_says_what_it_is() {
    let url = store().replace("redis+cluster://", "redis://");
    shared_store::race(&url).await;
}

/// Goal: the loss of a master costs no more than the stated level allows.
///
/// Method: under load one of three masters, each with a replica, is killed with -9. The gateway is
/// never restarted. Afterwards every key that was acknowledged is sent once more.
/// Evidence: the upstream's count. A key that is replayed ran once. One that the failover lost, which
/// the level `async` allows, runs once more when it is sent again; how many those are is printed. No key
/// runs twice without having been lost, and what was refused was not executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_is_killed_under_load() {
    let settings = ["appendonly yes", "appendfsync everysec"];
    let mut cluster = tokio::task::block_in_place(|| RedisCluster::start_with_replicas(&settings));
    let upstream = Arc::new(Upstream::start());
    let gateway = setup(&cluster.url()).start(&upstream).await;
    gateway.says("level=async").await;
    let load = Load::start(&gateway, &upstream);
    load.more(200).await;
    // A replica that has not begun to follow would show nothing of what a failover loses.
    tokio::task::block_in_place(|| cluster.until_heard(1));
    tokio::task::block_in_place(|| cluster.masters()[1].kill());
    load.more(8).await;
    tokio::task::block_in_place(|| cluster.until_taken_over(1));
    recovered(&gateway).await;
    load.more(100).await;
    let seen = load.end().await;
    assert!(!seen.refused.is_empty(), "the fault was felt");
    let mut lost = Vec::new();
    for (key, body) in &seen.acknowledged {
        let before = upstream.executions_of(key);
        assert_eq!(before, 1, "{key}: twice without having been lost");
        let again = gateway.send(&Request::pay(key)).await.expect(201);
        if again.header(REPLAYED) == Some("true") {
            assert!(again.body == *body, "{key}");
            assert_eq!(upstream.executions_of(key), 1, "{key}");
        } else {
            lost.push(key);
        }
    }
    for key in &seen.refused {
        assert!(upstream.executions_of(key) <= 1, "{key}");
    }
    println!(
        "master killed: {} acknowledged, {} refused meanwhile, {} without an answer; {} of the \
         acknowledged were lost with the master: {lost:?}",
        seen.acknowledged.len(),
        seen.refused.len(),
        seen.unclear.len(),
        lost.len()
    );
    // Replicas hear within milliseconds: what is lost is a few, not the bucket.
    assert!(lost.len() * 10 <= seen.acknowledged.len(), "{lost:?}");
}

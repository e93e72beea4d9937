//! A Galera cluster of three MariaDB servers, each of which takes writes.

use std::sync::Arc;

use onlyonce_testkit::servers::MariaDb;
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::{
    harness::{
        Setup, Upstream, eventually,
        history::{Crowd, Habits},
        soak,
    },
    levels::{Levels, judge, level_of},
};

/// Outcomes that are heard of the race.
fn some() -> u64 {
    if soak() { 20_000 } else { 400 }
}

/// Goal: two gateways on two nodes of a cluster execute nothing twice, and nobody takes the cluster for a
/// store that loses nothing.
///
/// Method: clients ask at random at both gateways, under the same few keys; then a node is killed, and they go
/// on; then a gateway is started whose route is for payments.
/// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed; the level
/// that `/readyz` tells; that gateway does not start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_two_nodes() {
    let [one, two, mut three] = block_in_place(MariaDb::start_galera);
    let upstream = Arc::new(Upstream::start());
    let mut gateways = Vec::new();
    for node in [&one, &two] {
        let setup = Setup::with("lease: 5s, completion_grace: 2s, wait_timeout: 2s");
        let setup = setup.store(&node.url()).store_options("timeout: 2s");
        gateways.push(setup.quiet().start(&upstream).await);
        let gateway = &gateways[gateways.len() - 1];
        eventually("the level to be told", async || {
            (level_of(gateway).await.as_deref() == Some("async")).then_some(())
        })
        .await;
    }
    let habits = Habits {
        new_key_after: Some(3),
        pause: 8,
    };
    let crowd = Crowd::start(&gateways, &upstream, habits);
    let levels = Levels::watch(&gateways, crowd.tape());
    crowd.hears(some()).await;
    block_in_place(|| three.kill());
    crowd.hears(some()).await;
    let tape = crowd.tape().clone();
    let history = crowd.end(&gateways, &upstream).await;
    let judged = judge(&history, &levels);
    println!(
        "Galera: {} requests, {} outcomes heard, {} executions, {} keys broken; levels {:?}",
        tape.calls(),
        tape.outcomes(),
        upstream.executions(),
        judged.len(),
        levels.counts()
    );
    let judged: String = judged.iter().map(ToString::to_string).collect();
    assert!(judged.is_empty(), "{judged}");

    let payments = "idempotency: { profile: payments, reconcile: operator, \
                    credential_headers: [Authorization] }";
    let setup = Setup::with("").store(&one.url()).route(payments);
    let folder = Arc::new(TempDir::new().unwrap());
    let Err(refused) = setup.start_in(folder, &upstream.url()).await else {
        panic!("payments were taken");
    };
    let reason = "demands a store of level sync, and this one is async";
    assert!(refused.logs.contains(reason), "{}", refused.logs);
}

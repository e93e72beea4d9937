//! A Galera cluster of three MariaDB servers, each of which takes writes.

use std::sync::Arc;

use onlyonce_testkit::servers::MariaDb;
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::{
    harness::{Setup, Upstream, history::Crowd, soak},
    trial::Trial,
};

/// Outcomes that are heard before the fault, and after it.
fn some() -> u64 {
    if soak() { 20_000 } else { 400 }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A node that no gateway uses is killed.
    ThirdNodeKilled,
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
    let trial = Trial {
        what: "Galera".to_owned(),
        urls: [one.url(), two.url()],
        level: "async",
        pause: 8,
    };
    let strike = async |fault, crowd: &Crowd| {
        crowd.hears(some()).await;
        match fault {
            Fault::ThirdNodeKilled => block_in_place(|| three.kill()),
        }
        crowd.hears(some()).await;
    };
    let report = trial.with(&[Fault::ThirdNodeKilled], strike).await;
    report.nothing_is_lost();

    let upstream = Upstream::start();
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

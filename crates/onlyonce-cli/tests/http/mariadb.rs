//! Several gateways on one MariaDB server, and a server that fails them.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_testkit::servers::MariaDb;

use crate::{harness::ms, shared_faults, shared_store};

/// A database of its own on a server that these tests share.
pub(crate) fn database() -> String {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = SERVER.get_or_init(MariaDb::start);
    server.database(&format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed)))
}

#[tokio::test]
async fn a_race_over_two_gateways() {
    shared_store::race(&database()).await;
}

#[tokio::test]
async fn the_death_of_a_node() {
    shared_store::death_of_a_node(&database()).await;
}

/// This server notifies nobody: what is waited for is looked at every 40 ms.
#[tokio::test]
async fn a_waiter_on_another_node_is_woken() {
    shared_store::woken_waiter(&database(), ms(150)).await;
}

#[tokio::test]
async fn loops_on_every_node_at_once() {
    shared_store::loops_on_every_node(&database()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_freezes_or_dies() {
    shared_faults::stops_freezes_or_dies::<MariaDb>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_commit_is_lost() {
    shared_faults::lost_reply::<MariaDb>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_slow_or_dead() {
    shared_faults::bad_line::<MariaDb>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_keeps_what_the_store_cannot_take() {
    shared_faults::spool::<MariaDb>().await;
}

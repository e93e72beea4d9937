//! A PostgreSQL server that stops, freezes, dies, is cut off, or has a successor.

use std::sync::Arc;

use onlyonce_store::{fault_proxy::FaultProxy, private::Postgres};

use crate::{
    harness::{Upstream, eventually},
    shared_faults::{self, Load, holds_afterwards, holds_meanwhile, recovered, setup},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_freezes_or_dies() {
    shared_faults::stops_freezes_or_dies::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_commit_is_lost() {
    shared_faults::lost_reply::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_slow_or_dead() {
    shared_faults::bad_line::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_keeps_what_the_store_cannot_take() {
    shared_faults::spool::<Postgres>().await;
}

/// Goal: with a synchronous standby, the loss of the primary loses nothing that was acknowledged.
///
/// Method: under load through a proxy the primary is killed, the standby promoted, the proxy pointed
/// at it.
/// Evidence: as above, on the promoted server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_promoted() {
    let mut primary = Postgres::start();
    let standby = primary.standby("one");
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'one'");
    primary.sql("SELECT pg_reload_conf()");
    eventually("the standby to be synchronous", async || {
        let state = primary.sql("SELECT sync_state FROM pg_stat_replication");
        (state == "sync").then_some(())
    })
    .await;
    let proxy = FaultProxy::start(primary.port()).await;
    let upstream = Arc::new(Upstream::start());
    let gateway = setup(&primary.url_at(proxy.port())).start(&upstream).await;
    eventually("the level to be sync", async || {
        gateway.logs().contains("level=sync").then_some(())
    })
    .await;
    let load = Load::start(&gateway, &upstream);
    load.more(50).await;
    primary.kill();
    holds_meanwhile("primary lost", &gateway, &upstream).await;
    load.more(8).await;
    // The new primary waits for nobody.
    standby.promote();
    standby.run_sql("postgres", "ALTER SYSTEM RESET synchronous_standby_names");
    standby.run_sql("postgres", "SELECT pg_reload_conf()");
    proxy.retarget(standby.port());
    recovered(&gateway).await;
    load.more(50).await;
    let seen = load.end().await;
    holds_afterwards("promoted standby", &seen, &gateway, &upstream).await;
}

//! A PostgreSQL server that stops, freezes, dies or is cut off: a right answer or an honest one.

use std::sync::Arc;

use onlyonce_store::{fault_proxy::FaultProxy, private::Postgres};

use crate::{
    harness::{Request, Script, Setup, Upstream, eventually},
    shared_store::{self, Load, holds_afterwards, holds_meanwhile, recovered, setup},
};

/// Stopped, frozen, killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_freezes_or_dies() {
    let start = || {
        let server = Postgres::start();
        let url = server.url();
        (server, url)
    };
    shared_store::stopped_frozen_killed(start).await;
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

/// The reply to a commit is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_commit_is_lost() {
    let server = Postgres::start();
    shared_store::replies_are_lost(server.port(), |port| server.url_at(port)).await;
}

/// The line to the server is cut, slow or dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_slow_or_dead() {
    let server = Postgres::start();
    shared_store::cut_slow_or_dead(server.port(), |port| server.url_at(port)).await;
}

/// Goal: a result that the store could not take in time survives the end of its gateway.
///
/// Method: the server stops while the upstream holds; the answer comes; the client is told after
/// `completion_grace`; the gateway is killed with -9; server and gateway come back. With a spool,
/// and without.
/// Evidence: with it the key is completed with the answer, without it unknown; one execution each;
/// nothing is left in the spool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_keeps_what_the_store_cannot_take() {
    for spooled in [true, false] {
        let mut server = Postgres::start();
        let upstream = Upstream::start();
        upstream.next(Script::created().held());
        let folder = tempfile::TempDir::new().unwrap();
        let spool = folder.path().join("spool");
        let mut options = "timeout: 500ms".to_owned();
        if spooled {
            options.push_str(&format!(", spool_dir: \"{}\"", spool.display()));
        }
        let setup = Setup::with("completion_grace: 300ms, lease: 1s").store(&server.url());
        let mut gateway = setup.store_options(&options).start(&upstream).await;
        let first = gateway.send_later(&Request::pay("k"));
        upstream.begun(1).await;
        server.stop();
        upstream.release();
        let told = first.await.unwrap();
        told.refused(503, "idempotency_outcome_unknown");
        // One that is being written has another ending.
        let files = || {
            let entries = std::fs::read_dir(&spool).into_iter().flatten().flatten();
            let whole = entries.filter(|entry| entry.path().extension() == Some("result".as_ref()));
            whole.count()
        };
        if spooled {
            eventually("the result to be in the spool", async || {
                (files() == 1).then_some(())
            })
            .await;
        }
        gateway.kill9().await;
        server.boot();
        gateway.restart().await;
        if spooled {
            gateway.until_state("k", "completed").await;
            let retry = gateway.send(&Request::pay("k")).await.expect(201);
            assert_eq!(retry.text(), r#"{"execution":1}"#);
            eventually("the spool to be empty", async || {
                (files() == 0).then_some(())
            })
            .await;
        } else {
            gateway.until_state("k", "unknown").await;
            let retry = gateway.send(&Request::pay("k")).await;
            retry.refused(409, "idempotency_outcome_unknown");
        }
        assert_eq!(upstream.executions(), 1);
    }
}

//! A PostgreSQL server that stops, freezes, dies, is cut off, or has a successor.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use onlyonce_testkit::{servers::Postgres, tcp_faults::FaultProxy};

use crate::{
    harness::{Request, Script, Setup, Upstream, client, eventually, ms},
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

/// Goal: a row that an open transaction holds past its lease belongs to somebody who is alive: duplicates
/// are told that it is in progress, others are not affected, and nothing is executed a second time, not
/// even where a store that is away would be bypassed.
///
/// Method: a payment is held by the upstream; another session locks its row, so that no heartbeat gets
/// through, until the lease has lapsed; duplicates come, more than the breaker takes.
/// Evidence: 409, the upstream's count, a new key that is executed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_an_open_transaction_holds() {
    let server = Arc::new(Postgres::start());
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("lease: 1s, on_store_error: bypass, completion_grace: 20s")
        .store(&server.url())
        .store_options("timeout: 500ms")
        .start(&upstream)
        .await;
    let addr = gateway.data();
    let first = tokio::spawn(async move { client::send(addr, &Request::pay("k")).await });
    upstream.begun(1).await;
    let (locked, session) = (Arc::new(AtomicBool::new(false)), Arc::clone(&server));
    let holds = Arc::clone(&locked);
    let holding = tokio::task::spawn_blocking(move || {
        holds.store(true, Ordering::SeqCst);
        session.sql("BEGIN; SELECT FROM onlyonce.live FOR UPDATE; SELECT pg_sleep(8); COMMIT");
    });
    eventually("the row to be locked", async || {
        locked.load(Ordering::SeqCst).then_some(())
    })
    .await;
    tokio::time::sleep(ms(2_500)).await;
    for number in 0..6 {
        let duplicate = Request::pay("k").header("Prefer", "wait=0");
        let answer = gateway.send(&duplicate).await;
        answer.refused(409, "idempotency_key_in_progress");
        if number == 5 {
            gateway.send(&Request::pay("other")).await.expect(201);
        }
    }
    assert!(!holding.is_finished(), "the row was held all the time");
    assert_eq!(upstream.executions_of("k"), 1);
    upstream.release();
    holding.await.unwrap();
    first.await.unwrap().unwrap().expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions_of("k"), 1);
}

/// Goal: a key that an open transaction is making belongs to somebody who is alive: it is in progress, others
/// are not affected, and the store does not count as away.
///
/// Method: an application reserves the key and does not commit; retries come, more than the breaker takes,
/// where a store that is away would be bypassed.
/// Evidence: 409, nothing executed for it, a new key that is executed meanwhile, and no breaker in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_an_open_transaction_is_making() {
    let server = Arc::new(Postgres::start());
    let upstream = Upstream::start();
    let gateway = Setup::with("on_store_error: bypass")
        .store(&server.url())
        .start(&upstream)
        .await;
    let session = Arc::clone(&server);
    let holding = tokio::task::spawn_blocking(move || {
        let reserved = "SELECT outcome FROM onlyonce.reserve('global', 'k')";
        session.sql(&format!("BEGIN; {reserved}; SELECT pg_sleep(8); ROLLBACK"));
    });
    eventually("the key to be in the making", async || {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        (server.sql(waits) == "1").then_some(())
    })
    .await;
    for number in 0..6 {
        let retry = Request::pay("k").header("Prefer", "wait=0");
        let answer = gateway.send(&retry).await;
        answer.refused(409, "idempotency_key_in_progress");
        gateway
            .send(&Request::pay(&format!("other-{number}")))
            .await
            .expect(201);
    }
    assert!(
        !holding.is_finished(),
        "the transaction was open all the time"
    );
    assert_eq!(upstream.executions_of("k"), 0);
    assert!(
        !gateway.logs().contains("the store fails"),
        "{}",
        gateway.logs()
    );
    holding.await.unwrap();
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions_of("k"), 1);
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

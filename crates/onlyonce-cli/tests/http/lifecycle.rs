//! Start, end, and the disk that says no.

use std::{net::SocketAddr, time::Duration};

use crate::harness::{
    Connection, Gateway, REPLAYED, Request, Script, Setup, Upstream, client::Http2, eventually, ms,
    within,
};

/// Goal: SIGTERM lets what runs run to its end.
///
/// Method: SIGTERM while the upstream holds a request with a waiter; release.
/// Evidence: both are answered; the process ends with 0; after a restart the answer is replayed.
#[tokio::test]
async fn sigterm_drains() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let mut gateway = Gateway::start(&upstream, "").await;
    let requests = gateway.send_many(2, &Request::pay("k"));
    upstream.begun(1).await;
    gateway.until_met_in_flight(1).await;
    gateway.sigterm();
    eventually("new connections to be refused", async || {
        Connection::open(gateway.data())
            .await
            .is_err()
            .then_some(())
    })
    .await;
    assert!(requests.iter().all(|request| !request.is_finished()));
    upstream.release();
    for request in requests {
        within("a drained answer", request)
            .await
            .unwrap()
            .expect(201);
    }
    assert!(gateway.exited().await.success());
    gateway.restart().await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(
        (replay.text(), upstream.executions()),
        (r#"{"execution":1}"#.into(), 1)
    );
}

/// Goal: a drain ends even if the upstream does not, and the key is not released by it.
///
/// Method: `drain_timeout: 500ms`, the upstream holds for ever; restart.
/// Evidence: the process ends; the key becomes unknown, never executed again.
#[tokio::test]
async fn a_drain_has_an_end() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let mut gateway = Setup::with("lease: 1s")
        .top("drain_timeout: 500ms")
        .start(&upstream)
        .await;
    let mut client = Connection::open(gateway.data()).await.unwrap();
    client.write(&Request::pay("k").bytes()).await.unwrap();
    upstream.begun(1).await;
    gateway.sigterm();
    gateway.exited().await;
    gateway.restart().await;
    gateway.until_state("k", "unknown").await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an execution whose client has left is part of the drain.
///
/// Method: the client leaves, SIGTERM, release.
/// Evidence: after a restart the answer is replayed; one execution.
#[tokio::test]
async fn a_drain_waits_for_abandoned_executions() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let mut gateway = Gateway::start(&upstream, "").await;
    let mut client = Connection::open(gateway.data()).await.unwrap();
    client.write(&Request::pay("k").bytes()).await.unwrap();
    upstream.begun(1).await;
    client.reset();
    gateway.sigterm();
    eventually("new connections to be refused", async || {
        Connection::open(gateway.data())
            .await
            .is_err()
            .then_some(())
    })
    .await;
    upstream.release();
    gateway.exited().await;
    gateway.restart().await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(
        (replay.header(REPLAYED), upstream.executions()),
        (Some("true"), 1)
    );
}

/// Goal: two gateways never share one SQLite file.
///
/// Method: start a second on the folder of the first; then kill the first and start again.
/// Evidence: the second ends with an error and says why; the first is unharmed; kill -9 leaves no
/// lock behind.
#[tokio::test]
async fn a_second_serve_on_the_same_file_is_refused() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    match Setup::with("")
        .start_in(gateway.folder(), &upstream.url())
        .await
    {
        Ok(_) => panic!("a second gateway runs on the same file"),
        Err(exit) => {
            assert!(!exit.status.success());
            assert!(
                exit.logs.contains("onlyonce.db"),
                "it names the file: {}",
                exit.logs
            );
        }
    }
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.kill9().await;
    gateway.restart().await;
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a config with an unknown field does not start.
///
/// Method: `ttll: 1h`.
/// Evidence: it ends with an error that names line and field; no ready line.
#[tokio::test]
async fn a_bad_config_does_not_start() {
    let upstream = Upstream::start();
    let folder = std::sync::Arc::new(tempfile::TempDir::new().unwrap());
    match Setup::with("ttll: 1h")
        .start_in(folder, &upstream.url())
        .await
    {
        Ok(_) => panic!("a gateway runs on a config with an unknown field"),
        Err(exit) => {
            assert!(!exit.status.success());
            assert!(exit.logs.contains("ttll"), "{}", exit.logs);
            assert!(
                exit.logs.contains(".yaml:5:"),
                "file and line: {}",
                exit.logs
            );
        }
    }
}

/// Goal: money is not entrusted to a store that forgets.
///
/// Method: profile `payments` on `memory:`.
/// Evidence: it does not start, and says why.
#[tokio::test]
async fn payments_refuse_a_volatile_store() {
    let upstream = Upstream::start();
    let folder = std::sync::Arc::new(tempfile::TempDir::new().unwrap());
    let setup =
        Setup::with("profile: payments, reconcile: operator, credential_headers: [Authorization]")
            .store("memory:");
    match setup.start_in(folder, &upstream.url()).await {
        Ok(_) => panic!("a gateway runs profile payments on a volatile store"),
        Err(exit) => {
            assert!(!exit.status.success());
            assert!(exit.logs.contains("payments"), "{}", exit.logs);
        }
    }
}

/// Goal: without a store there is no execution.
///
/// Method: take away the right to write files; a new key; give it back; the same key.
/// Evidence: 503 with Retry-After and no byte upstream; replays still work; then one execution.
#[tokio::test]
async fn a_full_disk_at_reserve() {
    let upstream = Upstream::start();
    let gateway = Setup::with("").can_fill_disk().start(&upstream).await;
    gateway.send(&Request::pay("before")).await.expect(201);
    gateway.fill_disk(true);
    for _ in 0..3 {
        let refused = gateway.send(&Request::pay("k")).await;
        let refused = refused.refused(503, "idempotency_store_unavailable");
        assert!(refused.retry_after().is_some(), "{refused}");
        assert_eq!(refused.header("stripe-should-retry"), Some("true"));
    }
    assert_eq!(upstream.executions(), 1, "no byte reaches the upstream");
    let replay = gateway.send(&Request::pay("before")).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));

    gateway.fill_disk(false);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!((upstream.executions(), upstream.executions_of("k")), (2, 1));
}

/// Goal: an answer that cannot be made durable is not shown as one.
///
/// Method: hold the execution, take away the right to write, release; later give it back.
/// Evidence: 503 unknown after `completion_grace`; then the key completes by itself and is
/// replayed; one execution.
#[tokio::test]
async fn a_full_disk_at_completion() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let setup = Setup::with("completion_grace: 500ms").can_fill_disk();
    let gateway = setup.start(&upstream).await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    gateway.fill_disk(true);
    upstream.release();
    let first = within("the honest answer", first).await.unwrap();
    let first = first.refused(503, "idempotency_outcome_unknown");
    assert_eq!(first.header("stripe-should-retry"), Some("false"));

    gateway.fill_disk(false);
    gateway.until_state("k", "completed").await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(
        (replay.text(), upstream.executions()),
        (r#"{"execution":1}"#.into(), 1)
    );
}

/// How a client of a rolling restart fared.
#[derive(Default)]
struct Fared {
    answered: usize,
    /// Written whole, and never answered.
    lost: usize,
}

/// Pays over one connection, with a pause after each answer, until the gateway says that it closes it.
async fn pay_until_told(addr: SocketAddr, client: usize, pause: Duration) -> Fared {
    let mut fared = Fared::default();
    let mut connection = Connection::open(addr).await.expect("a connection");
    loop {
        let key = format!("rolling-{client}-{}", fared.answered);
        let answer = connection.send(&Request::pay(&key)).await;
        let Ok(answer) = answer else {
            fared.lost += 1;
            return fared;
        };
        assert_eq!(answer.status, 201, "{answer}");
        fared.answered += 1;
        if answer.header("connection") == Some("close") {
            return fared;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Goal: a gateway that is told to stop closes no connection over which a request is on its way.
///
/// Method: clients that keep their connections, busy ones and ones that pause, and one over HTTP/2 with requests
/// under way; SIGTERM in the middle; several gateways one after the other.
/// Evidence: every request that was written has an answer, and each gateway ends with 0.
#[tokio::test]
async fn sigterm_under_load_answers_everybody() {
    const GATEWAYS: usize = 3;
    const CLIENTS: usize = 24;
    const BEFORE: usize = 200;
    let upstream = Upstream::start();
    let (mut answered, mut lost) = (0, 0);
    for _ in 0..GATEWAYS {
        let mut gateway = Gateway::start(&upstream, "").await;
        let (addr, began) = (gateway.data(), upstream.executions());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let pause = ms(if client % 2 == 0 {
                    0
                } else {
                    5 * client as u64
                });
                tokio::spawn(pay_until_told(addr, client, pause))
            })
            .collect();
        let http2 = Http2::open(addr).await;
        let in_flight: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (mut http2, key) = (http2.clone(), format!("http2-{client}"));
                upstream.next(Script::created().delayed(ms(20 * client as u64)));
                tokio::spawn(async move { http2.send(&Request::pay(&key)).await })
            })
            .collect();
        eventually("some answers", async || {
            (upstream.executions() > began + BEFORE).then_some(())
        })
        .await;
        gateway.sigterm();
        for client in clients {
            let fared = within("a client", client).await.unwrap();
            answered += fared.answered;
            lost += fared.lost;
        }
        for request in in_flight {
            let answer = within("an answer over HTTP/2", request).await.unwrap();
            assert_eq!(answer.status, 201);
        }
        assert!(gateway.exited().await.success());
    }
    assert_eq!(lost, 0, "of {answered} that were answered");
}

//! Time: upstreams that answer late, executors that fall silent, leases that lapse.

use tokio::time::Instant;

use crate::harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, ms, within};

const LEASE_AND_SWEEP: std::time::Duration = ms(1_000 + 200 + 1_000);

/// Goal: `timeout` ends the client's wait and nothing else.
///
/// Method: `timeout: 500ms`, `lease: 1s`, `sweep_every: 200ms`; the upstream holds for longer than the
/// lease, then answers. Retries meanwhile, one that asks not to wait and one that waits.
/// Evidence: 504 with a time to come back; in progress all along; both retries are told so, and the one
/// that waits gets the answer; one execution.
#[tokio::test]
async fn a_timeout_decides_nothing() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("lease: 1s")
        .route("timeout: 500ms")
        .start(&upstream)
        .await;
    let late = gateway.send(&Request::pay("k")).await;
    let late = late.refused(504, "idempotency_key_in_progress");
    assert_eq!(late.header("stripe-should-retry"), Some("true"));
    let seconds: u64 = late.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{late}");
    let began = Instant::now();
    while began.elapsed() < ms(2_000) {
        assert_eq!(gateway.state("k").await, "in_progress");
        gateway
            .send(&Request::pay("k").header("Prefer", "wait=0"))
            .await
            .refused(409, "idempotency_key_in_progress");
        tokio::time::sleep(ms(100)).await;
    }
    let waiter = gateway.send_later(&Request::pay("k"));
    let waits = "onlyonce_waiters";
    eventually("the retry to wait", async || {
        (gateway.metric(waits).await == Some(1.0)).then_some(())
    })
    .await;
    upstream.release();
    let replay = within("the answer", waiter).await.unwrap().expect(201);
    assert_eq!(replay.text(), r#"{"execution":1}"#);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    assert_eq!(gateway.state("k").await, "completed");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: an exchange that never ends is unknown, at `max_execution` and not before.
///
/// Method: `timeout: 300ms`, `max_execution: 1500ms`, an upstream that holds for ever.
/// Evidence: 504 in progress; unknown by itself, not before `max_execution`; then 409; one execution.
#[tokio::test]
async fn max_execution_is_the_end() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("lease: 1s, max_execution: 1500ms")
        .route("timeout: 300ms")
        .start(&upstream)
        .await;
    let began = Instant::now();
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(504, "idempotency_key_in_progress");
    gateway.until_state("k", "unknown").await;
    assert!(began.elapsed() >= ms(1_500), "{:?}", began.elapsed());
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: `timeout` counts to the end of the body.
///
/// Method: the head and half of the body at once, the rest held beyond the timeout.
/// Evidence: 504; after the release the whole answer is replayed; one execution.
#[tokio::test]
async fn a_body_that_does_not_end_in_time() {
    use crate::harness::script::Step;
    let upstream = Upstream::start();
    upstream.next(Script::steps(vec![
        Step::Write(b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nab".to_vec()),
        Step::Hold,
        Step::Write(b"cd".to_vec()),
    ]));
    let gateway = Setup::with("")
        .route("timeout: 400ms")
        .start(&upstream)
        .await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(504, "idempotency_key_in_progress");
    upstream.release();
    gateway.until_state("k", "completed").await;
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(201).text(),
        "abcd"
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the end of one client's wait is not the end of the others'.
///
/// Method: five duplicates on an execution whose first client runs into its timeout; then it answers.
/// Evidence: 504 for one, the answer for the others; one execution.
#[tokio::test]
async fn waiters_on_a_timeout() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("")
        .route("timeout: 800ms")
        .start(&upstream)
        .await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let waiters = gateway.send_many(5, &Request::pay("k"));
    within("an answer", first)
        .await
        .unwrap()
        .refused(504, "idempotency_key_in_progress");
    upstream.release();
    for waiter in waiters {
        let replay = within("an answer", waiter).await.unwrap().expect(201);
        assert_eq!(replay.text(), r#"{"execution":1}"#);
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a running execution keeps its lease, however long it takes.
///
/// Method: `lease: 1s`, an execution held for 2.5 s while the sweeper runs.
/// Evidence: in progress all along; then its answer; one execution.
#[tokio::test]
async fn a_living_execution_renews_its_lease() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "lease: 1s").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let began = Instant::now();
    while began.elapsed() < ms(2_500) {
        assert_eq!(
            gateway.state("k").await,
            "in_progress",
            "after {:?}",
            began.elapsed()
        );
        tokio::time::sleep(ms(100)).await;
    }
    upstream.release();
    within("the answer", first).await.unwrap().expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a lapsed lease becomes unknown by itself, and never a second execution.
///
/// Method: kill -9 while the upstream holds, restart, look at the record without any request.
/// Evidence: unknown within lease + sweep_every + 1 s; then 409; the upstream still counts one.
#[tokio::test]
async fn a_killed_execution_becomes_unknown() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let mut gateway = Gateway::start(&upstream, "lease: 1s").await;
    let client = tokio::spawn({
        let addr = gateway.data();
        async move { crate::harness::client::send(addr, &Request::pay("k")).await }
    });
    upstream.begun(1).await;
    gateway.kill9().await;
    assert!(client.await.unwrap().is_err(), "the client was cut off");
    gateway.restart().await;
    let began = Instant::now();
    gateway.until_state("k", "unknown").await;
    assert!(
        began.elapsed() <= LEASE_AND_SWEEP,
        "it took {:?}",
        began.elapsed()
    );
    for _ in 0..3 {
        gateway
            .send(&Request::pay("k"))
            .await
            .refused(409, "idempotency_outcome_unknown");
    }
    upstream.release();
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the retry itself sees a lapsed lease, even if no sweep has run yet.
///
/// Method: as before with `sweep_every: 1h`; retry at once (it waits), and again.
/// Evidence: never a second execution; 409 unknown in the end.
#[tokio::test]
async fn a_retry_waits_for_the_lapsed_lease_and_never_executes() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let setup = Setup::with("lease: 1s").workers("sweep_every: 1h");
    let mut gateway = setup.start(&upstream).await;
    let addr = gateway.data();
    let cut_off =
        tokio::spawn(async move { crate::harness::client::send(addr, &Request::pay("k")).await });
    upstream.begun(1).await;
    gateway.kill9().await;
    assert!(cut_off.await.unwrap().is_err());
    gateway.restart().await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(gateway.state("k").await, "unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a process that slept past its lease and wakes does no harm.
///
/// Method: SIGSTOP while the upstream holds, for longer than lease and sweep; release; SIGCONT.
/// Evidence: the late result of the same attempt is taken: completed; one execution.
#[tokio::test]
async fn a_paused_gateway_wakes() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "lease: 1s").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    gateway.pause();
    tokio::time::sleep(ms(1_600)).await;
    upstream.release();
    upstream.ended(1).await;
    gateway.wake();
    gateway.until_state("k", "completed").await;
    let first = within("the first answer", first).await.unwrap();
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.text(), r#"{"execution":1}"#);
    assert!(first.status != 201 || first.body == replay.body, "{first}");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a pause between reserve and dispatch never sends after the lease has gone.
///
/// Method: many requests; SIGSTOP at some instant while they start, past the lease; SIGCONT.
/// Evidence: no key was executed twice, retries included; none is stuck in progress.
#[tokio::test]
async fn a_pause_at_any_instant_executes_nothing_twice() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(5)));
    let gateway = Gateway::start(&upstream, "lease: 1s").await;
    let keys: Vec<String> = (0..40).map(|number| format!("paused-{number}")).collect();
    let requests: Vec<_> = keys
        .iter()
        .map(|key| gateway.send_later(&Request::pay(key)))
        .collect();
    upstream.begun(3).await;
    gateway.pause();
    tokio::time::sleep(ms(1_500)).await;
    gateway.wake();
    for request in requests {
        within("an answer", request).await.unwrap();
    }
    for key in &keys {
        gateway.send(&Request::pay(key)).await;
        assert!(upstream.executions_of(key) <= 1, "{key} was executed twice");
        assert_ne!(gateway.state(key).await, "in_progress");
    }
}

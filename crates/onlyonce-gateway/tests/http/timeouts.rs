//! Time: upstreams that answer late, executors that fall silent, leases that lapse.

use tokio::time::Instant;

use crate::harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, ms, within};

const LEASE_AND_SWEEP: std::time::Duration = ms(1_000 + 200 + 1_000);

/// Goal: a client is not kept beyond `timeout`, and the answer that comes later is not lost.
///
/// Method: `timeout: 500ms`, the upstream holds for longer, then answers; look without asking.
/// Evidence: 504 and unknown; after the release the key completes by itself; one execution.
#[tokio::test]
async fn an_answer_after_the_timeout_completes_the_key() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("")
        .route("timeout: 500ms")
        .start(&upstream)
        .await;
    let late = gateway.send(&Request::pay("k")).await;
    let late = late.refused(504, "idempotency_outcome_unknown");
    assert_eq!(late.header("stripe-should-retry"), Some("false"));
    assert_eq!(gateway.state("k").await, "unknown");
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");

    upstream.release();
    gateway.until_state("k", "completed").await;
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.text(), r#"{"execution":1}"#);
    assert_eq!(replay.header(REPLAYED), Some("true"));
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
        .refused(504, "idempotency_outcome_unknown");
    upstream.release();
    gateway.until_state("k", "completed").await;
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(201).text(),
        "abcd"
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: waiters share the fate of a timeout, one execution all the same.
///
/// Method: five duplicates on an execution that runs into its timeout.
/// Evidence: 504 for one, 409 unknown for the others; one execution.
#[tokio::test]
async fn waiters_on_a_timeout() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Setup::with("")
        .route("timeout: 800ms")
        .start(&upstream)
        .await;
    let mut statuses = Vec::new();
    for request in gateway.send_many(6, &Request::pay("k")) {
        let answer = within("an answer", request).await.unwrap();
        assert_eq!(answer.code(), "idempotency_outcome_unknown", "{answer}");
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [409, 409, 409, 409, 409, 504]);
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

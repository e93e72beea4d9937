//! What happens after the ttl: tombstones and generations.

use tokio::time::Instant;

use crate::harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, ms, within};

/// Goal: after its ttl the same request is a new generation, and says so.
///
/// Method: `ttl: 1s`; wait for the reaper; send again twice.
/// Evidence: a second execution with the same downstream key; generation 2 on answer and replay;
/// counter and audit event.
#[tokio::test]
async fn the_second_generation() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    let counter = "api_idempotency_executed_after_expiry_total";
    assert_eq!(gateway.metric(counter).await, Some(0.0));

    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.text(), r#"{"execution":2}"#);
    assert_eq!(second.header(REPLAYED), None);
    assert_eq!(second.header("idempotency-generation"), Some("2"));
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.header("idempotency-generation"), Some("2"));
    assert_eq!(
        (replay.body, replay.headers.one(REPLAYED)),
        (second.body, Some("true"))
    );
    assert_eq!((upstream.executions(), upstream.executions_of("k")), (2, 2));
    assert_eq!(gateway.metric(counter).await, Some(1.0));
    let audit = gateway
        .admin(Request::get("/audit"))
        .await
        .expect(200)
        .text();
    assert!(audit.contains("executed_after_expiry"), "{audit}");
}

/// Goal: an answer is kept for its ttl, and expires then whether or not the reaper has come by.
///
/// Method: `reap_every: 1h`; send until the answer is no replay.
/// Evidence: exactly one more execution, as generation 2, and not before the ttl has passed.
#[tokio::test]
async fn expired_though_not_yet_reaped() {
    let upstream = Upstream::start();
    let setup = Setup::with("ttl: 1s").workers("reap_every: 1h");
    let gateway = setup.start(&upstream).await;
    let began = Instant::now();
    gateway.send(&Request::pay("k")).await.expect(201);
    let second = eventually("the ttl to pass", async || {
        let answer = gateway.send(&Request::pay("k")).await.expect(201);
        answer.header(REPLAYED).is_none().then_some(answer)
    })
    .await;
    // The store counts in whole milliseconds.
    let kept = began.elapsed() + ms(1);
    assert!(kept >= ms(1_000), "kept for {kept:?}");
    assert_eq!(second.header("idempotency-generation"), Some("2"));
    assert_eq!(upstream.executions(), 2);
}

/// Goal: `after_expiry: reject` refuses for as long as the tombstone stands.
///
/// Method: as above with `reject`.
/// Evidence: 409 twice; one execution.
#[tokio::test]
async fn after_expiry_reject() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s, after_expiry: reject").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    for _ in 0..2 {
        let refused = gateway
            .send(&Request::pay("k"))
            .await
            .refused(409, "idempotency_key_expired");
        assert_eq!(refused.header("stripe-should-retry"), Some("false"));
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the owner of an expired key is told so for as long as the tombstone stands, and nobody else.
///
/// Method: ask for an expired key, as its caller and as another; not yet reaped, reaped, and gone.
/// Evidence: `expired` without an answer; 404 for the stranger and at the end; asking executes nothing.
#[tokio::test]
async fn asking_for_an_expired_key() {
    let upstream = Upstream::start();
    let ask = |who: &str| Request::get("/.onlyonce/keys/k").header("Authorization", who);
    for reaper in ["reap_every: 1h", "reap_every: 200ms"] {
        let setup = Setup::with("ttl: 1s, tombstone_ttl: 2s").workers(reaper);
        let gateway = setup.start(&upstream).await;
        let before = upstream.executions();
        let pay = Request::pay("k").header("Authorization", "me");
        gateway.send(&pay).await.expect(201);
        let expired = eventually("the ttl to pass", async || {
            let shown = gateway.send(&ask("me")).await.expect(200).json();
            (shown["state"] != "completed").then_some(shown)
        })
        .await;
        assert_eq!(expired["state"], "expired", "{reaper}");
        assert!(expired["response"].is_null(), "{reaper}: {expired}");
        assert_eq!(expired["generation"], 1, "{reaper}");
        gateway.send(&ask("other")).await.expect(404);
        eventually("the tombstone's end", async || {
            let gone = gateway.send(&ask("me")).await;
            (gone.status == 404).then_some(())
        })
        .await;
        assert_eq!(upstream.executions(), before + 1, "{reaper}");
    }
}

/// Goal: when the tombstone is gone too, the key is new.
///
/// Method: `ttl: 1s, tombstone_ttl: 1s`; wait until the record is gone; send something else.
/// Evidence: it executes as generation 1, no mismatch.
#[tokio::test]
async fn after_the_tombstone() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s, tombstone_ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "absent").await;
    let other = Request::post("/payments").key("k").json(r#"{"amount":5}"#);
    let answer = gateway.send(&other).await.expect(201);
    assert_ne!(answer.header("idempotency-generation"), Some("2"));
    assert_eq!(upstream.executions(), 2);
}

/// Goal: the ttl counts from completion; what is running or unknown never expires.
///
/// Method: `ttl: 1s`; an execution held for 1.6 s; a hang-up, looked at again after that time.
/// Evidence: the held key is replayed after its completion; the lost one is still unknown.
#[tokio::test]
async fn neither_running_nor_unknown_keys_expire() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(2).await;
    tokio::time::sleep(ms(1_600)).await;
    assert_eq!(gateway.state("held").await, "in_progress");
    assert_eq!(gateway.state("lost").await, "unknown");
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);
    let replay = gateway.send(&Request::pay("held")).await.expect(201);
    assert_eq!(replay.header(REPLAYED), Some("true"));
    gateway
        .send(&Request::pay("lost"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 2);
}

/// Goal: of many duplicates after expiry one starts the new generation.
///
/// Method: ten duplicates at once on an expired key, the execution held until nine wait.
/// Evidence: two executions in all; ten equal answers.
#[tokio::test]
async fn one_winner_after_expiry() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    upstream.next(Script::created().held());
    let requests = gateway.send_many(10, &Request::pay("k"));
    upstream.begun(2).await;
    gateway.until_met_in_flight(9).await;
    upstream.release();
    for request in requests {
        let answer = within("an answer", request).await.unwrap().expect(201);
        assert_eq!(answer.text(), r#"{"execution":2}"#);
    }
    assert_eq!(upstream.executions(), 2);
}

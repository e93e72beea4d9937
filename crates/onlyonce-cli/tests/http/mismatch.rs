//! The same key for another request: refused in every state, and the record is not touched.

use serde_json::Value;

use crate::harness::{Gateway, Request, Script, Setup, Upstream, within};

fn other(key: &str) -> Request {
    Request::post("/payments")
        .key(key)
        .json(r#"{"amount":9999,"currency":"EUR"}"#)
}

/// Sends another request under the key: 422, nothing executed, the record as it was.
async fn refused_and_untouched(gateway: &Gateway, upstream: &Upstream, key: &str, state: &str) {
    let executions = upstream.executions();
    let before: Value = gateway.full_record(key).await;
    assert_eq!(before["state"], state);
    let refused = gateway
        .send(&other(key))
        .await
        .refused(422, "idempotency_key_reused");
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert_eq!(
        gateway.full_record(key).await,
        before,
        "a mismatch changes nothing"
    );
    assert_eq!(upstream.executions(), executions);
}

/// Goal: a mismatch is seen while the first is running, without waiting for it.
///
/// Method: hold the first, send another body under its key.
/// Evidence: 422 while held; one execution; the first is answered as if nothing had happened.
#[tokio::test]
async fn in_progress() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    refused_and_untouched(&gateway, &upstream, "k", "in_progress").await;
    upstream.release();
    let first = within("the first answer", first).await.unwrap().expect(201);
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(201).body,
        first.body
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a completed key answers its own request only.
///
/// Method: complete, send another body, then the own one.
/// Evidence: 422, then the replay; one execution.
#[tokio::test]
async fn completed() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    refused_and_untouched(&gateway, &upstream, "k", "completed").await;
    assert_eq!(
        gateway.send(&Request::pay("k")).await.expect(201).body,
        first.body
    );
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a retryable key may be executed again by its own request only.
///
/// Method: a 500, another body, then the own one.
/// Evidence: 422 without execution; the own one is the second execution.
#[tokio::test]
async fn failed_retryable() {
    let upstream = Upstream::start();
    upstream.next(Script::reply(500));
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("k")).await.expect(500);
    refused_and_untouched(&gateway, &upstream, "k", "failed_retryable").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

/// Goal: an unknown key tells another request about the mismatch, not about the outcome.
///
/// Method: the upstream hangs up, another body, then the own one.
/// Evidence: 422, then 409 unknown; one execution.
#[tokio::test]
async fn unknown() {
    let upstream = Upstream::start();
    upstream.next(Script::hang_up());
    let gateway = Gateway::start(&upstream, "").await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(502, "idempotency_outcome_unknown");
    refused_and_untouched(&gateway, &upstream, "k", "unknown").await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a tombstone still knows what its key was for.
///
/// Method: a ttl of a second, wait for the reaper, another body, then the own one.
/// Evidence: 422 without execution; the own one starts generation 2.
#[tokio::test]
async fn expired_with_its_tombstone() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    refused_and_untouched(&gateway, &upstream, "k", "expired").await;
    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.header("idempotency-generation"), Some("2"));
    assert_eq!(upstream.executions(), 2);
}

/// Goal: the mismatch wins over the in-flight answer in every mode.
///
/// Method: `reject` and `accept`, a held first, another body.
/// Evidence: 422, not 409 or 202; one execution each.
#[tokio::test]
async fn before_any_look_at_the_state() {
    for mode in ["reject", "accept"] {
        let upstream = Upstream::start();
        upstream.next(Script::created().held());
        let gateway = Gateway::start(&upstream, &format!("on_in_flight: {mode}")).await;
        let first = gateway.send_later(&Request::pay("k"));
        upstream.begun(1).await;
        gateway
            .send(&other("k"))
            .await
            .refused(422, "idempotency_key_reused");
        upstream.release();
        within("the first answer", first).await.unwrap().expect(201);
        assert_eq!(upstream.executions(), 1);
    }
}

/// Goal: a response that was not stored is no way around the mismatch.
///
/// Method: an answer above `max_body_size`, then another body.
/// Evidence: 422, then 409 not stored for the own one; one execution.
#[tokio::test]
async fn completed_but_not_stored() {
    let upstream = Upstream::start();
    upstream.next(Script::created().body(vec![b'x'; 2_000]));
    let setup = Setup::with("max_body_size: 1KiB").store("memory:");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    refused_and_untouched(&gateway, &upstream, "k", "completed").await;
    gateway
        .send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_response_not_stored");
    assert_eq!(upstream.executions(), 1);
}

//! An execution that outlives its lease. Only a build with failpoints has one whose process is well.

use crate::{
    harness::{Request, Script, Setup, Upstream},
    scenario::{KEY, WITHOUT_HEARTBEATS, forget, release},
};

/// Goal: a late answer cannot match a forgotten key.
///
/// Method: an execution whose lease has lapsed is resolved as retryable and forgotten; then it answers.
/// Evidence: the record stays expired; the next request is the second execution, its answer kept.
#[tokio::test]
async fn a_late_answer_to_a_forgotten_key() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let setup = Setup::with("lease: 1s").workers("sweep_every: 200ms");
    let setup = setup.env(WITHOUT_HEARTBEATS.0, WITHOUT_HEARTBEATS.1);
    let gateway = setup.start(&upstream).await;
    let _late = gateway.send_later(&Request::pay(KEY));
    upstream.begun(1).await;
    gateway.until_state(KEY, "unknown").await;
    release(&gateway).await;
    forget(&gateway).await;
    let second = gateway.send(&Request::pay(KEY)).await.expect(201);
    assert_eq!(second.text(), r#"{"execution":2}"#);
    upstream.release();
    upstream.ended(2).await;
    // The late answer is on its way through the gateway; asking meanwhile must never show it.
    for _ in 0..20 {
        let replay = gateway.send(&Request::pay(KEY)).await.expect(201);
        assert_eq!(replay.text(), r#"{"execution":2}"#);
    }
    assert_eq!(upstream.executions(), 2);
}

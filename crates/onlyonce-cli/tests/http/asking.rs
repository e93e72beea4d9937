//! `GET /.onlyonce/keys/{key}`: a client asks what became of its key.

use serde_json::{Value, json};

use crate::harness::{Gateway, Request, Script, Upstream, admin::percent_encoded, ms, within};

fn ask(key: &str, query: &str) -> Request {
    Request::get(&format!("/.onlyonce/keys/{}{query}", percent_encoded(key)))
}

/// RFC 3339 in UTC with milliseconds, as far as the eye can tell.
pub(crate) fn is_time(value: &Value) -> bool {
    value.as_str().is_some_and(|text| {
        text.len() == 24
            && text.ends_with('Z')
            && text.as_bytes()[10] == b'T'
            && &text[19..20] == "."
    })
}

/// Goal: a client learns state, generation and times of its key.
///
/// Method: ask before, during and after an execution, and after an unknown one.
/// Evidence: the answers; asking executes nothing.
#[tokio::test]
async fn the_state_of_a_key() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&ask("k", "")).await.expect(404);
    upstream.next(Script::created().held());
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let running = gateway.send(&ask("k", "")).await.expect(200).json();
    assert_eq!(running["state"], "in_progress");
    assert_eq!(running["response"], Value::Null);
    upstream.release();
    within("the answer", first).await.unwrap().expect(201);

    let done = gateway.send(&ask("k", "")).await.expect(200).json();
    assert_eq!(
        (&done["state"], &done["generation"]),
        (&"completed".into(), &1.into())
    );
    assert_eq!(done["response"]["status"], 201);
    assert!(
        done["created_at"].is_string() && done["expires_at"].is_string(),
        "{done}"
    );

    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    let lost = gateway.send(&ask("lost", "")).await.expect(200).json();
    assert_eq!(lost["state"], "unknown");
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a client's `Prefer: wait=N` caps how long it is kept waiting here too.
///
/// Method: ask with a long `?wait` and `Prefer: wait=0` while the upstream holds, and does so until the answer
/// has come. Evidence: the answer comes, and says in_progress.
#[tokio::test]
async fn prefer_caps_the_wait() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::created().held());
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let question = ask("k", "?wait=50s").header("Prefer", "wait=0");
    let running = within("the question", gateway.send(&question)).await;
    assert_eq!(running.expect(200).json()["state"], "in_progress");
    upstream.release();
    within("the answer", first).await.unwrap().expect(201);
}

/// Goal: `wait` holds the question until the key is settled.
///
/// Method: ask with `?wait=9` while the upstream holds; ask with a short wait before, and with nonsense.
/// Evidence: the short one says in_progress, the long one completed after the release; nonsense is 400.
#[tokio::test]
async fn wait_holds_until_settled() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let gateway = Gateway::start(&upstream, "").await;
    let first = gateway.send_later(&Request::pay("k"));
    upstream.begun(1).await;
    let began = tokio::time::Instant::now();
    let short = gateway
        .send(&ask("k", "?wait=200ms"))
        .await
        .expect(200)
        .json();
    assert_eq!(short["state"], "in_progress");
    assert!(began.elapsed() >= ms(190), "{:?}", began.elapsed());

    for nonsense in ["abc", "-1s", "1.5", ""] {
        let answer = gateway.send(&ask("k", &format!("?wait={nonsense}"))).await;
        answer.expect(400);
    }
    let long = gateway.send_later(&ask("k", "?wait=9"));
    // The question has no signal of its own; a request that needs the same path gives it time.
    gateway.send(&ask("k", "")).await.expect(200);
    assert!(!long.is_finished());
    upstream.release();
    let long = within("the long question", long)
        .await
        .unwrap()
        .expect(200)
        .json();
    assert_eq!(long["state"], "completed");
    within("the answer", first).await.unwrap().expect(201);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: `wait` holds the question about an unknown key until somebody finds out.
///
/// Evidence: it says completed once an operator has settled the key, and not before.
#[tokio::test]
async fn wait_holds_while_unknown() {
    let upstream = Upstream::start();
    upstream.next(Script::hang_up());
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("k")).await.expect(502);
    let short = gateway.send(&ask("k", "?wait=200ms")).await.expect(200);
    assert_eq!(short.json()["state"], "unknown");
    let long = gateway.send_later(&ask("k", "?wait=30s"));
    gateway.send(&ask("k", "")).await.expect(200);
    assert!(!long.is_finished());
    let path = format!("/idempotency/keys/{}/resolve", gateway.id("k").await);
    let word = json!({ "outcome": "failed_retryable", "reason": "seen to", "force": true });
    gateway.admin_post(&path, &word).await.expect(200);
    let long = within("the long question", long).await.unwrap();
    assert_eq!(long.expect(200).json()["state"], "failed_retryable");
}

/// Goal: the key is one percent-encoded segment.
///
/// Method: a key with a slash, a percent sign, a question mark and a quote.
/// Evidence: 200 for its encoded form, 404 for the raw slash.
#[tokio::test]
async fn the_key_is_one_encoded_segment() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let key = "a/b%2F?c\"d";
    gateway.send(&Request::pay(key)).await.expect(201);
    assert_eq!(
        gateway.send(&ask(key, "")).await.expect(200).json()["state"],
        "completed"
    );
    gateway
        .send(&Request::get("/.onlyonce/keys/a/b"))
        .await
        .expect(404);
    gateway.send(&ask("a", "")).await.expect(404);
    assert_eq!(
        upstream.executions(),
        1,
        "nothing under /.onlyonce reaches the upstream"
    );
}

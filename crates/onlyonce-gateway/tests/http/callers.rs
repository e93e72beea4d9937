//! Callers in the `global` scope: the same key in another hand never gets the answer.

use crate::harness::{Gateway, Request, Script, Upstream, within};

fn as_caller(header: &str, value: &str) -> Request {
    Request::pay("shared").header(header, value)
}

/// Goal: another caller with the same key and the same request gets neither answer nor execution.
///
/// Method: complete a key as one caller; come as another, as nobody, with another header.
/// Evidence: 422 without any byte of the answer; one execution; the owner still gets its replay.
#[tokio::test]
async fn another_caller_gets_422_never_the_answer() {
    let upstream = Upstream::start();
    upstream.always(
        Script::created()
            .body("the secret of alice")
            .header("Location", "/alice/1"),
    );
    let gateway = Gateway::start(&upstream, "").await;
    let owner = as_caller("Authorization", "Bearer alice");
    gateway.send(&owner).await.expect(201);
    let strangers = [
        as_caller("Authorization", "Bearer bob"),
        as_caller("X-Api-Key", "Bearer alice"),
        as_caller("X-Api-Key", "alice"),
        Request::pay("shared"),
        owner.clone().header("X-Api-Key", "more"),
    ];
    for stranger in strangers {
        let refused = gateway
            .send(&stranger)
            .await
            .refused(422, "idempotency_key_reused");
        assert!(!refused.everything().contains("alice"), "{refused}");
    }
    let replay = gateway.send(&owner).await.expect(201);
    assert_eq!(replay.text(), "the secret of alice");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: the binding holds in every state.
///
/// Method: a stranger while the owner's request is held, after its 500, and after a hang-up.
/// Evidence: 422 at once each time; the owner's own executions alone.
#[tokio::test]
async fn the_binding_holds_in_every_state() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let request = |key: &str, who: &str| Request::pay(key).header("Authorization", who);

    upstream.next(Script::created().held());
    let owner = gateway.send_later(&request("held", "alice"));
    upstream.begun(1).await;
    gateway
        .send(&request("held", "bob"))
        .await
        .refused(422, "idempotency_key_reused");
    upstream.release();
    within("the owner's answer", owner)
        .await
        .unwrap()
        .expect(201);

    upstream.next(Script::reply(500));
    gateway.send(&request("failed", "alice")).await.expect(500);
    gateway
        .send(&request("failed", "bob"))
        .await
        .refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 2);

    upstream.next(Script::hang_up());
    gateway.send(&request("unknown", "alice")).await.expect(502);
    gateway
        .send(&request("unknown", "bob"))
        .await
        .refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 3);
}

/// Goal: what tells callers apart is configurable.
///
/// Method: `credential_headers: [X-Tenant]`; Authorization changes, then the tenant.
/// Evidence: replay, then 422; one execution.
#[tokio::test]
async fn credential_headers_are_configurable() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "credential_headers: [X-Tenant]").await;
    let tenant = |name: &str| as_caller("X-Tenant", name);
    gateway
        .send(&tenant("a").header("Authorization", "old"))
        .await
        .expect(201);
    gateway
        .send(&tenant("a").header("Authorization", "renewed"))
        .await
        .expect(201);
    gateway
        .send(&tenant("b").header("Authorization", "old"))
        .await
        .refused(422, "idempotency_key_reused");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: asking about a key answers its own caller alone.
///
/// Method: `GET /.onlyonce/keys/{key}` as the owner and as strangers.
/// Evidence: 200, and 404 as for a key that never was.
#[tokio::test]
async fn asking_is_bound_to_the_caller() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway
        .send(&as_caller("Authorization", "Bearer alice"))
        .await
        .expect(201);
    let ask = |key: &str| Request::get(&format!("/.onlyonce/keys/{key}"));
    let owner = ask("shared").header("Authorization", "Bearer alice");
    assert_eq!(
        gateway.send(&owner).await.expect(200).json()["state"],
        "completed"
    );
    let stranger = ask("shared").header("Authorization", "Bearer bob");
    let refused = gateway.send(&stranger).await.expect(404);
    let never = ask("never").header("Authorization", "Bearer bob");
    assert_eq!(refused.body, gateway.send(&never).await.expect(404).body);
    gateway.send(&ask("shared")).await.expect(404);
    assert_eq!(upstream.executions(), 1);
}

/// Goal: credentials reach the upstream unchanged.
///
/// Method: both credential headers.
/// Evidence: what the upstream recorded.
#[tokio::test]
async fn credentials_are_forwarded() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway
        .send(&as_caller("Authorization", "Bearer a.b.c").header("X-Api-Key", "sk_1"))
        .await;
    let seen = upstream.last();
    assert_eq!(seen.headers.all("authorization"), ["Bearer a.b.c"]);
    assert_eq!(seen.headers.all("x-api-key"), ["sk_1"]);
}

//! What a provider tells of its own accord: believed by its signature, once, and about the attempt that
//! it is about.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::harness::{
    Gateway, Request, Response, Script, Setup, Upstream, eventually, ms, process::Exit,
    script::Step,
};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

pub(crate) fn setup(scheme: &str) -> Setup {
    setup_with(scheme, "upstream_max_execution: 5m, ")
}

fn setup_with(scheme: &str, bound: &str) -> Setup {
    let secret = match scheme {
        "stripe" => "whsec_stripe".to_owned(),
        _ => format!("whsec_{}", STANDARD.encode(SECRET)),
    };
    Setup::with("lease: 1s, timeout: 20s")
        .workers("sweep_every: 200ms, reap_every: 60s, reconcile_every: 100ms")
        .env("PSP_WEBHOOK_SECRET", &secret)
        .clients(&["acme", "other"])
        .route(&format!(
            "idempotency: {{ reconcile: {{ {bound}after: 1h, webhook: {{ scheme: {scheme}, secret_env: \
             PSP_WEBHOOK_SECRET, key: /data/key, client: /data/client, at: /timestamp, outcomes: [ \
             {{ when: {{ pointer: /type, in: [payment.succeeded] }}, complete: {{ status: 201, body: \
             /data }} }}, {{ when: {{ pointer: /type, in: [payment.rejected] }}, not_executed: true }} \
             ] }} }} }}"
        ))
}

pub(crate) fn now() -> i64 {
    onlyonce_store::clock::StoreClock::system().now().0 / 1_000
}

pub(crate) fn event(kind: &str, key: &str, at: i64) -> String {
    json!({ "id": format!("evt-{kind}-{key}"), "type": kind, "timestamp": at,
        "data": { "key": key, "client": "acme", "amount": 1000 } })
    .to_string()
}

/// A Standard Webhooks request, signed at `at` with `secret`.
fn signed(id: &str, body: &str, at: i64, secret: &[u8]) -> Request {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("{id}.{at}.{body}").as_bytes());
    Request::post("/.onlyonce/reconcile/r")
        .header("webhook-id", id)
        .header("webhook-timestamp", at.to_string())
        .header("webhook-signature", format!("v1,{}", STANDARD.encode(tag)))
        .json(body)
}

fn pay(key: &str) -> Request {
    Request::pay(key).of_client("acme")
}

pub(crate) async fn tell(gateway: &Gateway, id: &str, body: &str) -> Response {
    gateway.send(&signed(id, body, now(), SECRET)).await
}

/// A key whose answer was lost.
pub(crate) async fn lost(gateway: &Gateway, upstream: &Upstream, key: &str) {
    upstream.next(Script::hang_up());
    gateway.send(&pay(key)).await.expect(502);
}

async fn rows(gateway: &Gateway, key: &str, event: &str) -> usize {
    let record = gateway.full_record(key).await;
    let history: &Vec<Value> = record["history"].as_array().unwrap();
    history.iter().filter(|line| line["event"] == event).count()
}

/// Goal: only the provider's own words count, and each of them once.
///
/// Method: forged by another secret, stale, altered by one space, then 100 times at once; another
/// client's key and a key that does not exist.
/// Evidence: 401, 401, 401 and no change; then one change among a hundred answers, which are all the
/// same, and the same as those about keys that are not there.
#[tokio::test]
async fn forged_stale_altered_and_replayed() {
    let upstream = Upstream::start();
    let gateway = setup("standard").start(&upstream).await;
    lost(&gateway, &upstream, "k").await;
    let body = event("payment.succeeded", "k", now());
    let forged = signed("e1", &body, now(), b"another secret of no account");
    gateway.send(&forged).await.refused(401, "unauthenticated");
    let stale = signed("e1", &body, now() - 301, SECRET);
    gateway.send(&stale).await.refused(401, "unauthenticated");
    let altered = signed("e1", &body, now(), SECRET).json(&body.replacen(':', ": ", 1));
    gateway.send(&altered).await.refused(401, "unauthenticated");
    gateway
        .send(&Request::post("/.onlyonce/reconcile/r").json(&body))
        .await
        .refused(401, "unauthenticated");
    assert_eq!(gateway.state("k").await, "unknown");

    let good = signed("e1", &body, now(), SECRET);
    let running = gateway.send_many(100, &good);
    for answer in running {
        assert_eq!(
            answer.await.unwrap().expect(200).text(),
            r#"{"received":true}"#
        );
    }
    assert_eq!(gateway.state("k").await, "completed");
    assert_eq!(rows(&gateway, "k", "webhook_taken").await, 1);
    assert_eq!(rows(&gateway, "k", "reconciled").await, 1);
    let replay = gateway.send(&pay("k")).await.expect(201);
    assert_eq!(
        replay.text(),
        r#"{"key":"k","client":"acme","amount":1000}"#
    );
    assert_eq!(upstream.executions_of("k"), 1);

    let absent = event("payment.succeeded", "nobody", now());
    let absent = tell(&gateway, "e2", &absent).await.expect(200);
    let known = gateway.send(&good).await.expect(200);
    assert_eq!(absent.body, known.body);
    gateway
        .send(&Request::post("/.onlyonce/reconcile/nowhere").json("{}"))
        .await
        .refused(404, "no_route");
}

/// Goal: without a bound on how long the upstream goes on, nobody's denial releases a key.
///
/// Method: a denial by webhook on a route without `upstream_max_execution`.
/// Evidence: still unknown, a dead letter that says why; a retry executes nothing.
#[tokio::test]
async fn a_denial_without_a_bound_is_a_dead_letter() {
    let upstream = Upstream::start();
    let gateway = setup_with("standard", "").start(&upstream).await;
    lost(&gateway, &upstream, "k").await;
    let body = event("payment.rejected", "k", now());
    tell(&gateway, "e1", &body).await.expect(200);
    assert_eq!(gateway.state("k").await, "unknown");
    assert_eq!(rows(&gateway, "k", "dead_lettered").await, 1);
    let record = gateway.full_record("k").await.to_string();
    assert!(
        record.contains("without upstream_max_execution"),
        "{record}"
    );
    let retry = gateway.send(&pay("k")).await;
    retry.refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions_of("k"), 1);
}

/// Goal: when it happened is what the event says, wherever its clock stands.
///
/// Method: events about lost answers whose time is written at an offset and in small letters, and one
/// whose offset puts it hours before the attempt.
/// Evidence: settled; a dead letter.
#[tokio::test]
async fn times_with_an_offset() {
    let upstream = Upstream::start();
    let gateway = setup("standard").start(&upstream).await;
    for (key, hours, zone) in [
        ("east", 2, "+02:00"),
        ("west", -6, "-06:00"),
        ("small", 0, "z"),
    ] {
        lost(&gateway, &upstream, key).await;
        let local = std::time::Duration::from_secs((now() + 1 + hours * 3_600).unsigned_abs());
        let time = humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + local).to_string();
        let time = time.to_ascii_lowercase().replace('z', zone);
        let body = event("payment.succeeded", key, 0).replace(":0,", &format!(":\"{time}\","));
        tell(&gateway, key, &body).await.expect(200);
        assert_eq!(gateway.state(key).await, "completed", "{body}");
    }
    lost(&gateway, &upstream, "early").await;
    let local = std::time::Duration::from_secs(now().unsigned_abs());
    let time = humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + local).to_string();
    let time = time.replace('Z', "+06:00");
    let body = event("payment.succeeded", "early", 0).replace(":0,", &format!(":\"{time}\","));
    tell(&gateway, "early", &body).await.expect(200);
    assert_eq!(gateway.state("early").await, "unknown", "{body}");
    gateway.until_dead_letter("early").await;
}

/// Goal: the scheme of Stripe, byte for byte.
///
/// Method: a `Stripe-Signature` over the body; then the same event again.
/// Evidence: one change.
#[tokio::test]
async fn stripes_signature() {
    let upstream = Upstream::start();
    let gateway = setup("stripe").start(&upstream).await;
    lost(&gateway, &upstream, "k").await;
    let body = event("payment.succeeded", "k", now());
    let at = now();
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"whsec_stripe");
    let tag = hmac::sign(&key, format!("{at}.{body}").as_bytes());
    let hex: String = tag
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let request = Request::post("/.onlyonce/reconcile/r")
        .header("Stripe-Signature", format!("t={at},v1={hex}"))
        .json(&body);
    for _ in 0..3 {
        gateway.send(&request).await.expect(200);
    }
    assert_eq!(gateway.state("k").await, "completed");
    assert_eq!(rows(&gateway, "k", "webhook_taken").await, 1);
    gateway.send(&pay("k")).await.expect(201);
    assert_eq!(upstream.executions_of("k"), 1);
}

/// Goal: a denial by webhook is one look, no more.
///
/// Method: a lost answer; the same denial three times, then further ones until the key is released.
/// Evidence: the history's own times: not before lease + `upstream_max_execution` + `negative_gap`, and
/// two looks that count, `negative_gap` apart; retries before that execute nothing.
#[tokio::test]
async fn a_denial_is_one_look() {
    let upstream = Upstream::start();
    let bounds = "upstream_max_execution: 300ms, negative_gap: 700ms, ";
    let gateway = setup_with("standard", bounds).start(&upstream).await;
    lost(&gateway, &upstream, "k").await;
    let denial = event("payment.rejected", "k", now());
    for _ in 0..3 {
        tell(&gateway, "same", &denial).await.expect(200);
    }
    assert_eq!(rows(&gateway, "k", "webhook_taken").await, 1);
    let mut number = 0;
    eventually("the release", async || {
        number += 1;
        let retry = pay("k").header("Prefer", "wait=0");
        let is_released = gateway.state("k").await == "failed_retryable";
        if !is_released {
            let before = upstream.executions_of("k");
            assert_eq!(before, 1);
            let denial = event("payment.rejected", "k", now());
            tell(&gateway, &format!("e{number}"), &denial)
                .await
                .expect(200);
        } else {
            gateway.send(&retry).await.expect(201);
        }
        is_released.then_some(())
    })
    .await;
    assert_eq!(upstream.executions_of("k"), 2);
    let record = gateway.full_record("k").await;
    let history = record["history"].as_array().unwrap();
    let at = |wanted: &dyn Fn(&Value) -> bool| {
        let line = history.iter().find(|line| wanted(line)).unwrap();
        humantime::parse_rfc3339(line["at"].as_str().unwrap()).unwrap()
    };
    let unknown = at(&|line| line["event"] == "became_unknown");
    let counted = at(&|line| line["detail"] == "not found; to be asked once more");
    let released = at(&|line| line["event"] == "reconciled");
    assert!(counted.duration_since(unknown).unwrap() >= ms(1_300));
    assert!(released.duration_since(counted).unwrap() >= ms(700));
}

/// Goal: what comes before the response is kept, and used only if nobody sees the response.
///
/// Method: the event comes while the upstream holds. Once the upstream answers; once the gateway is
/// killed.
/// Evidence: the upstream's own answer in the first case, the provider's in the second.
#[tokio::test]
async fn an_event_before_the_response_is_kept() {
    let upstream = Upstream::start();
    let mut gateway = setup("standard").start(&upstream).await;
    upstream.always(Script::created().held());
    let answer = gateway.send_later(&pay("answered"));
    upstream.begun(1).await;
    let body = event("payment.succeeded", "answered", now());
    tell(&gateway, "e1", &body).await.expect(200);
    assert_eq!(gateway.state("answered").await, "in_progress");
    assert_eq!(rows(&gateway, "answered", "evidence_kept").await, 1);
    upstream.release();
    assert_eq!(
        answer.await.unwrap().expect(201).text(),
        r#"{"execution":1}"#
    );

    let addr = gateway.data();
    let lost = pay("lost");
    let lost = tokio::spawn(async move { crate::harness::client::send(addr, &lost).await });
    upstream.begun(2).await;
    let body = event("payment.succeeded", "lost", now());
    tell(&gateway, "e2", &body).await.expect(200);
    gateway.kill9().await;
    assert!(lost.await.unwrap().is_err());
    gateway.restart().await;
    gateway.until_state("lost", "completed").await;
    let replay = gateway.send(&pay("lost")).await.expect(201);
    assert_eq!(replay.json()["amount"], 1000);
    assert_eq!(upstream.executions_of("lost"), 1);
}

/// Goal: a word about an earlier attempt settles nothing, and a provider that contradicts itself
/// proves nothing: a person is told.
///
/// Method: an event from before the current dispatch; two events that contradict each other while the
/// execution runs and is then lost.
/// Evidence: two dead letters, no execution.
#[tokio::test]
async fn earlier_attempts_and_contradictions_are_dead_letters() {
    let upstream = Upstream::start();
    let gateway = setup("standard").start(&upstream).await;
    lost(&gateway, &upstream, "late").await;
    let body = event("payment.rejected", "late", now() - 60);
    tell(&gateway, "e1", &body).await.expect(200);
    assert_eq!(gateway.state("late").await, "unknown", "it was released");
    let letter = gateway.until_dead_letter("late").await;
    assert_eq!(
        letter["reason"],
        "the provider's word is about an earlier attempt"
    );
    assert_eq!(gateway.state("late").await, "unknown");

    upstream.next(Script::steps(vec![Step::Hold, Step::Close]));
    let torn = gateway.send_later(&pay("torn"));
    upstream.begun(2).await;
    for (id, kind) in [("e2", "payment.rejected"), ("e3", "payment.succeeded")] {
        tell(&gateway, id, &event(kind, "torn", now()))
            .await
            .expect(200);
    }
    upstream.release();
    torn.await.unwrap().expect(502);
    let letter = gateway.until_dead_letter("torn").await;
    assert_eq!(letter["reason"], "the provider contradicts itself");
    tell(&gateway, "e4", &event("payment.succeeded", "torn", now()))
        .await
        .expect(200);
    assert_eq!(gateway.state("torn").await, "unknown");
    gateway
        .send(&pay("torn"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions_of("torn"), 1);
}

/// Goal: what an operator has decided stands, and they are told if the provider says otherwise.
///
/// Method: an operator releases a key; the provider says that it took effect.
/// Evidence: the state stays; the history and the metric say `release_was_wrong`, once.
#[tokio::test]
async fn an_operators_word_stands() {
    let upstream = Upstream::start();
    let gateway = setup("standard").start(&upstream).await;
    lost(&gateway, &upstream, "k").await;
    let id = gateway.id("k").await;
    let path = format!("/idempotency/keys/{id}/resolve");
    let wish =
        json!({ "outcome": "failed_retryable", "reason": "not in their books", "force": true });
    gateway.admin_post(&path, &wish).await.expect(200);
    let body = event("payment.succeeded", "k", now());
    for _ in 0..3 {
        tell(&gateway, "e1", &body).await.expect(200);
    }
    assert_eq!(gateway.state("k").await, "failed_retryable");
    assert_eq!(rows(&gateway, "k", "release_was_wrong").await, 1);
    assert_eq!(
        gateway.metric("onlyonce_release_was_wrong_total").await,
        Some(1.0)
    );
    // An empty label is no label: with one, this would be a second sample of the same series.
    let metrics = gateway.admin(Request::get("/metrics")).await.text();
    let sample = "onlyonce_release_was_wrong_total{route=\"r\"} 1";
    assert!(metrics.lines().any(|line| line == sample), "{metrics}");
    gateway.says("release_was_wrong").await;
}

/// Goal: a name that no database can hold is nobody's, and is not a fault of the store.
///
/// Method: on PostgreSQL, whose texts hold no NUL: filters, dead letters, a reason and a signed event
/// with one.
/// Evidence: empty pages, 400 for the reason, 200 for the event; the key is as it was.
#[tokio::test]
async fn a_name_with_a_nul_is_nobodys() {
    let upstream = Upstream::start();
    let secret = format!("whsec_{}", STANDARD.encode(SECRET));
    let gateway = Setup::with("")
        .store(&crate::postgres::database())
        .env("PSP_WEBHOOK_SECRET", &secret)
        .clients(&["acme"])
        .route(
            "idempotency: { reconcile: { after: 1h, provider_keys_unique: true, webhook: { \
             secret_env: PSP_WEBHOOK_SECRET, key: /data/key, at: /timestamp, outcomes: [{ when: { \
             pointer: /type, in: [payment.succeeded] }, complete: { status: 201, body: /data } }] } } }",
        )
        .start(&upstream)
        .await;
    lost(&gateway, &upstream, "k").await;
    for path in [
        "/idempotency/keys?key=a%00b",
        "/idempotency/keys?route=%00",
        "/idempotency/keys?client=%00",
        "/dead-letters?route=%00",
        "/dead-letters?client=%00",
        "/outbox?target=%00",
    ] {
        let page = gateway.admin(Request::get(path)).await.expect(200).json();
        let lists = page.as_object().unwrap().values();
        let mut lists = lists.filter_map(Value::as_array);
        assert!(lists.all(Vec::is_empty), "{path}: {page}");
    }
    let many =
        json!({ "filter": { "route": "\u{0}" }, "outcome": "failed_retryable", "reason": "x" });
    let many = gateway.admin_post("/dead-letters/resolve", &many).await;
    assert_eq!(many.expect(200).json()["matched"], json!([]));
    let path = format!("/idempotency/keys/{}", gateway.id("k").await);
    let wish = json!({ "outcome": "failed_retryable", "reason": "a\u{0}b" });
    let resolve = format!("{path}/resolve");
    gateway.admin_post(&resolve, &wish).await.expect(400);
    let forget = Request::new("DELETE", &format!("{path}?reason=%00"));
    gateway.admin(forget).await.expect(400);
    let body = event("payment.succeeded", "a\u{0}b", now());
    tell(&gateway, "e1", &body).await.expect(200);
    assert_eq!(gateway.state("k").await, "unknown");
    let body = event("payment.succeeded", "k", now());
    tell(&gateway, "e2", &body).await.expect(200);
    assert_eq!(gateway.state("k").await, "completed");
}

/// Goal: a gateway that could not tell the provider from anybody does not start.
///
/// Method: the variable with the secret is not set.
/// Evidence: it ends, and names the variable.
#[tokio::test]
async fn without_a_secret_nothing_starts() {
    let folder = std::sync::Arc::new(tempfile::TempDir::new().unwrap());
    let bare = setup("standard").env("PSP_WEBHOOK_SECRET", "");
    let Err(Exit { logs, .. }) = bare.start_in(folder, "http://127.0.0.1:1").await else {
        panic!("it started")
    };
    assert!(logs.contains("PSP_WEBHOOK_SECRET"), "{logs}");
}

/// Goal: a route in which each client has keys of its own says whose key a word is about.
///
/// Method: `other` has the same key, unknown as well; the event names `acme`.
/// Evidence: only acme's key is settled.
#[tokio::test]
async fn a_word_about_one_client_is_not_about_another() {
    let upstream = Upstream::start();
    let gateway = setup("standard").start(&upstream).await;
    upstream.always(Script::hang_up());
    gateway.send(&pay("k")).await.expect(502);
    gateway
        .send(&Request::pay("k").of_client("other"))
        .await
        .expect(502);
    tell(&gateway, "e1", &event("payment.succeeded", "k", now()))
        .await
        .expect(200);
    let page = eventually("both records", async || {
        let page = gateway
            .admin(Request::get("/idempotency/keys?key=k"))
            .await
            .expect(200)
            .json();
        (page["keys"].as_array().unwrap().len() == 2).then_some(page)
    })
    .await;
    for record in page["keys"].as_array().unwrap() {
        let expected = match record["scope"].as_str().unwrap() {
            "client:acme" => "completed",
            _ => "unknown",
        };
        assert_eq!(record["state"], expected);
    }
}

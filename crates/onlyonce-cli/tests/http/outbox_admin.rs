//! Messages in the admin API: who may see and change what, and dead letters of both kinds.

use serde_json::{Value, json};

use crate::{
    harness::{Request, Script, Setup, Upstream, client, process::TOKEN},
    outbox::{Place, outbox},
};

fn ids(page: &Value, list: &str) -> Vec<String> {
    let items = page[list].as_array().unwrap().iter();
    items
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Goal: what waits for a person is found and decided upon by whoever may, and by nobody else.
///
/// Method: dead letters of keys and of messages; pages of one; retry and discard of what is dead, delivered
/// and absent, with and without a reason, with every token.
/// Evidence: statuses and bodies; the receiver's own count.
#[tokio::test(flavor = "multi_thread")]
async fn messages_in_the_admin_api() {
    let place = Place::new().await;
    let (receiver, upstream) = (Upstream::start(), Upstream::start());
    for key in ["dead-1", "dead-2"] {
        receiver.always_for(key, Script::reply(422));
    }
    let targets = format!(
        "outbox: {{ targets: [{{ name: t, url: \"{}\" }}] }}",
        receiver.url()
    );
    let reconcile = format!(
        "reconcile: {{ query: {{ url: \"{}/q?key={{key}}\" }}, after: 10ms, attempts: 1, \
         outcomes: [{{ when: {{ status: [299] }}, complete: {{ status: 200 }} }}] }}",
        receiver.url()
    );
    let gateway = Setup::with(&reconcile)
        .store(&place.url)
        .top(&targets)
        .workers("reconcile_every: 100ms, deliver_every: 100ms")
        .admin("readonly_token_env: LOOK")
        .env("LOOK", "just-looking")
        .start(&upstream)
        .await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    let first = place.enqueue("t", "dead-1");
    place.until_state("dead-1", "dead").await;
    let second = place.enqueue("t", "dead-2");
    place.until_state("dead-2", "dead").await;
    let fine = place.enqueue("t", "fine");
    place.until_state("fine", "delivered").await;
    assert_eq!(receiver.executions_of("dead-1"), 1, "a refusal is final");

    let get = async |path: &str| gateway.admin(Request::get(path)).await;
    let lost = gateway.id("lost").await;
    let letters = crate::harness::eventually("three letters", async || {
        let page = get("/dead-letters").await.expect(200).json();
        (ids(&page, "dead_letters").len() == 3).then_some(page)
    })
    .await;
    assert_eq!(
        ids(&letters, "dead_letters"),
        [lost, second.clone(), first.clone()]
    );
    let kinds = letters["dead_letters"].as_array().unwrap().iter();
    let kinds: Vec<&str> = kinds.map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reconcile", "outbox", "outbox"]);
    let mut walked = Vec::new();
    let mut next = String::new();
    for _ in 0..4 {
        let page = get(&format!("/dead-letters?limit=1&cursor={next}")).await;
        let page = page.expect(200).json();
        walked.extend(ids(&page, "dead_letters"));
        match page["next"].as_str() {
            Some(more) => next = more.to_owned(),
            None => break,
        }
    }
    assert_eq!(walked, ids(&letters, "dead_letters"), "in pages of one");
    for (query, count) in [
        ("kind=reconcile", 1),
        ("kind=outbox", 2),
        ("route=t", 2),
        ("route=x", 0),
    ] {
        let page = get(&format!("/dead-letters?{query}"))
            .await
            .expect(200)
            .json();
        assert_eq!(ids(&page, "dead_letters").len(), count, "{query}");
    }

    let page = get("/outbox?limit=2").await.expect(200).json();
    assert_eq!(
        ids(&page, "messages"),
        [fine.clone(), second.clone()],
        "{page}"
    );
    let rest = page["next"].as_str().unwrap();
    let page = get(&format!("/outbox?limit=2&cursor={rest}"))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (ids(&page, "messages"), &page["next"]),
        (vec![first.clone()], &Value::Null)
    );
    let page = get("/outbox?state=delivered&target=t")
        .await
        .expect(200)
        .json();
    assert_eq!(ids(&page, "messages"), [fine.as_str()]);
    let message = &page["messages"][0];
    assert_eq!(
        (
            message["type"].as_str(),
            message["attempts"].as_u64(),
            message["bytes"].as_u64()
        ),
        (Some("order.paid"), Some(1), Some(13)),
        "{message}"
    );
    get("/outbox?state=gone").await.expect(400);
    get("/outbox/0123").await.expect(404);

    let post = async |path: String, body: Value| gateway.admin_post(&path, &body).await.status;
    let reason = json!({ "reason": "because" });
    let absent = "0".repeat(32);
    for (id, verb, body, expected) in [
        (&fine, "retry", &reason, 409),
        (&fine, "discard", &reason, 409),
        (&absent, "retry", &reason, 404),
        (&first, "discard", &json!({}), 400),
        (&first, "discard", &json!({ "reason": " " }), 400),
        (&first, "retry", &json!({ "why": "typo" }), 400),
    ] {
        let status = post(format!("/outbox/{id}/{verb}"), body.clone()).await;
        assert_eq!(status, expected, "{verb} {body}");
    }
    for (token, expected) in [("just-looking", 403), ("wrong", 401)] {
        let request = Request::post(&format!("/outbox/{first}/retry"));
        let request = request.header("Authorization", format!("Bearer {token}"));
        let answer = client::send(gateway.admin_addr(), &request).await.unwrap();
        assert_eq!(answer.status, expected, "{token}");
    }
    assert_eq!(
        (place.state("dead-1"), place.state("dead-2")),
        ("dead".into(), "dead".into())
    );
    assert_eq!(receiver.executions_of("dead-1"), 1);
    let status = post(format!("/outbox/{first}/discard"), reason.clone()).await;
    assert_eq!((status, place.state("dead-1")), (200, "discarded".into()));
    receiver.always_for("dead-2", Script::created());
    let request = Request::post(&format!("/outbox/{second}/retry"));
    let request = request.header("Authorization", format!("Bearer {TOKEN}"));
    client::send(gateway.admin_addr(), &request)
        .await
        .unwrap()
        .expect(200);
    place.until_state("dead-2", "delivered").await;
    assert_eq!(receiver.executions_of("dead-2"), 2);
}

/// Goal: the command says by its exit code whether it did what it was asked.
///
/// Method: questions that make no sense, and messages that are not there, some beside one that is.
/// Evidence: exit codes 2 and 1, and a reason on standard error.
#[tokio::test(flavor = "multi_thread")]
async fn exit_codes() {
    let place = Place::new().await;
    let store = ["--store", place.url.as_str()];
    for wrong in [
        &["retry"][..],
        &["discard", "x"],
        &["list", "--state", "gone"],
        &["list", "--limit", "0"],
    ] {
        let (code, _, err) = outbox(&[wrong, &store].concat()).await;
        assert_eq!(code, 2, "{wrong:?}: {err}");
        assert!(!err.is_empty());
    }
    let (code, _, err) = outbox(&["list", "--store", "memory:"]).await;
    assert_eq!(code, 2, "{err}");
    let (code, out, _) = outbox(&[&["list"][..], &store].concat()).await;
    assert_eq!((code, out.as_str()), (0, "no messages\n"));
    let id = place.enqueue("nobody", "k");
    place.sql("UPDATE onlyonce.outbox SET state = 'dead'");
    let absent = "0".repeat(32);
    let both = ["retry", absent.as_str(), id.as_str(), "--json"];
    let (code, out, err) = outbox(&[&both[..], &store].concat()).await;
    assert!(code == 1 && err.contains("404"), "{err}");
    let said: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(ids(&said, "messages"), [id]);
    assert_eq!(place.state("k"), "pending", "what could be done was done");
}

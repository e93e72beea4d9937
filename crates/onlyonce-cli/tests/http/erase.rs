//! `erase`: a person's data goes, and no charge comes back.

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};
use serde_json::{Value, json};

use crate::{
    harness::{Gateway, Request, Script, Setup, Upstream, eventually},
    keys_cli,
};

/// What must be nowhere afterwards: the key and its path are the person's address, the answer their name.
const PERSON: &str = "ada.lovelace.1815";

fn request(state: &str) -> Request {
    Request::post(&format!("/payments/{PERSON}"))
        .key(format!("{PERSON}.{state}"))
        .json(r#"{"amount":1000}"#)
}

async fn get(gateway: &Gateway, path: &str) -> Value {
    gateway.admin(Request::get(path)).await.json()
}

async fn id_of(gateway: &Gateway, state: &str) -> String {
    let page = get(gateway, &format!("/idempotency/keys?key={PERSON}.{state}")).await;
    page["keys"][0]["id"]
        .as_str()
        .expect("the key is listed")
        .to_owned()
}

async fn erase(gateway: &Gateway, id: &str) -> Value {
    let path = format!("/idempotency/keys/{id}/erase");
    let answer = gateway
        .admin_post(&path, &json!({ "reason": "a request" }))
        .await;
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

/// Goal: in every state, erasing removes the person and keeps the promise.
///
/// Method: keys that are completed, in progress, unknown and released; each is erased and tried again.
/// Evidence: the upstream's own count; states; nothing personal in what the admin API shows.
async fn in_every_state(store: Option<&str>) {
    let upstream = Upstream::start();
    let mut setup = Setup::with("lease: 1s");
    if let Some(url) = store {
        setup = setup.store(url);
    }
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::created().header("X-Name", PERSON));
    gateway.send(&request("completed")).await.expect(201);
    upstream.next(Script::hang_up());
    gateway.send(&request("unknown")).await.expect(502);
    upstream.next(Script::reply(503));
    gateway.send(&request("released")).await.expect(503);
    upstream.next(Script::created().held());
    let running = gateway.send_later(&request("running"));
    upstream.begun(4).await;

    let mut ids = Vec::new();
    for state in ["completed", "unknown", "released", "running"] {
        let id = id_of(&gateway, state).await;
        let before = get(&gateway, &format!("/idempotency/keys/{id}")).await;
        let after = erase(&gateway, &id).await;
        assert_eq!(after["state"], before["state"]);
        assert_eq!((&after["key"], &after["path"]), (&json!(""), &json!("")));
        assert_eq!(after["erased"], true);
        // Twice is once.
        assert_eq!(erase(&gateway, &id).await["revision"], after["revision"]);
        assert_eq!(
            id_of(&gateway, state).await,
            id,
            "whoever has the key finds it"
        );
        let lines = get(&gateway, &format!("/audit?key={PERSON}.{state}")).await;
        assert_eq!(lines["audit"][0]["event"], "erased", "{lines}");
        ids.push(id);
    }
    upstream.release();
    running.await.unwrap().expect(201);
    eventually("the running one to end", async || {
        let shown = get(&gateway, &format!("/idempotency/keys/{}", ids[3])).await;
        (shown["state"] == "completed").then_some(())
    })
    .await;

    for state in ["completed", "running"] {
        let retry = gateway.send(&request(state)).await;
        let body = retry.refused(409, "idempotency_response_not_stored");
        assert!(
            body.text().contains("erased or not kept"),
            "{}",
            body.text()
        );
        assert!(!body.text().contains(PERSON), "{body}");
        let other = request(state).json(r#"{"amount":2000}"#);
        gateway
            .send(&other)
            .await
            .refused(422, "idempotency_key_reused");
    }
    let retry = gateway.send(&request("unknown")).await;
    retry.refused(409, "idempotency_outcome_unknown");
    let letters = get(&gateway, "/dead-letters").await;
    assert_eq!(
        letters["dead_letters"][0]["key_id"],
        json!(ids[1]),
        "{letters}"
    );
    assert_eq!(upstream.executions(), 4, "nothing was executed again");
    // What is proven to have left nothing behind executes again, and stays erased.
    gateway.send(&request("released")).await.expect(201);
    assert_eq!(upstream.executions(), 5);
    let retry = gateway.send(&request("released")).await;
    retry.refused(409, "idempotency_response_not_stored");

    for path in ["/idempotency/keys", "/audit", "/dead-letters"] {
        let shown = get(&gateway, path).await;
        assert!(!shown.to_string().contains("ada."), "{path}: {shown}");
    }
    let audit = get(&gateway, "/audit").await;
    let rows = audit["audit"].as_array().expect("an audit");
    let erased = rows.iter().filter(|row| row["event"] == "erased").count();
    assert_eq!(erased, 4, "one row each, and none for a second time");
}

#[tokio::test]
async fn sqlite() {
    in_every_state(None).await;
}

#[tokio::test]
async fn memory() {
    in_every_state(Some("memory:")).await;
}

#[tokio::test]
async fn postgres() {
    in_every_state(Some(&Postgres::start().url())).await;
}

#[tokio::test]
async fn mariadb() {
    in_every_state(Some(&MariaDb::start().url())).await;
}

#[tokio::test]
async fn redis() {
    in_every_state(Some(&Redis::start().url())).await;
}

/// Goal: a cache in front of SQL does not go on giving what was erased, and all keys of one client go at
/// once.
///
/// Method: a replay that comes from the cache; `keys erase --client`, while the cache cannot be told and once it
/// can.
/// Evidence: what the cache may still give is not said to be erased; then the next retry gets 409 at once;
/// another client's key is untouched; the upstream's count.
#[tokio::test]
async fn a_cache_and_a_client() {
    let (server, cache) = (Postgres::start(), Redis::start());
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .store(&server.url())
        .store_options(&format!("cache: \"{}\"", cache.url()))
        .top("auth: { trusted_header: { name: X-Client-Id, from: [\"127.0.0.0/8\"] } }")
        .start(&upstream)
        .await;
    let of = |client: &str| request("completed").header("X-Client-Id", client);
    for client in ["acme", "other"] {
        gateway.send(&of(client)).await.expect(201);
        gateway.send(&of(client)).await.expect(201);
    }
    let erase = ["erase", "--client", "acme", "--json"];
    cache.freeze();
    let (code, out, _) = keys_cli::ask(&gateway, &erase).await;
    assert_eq!(code, 1, "{out}");
    cache.thaw();
    let (code, out, error) = eventually("the cache to be told", async || {
        let told = keys_cli::ask(&gateway, &erase).await;
        (told.0 == 0).then_some(told)
    })
    .await;
    assert_eq!(code, 0, "{error}");
    let summary: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&summary["found"], &summary["erased"]),
        (&json!(1), &json!(1))
    );
    let retry = gateway.send(&of("acme")).await;
    retry.refused(409, "idempotency_response_not_stored");
    gateway.send(&of("other")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

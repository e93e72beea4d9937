//! `onlyonce keys`: what an operator does at a terminal, through a gateway and in a store.

use std::process::Output;

use serde_json::Value;
use tokio::process::Command;

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually,
    process::{TOKEN, binary},
    within,
};

async fn keys(args: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command
        .arg("keys")
        .args(args)
        .env("ONLYONCE_ADMIN_TOKEN", TOKEN);
    within("the command", command.output()).await.unwrap()
}

/// Runs it against a gateway; says its exit code, and what it printed.
pub(crate) async fn ask(gateway: &Gateway, args: &[&str]) -> (i32, String, String) {
    let admin = format!("http://{}", gateway.admin_addr());
    let args: Vec<&str> = args.iter().copied().chain(["--admin", &admin]).collect();
    said(keys(&args).await)
}

fn said(output: Output) -> (i32, String, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON on standard output")
}

/// Goal: an unknown key is found, looked at and settled without writing HTTP by hand.
///
/// Method: an execution whose connection breaks; list, show, resolve with an answer, retry, forget.
/// Evidence: the retry gets the operator's answer without a second execution; exit codes.
#[tokio::test]
async fn an_unknown_key_is_settled() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("broken")).await.expect(502);
    gateway.send(&Request::pay("fine")).await.expect(201);

    let (code, out, _) = ask(&gateway, &["list", "--state", "unknown"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("broken") && !out.contains("fine"), "{out}");
    let (code, out, _) = ask(&gateway, &["list", "--limit", "1", "--json"]).await;
    let page = json(&out);
    assert_eq!((code, page["keys"].as_array().unwrap().len()), (0, 1));
    let next = page["next"].as_str().unwrap();
    let (_, out, _) = ask(&gateway, &["list", "--cursor", next, "--json"]).await;
    assert_eq!(json(&out)["keys"][0]["key"], "broken");

    let id = gateway.id("broken").await;
    let (code, by_id, _) = ask(&gateway, &["show", &id]).await;
    assert_eq!(code, 0);
    assert!(
        by_id.contains("became_unknown  in_progress → unknown"),
        "{by_id}"
    );
    assert!(
        by_id.contains("later\n"),
        "the time between two lines: {by_id}"
    );
    let (_, by_key, _) = ask(&gateway, &["show", "--key", "broken"]).await;
    assert_eq!(by_id, by_key);
    let (code, _, err) = ask(&gateway, &["show", "--key", "nobody"]).await;
    assert_eq!(code, 1, "{err}");

    let resolve = [
        "resolve",
        "--key",
        "broken",
        "--outcome",
        "completed",
        "--status",
        "201",
        "--header",
        "Content-Type: application/json",
        "--body",
        "{\"by\":\"hand\"}",
        "--reason",
        "in the ledger",
        "--json",
    ];
    let (code, out, err) = ask(&gateway, &resolve).await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(json(&out)["state"], "completed");
    let retried = gateway.send(&Request::pay("broken")).await.expect(201);
    assert_eq!(retried.text(), "{\"by\":\"hand\"}");
    assert_eq!(retried.header(REPLAYED), Some("true"));
    assert_eq!(upstream.executions_of("broken"), 1);
    let (code, out, err) = ask(&gateway, &resolve).await;
    assert_eq!(
        (code, json(&out)["code"].as_str()),
        (1, Some("state_conflict"))
    );
    assert!(err.contains("completed"), "{err}");

    let (code, _, err) = ask(&gateway, &["forget", &id]).await;
    assert_eq!(code, 1, "it took effect: {err}");
    let (code, _, err) = ask(&gateway, &["forget", &id, "--force", "--reason", "a test"]).await;
    assert_eq!(code, 0, "{err}");
    gateway.send(&Request::pay("broken")).await.expect(201);
    assert_eq!(upstream.executions_of("broken"), 2);
}

/// Goal: a key that two clients use is not mixed up.
///
/// Method: the same key of two clients; show by the key alone, and with the client.
/// Evidence: a refusal that names both scopes; the one scope.
#[tokio::test]
async fn one_key_of_two_clients() {
    let upstream = Upstream::start();
    let setup = Setup::with("").clients(&["acme", "globex"]);
    let gateway = setup.start(&upstream).await;
    for client in ["acme", "globex"] {
        let request = Request::pay("shared").of_client(client);
        gateway.send(&request).await.expect(201);
    }
    let (code, _, err) = ask(&gateway, &["show", "--key", "shared"]).await;
    assert_eq!(code, 1);
    assert!(
        err.contains("client:acme") && err.contains("client:globex"),
        "{err}"
    );
    let one = ["show", "--key", "shared", "--client", "acme", "--json"];
    let (code, out, _) = ask(&gateway, &one).await;
    assert_eq!(
        (code, json(&out)["scope"].as_str()),
        (0, Some("client:acme"))
    );
}

/// Goal: a question that makes no sense, a wrong token and a missing gateway are told apart.
///
/// Method: each of them. Evidence: exit codes 2, 1 and 1, and a reason on standard error.
#[tokio::test]
async fn exit_codes() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for wrong in [
        &["show"][..],
        &["list", "--state", "done"],
        &["list", "--limit", "0"],
        &[
            "resolve",
            "x",
            "--outcome",
            "completed",
            "--reason",
            "no status",
        ],
        &["resolve", "x", "--outcome", "failed_retryable"],
        &[
            "resolve",
            "x",
            "--outcome",
            "failed_retryable",
            "--status",
            "200",
            "--reason",
            "r",
        ],
    ] {
        let (code, _, err) = ask(&gateway, wrong).await;
        assert_eq!(code, 2, "{wrong:?}: {err}");
        assert!(!err.is_empty());
    }
    let (code, _, err) = said(keys(&["list", "--admin", "ftp://127.0.0.1"]).await);
    assert_eq!(code, 2, "{err}");
    let (code, _, err) = said(keys(&["list", "--store", "memory:"]).await);
    assert_eq!(code, 2, "{err}");
    let (code, _, err) = said(keys(&["list", "--admin", "http://127.0.0.1:1"]).await);
    assert!(code == 1 && err.contains("is a gateway running"), "{err}");
    let mut stranger = Command::new(binary());
    let admin = format!("http://{}", gateway.admin_addr());
    let stranger = stranger
        .args(["keys", "list", "--admin", &admin])
        .env("ONLYONCE_ADMIN_TOKEN", "x");
    let (code, _, err) = said(within("the command", stranger.output()).await.unwrap());
    assert!(code == 1 && err.contains("401"), "{err}");
}

/// Goal: `keys show` finds a key by whatever somebody has of it; what changes a key takes no guess.
///
/// Method: three keys, of which two begin alike; show by key, beginning, id and beginning of the id; resolve
/// by the beginning of a key. Then without a token, and with a wrong one.
/// Evidence: what is shown, the exit codes, and that the key is as it was.
#[tokio::test]
async fn a_key_is_found_by_what_somebody_has_of_it() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for key in ["order-17", "order-18"] {
        gateway.send(&Request::pay(key)).await.expect(201);
    }
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("refund-5")).await.expect(502);
    let id = gateway.id("refund-5").await;
    for name in ["refund-5", "refund", &id, &id[..8]] {
        let (code, out, err) = ask(&gateway, &["show", name]).await;
        assert!(code == 0 && out.contains("refund-5"), "{name}: {out}{err}");
    }
    let (code, _, err) = ask(&gateway, &["show", "order"]).await;
    assert!(code == 1 && err.contains("order-17"), "{err}");
    assert!(err.contains("several keys"), "{err}");
    let (code, _, err) = ask(&gateway, &["show", "nothing"]).await;
    assert!(code == 1 && err.contains("no such key"), "{err}");

    let resolve = |name: &'static str| {
        let says = [
            "--outcome",
            "completed",
            "--status",
            "201",
            "--reason",
            "seen",
        ];
        [&["resolve", name][..], &says[..]].concat()
    };
    let (code, _, err) = ask(&gateway, &resolve("refund")).await;
    assert!(code == 1 && err.contains("no such key"), "{err}");
    let (code, out, err) = ask(&gateway, &resolve("refund-5")).await;
    assert!(code == 0 && out.contains("completed"), "{out}{err}");

    let admin = format!("http://{}", gateway.admin_addr());
    for (token, words) in [("", "set ONLYONCE_ADMIN_TOKEN"), ("x", "is not the one")] {
        for command in [&["keys", "list"][..], &["top", "--once"]] {
            let mut stranger = Command::new(binary());
            let stranger = stranger.args(command).args(["--admin", &admin]);
            let stranger = stranger.env("ONLYONCE_ADMIN_TOKEN", token);
            let (code, _, err) = said(within("the command", stranger.output()).await.unwrap());
            assert!(code == 1 && err.contains("401"), "{err}");
            assert!(err.contains(words), "{err}");
        }
    }
}

/// Goal: a stopped gateway's file can be looked into and settled; a running one's is left alone.
///
/// Method: `--store` while the gateway runs, after it has stopped, and on a file that is not there.
/// Evidence: a refusal that names the other way; the same record as before; the gateway started
/// again replays what was resolved; no file was made.
#[tokio::test]
async fn a_store_without_its_gateway() {
    let upstream = Upstream::start();
    let mut gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("broken")).await.expect(502);
    let before = gateway.full_record("broken").await;
    let folder = gateway.folder();
    let store = format!("sqlite:{}/onlyonce.db", folder.path().display());

    let (code, _, err) = said(keys(&["list", "--store", &store]).await);
    assert_eq!(code, 1);
    assert!(err.contains("in use") && err.contains("--admin"), "{err}");

    gateway.sigterm();
    gateway.exited().await;
    let show = ["show", "--key", "broken", "--store", &store, "--json"];
    let (code, out, err) = said(keys(&show).await);
    assert_eq!(code, 0, "{err}");
    assert_eq!(json(&out), before);
    let resolve = [
        "resolve",
        "--key",
        "broken",
        "--outcome",
        "completed",
        "--status",
        "201",
        "--body",
        "found",
        "--reason",
        "in the ledger",
        "--store",
        &store,
    ];
    let (code, _, err) = said(keys(&resolve).await);
    assert_eq!(code, 0, "{err}");
    gateway.restart().await;
    let retried = gateway.send(&Request::pay("broken")).await.expect(201);
    assert_eq!(retried.text(), "found");
    assert_eq!(upstream.executions(), 1);

    let missing = folder.path().join("missing.db");
    let store = format!("sqlite:{}", missing.display());
    let (code, _, err) = said(keys(&["list", "--store", &store]).await);
    assert!(code == 1 && err.contains("no such file"), "{err}");
    assert!(!missing.exists());
}

/// Goal: a store that gateways share can be looked into and changed beside them.
///
/// Method: list, resolve and forget with `--store` beside a running gateway on each such store, while
/// somebody waits for the key.
/// Evidence: the waiting question is answered; the retry gets the operator's answer without an
/// execution, and it is kept at least as long as the route says; a forgotten key executes again; what
/// took effect needs force.
#[tokio::test]
async fn shared_stores_beside_their_gateways() {
    for url in [
        crate::postgres::database(),
        crate::mariadb::database(),
        crate::redis::database(),
    ] {
        changed_beside_its_gateway(&url).await;
    }
}

async fn changed_beside_its_gateway(url: &str) {
    let upstream = Upstream::start();
    let gateway = Setup::with("ttl: 72h").store(url).start(&upstream).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("one")).await.expect(502);
    let (code, out, err) = said(keys(&["list", "--store", url, "--json"]).await);
    assert_eq!(code, 0, "{err}");
    assert_eq!(json(&out)["keys"][0]["key"], "one");
    let waits = gateway.send_later(&Request::get("/.onlyonce/keys/one?wait=20s"));
    let resolve = [
        "resolve",
        "--key",
        "one",
        "--outcome",
        "completed",
        "--status",
        "201",
        "--body",
        "by hand",
        "--reason",
        "in the ledger",
        "--json",
        "--store",
        url,
    ];
    let (code, out, err) = said(keys(&resolve).await);
    assert_eq!(
        (code, json(&out)["state"].as_str()),
        (0, Some("completed")),
        "{err}"
    );
    let told = within("the waiting question", waits).await.unwrap();
    assert_eq!(told.expect(200).json()["state"], "completed", "{url}");
    let kept = kept_hours(&gateway.record("one").await.unwrap());
    assert!(kept >= 72, "{url}: {kept} h");
    assert!(!url.starts_with("postgres") || kept == 72, "{kept} h");
    let retried = gateway.send(&Request::pay("one")).await.expect(201);
    assert_eq!(retried.text(), "by hand");
    assert_eq!(upstream.executions(), 1);
    let (code, ..) = said(keys(&resolve).await);
    assert_eq!(code, 1, "it is settled");

    let forget = ["forget", "--key", "one", "--store", url, "--force"];
    let (code, _, err) = said(keys(&forget[..5]).await);
    assert_eq!(code, 1, "it took effect: {err}");
    let (code, _, err) = said(keys(&forget).await);
    assert_eq!(code, 0, "{err}");
    gateway.send(&Request::pay("one")).await.expect(201);
    assert_eq!(upstream.executions(), 2, "{url}");
}

/// For how many hours the answer of a listed key is kept.
fn kept_hours(record: &Value) -> u64 {
    let time = |name: &str| humantime::parse_rfc3339(record[name].as_str().unwrap()).unwrap();
    let kept = time("expires_at").duration_since(time("completed_at"));
    kept.unwrap().as_secs() / 3_600
}

/// Goal: nothing is written in plain text into a store whose content is encrypted.
///
/// Method: resolve beside an encrypting gateway, without its keys and with them.
/// Evidence: a refusal that says why, and the key as it was; then the gateway replays the answer.
#[tokio::test]
async fn an_encrypted_store_is_changed_with_its_keys_alone() {
    use crate::at_rest::{ENV, OLD};
    let upstream = Upstream::start();
    let url = crate::postgres::database();
    let setup = Setup::with("").store(&url).env(ENV, OLD);
    let setup = setup.store_options(&format!("encryption_key_env: {ENV}"));
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("k")).await.expect(502);
    let id = gateway.id("k").await;
    let resolve = [
        "resolve",
        &id,
        "--outcome",
        "completed",
        "--status",
        "201",
        "--body",
        "by hand",
        "--reason",
        "found",
        "--store",
        &url,
        "--encryption-key-env",
        ENV,
    ];
    let (code, _, err) = said(keys(&resolve).await);
    assert!(
        code == 1 && err.contains("encrypted") && err.contains(ENV),
        "{code} {err}"
    );
    assert_eq!(gateway.state("k").await, "unknown");
    let mut command = Command::new(binary());
    let command = command.arg("keys").args(resolve).env(ENV, OLD);
    let (code, _, err) = said(within("the command", command.output()).await.unwrap());
    assert_eq!(code, 0, "{err}");
    let retried = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(retried.text(), "by hand");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: nobody takes keys that cannot be decrypted for absent.
///
/// Method: look into an encrypted store without its keys: by the command line, and through a gateway that
/// has none.
/// Evidence: exit code 1 and 503 with a reason wherever the key would be shown, and the key with the keys.
#[tokio::test]
async fn an_encrypted_store_is_not_shown_as_empty() {
    use crate::at_rest::{ENV, OLD};
    let upstream = Upstream::start();
    let url = crate::postgres::database();
    let setup = Setup::with("").store(&url).env(ENV, OLD);
    let setup = setup.store_options(&format!("encryption_key_env: {ENV}"));
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("k")).await.expect(502);
    let id = gateway.id("k").await;
    eventually("the dead letter", async || {
        let letters = gateway.admin(Request::get("/dead-letters")).await.json();
        (letters["dead_letters"][0]["key_id"] == *id).then_some(())
    })
    .await;
    for command in [
        &["list"][..],
        &["list", "--key", "k"],
        &["list", "--state", "unknown"],
        &["show", &id],
        &["show", "--key", "k"],
        &["dead-letters"],
    ] {
        let place = ["--store", &url, "--encryption-key-env", ENV];
        let all: Vec<&str> = command.iter().copied().chain(place).collect();
        let (code, out, err) = said(keys(&all).await);
        let is_told = err.contains("encrypted") && err.contains(ENV);
        assert!(
            code == 1 && is_told && out.is_empty(),
            "{command:?} {code} {out} {err}"
        );
        let mut with_keys = Command::new(binary());
        let with_keys = with_keys.arg("keys").args(all).env(ENV, OLD);
        let (code, out, _) = said(within("the command", with_keys.output()).await.unwrap());
        assert!(
            code == 0 && out.contains(&id[..8]),
            "{command:?} {code} {out}"
        );
    }
    let keyless = Setup::with("").store(&url).start(&upstream).await;
    for path in [
        "/idempotency/keys",
        "/idempotency/keys?key=k",
        "/idempotency/keys?client=acme",
        "/idempotency/keys?state=unknown",
        &format!("/idempotency/keys/{id}"),
        "/dead-letters",
        "/audit?key=k",
    ] {
        let answer = keyless.admin(Request::get(path)).await;
        let answer = answer.refused(503, "idempotency_store_unavailable");
        assert!(
            answer.text().contains("encrypted with the key"),
            "{path}\n{answer}"
        );
    }
}

/// Goal: an answer is not forgotten where a cache could go on giving it.
///
/// Method: resolve and forget beside a gateway with a cache.
/// Evidence: the first is done; the second is refused, names the other way, and changes nothing.
#[tokio::test]
async fn a_cached_answer_is_forgotten_through_a_gateway() {
    let upstream = Upstream::start();
    let (url, cache) = (crate::postgres::database(), crate::redis::database());
    let setup = Setup::with("").store(&url);
    let setup = setup.store_options(&format!("cache: \"{cache}\""));
    let gateway = setup.start(&upstream).await;
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("k")).await.expect(502);
    let resolve = [
        "resolve",
        "--key",
        "k",
        "--outcome",
        "completed",
        "--status",
        "201",
        "--body",
        "by hand",
        "--reason",
        "found",
        "--store",
        &url,
    ];
    let (code, _, err) = said(keys(&resolve).await);
    assert_eq!(code, 0, "{err}");
    let retried = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(retried.text(), "by hand");
    let forget = ["forget", "--key", "k", "--force", "--store", &url];
    let (code, _, err) = said(keys(&forget).await);
    assert!(
        code == 1 && err.contains("cache") && err.contains("--admin"),
        "{code} {err}"
    );
    assert_eq!(gateway.state("k").await, "completed");
    let (code, _, err) = ask(&gateway, &forget[..4]).await;
    assert_eq!(code, 0, "{err}");
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
}

//! What profile `payments` demands: callers that are told apart, a store that is known, card numbers that
//! do not lie in it as they are.

use std::sync::Arc;

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};
use tempfile::TempDir;

use crate::{
    harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, process::Exit},
    postgres_schema::{onlyonce, text},
};

const PAYMENTS: &str =
    "profile: payments, reconcile: operator, credential_headers: [Authorization]";
/// A number that every card network gives to testers.
const CARD: &str = "4242 4242 4242 4242";

async fn started(setup: Setup, upstream: &Upstream) -> Result<Gateway, Exit> {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    setup.start_in(folder, &upstream.url()).await
}

fn pay(key: &str) -> Request {
    Request::pay(&format!("a-payment-with-a-long-key-{key}")).header("Authorization", "Bearer ada")
}

/// Goal: money is not entrusted to a store that nobody has made: it would not know what was executed.
///
/// Method: each kind of store, empty; then made by `migrate`; then empty with `store.create: true`.
/// Evidence: refused with what to do; served.
async fn needs_a_store_that_exists(url: &str, another: &str, options: &str) {
    let upstream = Upstream::start();
    let with = |url: &str, more: &str| {
        let options = match (options, more) {
            ("", one) | (one, "") => one.to_owned(),
            (one, other) => format!("{one}, {other}"),
        };
        let setup = Setup::with(PAYMENTS).store(url);
        match options.is_empty() {
            true => setup,
            false => setup.store_options(&options),
        }
    };
    let Err(exit) = started(with(url, ""), &upstream).await else {
        panic!("{url}: payments run on a store that nobody has made");
    };
    assert!(!exit.status.success());
    assert!(exit.logs.contains("onlyonce migrate"), "{}", exit.logs);
    assert!(exit.logs.contains("store.create"), "{}", exit.logs);
    let made = onlyonce(&["migrate", "--store", url]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let gateway = started(with(url, ""), &upstream).await.expect("a store");
    gateway.send(&pay("k")).await.expect(201);
    let created = started(with(another, "create: true"), &upstream).await;
    created.expect("a new store was allowed");
}

#[tokio::test]
async fn sqlite() {
    let folder = TempDir::new().unwrap();
    let url = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    needs_a_store_that_exists(&url("a.db"), &url("b.db"), "single_node: true").await;
}

#[tokio::test]
async fn postgres() {
    let server = Postgres::start();
    needs_a_store_that_exists(&server.database("a"), &server.database("b"), "").await;
}

#[tokio::test]
async fn mariadb() {
    let server = MariaDb::start();
    needs_a_store_that_exists(&server.database("a"), &server.database("b"), "").await;
}

#[tokio::test]
async fn redis() {
    let server = Redis::start_with(&["appendonly yes", "appendfsync always"]);
    needs_a_store_that_exists(&server.database(1), &server.database(2), "").await;
}

/// Goal: `check` and `serve` say what is missing, and what to write.
///
/// Method: each demand of the profile left out.
/// Evidence: exit 1, the message, the hint.
#[tokio::test]
async fn check_says_what_to_write() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gateway.yaml");
    for (top, idempotency, says, hint) in [
        (
            "store: { url: 'sqlite:a.db', single_node: true }",
            "reconcile: operator",
            "demands that callers are told apart",
            "credential_headers: [Authorization]",
        ),
        (
            "store: { url: 'sqlite:a.db' }",
            "reconcile: operator, credential_headers: [Authorization]",
            "on an embedded store",
            "single_node: true",
        ),
        (
            "store: { url: 'sqlite:a.db', single_node: true }",
            "credential_headers: [Authorization]",
            "demands `reconcile`",
            "reconcile: operator",
        ),
    ] {
        let yaml = format!(
            "{top}\nroutes:\n  - id: r\n    path: /\n    backends: [{{ url: http://127.0.0.1:9 }}]\n    \
             idempotency: {{ enabled: true, profile: payments, {idempotency} }}\n"
        );
        std::fs::write(&file, yaml).unwrap();
        let checked = onlyonce(&["check", file.to_str().unwrap()]);
        let said = text(&checked.stderr);
        assert_eq!(checked.status.code(), Some(1), "{said}");
        assert!(said.contains(says) && said.contains(hint), "{said}");
        let served = onlyonce(&["serve", "--config", file.to_str().unwrap()]);
        assert_eq!(served.status.code(), Some(1), "{}", text(&served.stderr));
    }
}

/// Goal: a card number of an answer does not lie in the store as it is.
///
/// Method: an answer with a card number and one without, on a store with and without keys.
/// Evidence: without keys the retry is told that the answer is not stored, and the file does not hold the
/// number; with keys it is replayed. Nothing is executed twice.
#[tokio::test]
async fn card_numbers_are_encrypted_or_not_stored() {
    let upstream = Upstream::start();
    let card = format!(r#"{{"id":1,"card":"{CARD}"}}"#);
    let plain = r#"{"id":4242424242424241,"at":1700000000000000,"ratio":0.4242424242424242}"#;
    for keys in [false, true] {
        let options = match keys {
            true => {
                "create: true, single_node: true, compression: none, encryption_key_env: OO_KEYS"
            }
            false => "create: true, single_node: true, compression: none",
        };
        let setup = Setup::with(PAYMENTS).store_options(options);
        let setup = setup.env("OO_KEYS", "k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        let mut gateway = setup.start(&upstream).await;
        let before = upstream.executions();
        upstream.next(Script::created().body(&card));
        let first = gateway.send(&pay("card")).await.expect(201);
        assert_eq!(
            first.text(),
            card,
            "the first client gets the answer as it came"
        );
        let retry = gateway.send(&pay("card")).await;
        match keys {
            true => assert_eq!(retry.expect(201).text(), card),
            false => drop(retry.refused(409, "idempotency_response_not_stored")),
        }
        let place = format!("/cards/{CARD}");
        let in_headers = Script::created().body("{}").header("Location", &place);
        upstream.next(in_headers.header("X-Card", CARD));
        let first = gateway.send(&pay("in-headers")).await.expect(201);
        assert_eq!(first.header("location"), Some(&*place));
        let retry = gateway.send(&pay("in-headers")).await;
        assert_eq!(retry.status, if keys { 201 } else { 409 }, "{retry}");
        // An operator's answer is kept like an upstream's.
        upstream.next(Script::hang_up());
        gateway.send(&pay("by-hand")).await.expect(502);
        let id = gateway.id("a-payment-with-a-long-key-by-hand").await;
        let resolved = serde_json::json!({
            "outcome": "completed", "reason": "r", "response": { "status": 201, "body": card },
        });
        let path = format!("/idempotency/keys/{id}/resolve");
        gateway.admin_post(&path, &resolved).await.expect(200);
        let retry = gateway.send(&pay("by-hand")).await;
        match keys {
            true => assert_eq!(retry.expect(201).text(), card),
            false => drop(retry.refused(409, "idempotency_response_not_stored")),
        }
        upstream.next(Script::created().body(plain));
        gateway.send(&pay("plain")).await.expect(201);
        let replay = gateway.send(&pay("plain")).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"));
        assert_eq!(replay.text(), plain);
        assert_eq!(upstream.executions(), before + 4);
        gateway.sigterm();
        assert!(gateway.exited().await.success());
        let file = std::fs::read(gateway.folder().path().join("onlyonce.db")).unwrap();
        let holds = |needle: &str| {
            let needle = needle.as_bytes();
            file.windows(needle.len()).any(|window| window == needle)
        };
        assert!(!holds(CARD), "the number lies in the file");
        assert_eq!(
            holds("0.4242424242424242"),
            !keys,
            "and other answers do not hide"
        );
    }
}

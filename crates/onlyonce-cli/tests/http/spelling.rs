//! What a key is called: every way to write it as a header value is one key, in every place where one is
//! read, written or asked about.

use serde_json::{Value, json};

use crate::{
    harness::{
        Gateway, REPLAYED, Request, Script, Setup, Upstream,
        admin::percent_encoded,
        eventually,
        process::{TOKEN, binary},
        provider::{Entry, Part, Provider},
        within,
    },
    webhooks,
};

/// Keys of every kind, each made unlike all others by a number.
const KINDS: [fn(usize) -> String; 7] = [
    |n| format!("plain-{n}"),
    |n| format!("two words {n}"),
    |n| format!(" {n} "),
    |n| format!("in\"side\"{n}"),
    |n| format!("back\\slash{n}"),
    |n| format!("\"quoted{n}\""),
    |n| format!("\"begun {n}"),
];

/// A number for each key of this suite's tests.
struct Numbers(usize);

impl Numbers {
    fn key(&mut self, kind: fn(usize) -> String) -> String {
        self.0 += 1;
        kind(self.0)
    }
}

/// `key` as a structured string (RFC 9651), written down here by hand.
fn quoted(key: &str) -> String {
    let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

fn is_opaque(key: &str) -> bool {
    !key.starts_with('"') && !key.contains(' ')
}

/// Every way to spell `key`, without white space around it.
fn spellings(key: &str) -> Vec<String> {
    let quoted = quoted(key);
    let mut all = vec![
        quoted.clone(),
        format!("{quoted};v=2"),
        format!("{quoted}; a; b=?0;c=\"d e\""),
    ];
    if is_opaque(key) {
        all.push(key.to_owned());
    }
    all
}

/// The same, and with white space as a header line may have it.
fn lines(key: &str) -> Vec<String> {
    let bare = spellings(key);
    let padded: Vec<String> = bare.iter().map(|one| format!(" \t{one} \t")).collect();
    bare.into_iter().chain(padded).collect()
}

fn ask(value: &str, query: &str) -> Request {
    Request::get(&format!(
        "/.onlyonce/keys/{}{query}",
        percent_encoded(value)
    ))
}

/// The records that the admin API finds for `value`.
async fn listed(gateway: &Gateway, value: &str) -> Vec<Value> {
    let path = format!("/idempotency/keys?key={}", percent_encoded(value));
    let page = gateway.admin(Request::get(&path)).await.expect(200).json();
    page["keys"].as_array().unwrap().clone()
}

/// Goal: an upstream sees one key on every attempt, however each of them spells it.
///
/// Method: each kind of key, each spelling on the first attempt, which fails, and each on the retry; personal
/// data is erased in between, or not.
/// Evidence: the upstream's own record of both headers, byte for byte; two executions of each key, and
/// replays under every spelling, which echo the header as it was sent; the attempt's token names the
/// record that the admin API shows.
#[tokio::test]
async fn one_key_upstream() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut numbers = Numbers(0);
    let mut executed = 0;
    for kind in KINDS {
        let count = lines(&kind(0)).len();
        let pairs = (0..count).flat_map(|one| (0..count).map(move |two| (one, two)));
        for ((first, again), erased) in pairs.flat_map(|pair| [(pair, false), (pair, true)]) {
            let key = numbers.key(kind);
            let all = lines(&key);
            upstream.next(Script::reply(500));
            gateway.send(&Request::pay(&all[first])).await.expect(500);
            let id = gateway.id(&key).await;
            if erased {
                let path = format!("/idempotency/keys/{id}/erase");
                let reason = json!({ "reason": "a request" });
                let erased = gateway.admin_post(&path, &reason).await.expect(200);
                assert!(!erased.text().contains(&key), "{key}: {erased}");
            }
            gateway.send(&Request::pay(&all[again])).await.expect(201);
            executed += 2;
            let seen = upstream.requests();
            let spelled = all[first].trim();
            for attempt in &seen[executed - 2..] {
                let header = attempt.headers.all("idempotency-key");
                assert_eq!(header, [spelled], "{key}: {first} then {again}, {erased}");
            }
            if again == first {
                // An erased key's answer is not stored.
                for value in all.iter().filter(|_| !erased) {
                    let replay = gateway.send(&Request::pay(value)).await.expect(201);
                    assert_eq!(replay.header(REPLAYED), Some("true"), "{value}");
                    assert_eq!(replay.header("idempotency-key"), Some(value.trim()));
                }
                let token = seen[executed - 1].headers.one("idempotency-attempt");
                assert!(token.unwrap().starts_with(&id), "{key}: {token:?} {id}");
            }
            assert_eq!(upstream.executions(), executed, "{key}");
        }
    }
}

/// Goal: whoever asks about a key finds it under each of its spellings, and no other.
///
/// Method: each kind of key is held in the upstream under `accept`; the place that a duplicate is told is
/// followed; the look-up, the admin API and the command line are asked under every spelling.
/// Evidence: one record with one id everywhere; a place that starts with an encoded quote where the key
/// cannot stand for itself.
#[tokio::test]
async fn one_key_to_whoever_asks() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "on_in_flight: accept").await;
    let admin = format!("http://{}", gateway.admin_addr());
    let mut numbers = Numbers(0);
    for kind in KINDS {
        let key = numbers.key(kind);
        let all = spellings(&key);
        upstream.next(Script::created().held());
        let running = gateway.send_later(&Request::pay(&all[0]));
        upstream.begun(numbers.0).await;
        for value in &all {
            let told = gateway.send(&Request::pay(value)).await.expect(202);
            let place = told.header("location").unwrap().to_owned();
            let starts = place.starts_with("/.onlyonce/keys/%22");
            assert_eq!(starts, !is_opaque(&key), "{key}: {place}");
            let found = gateway.send(&Request::get(&place)).await.expect(200);
            assert_eq!(found.json()["state"], "in_progress", "{place}");
        }
        upstream.release();
        within("the first answer", running)
            .await
            .unwrap()
            .expect(201);
        let id = gateway.id(&key).await;
        for value in &all {
            let found = gateway.send(&ask(value, "")).await.expect(200).json();
            assert_eq!(found["state"], "completed", "{value}");
            let records = listed(&gateway, value).await;
            assert_eq!(records.len(), 1, "{value}");
            assert_eq!(
                (&records[0]["id"], &records[0]["key"]),
                (&id.as_str().into(), &key.as_str().into())
            );
            assert_eq!(records[0]["spelling"], all[0], "{key}");
            let mut command = tokio::process::Command::new(binary());
            command
                .args(["keys", "show", "--json", "--admin", &admin, "--key", value])
                .env("ONLYONCE_ADMIN_TOKEN", TOKEN);
            let shown = within("the command", command.output()).await.unwrap();
            let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
            assert_eq!(shown["id"], id.as_str(), "{value}");
        }
        // The text of a key that starts with a quote is the header value of another key, or of none.
        if key.starts_with('"') {
            gateway.send(&ask(&key, "")).await.expect(404);
        }
    }
    let path = "/idempotency/keys?key=%22begun";
    let refused = gateway.admin(Request::get(path)).await.expect(400);
    assert!(refused.text().contains("quote"), "{}", refused.text());
}

/// A gateway that asks `provider`, whose query has found a key.
async fn reconciled(provider: &Provider, more: &str) -> Gateway {
    let more = format!(", upstream_max_execution: 200ms{more}");
    let gateway = crate::reconcile::gateway(provider, "/payments?key={key}", &more).await;
    provider.book(
        "found",
        Entry {
            paid: 1,
            ..Entry::default()
        },
    );
    gateway.send(&Request::pay("found")).await.expect(502);
    gateway.until_state("found", "completed").await;
    gateway
}

/// Goal: a payment whose answer was lost is found, whichever name of its key the provider knows.
///
/// Method: each kind of key in each spelling; a provider that knows header values as they stand, and one
/// that reads them.
/// Evidence: completed by the provider's word; its ledger says that it paid once; a retry in another
/// spelling is answered without a second payment.
#[tokio::test]
async fn a_provider_is_asked_under_every_name() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    let gateway = reconciled(&provider, "").await;
    let mut numbers = Numbers(0);
    let mut lost = Vec::new();
    for unwraps in [false, true] {
        provider.unwraps(unwraps);
        for kind in KINDS {
            for spelled in 0..spellings(&kind(0)).len() {
                let key = numbers.key(kind);
                let value = spellings(&key)[spelled].clone();
                gateway.send(&Request::pay(&value)).await.expect(502);
                let name = if unwraps { key.clone() } else { value.clone() };
                lost.push((key, value, name));
            }
        }
    }
    let received = provider.received();
    for (key, value, name) in lost {
        gateway.until_state(&key, "completed").await;
        assert_eq!(provider.entry(&name).paid, 1, "{value}");
        for retry in spellings(&key) {
            let replay = gateway.send(&Request::pay(&retry)).await.expect(201);
            assert_eq!(replay.header(REPLAYED), Some("true"), "{value}: {retry}");
        }
        let (code, said) = gateway.reconcile(&["--probe", &value]).await;
        assert_eq!(code, 0, "{value}: {said}");
    }
    assert_eq!(provider.received(), received);
}

/// Goal: a denial counts once every name was denied, a row from before spellings included.
///
/// Method: payments that the provider never saw, in several spellings; two more whose rows lose their
/// notes, as those of an older gateway have none, of which the provider knows one by its quoted form.
/// Evidence: the provider's own list of questions; the one that it knows completes, and is paid once.
#[tokio::test]
async fn a_denial_needs_every_name() {
    let provider = Provider::start(|key| match key.contains("paid") {
        true => Part::PayAndHangUp,
        false => Part::HangUp,
    })
    .await;
    let mut gateway = reconciled(&provider, "").await;
    provider.always_says(Some((500, "")));
    for value in ["\"denied\"", "\"denied two\";v=1", "denied-three"] {
        gateway.send(&Request::pay(value)).await.expect(502);
    }
    gateway
        .send(&Request::pay("\"paid-old\""))
        .await
        .expect(502);
    gateway.send(&Request::pay("denied-old")).await.expect(502);
    gateway.sigterm();
    gateway.exited().await;
    let file = gateway.folder().path().join("onlyonce.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    let emptied = database
        .execute(
            "UPDATE keys SET notes = NULL WHERE key IN ('paid-old', 'denied-old')",
            [],
        )
        .unwrap();
    assert_eq!(emptied, 2);
    drop(database);
    provider.always_says(None);
    gateway.restart().await;
    gateway.until_state("paid-old", "completed").await;
    assert_eq!(provider.entry("\"paid-old\"").paid, 1);
    for names in [
        &["\"denied\"", "denied"][..],
        &["\"denied two\";v=1", "denied two"],
        &["denied-three"],
        &["denied-old", "\"denied-old\""],
    ] {
        eventually("every question", async || {
            let asked = provider.asked();
            let was_asked = |name: &&str| {
                let target = format!("/payments?key={}", percent_encoded(name));
                let target = target.replace("%2D", "-");
                asked.iter().any(|(asked, _)| *asked == target)
            };
            names.iter().all(was_asked).then_some(())
        })
        .await;
    }
    let never = "/payments?key=%22denied-three%22";
    assert!(provider.asked().iter().all(|(asked, _)| asked != never));
}

/// Goal: what the provider knows under two names of a key, or of two keys, is nobody's guess.
///
/// Method: two payments in the ledger, under the header value and under the key; then a key and one whose
/// text is the other's header value, of which the provider has executed the first alone.
/// Evidence: dead letters, no completion by another key's payment, no release.
#[tokio::test]
async fn two_payments_are_a_contradiction() {
    let provider = Provider::start(|key| match key {
        "\"first\"" => Part::PayAndHangUp,
        _ => Part::HangUp,
    })
    .await;
    let gateway = reconciled(&provider, ", attempts: 2").await;
    let paid = Entry {
        paid: 1,
        ..Entry::default()
    };
    provider.book("torn", paid);
    provider.book("\"torn\"", paid);
    gateway.send(&Request::pay("\"torn\"")).await.expect(502);
    let letter = gateway.until_dead_letter("torn").await;
    assert_eq!(letter["reason"], "the provider contradicts itself");

    let second = quoted("\"first\"");
    gateway.send(&Request::pay(&second)).await.expect(502);
    gateway.send(&Request::pay("\"first\"")).await.expect(502);
    for key in ["first", "\"first\""] {
        let letter = gateway.until_dead_letter(key).await.to_string();
        assert!(letter.contains("by the same name"), "{key}: {letter}");
        assert_eq!(gateway.state(key).await, "unknown");
    }
    assert_eq!(provider.received(), 4);
}

/// Goal: a webhook finds its key under each name that the provider may know it by.
///
/// Method: each kind of key in each spelling, lost; an event for each that names the header value as it
/// went upstream, or the key itself. Then two keys that one name can mean.
/// Evidence: completed, with one execution; of the two neither is settled, and both are dead letters.
#[tokio::test]
async fn webhooks_name_any_spelling() {
    let upstream = Upstream::start();
    let gateway = webhooks::setup("standard").start(&upstream).await;
    let mut numbers = Numbers(0);
    let mut executed = 0;
    let event = |name: &str| webhooks::event("payment.succeeded", name, webhooks::now());
    for kind in KINDS {
        for spelled in 0..spellings(&kind(0)).len() {
            for by_header in [true, false] {
                let key = numbers.key(kind);
                let value = spellings(&key)[spelled].clone();
                webhooks::lost(&gateway, &upstream, &value).await;
                executed += 1;
                let name = if by_header { &value } else { &key };
                let id = format!("e{}", numbers.0);
                webhooks::tell(&gateway, &id, &event(name))
                    .await
                    .expect(200);
                assert_eq!(gateway.state(&key).await, "completed", "{value} as {name}");
            }
        }
    }
    assert_eq!(upstream.executions(), executed);

    webhooks::lost(&gateway, &upstream, "both").await;
    webhooks::lost(&gateway, &upstream, &quoted("\"both\"")).await;
    let both = event("\"both\"");
    webhooks::tell(&gateway, "both", &both).await.expect(200);
    for key in ["both", "\"both\""] {
        gateway.until_dead_letter(key).await;
        assert_eq!(gateway.state(key).await, "unknown");
    }
}

/// Goal: a spelling has a longest length, which a key of allowed length can exceed.
///
/// Method: a short key with parameters, at the limit and one byte beyond.
/// Evidence: the whole header upstream; 400, and no execution.
#[tokio::test]
async fn a_spelling_that_is_too_long_is_refused() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let of = |length: usize| format!("\"k\";p={}", "x".repeat(length - 6));
    let refused = gateway.send(&Request::pay(&of(1_025))).await;
    let refused = refused.refused(400, "idempotency_key_invalid");
    assert!(refused.text().contains("1024 bytes"), "{refused}");
    assert_eq!(upstream.executions(), 0);
    gateway.send(&Request::pay(&of(1_024))).await.expect(201);
    assert_eq!(
        upstream.last().headers.all("idempotency-key"),
        [of(1_024).as_str()]
    );
}

/// Goal: a spelling outlives its answer in the tombstone, and goes with what is forgotten.
///
/// Method: `ttl: 1s`, a quoted first attempt, the same request unquoted after expiry; then forgotten.
/// Evidence: the upstream's headers: the first spelling for the second generation, the new one after.
#[tokio::test]
async fn a_spelling_lives_as_long_as_its_record() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    let seen = || upstream.last().headers.all("idempotency-key").join("|");
    gateway.send(&Request::pay("\"k\";v=2")).await.expect(201);
    gateway.until_state("k", "expired").await;
    let second = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(second.header("idempotency-generation"), Some("2"));
    assert_eq!(second.header("idempotency-key"), Some("k"));
    assert_eq!(seen(), "\"k\";v=2");
    gateway.until_state("k", "expired").await;
    let path = format!("/idempotency/keys/{}?force=true", gateway.id("k").await);
    let forgotten = gateway.admin(Request::new("DELETE", &path)).await;
    assert_eq!(forgotten.expect(200).json()["spelling"], Value::Null);
    gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(seen(), "k");
    assert_eq!(upstream.executions(), 3);
}

/// Goal: a spelling is as secret as the key.
///
/// Method: a gateway that encrypts; a quoted key with a canary in it and in its parameters, completed and
/// lost; the noisiest logs.
/// Evidence: the canary is in no file and in no line of the log, and comes back after a restart.
#[tokio::test]
async fn a_spelling_is_kept_as_secret_as_its_key() {
    let upstream = Upstream::start();
    let setup = Setup::with("")
        .store_options(&format!("encryption_key_env: {}", crate::at_rest::ENV))
        .env(crate::at_rest::ENV, crate::at_rest::OLD)
        .trace();
    let mut gateway = setup.start(&upstream).await;
    let value = "\"canary one\";p=canary";
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay(value)).await.expect(500);
    gateway.sigterm();
    gateway.exited().await;
    let files = crate::dumps::files_of(&gateway);
    assert!(!files.is_empty());
    let is_there = files.windows(6).any(|part| part == b"canary");
    assert!(!is_there, "a file has the key");
    assert!(!gateway.logs().contains("canary"), "a log has the key");
    gateway.restart().await;
    let other = quoted("canary one");
    gateway.send(&Request::pay(&other)).await.expect(201);
    assert_eq!(upstream.last().headers.all("idempotency-key"), [value]);
}

/// Goal: a provider's ledger is compared under every name of a key.
///
/// Method: payments in several spellings; the ledger as a provider has it that takes header values as
/// they stand, and as one that reads them has it; then one key under both of its names.
/// Evidence: no difference, no difference, and the one that was executed twice.
#[tokio::test]
async fn ledgers_are_compared_under_every_name() {
    let provider = Provider::start(|_| Part::Pay).await;
    let gateway = crate::reconcile::gateway(&provider, "/payments?key={key}", "").await;
    let mut numbers = Numbers(0);
    let (mut raw, mut read) = (String::new(), String::new());
    let cell = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for kind in KINDS {
        for spelled in 0..spellings(&kind(0)).len() {
            let key = numbers.key(kind);
            let value = &spellings(&key)[spelled];
            gateway.send(&Request::pay(value)).await.expect(201);
            raw.push_str(&format!("{},succeeded\n", cell(value)));
            read.push_str(&format!("{},succeeded\n", cell(&key)));
        }
    }
    let file = gateway.folder().path().join("ledger.csv");
    let path = file.to_str().unwrap();
    let twice = format!("{raw}{},succeeded\n", cell("plain-1"));
    for (rows, expected) in [(&raw, 0), (&read, 0), (&twice, 1)] {
        std::fs::write(&file, format!("key,status\n{rows}")).unwrap();
        let args = ["--route", "r", "--provider", path, "--since", "1h"];
        let (code, said) = gateway.reconcile(&args).await;
        assert_eq!(code, expected, "{said}");
        assert_eq!(said.contains("twice"), expected == 1, "{said}");
    }
}

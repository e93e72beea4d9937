//! The way out of unknown: the provider is asked, and what it says counts only where it proves
//! something.

use serde_json::Value;

use crate::harness::{
    Gateway, REPLAYED, Request, Setup, eventually, ms,
    process::{TOKEN, binary},
    provider::{Entry, Part, Provider},
};

/// What the answers of the test's provider mean.
pub(crate) const OUTCOMES: &str = "outcomes: [ \
     { when: { status: [200], pointer: /status, in: [succeeded] }, complete: { status: 201, body: \"\" } }, \
     { when: { status: [200], pointer: /status, in: [declined] }, complete: { status: 402, body: \"\" } }, \
     { when: { status: [404] }, not_executed: true } ]";

/// Loops that run often.
pub(crate) const WORKERS: &str = "sweep_every: 200ms, reap_every: 60s, reconcile_every: 100ms";

/// A gateway before `provider` that asks it at `path`, with these further options of `reconcile`.
pub(crate) async fn gateway(provider: &Provider, path: &str, more: &str) -> Gateway {
    setup(provider, path, more)
        .start_before(&provider.url())
        .await
}

/// The same, before it is started.
pub(crate) fn setup(provider: &Provider, path: &str, more: &str) -> Setup {
    let url = format!("{}{path}", provider.url());
    Setup::with("lease: 1s, timeout: 1s, max_execution: 2s")
        .workers(WORKERS)
        .env("PSP_TOKEN", "sk_live_canary")
        .route(&format!(
            "idempotency: {{ reconcile: {{ query: {{ url: \"{url}\", headers: {{ Authorization: \
             \"Bearer ${{PSP_TOKEN}}\" }} }}, {OUTCOMES}, after: 100ms{more} }} }}"
        ))
}

const QUERY: &str = "/payments?key={key}";
const FAST: &str = ", upstream_max_execution: 200ms, negative_gap: 600ms";

impl Gateway {
    /// The dead letters, as the admin API lists them.
    pub(crate) async fn dead_letters(&self) -> Vec<Value> {
        let page = self.admin(Request::get("/dead-letters?limit=500")).await;
        page.expect(200).json()["dead_letters"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// The dead letter of a key, once there is one.
    pub(crate) async fn until_dead_letter(&self, key: &str) -> Value {
        let id = self.id(key).await;
        eventually("a dead letter", async || {
            let letters = self.dead_letters().await;
            letters.into_iter().find(|letter| letter["key_id"] == *id)
        })
        .await
    }

    /// `onlyonce reconcile` against this gateway: its exit code and what it printed.
    pub(crate) async fn reconcile(&self, args: &[&str]) -> (i32, String) {
        self.command("reconcile", args).await
    }

    async fn command(&self, command: &str, args: &[&str]) -> (i32, String) {
        let name = command;
        let mut command = tokio::process::Command::new(binary());
        let admin = format!("http://{}", self.admin_addr());
        command
            .arg(name)
            .args(args)
            .args(["--admin", &admin])
            .env("ONLYONCE_ADMIN_TOKEN", TOKEN);
        // A hundred thousand rows take a while on a machine that has other things to do.
        let output = tokio::time::timeout(ms(300_000), command.output()).await;
        let output = output.expect("the command's end").unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8(text).unwrap(),
        )
    }
}

/// Goal: a credential in the query's URL is shown to nobody.
///
/// Method: one from the environment beside the placeholder; the configuration in effect, and a file whose
/// headers have a bad name. Evidence: the name of the parameter alone; stars in the source line.
#[tokio::test]
async fn credentials_of_a_query_are_not_shown() {
    let provider = Provider::start(|_| Part::Pay).await;
    let path = "/payments?key={key}&api_key=${PSP_TOKEN}&token=sk_live_canary";
    let gateway = gateway(&provider, path, "").await;
    let config = gateway.admin(Request::get("/config")).await.expect(200);
    assert!(!config.text().contains("canary"), "{}", config.text());
    let query = &config.json()["routes"][0]["idempotency"]["reconcile"]["query"];
    let url = query["url"].as_str().unwrap().to_owned();
    assert!(
        url.ends_with("/payments?key={key}&api_key=***&token=***"),
        "{url}"
    );

    let file = gateway.folder().path().join("bad.yaml");
    let bad = "X-Key: \"sk_live_canary\", X Y: sk_live_canary, Authorization:";
    std::fs::write(&file, gateway.config().replace("Authorization:", bad)).unwrap();
    let mut check = tokio::process::Command::new(binary());
    let check = check
        .arg("check")
        .arg(&file)
        .env("PSP_TOKEN", "t")
        .output()
        .await;
    let check = check.unwrap();
    let said = String::from_utf8(check.stderr).unwrap();
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(
        said.contains("X Y: ****") && said.contains("****** ${PSP_TOKEN}"),
        "{said}"
    );
    assert!(!said.contains("canary"), "{said}");
}

fn events(record: &Value) -> Vec<String> {
    let history = record["history"].as_array().unwrap().iter();
    history
        .map(|line| line["event"].as_str().unwrap().to_owned())
        .collect()
}

/// Goal: an outcome that nobody saw is found out from the provider, and a decline stays a decline.
///
/// Method: the provider books, or declines, and hangs up.
/// Evidence: its own ledger; the retry gets the provider's words without a second execution.
#[tokio::test]
async fn a_lost_answer_is_found_at_the_provider() {
    let provider = Provider::start(|key| match key {
        "lost" => Part::PayAndHangUp,
        _ => Part::DeclineAndHangUp,
    })
    .await;
    let gateway = gateway(&provider, QUERY, FAST).await;
    for (key, status, word) in [("lost", 201, "succeeded"), ("declined", 402, "declined")] {
        gateway
            .send(&Request::pay(key))
            .await
            .refused(502, "idempotency_outcome_unknown");
        gateway.until_state(key, "completed").await;
        let replay = gateway.send(&Request::pay(key)).await.expect(status);
        assert_eq!(replay.header(REPLAYED), Some("true"));
        assert_eq!(replay.json()["status"], word);
        let entry = provider.entry(key);
        assert_eq!(entry.paid + entry.declined, 1, "{key}: {entry:?}");
        let record = gateway.full_record(key).await;
        assert_eq!(
            events(&record),
            ["reserved", "became_unknown", "reconciled"]
        );
    }
    let asked = provider.asked();
    assert!(
        asked
            .iter()
            .any(|(target, _)| target == "/payments?key=lost")
    );
    let all = asked.iter();
    assert!(
        all.into_iter()
            .all(|(_, auth)| auth.as_deref() == Some("Bearer sk_live_canary"))
    );
    assert!(
        !gateway.logs().contains("canary"),
        "the credential is not logged"
    );
    for name in ["scheduled", "resolved"] {
        let name = format!("api_idempotency_reconcile_{name}_total");
        assert_eq!(gateway.metric(&name).await, Some(2.0), "{name}");
    }
}

/// Goal: "not found" releases a key only under all of its conditions.
///
/// Method: the provider does nothing and hangs up; first its query has never found a key, then it is
/// proven by a probe.
/// Evidence: without the proof a dead letter and no second execution; with it, the release comes no
/// earlier than lease + upstream_max_execution, after two answers that are `negative_gap` apart, and the
/// retry executes.
#[tokio::test]
async fn a_negative_answer_counts_under_its_conditions() {
    let mut seen = 0;
    let provider = Provider::start(move |key| {
        seen += usize::from(key == "again");
        match key {
            "fine" => Part::Pay,
            "again" if seen > 1 => Part::Pay,
            _ => Part::HangUp,
        }
    })
    .await;
    let gateway = gateway(&provider, QUERY, FAST).await;
    gateway.send(&Request::pay("first")).await.expect(502);
    let letter = gateway.until_dead_letter("first").await;
    assert_eq!(
        letter["reason"],
        "negative answer from a query that never found a key"
    );
    assert_eq!(
        (&letter["kind"], &letter["route"]),
        (&"reconcile".into(), &"r".into())
    );
    gateway
        .send(&Request::pay("first"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(provider.received(), 1);

    let (code, said) = gateway.reconcile(&["--probe", "first"]).await;
    assert_eq!(code, 1, "{said}");
    gateway.send(&Request::pay("fine")).await.expect(201);
    let (code, said) = gateway
        .reconcile(&["--probe", "fine", "--route", "r"])
        .await;
    assert_eq!(code, 0, "{said}");

    gateway.send(&Request::pay("again")).await.expect(502);
    gateway.until_state("again", "failed_retryable").await;
    let record = gateway.full_record("again").await;
    assert_eq!(record["last_error"], "provider_negative");
    let at = |event: &str| {
        let history = record["history"].as_array().unwrap();
        let line = history.iter().find(|line| line["event"] == event).unwrap();
        humantime::parse_rfc3339(line["at"].as_str().unwrap()).unwrap()
    };
    let waited = at("reconciled")
        .duration_since(at("became_unknown"))
        .unwrap();
    assert!(waited >= ms(1_000 + 200 + 600), "{waited:?}");
    let first = record["history"].as_array().unwrap().iter();
    let mut first = first.filter(|line| line["detail"] == "not found; to be asked once more");
    let first = first.next().unwrap()["at"].as_str().unwrap();
    let first = humantime::parse_rfc3339(first).unwrap();
    let apart = at("reconciled").duration_since(first).unwrap();
    assert!(apart >= ms(600), "{apart:?}");
    let details: Vec<&str> = record["history"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|line| line["detail"].as_str())
        .collect();
    assert!(
        details.contains(&"not found; to be asked once more"),
        "{details:?}"
    );
    gateway.send(&Request::pay("again")).await.expect(201);
    assert_eq!(provider.entry("again").paid, 1);
}

/// Goal: a query in the wrong place releases nothing, and says so.
///
/// Method: the query's URL is wrong, so every answer is 404; five payments are lost.
/// Evidence: five dead letters that say why; no second execution; the bulk resolution shows first what
/// it would do, then does it.
#[tokio::test]
async fn a_query_in_the_wrong_place_releases_nothing() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    provider.always_says(Some((404, "<html>nothing here</html>")));
    let gateway = gateway(&provider, "/v1/paymnts/{key}", FAST).await;
    for number in 0..5 {
        let key = format!("k{number}");
        gateway.send(&Request::pay(&key)).await.expect(502);
        let letter = gateway.until_dead_letter(&key).await;
        let reason = letter["reason"].as_str().unwrap();
        assert!(reason.contains("never found a key"), "{reason}");
    }
    assert_eq!(gateway.count_in_state("unknown").await, 5);
    assert_eq!(gateway.metric("onlyonce_dead_letters").await, Some(5.0));
    assert_eq!(
        gateway
            .metric("api_idempotency_reconcile_failed_total")
            .await,
        Some(5.0)
    );
    gateway.says("dead_letters: a person has to say").await;

    provider.always_says(None);
    let many = serde_json::json!({
        "filter": { "route": "r", "reason": "never found" },
        "outcome": "completed",
        "response": "provider",
        "reason": "seen in the ledger",
    });
    let mut alike = many.clone();
    alike["response"] = serde_json::json!({ "status": 201, "body": "by hand" });
    let alike = gateway.admin_post("/dead-letters/resolve", &alike).await;
    assert_eq!(alike.status, 400, "many keys do not get one answer");
    let shown = gateway
        .admin_post("/dead-letters/resolve", &many)
        .await
        .expect(200)
        .json();
    assert_eq!(shown["dry_run"], true);
    assert_eq!(shown["matched"].as_array().unwrap().len(), 5);
    assert_eq!(
        gateway.count_in_state("unknown").await,
        5,
        "nothing was changed"
    );
    let mut real = many.clone();
    real["dry_run"] = false.into();
    provider.always_says(Some((200, r#"{"status":"succeeded"}"#)));
    let done = gateway
        .admin_post("/dead-letters/resolve", &real)
        .await
        .expect(200)
        .json();
    assert_eq!(done["resolved"].as_array().unwrap().len(), 5, "{done}");
    assert!(gateway.dead_letters().await.is_empty());
    let replay = gateway.send(&Request::pay("k3")).await.expect(201);
    assert_eq!(replay.json()["status"], "succeeded");
    assert_eq!(provider.received(), 5);
}

/// Goal: a payment that is still being worked on decides nothing, and ends before a person.
///
/// Method: the query says `processing`, three attempts are allowed.
/// Evidence: no release, no answer; the dead letter has the whole history; an operator takes the
/// provider's later answer, by the revision that was looked at.
#[tokio::test]
async fn what_is_still_processing_is_inconclusive() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    provider.always_says(Some((200, r#"{"status":"processing"}"#)));
    let more = format!("{FAST}, attempts: 3");
    let gateway = gateway(&provider, QUERY, &more).await;
    gateway.send(&Request::pay("k")).await.expect(502);
    let letter = gateway.until_dead_letter("k").await;
    assert_eq!(letter["attempts"], 3);
    let record = gateway.full_record("k").await;
    assert_eq!(
        events(&record),
        [
            "reserved",
            "became_unknown",
            "inconclusive",
            "inconclusive",
            "dead_lettered"
        ]
    );
    assert_eq!(record["state"], "unknown");
    let id = record["id"].as_str().unwrap();
    let path = format!("/idempotency/keys/{id}/resolve");
    let mut wish = serde_json::json!({
        "outcome": "completed", "response": "provider", "reason": "asked them",
        "revision": record["revision"],
    });
    let refused = gateway.admin_post(&path, &wish).await.expect(409);
    assert!(
        refused.text().contains("does not say"),
        "{}",
        refused.text()
    );
    provider.always_says(None);
    wish["revision"] = (record["revision"].as_u64().unwrap() - 1).into();
    let refused = gateway.admin_post(&path, &wish).await.expect(409);
    assert!(refused.text().contains("has changed"), "{}", refused.text());
    wish["revision"] = record["revision"].clone();
    gateway.admin_post(&path, &wish).await.expect(200);
    let replay = gateway.send(&Request::pay("k")).await.expect(201);
    assert_eq!(replay.json()["status"], "succeeded");
    assert_eq!(
        provider.entry("k"),
        Entry {
            paid: 1,
            ..Entry::default()
        }
    );
}

/// Goal: what a search of the provider finds: nothing, one that is under way, one, several.
///
/// Method: rules with `empty`, `absent` and `pending`; the provider's answers are given by hand.
/// Evidence: pending counts as no look, far beyond `attempts`; an empty list is a negative answer; one
/// that is found completes the key; of several none is picked, and a person is told.
#[tokio::test]
async fn what_a_search_finds() {
    let provider = Provider::start(|key| match key {
        "fine" => Part::Pay,
        _ => Part::PayAndHangUp,
    })
    .await;
    let rules = "outcomes: [ \
         { when: { status: [200], empty: /data }, not_executed: true }, \
         { when: { status: [200], absent: /data }, not_executed: true }, \
         { when: { status: [200], pointer: /data/0/status, in: [open] }, pending: true }, \
         { when: { status: [200], pointer: /data/0/status, in: [paid] }, complete: { status: 201, \
         body: /data/0 } } ]";
    let setup = setup(&provider, QUERY, &format!("{FAST}, attempts: 2"));
    let gateway = setup.start_before(&provider.url()).await;
    gateway.reconfigure(&gateway.config().replace(OUTCOMES, rules));
    eventually("the reload", async || {
        let shown = gateway.admin(Request::get("/config")).await.expect(200);
        shown.text().contains(r#""pending":true"#).then_some(())
    })
    .await;
    provider.always_says(Some((200, r#"{"data":[{"status":"paid","id":7}]}"#)));
    gateway.send(&Request::pay("fine")).await.expect(201);
    let (code, said) = gateway.reconcile(&["--probe", "fine"]).await;
    assert_eq!(code, 0, "{said}");

    provider.always_says(Some((200, r#"{"data":[{"status":"open"}]}"#)));
    gateway.send(&Request::pay("slow")).await.expect(502);
    let before = provider.asked().len();
    eventually("more looks than there are attempts", async || {
        (provider.asked().len() >= before + 4).then_some(())
    })
    .await;
    assert!(gateway.dead_letters().await.is_empty());
    provider.always_says(Some((200, r#"{"data":[{"status":"paid","id":8}]}"#)));
    gateway.until_state("slow", "completed").await;
    let replay = gateway.send(&Request::pay("slow")).await.expect(201);
    assert_eq!(replay.text(), r#"{"status":"paid","id":8}"#);

    let two = r#"{"data":[{"status":"paid"},{"status":"paid"}]}"#;
    provider.always_says(Some((200, two)));
    gateway.send(&Request::pay("twice")).await.expect(502);
    let letter = gateway.until_dead_letter("twice").await;
    let reason = letter["reason"].as_str().unwrap();
    assert!(reason.contains("several operations"), "{reason}");

    // Neither a page of an error nor half an answer says that there is nothing.
    provider.always_says(Some((200, "<html>busy</html>")));
    gateway.send(&Request::pay("page")).await.expect(502);
    let letter = gateway.until_dead_letter("page").await;
    assert!(letter.to_string().contains("no rule matches"), "{letter}");

    provider.always_says(Some((200, r#"{"data":[]}"#)));
    gateway.send(&Request::pay("none")).await.expect(502);
    gateway.until_state("none", "failed_retryable").await;
    assert_eq!(gateway.state("twice").await, "unknown");
}

/// Goal: where nobody is asked, somebody is told, at once.
///
/// Method: a lost answer on a route without `reconcile`.
/// Evidence: a dead letter that says so as soon as the client has its answer.
#[tokio::test]
async fn without_anybody_to_ask_a_person_is_told_at_once() {
    let provider = Provider::start(|_| Part::HangUp).await;
    let gateway = Setup::with("").start_before(&provider.url()).await;
    gateway.send(&Request::pay("k")).await.expect(502);
    let letters = gateway.dead_letters().await;
    assert_eq!(letters.len(), 1, "{letters:?}");
    let reason = letters[0]["reason"].as_str().unwrap();
    assert!(reason.contains("nobody asks"), "{reason}");
    gateway.says("dead_letters: a person has to say").await;
}

/// Goal: the question goes to the configured host and nowhere else.
///
/// Method: the provider answers with a redirect to a second one; a key full of URL syntax.
/// Evidence: the second one is never asked; the key arrives as one value.
#[tokio::test]
async fn questions_go_nowhere_else() {
    let other = Provider::start(|_| Part::Pay).await;
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    let gateway = gateway(&provider, QUERY, ", attempts: 2").await;
    let key = "a/../b?x=1&key=z@evil%2F#{client}";
    gateway.send(&Request::pay(key)).await.expect(502);
    gateway.until_state(key, "completed").await;
    let asked = provider.asked();
    assert_eq!(
        asked[0].0,
        "/payments?key=a%2F..%2Fb%3Fx%3D1%26key%3Dz%40evil%252F%23%7Bclient%7D"
    );
    let location = format!("{{\"moved\":\"{}\"}}", other.url());
    provider.always_says(Some((302, &location)));
    gateway.send(&Request::pay("moved")).await.expect(502);
    gateway.until_dead_letter("moved").await;
    assert!(other.asked().is_empty());
}

/// Goal: a key does not lead the question to another path of the provider.
///
/// Method: a query with the key in its path; keys that are or hold steps to another one, and a good one.
/// Evidence: the provider is asked for the good one alone; the others are dead letters that say why.
#[tokio::test]
async fn a_key_is_one_segment() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    let gateway = gateway(&provider, "/payments/{key}", ", attempts: 2").await;
    for key in ["..", ".", "../../admin", "a\\..\\b"] {
        gateway.send(&Request::pay(key)).await.expect(502);
        let letter = gateway.until_dead_letter(key).await.to_string();
        assert!(letter.contains("another path"), "{key}: {letter}");
    }
    assert_eq!(provider.asked(), []);
    gateway.send(&Request::pay("a.b/c")).await.expect(502);
    eventually("the question", async || {
        (!provider.asked().is_empty()).then_some(())
    })
    .await;
    assert_eq!(provider.asked()[0].0, "/payments/a.b%2Fc");
}

/// Goal: a client's retry makes the reconciler look sooner, and a hundred of them do not use up its
/// patience.
///
/// Method: the first look is far away; a client retries, again and again.
/// Evidence: the provider's count of questions.
#[tokio::test]
async fn a_retry_nudges_within_bounds() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    provider.always_says(Some((200, r#"{"status":"processing"}"#)));
    let setup = setup(&provider, QUERY, ", attempts: 3");
    let gateway = setup.start_before(&provider.url()).await;
    let config = gateway.config().replace("after: 100ms", "after: 6s");
    gateway.reconfigure(&config);
    eventually("the reload", async || {
        let shown = gateway
            .admin(Request::get("/config"))
            .await
            .expect(200)
            .text();
        shown.contains(r#""after":"6s""#).then_some(())
    })
    .await;
    gateway.send(&Request::pay("k")).await.expect(502);
    eventually("a question", async || {
        gateway.send(&Request::pay("k")).await.expect(409);
        (!provider.asked().is_empty()).then_some(())
    })
    .await;
    for _ in 0..50 {
        gateway.send(&Request::pay("k")).await.expect(409);
    }
    assert_eq!(
        provider.asked().len(),
        1,
        "a quarter of the next pause stands"
    );
    assert!(gateway.dead_letters().await.is_empty());
}

/// Goal: a dead letter is found, understood and settled at a terminal.
///
/// Method: a query in the wrong place makes two dead letters; they are listed, counted by a dry run, one is
/// resolved by the provider's own answer and the other by hand.
/// Evidence: exit codes, what is printed, and the answers that retries get.
#[tokio::test]
async fn dead_letters_at_a_terminal() {
    let provider = Provider::start(|_| Part::PayAndHangUp).await;
    provider.always_says(Some((404, "")));
    let gateway = gateway(&provider, QUERY, FAST).await;
    for key in ["one", "two"] {
        gateway.send(&Request::pay(key)).await.expect(502);
        gateway.until_dead_letter(key).await;
    }
    let (code, said) = gateway.command("keys", &["dead-letters"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.matches("never found").count(), 2, "{said}");
    let all = [
        "resolve-dead-letters",
        "--route",
        "r",
        "--outcome",
        "failed_retryable",
    ];
    let dry: Vec<&str> = all.into_iter().chain(["--reason", "checked"]).collect();
    let (code, said) = gateway.command("keys", &dry).await;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 would be resolved"), "{said}");
    assert_eq!(gateway.count_in_state("unknown").await, 2);

    provider.always_says(None);
    let resolve = [
        "resolve",
        "--key",
        "one",
        "--outcome",
        "completed",
        "--reason",
        "asked",
    ];
    let (code, said) = gateway.command("keys", &resolve).await;
    assert_eq!(code, 2, "an answer is needed: {said}");
    let asked: Vec<&str> = resolve.into_iter().chain(["--from-provider"]).collect();
    let (code, said) = gateway.command("keys", &asked).await;
    assert_eq!(code, 0, "{said}");
    let replay = gateway.send(&Request::pay("one")).await.expect(201);
    assert_eq!(replay.json()["status"], "succeeded");
    provider.always_says(Some((404, "")));
    let stale: Vec<&str> = ["resolve", "--key", "two", "--outcome", "failed_retryable"]
        .into_iter()
        .chain(["--reason", "checked", "--revision", "1", "--force"])
        .collect();
    let (code, said) = gateway.command("keys", &stale).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("has changed since"), "{said}");
    provider.always_says(Some((500, "")));
    let real: Vec<&str> = dry.iter().copied().chain(["--yes"]).collect();
    let (code, said) = gateway.command("keys", &real).await;
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("0 of 1 resolved"), "{said}");
    assert!(said.contains("The provider does not say"), "{said}");
    let forced: Vec<&str> = real.into_iter().chain(["--force"]).collect();
    let (code, said) = gateway.command("keys", &forced).await;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("1 of 1 resolved"), "{said}");
    assert_eq!(gateway.state("two").await, "failed_retryable");
}

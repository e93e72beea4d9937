//! Messages that were left in a transaction arrive, under one key each, or wait for a person.

use onlyonce_testkit::servers::Postgres;
use sqlx::{Connection as _, Executor as _};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    harness::{
        DEADLINE, Request, Script, Setup, Upstream, client, eventually, ms,
        process::{TOKEN, binary},
        within,
        worker::Worker,
    },
    postgres,
};

/// A database with the schema.
pub(crate) struct Place {
    server: &'static Postgres,
    pub(crate) url: String,
}

impl Place {
    pub(crate) async fn new() -> Self {
        let (server, url) = postgres::own_database();
        let mut migrate = Command::new(binary());
        let made = migrate.args(["migrate", "--store", &url]).output();
        let made = within("the schema", made).await.unwrap();
        assert!(made.status.success(), "{made:?}");
        Self { server, url }
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        let name = self.url.rsplit('/').next().unwrap();
        self.server.run_sql(name, sql)
    }

    /// Leaves a message, as an application in any language does.
    pub(crate) fn enqueue(&self, target: &str, key: &str) -> String {
        self.sql(&enqueue(target, key)).replace('-', "")
    }

    pub(crate) fn state(&self, key: &str) -> String {
        self.sql(&format!(
            "SELECT state FROM onlyonce.outbox WHERE downstream_key = '{key}'"
        ))
    }

    pub(crate) async fn until_state(&self, key: &str, state: &str) {
        let what = format!("the message {key} to be {state}");
        eventually(&what, async || {
            tokio::time::sleep(ms(50)).await;
            (self.state(key) == state).then_some(())
        })
        .await;
    }

    /// As if the time of every claim were over.
    fn lapse_claims(&self) {
        self.sql(
            "UPDATE onlyonce.outbox SET due_at = 0, claimed_until = 0 WHERE state = 'pending'",
        );
    }
}

fn enqueue(target: &str, key: &str) -> String {
    format!(
        "SELECT onlyonce.enqueue(target => '{target}', payload => '{{\"of\":\"{key}\"}}', \
         type => 'order.paid', downstream_key => '{key}', headers => '{{\"X-Shop\":\"1\"}}')"
    )
}

/// `onlyonce outbox …`: exit code, standard output, standard error.
pub(crate) async fn outbox(arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(binary());
    command
        .arg("outbox")
        .args(arguments)
        .env("ONLYONCE_ADMIN_TOKEN", TOKEN);
    let output = within("the command", command.output()).await.unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// Keys in the order in which the receiver saw them.
fn keys_seen(receiver: &Upstream) -> Vec<String> {
    let key = |seen: &crate::harness::upstream::Seen| {
        seen.headers.one("idempotency-key").map(str::to_owned)
    };
    receiver.requests().iter().filter_map(key).collect()
}

/// Goal: a receiver that always fails is asked a bounded number of times and holds up nobody.
///
/// Method: a gateway delivers; the receiver answers one key of many with 500, for ever. Then it answers
/// well, and an operator has the dead letter sent again. Another dead letter is discarded.
/// Evidence: the receiver's own list of calls: `max_attempts` of that key, the last of them after every
/// other message; after the retry one more, under the same key; none after the discard.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_always_fails() {
    const OTHERS: usize = 20;
    let place = Place::new().await;
    let (shop, mail, upstream) = (Upstream::start(), Upstream::start(), Upstream::start());
    for key in ["poison", "rotten"] {
        shop.always_for(key, Script::reply(500));
    }
    let targets = format!(
        "outbox: {{ targets: [\
         {{ name: shop, url: \"{}/orders?from=us\", max_attempts: 3, first_pause: 300ms, longest_pause: 600ms, \
            headers: {{ Authorization: \"Bearer psp\" }}, provider_id: /execution }}, \
         {{ name: mail, url: \"{}/mails\" }}] }}",
        shop.url(),
        mail.url()
    );
    let setup = Setup::with("").store(&place.url).top(&targets);
    let gateway = setup.workers("deliver_every: 100ms").start(&upstream).await;
    let poison = place.enqueue("shop", "poison");
    let rotten = place.enqueue("shop", "rotten");
    let many: Vec<String> = (0..OTHERS)
        .map(|n| enqueue(["shop", "mail"][n % 2], &format!("fine-{n}")))
        .collect();
    place.sql(&many.join(";"));
    place.until_state("poison", "dead").await;
    place.until_state("rotten", "dead").await;

    let seen = keys_seen(&shop);
    let last_of_others = seen
        .iter()
        .rposition(|key| key.starts_with("fine"))
        .unwrap();
    let last_of_poison = seen.iter().rposition(|key| key == "poison").unwrap();
    assert!(last_of_others < last_of_poison, "{seen:?}");
    assert_eq!(mail.executions(), OTHERS / 2);
    for n in 0..OTHERS {
        let (key, receiver) = (format!("fine-{n}"), [&shop, &mail][n % 2]);
        place.until_state(&key, "delivered").await;
        assert_eq!(receiver.executions_of(&key), 1, "{key}");
    }
    let first = &shop.requests()[0];
    assert_eq!(
        (first.method.as_str(), first.target.as_str()),
        ("POST", "/orders?from=us")
    );
    assert_eq!(first.headers.one("authorization"), Some("Bearer psp"));
    assert_eq!(first.headers.one("x-shop"), Some("1"));
    assert!(first.body.starts_with(b"{\"of\":"), "{first:?}");

    // Longer than the longest pause.
    tokio::time::sleep(ms(1_000)).await;
    assert_eq!(shop.executions_of("poison"), 3, "max_attempts");
    let letters = gateway
        .admin(Request::get("/dead-letters?kind=outbox"))
        .await;
    let letters = letters.expect(200).json();
    assert_eq!(
        letters["dead_letters"].as_array().unwrap().len(),
        2,
        "{letters}"
    );

    let admin = format!("http://{}", gateway.admin_addr());
    let (code, out, err) = outbox(&["list", "--admin", &admin]).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(&poison) && !out.contains("fine-1"), "{out}");
    shop.always_for("poison", Script::created());
    let retry = [
        "retry",
        &poison,
        "--reason",
        "they are back",
        "--admin",
        &admin,
    ];
    let (code, _, err) = outbox(&retry).await;
    assert_eq!(code, 0, "{err}");
    place.until_state("poison", "delivered").await;
    assert_eq!(
        shop.executions_of("poison"),
        4,
        "once more, under the same key"
    );
    let message = gateway
        .admin(Request::get(&format!("/outbox/{poison}")))
        .await;
    let message = message.expect(200).json();
    assert_eq!(
        message["provider_id"],
        shop.executions().to_string(),
        "{message}"
    );
    let (code, _, err) = outbox(&retry).await;
    assert!(code == 1 && err.contains("409"), "{err}");

    let (code, _, err) = outbox(&["discard", &rotten, "--admin", &admin]).await;
    assert!(code == 2 && err.contains("--reason"), "{err}");
    let discard = [
        "discard", &rotten, "--reason", "sold out", "--admin", &admin,
    ];
    let (code, out, err) = outbox(&discard).await;
    assert!(code == 0 && out.contains("discarded"), "{err}");
    let audit = gateway
        .admin(Request::get("/audit"))
        .await
        .expect(200)
        .text();
    assert!(
        audit.contains("message_retried") && audit.contains("they are back"),
        "{audit}"
    );
    assert!(
        audit.contains("message_discarded") && audit.contains("sold out"),
        "{audit}"
    );
    assert_eq!(shop.executions_of("rotten"), 3);
    assert_eq!(gateway.metric("onlyonce_dead_letters").await, Some(0.0));
    assert_eq!(gateway.metric("onlyonce_outbox_depth").await, Some(0.0));
    let delivered = gateway.metric("onlyonce_outbox_delivered_total").await;
    assert_eq!(delivered, Some(OTHERS as f64 + 1.0));
}

/// Goal: a worker that dies between the receiver's deed and its own note does no harm.
///
/// Method: two targets, one that knows keys again and one that does not; the worker is killed with -9
/// while both receivers hold their answers, its claims lapse, and another worker starts.
/// Evidence: the first receiver sees the same key a second time; the second sees one call, and the message
/// is unknown.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_in_the_middle() {
    let place = Place::new().await;
    let (knows, forgets) = (Upstream::start(), Upstream::start());
    let folder = TempDir::new().unwrap();
    let yaml = format!(
        "store: {{ url: \"{}\" }}\nworkers: {{ deliver_every: 100ms }}\noutbox:\n  targets:\n    \
         - {{ name: knows, url: \"{}/\" }}\n    - {{ name: forgets, url: \"{}/\", dedups: false }}\n",
        place.url,
        knows.url(),
        forgets.url()
    );
    for receiver in [&knows, &forgets] {
        receiver.next(Script::created().held());
    }
    let mut worker = Worker::with_config(folder.path(), &yaml).await;
    assert!(
        worker.ready.contains("targets=knows,forgets"),
        "{}",
        worker.ready
    );
    place.enqueue("knows", "again");
    let unknown = place.enqueue("forgets", "never-again");
    knows.begun(1).await;
    forgets.begun(1).await;
    worker.kill9().await;
    assert_eq!(
        place.state("again"),
        "pending",
        "nobody noted what came of it"
    );
    place.lapse_claims();
    let mut worker = Worker::with_config(folder.path(), &yaml).await;
    place.until_state("again", "delivered").await;
    place.until_state("never-again", "unknown").await;
    assert_eq!(knows.executions_of("again"), 2);
    assert_eq!(forgets.executions_of("never-again"), 1);

    // A person's word, in the database itself: gateways and workers share it.
    let (code, out, err) = outbox(&["list", "--store", &place.url, "--json"]).await;
    assert!(
        code == 0 && out.contains(&unknown) && out.contains("does not know"),
        "{out}{err}"
    );
    let retry = ["retry", &unknown, "--store", &place.url, "--force"];
    let (code, _, err) = outbox(&retry[..4]).await;
    assert!(
        code == 1 && err.contains("may have arrived"),
        "{code} {err}"
    );
    assert_eq!(place.state("never-again"), "unknown");
    assert_eq!(forgets.executions_of("never-again"), 1);
    let (code, _, err) = outbox(&retry).await;
    assert_eq!(code, 0, "{err}");
    place.until_state("never-again", "delivered").await;
    assert_eq!(forgets.executions_of("never-again"), 2);

    // Told to stop, it finishes what is under way and claims nothing more.
    knows.next(Script::created().held());
    place.enqueue("knows", "last");
    knows.begun(3).await;
    worker.sigterm();
    tokio::time::sleep(ms(300)).await;
    place.enqueue("knows", "too-late");
    knows.release();
    knows.release();
    assert!(worker.exited().await.success());
    assert_eq!(place.state("last"), "delivered");
    assert_eq!(
        (place.state("too-late"), knows.executions()),
        ("pending".to_owned(), 3)
    );
}

/// Goal: a message is not lost whose transaction commits after that of a later one.
///
/// Method: a transaction leaves a message and stays open; another one leaves one and commits; when that
/// one has arrived, the first commits.
/// Evidence: its row has the lower number; the receiver saw both, in the order of the commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_transaction_is_not_passed_over() {
    let place = Place::new().await;
    let receiver = Upstream::start();
    let folder = TempDir::new().unwrap();
    let yaml = format!(
        "store: {{ url: \"{}\" }}\noutbox: {{ targets: [{{ name: t, url: \"{}\" }}] }}\n",
        place.url,
        receiver.url()
    );
    let _worker = Worker::with_config(folder.path(), &yaml).await;
    let mut slow = sqlx::PgConnection::connect(&place.url).await.unwrap();
    let mut open = slow.begin().await.unwrap();
    open.execute(sqlx::AssertSqlSafe(enqueue("t", "slow")))
        .await
        .unwrap();
    place.enqueue("t", "fast");
    receiver.begun(1).await;
    place.until_state("fast", "delivered").await;
    open.commit().await.unwrap();
    receiver.begun(2).await;
    place.until_state("slow", "delivered").await;
    let numbers = "SELECT string_agg(downstream_key, ',' ORDER BY n) FROM onlyonce.outbox";
    assert_eq!(place.sql(numbers), "slow,fast");
    assert_eq!(keys_seen(&receiver), ["fast", "slow"]);
}

/// Goal: a database that is used by SQL functions alone is looked after.
///
/// Method: a key whose lease has lapsed and one whose time is over, made with SQL; a worker with a
/// configuration without routes, and one with the store's address alone.
/// Evidence: what SQL sees of them; `/readyz` and the admin API of the worker; its exit code.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_sweeps_and_reaps() {
    let place = Place::new().await;
    let reserve = |key: &str| {
        format!(
            "SELECT attempt_token FROM onlyonce.reserve('global', '{key}', lease => '1 second', \
             tombstone_ttl => '1 second')"
        )
    };
    let state = |key: &str| {
        place.sql(&format!(
            "SELECT coalesce(max(state::text), 'gone') FROM onlyonce.readable_keys WHERE key = '{key}'"
        ))
    };
    let becomes = async |key: &str, wanted: &str| {
        eventually(&format!("{key} to be {wanted}"), async || {
            tokio::time::sleep(ms(100)).await;
            (state(key) == wanted).then_some(())
        })
        .await;
    };
    place.sql("INSERT INTO onlyonce.routes (route, ttl, max_body_size, max_execution) VALUES ('sql', 1000, 1000, 900000)");
    place.sql(&reserve("left-alone"));
    let token = place.sql(&reserve("old"));
    place.sql(&format!(
        "SELECT onlyonce.settle('{token}', 201, '{{}}', 'done')"
    ));
    let folder = TempDir::new().unwrap();
    let yaml =
        "admin: { listen: 127.0.0.1:0 }\nworkers: { sweep_every: 200ms, reap_every: 200ms }\n";
    let file = folder.path().join("worker.yaml");
    std::fs::write(&file, yaml).unwrap();
    let file = file.to_str().unwrap();
    let mut worker = Worker::start(&["--config", file, "--store", &place.url]).await;
    becomes("left-alone", "unknown").await;
    becomes("old", "gone").await;
    let ready = client::send(worker.admin(), &Request::get("/readyz")).await;
    assert_eq!(ready.unwrap().expect(200).json()["status"], "ready");
    let list = Request::get("/idempotency/keys?state=unknown");
    let list = list.header("Authorization", format!("Bearer {TOKEN}"));
    let listed = client::send(worker.admin(), &list).await.unwrap();
    assert!(listed.expect(200).text().contains("left-alone"));
    worker.sigterm();
    assert!(worker.exited().await.success());

    place.sql(&reserve("another"));
    tokio::time::sleep(ms(1_100)).await;
    let mut worker = Worker::start(&["--store", &place.url]).await;
    assert!(!worker.ready.contains("admin="), "{}", worker.ready);
    becomes("another", "unknown").await;
    worker.sigterm();
    assert!(worker.exited().await.success());
}

/// Goal: messages in a SQLite file are delivered by the one process that has it.
///
/// Method: a row as the library writes it, put in while nobody has the file; a worker on it; then the
/// command line on the file.
/// Evidence: the receiver's count; the message's state in the file.
#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_file() {
    let receiver = Upstream::start();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("oo.db");
    let store = format!("sqlite:{}", file.display());
    let mut migrate = Command::new(binary());
    let made = migrate.args(["migrate", "--store", &store]).output();
    assert!(within("the schema", made).await.unwrap().status.success());
    rusqlite::Connection::open(&file)
        .unwrap()
        .execute(
            "INSERT INTO outbox (id, created_at, due_at, target, downstream_key, payload) \
             VALUES (randomblob(16), 0, 0, 't', 'in-a-file', x'00ff')",
            [],
        )
        .unwrap();
    let yaml = format!(
        "store: {{ url: \"{store}\" }}\noutbox: {{ targets: [{{ name: t, url: \"{}\", \
         key_header: X-Key }}] }}\n",
        receiver.url()
    );
    let mut worker = Worker::with_config(folder.path(), &yaml).await;
    receiver.begun(1).await;
    assert_eq!(receiver.last().headers.one("x-key"), Some("in-a-file"));
    assert_eq!(receiver.last().body, [0x00, 0xff]);
    worker.sigterm();
    assert!(worker.exited().await.success());
    let list = ["list", "--state", "delivered", "--store", &store];
    let (code, out, err) = outbox(&list).await;
    assert!(code == 0 && out.contains("in-a-file"), "{out}{err}");
}

/// Goal: targets can change while messages wait, and a store without an outbox is said so.
///
/// Method: a message for a target that is not configured, and a reload that brings it; `serve` and
/// `worker` with targets on a store in memory.
/// Evidence: the receiver's count; exit code 1 and what is said.
#[tokio::test(flavor = "multi_thread")]
async fn targets_come_and_stores_have_none() {
    let place = Place::new().await;
    let (receiver, upstream) = (Upstream::start(), Upstream::start());
    let gateway = Setup::with("").store(&place.url).start(&upstream).await;
    place.enqueue("later", "waits");
    gateway.admin_open("/readyz").await.expect(200);
    let before = gateway.config();
    let targets = format!(
        "outbox: {{ targets: [{{ name: later, url: \"{}\" }}] }}\n",
        receiver.url()
    );
    gateway.reconfigure(&format!("{before}{targets}"));
    gateway.sighup();
    receiver.begun(1).await;
    place.until_state("waits", "delivered").await;
    assert_eq!(keys_seen(&receiver), ["waits"]);

    let folder = TempDir::new().unwrap();
    let file = folder.path().join("memory.yaml");
    std::fs::write(&file, format!("store: {{ url: \"memory:\" }}\n{targets}")).unwrap();
    let mut command = Command::new(binary());
    let output = command.arg("worker").arg("--config").arg(&file).output();
    let output = tokio::time::timeout(DEADLINE, output)
        .await
        .unwrap()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a memory store has no outbox"), "{said}");
}

/// Goal: a message that nobody here can deliver says why it waits.
///
/// Method: a message to a target that the configuration does not name, and one to a receiver that answers 503.
/// Evidence: what each waits for; the first is never tried.
#[tokio::test]
async fn a_message_says_what_it_waits_for() {
    let (upstream, receiver) = (Upstream::start(), Upstream::start());
    let place = Place::new().await;
    let targets = format!(
        "outbox: {{ targets: [{{ name: receipts, url: \"{}\" }}] }}",
        receiver.url()
    );
    let setup = Setup::with("").store(&place.url).top(&targets);
    let gateway = setup.start(&upstream).await;
    receiver.next(Script::reply(503));
    receiver.next(Script::reply(503));
    receiver.next(Script::reply(503));
    place.enqueue("receipt", "misspelled");
    place.enqueue("receipts", "refused");
    let waits_for = async |key: &str| {
        let listed = Request::get("/outbox?state=pending");
        let listed = gateway.admin(listed).await.expect(200).json();
        let mut messages = listed["messages"].as_array()?.iter();
        let message = messages.find(|one| one["downstream_key"] == key)?;
        let waits_for = message["waits_for"].as_str()?.to_owned();
        Some((waits_for, message["attempts"].as_u64()?))
    };
    eventually("the refused message to be tried again later", async || {
        let (waits_for, _) = waits_for("refused").await?;
        (waits_for == "next_attempt").then_some(())
    })
    .await;
    let misspelled = waits_for("misspelled").await;
    assert_eq!(misspelled, Some(("no_such_target".to_owned(), 0)));
}

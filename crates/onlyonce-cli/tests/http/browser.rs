//! The dashboard and the demo's page in a real browser.

mod tools;

use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    task::JoinSet,
};

use crate::{
    harness::{
        Connection, Gateway, Request, Script, Setup, Upstream, client, eventually,
        process::{TOKEN, binary},
        soak, within,
    },
    outbox::Place,
};

/// Goal: an operator can watch, find, understand and settle keys and messages in a browser, and nobody else
/// can.
///
/// Method: `tests/browser/dashboard.mjs` in chromium, before a gateway with keys and messages in several
/// states.
/// Evidence: what the page shows; the gateway's answers to retries; the counts of upstream and receiver.
#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard() {
    let (upstream, receiver, provider) = (Upstream::start(), Upstream::start(), Upstream::start());
    let place = Place::new().await;
    let reconcile = format!(
        "reconcile: {{ query: {{ url: \"{}/q?key={{key}}\" }}, after: 10ms, attempts: 1, \
         outcomes: [{{ when: {{ status: [299] }}, complete: {{ status: 200 }} }}] }}",
        provider.url()
    );
    let targets = format!(
        "outbox: {{ targets: [{{ name: receipts, url: \"{}\" }}] }}",
        receiver.url()
    );
    let setup = Setup::with(&reconcile)
        .store(&place.url)
        .top(&targets)
        .workers("reconcile_every: 100ms")
        .admin("readonly_token_env: LOOK")
        .env("LOOK", "just-looking");
    let gateway = setup.start(&upstream).await;
    for key in ["letter", "spoiled", "kept"] {
        receiver.next(Script::reply(422));
        place.enqueue("receipts", key);
        place.until_state(key, "dead").await;
    }
    place.enqueue("receipt", "misspelled");
    // The page's own requests come to this address, and the host is a part of a request.
    let host = gateway.data().to_string();
    let pay = |key: &str| Request::pay(key).host(&host);
    gateway.send(&pay("done")).await.expect(201);
    let markup = r#"{"note":"<script>window.pwned = 1</script>"}"#;
    upstream.next(Script::created().body(markup));
    gateway.send(&Request::pay("markup")).await.expect(201);
    let key = "<img/src=x/onerror=window.pwned=2>";
    gateway.send(&Request::pay(key)).await.expect(201);
    for key in ["lost", "bulk-1", "bulk-2", "guarded"] {
        upstream.next(Script::hang_up());
        gateway.send(&pay(key)).await.expect(502);
    }
    eventually("unknown keys to be dead letters", async || {
        let letters = Request::get("/dead-letters?kind=reconcile");
        let letters = gateway.admin(letters).await.expect(200).json();
        (letters["dead_letters"].as_array()?.len() == 4).then_some(())
    })
    .await;
    let there = json!({
        "admin": gateway.admin_addr().to_string(),
        "data": gateway.data().to_string(),
        "token": TOKEN,
        "readonly": "just-looking",
        "pid": gateway.pid(),
    });
    if tools::run("dashboard.mjs", &there).await {
        for key in ["done", "lost", "guarded"] {
            assert_eq!(upstream.executions_of(key), 1, "{key}");
        }
        assert_eq!(gateway.state("guarded").await, "unknown");
        let received = ["letter", "spoiled", "kept"].map(|key| receiver.executions_of(key));
        assert_eq!(received, [2, 1, 1], "sent again under the same key");
    }
}

/// Goal: whoever runs a route in shadow mode sees what switching it on would change, and for whom.
///
/// Method: `tests/browser/shadow.mjs` after requests of two clients.
/// Evidence: the figures that the page shows, by client; everything was executed.
#[tokio::test(flavor = "multi_thread")]
async fn the_shadow_report() {
    let upstream = Upstream::start();
    let setup = Setup::with("shadow: true").clients(&["acme", "globex"]);
    let gateway = setup.start(&upstream).await;
    let keyless = || Request::post("/payments").json("{}").of_client("globex");
    for request in [
        Request::pay("k").of_client("acme"),
        Request::pay("k").of_client("acme"),
        Request::pay("k").of_client("globex"),
        keyless().key("k"),
        keyless(),
        keyless(),
    ] {
        gateway.send(&request).await.expect(201);
    }
    assert_eq!(upstream.executions(), 6);
    let place = json!({ "admin": gateway.admin_addr().to_string(), "token": TOKEN });
    tools::run("shadow.mjs", &place).await;
}

/// Goal: the list of keys is there at once, however many there are.
///
/// Method: 100,000 keys with `--soak`, some thousand otherwise; the list is opened five times.
/// Evidence: the browser's own first paint and the moment of the first row, printed; under a second by
/// the full count.
#[tokio::test(flavor = "multi_thread")]
async fn many_keys() {
    const LANES: usize = 16;
    let keys = if soak() { 100_000 } else { 1_600 };
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let mut connection = Connection::open(gateway.data())
            .await
            .expect("a connection");
        lanes.spawn(async move {
            for number in 0..keys / LANES {
                let request = Request::pay(&format!("key-{lane}-{number}"));
                connection.write(&request.bytes()).await.expect("a request");
                let answer = connection.response().await.expect("an answer");
                answer.expect(201);
            }
        });
    }
    lanes.join_all().await;
    let place = json!({
        "admin": gateway.admin_addr().to_string(),
        "token": TOKEN,
        "keys": keys,
        "most": soak().then_some(1_000),
    });
    tools::run("many.mjs", &place).await;
    assert_eq!(upstream.executions(), keys);
}

/// The demo, ended when dropped: its children end with it.
struct Demo {
    _child: Child,
    _folder: TempDir,
    page: String,
    api: String,
}

impl Demo {
    async fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut child = Command::new(binary())
            .args(["demo", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--api", "127.0.0.1:0", "--page", "127.0.0.1:0", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary can be started");
        let out = child.stdout.take().expect("a piped standard output");
        let mut lines = BufReader::new(out).lines();
        let mut place = async |name: &str| loop {
            let line = within("the demo's text", lines.next_line()).await;
            let line = line.expect("its output").expect("more of it");
            let mut words = line.split_whitespace();
            if words.next() == Some(name)
                && let Some(address) = words.next().and_then(|url| url.strip_prefix("http://"))
            {
                return address.to_owned();
            }
        };
        let (page, api) = (place("page").await, place("API").await);
        // What it says from now on is read, so that it never waits for a reader.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self {
            _child: child,
            _folder: folder,
            page,
            api,
        }
    }

    /// What a ledger of the API counts.
    async fn count(&self, path: &str) -> usize {
        let address = self.api.parse().expect("an address");
        let answer = client::send(address, &Request::get(path))
            .await
            .expect("an answer");
        answer.expect(200).text().trim().parse().expect("a number")
    }
}

/// Goal: the demo's page shows the difference: one charge with OnlyOnce, more without.
///
/// Method: `tests/browser/story.mjs` presses the buttons of `onlyonce demo`.
/// Evidence: the API's own ledgers, as the page shows them and as the API tells.
#[tokio::test(flavor = "multi_thread")]
async fn the_story() {
    let demo = Demo::start().await;
    let place = json!({ "page": demo.page });
    if tools::run("story.mjs", &place).await {
        // Six purchases: pay, fifty clicks, a lost answer, a provider that hangs up, a pause, a kill.
        assert_eq!(demo.count("/ledger/count").await, 6);
        assert!(demo.count("/without/ledger/count").await > 50);
    }
}

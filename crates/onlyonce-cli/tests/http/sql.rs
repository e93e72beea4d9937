//! SQL functions beside gateways: programs in Python and Node, and applications that settle the
//! gateway's own key in their transaction.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use onlyonce_testkit::servers::{Postgres, free_port};
use tokio::time::Instant;

use crate::harness::{
    Gateway, REPLAYED, Request, Setup, Upstream, client, eventually, ms, process,
};

const TABLE: &str = "CREATE TABLE payments (id bigserial PRIMARY KEY, key text, amount bigint);";
const GUIDE: &str = include_str!("../../../../docs/guide/sql.md");

/// Debian's Python, which has psycopg from `./test`.
fn python() -> Command {
    let found = Command::new("/usr/bin/python3")
        .args(["-c", "import psycopg"])
        .status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "python3-psycopg is not installed: run ./test, which installs it"
    );
    Command::new("/usr/bin/python3")
}

/// Node with `pg`, which `./test` puts under `target/node`.
fn node() -> Command {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/node/node_modules");
    assert!(
        modules.join("pg").exists(),
        "the package pg is not installed: run ./test, which installs it"
    );
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command
}

/// A server with the schema and the application's table.
pub(crate) fn database() -> Postgres {
    let server = Postgres::start();
    let made = Command::new(process::binary())
        .args(["migrate", "--store", &server.url()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    server.sql(TABLE);
    server
}

/// An application behind the gateway; killed when dropped.
struct App {
    child: Child,
    port: u16,
}

impl App {
    fn start(command: Command, program: &str, url: &str) -> Self {
        Self::start_at(command, program, url, free_port())
    }

    fn start_at(mut command: Command, program: &str, url: &str, port: u16) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/http/sql")
            .join(program);
        let mut child = command
            .arg(program)
            .arg(port.to_string())
            .env("DATABASE_URL", url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(
            line.trim(),
            port.to_string(),
            "the application did not start"
        );
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn effects(server: &Postgres, key: &str) -> String {
    server.sql(&format!(
        "SELECT count(*) FROM payments WHERE key = '{key}'"
    ))
}

async fn pair(server: &Postgres, app: &App, options: &str) -> (Gateway, Gateway) {
    let setup = Setup::with(options).store(&server.url());
    (
        setup.clone().start_before(&app.url()).await,
        setup.start_before(&app.url()).await,
    )
}

/// Goal: the gap between the application's commit and the gateway's record is closed.
///
/// Method: applications in Python and in Node settle in their transaction, behind two gateways. The
/// gateway is killed after the application's commit and before its own write; the application is
/// killed after its commit; the application is killed before it.
/// Evidence: the application's own table has one row a key; the key is completed, and every answer is
/// what was settled, to the byte; killed before its commit, the key is unknown and there is no row.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_settles_its_key() {
    let server = database();
    for (command, program, by) in [
        (python as fn() -> Command, "app.py", "python"),
        (node, "app.js", "node"),
    ] {
        let key = |name: &str| format!("{by}-{name}");
        let mut app = App::start(command(), program, &server.url());
        let (mut a, b) = pair(&server, &app, "lease: 1s").await;

        // Nothing goes wrong: the first answer and its replay through the other node.
        let first = a.send(&Request::pay(&key("good"))).await.expect(201);
        let again = b.send(&Request::pay(&key("good"))).await.expect(201);
        assert_eq!(
            (again.header(REPLAYED), &again.body),
            (Some("true"), &first.body)
        );
        if by == "python" {
            assert_eq!(again.headers.all("link"), ["<a>", "<b>"]);
            assert_eq!(again.header("set-cookie"), None);
        }

        // The gateway dies between the application's commit and its own write.
        let silent = Request::pay(&key("gateway")).header("X-Mode", "silent");
        let addr = a.data();
        let lost = tokio::spawn({
            let silent = silent.clone();
            async move { client::send(addr, &silent).await }
        });
        eventually("the application's commit", async || {
            (effects(&server, &key("gateway")) == "1").then_some(())
        })
        .await;
        a.kill9().await;
        assert!(lost.await.unwrap().is_err());
        let answer = b.send(&silent).await.expect(201);
        assert_eq!(answer.header(REPLAYED), Some("true"));
        assert!(answer.text().contains(by), "{answer}");
        assert_eq!(b.state(&key("gateway")).await, "completed");
        a.restart().await;
        assert_eq!(a.send(&silent).await.expect(201).body, answer.body);

        // The application dies after its commit: its client still gets what it settled.
        let die = Request::pay(&key("application")).header("X-Mode", "die");
        let first = a.send(&die).await.expect(201);
        assert!(first.text().contains(by), "{first}");
        assert_eq!(b.send(&die).await.expect(201).body, first.body);
        assert!(app.ended());

        if by == "python" {
            let port = app.port;
            let _app = App::start_at(command(), program, &server.url(), port);
            let die = Request::pay(&key("neither")).header("X-Mode", "die-first");
            a.send(&die)
                .await
                .refused(502, "idempotency_outcome_unknown");
            b.send(&die)
                .await
                .refused(409, "idempotency_outcome_unknown");
            assert_eq!(effects(&server, &key("neither")), "0");
        }
        for name in ["good", "gateway", "application"] {
            assert_eq!(effects(&server, &key(name)), "1", "{by} {name}");
        }
    }
}

/// Goal: an application that holds its transaction open, with the key settled in it, is alive; and no
/// other key waits for it.
///
/// Method: lease 1 s, so that heartbeats and the sweeper meet the locked row many times in 2.5 s; eight
/// clients send other keys all the while, and for as long without it. A machine that does something
/// else at that moment gets two more tries.
/// Evidence: the held key ends completed with one row; the slowest other key took at most 100 ms longer
/// than without the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_row_delays_nobody() {
    let server = database();
    let app = App::start(python(), "app.py", &server.url());
    let upstream = Upstream::start();
    let gateway = two_routes(&server, &app, &upstream).await;
    let mut delays = Vec::new();
    for round in 0..3 {
        let free = slowest(&gateway, &format!("free-{round}"), ms(1_500)).await;
        let key = format!("held-{round}");
        let held = Request::post("/held")
            .key(&key)
            .json("{}")
            .header("X-Mode", "hold=2.5");
        let held = gateway.send_later(&held);
        tokio::time::sleep(ms(400)).await;
        let beside = slowest(&gateway, &format!("beside-{round}"), ms(1_800)).await;
        assert!(
            !held.is_finished(),
            "the transaction was not held long enough"
        );
        let answer = held.await.unwrap().expect(201);
        assert!(answer.text().contains("python"), "{answer}");
        assert_eq!(gateway.state(&key).await, "completed");
        assert_eq!(effects(&server, &key), "1");
        println!("slowest other key: {free:?} without the lock, {beside:?} beside it");
        let delay = beside.saturating_sub(free);
        if delay <= ms(100) {
            return;
        }
        delays.push(delay);
    }
    panic!("other keys were delayed by {delays:?}");
}

/// A gateway with a route to the application and one to an upstream that answers at once.
async fn two_routes(server: &Postgres, app: &App, upstream: &Upstream) -> Gateway {
    let route = format!(
        "idempotency: {{ lease: 1s }}\n  - id: held\n    path: /held\n    backends: [{{ url: \"{}\" }}]",
        app.url()
    );
    Setup::with("lease: 1s")
        .store(&server.url())
        .route(&route)
        .start(upstream)
        .await
}

/// The longest that any of eight clients waited for any of their keys.
async fn slowest(gateway: &Gateway, prefix: &str, during: Duration) -> Duration {
    let end = Instant::now() + during;
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (addr, prefix) = (gateway.data(), prefix.to_owned());
            tokio::spawn(async move {
                let mut slowest = Duration::ZERO;
                for number in 0.. {
                    let key = format!("{prefix}-{client}-{number}");
                    let began = Instant::now();
                    let answer = client::send(addr, &Request::pay(&key)).await.unwrap();
                    slowest = slowest.max(began.elapsed());
                    assert_eq!(answer.status, 201, "{answer}");
                    if Instant::now() > end {
                        break;
                    }
                }
                slowest
            })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for client in clients {
        slowest = slowest.max(client.await.unwrap());
    }
    slowest
}

/// Goal: a forged, stale or foreign token settles nothing.
///
/// Method: against a key in progress: tokens of no form, with another attempt, with another key's id,
/// with the attempt of an earlier execution; then the right one.
/// Evidence: each raises `OO001`; the row is as it was to the byte; the right one completes it.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_right_token_settles() {
    let server = database();
    let upstream = Upstream::start();
    let gateway = Setup::with("lease: 60s")
        .store(&server.url())
        .start(&upstream)
        .await;
    // Released once, so that there is an attempt of the past.
    upstream.next(crate::harness::Script::reply(503));
    gateway.send(&Request::pay("k")).await.expect(503);
    let stale = upstream.requests()[0]
        .headers
        .one("idempotency-attempt")
        .unwrap()
        .to_owned();
    upstream.next(crate::harness::Script::created().held());
    let running = gateway.send_later(&Request::pay("k"));
    upstream.begun(2).await;
    let token = upstream.requests()[1]
        .headers
        .one("idempotency-attempt")
        .unwrap()
        .to_owned();
    upstream.next(crate::harness::Script::created().held());
    let foreign = gateway.send_later(&Request::pay("other"));
    upstream.begun(3).await;
    let other = upstream.requests()[2]
        .headers
        .one("idempotency-attempt")
        .unwrap()
        .to_owned();
    assert_ne!(stale, token);

    let row = "SELECT md5(k::text) FROM onlyonce.keys k WHERE key = 'k'";
    let before = server.sql(row);
    let flipped = format!(
        "{}{}",
        &token[..63],
        if token.ends_with('0') { '1' } else { '0' }
    );
    let forged = [
        String::new(),
        "forged".to_owned(),
        token[..63].to_owned(),
        format!("{token}0"),
        token.to_uppercase(),
        flipped,
        stale,
        format!("{}{}", &token[..32], &other[32..]),
        format!("{}{}", &other[..32], &token[32..]),
        "0".repeat(64),
    ];
    for token in forged {
        let sql = format!(
            "DO $$ BEGIN PERFORM onlyonce.settle('{token}', 200, '{{}}', 'forged'); \
             RAISE 'it settled'; EXCEPTION WHEN SQLSTATE 'OO001' THEN NULL; END $$"
        );
        server.sql(&sql);
        assert_eq!(server.sql(row), before, "{token}");
    }
    let settle =
        format!("SELECT onlyonce.settle('{token}', 202, '{{\"etag\": \"x\"}}', 'settled')");
    assert_eq!(server.sql(&settle), "completed");
    // Again it would be a second effect.
    server.sql(&format!(
        "DO $$ BEGIN PERFORM onlyonce.settle('{token}', 202, '{{}}', 'again'); \
         RAISE 'it settled'; EXCEPTION WHEN SQLSTATE 'OO004' THEN NULL; END $$"
    ));
    upstream.release();
    upstream.release();
    // The first client gets what was settled, not what the upstream said.
    for answer in [
        running.await.unwrap(),
        gateway.send(&Request::pay("k")).await,
    ] {
        let answer = answer.expect(202);
        assert_eq!(
            (answer.text().as_str(), answer.header("etag")),
            ("settled", Some("x"))
        );
    }
    foreign.await.unwrap().expect(201);
    assert_eq!(upstream.executions_of("k"), 2);
}

/// The first code block of the guide in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = GUIDE
        .split_once(&format!("```{language}\n"))
        .expect("a block");
    rest.split_once("```").expect("its end").0
}

fn said(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Goal: the programs of the guide run as they stand there, against one database with two gateways.
///
/// Method: the Python and the Node program, several of each at once, for the same keys, while two
/// gateways serve the database; then again; then the psql session.
/// Evidence: one row and one message a key, one program executed it, and all say the same answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_programs_of_the_guide() {
    let server = database();
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&server.url());
    let gateways = [
        setup.clone().start(&upstream).await,
        setup.start(&upstream).await,
    ];
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (py, js) = (
        file("guide.py", block("python")),
        file("guide.js", block("js")),
    );
    let run = |key: &str| -> Vec<String> {
        let children: Vec<Child> = [(python as fn() -> Command, &py), (node, &js)]
            .into_iter()
            .cycle()
            .take(4)
            .map(|(command, program)| {
                command()
                    .arg(program)
                    .args([key, "42"])
                    .env("DATABASE_URL", server.url())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        children
            .into_iter()
            .map(|child| said(&child.wait_with_output().unwrap()))
            .collect()
    };
    for number in 0..3 {
        let key = format!("guide-{number}");
        gateways[number % 2]
            .send(&Request::pay(&key))
            .await
            .expect(201);
        let mut lines = run(&key);
        lines.sort();
        let answer = lines[0]
            .strip_prefix("execute ")
            .expect("one executed")
            .to_owned();
        for line in &lines[1..] {
            assert_eq!(*line, format!("replay {answer}"));
        }
        assert_eq!(effects(&server, &key), "1");
    }
    assert_eq!(server.sql("SELECT count(*) FROM onlyonce.outbox"), "3");
    assert_eq!(upstream.executions(), 3);

    let session = file("guide.psql", block("psql"));
    let psql = Command::new("psql")
        .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f"])
        .arg(session)
        .args(["-d", &server.url()])
        .output()
        .unwrap();
    assert_eq!(said(&psql), "completed\nreplay|200|shipped");
}

/// Goal: with encryption on, the functions write no plain answer unless they are allowed to.
///
/// Method: a gateway with keys; an application's settle; the same with `plain_settle: true`.
/// Evidence: `OO002` and an untouched row; then a completed key that is replayed to the byte.
#[tokio::test(flavor = "multi_thread")]
async fn encryption_refuses_plain_answers() {
    let server = database();
    for (options, allowed) in [("", false), (", plain_settle: true", true)] {
        let upstream = Upstream::start();
        upstream.always(crate::harness::Script::created().held());
        let gateway = Setup::with("")
            .store(&server.url())
            .store_options(&format!("encryption_key_env: SQL_TEST_KEYS{options}"))
            .env(
                "SQL_TEST_KEYS",
                "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
            )
            .start(&upstream)
            .await;
        let key = format!("sealed-{allowed}");
        let running = gateway.send_later(&Request::pay(&key));
        upstream.begun(1).await;
        let token = upstream.requests()[0]
            .headers
            .one("idempotency-attempt")
            .unwrap()
            .to_owned();
        let settle = format!("SELECT onlyonce.settle('{token}', 200, '{{}}', 'settled')");
        if allowed {
            assert_eq!(server.sql(&settle), "completed");
        } else {
            server.sql(&format!(
                "DO $$ BEGIN PERFORM onlyonce.settle('{token}', 200, '{{}}', 'x'); RAISE 'it settled'; \
                 EXCEPTION WHEN SQLSTATE 'OO002' THEN NULL; END $$"
            ));
        }
        upstream.release();
        let first = running.await.unwrap();
        let again = gateway.send(&Request::pay(&key)).await;
        assert_eq!(again.header(REPLAYED), Some("true"));
        assert_eq!((first.status, &first.body), (again.status, &again.body));
        assert_eq!(first.text() == "settled", allowed);
    }
}

/// Goal: a key that an application's table refers to can be reaped; by the functions and by a gateway.
///
/// Method: a payment that refers to its key, `ON DELETE SET NULL`; everything is past its time.
/// Evidence: the key is gone, the payment is there, and refers to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn reaped_under_a_foreign_key() {
    let server = database();
    let (_, rest) = GUIDE.split_once("ALTER TABLE payments ADD").unwrap();
    let alter = rest.split_once("```").unwrap().0;
    server.sql(&format!("ALTER TABLE payments ADD{alter}"));
    for key in ["one", "two"] {
        server.sql(&format!(
            "DO $$ DECLARE token text; BEGIN \
             SELECT attempt_token INTO token FROM onlyonce.reserve('app', '{key}', tombstone_ttl => '1 ms'); \
             INSERT INTO payments (key, key_id) VALUES ('{key}', left(token, 32)::uuid); \
             PERFORM onlyonce.complete(token, 200, '{{}}', 'done', ttl => '1 ms'); \
             PERFORM pg_sleep(0.01); END $$"
        ));
        assert_eq!(
            server.sql("SELECT count(*) FROM payments WHERE key_id IS NOT NULL"),
            "1"
        );
        if key == "one" {
            assert_eq!(server.sql("SELECT onlyonce.reap()"), "1");
            assert_eq!(server.sql("SELECT onlyonce.reap()"), "0");
            assert_eq!(server.sql("SELECT onlyonce.reap()"), "1");
        } else {
            let upstream = Upstream::start();
            let setup = Setup::with("")
                .store(&server.url())
                .workers("reap_every: 50ms");
            let _gateway = setup.start(&upstream).await;
            eventually("the gateway to reap it", async || {
                (server.sql("SELECT count(*) FROM onlyonce.readable_keys") == "0").then_some(())
            })
            .await;
        }
        assert_eq!(
            server.sql("SELECT count(*) FROM payments WHERE key_id IS NULL"),
            if key == "one" { "1" } else { "2" }
        );
    }
}

/// Goal: a role that may reserve cannot take keys away from a gateway's clients.
///
/// Method: a role with the rights of the guide, in scopes of its own and in those of gateways; and a
/// member of the role that owns the schema.
/// Evidence: `insufficient_privilege`, and no row; scopes of one's own work, and the owner's members may.
#[test]
fn scopes_of_gateways_are_theirs() {
    let server = database();
    let (_, rest) = GUIDE.split_once("```sql\n").unwrap();
    let grants = rest.split_once("```").unwrap().0;
    server.sql(&format!(
        "CREATE ROLE app LOGIN; CREATE ROLE trusted LOGIN; GRANT onlyonce TO trusted; {grants}"
    ));
    for scope in ["global", "client:acme", "route:r", "route:r/client:acme"] {
        let refused = server.sql(&format!(
            "SET SESSION AUTHORIZATION app; \
             DO $$ BEGIN PERFORM onlyonce.reserve('{scope}', 'k'); RAISE EXCEPTION 'reserved'; \
             EXCEPTION WHEN insufficient_privilege THEN NULL; END $$; SELECT 'refused'"
        ));
        assert_eq!(refused, "refused", "{scope}");
    }
    let count = "SELECT count(*) FROM onlyonce.readable_keys";
    assert_eq!(server.sql(count), "0");
    for (role, scope) in [
        ("app", "app:orders"),
        ("app", "globally"),
        ("app", "app:orders/client:acme"),
        ("trusted", "client:acme"),
    ] {
        let outcome = server.sql(&format!(
            "SET SESSION AUTHORIZATION {role}; SELECT outcome FROM onlyonce.reserve('{scope}', 'k')"
        ));
        assert_eq!(outcome, "execute", "{role} {scope}");
    }
    assert_eq!(server.sql(count), "4");
}

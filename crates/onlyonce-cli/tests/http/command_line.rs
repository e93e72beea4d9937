//! What every command does alike: how it ends, what it prints where nobody looks, and where nobody
//! listens any more.

use std::process::{Command, Output};

use tempfile::TempDir;

use crate::{
    harness::{Gateway, Request, Script, Setup, Upstream, process::TOKEN},
    postgres_schema::{onlyonce, text},
};

/// Runs a command against a gateway.
async fn ask(gateway: &Gateway, args: &[&str]) -> Output {
    let mut command = prepared(gateway, args);
    let ended = tokio::task::spawn_blocking(move || command.output());
    ended.await.unwrap().unwrap()
}

fn prepared(gateway: &Gateway, args: &[&str]) -> Command {
    let mut command = Command::new(crate::harness::process::binary());
    let admin = format!("http://{}", gateway.admin_addr());
    command
        .args(args)
        .args(["--admin", &admin])
        .env("ONLYONCE_ADMIN_TOKEN", TOKEN);
    command
}

/// Goal: an argument that cannot be used is told from an answer that is no.
///
/// Method: such arguments of every command. Evidence: exit code 2 and a reason, and nothing was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_that_cannot_be_used() {
    let upstream = Upstream::start();
    let api = upstream.url();
    let resolve = "keys resolve x --outcome completed --status 201 --reason r --body-file /none";
    let lines = [
        "migrate --store bogus:",
        "migrate --store memory:",
        "migrate --store postgres://h:port/d",
        "migrate --store redis://127.0.0.1:1 --print",
        "serve --upstream nonsense",
        "serve --upstream http://127.0.0.1:1 --store bogus:",
        "serve --config /none --store bogus:",
        "worker --store bogus:",
        "worker --store redis://h:1/x",
        "bench --url zz",
        "bench --url https://127.0.0.1:1/",
        "bench --store bogus:",
        "bench --url http://127.0.0.1:99999/",
        "keys list --admin http://127.0.0.1:port",
        "top --admin http://127.0.0.1:99999",
        "verify http://127.0.0.1:port/",
        "keys list --store mysql://h:port/d",
        resolve,
        "keys forget --force --client ''",
        "keys forget --force --key ''",
        "keys forget --force ''",
        "keys show --key ''",
        "keys list --client ''",
        "keys resolve-dead-letters --outcome failed_retryable --reason r --because ''",
        "outbox retry ''",
        "reconcile --probe ''",
        "reconcile --probe k --store sqlite:x",
        "reconcile --probe k --config /none",
        &format!("verify {api}/x --only replay --skip replay"),
        &format!("verify {api}/x --only replay --junit /none/x.xml"),
        &format!("verify {api}/x --only replay --html /none/x.html"),
    ];
    for line in lines {
        let words: Vec<&str> = line
            .split(' ')
            .map(|word| word.trim_matches('\''))
            .collect();
        let output = onlyonce(&words);
        let why = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {why}");
        assert!(
            why.contains("error: ") && output.stdout.is_empty(),
            "{line}: {why}"
        );
    }
    assert_eq!(upstream.executions(), 0);
    let output = onlyonce(&["bench", "--url", "http://127.0.0.1:1/x", "--time", "200ms"]);
    assert_eq!(output.status.code(), Some(1), "nobody answered");
}

/// Goal: a client that was left empty, as an unset variable leaves it, is not everybody.
///
/// Method: `keys forget --client ''` beside keys of two clients. Evidence: both replay.
#[tokio::test]
async fn an_empty_client_is_nobody() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .clients(&["acme", "bob"])
        .start(&upstream)
        .await;
    for client in ["acme", "bob"] {
        gateway
            .send(&Request::pay("k").of_client(client))
            .await
            .expect(201);
    }
    for empty in [
        &["--client", ""][..],
        &["--key", "", "--client", "bob"],
        &["--key", ""],
        &[""],
    ] {
        let args = [&["keys", "forget", "--force"], empty].concat();
        let output = ask(&gateway, &args).await;
        assert_eq!(
            output.status.code(),
            Some(2),
            "{empty:?}: {}",
            text(&output.stdout)
        );
    }
    for client in ["acme", "bob"] {
        gateway
            .send(&Request::pay("k").of_client(client))
            .await
            .expect(201);
    }
    assert_eq!(upstream.executions(), 2);
}

/// Goal: whoever stops reading ends a command quietly.
///
/// Method: standard output is a pipe without a reader. Evidence: exit code 1, and no panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let id = gateway.id("k").await;
    let folder = TempDir::new().unwrap();
    let written = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let ledger = written("ledger.csv", "key,status\nk,succeeded\n");
    let api = written("api.yaml", "openapi: 3.0.3\npaths: { /a: { post: {} } }\n");
    let config = written("onlyonce.yaml", &gateway.config());
    let load = format!("http://{}/pay", gateway.data());
    let gone = |mut command: Command| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).output().unwrap();
        let why = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {why}");
        assert!(!why.contains("panicked"), "{command:?}: {why}");
    };
    for args in [
        &["keys", "list"][..],
        &["keys", "list", "--json"],
        &["keys", "show", &id],
        &["keys", "show", "nobody", "--json"],
        &["keys", "dead-letters"],
        &["outbox", "list"],
        &["top", "--once"],
        &["top", "--json"],
        &[
            "reconcile",
            "--route",
            "r",
            "--provider",
            &ledger,
            "--since",
            "1h",
        ],
        &["keys", "forget", &id, "--force"],
    ] {
        gone(prepared(&gateway, args));
    }
    for args in [
        &["schema"][..],
        &["check", &config],
        &["migrate", "--store", "sqlite:x", "--print"],
        &["audit", "--openapi", &api],
        &["audit", "--openapi", &api, "--json"],
        &["bench", "--url", &load, "--rate", "20", "--time", "200ms"],
    ] {
        let mut command = Command::new(crate::harness::process::binary());
        command.args(args);
        gone(command);
    }
}

/// Goal: a program that reads a table finds what stands in it.
///
/// Method: a long key, a long reason; the output is no terminal. Evidence: each in one line.
#[tokio::test]
async fn tables_for_programs() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let key = "a-long-key-".repeat(9);
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay(&key)).await.expect(502);
    let id = gateway.id(&key).await;
    let output = ask(&gateway, &["keys", "list"]).await;
    let shown = text(&output.stdout);
    let mut rows = shown.lines().filter(|line| line.contains(&id));
    let row = rows.next().unwrap_or_else(|| panic!("{shown}"));
    assert!(
        row.contains(&key) && row.contains("(connection_lost)"),
        "{shown}"
    );
}

/// Goal: the SQL that is printed for SQLite makes a store.
///
/// Method: run it on a new file, and look into that with the schema left alone.
/// Evidence: there are no keys; a gateway that may not migrate takes a payment.
#[tokio::test]
async fn printed_sql_makes_a_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("printed.db");
    let url = format!("sqlite:{}", file.display());
    let printed = onlyonce(&["migrate", "--store", &url, "--print"]);
    assert_eq!(printed.status.code(), Some(0));
    assert!(!file.exists());
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute_batch(&text(&printed.stdout)).unwrap();
    drop(database);
    let output = onlyonce(&["keys", "list", "--store", &url]);
    assert_eq!(
        text(&output.stdout),
        "no keys\n",
        "{}",
        text(&output.stderr)
    );
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&url).store_options("migrate: false");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
}

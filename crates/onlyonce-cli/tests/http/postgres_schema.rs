//! The schema of the PostgreSQL store: made, printed, refused, and newer than the program; and the
//! level that the server's settings come to.

use std::process::{Command, Output};

use onlyonce_testkit::servers::Postgres;

use crate::{
    harness::{Gateway, Request, Setup, Upstream},
    postgres::database,
};

pub(crate) fn onlyonce(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onlyonce"))
        .args(arguments)
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) async fn refused(upstream: &Upstream, setup: Setup) -> String {
    let folder = std::sync::Arc::new(tempfile::TempDir::new().unwrap());
    match setup.start_in(folder, &upstream.url()).await {
        Ok(_) => panic!("the gateway started"),
        Err(exit) => exit.logs,
    }
}

/// Goal: the schema can be made by the program, or by hand from what it prints.
///
/// Method: `migrate` twice; and on another database the printed SQL through psql.
/// Evidence: what it says; and a gateway that may not migrate runs on both.
#[tokio::test]
async fn made_by_the_program_or_by_hand() {
    let upstream = Upstream::start();
    let url = database();
    let made = onlyonce(&["migrate", "--store", &url]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let version = format!("version {}", onlyonce_store::postgres::VERSION);
    assert!(text(&made.stdout).contains(&format!("created the schema at {version}")));
    let again = onlyonce(&["migrate", "--store", &url]);
    assert!(text(&again.stdout).contains(&format!("the schema is at {version}")));

    let printed = onlyonce(&["migrate", "--store", &url, "--print"]);
    let server = Postgres::start();
    server.sql(&text(&printed.stdout));
    for url in [url, server.url()] {
        let setup = Setup::with("").store(&url).store_options("migrate: false");
        let gateway = setup.start(&upstream).await;
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    assert_eq!(upstream.executions(), 2);
}

/// Goal: a gateway that may not migrate refuses a database without a schema, and says what to do.
#[tokio::test]
async fn without_a_schema() {
    let upstream = Upstream::start();
    let setup = Setup::with("").store(&database());
    let logs = refused(&upstream, setup.store_options("migrate: false")).await;
    assert!(logs.contains("onlyonce migrate"), "{logs}");
}

/// Goal: programs of two versions run side by side while they are replaced one by one.
///
/// Method: a running gateway; an upgrade by hand that adds a column and a table and says that this
/// program can still use the schema; then one that says it cannot.
/// Evidence: the old gateway goes on, another of its version starts and replays; later a start is
/// refused, naming both versions.
#[tokio::test]
async fn a_newer_schema() {
    let upstream = Upstream::start();
    let server = Postgres::start();
    let setup = Setup::with("").store(&server.url());
    let old = setup.clone().start(&upstream).await;
    old.send(&Request::pay("before")).await.expect(201);
    let newer = onlyonce_store::postgres::VERSION + 1;
    server.sql(&format!(
        "ALTER TABLE onlyonce.keys ADD COLUMN later text; CREATE TABLE onlyonce.later (n bigint); \
         UPDATE onlyonce.meta SET value = '{newer}' WHERE name = 'schema_version'",
    ));
    old.send(&Request::pay("after")).await.expect(201);
    let beside: Gateway = setup.clone().start(&upstream).await;
    for key in ["before", "after"] {
        for gateway in [&old, &beside] {
            gateway.send(&Request::pay(key)).await.expect(201);
        }
    }
    assert_eq!(upstream.executions(), 2);
    server.sql(&format!(
        "UPDATE onlyonce.meta SET value = '{newer}' WHERE name = 'oldest_program'"
    ));
    let logs = refused(&upstream, setup).await;
    assert!(logs.contains("run a newer program"), "{logs}");
}

/// Goal: a row that this program cannot read is left alone and answered with 503.
#[tokio::test]
async fn a_row_of_a_newer_version() {
    let upstream = Upstream::start();
    let server = Postgres::start();
    let setup = Setup::with("").store(&server.url());
    // Every retry asks the store.
    let setup = setup.store_options("near_cache: 0");
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    server.sql("UPDATE onlyonce.keys SET row_version = 9");
    let answer = gateway.send(&Request::pay("k")).await;
    answer.refused(503, "idempotency_store_unavailable");
    assert_eq!(upstream.executions(), 1);
    assert_eq!(server.sql("SELECT row_version FROM onlyonce.keys"), "9");
}

/// Goal: the level is what the server's settings come to, and `payments` refuses less than `sync`.
#[tokio::test]
async fn levels() {
    let upstream = Upstream::start();
    for (setting, level) in [
        ("fsync=on", "sync"),
        ("fsync=off", "volatile"),
        ("synchronous_commit=off", "async"),
    ] {
        let server = Postgres::start_with(&[setting]);
        let setup = Setup::with("").store(&server.url());
        let gateway = setup.start(&upstream).await;
        let said = format!("level={level}");
        gateway.says(&said).await;
        let ready = gateway.admin_open("/readyz").await;
        assert!(ready.text().contains(level), "{ready}");
        if level == "sync" {
            continue;
        }
        let strict = Setup::with(
            "profile: payments, reconcile: operator, credential_headers: [Authorization]",
        )
        .store(&server.url());
        let logs = refused(&upstream, strict).await;
        assert!(logs.contains("demands a store of level sync"), "{logs}");
    }
}

/// Goal: the way to the server can be encrypted, and the server proven.
///
/// Method: a server that takes encrypted connections only, with a certificate of a CA of the tests;
/// the right CA, no CA, and a connection in plain text.
/// Evidence: with the CA the gateway serves, and the server says that the connection is encrypted;
/// otherwise it does not start.
#[tokio::test]
async fn tls() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/verify/tls");
    let server = Postgres::start();
    server.encrypt(
        &std::fs::read(format!("{folder}/server.pem")).unwrap(),
        &std::fs::read(format!("{folder}/server.key")).unwrap(),
    );
    let upstream = Upstream::start();
    let with = |options: &str| Setup::with("").store(&format!("{}?{options}", server.url()));
    let proven = with(&format!("sslmode=verify-full&sslrootcert={folder}/ca.pem"));
    let gateway = proven.start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    let encrypted = server.sql(
        "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
         WHERE application_name = 'onlyonce'",
    );
    assert_eq!(encrypted, "t");
    for other in ["sslmode=verify-full", "sslmode=disable"] {
        refused(&upstream, with(other)).await;
    }
    assert_eq!(upstream.executions(), 1);
}

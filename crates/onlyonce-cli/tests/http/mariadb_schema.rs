//! The schema of the MySQL store: made, printed, refused, and newer than the program; the level that
//! the server's settings come to; and the command line on such a store.

use onlyonce_store::mysql::VERSION;
use onlyonce_testkit::servers::MariaDb;

use crate::{
    harness::{Request, Setup, Upstream},
    mariadb::database,
    postgres_schema::{onlyonce, refused, text},
};

/// Goal: the schema can be made by the program, or by hand from what it prints; and without one, a
/// gateway that may not migrate says what to do.
///
/// Method: `migrate` twice; and on another database the printed SQL through the server's client.
/// Evidence: what it says; and a gateway that may not migrate runs on both, and on no third one.
#[tokio::test]
async fn made_by_the_program_or_by_hand() {
    let upstream = Upstream::start();
    let url = database();
    let made = onlyonce(&["migrate", "--store", &url]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let version = format!("version {VERSION}");
    assert!(text(&made.stdout).contains(&format!("created the schema at {version}")));
    // The other name for it.
    let other_name = url.replace("mysql://", "mariadb://");
    let again = onlyonce(&["migrate", "--store", &other_name]);
    assert!(text(&again.stdout).contains(&format!("the schema is at {version}")));

    let printed = onlyonce(&["migrate", "--store", &url, "--print"]);
    let server = MariaDb::start();
    // Whoever was interrupted begins anew.
    for _ in 0..2 {
        server.sql(&text(&printed.stdout));
    }
    for url in [url, server.url()] {
        let setup = Setup::with("").store(&url).store_options("migrate: false");
        let gateway = setup.start(&upstream).await;
        gateway.send(&Request::pay("k")).await.expect(201);
    }
    assert_eq!(upstream.executions(), 2);
    let setup = Setup::with("").store(&database());
    let logs = refused(&upstream, setup.store_options("migrate: false")).await;
    assert!(logs.contains("onlyonce migrate"), "{logs}");
}

/// Goal: programs of two versions run side by side while they are replaced one by one; and a row that
/// this program cannot read is left alone and answered with 503.
///
/// Method: a running gateway; an upgrade by hand that adds a column and says that this program can
/// still use the schema; then one that says it cannot; then a row of a version to come.
/// Evidence: the old gateway goes on, another of its version starts and replays; later a start is
/// refused, naming both versions; the row stays as it is.
#[tokio::test]
async fn a_newer_schema_and_a_newer_row() {
    let upstream = Upstream::start();
    let server = MariaDb::start();
    // Every retry asks the store.
    let setup = Setup::with("").store(&server.url());
    let setup = setup.store_options("near_cache: 0");
    let old = setup.clone().start(&upstream).await;
    old.send(&Request::pay("before")).await.expect(201);
    let newer = VERSION + 1;
    server.sql(&format!(
        "ALTER TABLE onlyonce_keys ADD COLUMN later BLOB; \
         UPDATE onlyonce_meta SET value = '{newer}' WHERE name = 'schema_version'"
    ));
    old.send(&Request::pay("after")).await.expect(201);
    let beside = setup.clone().start(&upstream).await;
    for key in ["before", "after"] {
        for gateway in [&old, &beside] {
            gateway.send(&Request::pay(key)).await.expect(201);
        }
    }
    assert_eq!(upstream.executions(), 2);
    server.sql(&format!(
        "UPDATE onlyonce_meta SET value = '{newer}' WHERE name = 'oldest_program'"
    ));
    let logs = refused(&upstream, setup).await;
    assert!(logs.contains("run a newer program"), "{logs}");

    server.sql("UPDATE onlyonce_keys SET row_version = 9 WHERE `key` = 'after'");
    let answer = old.send(&Request::pay("after")).await;
    answer.refused(503, "idempotency_store_unavailable");
    old.send(&Request::pay("before")).await.expect(201);
    assert_eq!(upstream.executions(), 2);
    let rows = "SELECT row_version FROM onlyonce_keys WHERE `key` = 'after'";
    assert_eq!(server.sql(rows), "9");
}

/// Goal: the level is what the server's settings come to, and `payments` refuses less than `sync`.
#[tokio::test]
async fn levels() {
    let upstream = Upstream::start();
    let settings = [
        (&["log_bin", "sync_binlog=1"][..], "sync"),
        (&["log_bin", "sync_binlog=0"], "async"),
        (&["innodb_flush_log_at_trx_commit=2"], "async"),
        (&["innodb_flush_method=nosync"], "volatile"),
    ];
    for (settings, level) in settings {
        let server = MariaDb::start_with(settings);
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

/// Goal: the way to the server can be encrypted, and the server proven; a password is used.
///
/// Method: a user that the server takes over encrypted connections only, with a certificate of a CA
/// of the tests; the right CA, no CA, a connection in plain text, and a wrong password.
/// Evidence: with the CA the gateway serves; otherwise it does not start, and never shows the password.
#[tokio::test]
async fn tls() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/http/verify/tls");
    let mut server = MariaDb::start();
    server.encrypt(
        &std::fs::read(format!("{folder}/server.pem")).unwrap(),
        &std::fs::read(format!("{folder}/server.key")).unwrap(),
    );
    server.sql(
        "CREATE USER guarded@'127.0.0.1' IDENTIFIED BY 'open-sesame' REQUIRE SSL; \
         GRANT ALL ON onlyonce.* TO guarded@'127.0.0.1'",
    );
    let upstream = Upstream::start();
    let with = |password: &str, options: &str| {
        let url = server
            .url()
            .replace("onlyonce@", &format!("guarded:{password}@"));
        Setup::with("").store(&format!("{url}?{options}"))
    };
    let proven = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={folder}/ca.pem");
    let gateway = with("open-sesame", &proven).start(&upstream).await;
    gateway.send(&Request::pay("k")).await.expect(201);
    assert!(!gateway.logs().contains("open-sesame"));
    for (password, options) in [
        ("open-sesame", "ssl-mode=VERIFY_IDENTITY"),
        ("open-sesame", "ssl-mode=DISABLED"),
        ("open-simsim", proven.as_str()),
    ] {
        let logs = refused(&upstream, with(password, options)).await;
        assert!(!logs.contains(password), "{logs}");
    }
    assert_eq!(upstream.executions(), 1);
}

//! What commands print can be used: the JSON Schema of the file, and the SQL of a store.

use std::sync::Arc;

use serde_json::Value;
use tokio::process::Command;

use crate::harness::{REPLAYED, Request, Setup, Upstream, process::binary, within};

const CHECKED_IN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/config.schema.json"
);

/// Goal: an editor can be given what the command prints.
///
/// Method: run it. Evidence: exit code 0, and the document that is checked in, of the draft it names.
#[tokio::test]
async fn the_command_prints_what_is_checked_in() {
    let mut command = Command::new(binary());
    let output = within("the schema", command.arg("schema").output()).await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checked_in: Value = serde_json::from_slice(&std::fs::read(CHECKED_IN).unwrap()).unwrap();
    assert_eq!(printed, checked_in);
    assert_eq!(
        printed["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
}

/// Goal: whoever must not let a gateway make its schema makes it from the printed SQL.
///
/// Method: `migrate --print` for SQLite, twice; a file from what it prints; a gateway with `migrate:
/// false` on it.
/// Evidence: the gateway starts, remembers and replays; two files have different secrets.
#[tokio::test]
async fn the_printed_sql_makes_a_store() {
    let folder = Arc::new(tempfile::TempDir::new().unwrap());
    let mut secrets = Vec::new();
    for name in ["onlyonce.db", "other.db"] {
        let mut command = Command::new(binary());
        let command = command.args(["migrate", "--store", "sqlite:x.db", "--print"]);
        let printed = within("the SQL", command.output()).await.unwrap();
        assert_eq!(printed.status.code(), Some(0));
        let sql = String::from_utf8(printed.stdout).unwrap();
        let file = rusqlite::Connection::open(folder.path().join(name)).unwrap();
        file.execute_batch(&sql).unwrap();
        let secret = "SELECT value FROM meta WHERE name = 'secret'";
        secrets.push(
            file.query_row(secret, [], |row| row.get::<_, Vec<u8>>(0))
                .unwrap(),
        );
    }
    assert_ne!(secrets[0], secrets[1]);
    let upstream = Upstream::start();
    let setup = Setup::with("").store_options("migrate: false");
    let started = setup.start_in(folder, &upstream.url()).await;
    let Ok(gateway) = started else {
        panic!("a gateway on the printed schema")
    };
    for replayed in [None, Some("true")] {
        let answer = gateway.send(&Request::pay("k")).await.expect(201);
        assert_eq!(answer.header(REPLAYED), replayed);
    }
    assert_eq!(upstream.executions(), 1);
}

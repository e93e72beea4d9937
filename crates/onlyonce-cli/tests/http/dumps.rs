//! What a thief of the database sees, on every store: with keys nothing that a client said or was told.

use std::{fs, path::Path, process::Command};

use onlyonce_testkit::servers::{MariaDb, Postgres, Redis};

use crate::{
    at_rest::{ENV, OLD},
    harness::{Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually},
};

/// The part of every canary that is looked for.
const CANARY: &[u8] = b"canary";
/// A dump that is shorter holds no record, so it would show nothing. A cache holds one alone.
const SHORTEST_DUMP_BYTES: usize = 1_000;

/// Redis keeps both of its kinds of file, up to date and as they are: it would compress the one.
const KEPT: &[&str] = &["appendonly yes", "appendfsync always", "rdbcompression no"];

/// Where records lie.
enum Place {
    Sqlite,
    Postgres(Postgres),
    MariaDb(MariaDb),
    Redis(Redis),
    Cached(Postgres, Redis),
}

impl Place {
    fn store(&self, setup: Setup, database: &str) -> Setup {
        match self {
            Self::Sqlite => setup,
            Self::Postgres(server) => setup.store(&server.database(database)),
            Self::Cached(server, cache) => {
                cache.cli(&["flushall"]);
                setup.store(&server.database(database))
            }
            Self::MariaDb(server) => setup.store(&server.database(database)),
            Self::Redis(server) => {
                server.cli(&["flushall"]);
                setup.store(&server.url())
            }
        }
    }

    /// Options of the store beside those of the test.
    fn options(&self) -> String {
        match self {
            Self::Cached(_, cache) => format!(", cache: \"{}\"", cache.url()),
            _ => String::new(),
        }
    }

    fn stolen(&self, gateway: &Gateway, database: &str) -> Vec<u8> {
        match self {
            Self::Sqlite => files_of(gateway),
            Self::Postgres(server) => dump_of_postgres(server, database),
            Self::MariaDb(server) => dump_of_mariadb(server, database),
            Self::Redis(server) => files_of_redis(server),
            // The database has a turn of its own.
            Self::Cached(_, cache) => files_of_redis(cache),
        }
    }
}

/// An answer and a request with a canary in every part.
fn canaries(key: &str) -> (Script, Request) {
    let more = "x".repeat(500);
    let body = format!("{{\"secret\":\"canary-body\",\"more\":\"{more}\"}}");
    let answer = Script::created()
        .header("Location", "/payments/canary-header")
        .body(body.as_bytes());
    let request = Request::post("/payments?canary-query=1")
        .key(key)
        .json("{\"card\":\"canary-request\"}")
        .of_client("canary-client");
    (answer, request)
}

/// A key that is replayed, and one whose outcome an operator decides with a reason.
async fn use_it(gateway: &Gateway, upstream: &Upstream) {
    let (answer, request) = canaries("canary-key");
    upstream.next(answer);
    let first = gateway.send(&request).await.expect(201);
    for _ in 0..3 {
        let again = gateway.send(&request).await.expect(201);
        assert_eq!(again.header(REPLAYED), Some("true"));
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("location"), Some("/payments/canary-header"));
    }
    let (_, other) = canaries("canary-broken");
    upstream.next(Script::hang_up());
    gateway.send(&other).await.expect(502);
    let record = gateway.record("canary-broken").await.unwrap();
    assert_eq!(record["scope"], "client:canary-client");
    let id = record["id"].as_str().unwrap();
    let path = format!("/idempotency/keys/{id}/resolve");
    let word = serde_json::json!({"outcome": "failed_retryable", "reason": "canary-reason", "force": true});
    gateway.admin_post(&path, &word).await.expect(200);
    let shown = gateway.full_record("canary-broken").await;
    assert!(shown.to_string().contains("canary-reason"), "{shown}");
    let listed = gateway
        .admin(Request::get("/idempotency/keys?client=canary-client"))
        .await
        .expect(200)
        .json();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 2, "{listed}");
}

/// Canaries in client id, key, query, request, header and body, and in an operator's reason, through a
/// gateway with keys and then one without; each time the thief comes afterwards.
async fn no_canary(place: Place) {
    let upstream = Upstream::start();
    for (keys, database, own) in [
        (true, "closed", format!("encryption_key_env: {ENV}")),
        (false, "open", "compression: none".to_owned()),
    ] {
        let setup = Setup::with("").store_options(&format!("{own}{}", place.options()));
        let setup = place.store(setup.env(ENV, OLD), database);
        let gateway = setup.clients(&["canary-client"]).start(&upstream).await;
        use_it(&gateway, &upstream).await;
        if let Place::Cached(_, cache) = &place {
            eventually("a copy in the cache", async || {
                (cache.cli(&["dbsize"]) != "0").then_some(())
            })
            .await;
        }
        let dump = place.stolen(&gateway, database);
        let bytes = dump.len();
        assert!(bytes > SHORTEST_DUMP_BYTES, "{bytes} bytes of dump");
        let holds = dump.windows(CANARY.len()).any(|window| window == CANARY);
        assert_eq!(holds, !keys, "with keys: {keys}, {bytes} bytes of dump");
    }
}

/// Goal: the file of SQLite and its log hold nothing that a client said or was told.
///
/// Evidence: a replay holds all canaries, the files none; without keys they hold some.
#[tokio::test]
async fn no_canary_on_sqlite() {
    no_canary(Place::Sqlite).await;
}

/// Goal: the same of what `pg_dump` writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_on_postgres() {
    no_canary(Place::Postgres(Postgres::start())).await;
}

/// Goal: the same of what `mariadb-dump` writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_on_mariadb() {
    no_canary(Place::MariaDb(MariaDb::start())).await;
}

/// Goal: the same of both files of Redis, the snapshot and the log of all writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_on_redis() {
    no_canary(Place::Redis(Redis::start_with(KEPT))).await;
}

/// Goal: the same of a Redis that is a cache in front of SQL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_canary_in_a_cache() {
    no_canary(Place::Cached(Postgres::start(), Redis::start_with(KEPT))).await;
}

fn printed_by(program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {said}");
    output.stdout
}

fn dump_of_postgres(server: &Postgres, database: &str) -> Vec<u8> {
    let url = format!("postgres://onlyonce@127.0.0.1:{}/{database}", server.port());
    let mut bytes = printed_by("pg_dump", &["--inserts", "--dbname", &url]);
    // Bytes are hex in a dump: they are looked for as bytes, too.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    for (at, _) in text.match_indices("\\x") {
        let digits: Vec<u8> = text[at + 2..]
            .bytes()
            .take_while(u8::is_ascii_hexdigit)
            .collect();
        let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        bytes.extend(digits.chunks_exact(2).map(byte));
        bytes.push(b' ');
    }
    bytes
}

/// Bytes are bytes in this dump, and letters are never escaped.
fn dump_of_mariadb(server: &MariaDb, database: &str) -> Vec<u8> {
    let port = format!("--port={}", server.port());
    let dump = printed_by(
        "mariadb-dump",
        &[
            "--no-defaults",
            "--host=127.0.0.1",
            &port,
            "--user=onlyonce",
            "--skip-hex-blob",
            database,
        ],
    );
    let inserts = String::from_utf8_lossy(&dump)
        .matches("INSERT INTO")
        .count();
    assert!(inserts > 1, "the dump holds rows, {inserts} tables of them");
    dump
}

fn files_of_redis(server: &Redis) -> Vec<u8> {
    assert_eq!(server.cli(&["save"]), "OK");
    let snapshot = fs::read(server.folder().join("dump.rdb")).unwrap();
    let log = every_file_in(&server.folder().join("appendonlydir"), |_| true);
    [snapshot, log].concat()
}

/// The store's files, its log included.
pub(crate) fn files_of(gateway: &Gateway) -> Vec<u8> {
    every_file_in(gateway.folder().path(), |name| name.contains(".db"))
}

fn every_file_in(folder: &Path, wanted: fn(&str) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if wanted(&entry.file_name().to_string_lossy()) {
            bytes.extend(fs::read(entry.path()).unwrap());
        }
    }
    bytes
}

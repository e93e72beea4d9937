//! New keys on MariaDB, beside plain clients that send the same two statements one by one.
//!
//! ```text
//! cargo bench -p onlyonce-cli --bench mariadb            # about a minute
//! ```
//!
//! Everything runs on this machine: the server, the gateway, the API and the load share its cores.
//! Ratios of one run are what to compare, never figures of two.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark is about the real clock, and stops at what goes wrong"
)]

mod load {
    pub(crate) mod drive;
}

use std::{
    process::Command,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use load::drive::{ANSWER, IN_FLIGHT, ROUNDS, TIME, drive, line, median, p99, through_http};
use onlyonce_store::{
    Store,
    mysql::{MySqlOptions, MySqlStore},
};
use onlyonce_testkit::servers::MariaDb;

const CLIENTS: usize = 64;
/// Keys that the plain clients share between them in one measurement, for each of them.
const KEYS_OF_A_CLIENT: usize = 40;

/// The same row, the same indexes, the same answer: a reservation and its completion, each in a
/// transaction of its own, as mariadb-slap sends them.
fn statements() -> String {
    let hex: String = ANSWER.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "SET @id = RANDOM_BYTES(16);\
         INSERT INTO onlyonce_keys (id, is_live, row_version, revision, attempt_id, fence, \
         generation, tombstone_ttl, fingerprint, recipe, state, scope, `key`, route, method, path, \
         created_at, last_run_at, lease_until) VALUES (@id, 1, 1, 1, @id, 1, 1, 86400000, \
         REPEAT('x', 32), '12345678', 'in_progress', 'global', HEX(@id), 'r', 'POST', '/payments', \
         1794787200000, 1794787200000, 1794787260000) ON DUPLICATE KEY UPDATE id = id;\
         UPDATE onlyonce_keys SET revision = 2, state = 'completed', is_live = NULL, \
         completed_at = 1794787200100, expires_at = 1794873600100, lease_until = NULL, \
         response_status = 201, response_bytes = {}, response_head = x'01c90001010010', \
         response_body = x'{hex}' WHERE id = @id AND revision = 1",
        ANSWER.len()
    )
}

fn rows(server: &MariaDb) -> f64 {
    let sql = "SELECT COUNT(*) FROM onlyonce_keys WHERE is_live IS NULL";
    server.sql(sql).parse().unwrap()
}

/// One by one, by so many clients, so many keys each; keys per second.
fn plain(server: &MariaDb, clients: usize, keys: usize) -> f64 {
    let before = rows(server);
    let began = Instant::now();
    let output = Command::new("mariadb-slap")
        .args(["--no-defaults", "-h", "127.0.0.1", "-u", "onlyonce", "-P"])
        .arg(server.port().to_string())
        .args(["--create-schema=onlyonce", "--no-drop", "--delimiter=;"])
        .arg(format!("--concurrency={clients}"))
        // It counts statements, of which a key has three.
        .arg(format!("--number-of-queries={}", clients * keys * 3))
        .arg(format!("--query={}", statements()))
        .output()
        .unwrap();
    let took = began.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (rows(server) - before) / took
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server =
        MariaDb::start_with(&["innodb_buffer_pool_size=256M", "innodb_log_file_size=256M"]);
    let options = MySqlOptions {
        timeout: Duration::from_secs(30),
        ..MySqlOptions::default()
    };
    let store = runtime.block_on(MySqlStore::open(&server.url(), &options));
    let store: Arc<dyn Store> = Arc::new(store.unwrap());
    let next = Arc::new(AtomicU64::new(0));
    plain(&server, CLIENTS, KEYS_OF_A_CLIENT);
    drive(&runtime, &store, IN_FLIGHT, &next);

    let mut found = Vec::new();
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}", round + 1);
        let theirs = plain(&server, CLIENTS, KEYS_OF_A_CLIENT * 4);
        let (before, cpu) = (rows(&server), server.cpu_seconds());
        drop(drive(&runtime, &store, IN_FLIGHT, &next));
        let keys = rows(&server) - before;
        let ours = keys / TIME.as_secs_f64();
        let micros = (server.cpu_seconds() - cpu) * 1e6 / keys;
        let http = through_http(|name| server.database(name));
        let their_lone = 1e3 / plain(&server, 1, CLIENTS * 4);
        let times = drive(&runtime, &store, 1, &next);
        let mut both: Vec<f64> = times.into_iter().map(|(_, both)| both).collect();
        let mean = both.iter().sum::<f64>() / both.len() as f64;
        found.push([theirs, ours, http, micros, their_lone, mean, p99(&mut both)]);
    }
    let of = |value: fn(&[f64; 7]) -> f64| median(found.iter().map(value).collect());
    println!("medians of {ROUNDS}; ratios within one round, against plain clients");
    println!("{:<44} {:>10} {:>7}", "", "", "ratio");
    let rate = |value: f64| format!("{value:.0}/s");
    let millis = |value: f64| format!("{value:.2} ms");
    line(
        "64 plain clients, one by one: keys",
        rate(of(|r| r[0])),
        1.0,
    );
    line(
        "the store, 256 in flight: keys",
        rate(of(|r| r[1])),
        of(|r| r[1] / r[0]),
    );
    line(
        "the gateway, 256 in flight: keys",
        rate(of(|r| r[2])),
        of(|r| r[2] / r[0]),
    );
    line(
        "one plain client: mean of both statements",
        millis(of(|r| r[4])),
        1.0,
    );
    line(
        "the store, one client: mean of both",
        millis(of(|r| r[5])),
        of(|r| r[5] / r[4]),
    );
    println!("the store: MariaDB's CPU per key {:.1} us", of(|r| r[3]));
    println!(
        "the store, one client: p99 of both {}",
        millis(of(|r| r[6]))
    );
}

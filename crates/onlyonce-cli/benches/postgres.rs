//! New keys on PostgreSQL, beside pgbench that sends the same two statements one by one.
//!
//! ```text
//! cargo bench -p onlyonce-cli --bench postgres            # about two minutes
//! ONLYONCE_SOAK=1 cargo bench -p onlyonce-cli --bench postgres   # with 0.1, 1 and 10 million keys
//! ONLYONCE_SOAK=stored cargo bench -p onlyonce-cli --bench postgres   # that part alone
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
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use load::drive::{ANSWER, IN_FLIGHT, ROUNDS, TIME, drive, line, median, p99, through_http};
use onlyonce::{Engine, EngineOptions};
use onlyonce_store::{
    Store,
    postgres::{PostgresOptions, PostgresStore},
};
use onlyonce_testkit::servers::Postgres;

const PGBENCH_CLIENTS: usize = 64;
/// How much the reaper looks at between two pauses, and how long those are at least.
const STRETCH: usize = 200;
const REAPER_PAUSE: Duration = Duration::from_millis(20);
/// Clients beside the reaper: a load that leaves the machine some room.
const REAPED_BESIDE: usize = 8;
/// The same row, the same indexes, the same answer: a reservation and its completion, each in a
/// transaction of its own, in one table. `live` and the journal are left out, in favour of pgbench.
fn script() -> String {
    format!(
        "\\set a random(0, 9000000000000000000)\n\
         \\set b random(0, 9000000000000000000)\n\
         INSERT INTO onlyonce.keys (id, revision, tombstone_ttl, fence, generation, attempt_id, \
         fingerprint, recipe, state, scope, key, route, method, path, created_at, \
         lease_until, row_version) VALUES \
         (encode(int8send(:a::bigint) || int8send(:b::bigint), 'hex')::uuid, 1, 86400000, 1, 1, \
         encode(int8send(:b::bigint) || int8send(:a::bigint), 'hex')::uuid, \
         sha256('x'), '\\x0102030405060708', 'in_progress', 'global', 'key-' || :a::bigint, 'r', 'POST', \
         '/payments', 1794787200000, 1794787260000, 2) \
         ON CONFLICT (id) DO NOTHING;\n\
         UPDATE onlyonce.keys SET revision = 2, state = 'completed', completed_at = 1794787200100, \
         expires_at = 1794873600100, lease_until = NULL, response_status = 201, \
         response_bytes = {length}, response_head = '\\x01c90001010010', \
         response_body = '\\x{body}' \
         WHERE id = encode(int8send(:a::bigint) || int8send(:b::bigint), 'hex')::uuid AND revision = 1;\n",
        length = ANSWER.len(),
        // A colon would be a variable to pgbench.
        body = ANSWER
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>(),
    )
}

/// What one measurement found.
#[derive(Clone, Copy, Default)]
struct Found {
    per_second: f64,
    cpu_micros: f64,
    wal_bytes: f64,
}

fn wal(server: &Postgres) -> f64 {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')";
    server.sql(sql).parse().unwrap()
}

fn rows(server: &Postgres) -> f64 {
    let sql = "SELECT last_value FROM onlyonce.numbers";
    server.sql(sql).parse().unwrap()
}

/// CPU, log and rate of whatever `work` does to the server for `TIME`.
fn during(server: &Postgres, work: impl FnOnce()) -> Found {
    let before = (server.cpu_seconds(), wal(server), rows(server));
    let began = Instant::now();
    work();
    let took = began.elapsed().as_secs_f64();
    let keys = rows(server) - before.2;
    Found {
        per_second: keys / took,
        cpu_micros: (server.cpu_seconds() - before.0) * 1e6 / keys,
        wal_bytes: (wal(server) - before.1) / keys,
    }
}

fn pgbench(server: &Postgres, clients: usize, more: &[&str]) {
    let file = std::env::temp_dir().join(format!("onlyonce-pgbench-{}.sql", std::process::id()));
    std::fs::write(&file, script()).unwrap();
    let threads = clients.min(2).to_string();
    let output = Command::new("pgbench")
        .args(["-n", "-M", "prepared", "-h", "127.0.0.1", "-U", "onlyonce"])
        .args(["-p", &server.port().to_string(), "-f"])
        .arg(&file)
        .args(["-c", &clients.to_string(), "-j", &threads])
        .args(["-T", &TIME.as_secs().to_string()])
        .args(more)
        .arg("onlyonce")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

/// The p99 of pgbench's transactions, in milliseconds.
fn pgbench_p99(server: &Postgres) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("log");
    let prefix = format!("--log-prefix={}", prefix.display());
    pgbench(server, 1, &["--log", &prefix]);
    let mut times: Vec<f64> = Vec::new();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        times.extend(text.lines().map(|line| {
            let micros = line.split_whitespace().nth(2).unwrap();
            micros.parse::<f64>().unwrap() / 1e3
        }));
    }
    p99(&mut times)
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let soak = std::env::var("ONLYONCE_SOAK").unwrap_or_default();
    if soak == "stored" {
        return stored_keys(&runtime, &Arc::default());
    }
    let server = Postgres::start();
    let store = opened(&runtime, &server);
    let next = Arc::new(AtomicU64::new(0));
    pgbench(&server, PGBENCH_CLIENTS, &[]);
    drive(&runtime, &store, IN_FLIGHT, &next);

    let mut rates = Vec::new();
    let mut lone = Vec::new();
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}", round + 1);
        let theirs = during(&server, || pgbench(&server, PGBENCH_CLIENTS, &[]));
        let ours = during(&server, || drop(drive(&runtime, &store, IN_FLIGHT, &next)));
        let http = through_http(|name| server.database(name));
        rates.push((theirs, ours, http));
        let their_p99 = pgbench_p99(&server);
        let mut times: Vec<f64> = drive(&runtime, &store, 1, &next)
            .into_iter()
            .map(|(_, both)| both)
            .collect();
        lone.push((their_p99, p99(&mut times)));
    }
    let of = |value: fn(&(Found, Found, f64)) -> f64| median(rates.iter().map(value).collect());
    println!("medians of {ROUNDS}, {TIME:?} each; ratios within one round, against pgbench");
    println!("{:<44} {:>10} {:>7}", "", "", "ratio");
    let rate = |value: f64| format!("{value:.0}/s");
    let micros = |value: f64| format!("{value:.1} us");
    line(
        "pgbench, 64 clients, one by one: keys",
        rate(of(|r| r.0.per_second)),
        1.0,
    );
    line(
        "the store, 256 in flight: keys",
        rate(of(|r| r.1.per_second)),
        of(|r| r.1.per_second / r.0.per_second),
    );
    line(
        "the gateway, 256 in flight: keys",
        rate(of(|r| r.2)),
        of(|r| r.2 / r.0.per_second),
    );
    line(
        "pgbench: PostgreSQL's CPU per key",
        micros(of(|r| r.0.cpu_micros)),
        1.0,
    );
    line(
        "the store: PostgreSQL's CPU per key",
        micros(of(|r| r.1.cpu_micros)),
        of(|r| r.1.cpu_micros / r.0.cpu_micros),
    );
    line(
        "pgbench: log per key",
        format!("{:.0} B", of(|r| r.0.wal_bytes)),
        1.0,
    );
    line(
        "the store: log per key",
        format!("{:.0} B", of(|r| r.1.wal_bytes)),
        of(|r| r.1.wal_bytes / r.0.wal_bytes),
    );
    let lone_of = |value: fn(&(f64, f64)) -> f64| median(lone.iter().map(value).collect());
    line(
        "pgbench, one client: p99 of both statements",
        format!("{:.2} ms", lone_of(|l| l.0)),
        1.0,
    );
    line(
        "the store, one client: p99 of both",
        format!("{:.2} ms", lone_of(|l| l.1)),
        lone_of(|l| l.1 / l.0),
    );
    reaping(&runtime, &server, &store, &next);
    if soak == "1" {
        drop((store, server));
        stored_keys(&runtime, &next);
    }
}

fn opened(runtime: &tokio::runtime::Runtime, server: &Postgres) -> Arc<dyn Store> {
    let options = PostgresOptions {
        timeout: Duration::from_secs(30),
        ..PostgresOptions::default()
    };
    let store = runtime.block_on(PostgresStore::open(&server.url(), &options));
    Arc::new(store.unwrap())
}

/// Reservations beside a reaper that has as much to remove as arrives.
fn reaping(
    runtime: &tokio::runtime::Runtime,
    server: &Postgres,
    store: &Arc<dyn Store>,
    next: &Arc<AtomicU64>,
) {
    let engine = runtime.block_on(async { Engine::start(store.clone(), EngineOptions::default()) });
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        server.sql("UPDATE onlyonce.keys SET expires_at = 1 WHERE state = 'completed'");
        server.sql("UPDATE onlyonce.keys SET delete_at = 1 WHERE state = 'expired'");
        let reserve = |times: Vec<(f64, f64)>| {
            let mut reserved: Vec<f64> = times.into_iter().map(|(reserve, _)| reserve).collect();
            (reserved.len(), p99(&mut reserved))
        };
        let (_, alone) = reserve(drive(runtime, store, REAPED_BESIDE, next));
        let reaper = engine.clone();
        let reaped = Arc::new(AtomicU64::new(0));
        let (count, arrivals) = (reaped.clone(), next.clone());
        let before = next.load(Ordering::Relaxed);
        let reaping = runtime.spawn(async move {
            // As the worker does, but counted stretch by stretch, since a walk may outlast the
            // measurement, and no more than has arrived.
            while let Ok((expired, deleted, _)) = reaper.reap_some(STRETCH).await {
                count.fetch_add((expired + deleted) as u64, Ordering::Relaxed);
                tokio::time::sleep(REAPER_PAUSE).await;
                while count.load(Ordering::Relaxed) > arrivals.load(Ordering::Relaxed) - before {
                    tokio::time::sleep(REAPER_PAUSE).await;
                }
            }
        });
        let (arrived, beside) = reserve(drive(runtime, store, REAPED_BESIDE, next));
        reaping.abort();
        let removed = reaped.load(Ordering::Relaxed) as f64 / arrived as f64;
        found.push((alone, beside, removed));
    }
    let of = |value: fn(&(f64, f64, f64)) -> f64| median(found.iter().map(value).collect());
    println!(
        "reserve, {REAPED_BESIDE} in flight: p99 {:.2} ms alone, {:.2} ms beside the reaper: {:.2}; \
         rows reaped for each that arrived: {:.2}",
        of(|f| f.0),
        of(|f| f.1),
        of(|f| f.1 / f.0),
        of(|f| f.2)
    );
}

/// What a new key costs when many are stored: rows without answers, so that they fit on a small disk. On a
/// server of its own, since the other measurements leave a million behind.
fn stored_keys(runtime: &tokio::runtime::Runtime, next: &Arc<AtomicU64>) {
    let server = &Postgres::start();
    let store = &opened(runtime, server);
    let mut first = None;
    for stored in [100_000_u64, 1_000_000, 10_000_000] {
        let there: u64 = server
            .sql("SELECT count(*) FROM onlyonce.keys")
            .parse()
            .unwrap();
        server.sql(&format!(
            "INSERT INTO onlyonce.keys (id, revision, tombstone_ttl, fence, generation, attempt_id, \
             fingerprint, recipe, state, scope, key, route, method, path, created_at, row_version) \
             SELECT encode(substr(sha256(int8send(g) || 'stored'), 1, 16), 'hex')::uuid, 1, 1, 1, 1, \
             encode(substr(sha256(int8send(g)), 1, 16), 'hex')::uuid, sha256('x'), '\\x0102030405060708', 'expired', \
             'global', 'stored-' || g, 'r', 'POST', '/payments', 1794787200000, 2 \
             FROM generate_series({there} + 1, {stored}) g"
        ));
        server.sql("VACUUM ANALYZE onlyonce.keys");
        server.sql("CHECKPOINT");
        let found = during(server, || drop(drive(runtime, store, IN_FLIGHT, next)));
        let base = *first.get_or_insert(found);
        let pages = "SELECT pg_size_pretty(pg_table_size('onlyonce.keys')) || ' and ' || \
                     pg_size_pretty(pg_indexes_size('onlyonce.keys')) || ' of indexes'";
        println!(
            "{stored:>10} stored keys ({}): {:.0} keys/s, CPU {:.1} us ({:.2}), log {:.0} B ({:.2})",
            server.sql(pages),
            found.per_second,
            found.cpu_micros,
            found.cpu_micros / base.cpu_micros,
            found.wal_bytes,
            found.wal_bytes / base.wal_bytes
        );
    }
}

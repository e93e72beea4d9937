//! New keys on Redis, beside the floor of the same server: `SET NX` and `SET` of the same bytes,
//! pipelined by Redis's own benchmark.
//!
//! ```text
//! cargo bench -p onlyonce-store --bench redis     # about half a minute
//! ```
//!
//! Everything runs on this machine: the server and the load share its cores. Ratios of one run are what
//! to compare, never figures of two.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark is about the real clock, and stops at what goes wrong"
)]

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::StatusCode;
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
};
use onlyonce_store::{
    Inserted, Store, Swapped,
    redis::{RedisOptions, RedisStore},
};
use onlyonce_testkit::servers::Redis;

const ROUNDS: usize = 3;
const IN_FLIGHT: usize = 256;
const TIME: Duration = Duration::from_secs(3);
/// Bytes of an answer.
const ANSWER: usize = 316;

/// Writes a second of redis-benchmark, over one connection with as many commands under way. The test
/// that sends what it is given counts one request for each.
fn floor(server: &Redis) -> f64 {
    let value = "x".repeat(ANSWER);
    let port = server.port().to_string();
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &port, "-c", "1", "-n", "400000"])
        .args(["-P", &IN_FLIGHT.to_string(), "-r", "1000000000", "--csv"])
        .args(["SET", "floor:__rand_int__", &value, "NX"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap();
    let field = line.split("\",\"").nth(1).unwrap();
    field.trim_matches('"').parse().unwrap()
}

async fn keys(store: Arc<RedisStore>, number: Arc<AtomicU64>, until: Instant) -> u64 {
    let mut done = 0;
    let answer = StoredResponse::plain(StatusCode::CREATED, "x".repeat(ANSWER));
    let settlement = Settlement::Complete(answer.into());
    while Instant::now() < until {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let key = Key::from_stored(&format!("bench-{number}"));
        let request = Request {
            id: store.secret().record_id(Scope::global().as_str(), &key),
            scope: Scope::global(),
            key,
            fingerprint: Fingerprint([7; 32]),
            recipe: Recipe::default().id(),
            caller: None,
            attempt_id: AttemptId(u128::from(number) + 1),
            route: "r".into(),
            method: "POST".into(),
            path: "/payments".into(),
            other_mark: None,
            notes: onlyonce_core::record::Notes::default(),
        };
        let draft = machine::first(&request, &Policy::default());
        let Inserted::New(record) = store.insert_or_get(draft).await.unwrap().value else {
            panic!("a new key");
        };
        let own = record.attempt_id;
        let settled = machine::apply(
            Some(&record),
            &End {
                attempt: own,
                settlement: &settlement,
            },
            Timestamp::default(),
            &Policy::default(),
        );
        let Some(change) = settled.swapped() else {
            panic!("its own key");
        };
        let swapped = store.swap(record.revision, change).await.unwrap().value;
        assert!(matches!(swapped, Swapped::Done(_)));
        done += 1;
    }
    done
}

fn used_memory(server: &Redis) -> f64 {
    let info = server.cli(&["info", "memory"]);
    let line = info.lines().find(|line| line.starts_with("used_memory:"));
    line.unwrap()[12..].trim().parse().unwrap()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let server = Redis::start();
    let options = RedisOptions {
        timeout: Duration::from_secs(10),
        ..RedisOptions::default()
    };
    let store = Arc::new(RedisStore::open(&server.url(), &options).await.unwrap());
    let number = Arc::new(AtomicU64::new(0));
    let empty = used_memory(&server);
    let filled = keys(store.clone(), number.clone(), Instant::now() + TIME).await;
    let bytes = (used_memory(&server) - empty) / filled as f64;
    println!("{filled} completed keys one by one: {bytes:.0} bytes of memory each");
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let floor = floor(&server);
        let began = Instant::now();
        let tasks: Vec<_> = (0..IN_FLIGHT)
            .map(|_| tokio::spawn(keys(store.clone(), number.clone(), began + TIME)))
            .collect();
        let mut done = 0;
        for task in tasks {
            done += task.await.unwrap();
        }
        let ours = done as f64 / began.elapsed().as_secs_f64();
        // A new key is two writes: a reservation and a completion.
        let ratio = 2.0 * ours / floor;
        println!(
            "round {round}: floor {floor:.0} SET NX/s; {ours:.0} new keys/s, {:.0} writes/s: {ratio:.2} of the floor",
            2.0 * ours
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median: {:.2} of the floor", ratios[ratios.len() / 2]);
}

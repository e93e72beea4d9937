//! What the benchmarks of shared stores have in common: the keys that they send, and how often.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::{HeaderMap, HeaderValue, StatusCode};
use onlyonce_core::{
    AttemptId, Fingerprint, Key, Policy, Recipe, Scope, StoredResponse, Timestamp,
    machine::{self, End, Request, Settlement},
    record::StoredBody,
};
use onlyonce_store::{Inserted, Store, Swapped};

pub(crate) const ROUNDS: usize = 3;
pub(crate) const IN_FLIGHT: usize = 256;
pub(crate) const TIME: Duration = Duration::from_secs(4);
pub(crate) const ANSWER: &str = r#"{"id":"pay_01jcq3y8w9f0t2v4x6z8b0d2f4","object":"payment","amount":129900,"amount_captured":129900,"currency":"eur","customer":"cus_9f8e7d6c5b4a3210","status":"succeeded","livemode":false,"created":1794787200,"receipt_url":"/receipts/01jcq3y8w9f0t2v4x6z8b0d2f4","metadata":{"basket":"b-20261115-000042","v":"3"}}"#;

pub(crate) fn p99(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() * 99 / 100]
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn response() -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    Arc::new(StoredResponse {
        status: StatusCode::CREATED,
        headers,
        body: StoredBody::Full {
            bytes: ANSWER.into(),
            trailers: None,
        },
    })
}

/// Reserves and completes one key. Says how long the reservation and both together took.
async fn one_key(store: &dyn Store, number: u64, policy: &Policy) -> (Duration, Duration) {
    let key = Key::from_stored(&format!("key-{number}"));
    let scope = Scope::global();
    let request = Request {
        id: store.secret().record_id(scope.as_str(), &key),
        scope,
        key,
        fingerprint: Fingerprint([7; 32]),
        recipe: Recipe::default().id(),
        caller: None,
        attempt_id: AttemptId(u128::from(number) << 64 | 1),
        route: "r".into(),
        method: "POST".into(),
        path: "/payments".into(),
        other_mark: None,
        notes: onlyonce_core::record::Notes::default(),
    };
    let began = Instant::now();
    let inserted = store.insert_or_get(machine::first(&request, policy)).await;
    let Inserted::New(record) = inserted.unwrap().value else {
        panic!("the key was there")
    };
    let reserved = began.elapsed();
    let settlement = Settlement::Complete(response());
    let settled = machine::apply(
        Some(&record),
        &End {
            attempt: record.attempt_id,
            settlement: &settlement,
        },
        Timestamp::default(),
        policy,
    );
    let Some(change) = settled.swapped() else {
        panic!("not written")
    };
    let swapped = store.swap(record.revision, change).await.unwrap().value;
    assert!(matches!(swapped, Swapped::Done(_)));
    (reserved, began.elapsed())
}

/// Keeps `in_flight` keys on their way for `TIME`; returns the times of each in milliseconds.
pub(crate) fn drive(
    runtime: &tokio::runtime::Runtime,
    store: &Arc<dyn Store>,
    in_flight: usize,
    next: &Arc<AtomicU64>,
) -> Vec<(f64, f64)> {
    runtime.block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..in_flight)
            .map(|_| {
                let (store, next, stop) = (store.clone(), next.clone(), stop.clone());
                tokio::spawn(async move {
                    let policy = Policy::default();
                    let mut times = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let (reserved, both) = one_key(&*store, number, &policy).await;
                        times.push((reserved.as_secs_f64() * 1e3, both.as_secs_f64() * 1e3));
                    }
                    times
                })
            })
            .collect();
        tokio::time::sleep(TIME).await;
        stop.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for one in busy {
            times.extend(one.await.unwrap());
        }
        times
    })
}

/// New keys per second through the gateway, by its own benchmark, on a database of that name.
pub(crate) fn through_http(database: impl FnOnce(&str) -> String) -> f64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("http_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let url = database(&name);
    let output = Command::new(env!("CARGO_BIN_EXE_onlyonce"))
        .args(["bench", "--json", "--rounds", "1", "--store", &url])
        .args(["--connections", &IN_FLIGHT.to_string(), "--time", "4s"])
        .output()
        .unwrap();
    let lines: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let line = lines
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["name"] == "(f) this store, new keys");
    line.unwrap()["requests_per_second"].as_f64().unwrap()
}

/// A line of the table: a figure, and its ratio to the floor.
pub(crate) fn line(name: &str, value: String, ratio: f64) {
    println!("{name:<44} {value:>10} {ratio:>7.2}");
}

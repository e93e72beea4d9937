//! What a fingerprint costs, beside another JCS implementation in the same run.
//!
//! Times on a shared machine wander; the ratios are what to compare between revisions.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark is about the real clock"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, header};
use onlyonce_core::fingerprint::{Recipe, RequestView, canonicalise};
use onlyonce_core::key::Key;
use onlyonce_core::secret::Secret;

const ROUNDS: u32 = 15;
const CALLS_PER_ROUND: u32 = 10_000;

/// The best of several rounds, which is the one that was disturbed least.
fn time<T>(mut call: impl FnMut() -> T) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..CALLS_PER_ROUND {
            black_box(call());
        }
        best = best.min(start.elapsed());
    }
    best / CALLS_PER_ROUND
}

fn payment(lines: usize) -> String {
    let item = |at: usize| {
        format!(
            r#"{{"sku": "SKU-{at:05}", "quantity": {at}, "unit_price": 19.99, "description": "Widget, size {at}", "taxable": true}}"#
        )
    };
    let items: Vec<String> = (1..=lines).map(item).collect();
    format!(
        r#"{{"amount": 129900, "currency": "EUR", "customer": {{"id": "cus_9s6XKzkNRiz8i3", "name": "J\u00fcrgen M", "email": "j@example.com"}}, "description": "Invoice 2026-000123", "capture": true, "metadata": {{"order_id": "6735", "channel": "web"}}, "items": [{}]}}"#,
        items.join(", ")
    )
}

fn main() {
    let secret = Secret::from_bytes([3; 32]);
    let hasher = secret.scope_hasher("client:acme");
    let recipe = Recipe::default();
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));

    println!(
        "{:>7} {:>12} {:>12} {:>12} {:>8}",
        "bytes", "fingerprint", "canonical", "oracle", "ratio"
    );
    for lines in [1, 8, 80] {
        let body = payment(lines);
        let body = body.as_bytes();
        let request = RequestView {
            method: "POST",
            target: "/api/payments",
            headers: &headers,
            body,
        };
        let whole = time(|| hasher.fingerprint(&recipe, black_box(&request)));
        let canonical = time(|| canonicalise(black_box(body)));
        let oracle = time(|| {
            let value: serde_json::Value =
                serde_json::from_slice(black_box(body)).expect("the body is JSON");
            serde_json_canonicalizer::to_vec(&value).expect("the oracle takes any value")
        });
        let ratio = oracle.as_secs_f64() / canonical.as_secs_f64();
        println!(
            "{:>7} {whole:>12.2?} {canonical:>12.2?} {oracle:>12.2?} {ratio:>7.1}x",
            body.len()
        );
    }
    let key = Key::from_stored("8e03978e-40d5-43dd-bc93-6894a57f9324");
    println!(
        "record id {:.2?}",
        time(|| secret.record_id("client:acme", black_box(&key)))
    );
    println!("key tag   {:.2?}", time(|| secret.key_tag(black_box(&key))));
}

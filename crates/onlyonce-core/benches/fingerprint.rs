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
use onlyonce_core::fingerprint::{BodyMode, Recipe, RequestView, canonicalise};
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

/// Bodies of a MiB that are dear to compare. Whatever the JSON, the whole fingerprint costs at most so many
/// times what it costs to hash the bytes.
const MOST_TIMES_RAW: f64 = 30.0;

fn worst_cases() {
    const SIZE: usize = 1 << 20;
    let filled = |open: &str, close: &str, next: &mut dyn FnMut() -> String| {
        let mut text = open.to_owned();
        while text.len() < SIZE {
            text.push_str(&next());
        }
        text + close
    };
    let mut state: u64 = 88_172_645_463_325_252;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut seventeen = || format!("{},", f64::from_bits(random() >> 12 | 0x3ff0 << 48));
    let numbers = filled("[", "1]", &mut seventeen);
    let mut state = 0_u64;
    let mut members = |prefix: &str| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        format!("\"{prefix}{:x}{state}\":1,", state >> 48)
    };
    let deep = format!(
        "{}\"{}\"{}",
        "{\"b\":".repeat(127),
        "x".repeat(SIZE),
        ",\"a\":0}".repeat(127)
    );
    let shapes = [
        ("numbers of 17 digits", numbers),
        ("deep and unsorted", deep),
        ("many members", filled("{", "\"a\":1}", &mut || members(""))),
        (
            "members that begin alike",
            filled("{", "\"a\":1}", &mut || members(&"p".repeat(95))),
        ),
        (
            "members of escapes",
            filled("{", "\"a\":1}", &mut || members(&"\\n".repeat(47))),
        ),
        ("escapes", format!("[\"{}\"]", "\\n".repeat(SIZE / 2))),
        (
            "control characters",
            format!("[\"{}\"]", "\\u0001".repeat(SIZE / 6)),
        ),
        (
            "surrogates",
            format!("[\"{}\"]", "\\ud83d\\ude00".repeat(SIZE / 12)),
        ),
        (
            "small objects",
            filled("[", "1]", &mut || "{\"b\":1,\"a\":2},".to_owned()),
        ),
        ("small numbers", filled("[", "1]", &mut || "1,".to_owned())),
    ];
    let hasher = Secret::from_bytes([3; 32]).scope_hasher("client:acme");
    let raw = Recipe::new(BodyMode::Raw, vec![], vec![], vec![]);
    let recipe = Recipe::default();
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    let once = |recipe: &Recipe, body: &str| {
        let request = RequestView {
            method: "POST",
            authority: None,
            target: "/",
            headers: &headers,
            body: body.as_bytes(),
        };
        let mut best = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            black_box(hasher.fingerprint(recipe, black_box(&request)));
            best = best.min(start.elapsed());
        }
        best
    };
    for (name, body) in &shapes {
        let (raw, whole) = (once(&raw, body), once(&recipe, body));
        let ratio = whole.as_secs_f64() / raw.as_secs_f64();
        println!("{name:>26}: {whole:>8.2?}, {ratio:.1} times raw hashing");
        assert!(ratio <= MOST_TIMES_RAW, "{name}: {ratio:.1}");
    }
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
            authority: None,
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
    worst_cases();
    let key = Key::from_stored("8e03978e-40d5-43dd-bc93-6894a57f9324");
    println!(
        "record id {:.2?}",
        time(|| secret.record_id("client:acme", black_box(&key)))
    );
    println!("key tag   {:.2?}", time(|| secret.key_tag(black_box(&key))));
}

//! Metrics are declared at zero, count what happened, and nothing secret is ever shown.

use std::collections::BTreeSet;

use crate::harness::{
    Gateway, Request, Response, Script, Setup, Upstream, client::Http2, ms, within,
};

const COUNTERS: [&str; 13] = [
    "api_idempotency_reserve_created_total",
    "api_idempotency_reserve_replay_total",
    "api_idempotency_reserve_in_progress_total",
    "api_idempotency_reserve_key_misuse_total",
    "api_idempotency_reserve_failed_retry_total",
    "api_idempotency_reserve_unknown_total",
    "api_idempotency_store_error_total",
    "api_idempotency_zombie_key_total",
    "api_idempotency_ttl_pruned_total",
    "api_idempotency_reconcile_scheduled_total",
    "api_idempotency_reconcile_resolved_total",
    "api_idempotency_reconcile_failed_total",
    "api_idempotency_executed_after_expiry_total",
];

/// Goal: a dashboard sees every counter before anything has happened.
///
/// Method: `/metrics` right after the start.
/// Evidence: a sample of zero for each documented name, declared as a counter.
#[tokio::test]
async fn declared_at_zero() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let text = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    for name in COUNTERS {
        assert_eq!(gateway.metric(name).await, Some(0.0), "{name} in\n{text}");
        assert!(
            text.contains(&format!("# TYPE {name} counter")),
            "{name} in\n{text}"
        );
    }
    assert_eq!(upstream.executions(), 0);
}

/// The rows of the reference's table: name, kind, labels, name at a collector, text.
fn documented() -> Vec<Vec<String>> {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/metrics.md"
    );
    let page = std::fs::read_to_string(page).expect("the reference of the metrics");
    let table = page.lines().filter(|line| line.starts_with("| `"));
    let cell = |text: &str| text.trim().trim_matches('`').to_owned();
    let row = |line: &str| line.trim_matches('|').split('|').map(cell).collect();
    table
        .map(row)
        .filter(|row: &Vec<String>| row.len() == 5)
        .collect()
}

/// Goal: the reference lists what there is, all of it and nothing else, from the start.
///
/// Method: `/metrics` right after the start, on a route in shadow mode, which has every metric.
/// Evidence: names, kinds and texts are those of the page; no label that the page does not name; counters,
/// gauges and histograms at zero, but for the generation of the configuration.
#[tokio::test]
async fn the_reference_lists_what_there_is() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "shadow: true").await;
    let text = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    let documented = documented();
    let told: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let expected: BTreeSet<(String, String)> = documented
        .iter()
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    assert_eq!(told, expected, "what is shown (left) and the reference");
    for row in &documented {
        let help = format!("# HELP {} {}", row[0], row[4]);
        assert!(text.lines().any(|line| line == help), "{help} in\n{text}");
        let samples: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(&format!("{}{{", row[0])))
            .collect();
        let labels: Vec<&str> = row[2].split(", ").collect();
        for sample in samples {
            let inside = sample
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'));
            let pairs = inside.expect("labels in braces").0.split(',');
            for (name, _) in pairs.filter_map(|pair| pair.split_once('=')) {
                assert!(labels.contains(&name), "{name} in {sample}");
            }
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let is_zero = line.ends_with(" 0") || line.is_empty();
        let generation = line.starts_with("onlyonce_config_generation ");
        assert!(is_zero || generation, "{line}");
    }
    assert_eq!(upstream.executions(), 0);
}

/// Goal: it can be seen who sends the duplicates, and nobody can fill the metrics with names.
///
/// Method: two clients, one of which repeats itself; then more clients than have series.
/// Evidence: the samples of each, and one shared series for those beyond the bound, beside the
/// upstream's own count.
#[tokio::test]
async fn clients_are_told_apart_up_to_a_bound() {
    const CLIENTS: usize = 104;
    let upstream = Upstream::start();
    let names: Vec<String> = (0..CLIENTS)
        .map(|number| format!("client-{number}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let gateway = Setup::with("").clients(&names).start(&upstream).await;
    for (number, name) in names.iter().enumerate() {
        let pay = Request::pay("k").of_client(name);
        gateway.send(&pay).await.expect(201);
        if number == 1 {
            gateway.send(&pay).await.expect(201);
        }
    }
    let text = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    let value = |metric: &str, client: &str| {
        let sample =
            format!("api_idempotency_reserve_{metric}_total{{route=\"r\",client=\"{client}\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&sample));
        found.map(|value| value.parse::<u64>().expect("a count"))
    };
    assert_eq!(value("created", "client-0"), Some(1));
    assert_eq!(value("replay", "client-0"), Some(0));
    assert_eq!(value("replay", "client-1"), Some(1));
    assert_eq!(value("created", "client-99"), Some(1));
    assert_eq!(value("created", "client-100"), None);
    assert_eq!(value("created", "other"), Some(4));
    let all = gateway
        .metric("api_idempotency_reserve_created_total")
        .await;
    assert_eq!(all, Some(CLIENTS as f64));
    assert_eq!(upstream.executions(), CLIENTS);
}

/// Goal: whatever is counted by client is counted for the client that it happened to.
///
/// Method: one client alone, with a scope of its own and in a shared one: a key that executes, is repeated
/// and is misused, and a key whose answer is lost and that is repeated.
/// Evidence: the client's counts; and no count of any of these metrics without a client.
#[tokio::test]
async fn what_happens_to_a_client_is_counted_under_its_name() {
    for options in ["", "key_scope: global"] {
        counted_under_its_name(options).await;
    }
}

async fn counted_under_its_name(options: &str) {
    let upstream = Upstream::start();
    let setup = Setup::with(options).clients(&["acme"]);
    let gateway = setup.start(&upstream).await;
    let pay = |key: &str| Request::pay(key).of_client("acme");
    gateway.send(&pay("k")).await.expect(201);
    gateway.send(&pay("k")).await.expect(201);
    gateway.send(&pay("k").json("{}")).await.expect(422);
    upstream.next(Script::hang_up());
    gateway.send(&pay("lost")).await.expect(502);
    gateway.send(&pay("lost")).await.expect(409);
    let text = gateway.admin(Request::get("/metrics")).await.text();
    let count = |metric: &str, labels: &str| {
        let sample = format!("{metric}{{{labels}}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&sample));
        found.map(|value| value.parse::<u64>().expect("a count"))
    };
    for metric in [
        "api_idempotency_reserve_replay_total",
        "api_idempotency_reserve_key_misuse_total",
        "api_idempotency_reserve_unknown_total",
        "onlyonce_became_unknown_total",
    ] {
        let of_client = count(metric, r#"route="r",client="acme""#);
        assert_eq!(of_client, Some(1), "{metric}");
    }
    let mut looked = 0;
    for row in documented() {
        if row[2] == "route, client" {
            let of_nobody = count(&row[0], r#"route="r""#);
            assert_eq!(of_nobody, Some(0), "{}", row[0]);
            looked += 1;
        }
    }
    assert!(looked > 10, "{looked}");
}

/// Goal: no gauge says zero of what nobody counts.
///
/// Method: the series of the gauge by state.
/// Evidence: they are the states that stores count.
#[tokio::test]
async fn messages_are_shown_in_the_states_that_are_counted() {
    use onlyonce_core::outbox::MessageState;
    let gateway = Gateway::start(&Upstream::start(), "").await;
    let text = gateway.admin(Request::get("/metrics")).await.text();
    let prefix = "onlyonce_outbox_messages{state=\"";
    let samples = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let mut shown: Vec<&str> = samples.filter_map(|rest| rest.split('"').next()).collect();
    shown.sort_unstable();
    let mut counted = MessageState::OPEN.map(MessageState::as_str);
    counted.sort_unstable();
    assert_eq!(shown, counted);
}

/// Goal: the time that each part of a request takes can be seen.
///
/// Method: one execution of 60 ms and a replay of it.
/// Evidence: how many times each was taken, and that the upstream's are at least as long as it took.
#[tokio::test]
async fn times_are_taken() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    upstream.next(Script::created().delayed(ms(60)));
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.send(&Request::pay("k")).await.expect(201);
    for (stage, count) in [
        ("reserve", 2.0),
        ("upstream", 1.0),
        ("complete", 1.0),
        ("request", 2.0),
    ] {
        let name = format!("onlyonce_{stage}_seconds_count");
        assert_eq!(gateway.metric(&name).await, Some(count), "{stage}");
    }
    let sum = gateway.metric("onlyonce_upstream_seconds_sum").await;
    assert!(sum.is_some_and(|seconds| seconds >= 0.06), "{sum:?}");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: logs can be read by programs.
///
/// Method: `ONLYONCE_LOG_FORMAT=json`, and an end in good order.
/// Evidence: every line but the ready line is a JSON object with level and message.
#[tokio::test]
async fn logs_can_be_json() {
    let upstream = Upstream::start();
    let mut gateway = Setup::with("")
        .env("ONLYONCE_LOG_FORMAT", "json")
        .start(&upstream)
        .await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.sigterm();
    gateway.exited().await;
    let logs = gateway.logs();
    let lines: Vec<&str> = logs
        .lines()
        .filter(|line| !line.starts_with("ready "))
        .collect();
    assert!(!lines.is_empty(), "something was logged");
    for line in lines {
        let parsed: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        assert!(parsed["level"].is_string() && parsed["fields"]["message"].is_string());
    }
}

/// Goal: each way a reservation can go has its counter.
///
/// Method: created, replayed, met in flight, misused, retried after a failure, met unknown, pruned.
/// Evidence: the counters, beside the upstream's own count.
#[tokio::test]
async fn reservations_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "on_in_flight: reject").await;
    upstream.next(Script::reply(500));
    gateway.send(&Request::pay("failed")).await.expect(500);
    gateway.send(&Request::pay("failed")).await.expect(201);
    gateway.send(&Request::pay("failed")).await.expect(201);
    gateway
        .send(&Request::post("/payments").key("failed").json("{}"))
        .await
        .expect(422);
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    gateway.send(&Request::pay("lost")).await.expect(409);
    upstream.next(Script::created().held());
    let held = gateway.send_later(&Request::pay("held"));
    upstream.begun(4).await;
    gateway.send(&Request::pay("held")).await.expect(409);
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let expected = [3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    for (name, count) in COUNTERS.into_iter().zip(expected) {
        assert_eq!(gateway.metric(name).await, Some(count), "{name}");
    }
    assert_eq!(upstream.executions(), 4);
}

/// Goal: pruned and zombie keys are counted too.
///
/// Method: `ttl: 1s` and the reaper.
/// Evidence: one key pruned or more, after one execution.
#[tokio::test]
async fn pruned_keys_are_counted() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "ttl: 1s").await;
    gateway.send(&Request::pay("k")).await.expect(201);
    gateway.until_state("k", "expired").await;
    let pruned = gateway.metric("api_idempotency_ttl_pruned_total").await;
    assert!(pruned.is_some_and(|count| count >= 1.0), "{pruned:?}");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a request id brings no key into a log, however the key is spelled.
///
/// Method: ids that are the key, or hold it, with the key opaque, quoted, quoted with parameters and on a
/// method without keys; the noisiest logs; one id that has nothing to do with its key.
/// Evidence: no canary in anything the gateway printed; the harmless id is there; the upstream got each.
#[tokio::test]
async fn a_request_id_that_holds_the_key_is_not_logged() {
    let upstream = Upstream::start();
    let mut gateway = Setup::with("").trace().start(&upstream).await;
    for (number, key) in ["CANARY", "\"CANARY\"", "\"CANARY\";v=2"]
        .iter()
        .enumerate()
    {
        for id in ["CANARY", "\"CANARY\"", "req-canary-1", "CANARY;v=2"] {
            for method in ["POST", "DELETE"] {
                let request = Request::new(method, &format!("/payments/{number}"))
                    .key(key)
                    .header("X-Request-Id", id)
                    .json("{}");
                gateway.send(&request).await;
                assert!(!upstream.last().headers.all("x-request-id").is_empty());
            }
        }
    }
    let plain = Request::pay("CANARY-2").header("X-Request-Id", "harmless");
    gateway.send(&plain).await.expect(201);
    gateway.sigterm();
    gateway.exited().await;
    let logs = gateway.logs();
    assert!(logs.contains("harmless"), "{logs}");
    assert!(!logs.to_ascii_uppercase().contains("CANARY"), "{logs}");
}

/// Goal: keys, bodies and credentials never appear in logs, metrics or errors, at any level.
///
/// Method: canaries in each, through every path: new, replay, mismatch, in flight, failed,
/// unknown, oversized, invalid key, large body, both protocols; logs at trace.
/// Evidence: no canary in anything the gateway printed, exposed or answered as an error.
#[tokio::test]
async fn nothing_secret_is_logged() {
    let upstream = Upstream::start();
    let options = "on_in_flight: reject, max_body_size: 1KiB, max_request_body: 8KiB";
    let mut gateway = Setup::with(options).trace().start(&upstream).await;
    let request = |key: &str, body: &str| {
        Request::post("/payments")
            .key(format!("CANARYKEY-{key}"))
            .header("Authorization", "Bearer CANARYCREDENTIAL")
            .json(&format!(r#"{{"card":"CANARYBODY-{body}"}}"#))
    };
    upstream.always(Script::created().body("CANARYANSWER"));
    let mut errors: Vec<Response> = Vec::new();
    gateway.send(&request("a", "1")).await.expect(201);
    gateway.send(&request("a", "1")).await.expect(201);
    let mut http2 = Http2::open(gateway.data()).await;
    http2.send(&request("a", "1")).await.expect(201);
    errors.push(http2.send(&request("a", "2")).await.expect(422));
    upstream.next(Script::reply(500).body("CANARYANSWER"));
    gateway.send(&request("b", "1")).await.expect(500);
    upstream.next(Script::truncated(50, b"CANARYANSWER"));
    errors.push(gateway.send(&request("c", "1")).await.expect(502));
    errors.push(gateway.send(&request("c", "1")).await.expect(409));
    upstream.next(Script::created().body("CANARYANSWER".repeat(200)));
    gateway.send(&request("d", "1")).await.expect(201);
    errors.push(gateway.send(&request("d", "1")).await.expect(409));
    errors.push(gateway.send(&request("with space", "1")).await.expect(400));
    errors.push(
        gateway
            .send(&request("e", &"x".repeat(10_000)))
            .await
            .expect(413),
    );
    upstream.next(Script::created().held());
    let held = gateway.send_later(&request("f", "1"));
    upstream.begun(5).await;
    errors.push(gateway.send(&request("f", "1")).await.expect(409));
    upstream.release();
    within("the held answer", held).await.unwrap().expect(201);

    let metrics = gateway
        .admin(Request::get("/metrics"))
        .await
        .expect(200)
        .text();
    assert!(!metrics.contains("CANARY"), "{metrics}");
    for error in errors {
        assert!(!error.text().contains("CANARY"), "{error}");
    }
    gateway.sigterm();
    gateway.exited().await;
    let logs = gateway.logs();
    assert!(!logs.is_empty(), "something was logged");
    for line in logs.lines() {
        assert!(!line.contains("CANARY"), "logged: {line}");
        assert!(!line.contains("test-token"), "logged: {line}");
    }
    assert_eq!(upstream.executions(), 5);
}

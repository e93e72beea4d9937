//! The section `outbox`: what is read, what is refused, and what is never shown.

use super::*;
use crate::config::{HttpConfig, TargetConfig, WayConfig, outbox, view};

fn targets(list: &str) -> String {
    format!("store: {{ url: \"sqlite:oo.db\" }}\noutbox: {{ targets: [{list}] }}\n{ROUTE}")
}

fn http(target: &TargetConfig) -> &HttpConfig {
    match &target.way {
        WayConfig::Http(http) => http,
        WayConfig::Broker(broker) => panic!("{broker:?}"),
    }
}

#[test]
fn defaults() {
    let config = good(&targets("{ name: mail, url: \"http://mail/in?list=1\" }"));
    assert_eq!(config.outbox.keep_delivered, Duration::from_secs(86_400));
    let [target] = config.outbox.targets.as_slice() else {
        panic!("one target")
    };
    assert_eq!(target.rules, onlyonce::outbox::TargetRules::default());
    assert_eq!(
        (target.at_once, target.timeout),
        (64, Duration::from_secs(10))
    );
    let http = http(target);
    assert_eq!(http.key_header, "idempotency-key");
    assert_eq!(http.url.target, "/in?list=1");
    assert_eq!(http.provider_id.to_string(), "/id");
    assert!(good(ROUTE).outbox.targets.is_empty());
}

#[test]
fn everything_that_can_be_said() {
    let config = good(&targets(
        "{ name: a.b-c_1, kind: http, url: \"https://mail\", dedups: false, key_ttl: 1h, max_attempts: 3, \
           first_pause: 2s, longest_pause: 1m, at_once: 8, timeout: 3s, secret_env: MAIL_SECRET, \
           headers: { Authorization: \"Bearer ${PSP_TOKEN}\" }, key_header: X-Key, provider_id: /data/id }",
    ));
    let target = &config.outbox.targets[0];
    let rules = &target.rules;
    assert!(!rules.dedups);
    let times = [rules.key_ttl, rules.first_pause, rules.longest_pause];
    assert_eq!(times, [3_600, 2, 60].map(Duration::from_secs));
    assert_eq!((rules.max_attempts, target.at_once), (3, 8));
    let http = http(target);
    assert_eq!(http.secret_env.as_deref(), Some("MAIL_SECRET"));
    assert_eq!(http.headers["authorization"], "Bearer sk_live_hunter2");
    assert_eq!(http.key_header, "x-key");
    let told = format!("{config:?}{}", view::view(&config));
    assert!(!told.contains("hunter2"), "{told}");
    assert!(told.contains("a.b-c_1"), "{told}");
}

/// NATS knows a message again for two minutes, unless its stream was told otherwise and the target says so.
#[test]
fn for_how_long_a_key_is_known_again() {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    for (fields, expected) in [
        (
            "kind: nats, url: \"nats://a\", subject: x",
            Duration::from_secs(120),
        ),
        (
            "kind: nats, url: \"nats://a\", subject: x, key_ttl: 3h",
            hours(3),
        ),
        (
            "kind: rabbitmq, url: \"amqp://a\", routing_key: x",
            hours(24),
        ),
        ("kind: kafka, url: \"a:9092\", topic: x", hours(24)),
        ("url: \"http://a\"", hours(24)),
    ] {
        let text = format!("{{ name: a, {fields} }}");
        // What is read of a target does not depend on whether its broker was built in.
        let mut report = Report::new("oo.yaml", &text);
        let node = tree::parse(&text, &env, &mut report).expect("a tree");
        let target = outbox::target(&node, &mut report).expect(fields);
        assert_eq!(target.rules.key_ttl, expected, "{fields}");
    }
}

#[test]
fn mistakes() {
    for (list, expected) in [
        ("{ url: \"http://a\" }", "a target without `name`"),
        ("{ name: a }", "a target without `url`"),
        (
            "{ name: \"a b\", url: \"http://a\" }",
            "`a b` cannot be a target's name",
        ),
        (
            "{ name: a, url: \"ftp://a\" }",
            "`url` is a URL with scheme and host, not `ftp://a`",
        ),
        (
            "{ name: a, url: \"http://a\" }, { name: a, url: \"http://b\" }",
            "two targets are called `a`",
        ),
        (
            "{ name: a, url: \"http://a\", topic: t }",
            "`topic` has no meaning for a target of kind `http`",
        ),
        (
            "{ name: a, url: \"http://a\", max_attempts: 0 }",
            "`max_attempts` is at least 1, not `0`",
        ),
        (
            "{ name: a, url: \"http://a\", first_pause: 10s, longest_pause: 1s }",
            "`longest_pause` is shorter than `first_pause`",
        ),
        (
            "{ name: a, url: \"http://a\", kind: smtp }",
            "`kind` is `http`, `nats`, `rabbitmq` or `kafka`, not `smtp`",
        ),
        (
            "{ name: a, url: \"http://a\", key_header: Host }",
            "`key_header` cannot be `Host`",
        ),
        (
            "{ name: a, url: \"nats://a\", kind: nats }",
            "a target without `subject`",
        ),
        (
            "{ name: a, url: \"http://me:hunter2@a\", kind: kafka, topic: t }",
            "this is not an address of `kafka`",
        ),
        (
            "{ name: a, url: \"amqp://a\", kind: rabbitmq, routing_key: r, subject: s }",
            "`subject` has no meaning for a target of kind `rabbitmq`",
        ),
    ] {
        let found = errors(&targets(list));
        let said = found.iter().any(|line| line.ends_with(expected));
        assert!(said, "{list}: {found:?}");
        assert!(!found.concat().contains("hunter2"), "{found:?}");
    }
}

/// A broker that was not built in is refused by the name of its feature, and a store without an outbox by
/// its own.
#[test]
fn what_is_not_there() {
    let broker = |kind, url, field| {
        errors(&targets(&format!(
            "{{ name: a, kind: {kind}, url: \"{url}\", {field}: x }}"
        )))
    };
    for (kind, url, field, built_in) in [
        ("nats", "nats://a:4222", "subject", cfg!(feature = "nats")),
        (
            "rabbitmq",
            "amqp://a",
            "routing_key",
            cfg!(feature = "rabbitmq"),
        ),
        ("kafka", "a:9092,b:9092", "topic", cfg!(feature = "kafka")),
    ] {
        let found = broker(kind, url, field);
        match built_in {
            true => assert!(found.is_empty(), "{found:?}"),
            false => {
                let why = format!("this program was built without `{kind}`");
                assert!(found.len() == 1 && found[0].ends_with(&why), "{found:?}");
            }
        }
    }
    for store in ["memory:", "redis://localhost"] {
        let text = targets("{ name: a, url: \"http://a\" }").replace("sqlite:oo.db", store);
        let found = errors(&text);
        assert!(
            found.len() == 1 && found[0].ends_with("store has no outbox"),
            "{found:?}"
        );
    }
}

/// Only a worker does without routes.
#[test]
fn routes_of_a_worker() {
    let text = "outbox: { keep_delivered: 1h }\n";
    let found = errors(text);
    assert!(
        found.len() == 1 && found[0].ends_with("`routes` is missing"),
        "{found:?}"
    );
    let worker = Overrides {
        worker: true,
        ..Overrides::default()
    };
    let config = match parse("oo.yaml", text, &env, &worker) {
        Ok(config) => config,
        Err(found) => panic!("{found}"),
    };
    assert!(config.routes.is_empty() && !config.admin.is_said);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!(config.outbox.keep_delivered, Duration::from_secs(3_600));
}

//! The `reconcile` option: what it takes, and what is said about what it does not take.

use std::time::Duration;

use super::*;
use onlyonce::reconcile::Then;

const AUTH: &str = "auth: { trusted_header: { name: X-Client, from: [10.0.0.0/8] } }\n";

/// A protected route with this inside of `reconcile`.
fn route(reconcile: &str) -> String {
    format!(
        "routes: [{{ id: a, path: /, backends: [{{ url: \"http://up\" }}], idempotency: {{ enabled: \
         true, enforce: true, reconcile: {{ {reconcile} }} }} }}]\n"
    )
}

const WHOLE: &str = "query: { url: \"https://psp.internal/p?client={client}&key={key}\", headers: { \
     Authorization: \"Bearer ${PSP_TOKEN}\" } }, outcomes: [{ when: { status: [200], pointer: /status, \
     in: [succeeded] }, complete: { status: 201, body: \"\" } }, { when: { status: [404] }, \
     not_executed: true }], upstream_max_execution: 5m, after: 5s, attempts: 8, webhook: { scheme: \
     standard, secret_env: PSP_WEBHOOK_SECRET, key: /data/idempotency_key, client: /data/client, at: \
     /timestamp, outcomes: [{ when: { pointer: /type, in: [payment.succeeded] }, complete: { status: \
     201, body: /data } }, { when: { pointer: /type, in: [payment.rejected] }, not_executed: true }], \
     tolerance: 5m }";

#[test]
fn everything_at_once() {
    let config = good(&format!("{AUTH}{}", route(WHOLE)));
    let reconcile = config.routes[0].reconcile.as_deref().unwrap();
    let query = reconcile.query.as_ref().unwrap();
    assert_eq!(
        query.url,
        "https://psp.internal/p?client={client}&key={key}"
    );
    assert_eq!(query.headers["authorization"], "Bearer sk_live_hunter2");
    assert!(
        !format!("{config:?}").contains("hunter2"),
        "a credential is never printed"
    );
    assert!(!view::view(&config).to_string().contains("hunter2"));
    assert_eq!(reconcile.outcomes.len(), 2);
    assert_eq!(reconcile.outcomes[1].then, Then::NotExecuted);
    let webhook = reconcile.webhook.as_ref().unwrap();
    assert_eq!(webhook.tolerance, Duration::from_secs(300));
    assert_eq!(webhook.scheme, Scheme::Standard);
    let policy = config.routes[0].policy.reconcile.as_ref().unwrap();
    assert_eq!((policy.after, policy.attempts), (Duration::from_secs(5), 8));
    assert_eq!(
        policy.upstream_max_execution,
        Some(Duration::from_secs(300))
    );
}

#[test]
fn a_querys_address_is_shown_without_its_secrets() {
    let query = |url: &str| {
        let outcomes = "outcomes: [{ when: { status: [200] }, complete: { status: 201 } }]";
        let config = good(&route(&format!("query: {{ url: \"{url}\" }}, {outcomes}")));
        view::view(&config)["routes"][0]["idempotency"]["reconcile"]["query"]["url"].clone()
    };
    for (url, expected) in [
        (
            "http://psp/${PSP_TOKEN}/p?key={key}&api_key=${PSP_TOKEN}&r={route}",
            "http://psp/${PSP_TOKEN}/p?key={key}&api_key=***&r={route}",
        ),
        ("http://psp/p/{key}?s3cret", "http://psp/p/{key}?***"),
        ("http://psp/p?k=x{key}", "http://psp/p?k=***"),
        ("http://psp/p/{key}", "http://psp/p/{key}"),
    ] {
        assert_eq!(query(url), expected);
    }
}

#[test]
fn a_route_says_it_for_itself_or_all_say_it() {
    let query = "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [200] }, complete: { \
                 status: 201 } }]";
    let all = format!("idempotency: {{ reconcile: {{ {query} }} }}\n{ROUTE}");
    assert!(good(&all).routes[0].reconcile.is_some());
    let own = ROUTE.replace(
        "}] }]",
        "}], idempotency: { enabled: true, reconcile: operator } }]",
    );
    let config = good(&format!(
        "idempotency: {{ reconcile: {{ {query} }} }}\n{own}"
    ));
    assert_eq!(config.routes[0].reconcile, None);
    assert_eq!(config.routes[0].policy.reconcile, None);
}

#[test]
fn what_is_wrong() {
    let rules = "outcomes: [{ when: { status: [200] }, complete: { status: 201 } }]";
    let event = "outcomes: [{ when: { pointer: /t }, complete: { status: 201 } }]";
    for (inside, expected) in [
        (
            "after: 5s",
            "`reconcile` has neither a `query` nor a `webhook`",
        ),
        (
            "query: { url: \"http://p/{key}\" }",
            "`query` without `outcomes` decides nothing",
        ),
        (rules, "`outcomes` without `query` decides nothing"),
        (
            &format!("query: {{ url: \"http://p/x\" }}, {rules}"),
            "a query without `{key}` asks about no key",
        ),
        (
            &format!("query: {{ url: \"http://{{key}}/x\" }}, {rules}"),
            "a placeholder has no place in a query's host",
        ),
        (
            &format!("query: {{ url: \"http://p/{{kay}}\" }}, {rules}"),
            "the placeholders of a query are",
        ),
        (
            &format!("query: {{ url: \"ftp://p/{{key}}\" }}, {rules}"),
            "a query's URL: this is not a URL",
        ),
        (&format!("query: {{ }}, {rules}"), "`query` without `url`"),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [200] } }]",
            "an outcome says one of `complete`, `not_executed` and `pending`",
        ),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { }, not_executed: true }]",
            "`when` is empty",
        ),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { in: [a] }, not_executed: true }]",
            "`in` without `pointer`",
        ),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [200] }, complete: { status: 199 } }]",
            "`status` is at least 200",
        ),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [600] }, not_executed: true }]",
            "`600` is not a status",
        ),
        (
            "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [404] }, not_executed: false }]",
            "`not_executed` is `true`, not `false`",
        ),
        (
            &format!("query: {{ url: \"http://p/{{key}}\", headers: [a] }}, {rules}"),
            "`headers` must be a mapping",
        ),
        (
            &format!("query: {{ url: \"http://p/{{key}}?c={{client}}\" }}, {rules}"),
            "`{client}` in a query, and all clients share one scope",
        ),
        (
            &format!("webhook: {{ key: /k, {event} }}"),
            "`webhook` without `secret_env`",
        ),
        (
            "webhook: { secret_env: S, key: /k, outcomes: [{ when: { pointer: /t }, not_executed: true }] }",
            "a webhook with `not_executed` demands `at`",
        ),
        (
            "webhook: { secret_env: S, key: /k, outcomes: [{ when: { status: [200] }, complete: { status: 201 } }] }",
            "an event has no status",
        ),
        (
            &format!("webhook: {{ secret_env: S, key: k, {event} }}"),
            "a JSON pointer that is not empty must start with a slash",
        ),
        (
            &format!("webhook: {{ secret_env: S, key: /k, scheme: paypal, {event} }}"),
            "`scheme` is `standard` or `stripe`",
        ),
        (
            &format!("query: {{ url: \"http://p/{{key}}\" }}, {rules}, attempts: 0"),
            "`attempts` is at least 1",
        ),
    ] {
        let found = errors(&route(inside));
        assert!(
            found.iter().any(|message| message.contains(expected)),
            "{inside}\n{found:?}\n{expected}"
        );
    }
}

#[test]
fn each_client_has_keys_of_its_own() {
    let query = "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [200] }, complete: { \
                 status: 201 } }]";
    let webhook = "webhook: { secret_env: S, key: /k, outcomes: [{ when: { pointer: /t }, complete: { \
                   status: 201 } }] }";
    for (inside, expected) in [
        (query, "a query without `{client}`"),
        (webhook, "a webhook without `client`"),
    ] {
        let found = errors(&format!("{AUTH}{}", route(inside)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(expected), "{found:?}");
        let unique = format!("{inside}, provider_keys_unique: true");
        good(&format!("{AUTH}{}", route(&unique)));
        good(&route(inside));
    }
}

#[test]
fn a_negative_answer_that_never_releases_is_warned_of() {
    let inside = "query: { url: \"http://p/{key}\" }, outcomes: [{ when: { status: [404] }, \
                  not_executed: true }]";
    let warned = |text: &str| {
        let config = good(text);
        let found: Vec<String> = config.warnings.iter().map(brief).collect();
        found
            .iter()
            .any(|warning| warning.contains("without `upstream_max_execution`"))
    };
    assert!(warned(&route(inside)));
    let told = "webhook: { scheme: standard, secret_env: HOME, key: /key, at: /at, outcomes: [{ \
                when: { pointer: /type, in: [no] }, not_executed: true }] }";
    assert!(warned(&route(told)));
    assert!(!warned(&route(&format!(
        "{inside}, upstream_max_execution: 5m"
    ))));
}

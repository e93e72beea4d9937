//! What is allowed and said all the same.

use super::*;

fn warnings(text: &str) -> Vec<String> {
    good(text).warnings.iter().map(brief).collect()
}

#[test]
fn nothing_to_say_about_a_careful_file_but_the_shared_scope() {
    assert_eq!(
        warnings(&format!(
            "idempotency: {{ enabled: true, enforce: true, on_5xx: retry, limits: {{ new_keys_per_second: 9 }} }}\n{ROUTE}"
        )),
        ["2:16: without `auth` all clients share one namespace of keys"]
    );
}

#[test]
fn each_warning_has_its_place() {
    for (text, expected) in [
        (
            ROUTE.to_owned(),
            "1:1: no route is protected: every request passes through unrecorded",
        ),
        (
            format!("idempotency: {{ enabled: true, key_scope: global }}\n{ROUTE}"),
            "1:42: without `auth` all clients share one namespace of keys",
        ),
        (
            format!("idempotency: {{ enabled: true, credential_cookies: [] }}\n{ROUTE}"),
            "1:51: callers that differ in their cookies alone are not told apart",
        ),
        (
            format!("idempotency: {{ enabled: true }}\n{ROUTE}"),
            "2:16: route `a` takes any number of new keys from one client",
        ),
        (
            format!("limits: {{ waiters: 5 }}\nidempotency: {{ enabled: true }}\n{ROUTE}"),
            "1:9: route `a` takes any number of new keys from one client",
        ),
        (
            format!("idempotency: {{ enabled: true, enforce: false }}\n{ROUTE}"),
            "1:40: route `a` lets POST requests without a key pass unprotected",
        ),
        (
            format!("idempotency: {{ enabled: true, enforce: true }}\n{ROUTE}"),
            "2:16: route `a` does not say `on_5xx`: a request that was answered with 500 or 503 is executed \
             again",
        ),
        (
            format!("idempotency: {{ enabled: true, enforce: true, ttl: 59m }}\n{ROUTE}"),
            "1:51: route `a` forgets answers after 59m",
        ),
        (
            format!("idempotency: {{ enabled: true, shadow: true }}\n{ROUTE}"),
            "1:39: route `a` is in shadow mode: keys are observed and nothing is protected",
        ),
        (
            format!("idempotency: {{ enabled: true, profile: cache }}\n{ROUTE}"),
            "1:40: route `a` lets requests through unprotected while the store is down",
        ),
        (
            "store: { url: 'sqlite:a.db', single_node: true }\n\
             auth: { trusted_header: { name: X-Client-Id, from: ['10.0.0.0/8'] } }\n\
             idempotency: { enabled: true, profile: payments, reconcile: operator }\n\
             routes: [{ id: a, path: /, backends: [{ url: http://up }] }]\n"
                .to_owned(),
            "3:40: route `a` has profile `payments`, and answers are stored as they are",
        ),
        (
            "store: { url: 'postgres://db/a' }\n\
             auth: { trusted_header: { name: X-Client-Id, from: ['10.0.0.0/8'] } }\n\
             idempotency: { enabled: true, profile: payments, reconcile: operator }\n\
             routes: [{ id: a, path: /, backends: [{ url: http://up }] }]\n"
                .to_owned(),
            "3:40: route `a` has profile `payments`, and a store that loses keys while the gateway is stopped \
             is not recognised",
        ),
        (
            "idempotency: { enabled: true }\n\
             routes: [{ id: a, path: /, methods: [GET], backends: [{ url: http://up }] }]\n"
                .to_owned(),
            "2:16: route `a` takes none of the methods on which keys are honoured",
        ),
    ] {
        let found = warnings(&text);
        assert!(
            found.iter().any(|one| one == expected),
            "{text}\n{found:#?}"
        );
    }
}

/// The precedence stands; what is overruled must be known.
#[test]
fn a_profile_that_overrules_what_is_said_for_all() {
    let text = "store: { url: 'sqlite:a.db', single_node: true }\n\
         upstream_reuse: true\n\
         limits: { live_keys: 5, new_keys_per_second: 100000 }\n\
         idempotency:\n  enabled: true\n  reconcile: operator\n  credential_headers: [a]\n  \
         enforce: all\n  ttl: 240h\n  on_5xx: retry\n  min_key_length: 4\n  after_expiry: new\n  \
         release_statuses: [401, 403]\n  tombstone_ttl: 30d\n\
         routes:\n\
         - { id: a, path: /a, backends: [{ url: http://u }], idempotency: { profile: payments } }\n\
         - id: b\n  path: /b\n  upstream_reuse: true\n  backends: [{ url: http://u }]\n  \
         limits: { live_keys: 50000, new_keys_per_second: 9 }\n  idempotency: { profile: payments, \
         enforce: all, ttl: 240h, on_5xx: retry, min_key_length: 4, after_expiry: new, \
         release_statuses: [401] }\n\
         - { id: c, path: /c, backends: [{ url: http://u }] }\n";
    let config = good(text);
    let live = |index: usize| config.routes[index].policy.live_keys;
    assert_eq!(
        [live(0), live(1), live(2)],
        [Some(5), Some(10_000), Some(5)]
    );
    let rate = config.routes[0].policy.new_keys;
    assert_eq!(rate, Some((1_000, 2_000)));
    let found: Vec<String> = config.warnings.iter().map(brief).collect();
    let about = |word: &str| -> Vec<&str> {
        let found = found.iter().map(String::as_str);
        found.filter(|one| one.contains(word)).collect()
    };
    let overrules = |at: &str, from: &str, to: &str| {
        format!("{at}: route `a`: profile `payments` overrules `{from}` with `{to}`")
    };
    let all = overrules("8:12", "enforce: all", "enforce: true") + ", which demands fewer keys";
    assert_eq!(
        about(" overrules "),
        [
            overrules("2:17", "upstream_reuse: true", "upstream_reuse: false"),
            all,
            overrules("9:8", "ttl: 240h0m0s", "ttl: 72h0m0s"),
            overrules("10:11", "on_5xx: retry", "on_5xx: unknown"),
            overrules("11:19", "min_key_length: 4", "min_key_length: 16"),
            overrules("12:17", "after_expiry: new", "after_expiry: reject"),
            overrules(
                "13:21",
                "release_statuses: [401, 403]",
                "release_statuses: [401, 429]"
            ),
        ]
    );
    assert_eq!(
        about(" is looser "),
        [
            "3:9: route `a`: `new_keys_per_second: 100000` is looser than profile `payments`, so 1000 holds",
            "21:11: route `b`: `live_keys: 50000` is looser than profile `payments`, so 10000 holds",
        ]
    );
    let hint = config.warnings.iter().find_map(|one| {
        let is_ttl = one.message.contains("`ttl: ");
        is_ttl.then(|| one.hint.clone()).flatten()
    });
    assert!(
        hint.unwrap()
            .ends_with("say `ttl: 240h0m0s` or `ttl: 72h0m0s` on the route")
    );
}

#[test]
fn options_that_nobody_switched_on() {
    let text = "routes:\n\
                - { id: a, path: /a, backends: [{ url: http://u }], idempotency: { enforce: true } }\n\
                - { id: b, path: /b, backends: [{ url: http://u }], idempotency: { enabled: false } }\n\
                - { id: c, path: /c, backends: [{ url: http://u }] }\n";
    assert_eq!(
        warnings(text),
        [
            "1:1: no route is protected: every request passes through unrecorded",
            "2:53: route `a` has options for keys but ignores keys",
        ]
    );
}

#[test]
fn a_route_that_takes_no_post_needs_no_enforcement() {
    let found = warnings(
        "idempotency: { enabled: true }\n\
         routes: [{ id: a, path: /, methods: [PUT], backends: [{ url: http://up }] }]\n",
    );
    assert!(!found.iter().any(|one| one.contains("POST")), "{found:?}");
}

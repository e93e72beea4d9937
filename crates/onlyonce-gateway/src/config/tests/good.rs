//! What good configurations mean.

use std::path::PathBuf;

use http::{HeaderName, StatusCode};
use onlyonce_core::policy::{
    AfterExpiry, Dialect, Enforce, ErrorFormat, KeyScope, On5xx, OnInFlight, OnStoreError, Profile,
};

use super::*;

#[test]
fn a_route_is_enough() {
    let config = good(ROUTE);
    assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.admin.listen.to_string(), "127.0.0.1:9090");
    assert_eq!(config.admin.token_env, "ONLYONCE_ADMIN_TOKEN");
    assert_eq!(
        config.store.url,
        StoreUrl::Sqlite(PathBuf::from("onlyonce.db"))
    );
    assert_eq!(config.store.timeout, Duration::from_secs(2));
    assert!(config.store.migrate && !config.store.create && !config.store.single_node);
    let workers = &config.workers;
    let every = [
        workers.sweep_every,
        workers.reap_every,
        workers.reconcile_every,
        workers.deliver_every,
    ];
    let expected = [5_000, 60_000, 5_000, 500].map(Duration::from_millis);
    assert_eq!(every, expected);
    assert_eq!(config.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.header_timeout, Duration::from_secs(10));
    assert_eq!(config.body_timeout, Duration::from_secs(60));
    assert_eq!(config.send_timeout, Duration::from_secs(30));
    let [route] = config.routes.as_slice() else {
        panic!("one route")
    };
    assert_eq!((route.id.as_str(), route.path.as_str()), ("a", "/"));
    assert_eq!(route.timeout, Duration::from_secs(30));
    assert_eq!(route.upstream_idle, Duration::from_secs(1));
    assert!(route.upstream_reuse);
    assert_eq!(route.connect_timeout, Duration::from_secs(2));
    assert_eq!(route.mode_name, "local");
    assert!(!route.policy.enabled);
}

#[test]
fn every_supported_field_is_read() {
    let config = good(include_str!("full.yaml"));
    assert_eq!(config.listen.to_string(), "0.0.0.0:4711");
    assert_eq!(config.admin.readonly_token_env.as_deref(), Some("OO_LOOK"));
    assert!(config.admin.public_metrics && config.admin.mask_keys);
    assert!(!config.store.migrate && config.allow_scope_change);
    assert!(config.store.create && config.store.single_node);
    assert_eq!(config.workers.deliver_every, Duration::from_millis(100));
    let client = [
        config.header_timeout,
        config.body_timeout,
        config.send_timeout,
    ];
    assert_eq!(client, [3, 20, 7].map(Duration::from_secs));
    let route = &config.routes[0];
    assert_eq!(route.methods, Some(vec![Method::POST, Method::GET]));
    assert_eq!(route.backends[1].weight, 3);
    assert_eq!(route.backends[1].authority(), "[::1]:3001");
    assert_eq!(route.timeout, Duration::from_secs(5));
    assert_eq!(route.upstream_idle, Duration::from_millis(700));
    assert!(!route.upstream_reuse);
    assert_eq!(route.connect_timeout, Duration::from_millis(300));
    let policy = &route.policy;
    assert!(policy.enabled && route.edge.key_per_route && !policy.key_rules.reject_sensitive);
    assert_eq!(
        (policy.dialect, policy.profile),
        (Dialect::Stripe, Profile::Cache)
    );
    assert_eq!(policy.header_name, HeaderName::from_static("x-key"));
    assert_eq!(policy.replayed_header, HeaderName::from_static("x-again"));
    assert_eq!(policy.methods, [Method::POST, Method::DELETE]);
    assert_eq!(policy.enforce, Enforce::All);
    assert_eq!(route.edge.key_scope, Some(KeyScope::Global));
    assert_eq!(
        (policy.key_rules.min_length, policy.key_rules.max_length),
        (8, 64)
    );
    assert_eq!(policy.ttl, Duration::from_secs(48 * 3_600));
    assert_eq!(policy.tombstone_ttl, Duration::from_secs(7 * 86_400));
    assert_eq!(policy.after_expiry, AfterExpiry::Reject);
    assert_eq!(
        (policy.max_request_body, policy.max_body_size),
        (512 << 10, 1_048_576)
    );
    assert_eq!(policy.on_in_flight, OnInFlight::Reject);
    assert_eq!(policy.wait_timeout, Duration::from_secs(10));
    assert_eq!(policy.on_5xx, On5xx::Unknown);
    assert_eq!(policy.release_statuses, [StatusCode::UNAUTHORIZED]);
    assert_eq!(policy.on_store_error, OnStoreError::Refuse);
    assert_eq!(policy.lease, Duration::from_secs(1));
    assert_eq!(policy.timeout, Duration::from_secs(5));
    assert_eq!(policy.max_execution, Duration::from_secs(60));
    assert_eq!(policy.completion_grace, Duration::from_secs(3));
    assert_eq!(policy.error_format, ErrorFormat::Problem);
    assert_eq!(
        route.edge.credential_headers,
        [HeaderName::from_static("x-tenant")]
    );
    assert_eq!((policy.waiters_per_key, policy.waiters), (5, 50));
    assert_eq!((policy.detached, config.held_bytes), (9, 64 << 20));
    assert_eq!(
        (policy.new_keys, policy.live_keys),
        (Some((7, 70)), Some(700))
    );
    assert!(policy.shadow && route.auth_optional && config.auth.is_some());
    assert_eq!(policy.lookups_per_second, Some(3));
    assert_eq!(policy.max_request_age, Some(Duration::from_secs(90)));
    assert_eq!(
        policy.request_time_header,
        HeaderName::from_static("x-made-at")
    );
}

#[test]
fn authenticated_clients_have_limits_without_a_word() {
    let auth = "auth: { trusted_header: { name: X-Client-Id, from: ['10.0.0.0/8'] } }\n";
    let limits = |text: &str| {
        let config = good(&format!("{text}idempotency: {{ enabled: true }}\n{ROUTE}"));
        let shown = view::view(&config)["routes"][0]["idempotency"]["limits"].clone();
        ["new_keys_per_second", "burst", "live_keys"].map(|name| shown[name].as_u64())
    };
    assert_eq!(limits(""), [None; 3]);
    assert_eq!(limits(auth), [10_000, 20_000, 100_000].map(Some));
    let said = format!("{auth}limits: {{ new_keys_per_second: 90000, live_keys: 7 }}\n");
    assert_eq!(limits(&said), [90_000, 90_000, 7].map(Some));
}

#[test]
fn a_route_overrides_the_gateway() {
    let config = good(
        "store: { url: 'sqlite:a.db', single_node: true }\n\
         limits: { waiters: 7 }\n\
         idempotency: { enabled: true, ttl: 2h, reconcile: operator, credential_headers: [a] }\n\
         routes:\n\
         - { id: a, path: /a, backends: [{ url: http://up }] }\n\
         - { id: b, path: /b, backends: [{ url: http://up }], idempotency: { enabled: false } }\n\
         - { id: c, path: /c, backends: [{ url: http://up }], idempotency: { profile: payments } }\n",
    );
    let facts: Vec<_> = config
        .routes
        .iter()
        .map(|route| {
            (
                route.policy.enabled,
                route.policy.ttl.as_secs() / 3_600,
                route.policy.waiters,
            )
        })
        .collect();
    assert_eq!(facts, [(true, 2, 7), (false, 2, 7), (true, 72, 7)]);
    // Where money is at stake, no key shares a connection unless its route says so.
    let reuse = config.routes.iter().map(|route| route.upstream_reuse);
    let shares: Vec<_> = reuse.collect();
    assert_eq!(shares, [true, true, false]);
    assert_eq!(config.protected().count(), 2);
}

#[test]
fn shadow_is_off_unless_said() {
    let shadows = |text: &str| -> Vec<bool> {
        good(text)
            .routes
            .iter()
            .map(|route| route.policy.shadow)
            .collect()
    };
    let routes = "routes:\n\
         - { id: a, path: /a, backends: [{ url: http://up }] }\n\
         - { id: b, path: /b, backends: [{ url: http://up }], shadow: true }\n\
         - { id: c, path: /c, backends: [{ url: http://up }], idempotency: { shadow: false } }\n";
    assert_eq!(shadows(routes), [false, true, false]);
    let on = format!("idempotency: {{ enabled: true, shadow: true }}\n{routes}");
    assert_eq!(shadows(&on), [true, true, false]);
    let config = good(&on);
    assert_eq!(
        (config.protected().count(), config.observed().count()),
        (1, 2)
    );
}

#[test]
fn anchors_and_aliases_stand_for_their_values() {
    let config = good(
        "idempotency: &on { enabled: true, enforce: true }\n\
         routes:\n\
         - { id: a, path: /a, backends: &up [{ url: http://up }], idempotency: *on }\n\
         - { id: b, path: /b, backends: *up }\n",
    );
    assert_eq!(config.routes[0].backends, config.routes[1].backends);
}

#[test]
fn variables_are_put_in() {
    let text = format!("listen: \"127.0.0.1:${{PORT}}\"\n{ROUTE}");
    assert_eq!(good(&text).listen.port(), 4711);
}

#[test]
fn the_command_line_overrides_the_file() {
    let overrides = Overrides {
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 1))),
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 3))),
        store: Some("memory:".to_owned()),
        no_env: false,
        worker: false,
    };
    let text = format!("listen: 127.0.0.1:2\nstore: {{ timeout: 1s }}\n{ROUTE}");
    let config = parse("oo.yaml", &text, &env, &overrides).unwrap();
    assert_eq!(
        (config.listen.port(), config.store.url),
        (1, StoreUrl::Memory)
    );
    assert_eq!(config.admin.listen.port(), 3);
    assert_eq!(config.store.timeout, Duration::from_secs(1));
    let text = format!("redis: {{ address: \"cache:6379\" }}\n{ROUTE}");
    let config = parse("oo.yaml", &text, &env, &overrides).unwrap();
    assert_eq!(config.store.url, StoreUrl::Memory, "the older form, too");
}

#[test]
fn ignore_query_may_stand_beside_fingerprint() {
    for options in [
        "ignore_query: [ts, sig]",
        "fingerprint: { ignore_query: [ts, sig] }",
        "ignore_query: [ts, sig], fingerprint: { mode: raw }",
    ] {
        let config = good(&format!(
            "idempotency: {{ enabled: true, {options} }}\n{ROUTE}"
        ));
        let recipe = &config.routes[0].policy.recipe;
        assert_eq!(recipe.ignore_query(), ["sig", "ts"], "{options}");
    }
}

#[test]
fn what_is_held_in_all_may_be_large() {
    let text = format!("limits: {{ held_bytes: 2GiB }}\nstore: {{ near_cache: 2GiB }}\n{ROUTE}");
    let config = good(&text);
    assert_eq!(config.store.near_cache, 2 << 30);
}

#[test]
fn an_upstream_alone_is_protected() {
    let config = for_upstream("http://127.0.0.1:3000/v1", &Overrides::default()).unwrap();
    let [route] = config.routes.as_slice() else {
        panic!("one route")
    };
    assert!(route.policy.enabled);
    assert_eq!((route.id.as_str(), route.path.as_str()), ("default", "/"));
    assert_eq!(route.backends[0].prefix, "/v1");
    assert!(
        config
            .warnings
            .iter()
            .all(|one| one.to_string().starts_with("command line: warning"))
    );
    let refused = for_upstream("${HOME}", &Overrides::default()).unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("command line: error: a backend is a URL"),
        "{refused}"
    );
}

#[test]
fn the_longest_prefix_by_whole_segments_wins() {
    let config = good(
        "routes:\n\
         - { id: all, path: /, backends: [{ url: http://up }] }\n\
         - { id: pay, path: /api/pay, backends: [{ url: http://up }] }\n\
         - { id: post, path: /api/payments, methods: [POST], backends: [{ url: http://up }] }\n\
         - { id: put, path: /api/payments, methods: [PUT], backends: [{ url: http://up }] }\n\
         - { id: below, path: /files/, backends: [{ url: http://up }] }\n",
    );
    for (method, path, id) in [
        (Method::POST, "/", "all"),
        (Method::POST, "/api", "all"),
        (Method::POST, "/api/pay", "pay"),
        (Method::POST, "/api/pay/1", "pay"),
        (Method::POST, "/api/payments", "post"),
        (Method::POST, "/api/payments/7/capture", "post"),
        (Method::PUT, "/api/payments", "put"),
        (Method::GET, "/api/payments", "all"),
        (Method::POST, "/api/paymentsX", "all"),
        (Method::GET, "/files", "all"),
        (Method::GET, "/files/", "below"),
        (Method::GET, "/files/a", "below"),
    ] {
        let index = config.route_match(&method, path).unwrap();
        assert_eq!(config.routes[index].id, id, "{method} {path}");
    }
    let narrow = good("routes: [{ id: a, path: /a, backends: [{ url: http://up }] }]");
    for path in ["/", "/ab", "*", ""] {
        assert_eq!(narrow.route_match(&Method::POST, path), None, "{path}");
    }
}

#[test]
fn redis_as_older_gateways_say_it() {
    let config = good(&format!(
        "redis: {{ address: \"cache:6379\" }}\nidempotency: {{ mode: distributed }}\n{ROUTE}"
    ));
    assert_eq!(
        config.store.url,
        StoreUrl::Redis("redis://cache:6379".to_owned())
    );
    assert_eq!(config.routes[0].mode_name, "distributed");
    let config = good(&format!(
        "store: {{ url: \"postgres://db/x\", cache: \"redis://:pw@cache/1\" }}\n{ROUTE}"
    ));
    let cache = config.store.cache.unwrap();
    assert_eq!(cache, StoreUrl::Redis("redis://:pw@cache/1".to_owned()));
    assert_eq!(cache.to_string(), "redis://cache");
}

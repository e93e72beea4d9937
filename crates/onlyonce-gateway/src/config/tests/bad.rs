//! Bad configurations, and exactly what is said about them and where.

use super::*;
use crate::config::{fields::OptionTable, setting::Table};

/// A line before a good route, and what is said about it.
const LINES: &[(&str, &str)] = &[
    (
        "lisen: 127.0.0.1:1",
        "1:1: unknown field `lisen` in the top level",
    ),
    ("ttl: 24h", "1:1: unknown field `ttl` in the top level"),
    (
        "listen: 8080",
        "1:9: `listen` is an IP address and a port, not `8080`",
    ),
    ("listen:", "1:1: `listen` has no value"),
    ("listen: [a]", "1:9: `listen` must be a single value"),
    (
        "listen: 127.0.0.1:9090",
        "1:9: `listen` and `admin.listen` are both 127.0.0.1:9090",
    ),
    ("admin: true", "1:8: `admin` must be a mapping"),
    (
        "admin: { token_env: \"s3cret!\" }",
        "1:21: `token_env` is the name of an environment variable",
    ),
    (
        "admin: { public_metrics: yes }",
        "1:26: `public_metrics` is `true` or `false`, not `yes`",
    ),
    (
        "store: { url: memory }",
        "1:15: this is not the URL of a store: `memory`",
    ),
    (
        "store: { url: \"${DB}\" }",
        "1:15: this is not the URL of a store: `${DB}`",
    ),
    (
        "store: { url: \"postgres://u:s3cret@h:badport/d\" }",
        "1:15: the port of this store is no number up to 65535: `postgres://u*******@h:badport/d`",
    ),
    (
        "store: { url: \"redis://h:6379/x?password=s3cret\" }",
        "1:15: the URL of this Redis store cannot be read: its path is the number of a database, from 0 on: \
         `redis://h:6379/x?password=******`",
    ),
    (
        "redis: { address: \"redis://h:bad\" }",
        "1:19: the URL of this Redis store cannot be read: a host or port in it cannot be read: `redis://h:bad`",
    ),
    (
        "store: { timeout: 0s }",
        "1:19: `timeout` is at least 1ms, not `0s`",
    ),
    (
        "workers: { sweep_every: 2d }",
        "1:25: `sweep_every` is at most 1day, not `2d`",
    ),
    (
        "drain_timeout: ${NOPE}",
        "1:16: the environment variable `NOPE` is not set",
    ),
    (
        "drain_timeout: ${PORT",
        "1:16: `${` must be followed by a variable's name and `}`",
    ),
    (
        "drain_timeout: !dur 3s",
        "1:16: the tag `!dur` has no meaning here",
    ),
    ("[a]: b", "1:1: a key must be a word"),
    (
        "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2",
        "2:1: `listen` is here twice",
    ),
    ("listen: *nope", "1:9: no anchor `&nope` stands before this"),
    (
        "listen: a: b",
        "1:10: this is not YAML: mapping values are not allowed in this context",
    ),
    (
        "store: { identity: 12ab }",
        "1:20: `identity` is 32 hexadecimal digits",
    ),
    (
        "store: { url: 'memory:', spool_dir: /x }",
        "1:37: `spool_dir` needs a store that outlives the process",
    ),
    ("redis: {}", "1:8: `redis` without `address`"),
    (
        "idempotency: { ignore_query: [a], fingerprint: { ignore_query: [b] } }",
        "1:30: `ignore_query` beside `fingerprint.ignore_query`",
    ),
    (
        "redis: { address: \"postgres://db/x\" }",
        "1:19: this is not the address of a Redis server: `postgres://db/x`",
    ),
    (
        "store: { allow_eviction: true }",
        "1:26: `allow_eviction` has no meaning for a sqlite store",
    ),
    (
        "store: { url: \"memory:\", cache: \"redis://c\" }",
        "1:33: `cache` stands in front of SQL, not of a memory store",
    ),
    (
        "store: { cache: \"memory:\" }",
        "1:17: this is not the address of a Redis server: `memory:`",
    ),
    (
        "store: { encryption_key_env: ONLYONCE_TEST_NOT_SET }",
        "1:30: `encryption_key_env`: ONLYONCE_TEST_NOT_SET is not set",
    ),
    (
        "store: { encryption_key_env: PATH }",
        "1:30: `encryption_key_env`: PATH: the id of entry 1 is not 1 to 32 of A-Z a-z 0-9 _ -",
    ),
    (
        "store: { compression: gzip }",
        "1:23: `compression` is `none`, `zstd` or `dictionary`, not `gzip`",
    ),
    (
        "store: { plain_settle: true }",
        "1:24: `plain_settle` says something only with `encryption_key_env`",
    ),
    (
        "store: { pooler: transaction }",
        "1:18: `pooler` has no meaning for a sqlite store",
    ),
    (
        "idempotency: { mode: distributed }",
        "1:22: `mode: distributed` needs a store that several gateways can share",
    ),
    (
        "store: { url: \"postgres://db/x\" }\nidempotency: { mode: local }",
        "2:22: `mode: local` contradicts a postgres store",
    ),
    (
        "%YAML 1.2\n---\n",
        "1:1: this is not YAML: YAML directives are disallowed",
    ),
];

/// One field of `idempotency`, and what is said about it.
const OPTIONS: &[(&str, &str)] = &[
    (
        "enabled: 1",
        "1:25: `enabled` is `true` or `false`, not `1`",
    ),
    (
        "enabeld: true",
        "1:16: unknown field `enabeld` in `idempotency`",
    ),
    ("<<: {}", "1:16: unknown field `<<` in `idempotency`"),
    ("ttl: 30", "1:21: `ttl`: a duration needs a unit, `30`"),
    ("ttl: soon", "1:21: `ttl`: this is not a duration, `soon`"),
    ("lease: 999ms", "1:23: `lease` is at least 1s, not `999ms`"),
    (
        "enforce: some",
        "1:25: `enforce` is `true`, `false` or `all`, not `some`",
    ),
    (
        "on_in_flight: wiat",
        "1:30: `on_in_flight` is `wait`, `reject` or `accept`, not `wiat`",
    ),
    (
        "on_store_error: open",
        "1:32: `on_store_error` is `refuse` or `bypass`, not `open`",
    ),
    (
        "key_scope: per_client",
        "1:27: `key_scope: per_client` without `auth`: there is no client to tell apart",
    ),
    (
        "max_key_length: 0",
        "1:32: `max_key_length` is at least 1, not `0`",
    ),
    (
        "max_key_length: long",
        "1:32: `max_key_length` is a whole number, not `long`",
    ),
    (
        "max_body_size: 1MB",
        "1:31: `max_body_size`: this is not a size, `1MB`",
    ),
    (
        "methods: [post]",
        "1:26: methods are upper case, not `post`",
    ),
    (
        "methods: [CONNECT]",
        "1:26: CONNECT always passes through and takes no key",
    ),
    ("methods: []", "1:25: `methods` is empty"),
    ("methods: POST", "1:25: `methods` must be a list"),
    (
        "header_name: Transfer-Encoding",
        "1:29: `header_name` cannot be `Transfer-Encoding`",
    ),
    (
        "header_name: \"a b\"",
        "1:29: `a b` is not the name of a header",
    ),
    (
        "release_statuses: [200]",
        "1:35: `release_statuses` cannot hold 200",
    ),
    ("release_statuses: [4000]", "1:35: `4000` is not a status"),
    (
        "fingerprint: { fields: [a] }",
        "1:40: a JSON pointer that is not empty must start with a slash: `a`",
    ),
    (
        "fingerprint: { mode: raw, ignore: [/a] }",
        "1:50: `ignore` has no meaning under `mode: raw`",
    ),
    (
        "reconcile: nobody",
        "1:27: `reconcile` is `operator`, not `nobody`",
    ),
    (
        "limits: { burst: 5 }",
        "1:24: `burst` without `new_keys_per_second` has no effect",
    ),
    (
        "limits: { new_keys_per_second: 0 }",
        "1:47: `new_keys_per_second` is at least 1, not `0`",
    ),
    (
        "request_time_header: X-T",
        "1:37: `request_time_header` without `max_request_age` has no effect",
    ),
    (
        "max_request_age: 500ms",
        "1:33: `max_request_age` is at least 1s, not `500ms`",
    ),
    (
        "limits: { held_bytes: 64MiB }",
        "1:38: `held_bytes` is for all routes together",
    ),
    (
        "limits: { detached: 0 }",
        "1:36: `detached` is at least 1, not `0`",
    ),
    (
        "limits: { waiters: -1 }",
        "1:35: `waiters` is a whole number, not `-1`",
    ),
    (
        "enabled: true, max_execution: 10s",
        "1:46: `max_execution` (10s) is shorter than `timeout` (30s)",
    ),
    (
        "enabled: true, min_key_length: 300",
        "1:47: no key is at least 300 and at most 256 bytes long",
    ),
    (
        "enabled: true, replayed_header: idempotency-key",
        "1:48: `header_name` and `replayed_header` are both `idempotency-key`",
    ),
    (
        "enabled: true, on_in_flight: accept, dialect: stripe",
        "1:45: `on_in_flight: accept` is not possible in dialect `stripe`",
    ),
];

/// A whole `routes` section, and what is said about it.
const ROUTES: &[(&str, &[&str])] = &[
    (
        "routes:\n- id: a\n  path: /\n  backends: [{ url: http://u }]\n  cors: { credentials: true }\n",
        &["5:9: `cors` without `origins`"],
    ),
    (
        "routes:\n- id: a\n  path: /\n  backends: [{ url: http://u }]\n  cors: { origins: [] }\n",
        &["5:20: `origins` is empty"],
    ),
    (
        "routes:\n- id: a\n  path: /\n  backends: [{ url: http://u }]\n  cors: { origins: [\"https://a/\", shop, \"https://A:443\", \"https://a:8443\"] }\n",
        &[
            "5:21: `https://a/` is no origin",
            "5:35: `shop` is no origin",
            "5:41: `https://A:443` is no origin",
        ],
    ),
    (
        "routes:\n- id: a\n  path: /\n  backends: [{ url: http://u }]\n  cors: { origins: [\"*\", \"https://a\"] }\n",
        &["5:20: `origins` names every origin, and others"],
    ),
    (
        "routes:\n- id: a\n  path: /\n  backends: [{ url: http://u }]\n  cors: { origins: [\"*\"], credentials: true }\n",
        &["5:40: `credentials: true` with every origin: browsers refuse that"],
    ),
    ("", &["1:1: `routes` is missing"]),
    (
        "- a\n",
        &[
            "1:1: the top level must be a mapping",
            "1:1: `routes` is missing",
        ],
    ),
    ("routes:\n", &["1:1: `routes` is empty"]),
    ("routes: []\n", &["1:1: `routes` is empty"]),
    ("routes: { a: b }\n", &["1:9: `routes` must be a list"]),
    (
        "routes: [a]\n",
        &[
            "1:10: a route must be a mapping",
            "1:10: a route without `id`",
            "1:10: a route without `path`",
            "1:10: a route without `backends`",
        ],
    ),
    (
        "routes: [{ id: 'a b', path: /, backends: [{ url: http://u }] }]",
        &["1:16: `a b` cannot be a route's id"],
    ),
    (
        "routes: [{ id: a, path: x, backends: [{ url: http://u }] }]",
        &["1:25: a path starts with a slash: `x`"],
    ),
    (
        "routes: [{ id: a, path: /x/*, backends: [{ url: http://u }] }]",
        &["1:25: a path holds no patterns: `/x/*`"],
    ),
    (
        "routes: [{ id: a, path: /x?y, backends: [{ url: http://u }] }]",
        &["1:25: this is not a path: `/x?y`"],
    ),
    (
        "routes: [{ id: a, path: /x/../y, backends: [{ url: http://u }] }]",
        &["1:25: a path has no empty and no dot segments: `/x/../y`"],
    ),
    (
        "routes: [{ id: a, path: /.onlyonce/x, backends: [{ url: http://u }] }]",
        &["1:25: the gateway keeps this path for itself: `/.onlyonce/x`"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [] }]",
        &["1:28: a route needs at least one backend"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{}] }]",
        &["1:39: a backend without `url`"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: u }] }]",
        &["1:46: a backend is a URL with scheme and host: `u`"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: \"https://u\", ca_file: /no }] }]",
        &["1:68: `/no` cannot be read: No such file or directory (os error 2)"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: \"http://u\", ca_file: a }] }]",
        &["1:67: `ca_file` has no meaning without `https://`"],
    ),
    (
        "tls: { cert: /no, key: /no }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }] }]",
        &["1:14: `/no` cannot be read: No such file or directory (os error 2)"],
    ),
    (
        "tls: { cert: a }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }] }]",
        &["1:6: `tls` without `key`"],
    ),
    (
        "max_header_size: 1KiB\nroutes: [{ id: a, path: /, backends: [{ url: http://u }] }]",
        &["1:18: `max_header_size` is from 8KiB to 1MiB"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: http://u, weight: 0 }] }]",
        &["1:64: `weight` is at least 1, not `0`"],
    ),
    (
        "routes: [{ id: a, path: /, auth: optional, backends: [{ url: http://u }] }]",
        &["1:34: a route with `auth`, and no `auth` at the top level"],
    ),
    (
        "routes: [{ id: a, path: /, timeout: 1s, backends: [{ url: http://u }], idempotency: { timeout: 2s } }]",
        &["1:37: `timeout` is said here and under `idempotency`"],
    ),
    (
        "routes:\n- { id: a, path: /, backends: [{ url: http://u }] }\n- { id: a, path: /x, backends: [{ url: http://u }] }\n",
        &["3:9: a second route with the id `a`"],
    ),
    (
        "routes:\n- { id: a, path: /x, backends: [{ url: http://u }] }\n- { id: b, path: /x, methods: [PUT], backends: [{ url: http://u }] }\n",
        &["3:9: two routes take the same requests under `/x`"],
    ),
    (
        "routes: [{ id: a, path: /caf%C3%A9, backends: [{ url: http://u }] }]",
        &[
            "1:25: no request can reach this path, since percent-encoding is undone before it is compared: `/caf%C3%A9`",
        ],
    ),
    (
        "routes: [{ id: a, path: /, methods: [CONNECT], backends: [{ url: http://u }] }]",
        &["1:16: no request can reach a route for CONNECT alone"],
    ),
    (
        "store: { url: 'memory:' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, reconcile: operator, credential_headers: [a] } }]",
        &["1:15: profile `payments` demands a store that survives a crash"],
    ),
    (
        "store: { url: 'postgres://h/d' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, credential_headers: [a] } }]",
        &["2:98: profile `payments` demands `reconcile`"],
    ),
    (
        "store: { url: 'postgres://h/d' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, on_in_flight: accept, reconcile: operator, credential_headers: [a] } }]",
        &["2:122: `on_in_flight: accept` is not possible in profile `payments`"],
    ),
    (
        "store: { url: 'sqlite:a.db' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, reconcile: operator, credential_headers: [a] } }]",
        &["1:15: profile `payments` on an embedded store, which one gateway alone can use"],
    ),
    (
        "store: { url: 'postgres://h/d' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, reconcile: operator } }]",
        &["2:98: profile `payments` demands that callers are told apart"],
    ),
    (
        "store: { url: 'postgres://h/d' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, reconcile: operator, credential_headers: [] } }]",
        &["2:149: profile `payments` demands that callers are told apart"],
    ),
    (
        "store: { url: 'postgres://h/d' }\nroutes: [{ id: a, path: /, backends: [{ url: http://u }], idempotency: { enabled: true, profile: payments, reconcile: operator, credential_cookies: [] } }]",
        &["2:98: profile `payments` demands that callers are told apart"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: http://u }] }]\n---\na: b\n",
        &["2:1: a configuration is one YAML document, and here starts another"],
    ),
    (
        "routes: [{ id: a, path: /, backends: [{ url: http://u }]\n",
        &["1:10: this is not YAML: unclosed bracket '{'"],
    ),
];

#[test]
fn lines_at_the_top_level() {
    for (line, expected) in LINES {
        assert_eq!(errors(&format!("{line}\n{ROUTE}")), [*expected], "{line}");
    }
}

#[test]
fn options() {
    for (option, expected) in OPTIONS {
        let text = format!("idempotency: {{ {option} }}\n{ROUTE}");
        assert_eq!(errors(&text), [*expected], "{option}");
    }
}

#[test]
fn routes() {
    for (text, expected) in ROUTES {
        assert_eq!(errors(text), *expected, "{text}");
    }
}

#[test]
fn six_mistakes_give_six_diagnostics() {
    let text = "listen: nowhere\n\
                store: { url: \"sqlite:\" }\n\
                idempotency:\n\
                \x20 enabled: true\n\
                \x20 tll: 24h\n\
                \x20 on_5xx: retri\n\
                routes:\n\
                \x20 - id: payments\n\
                \x20   path: api\n\
                \x20   backends: [{ url: \"http://up\" }]\n\
                \x20   timeout: 30\n";
    let rendered = parsed(text).unwrap_err().to_string();
    let heads: Vec<&str> = rendered
        .lines()
        .filter(|line| line.starts_with("oo.yaml:"))
        .collect();
    assert_eq!(
        heads,
        [
            "oo.yaml:1:9: error: `listen` is an IP address and a port, not `nowhere`",
            "oo.yaml:2:15: error: `sqlite:` needs a file: `sqlite:`",
            "oo.yaml:5:3: error: unknown field `tll` in `idempotency`",
            "oo.yaml:6:11: error: `on_5xx` is `retry`, `store` or `unknown`, not `retri`",
            "oo.yaml:9:11: error: a path starts with a slash: `api`",
            "oo.yaml:11:14: error: `timeout`: a duration needs a unit, `30`",
        ]
    );
    for hint in [
        "hint: did you mean `ttl`?",
        "hint: did you mean `retry`?",
        "hint: did you mean `/api`?",
    ] {
        assert!(rendered.contains(hint), "{hint}\n{rendered}");
    }
}

#[test]
fn a_mistake_behind_an_alias_is_told_once() {
    let text = "idempotency: &i { ttl: 5 }\n\
                routes:\n\
                - { id: a, path: /a, backends: [{ url: http://u }], idempotency: *i }\n\
                - { id: b, path: /b, backends: [{ url: http://u }], idempotency: *i }\n";
    assert_eq!(errors(text), ["1:24: `ttl`: a duration needs a unit, `5`"]);
}

/// Goal: one mistake hides no other.
///
/// Method: two contradictions, and beside them a value that cannot be read, of every other option in turn.
/// Evidence: all three are told.
#[test]
fn a_mistake_switches_off_no_other_check() {
    let pairs = "timeout: 30s, max_execution: 1s, min_key_length: 9, max_key_length: 2";
    let mut count = 0;
    for field in OptionTable::SCHEMA.fields {
        if field.name == "enabled" || pairs.contains(&format!("{}:", field.name)) {
            continue;
        }
        // A mapping with an unknown member is right for no option.
        let wrong = format!("{}: {{ bogus: 1 }}", field.name);
        let found = errors(&format!(
            "idempotency: {{ enabled: true, {pairs}, {wrong} }}\n{ROUTE}"
        ));
        let tells = |what: &str| found.iter().any(|one| one.contains(what));
        assert!(
            found.len() >= 3 && tells("is shorter than") && tells("no key is at least 9"),
            "{wrong}\n{found:#?}"
        );
        count += 1;
    }
    assert!(count > 30, "{count}");
    // What a route says of its own is no worse for what cannot be read at the top.
    let route = "routes: [{ id: a, path: /, backends: [{ url: http://up }], timeout: 30s, max_execution: 1s }]";
    let found = errors(&format!(
        "idempotency: {{ enabled: true, timeout: 5 }}\n{route}\n"
    ));
    assert!(
        found.iter().any(|one| one.contains("is shorter than")),
        "{found:#?}"
    );
}

/// The other part of a pair is there, though nobody can read it.
#[test]
fn a_pair_that_cannot_be_read_is_not_said_in_vain() {
    for pair in [
        "request_time_header: X-At, max_request_age: 5",
        "limits: { burst: 5, new_keys_per_second: 0 }",
    ] {
        let found = errors(&format!(
            "idempotency: {{ enabled: true, {pair} }}\n{ROUTE}"
        ));
        assert_eq!(found.len(), 1, "{found:#?}");
        let in_route = format!(
            "routes: [{{ id: a, path: /, backends: [{{ url: http://up }}], idempotency: {{ {pair} }} }}]\n"
        );
        assert_eq!(errors(&in_route).len(), 1, "{pair}");
    }
}

#[test]
fn a_default_for_an_unreadable_value_contradicts_nothing() {
    let text = format!("idempotency: {{ enabled: true, timeout: 5, max_execution: 10s }}\n{ROUTE}");
    assert_eq!(
        errors(&text),
        ["1:40: `timeout`: a duration needs a unit, `5`"]
    );
}

/// Goal: whatever field a secret was meant for or strays into, no diagnostic repeats it.
///
/// Method: put the same variable into every field of every section, alone and as a list.
#[test]
fn a_secret_from_the_environment_is_not_printed() {
    use crate::config::fields::{
        ADMIN, API_KEY, AUTH, EXTERNAL, FINGERPRINT, IDEMPOTENCY, JWT, LIMITS, STORE, TOP,
        TRUSTED_HEADER, WORKERS,
    };
    let sections = [
        (&TOP, "", "\n"),
        (&ADMIN, "admin: { ", " }\n"),
        (&STORE, "store: { ", " }\n"),
        (&WORKERS, "workers: { ", " }\n"),
        (&AUTH, "auth: { ", " }\n"),
        (&API_KEY, "auth: { api_keys: [{ ", " }] }\n"),
        (&JWT, "auth: { jwt: { ", " } }\n"),
        (&TRUSTED_HEADER, "auth: { trusted_header: { ", " } }\n"),
        (&EXTERNAL, "auth: { external: { ", " } }\n"),
        (&LIMITS, "limits: { ", " }\n"),
        (&IDEMPOTENCY, "idempotency: { ", " }\n"),
        (&FINGERPRINT, "idempotency: { fingerprint: { ", " } }\n"),
        (&crate::config::fields::ROUTE, "routes: [{ ", " }]\n"),
        (
            &crate::config::fields::BACKEND,
            "routes: [{ backends: [{ ",
            " }] }]\n",
        ),
    ];
    for (schema, before, after) in sections {
        for field in schema.names() {
            for value in ["\"${DB}\"", "[\"${DB}\"]"] {
                let text = format!("{before}{field}: {value}{after}");
                let shown = parsed(&text).unwrap_err().to_string();
                assert!(
                    !shown.contains("hunter2") && !shown.contains("oracle"),
                    "{text}\n{shown}"
                );
            }
        }
    }
}

#[test]
fn check_speaks_on_the_right_streams() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oo.yaml");
    let run = |path: &Path| {
        let (mut verdict, mut findings) = (Vec::new(), Vec::new());
        let usable =
            check::check(path, &Overrides::default(), &mut verdict, &mut findings).unwrap();
        (
            usable,
            String::from_utf8(verdict).unwrap(),
            String::from_utf8(findings).unwrap(),
        )
    };
    fs::write(&path, ROUTE).unwrap();
    let (usable, verdict, findings) = run(&path);
    assert!(
        usable && verdict.contains("0 of 1 routes protected"),
        "{verdict}"
    );
    assert!(
        findings.contains("oo.yaml:1:1: warning: no route is protected"),
        "{findings}"
    );
    fs::write(&path, "routes: 5\n").unwrap();
    let (usable, verdict, findings) = run(&path);
    assert!(!usable && verdict.is_empty());
    assert!(
        findings.contains("oo.yaml:1:9: error: `routes` must be a list"),
        "{findings}"
    );
    let (usable, _, findings) = run(&folder.path().join("absent.yaml"));
    assert!(
        !usable && findings.contains("absent.yaml: error: cannot be read"),
        "{findings}"
    );
}

/// What `serve` would refuse, or leave nobody able to use, `check` refuses too, with its place.
#[test]
fn variables_that_are_named_and_unset() {
    let event =
        "key: /k, outcomes: [{ when: { pointer: /t, in: [x] }, complete: { status: 201 } }]";
    for name in ["ONLYONCE_TEST_NOT_SET", "EMPTY"] {
        let webhook = format!(
            "idempotency: {{ reconcile: {{ webhook: {{ scheme: stripe, secret_env: {name}, {event} }} }} }}"
        );
        for (section, at) in [
            (
                format!("admin: {{ readonly_token_env: {name} }}"),
                "1:30: `readonly_token_env`",
            ),
            (
                format!("admin: {{ token_env: {name} }}"),
                "1:21: `token_env`",
            ),
            (
                format!(
                    "store: {{ url: 'postgres://h/d' }}\noutbox: {{ targets: [{{ name: a, url: http://u, secret_env: {name} }}] }}"
                ),
                "2:59: `secret_env`",
            ),
            (webhook, "1:68: `secret_env`"),
        ] {
            let text = format!("{section}\n{ROUTE}");
            let expected = format!("{at}: the environment variable {name} is not set or empty");
            assert!(
                errors(&text).contains(&expected),
                "{text}\n{:#?}",
                errors(&text)
            );
            let overrides = Overrides {
                no_env: true,
                ..Overrides::default()
            };
            let skipped = parse("oo.yaml", &text, &env, &overrides);
            let found = skipped
                .err()
                .map(|found| found.to_string())
                .unwrap_or_default();
            assert!(!found.contains(name), "{found}");
        }
    }
    for keys in [
        "store: { encryption_key_env: ONLYONCE_TEST_NOT_SET }",
        "auth: { jwt: { secret_env: ONLYONCE_TEST_NOT_SET } }",
    ] {
        let overrides = Overrides {
            no_env: true,
            ..Overrides::default()
        };
        let text = format!("{keys}\n{ROUTE}");
        parse("oo.yaml", &text, &env, &overrides).unwrap();
        assert_eq!(errors(&text).len(), 1, "{text}");
    }
}

//! What follows from the declarations of the fields.

use super::*;
use crate::config::fields::{
    ADMIN, BACKEND, CORS, EXTERNAL, FINGERPRINT, FORWARDED, IDEMPOTENCY, JWT, LIMITS, OUTBOX,
    QUERY, RECONCILE, ROUTE, STORE, Schema, TARGET, TOP, WEBHOOK, WORKERS,
};

/// A file that says nothing of the section beyond what it must; `FIELD` is the place for more.
fn template(schema: &Schema) -> String {
    let jwt = "auth: { jwt: { jwks_url: 'http://id.test/', FIELD } }";
    let external = "auth: { external: { url: 'http://a.test/', client_id_header: X-Id, FIELD } }";
    let target = "outbox: { targets: [{ name: a, url: 'http://a.test/', FIELD }] }";
    let query = "url: 'http://a.test/{key}'";
    let outcomes = "outcomes: [{ when: { status: [200] }, pending: true }]";
    let webhook = "secret_env: S, key: /k, outcomes: [{ when: { pointer: /x }, pending: true }]";
    let reconcile = |inside: &str| format!("idempotency: {{ reconcile: {{ {inside} }} }}");
    let route = |inside: &str| {
        format!("routes: [{{ id: a, path: /, backends: [{{ url: http://up }}], {inside} }}]")
    };
    let auth = "auth: { trusted_header: { name: X-Id, from: [10.0.0.0/8] } }";
    let backend = "routes: [{ id: a, path: /, backends: [{ url: http://up, FIELD }] }]";
    let section = match schema.name {
        "the top level" => "FIELD".to_owned(),
        "`idempotency`" => "idempotency: { max_request_age: 5m, FIELD }".to_owned(),
        "`fingerprint`" => "idempotency: { fingerprint: { FIELD } }".to_owned(),
        "`jwt`" => jwt.to_owned(),
        "`external`" => external.to_owned(),
        "a target" => target.to_owned(),
        "`reconcile`" => reconcile(&format!("query: {{ {query} }}, {outcomes}, FIELD")),
        "`query`" => reconcile(&format!("query: {{ {query}, FIELD }}, {outcomes}")),
        "`webhook`" => reconcile(&format!("webhook: {{ {webhook}, FIELD }}")),
        "a route" => return format!("{auth}\n{}", route("FIELD")),
        "`cors`" => return route("cors: { origins: ['https://a.test'], FIELD }"),
        "a backend" => return backend.to_owned(),
        name => format!("{}: {{ FIELD }}", name.trim_matches('`')),
    };
    format!("{section}\n{}", super::ROUTE)
}

/// Goal: the reference says which default holds.
///
/// Method: read a file that says the documented default, and one that says nothing.
/// Evidence: `GET /config` shows the same of both.
#[test]
fn the_documented_default_holds() {
    // Of another kind of store, and refused beside this one.
    let elsewhere = ["plain_settle", "pooler", "allow_eviction"];
    let mut count = 0;
    for schema in [
        &TOP,
        &ADMIN,
        &STORE,
        &WORKERS,
        &FORWARDED,
        &ROUTE,
        &BACKEND,
        &CORS,
        &IDEMPOTENCY,
        &LIMITS,
        &FINGERPRINT,
        &JWT,
        &EXTERNAL,
        &OUTBOX,
        &TARGET,
        &RECONCILE,
        &QUERY,
        &WEBHOOK,
    ] {
        let template = template(schema);
        let silent = view::view(&good(&template.replace("FIELD", "")));
        for field in schema.fields {
            let Some(value) = field.value.filter(|_| !elsewhere.contains(&field.name)) else {
                continue;
            };
            let said = match value.starts_with('[') {
                true => format!("{}: {value}", field.name),
                false => format!("{}: '{value}'", field.name),
            };
            let text = template.replace("FIELD", &said);
            assert_eq!(view::view(&good(&text)), silent, "{text}");
            count += 1;
        }
    }
    assert!(count > 70, "{count}");
}

/// A gateway without a word in its file does what a user of the libraries gets.
#[test]
fn defaults_are_those_of_the_libraries() {
    use crate::upstream::{CONNECT_TIMEOUT, TUNNEL_IDLE, UPSTREAM_IDLE};
    use onlyonce::{limits, outbox, worker};
    use onlyonce_core::policy::ReconcilePolicy;

    let rules = outbox::TargetRules::default();
    let durations = [
        (&TOP, "upstream_idle", UPSTREAM_IDLE),
        (&TOP, "connect_timeout", CONNECT_TIMEOUT),
        (&TOP, "tunnel_idle", TUNNEL_IDLE),
        (&ADMIN, "audit_retention", worker::DEFAULT_KEEP_AUDIT),
        (&TARGET, "timeout", outbox::DEFAULT_TIMEOUT),
        (&TARGET, "first_pause", rules.first_pause),
        (&TARGET, "longest_pause", rules.longest_pause),
        (&RECONCILE, "negative_gap", ReconcilePolicy::NEGATIVE_GAP),
    ];
    let value = |schema: &Schema, name| schema.field(name).unwrap().value.unwrap();
    for (schema, name, expected) in durations {
        assert_eq!(duration(value(schema, name)), Ok(expected), "{name}");
    }
    assert_eq!(value(&ADMIN, "token_env"), DEFAULT_TOKEN_ENV);
    assert_eq!(value(&TARGET, "dedups"), rules.dedups.to_string());
    assert_eq!(
        value(&TARGET, "max_attempts"),
        rules.max_attempts.to_string()
    );
    let at_once = outbox::DEFAULT_AT_ONCE.to_string();
    assert_eq!(value(&TARGET, "at_once"), at_once);
    let held = units::size(value(&LIMITS, "held_bytes"));
    assert_eq!(held, Ok(limits::DEFAULT_HELD_BYTES as u64));
}

/// No name twice in a section, and no default that is documented as another one.
#[test]
fn rows_are_sound() {
    for schema in super::super::fields::ALL {
        let names = schema.names();
        for (index, field) in schema.fields.iter().enumerate() {
            let place = format!("`{}` in {}", field.name, schema.name);
            assert!(!names[..index].contains(&field.name), "{place} twice");
            let words = field.default.trim_matches('`');
            assert!(
                field.value.is_none_or(|value| words.starts_with(value)),
                "{place}"
            );
        }
    }
}

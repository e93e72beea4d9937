//! The `auth` section: what it means, and what is said about mistakes in it.

use onlyonce_core::policy::KeyScope;

use super::*;

const HASH: &str = "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08";

fn with_auth(inside: &str) -> String {
    format!("auth: {{ {inside} }}\nidempotency: {{ enabled: true }}\n{ROUTE}")
}

#[test]
fn every_way_is_read() {
    let config = good(&with_auth(&format!(
        "shared_client_ids: true, api_keys: [{{ client_id: acme, sha256: {HASH} }}], \
         jwt: {{ jwks_url: \"http://id:81/keys/?v=1\", issuer: us, audience: [a, b], \
         client_id_claim: tenant, leeway: 1s, refresh: 2m }}, \
         trusted_header: {{ name: X-Client-Id, from: [\"10.0.0.0/8\", \"::1\"] }}, \
         external: {{ url: \"http://auth\", client_id_header: X-Who, timeout: 300ms }}"
    )));
    let auth = config.auth.unwrap();
    assert_eq!(auth.api_keys[0].client_id, "acme");
    assert_eq!(auth.api_keys[0].sha256[..2], [0x9f, 0x86]);
    let jwt = auth.jwt.unwrap();
    let JwtKeys::Url(endpoint) = &jwt.keys else {
        panic!("{jwt:?}")
    };
    assert_eq!(
        (
            endpoint.backend.authority().as_str(),
            endpoint.target.as_str()
        ),
        ("id:81", "/keys/?v=1")
    );
    assert_eq!(jwt.issuer, Some(vec!["us".to_owned()]));
    assert_eq!(jwt.audience, Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(jwt.client_id_claim, "tenant");
    assert_eq!((jwt.leeway.as_secs(), jwt.refresh.as_secs()), (1, 120));
    let trusted = auth.trusted_header.unwrap();
    assert!(trusted.from[0].contains("10.9.9.9".parse().unwrap()));
    let external = auth.external.unwrap();
    assert_eq!(
        (external.url.target.as_str(), external.timeout.as_millis()),
        ("/", 300)
    );
    assert_eq!(config.routes[0].edge.key_scope, Some(KeyScope::PerClient));
    assert!(!config.routes[0].auth_optional);
}

#[test]
fn two_sources_of_ids_must_be_said_to_agree() {
    let keys = format!("api_keys: [{{ client_id: a, sha256: {HASH} }}]");
    let header = "trusted_header: { name: X-Client-Id, from: [\"10.0.0.0/8\"] }";
    let service = "external: { url: \"http://auth\", client_id_header: X-Who }";
    let ways = [keys.as_str(), header, service];
    for (one, other) in [(0, 1), (0, 2), (1, 2)] {
        let both = format!("{}, {}", ways[one], ways[other]);
        let said = errors(&with_auth(&both));
        let [only] = said.as_slice() else {
            panic!("{said:?}")
        };
        assert!(only.starts_with("1:7: "), "{only}");
        assert!(only.contains("would share keys and answers"), "{only}");
        let agreed = good(&with_auth(&format!("shared_client_ids: true, {both}")));
        assert!(agreed.auth.unwrap().shared_client_ids);
    }
    for way in ways {
        assert!(!good(&with_auth(way)).auth.unwrap().shared_client_ids);
    }
}

/// `payments` may tell callers apart by a header or by a cookie, and needs no other.
#[test]
fn payments_tells_callers_apart_by_either() {
    for options in [
        "credential_headers: [X-Token]",
        "credential_cookies: [sid]",
        "credential_cookies: auto",
        "credential_headers: [], credential_cookies: [sid]",
        "credential_headers: [X-Token], credential_cookies: []",
    ] {
        good(&format!(
            "store: {{ url: 'postgres://h/d' }}\nidempotency: {{ enabled: true, profile: payments, \
             reconcile: operator, {options} }}\n{ROUTE}"
        ));
    }
}

#[test]
fn cookies_are_the_usual_ones_unless_said() {
    let cookies = |options: &str| {
        let text = format!("idempotency: {{ enabled: true{options} }}\n{ROUTE}");
        good(&text).routes[0].edge.credential_cookies.clone()
    };
    let usual = onlyonce_core::policy::usual_session_cookies();
    assert_eq!(usual.len(), 7);
    assert_eq!(cookies(""), usual);
    assert_eq!(cookies(", credential_cookies: auto"), usual);
    assert_eq!(
        cookies(", credential_cookies: [sid, __Host-s]"),
        ["sid", "__Host-s"]
    );
    assert!(cookies(", credential_cookies: []").is_empty());
    for (options, message) in [
        ("credential_cookies: some", "credential_cookies"),
        (
            "credential_cookies: [\"a b\"]",
            "cannot be the name of a cookie",
        ),
    ] {
        let text = format!("idempotency: {{ enabled: true, {options} }}\n{ROUTE}");
        let said = errors(&text).join("\n");
        assert!(said.contains(message), "{said}");
    }
}

#[test]
fn the_scope_follows_auth_unless_said() {
    let scope = |text: &str| good(text).routes[0].edge.key_scope;
    let keys = format!("auth: {{ api_keys: [{{ client_id: a, sha256: {HASH} }}] }}\n");
    for (options, expected) in [
        ("enabled: true", KeyScope::PerClient),
        ("enabled: true, key_scope: per_client", KeyScope::PerClient),
        ("enabled: true, key_scope: global", KeyScope::Global),
        ("enabled: true, dialect: runway", KeyScope::Global),
    ] {
        let text = format!("{keys}idempotency: {{ {options} }}\n{ROUTE}");
        assert_eq!(scope(&text), Some(expected), "{options}");
    }
    assert_eq!(
        scope(&format!("idempotency: {{ enabled: true }}\n{ROUTE}")),
        None
    );
    let route = "routes: [{ id: a, path: /, auth: optional, backends: [{ url: http://u }] }]\n";
    assert!(good(&format!("{keys}{route}")).routes[0].auth_optional);
}

#[test]
fn mistakes() {
    let key = format!("api_keys: [{{ client_id: a, sha256: {HASH} }}");
    for (inside, expected) in [
        (
            "",
            "`auth` names no way to authenticate, so nobody would get in",
        ),
        ("api_keys: []", "`api_keys` is empty"),
        ("api_keys: a", "`api_keys` must be a list"),
        (
            "api_keys: [{ client_id: a }]",
            "an API key without `sha256`",
        ),
        (
            "api_keys: [{ client_id: a, sha256: s3cret }]",
            "`sha256` is 64 hex digits: the SHA-256 of the key",
        ),
        (
            &format!("api_keys: [{{ client_id: \"\", sha256: {HASH} }}]"),
            "`` cannot be a client's id",
        ),
        (
            &format!("{key}, {{ client_id: b, sha256: {HASH} }}]"),
            "this key is also that of `a`, so it would not say who it is",
        ),
        (
            "jwt: { issuer: us }",
            "`jwt` without a key to check signatures with",
        ),
        (
            "jwt: { secret_env: PATH, jwks_file: f }",
            "`jwt` has 2 sources of keys",
        ),
        (
            "jwt: { secret_env: \"s3cret!\" }",
            "`secret_env` is the name of an environment variable",
        ),
        (
            "jwt: { secret_env: PATH, audience: [] }",
            "`audience` is empty",
        ),
        (
            "jwt: { secret_env: PATH, leeway: 2h }",
            "`leeway` is at most 1h, not `2h`",
        ),
        (
            "jwt: { secret_env: ONLYONCE_TEST_NOT_SET }",
            "the environment variable ONLYONCE_TEST_NOT_SET (secret_env) is not set",
        ),
        (
            "jwt: { jwks_file: /nope }",
            "`/nope` cannot be read: No such file or directory (os error 2)",
        ),
        (
            "jwt: { jwks_file: /dev/null }",
            "`/dev/null` is not a JSON Web Key Set",
        ),
        (
            "jwt: { public_key_file: /nope }",
            "`/nope` cannot be read: No such file or directory (os error 2)",
        ),
        (
            "jwt: { public_key_file: /dev/null }",
            "`/dev/null` cannot be used: it holds no `PUBLIC KEY` in PEM form",
        ),
        (
            "jwt: { jwks_url: id/keys }",
            "`jwks_url` is a URL with scheme and host, not `id/keys`",
        ),
        (
            "trusted_header: { name: X-C }",
            "`trusted_header` without `from`",
        ),
        (
            "trusted_header: { name: X-C, from: [] }",
            "`from` is empty: nobody is trusted",
        ),
        (
            "trusted_header: { name: X-C, from: [10.0.0.0/33] }",
            "`10.0.0.0/33` is not a block of addresses",
        ),
        (
            "trusted_header: { name: Authorization, from: [10.0.0.1] }",
            "`name` cannot be `Authorization`",
        ),
        (
            "external: { url: \"http://a\" }",
            "`external` without `client_id_header`",
        ),
        ("apikeys: []", "unknown field `apikeys` in `auth`"),
    ] {
        let found = errors(&with_auth(inside));
        assert!(
            found
                .iter()
                .any(|one| one.split_once(": ").unwrap().1 == expected),
            "{inside}\n{found:#?}"
        );
    }
}

#[test]
fn what_should_be_known() {
    let warnings = |inside: &str| -> Vec<String> {
        let config = good(&with_auth(inside));
        config
            .warnings
            .iter()
            .map(|one| one.message.clone())
            .collect()
    };
    let found = warnings("jwt: { secret_env: PATH }");
    assert!(
        found.iter().any(|one| one.contains("without `audience`")),
        "{found:?}"
    );
    let found = warnings("trusted_header: { name: X-C, from: [\"0.0.0.0/0\"] }");
    assert!(
        found.iter().any(|one| one.contains("everybody may say")),
        "{found:?}"
    );
    assert!(
        !found.iter().any(|one| one.contains("share one namespace")),
        "{found:?}"
    );
}

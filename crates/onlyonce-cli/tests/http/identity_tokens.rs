//! Signed tokens, a trusted proxy and an authenticating service, with the real binary.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};

use crate::harness::{
    Gateway, Request, Response, Script, Setup, Upstream, upstream::ClosedPort, within,
};

const SECRET: &str = "a shared secret of more than 32 bytes";

fn seconds() -> u64 {
    let now = std::time::UNIX_EPOCH.elapsed();
    now.expect("a clock after 1970").as_secs()
}

fn claims(client: &str) -> Value {
    json!({"sub": client, "iss": "us", "aud": "pay", "exp": seconds() + 300})
}

fn token(key: &EncodingKey, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).expect("a signed token")
}

fn bearing(token: &str) -> Request {
    Request::pay("k").header("Authorization", format!("Bearer {token}"))
}

/// Goal: a shared secret lets in what it signed, and nothing else.
///
/// Method: tokens of two clients; expired, early, of another issuer, for another audience, unsigned,
/// signed by somebody else.
/// Evidence: two executions and two scopes; 401 for all the others and nothing upstream.
#[tokio::test]
async fn tokens_of_a_shared_secret() {
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .top("auth: { jwt: { secret_env: OO_JWT, issuer: us, audience: pay } }")
        .env("OO_JWT", SECRET)
        .start(&upstream)
        .await;
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let signed = |claims: &Value| token(&key, Algorithm::HS256, None, claims);
    gateway
        .send(&bearing(&signed(&claims("acme"))))
        .await
        .expect(201);
    // A renewed token of the same client is the same client.
    let mut renewed = claims("acme");
    renewed["exp"] = json!(seconds() + 600);
    let replay = gateway.send(&bearing(&signed(&renewed))).await.expect(201);
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    gateway
        .send(&bearing(&signed(&claims("globex"))))
        .await
        .expect(201);
    assert_eq!(upstream.executions(), 2);

    let change = |name: &str, value: Value| {
        let mut claims = claims("acme");
        claims[name] = value;
        signed(&claims)
    };
    let other = EncodingKey::from_secret(b"another secret");
    for forged in [
        change("exp", json!(seconds() - 60)),
        change("nbf", json!(seconds() + 60)),
        change("iss", json!("them")),
        change("aud", json!("other")),
        change("sub", json!("")),
        token(&other, Algorithm::HS256, None, &claims("acme")),
        // {"alg":"none"}
        format!(
            "eyJhbGciOiJub25lIn0.{}.",
            signed(&claims("acme")).split('.').nth(1).unwrap()
        ),
    ] {
        gateway
            .send(&bearing(&forged))
            .await
            .refused(401, "unauthenticated");
    }
    assert_eq!(upstream.executions(), 2);
    assert!(!gateway.logs().contains(SECRET));
}

/// Goal: a gateway whose secret is not there does not start.
///
/// Method: `secret_env` names a variable that is not set.
/// Evidence: it ends with 1 and names the variable.
#[tokio::test]
async fn a_missing_secret_stops_the_start() {
    let upstream = Upstream::start();
    let folder = std::sync::Arc::new(tempfile::TempDir::new().unwrap());
    let exit = Setup::with("")
        .top("auth: { jwt: { secret_env: OO_NEVER_SET } }")
        .start_in(folder, &upstream.url())
        .await
        .err()
        .expect("it does not start");
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.logs.contains("OO_NEVER_SET"), "{}", exit.logs);
}

fn ed25519() -> EncodingKey {
    let pair = aws_lc_rs::signature::Ed25519KeyPair::generate().expect("a key pair");
    EncodingKey::from_ed_der(pair.to_pkcs8v1().expect("its private half").as_ref())
}

fn key_set(keys: &[(&str, &EncodingKey)]) -> Script {
    let jwk = |(kid, key): &(&str, &EncodingKey)| {
        let jwk = Jwk::from_encoding_key(key, Algorithm::EdDSA).expect("its public half");
        let mut jwk = serde_json::to_value(jwk).expect("JSON");
        jwk["kid"] = json!(kid);
        jwk
    };
    let keys: Vec<Value> = keys.iter().map(jwk).collect();
    Script::reply(200).body(json!({ "keys": keys }).to_string())
}

/// Goal: keys behind a URL are cached, rotated, and not asked for more often than is decent.
///
/// Method: an issuer that is down at first, comes up, rotates its key, and is bombarded with tokens
/// that name keys which never were.
/// Evidence: 503 while it is down, and nothing upstream; then the tokens of each key count as it
/// comes; the issuer's own count of questions.
#[tokio::test]
async fn keys_behind_a_url_are_cached_and_rotated() {
    let upstream = Upstream::start();
    let port = ClosedPort::reserve();
    let gateway = Setup::with("")
        .top(&format!(
            "auth: {{ jwt: {{ jwks_url: \"{}/keys\" }} }}",
            port.url()
        ))
        .start(&upstream)
        .await;
    let (old, new) = (ed25519(), ed25519());
    let of = |key: &EncodingKey, kid: &str| {
        bearing(&token(key, Algorithm::EdDSA, Some(kid), &claims("acme")))
    };
    let down = gateway.send(&of(&old, "old")).await;
    let down = down.refused(503, "authentication_unavailable");
    assert!(down.retry_after().is_some(), "{down}");
    assert_eq!(upstream.executions(), 0);

    let issuer = port.open();
    issuer.always(key_set(&[("old", &old)]));
    gateway.send(&of(&old, "old")).await.expect(201);
    for _ in 0..20 {
        gateway.send(&of(&old, "old")).await.expect(201);
    }
    assert_eq!(issuer.executions(), 1, "the set is cached");
    gateway.send(&of(&new, "old")).await.expect(401);
    assert_eq!(
        issuer.executions(),
        1,
        "a bad signature is no reason to ask"
    );

    issuer.always(key_set(&[("old", &old), ("new", &new)]));
    gateway.send(&of(&new, "new")).await.expect(201);
    assert_eq!(issuer.executions(), 2, "an unknown key is");
    for number in 0..30 {
        gateway
            .send(&of(&new, &format!("made-up-{number}")))
            .await
            .expect(401);
    }
    assert!(
        issuer.executions() <= 4,
        "{} questions",
        issuer.executions()
    );
    gateway.send(&of(&new, "new")).await.expect(201);
    assert_eq!(upstream.executions(), 1, "one client, one key, all along");
}

/// Goal: a set in a file is read again when a token names a key that is not in it.
///
/// Method: a file with one key; another is added.
/// Evidence: 401, then 201, without a restart.
#[tokio::test]
async fn keys_in_a_file_are_rotated() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let (old, new) = (ed25519(), ed25519());
    let write = |keys: &[(&str, &EncodingKey)]| {
        let public = |(kid, key): &(&str, &EncodingKey)| {
            let jwk = Jwk::from_encoding_key(key, Algorithm::EdDSA).unwrap();
            let mut jwk = serde_json::to_value(jwk).unwrap();
            jwk["kid"] = json!(kid);
            jwk
        };
        let keys: Vec<Value> = keys.iter().map(public).collect();
        std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    };
    write(&[("old", &old)]);
    let gateway = Setup::with("")
        .top(&format!(
            "auth: {{ jwt: {{ jwks_file: \"{}\" }} }}",
            file.display()
        ))
        .start(&upstream)
        .await;
    let of = |key: &EncodingKey, kid: &str| {
        bearing(&token(key, Algorithm::EdDSA, Some(kid), &claims("acme")))
    };
    gateway.send(&of(&old, "old")).await.expect(201);
    gateway.send(&of(&new, "new")).await.expect(401);
    write(&[("new", &new)]);
    gateway.send(&of(&new, "new")).await.expect(201);
    gateway.send(&of(&old, "old")).await.expect(401);
}

/// Goal: the header of a trusted proxy names the client; from anybody else it is removed.
///
/// Method: this test's own address among `from`, then not.
/// Evidence: scopes and what the upstream got.
#[tokio::test]
async fn a_trusted_header_counts_from_the_proxy_alone() {
    let upstream = Upstream::start();
    let says = |client: &str| Request::pay("k").header("X-Client-Id", client);
    let trusting = Setup::with("")
        .top("auth: { trusted_header: { name: X-Client-Id, from: [\"127.0.0.0/8\"] } }")
        .start(&upstream)
        .await;
    trusting.send(&says("acme")).await.expect(201);
    trusting.send(&says("globex")).await.expect(201);
    trusting.send(&says("acme")).await.expect(201);
    trusting.send(&Request::pay("k")).await.expect(401);
    let twice = says("acme").header("X-Client-Id", "globex");
    trusting.send(&twice).await.expect(401);
    assert_eq!(upstream.executions(), 2);
    assert_eq!(upstream.last().headers.all("x-client-id"), ["globex"]);

    let other = Setup::with("")
        .top("auth: { trusted_header: { name: X-Client-Id, from: [\"192.0.2.0/24\"] } }")
        .route("auth: optional")
        .start(&upstream)
        .await;
    other
        .send(&says("acme"))
        .await
        .refused(401, "unauthenticated");
    other
        .send(&Request::get("/").header("X-Client-Id", "acme"))
        .await
        .expect(201);
    assert!(upstream.last().headers.all("x-client-id").is_empty());
    assert_eq!(upstream.executions(), 3);
}

/// A service that says what it is told to.
struct Service(Upstream);

impl Service {
    fn yes(&self, client: &str) {
        self.0
            .next(Script::reply(204).no_body().header("X-Who", client));
    }
}

async fn before_a_service(upstream: &Upstream) -> (Gateway, Service) {
    let service = Service(Upstream::start());
    let top = format!(
        "auth: {{ external: {{ url: \"{}/check?v=1\", client_id_header: X-Who, timeout: 500ms }} }}",
        service.0.url()
    );
    let gateway = Setup::with("").top(&top).start(upstream).await;
    (gateway, service)
}

/// Goal: an authenticating service decides, and what it is asked is enough to decide on.
///
/// Method: a service that says yes to two clients, then no in both ways.
/// Evidence: what the service got; scopes; 401 and nothing upstream for no. Replays are asked about
/// too.
#[tokio::test]
async fn a_service_decides() {
    let upstream = Upstream::start();
    let (gateway, service) = before_a_service(&upstream).await;
    let request = Request::post("/payments?x=1")
        .key("k")
        .header("Authorization", "Basic YTpi")
        .header("Cookie", "session=1")
        .header("X-Who", "forged")
        .json(r#"{"amount":1}"#);
    service.yes("acme");
    gateway.send(&request).await.expect(201);
    let asked = service.0.last();
    assert_eq!(
        (asked.method.as_str(), asked.target.as_str()),
        ("GET", "/check?v=1")
    );
    for (name, value) in [
        ("x-forwarded-method", "POST"),
        ("x-forwarded-uri", "/payments?x=1"),
        ("x-forwarded-host", "api.test"),
        ("x-forwarded-for", "127.0.0.1"),
        ("authorization", "Basic YTpi"),
        ("cookie", "session=1"),
    ] {
        assert_eq!(asked.headers.all(name), [value], "{name}");
    }
    assert!(asked.headers.all("x-who").is_empty() && asked.body.is_empty());
    assert!(asked.headers.all("idempotency-key").is_empty());
    service.yes("acme");
    let replay = gateway.send(&request).await.expect(201);
    assert_eq!(replay.header("x-idempotent-replayed"), Some("true"));
    service.yes("globex");
    gateway.send(&request).await.expect(201);
    assert_eq!((service.0.executions(), upstream.executions()), (3, 2));
    for status in [401, 403] {
        service.0.next(Script::reply(status));
        gateway.send(&request).await.refused(401, "unauthenticated");
    }
    assert_eq!(upstream.executions(), 2);
}

/// Goal: when the service cannot say who it is, nothing is executed and nobody is told that they are
/// nobody.
///
/// Method: it fails, redirects, hangs, hangs up, says yes without a name, is gone.
/// Evidence: 503 with Retry-After each time; no upstream request, no row.
#[tokio::test]
async fn a_service_that_fails_is_503() {
    let upstream = Upstream::start();
    let (gateway, service) = before_a_service(&upstream).await;
    let refused = |answer: Response| {
        let answer = answer.refused(503, "authentication_unavailable");
        assert!(answer.retry_after().is_some(), "{answer}");
        assert_eq!(answer.header("x-should-retry"), None);
    };
    for script in [
        Script::reply(500),
        Script::reply(404),
        Script::reply(302).header("Location", "/login"),
        Script::reply(200),
        Script::reply(200).header("X-Who", ""),
        Script::reply(200).header("X-Who", "a").header("X-Who", "b"),
        Script::hang_up(),
        Script::created().held(),
    ] {
        service.0.next(script);
        refused(gateway.send(&Request::pay("k")).await);
    }
    drop(service);
    refused(
        within("an answer", gateway.send_later(&Request::pay("k")))
            .await
            .unwrap(),
    );
    assert_eq!(upstream.executions(), 0);
    assert_eq!(gateway.state("k").await, "absent");
}

//! Credentials of every kind, good and forged.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der},
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
        Ed25519KeyPair, KeyPair as _,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::HeaderValue;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use serde_json::{Value, json};

use super::*;
use crate::{
    clock,
    config::{JwtConfig, JwtKeys},
};

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

async fn asked(auth: &Auth, lines: &[(&str, &str)], peer: &str) -> Found {
    let headers = headers(lines);
    let shown = Shown {
        method: &Method::POST,
        uri: &Uri::from_static("/payments"),
        headers: &headers,
        peer: peer.parse().ok(),
    };
    auth.authenticate(shown).await
}

fn client(id: &str) -> Found {
    Found::Client(ClientId::new(id).unwrap())
}

fn sha256(text: &str) -> [u8; 32] {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    hash.as_ref().try_into().unwrap()
}

fn with_keys(jwt: Option<JwtConfig>) -> AuthConfig {
    let key = |client_id: &str, key: &str| crate::config::ApiKey {
        client_id: client_id.to_owned(),
        sha256: sha256(key),
    };
    AuthConfig {
        api_keys: vec![
            key("acme", "k-acme"),
            key("acme", "k-acme-2"),
            key("globex", "k-globex"),
        ],
        jwt,
        ..AuthConfig::default()
    }
}

#[tokio::test]
async fn api_keys_in_either_header() {
    let auth = Auth::start(&with_keys(None)).await.unwrap();
    for (lines, expected) in [
        (vec![("Authorization", "Bearer k-acme")], client("acme")),
        (vec![("Authorization", "bearer  k-acme-2 ")], client("acme")),
        (vec![("X-Api-Key", "k-globex")], client("globex")),
        (
            vec![("X-Api-Key", "k-acme"), ("Authorization", "Basic eDp5")],
            client("acme"),
        ),
        (
            vec![
                ("X-Api-Key", "k-acme"),
                ("Authorization", "Bearer k-acme-2"),
            ],
            client("acme"),
        ),
        (vec![], Found::Nobody),
        (vec![("X-Api-Key", "")], Found::Nobody),
        (vec![("X-Api-Key", "k-acm")], Found::Nobody),
        (vec![("Authorization", "k-acme")], Found::Nobody),
        (vec![("Authorization", "Basic k-acme")], Found::Nobody),
        (vec![("Authorization", "Bearer ")], Found::Nobody),
        // Two keys of two clients, and one header twice: nobody can tell who it is.
        (
            vec![
                ("X-Api-Key", "k-acme"),
                ("Authorization", "Bearer k-globex"),
            ],
            Found::Nobody,
        ),
        (
            vec![("X-Api-Key", "k-acme"), ("X-Api-Key", "k-acme")],
            Found::Nobody,
        ),
    ] {
        assert_eq!(
            asked(&auth, &lines, "192.0.2.1").await,
            expected,
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn a_header_is_believed_from_the_proxy_alone() {
    let config = AuthConfig {
        trusted_header: Some(TrustedHeader {
            name: HeaderName::from_static("x-client-id"),
            from: vec!["10.0.0.0/8".parse().unwrap()],
        }),
        ..with_keys(None)
    };
    let auth = Auth::start(&config).await.unwrap();
    let says = ("X-Client-Id", "globex");
    assert_eq!(asked(&auth, &[says], "10.1.2.3").await, client("globex"));
    assert_eq!(
        asked(&auth, &[says], "::ffff:10.1.2.3").await,
        client("globex")
    );
    assert_eq!(asked(&auth, &[says, says], "10.1.2.3").await, Found::Nobody);
    assert_eq!(
        asked(&auth, &[("X-Client-Id", "")], "10.1.2.3").await,
        Found::Nobody
    );
    for peer in ["192.0.2.1", "nobody"] {
        let key = ("X-Api-Key", "k-acme");
        assert_eq!(asked(&auth, &[says], peer).await, Found::Nobody);
        assert_eq!(asked(&auth, &[says, key], peer).await, client("acme"));
        let mut sent = headers(&[says, key]);
        auth.remove_untrusted(&mut sent, peer.parse().ok());
        assert_eq!(sent.len(), 1, "the header of a stranger is removed");
    }
}

/// A signing key, and what a verifier is given of it.
struct Signer {
    key: EncodingKey,
    algorithms: &'static [Algorithm],
    public_pem: String,
}

fn pem(tag: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {tag}-----\n{}\n-----END {tag}-----\n",
        STANDARD.encode(der)
    )
}

fn signers() -> Vec<Signer> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let private: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
    let public: PublicKeyX509Der<'_> = rsa.public_key().as_der().unwrap();
    let mut signers = vec![Signer {
        key: EncodingKey::from_rsa_pem(pem("PRIVATE KEY", private.as_ref()).as_bytes()).unwrap(),
        algorithms: &[RS256, RS384, RS512, PS256, PS384, PS512],
        public_pem: pem("PUBLIC KEY", public.as_ref()),
    }];
    let curves: [(_, &[Algorithm]); 2] = [
        (&ECDSA_P256_SHA256_FIXED_SIGNING, &[ES256]),
        (&ECDSA_P384_SHA384_FIXED_SIGNING, &[ES384]),
    ];
    for (curve, algorithms) in curves {
        let pair = EcdsaKeyPair::generate(curve).unwrap();
        let private = pair.to_pkcs8v1().unwrap();
        let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
        signers.push(Signer {
            key: EncodingKey::from_ec_der(private.as_ref()),
            algorithms,
            public_pem: pem("PUBLIC KEY", public.as_ref()),
        });
    }
    let pair = Ed25519KeyPair::generate().unwrap();
    let private = pair.to_pkcs8v1().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    signers.push(Signer {
        key: EncodingKey::from_ed_der(private.as_ref()),
        algorithms: &[EdDSA],
        public_pem: pem("PUBLIC KEY", public.as_ref()),
    });
    signers
}

fn seconds() -> u64 {
    let now = clock::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

fn claims() -> Value {
    json!({"sub": "acme", "exp": seconds() + 60, "iss": "us", "aud": "pay"})
}

fn signed(key: &EncodingKey, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
    let mut header = Header::new(algorithm);
    header.kid = kid.map(str::to_owned);
    encode(&header, claims, key).unwrap()
}

fn jwt_config(keys: JwtKeys) -> JwtConfig {
    JwtConfig {
        keys,
        issuer: Some(vec!["us".to_owned()]),
        audience: Some(vec!["pay".to_owned(), "refund".to_owned()]),
        client_id_claim: "sub".to_owned(),
        leeway: std::time::Duration::from_secs(5),
        refresh: std::time::Duration::from_secs(300),
    }
}

async fn owner(jwt: &Jwt, token: &str) -> Found {
    jwt.owner(token.as_bytes()).await
}

/// Every algorithm that the key's type allows is taken, every other refused, whether the key stands
/// alone or in a set.
#[tokio::test]
async fn the_key_decides_the_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let signers = signers();
    let jwks: Vec<Value> = signers
        .iter()
        .enumerate()
        .map(|(index, signer)| {
            let jwk = Jwk::from_encoding_key(&signer.key, signer.algorithms[0]).unwrap();
            let mut jwk = serde_json::to_value(jwk).unwrap();
            jwk["kid"] = json!(format!("k{index}"));
            jwk.as_object_mut().unwrap().remove("alg");
            jwk
        })
        .collect();
    let set = folder.path().join("jwks.json");
    std::fs::write(&set, json!({ "keys": jwks }).to_string()).unwrap();
    let of_set = Jwt::start(&jwt_config(JwtKeys::File(set))).await.unwrap();
    for (index, signer) in signers.iter().enumerate() {
        let file = folder.path().join(format!("{index}.pem"));
        std::fs::write(&file, &signer.public_pem).unwrap();
        let alone = Jwt::start(&jwt_config(JwtKeys::PublicKey(file)))
            .await
            .unwrap();
        let kid = format!("k{index}");
        for algorithm in signer.algorithms {
            let token = signed(&signer.key, *algorithm, Some(&kid), &claims());
            assert_eq!(owner(&alone, &token).await, client("acme"), "{algorithm:?}");
            assert_eq!(
                owner(&of_set, &token).await,
                client("acme"),
                "{algorithm:?}"
            );
            let nameless = signed(&signer.key, *algorithm, None, &claims());
            assert_eq!(
                owner(&of_set, &nameless).await,
                client("acme"),
                "{algorithm:?}"
            );
            let misnamed = signed(&signer.key, *algorithm, Some("k9"), &claims());
            assert_eq!(
                owner(&of_set, &misnamed).await,
                Found::Nobody,
                "{algorithm:?}"
            );
        }
        // The public key taken for a shared secret: the oldest forgery there is.
        for secret in [
            signer.public_pem.as_bytes(),
            signer.public_pem.trim().as_bytes(),
        ] {
            let forged = EncodingKey::from_secret(secret);
            let token = signed(&forged, Algorithm::HS256, Some(&kid), &claims());
            assert_eq!(owner(&alone, &token).await, Found::Nobody);
            assert_eq!(owner(&of_set, &token).await, Found::Nobody);
        }
        let other = &signers[(index + 1) % signers.len()];
        let token = signed(&other.key, other.algorithms[0], Some(&kid), &claims());
        assert_eq!(owner(&alone, &token).await, Found::Nobody);
        assert_eq!(owner(&of_set, &token).await, Found::Nobody);
    }
}

#[tokio::test]
async fn claims_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("jwks.json");
    let secret = EncodingKey::from_secret(b"0123456789abcdef0123456789abcdef");
    let text = r#"{"keys":[{"kty":"EC","crv":"P-521","x":"AA","y":"AA"},
        {"kty":"oct","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY","alg":"HS384"}]}"#;
    std::fs::write(&set, text).unwrap();
    let jwt = Jwt::start(&jwt_config(JwtKeys::File(set))).await.unwrap();
    let now = seconds();
    let with = |name: &str, value: Value| {
        let mut claims = claims();
        claims[name] = value;
        if claims[name].is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
        claims
    };
    for (claims, expected) in [
        (claims(), client("acme")),
        (with("sub", json!(17)), client("17")),
        (with("aud", json!(["other", "refund"])), client("acme")),
        (with("exp", json!(now - 2)), client("acme")),
        (with("nbf", json!(now + 2)), client("acme")),
        (with("exp", json!(now - 60)), Found::Nobody),
        (with("exp", json!("tomorrow")), Found::Nobody),
        (with("exp", Value::Null), Found::Nobody),
        (with("nbf", json!(now + 60)), Found::Nobody),
        (with("iss", json!("them")), Found::Nobody),
        (with("iss", Value::Null), Found::Nobody),
        (with("aud", json!("other")), Found::Nobody),
        (with("aud", Value::Null), Found::Nobody),
        (with("sub", Value::Null), Found::Nobody),
        (with("sub", json!("")), Found::Nobody),
        (with("sub", json!("a\u{0}b")), Found::Nobody),
        (with("sub", json!({"a": 1})), Found::Nobody),
    ] {
        let token = signed(&secret, Algorithm::HS384, None, &claims);
        assert_eq!(owner(&jwt, &token).await, expected, "{claims}");
    }
    // The set names the algorithm of its key, so no other of its family will do.
    let token = signed(&secret, Algorithm::HS256, None, &claims());
    assert_eq!(owner(&jwt, &token).await, Found::Nobody);
    let good = signed(&secret, Algorithm::HS384, None, &claims());
    let [_, payload, _] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts");
    };
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"None","typ":"JWT"}"#,
        r#"{"alg":"nOnE"}"#,
        r#"{"typ":"JWT"}"#,
        r#"{"alg":"HS384","crit":["exp"]}"#,
    ] {
        for signature in ["", "AAAA"] {
            let token = format!("{}.{payload}.{signature}", URL_SAFE_NO_PAD.encode(header));
            assert_eq!(owner(&jwt, &token).await, Found::Nobody, "{header}");
        }
    }
    let mut critical = Header::new(Algorithm::HS384);
    critical.crit = Some(vec!["b64".to_owned()]);
    let token = encode(&critical, &claims(), &secret).unwrap();
    assert_eq!(owner(&jwt, &token).await, Found::Nobody);
    for token in [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        &good[..good.len() - 4],
    ] {
        assert_eq!(owner(&jwt, token).await, Found::Nobody, "{token}");
    }
}

#[tokio::test]
async fn keys_that_cannot_be_used_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    let private = pem(
        "PRIVATE KEY",
        Ed25519KeyPair::generate()
            .unwrap()
            .to_pkcs8v1()
            .unwrap()
            .as_ref(),
    );
    for text in [
        "",
        "not a key",
        &private,
        r#"{"keys":[]}"#,
        r#"{"keys":[{"kty":"RSA"}]}"#,
    ] {
        std::fs::write(&file, text).unwrap();
        for keys in [
            JwtKeys::PublicKey(file.clone()),
            JwtKeys::File(file.clone()),
        ] {
            let refused = Jwt::start(&jwt_config(keys)).await.err().unwrap();
            assert!(!format!("{refused:#}").contains(&private), "{refused:#}");
        }
    }
    for keys in [
        JwtKeys::PublicKey(folder.path().join("gone")),
        JwtKeys::Secret("ONLYONCE_TEST_NEVER_SET".to_owned()),
    ] {
        assert!(Jwt::start(&jwt_config(keys)).await.is_err());
    }
}

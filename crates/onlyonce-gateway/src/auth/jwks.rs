//! The keys that verify signatures: where they come from, which algorithms each allows, and when they are
//! read again.
//!
//! A key's type decides its algorithms, never the token's header. A key set is read again when it is old, and
//! when a token names a key that is not in it. The latter is rate-limited, so that made-up names put no load
//! on the issuer.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use http::Request;
use jsonwebtoken::{
    Algorithm, DecodingKey,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyOperations, PublicKeyUse},
};
use onlyonce::{
    Body,
    limits::{Bucket, Rate},
};
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use crate::{
    config::{JwtConfig, JwtKeys},
    outbound::Outbound,
};

/// The largest set of keys, in bytes.
const MAX_SET: usize = 1 << 20;
/// The most keys used from one set; further ones are ignored.
const MAX_KEYS: usize = 100;
/// How long reading a set may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long keys are used after the set was last read, or twice the refresh interval if that is longer.
const MAX_STALE: Duration = Duration::from_secs(3_600);
/// After a burst, unknown keys cause the set to be read again at most this often.
const REREAD_EVERY: Duration = Duration::from_secs(10);
const REREADS_AT_ONCE: u32 = 3;
/// A shared secret with fewer bytes can be guessed.
const SHORT_SECRET: usize = 32;

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
const HMAC: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// A key, its name and the algorithms that it allows.
pub(super) struct VerifyingKey {
    /// The key's name; a key without a name is tried for every token.
    pub(super) kid: Option<String>,
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
}

/// Keys, and the source they are read from.
pub(super) struct Keys {
    source: Source,
    refresh: Duration,
    loaded: RwLock<Loaded>,
    /// One task reads at a time; the others wait and use its result.
    reading: tokio::sync::Mutex<()>,
    rereads: Mutex<Bucket>,
    started: Instant,
}

enum Source {
    /// The keys never change.
    Fixed,
    File(PathBuf),
    Url(Outbound, String),
}

#[derive(Clone)]
struct Loaded {
    keys: Arc<[VerifyingKey]>,
    /// When the set was last read; `None` if never.
    at: Option<Instant>,
}

impl Keys {
    /// The keys that `config` names. A file or variable that cannot be read is an error; a URL that cannot be
    /// reached is not, since it may come back.
    pub(super) async fn start(config: &JwtConfig) -> anyhow::Result<Arc<Self>> {
        let (source, keys) = match &config.keys {
            JwtKeys::Secret(name) => (Source::Fixed, vec![shared_secret(name)?]),
            JwtKeys::PublicKey(path) => {
                let pem = std::fs::read(path).with_context(|| {
                    format!("public_key_file {} cannot be read", path.display())
                })?;
                let key = public_key(&pem)
                    .with_context(|| format!("public_key_file {}", path.display()))?;
                (Source::Fixed, vec![key])
            }
            JwtKeys::File(path) => (Source::File(path.clone()), Vec::new()),
            JwtKeys::Url(endpoint) => {
                let asked = Outbound::new(&endpoint.backend, READ_TIMEOUT);
                (Source::Url(asked, endpoint.target.clone()), Vec::new())
            }
        };
        let keys = Arc::new(Self {
            source,
            refresh: config.refresh,
            loaded: RwLock::new(Loaded {
                keys: keys.into(),
                at: None,
            }),
            reading: tokio::sync::Mutex::default(),
            rereads: Mutex::default(),
            started: Instant::now(),
        });
        match (&keys.source, keys.read().await) {
            (_, Ok(())) => {}
            (Source::Url(..), Err(error)) => {
                tracing::error!(%error, "the key set cannot be read yet; no token can be judged");
            }
            (_, Err(error)) => return Err(error),
        }
        Ok(keys)
    }

    /// The current keys, or `None` if the set was never read or not for too long.
    pub(super) fn current(self: &Arc<Self>) -> Option<Arc<[VerifyingKey]>> {
        let Loaded { keys, at } = self.loaded.read().clone();
        if matches!(self.source, Source::Fixed) {
            return Some(keys);
        }
        let age = at?.elapsed();
        if age >= self.refresh {
            self.read_behind();
        }
        (age < MAX_STALE.max(self.refresh * 2)).then_some(keys)
    }

    /// Reads the set again because a key is not in it, unless that was done too often. Returns `false` if
    /// reading failed, or if it was skipped and no set was ever read.
    pub(super) async fn look_again(&self) -> bool {
        if matches!(self.source, Source::Fixed) {
            return true;
        }
        let asked = Instant::now();
        let _one_reads = self.reading.lock().await;
        // Another task has read the set while this one waited.
        if self.loaded.read().at.is_some_and(|at| at >= asked) {
            return true;
        }
        let rate = Rate::every(REREAD_EVERY, REREADS_AT_ONCE);
        let now = self.started.elapsed();
        if self.rereads.lock().take(rate, now).is_err() {
            return self.loaded.read().at.is_some();
        }
        self.read_and_say().await
    }

    /// Reads the set in the background; requests go on with the current keys.
    fn read_behind(self: &Arc<Self>) {
        if self.reading.try_lock().is_err() {
            return;
        }
        let now = self.started.elapsed();
        let rate = Rate::every(REREAD_EVERY.min(self.refresh), REREADS_AT_ONCE);
        if self.rereads.lock().take(rate, now).is_err() {
            return;
        }
        let keys = self.clone();
        tokio::spawn(async move {
            let _one_reads = keys.reading.lock().await;
            keys.read_and_say().await;
        });
    }

    async fn read_and_say(&self) -> bool {
        let read = self.read().await;
        if let Err(error) = &read {
            tracing::warn!(
                error = format!("{error:#}"),
                "the key set could not be read again"
            );
        }
        read.is_ok()
    }

    async fn read(&self) -> anyhow::Result<()> {
        let text = match &self.source {
            Source::Fixed => return Ok(()),
            Source::File(path) => {
                let read = tokio::fs::read(path).await;
                let text =
                    read.with_context(|| format!("jwks_file {} cannot be read", path.display()))?;
                anyhow::ensure!(text.len() <= MAX_SET, "jwks_file is larger than 1 MiB");
                text
            }
            Source::Url(asked, target) => fetch(asked, target).await.context("jwks_url")?,
        };
        let may_share = matches!(self.source, Source::File(_));
        let keys = key_set(&text, may_share).context("the key set")?;
        *self.loaded.write() = Loaded {
            keys: keys.into(),
            at: Some(Instant::now()),
        };
        Ok(())
    }
}

async fn fetch(asked: &Outbound, target: &str) -> anyhow::Result<Vec<u8>> {
    let answer = asked.send(Request::new(Body::empty()), target, MAX_SET);
    let (head, body) = tokio::time::timeout(READ_TIMEOUT, answer)
        .await
        .context("it took too long")??;
    anyhow::ensure!(
        head.status.is_success(),
        "it answered {}",
        head.status.as_u16()
    );
    let body = body.context("its answer was cut off or longer than 1 MiB")?;
    Ok(body.to_vec())
}

fn secret_in(name: &str) -> anyhow::Result<String> {
    let secret = std::env::var(name).ok().filter(|secret| !secret.is_empty());
    secret.with_context(|| format!("the environment variable {name} (secret_env) is not set"))
}

fn shared_secret(name: &str) -> anyhow::Result<VerifyingKey> {
    let secret = secret_in(name)?;
    if secret.len() < SHORT_SECRET {
        tracing::warn!(
            variable = name,
            "the shared secret of auth.jwt is shorter than {SHORT_SECRET} bytes and can be guessed"
        );
    }
    Ok(VerifyingKey {
        kid: None,
        algorithms: HMAC.to_vec(),
        key: DecodingKey::from_secret(secret.as_bytes()),
    })
}

/// Checks whether `keys` can be used, as far as this machine can tell. An error about a file omits its name,
/// which may be a misplaced secret.
pub(crate) fn check(keys: &JwtKeys) -> anyhow::Result<()> {
    let read = |path: &Path| std::fs::read(path).context("cannot be read");
    match keys {
        JwtKeys::Secret(name) => drop(secret_in(name)?),
        JwtKeys::PublicKey(path) => drop(public_key(&read(path)?).context("cannot be used")?),
        JwtKeys::File(path) => drop(key_set(&read(path)?, true)?),
        // The URL may be unreachable now, and come back.
        JwtKeys::Url(_) => {}
    }
    Ok(())
}

/// A public key in PEM: RSA, EC or Ed25519.
fn public_key(pem: &[u8]) -> anyhow::Result<VerifyingKey> {
    let text = String::from_utf8_lossy(pem);
    anyhow::ensure!(
        !text.contains("PRIVATE KEY"),
        "it holds a private key; the gateway needs the public one only"
    );
    anyhow::ensure!(
        text.contains("PUBLIC KEY"),
        "it holds no `PUBLIC KEY` in PEM form"
    );
    let key = DecodingKey::from_rsa_pem(pem)
        .or_else(|_| DecodingKey::from_ec_pem(pem))
        .or_else(|_| DecodingKey::from_ed_pem(pem))
        .map_err(|_| anyhow::anyhow!("it is neither an RSA, an EC nor an Ed25519 key"))?;
    let algorithms = match key.family() {
        jsonwebtoken::AlgorithmFamily::Rsa => RSA.to_vec(),
        jsonwebtoken::AlgorithmFamily::Ed => vec![Algorithm::EdDSA],
        // An uncompressed point: one byte, and two coordinates of 32 or 48 bytes.
        _ => match key.try_get_as_bytes().map(<[u8]>::len) {
            Ok(65) => vec![Algorithm::ES256],
            Ok(97) => vec![Algorithm::ES384],
            _ => anyhow::bail!("its curve is neither P-256 nor P-384"),
        },
    };
    Ok(VerifyingKey {
        kid: None,
        algorithms,
        key,
    })
}

/// The usable keys of a set. Skips keys of unknown kinds and keys that are not for signatures.
fn key_set(text: &[u8], may_share: bool) -> anyhow::Result<Vec<VerifyingKey>> {
    let set: JwkSet = serde_json::from_slice(text)
        // The error's own text could quote a key.
        .map_err(|_| anyhow::anyhow!("is not a JSON Web Key Set"))?;
    let usable = set
        .keys
        .iter()
        .filter_map(|jwk| verifying_key(jwk, may_share));
    let keys: Vec<_> = usable.take(MAX_KEYS).collect();
    anyhow::ensure!(!keys.is_empty(), "holds no key that can be used");
    Ok(keys)
}

fn verifying_key(jwk: &Jwk, may_share: bool) -> Option<VerifyingKey> {
    let common = &jwk.common;
    let signs = common
        .public_key_use
        .as_ref()
        .is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
        && common
            .key_operations
            .as_ref()
            .is_none_or(|all| all.contains(&KeyOperations::Verify));
    let possible: Vec<Algorithm> = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) => match key.curve {
            EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => return None,
        },
        // A shared secret published at a URL is no secret.
        AlgorithmParameters::OctetKey(_) if may_share => HMAC.to_vec(),
        _ => return None,
    };
    let algorithms = match common.key_algorithm {
        Some(named) => {
            let named = Algorithm::try_from(named).ok()?;
            possible.into_iter().filter(|one| *one == named).collect()
        }
        None => possible,
    };
    if !signs || algorithms.is_empty() {
        return None;
    }
    Some(VerifyingKey {
        kid: common.key_id.clone(),
        algorithms,
        key: DecodingKey::from_jwk(jwk).ok()?,
    })
}

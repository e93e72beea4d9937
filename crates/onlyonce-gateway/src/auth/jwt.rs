//! Signed tokens: signature, issuer, audience and times, and the claim that names the client.

use std::sync::Arc;

use jsonwebtoken::{Header, TokenData, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::{
    ClientId, Found,
    jwks::{Keys, VerifyingKey},
};
use crate::config::JwtConfig;

/// Tokens of one issuer.
pub(super) struct Jwt {
    keys: Arc<Keys>,
    validation: Validation,
    claim: String,
}

impl Jwt {
    pub(super) async fn start(config: &JwtConfig) -> anyhow::Result<Self> {
        let mut validation = Validation {
            leeway: config.leeway.as_secs(),
            validate_nbf: true,
            validate_aud: config.audience.is_some(),
            ..Validation::default()
        };
        // A token without an expiry cannot be revoked.
        let mut required = vec!["exp"];
        if let Some(issuers) = &config.issuer {
            validation.set_issuer(issuers);
            required.push("iss");
        }
        if let Some(audiences) = &config.audience {
            validation.set_audience(audiences);
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        Ok(Self {
            keys: Keys::start(config).await?,
            validation,
            claim: config.client_id_claim.clone(),
        })
    }

    /// The client that the token identifies.
    pub(super) async fn owner(&self, token: &[u8]) -> Found {
        // An unknown algorithm, including `none`, fails to parse.
        let Ok(header) = decode_header(token) else {
            return Found::Nobody;
        };
        // `crit` names extensions that must be understood; none are supported.
        if header.crit.is_some() {
            return Found::Nobody;
        }
        let Some(mut keys) = self.keys.current() else {
            return match Box::pin(self.keys.look_again()).await {
                true => self.judge(token, &header),
                false => Found::Unavailable,
            };
        };
        if !keys.iter().any(|key| is_named(key, &header)) {
            if !Box::pin(self.keys.look_again()).await {
                return Found::Unavailable;
            }
            match self.keys.current() {
                Some(read) => keys = read,
                None => return Found::Unavailable,
            }
        }
        self.judge_with(token, &header, &keys)
    }

    fn judge(&self, token: &[u8], header: &Header) -> Found {
        match self.keys.current() {
            Some(keys) => self.judge_with(token, header, &keys),
            None => Found::Unavailable,
        }
    }

    fn judge_with(&self, token: &[u8], header: &Header, keys: &[VerifyingKey]) -> Found {
        let meant = keys.iter().filter(|key| is_meant(key, header));
        for key in meant {
            let mut validation = self.validation.clone();
            validation.algorithms.clone_from(&key.algorithms);
            let verified: Result<TokenData<Map<String, Value>>, _> =
                decode(token, &key.key, &validation);
            if let Ok(token) = verified {
                return self
                    .named(&token.claims)
                    .map_or(Found::Nobody, Found::Client);
            }
        }
        Found::Nobody
    }

    fn named(&self, claims: &Map<String, Value>) -> Option<ClientId> {
        match claims.get(&self.claim)? {
            Value::String(id) => ClientId::new(id),
            Value::Number(id) if id.is_u64() => ClientId::new(&id.to_string()),
            _ => None,
        }
    }
}

/// Whether the names of `header` and `key` match; a missing name matches any.
fn is_named(key: &VerifyingKey, header: &Header) -> bool {
    match (&key.kid, &header.kid) {
        (Some(kid), Some(wanted)) => kid == wanted,
        _ => true,
    }
}

/// Whether `key` may have signed: the names match, and the key allows the algorithm.
fn is_meant(key: &VerifyingKey, header: &Header) -> bool {
    is_named(key, header) && key.algorithms.contains(&header.alg)
}

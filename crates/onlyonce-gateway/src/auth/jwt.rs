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
        // A token that never ends cannot be taken back.
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

    /// Whose token this is.
    pub(super) async fn owner(&self, token: &[u8]) -> Found {
        // An unknown algorithm, `none` among them, is not even a header.
        let Ok(header) = decode_header(token) else {
            return Found::Nobody;
        };
        // What must be understood, is not.
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

/// Whether `header` may name `key`: one of them without a name fits everything.
fn is_named(key: &VerifyingKey, header: &Header) -> bool {
    match (&key.kid, &header.kid) {
        (Some(kid), Some(wanted)) => kid == wanted,
        _ => true,
    }
}

/// Whether `header` may mean `key`: by its name, and by what the key may be used with.
fn is_meant(key: &VerifyingKey, header: &Header) -> bool {
    is_named(key, header) && key.algorithms.contains(&header.alg)
}

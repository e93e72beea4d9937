//! Client authentication. The client's id comes from its credential alone; no header that a client can choose
//! decides a scope.
//!
//! Several methods may be configured. A trusted proxy's header comes first, then an API key or token in the
//! request itself, then the external service. Every request is authenticated, replays included: no result is
//! cached from one request to the next.

mod api_keys;
mod external;
mod jwks;
mod jwt;

use std::{net::IpAddr, sync::Arc};

use anyhow::Context;
use http::{HeaderMap, HeaderName, Method, Uri, header};
use onlyonce::layer::strip_lookalikes;

use crate::config::{AuthConfig, TrustedHeader, is_client_id};
use api_keys::ApiKeys;
use external::External;
pub(crate) use jwks::check as check_keys;
use jwt::Jwt;

/// The header that carries an API key, beside `Authorization`.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The id of an authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(Arc<str>);

impl ClientId {
    /// `text` as an id, if it is a valid one.
    fn new(text: &str) -> Option<Self> {
        is_client_id(text).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The result of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The client was identified.
    Client(ClientId),
    /// There is no credential, or no valid one.
    Nobody,
    /// The credential could not be checked.
    Unavailable,
}

/// The parts of a request that precede its body.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) peer: Option<IpAddr>,
}

/// The configured authentication methods.
pub(crate) struct Auth {
    api_keys: ApiKeys,
    jwt: Option<Jwt>,
    trusted: Option<TrustedHeader>,
    external: Option<External>,
}

impl Auth {
    /// Reads keys and secrets. A key set behind a URL may be unreachable at startup. Until it is loaded,
    /// tokens cannot be checked, and the result is [`Found::Unavailable`].
    pub(crate) async fn start(config: &AuthConfig) -> anyhow::Result<Self> {
        let jwt = match &config.jwt {
            Some(jwt) => Some(Jwt::start(jwt).await.context("auth.jwt")?),
            None => None,
        };
        Ok(Self {
            api_keys: ApiKeys::new(config),
            jwt,
            trusted: config.trusted_header.clone(),
            external: config.external.as_ref().map(External::new),
        })
    }

    /// The header in which a trusted proxy names the client.
    pub(crate) fn trusted_header(&self) -> Option<&HeaderName> {
        self.trusted.as_ref().map(|trusted| &trusted.name)
    }

    /// Removes the trusted header, unless the peer is a trusted proxy.
    pub(crate) fn remove_untrusted(&self, headers: &mut HeaderMap, peer: Option<IpAddr>) {
        let Some(trusted) = &self.trusted else { return };
        strip_lookalikes(headers, std::iter::once(&trusted.name));
        if !is_trusted(trusted, peer) {
            headers.remove(&trusted.name);
        }
    }

    /// Identifies the client.
    pub(crate) async fn authenticate(&self, shown: Shown<'_>) -> Found {
        if let Some(said) = self.said_by_proxy(shown) {
            return said;
        }
        match self.carried(shown.headers).await {
            Found::Nobody => match &self.external {
                Some(external) => Box::pin(external.ask(shown)).await,
                None => Found::Nobody,
            },
            found => found,
        }
    }

    /// The client that a trusted proxy names; `None` without such a header.
    fn said_by_proxy(&self, shown: Shown<'_>) -> Option<Found> {
        let trusted = self.trusted.as_ref()?;
        if !is_trusted(trusted, shown.peer) || !shown.headers.contains_key(&trusted.name) {
            return None;
        }
        let named = only(shown.headers, &trusted.name)
            .and_then(|value| std::str::from_utf8(value).ok())
            .and_then(ClientId::new);
        Some(named.map_or(Found::Nobody, Found::Client))
    }

    /// The owner of the API key and token in the request. If these name different clients, the result is
    /// nobody.
    async fn carried(&self, headers: &HeaderMap) -> Found {
        let by_key = match only(headers, &X_API_KEY).and_then(|key| self.api_keys.owner(key)) {
            Some(client) => Found::Client(client),
            None => Found::Nobody,
        };
        let by_token = match bearer(headers) {
            Some(token) => self.bearer(token).await,
            None => Found::Nobody,
        };
        match (by_key, by_token) {
            (Found::Client(key), Found::Client(token)) if key != token => Found::Nobody,
            (Found::Client(client), _) | (_, Found::Client(client)) => Found::Client(client),
            (Found::Unavailable, _) | (_, Found::Unavailable) => Found::Unavailable,
            (Found::Nobody, Found::Nobody) => Found::Nobody,
        }
    }

    async fn bearer(&self, token: &[u8]) -> Found {
        if let Some(client) = self.api_keys.owner(token) {
            return Found::Client(client);
        }
        match &self.jwt {
            Some(jwt) => jwt.owner(token).await,
            None => Found::Nobody,
        }
    }
}

fn is_trusted(trusted: &TrustedHeader, peer: Option<IpAddr>) -> bool {
    peer.is_some_and(|peer| trusted.from.iter().any(|network| network.contains(peer)))
}

/// The value of a header that occurs exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    Some(value.as_bytes())
}

/// The token after `Bearer` in `Authorization`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = only(headers, &header::AUTHORIZATION)?;
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;

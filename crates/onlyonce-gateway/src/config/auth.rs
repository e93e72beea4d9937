//! Client authentication: the `auth` section.
//!
//! Deliberately absent: secrets. API keys are given as hashes, and a shared secret as the name of the
//! variable that holds it.

mod jwt;

use std::fmt;

use http::Uri;
use serde_json::{Value as Json, json};

use super::{
    AuthConfig, ExternalConfig, TrustedHeader,
    backend::Backend,
    diagnostics::{Report, quoted},
    fields::{API_KEY, AUTH, EXTERNAL, Field, TRUSTED_HEADER},
    network::Network,
    scalar::Found,
    section::Section,
    setting::{Group, Setting, View},
    traffic,
    tree::{Node, Span, Value},
    view::{MASKED, url},
};
pub(crate) use jwt::{JwtConfig, JwtKeys};

/// The longest client id, in bytes.
pub(crate) const MAX_CLIENT_ID: usize = 256;
/// The most API keys in one file.
const MAX_API_KEYS: usize = 10_000;
impl AuthConfig {
    /// The hosts that the gateway itself sends requests to.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = &Backend> {
        let keys = self.jwt.as_ref().and_then(|jwt| match &jwt.keys {
            JwtKeys::Url(endpoint) => Some(endpoint),
            JwtKeys::File(_) | JwtKeys::Secret(_) | JwtKeys::PublicKey(_) => None,
        });
        let service = self.external.as_ref().map(|external| &external.url);
        keys.into_iter()
            .chain(service)
            .map(|endpoint| &endpoint.backend)
    }
}

/// The hash of an API key, and its owner.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey {
    /// The client.
    pub client_id: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
}

impl fmt::Debug for ApiKey {
    /// Omits the hash, since a short key could be recovered from it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// An address that the gateway itself sends requests to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The host to connect to.
    pub backend: Backend,
    /// Path and query.
    pub target: String,
}

/// Whether `id` is valid as a client id in scopes, lists and logs.
pub(crate) fn is_client_id(id: &str) -> bool {
    (1..=MAX_CLIENT_ID).contains(&id.len()) && !id.chars().any(char::is_control)
}

impl Setting for AuthConfig {
    fn read(top: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        if !top.says(field.name) {
            return None;
        }
        let section = top.section(field.name, &AUTH, report);
        let config = <Self as Group>::read(&section, report)?;
        let at = top.place(field.name).unwrap_or(top.at);
        let ways = ["api_keys", "jwt", "trusted_header", "external"];
        let said: Vec<&str> = ways.into_iter().filter(|way| section.says(way)).collect();
        if said.is_empty() {
            report
                .error(
                    at,
                    "`auth` names no way to authenticate, so nobody would get in",
                )
                .hint("for example `auth: { api_keys: [{ client_id: acme, sha256: HEX }] }`");
        }
        if said.len() > 1 && !config.shared_client_ids {
            let ways = said.join("` and `");
            report
                .error(
                    at,
                    format!(
                        "`{ways}` both name clients: who is called the same by both would share keys and answers"
                    ),
                )
                .hint(
                    "if the same id means the same client wherever it comes from, say \
                     `shared_client_ids: true`; otherwise keep one of them",
                );
        }
        Some(config)
    }
}

impl Setting for Vec<ApiKey> {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, key_at) = section.node(field.name)?;
        api_keys(node, key_at, report)
    }
}

fn api_keys(node: &Node, key_at: Span, report: &mut Report<'_>) -> Option<Vec<ApiKey>> {
    const HINT: &str = "for example `api_keys: [{ client_id: acme, sha256: HEX }]`";
    let Value::List(items) = &node.value else {
        report.error(key_at, "`api_keys` must be a list").hint(HINT);
        return None;
    };
    if items.is_empty() {
        report.error(key_at, "`api_keys` is empty").hint(HINT);
    }
    if items.len() > MAX_API_KEYS {
        report
            .error(key_at, format!("at most {MAX_API_KEYS} API keys"))
            .hint("for more clients, use `jwt` or `external`");
        return None;
    }
    let mut keys: Vec<ApiKey> = Vec::new();
    for item in items {
        let Some(key) = api_key(item, report) else {
            continue;
        };
        let rival = keys
            .iter()
            .find(|other| other.sha256 == key.sha256 && other.client_id != key.client_id);
        if let Some(rival) = rival {
            report.error(
                item.at,
                format!(
                    "this key is also that of {}, so it would not say who it is",
                    quoted(&rival.client_id)
                ),
            );
        }
        keys.push(key);
    }
    Some(keys)
}

fn api_key(item: &Node, report: &mut Report<'_>) -> Option<ApiKey> {
    let section = Section::open(&API_KEY, item, item.at, report);
    required(&section, &["client_id", "sha256"], item, report);
    let client_id = section.get("client_id", report);
    let sha256 = section
        .scalar("sha256", report)
        .and_then(|found| digest(found, report));
    Some(ApiKey {
        client_id: client_id?,
        sha256: sha256?,
    })
}

impl View for ApiKey {
    fn view(&self) -> Json {
        json!({ "client_id": self.client_id, "sha256": MASKED })
    }
}

pub(super) fn client_id(found: Found<'_>, _: &str, report: &mut Report<'_>) -> Option<String> {
    if !is_client_id(found.text) {
        report
            .error(
                found.at,
                format!("{} cannot be a client's id", quoted(found.written)),
            )
            .hint("1 to 256 bytes without control characters");
        return None;
    }
    Some(found.text.to_owned())
}

fn digest(found: Found<'_>, report: &mut Report<'_>) -> Option<[u8; 32]> {
    let digest = from_hex(found.text);
    if digest.is_none() {
        // The value may be the key itself, which must not get into a log.
        report
            .error(
                found.at,
                "`sha256` is 64 hex digits: the SHA-256 of the key",
            )
            .hint("for example from `printf %s \"$KEY\" | sha256sum`");
    }
    digest
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let nibble = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|n| u8::try_from(n).ok())
    };
    let mut digest = [0; 32];
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        *byte = nibble(*high)? << 4 | nibble(*low)?;
    }
    Some(digest)
}

impl Setting for TrustedHeader {
    fn read(auth: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, key_at) = auth.node(field.name)?;
        let section = Section::open(&TRUSTED_HEADER, node, key_at, report);
        required(&section, &["name", "from"], node, report);
        let at = section.place("from").unwrap_or(key_at);
        if section.is_empty_list("from") {
            report
                .error(at, "`from` is empty: nobody is trusted")
                .hint("for example `from: [\"10.0.0.0/8\"]`");
        }
        let from: Option<Vec<Network>> = section.get("from", &mut Report::quiet());
        if from.iter().flatten().any(Network::is_everybody) {
            report
                .warning(at, "everybody may say in this header who they are")
                .hint("name the addresses of the proxy that sets it");
        }
        <Self as Group>::read(&section, report)
    }
}

impl Setting for ExternalConfig {
    fn read(auth: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, key_at) = auth.node(field.name)?;
        let section = Section::open(&EXTERNAL, node, key_at, report);
        required(&section, &["url", "client_id_header"], node, report);
        <Self as Group>::read(&section, report)
    }
}

fn required(section: &Section<'_>, fields: &[&str], node: &Node, report: &mut Report<'_>) {
    if !matches!(node.value, Value::Map(_) | Value::Null) {
        return;
    }
    for field in fields.iter().filter(|field| !section.says(field)) {
        report.error(section.at, format!("{} without `{field}`", section.name()));
    }
}

/// An address that the gateway itself sends requests to: host, path and query, and trusted authorities.
impl Setting for Endpoint {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let found = section.scalar(field.name, report)?;
        let base = found.text.split(['?', '#']).next().unwrap_or_default();
        let (Ok(backend), Ok(uri)) = (Backend::parse(base), found.text.parse::<Uri>()) else {
            let message = format!(
                "`{}` is a URL with scheme and host, not {}",
                field.name,
                quoted(found.written)
            );
            report
                .error(found.at, message)
                .hint("for example `http://127.0.0.1:4000/auth`");
            return None;
        };
        Some(Self {
            backend: Backend {
                prefix: String::new(),
                tls: traffic::trust(section, backend.tls.is_some(), report).ok()?,
                ..backend
            },
            target: uri
                .path_and_query()
                .map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }
}

/// Hides the query, which may hold a credential.
impl View for Endpoint {
    fn view(&self) -> Json {
        let shown = match self.target.split_once('?') {
            Some((path, _)) => format!("{}?{MASKED}", url(&self.backend, path)),
            None => url(&self.backend, &self.target),
        };
        shown.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients() {
        for id in ["acme", "a b", "tenant/7", "жук", &"x".repeat(256)] {
            assert!(is_client_id(id), "{id}");
        }
        for id in ["", "a\nb", "a\0", &"x".repeat(257)] {
            assert!(!is_client_id(id), "{id:?}");
        }
    }
}

//! Who is asking: the `auth` section.
//!
//! Deliberately absent: secrets. API keys stand here as hashes, and a shared secret as the name of the
//! variable that holds it.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use http::Uri;
use serde_json::{Value as Json, json};

use super::{
    AuthConfig, ExternalConfig, TrustedHeader,
    backend::Backend,
    diagnostics::{Report, quoted},
    fields::{API_KEY, AUTH, EXTERNAL, Field, JWT, TRUSTED_HEADER},
    scalar::Found,
    section::Section,
    setting::{Group, Scalar, Setting, View},
    traffic,
    tree::{Node, Span, Value},
    view::{MASKED, url},
};

/// The longest id of a client, in bytes.
pub(crate) const MAX_CLIENT_ID: usize = 256;
/// API keys in one file.
const MAX_API_KEYS: usize = 10_000;
impl AuthConfig {
    /// Where the gateway itself asks.
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

/// The hash of an API key, and whose it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey {
    /// The client.
    pub client_id: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
}

impl fmt::Debug for ApiKey {
    /// Without the hash, which a short key would not survive.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey")
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

/// Signed tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwtConfig {
    /// What signatures are checked with.
    pub keys: JwtKeys,
    /// Who must have issued the token.
    pub issuer: Option<Vec<String>>,
    /// For whom it must have been issued.
    pub audience: Option<Vec<String>>,
    /// The claim that names the client.
    pub client_id_claim: String,
    /// How far clocks may differ.
    pub leeway: Duration,
    /// How old a key set may become before it is read again.
    pub refresh: Duration,
}

/// What signatures are checked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JwtKeys {
    /// A key set in a file.
    File(PathBuf),
    /// A key set at an address.
    Url(Endpoint),
    /// The variable that holds a shared secret.
    Secret(String),
    /// A public key in a file.
    PublicKey(PathBuf),
}

/// An address that the gateway itself asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Where to connect.
    pub backend: Backend,
    /// Path and query.
    pub target: String,
}

/// A block of addresses, `10.0.0.0/8` for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    prefix: u32,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Network {
    /// Whether `address` is in it. An IPv4 address in IPv6 form is an IPv4 address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                (u32::from(net) ^ u32::from(address)).leading_zeros() >= self.prefix
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                (u128::from(net) ^ u128::from(address)).leading_zeros() >= self.prefix
            }
            _ => false,
        }
    }

    /// Whether every address of its kind is in it.
    fn is_everybody(&self) -> bool {
        self.prefix == 0
    }
}

impl FromStr for Network {
    type Err = ();

    /// `ADDRESS` or `ADDRESS/BITS`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match bits {
            Some(bits) if bits.bytes().all(|b| b.is_ascii_digit()) => {
                bits.parse().map_err(|_| ())?
            }
            Some(_) => return Err(()),
            None => most,
        };
        (prefix <= most)
            .then_some(Self { address, prefix })
            .ok_or(())
    }
}

/// Whether `id` can name a client in scopes, lists and logs.
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
        // Somebody who puts the key itself here must not find it in a log.
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

impl Setting for JwtConfig {
    fn read(auth: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        auth.says(field.name).then(|| jwt(auth, report)).flatten()
    }
}

impl View for JwtConfig {
    fn view(&self) -> Json {
        let (name, source) = match &self.keys {
            JwtKeys::File(path) => ("jwks_file", path.view()),
            JwtKeys::Url(endpoint) => ("jwks_url", endpoint.view()),
            JwtKeys::Secret(name) => ("secret_env", name.view()),
            JwtKeys::PublicKey(path) => ("public_key_file", path.view()),
        };
        json!({
            "issuer": self.issuer,
            "audience": self.audience,
            "client_id_claim": self.client_id_claim,
            "leeway": self.leeway.view(),
            "refresh": self.refresh.view(),
            name: source,
        })
    }
}

fn jwt(auth: &Section<'_>, report: &mut Report<'_>) -> Option<JwtConfig> {
    const SOURCES: [&str; 4] = ["jwks_file", "jwks_url", "secret_env", "public_key_file"];
    let section = auth.section("jwt", &JWT, report);
    let at = auth.place("jwt").unwrap_or(auth.at);
    let said: Vec<&str> = SOURCES
        .into_iter()
        .filter(|source| section.says(source))
        .collect();
    if said.len() != 1 {
        let message = match said.as_slice() {
            [] => "`jwt` without a key to check signatures with".to_owned(),
            _ => format!("`jwt` has {} sources of keys", said.len()),
        };
        report
            .error(at, message)
            .hint("say one of `jwks_file`, `jwks_url`, `secret_env` and `public_key_file`");
    }
    if let Some(at) = section.place("ca_file")
        && !section.says("jwks_url")
    {
        report.error(at, "`ca_file` has no meaning without `jwks_url`");
    }
    let file = |field: &str, report: &mut Report<'_>| {
        let path: Option<PathBuf> = section.get(field, report);
        path.filter(|path| !path.as_os_str().is_empty())
    };
    let keys = match said.first().copied() {
        Some("jwks_file") => file("jwks_file", report).map(JwtKeys::File),
        Some("public_key_file") => file("public_key_file", report).map(JwtKeys::PublicKey),
        Some("secret_env") => section.get("secret_env", report).map(JwtKeys::Secret),
        Some(_) => section.get("jwks_url", report).map(JwtKeys::Url),
        None => None,
    };
    // What cannot be used now could not be when the gateway starts.
    let is_skipped = matches!(keys, Some(JwtKeys::Secret(_))) && !report.looks_at_env();
    if let (Some(keys), [source]) = (&keys, said.as_slice())
        && !is_skipped
        && let Err(error) = crate::auth::check_keys(keys)
        && let Some(found) = section.scalar(source, report)
    {
        let message = match keys {
            JwtKeys::Secret(_) => format!("{error:#}"),
            _ => format!("{} {error:#}", quoted(found.written)),
        };
        report.error(found.at, message);
    }
    let config = JwtConfig {
        issuer: section.get("issuer", report),
        audience: section.get("audience", report),
        client_id_claim: section.get_or_default("client_id_claim", report),
        leeway: section.get_or_default("leeway", report),
        refresh: section.get_or_default("refresh", report),
        keys: keys?,
    };
    if config.audience.is_none() && !report.has_errors() {
        report
            .warning(
                at,
                "`jwt` without `audience`: tokens made for others are taken too",
            )
            .hint("say for whom tokens must have been issued");
    }
    Some(config)
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

impl Scalar for Network {
    fn of(found: Found<'_>, _: &Field, report: &mut Report<'_>) -> Option<Self> {
        let network = found.text.parse().ok();
        if network.is_none() {
            report
                .error(
                    found.at,
                    format!("{} is not a block of addresses", quoted(found.written)),
                )
                .hint("for example `10.0.0.0/8`, `192.0.2.7` or `fd00::/8`");
        }
        network
    }
}

impl View for Network {
    fn view(&self) -> Json {
        self.to_string().into()
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

/// An address that the gateway itself asks: host, path and query, and whom to believe there.
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

/// A query may hold a credential.
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
    fn blocks_of_addresses() {
        for (block, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "203.0.113.9", "::1"),
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("::1", "::1", "127.0.0.1"),
            ("127.0.0.0/8", "::ffff:127.0.0.1", "::ffff:128.0.0.1"),
        ] {
            let network: Network = block.parse().unwrap();
            assert!(
                network.contains(inside.parse().unwrap()),
                "{block} {inside}"
            );
            assert!(
                !network.contains(outside.parse().unwrap()),
                "{block} {outside}"
            );
        }
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "a",
        ] {
            assert_eq!(text.parse::<Network>(), Err(()), "{text}");
        }
    }

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

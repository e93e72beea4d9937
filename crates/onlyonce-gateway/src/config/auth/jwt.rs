//! Signed tokens: `auth.jwt`.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value as Json, json};

use super::Endpoint;
use crate::config::{
    diagnostics::{Report, quoted},
    fields::{Field, JWT},
    section::Section,
    setting::{Setting, View},
};

/// The configuration of signed tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwtConfig {
    /// The keys that verify signatures.
    pub keys: JwtKeys,
    /// The accepted issuers.
    pub issuer: Option<Vec<String>>,
    /// The accepted audiences.
    pub audience: Option<Vec<String>>,
    /// The claim that names the client.
    pub client_id_claim: String,
    /// The tolerated clock difference.
    pub leeway: Duration,
    /// The age at which a key set is read again.
    pub refresh: Duration,
}

/// The keys that verify signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JwtKeys {
    /// A key set in a file.
    File(PathBuf),
    /// A key set at a URL.
    Url(Endpoint),
    /// The variable that holds a shared secret.
    Secret(String),
    /// A public key in a file.
    PublicKey(PathBuf),
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
    // Keys that are unusable now would prevent the gateway from starting.
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

//! Rules between the fields of `store`, and the section `redis`.

mod url;

use onlyonce_store::{
    at_rest::{Compression, Keyring},
    identity::IDENTITY_BYTES,
};

use super::{
    StoreConfig,
    diagnostics::Report,
    fields::{REDIS, STORE},
    scalar::Found,
    section::Section,
    setting::variable,
    tree::Span,
};
pub use url::{StoreUrl, StoreUrlError};

/// The identity that the store must have: 32 hexadecimal digits, in upper or lower case.
pub(super) fn identity(found: Found<'_>, _: &str, report: &mut Report<'_>) -> Option<String> {
    let digits = found.text.to_ascii_lowercase();
    if digits.len() == 2 * IDENTITY_BYTES && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Some(digits);
    }
    report
        .error(found.at, "`identity` is 32 hexadecimal digits")
        .hint("`onlyonce migrate --store URL` and the start-up line print it");
    None
}

/// The variable with the encryption keys, which must hold some: a gateway that cannot read its records should
/// not start. The value is never printed.
pub(super) fn keys_variable(
    found: Found<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    let name = variable(found, field, report)?;
    if !report.looks_at_env() {
        return Some(name);
    }
    let form = "it holds ID:BASE64[,ID:BASE64…], each key 32 bytes: `openssl rand -base64 32`";
    let mistake = match std::env::var(&name) {
        Err(_) => Some(format!("`{field}`: {name} is not set")),
        Ok(text) => Keyring::parse(&text)
            .err()
            .map(|error| format!("`{field}`: {name}: {error}")),
    };
    if let Some(mistake) = mistake {
        report.error(found.at, mistake).hint(form);
    }
    Some(name)
}

/// Completes `config` from other sections, and checks its fields against each other. Returns the position of
/// the store's URL.
pub(super) fn complete(
    top: &Section<'_>,
    config: &mut StoreConfig,
    report: &mut Report<'_>,
) -> Span {
    // The section's mistakes are already reported.
    let section = top.section("store", &STORE, &mut Report::quiet());
    if let Some(address) = redis_address(top, &section, report) {
        config.url = address;
    }
    if !section.says("compression") && config.url == StoreUrl::Memory {
        config.compression = Compression::None;
    }
    let url = &config.url;
    let (kind, is_postgres) = (url.scheme(), matches!(url, StoreUrl::Postgres(_)));
    let is_redis = matches!(url, StoreUrl::Redis(_));
    let no_meaning = |field| format!("`{field}` has no meaning for a {kind} store");
    let misplaced = [
        (
            "plain_settle",
            config.encryption_key_env.is_none(),
            "`plain_settle` says something only with `encryption_key_env`".to_owned(),
            None,
        ),
        (
            "spool_dir",
            *url == StoreUrl::Memory,
            "`spool_dir` needs a store that outlives the process".to_owned(),
            None,
        ),
        ("pooler", !is_postgres, no_meaning("pooler"), None),
        (
            "allow_eviction",
            !is_redis,
            no_meaning("allow_eviction"),
            None,
        ),
        (
            "cache",
            !url.is_sql(),
            format!("`cache` stands in front of SQL, not of a {kind} store"),
            Some("leave it out, or keep the records in PostgreSQL"),
        ),
    ];
    for (field, is_misplaced, message, hint) in misplaced {
        if let Some(at) = section.place(field).filter(|_| is_misplaced) {
            report.error(at, message).hint_if(hint.map(str::to_owned));
        }
    }
    let places = [section.place("url"), top.place("redis")];
    let place = places.into_iter().flatten().next();
    place.unwrap_or(section.at)
}

/// The store in `redis.address`, if `store.url` is not given.
fn redis_address(
    top: &Section<'_>,
    store: &Section<'_>,
    report: &mut Report<'_>,
) -> Option<StoreUrl> {
    let at = top.place("redis")?;
    let section = top.section("redis", &REDIS, report);
    if !section.says("address") {
        let hint = "for example `redis: { address: \"localhost:6379\" }`";
        report.error(at, "`redis` without `address`").hint(hint);
    } else if store.says("url") {
        report
            .error(
                at,
                "`redis` beside `store.url`: one store keeps the records",
            )
            .hint("leave one of them out; a Redis in front of SQL is `store.cache`");
    }
    section.get("address", report)
}

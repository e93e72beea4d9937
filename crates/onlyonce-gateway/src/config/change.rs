//! What a reload must not change: what the process holds on to, and what makes a scope.
//!
//! A key that was used in one scope is unknown in another, so a retry across such a change would execute a
//! second time. So would a retry whose key is no longer found in its header.

use std::collections::{HashMap, HashSet};

use http::Method;

use super::{
    AuthConfig, Config, Route,
    fields::{Field, OptionTable, Reload},
    setting::{Group, Table},
};

/// The changes from `old` to `new` that a reload refuses, each with its name. Empty if there are none.
pub(crate) fn refusals(old: &Config, new: &Config) -> Vec<String> {
    let mut held: Vec<String> = Vec::new();
    let top = old.needing_restart(new).into_iter();
    held.extend(top.map(str::to_owned));
    let admin = old.admin.needing_restart(&new.admin).into_iter();
    held.extend(admin.map(|name| format!("admin.{name}")));
    // Another certificate is fine. But clients that expect TLS must not get plain text, nor the other way
    // round.
    if old.tls.is_some() != new.tls.is_some() {
        held.push("tls".to_owned());
    }
    if old.held_bytes != new.held_bytes {
        held.push("limits.held_bytes".to_owned());
    }
    let refused = |name: &String| format!("`{name}` cannot be changed without a restart");
    let mut found: Vec<String> = held.iter().map(refused).collect();
    if !new.allow_scope_change {
        scopes(old, new, &mut found);
    }
    found
}

fn scopes(old: &Config, new: &Config, found: &mut Vec<String>) {
    for source in changed_sources(old.auth.as_ref(), new.auth.as_ref()) {
        found.push(refused(source, ""));
    }
    // Authenticated callers are identified by their id.
    let told_by_headers = old.auth.is_none() && new.auth.is_none();
    let honoured: HashSet<&Method> = old
        .routes
        .iter()
        .flat_map(|route| &route.policy.methods)
        .collect();
    for path in old
        .routes
        .iter()
        .chain(&new.routes)
        .map(|route| &route.path)
    {
        for method in &honoured {
            let before = old
                .route_match(method, path)
                .map(|index| &old.routes[index]);
            let after = new
                .route_match(method, path)
                .map(|index| &new.routes[index]);
            if let (Some(before), Some(after)) = (before, after)
                && before.policy.honours(*method)
                && after.policy.honours(*method)
                && !before.policy.shadow
                && !after.policy.shadow
            {
                route((before, after), told_by_headers, found);
            }
        }
    }
}

fn route((before, after): (&Route, &Route), told_by_headers: bool, found: &mut Vec<String>) {
    let of = format!(" of route `{}`", before.id);
    let mut note = |line: String| {
        if !found.contains(&line) {
            found.push(line);
        }
    };
    let (old, new) = (OptionTable::view(before), OptionTable::view(after));
    let changed = |field: &&Field| old[field.name] != new[field.name];
    for field in OptionTable::SCHEMA.fields.iter().filter(changed) {
        let name = field.name;
        match field.reload {
            Reload::Scope => note(refused(name, &of)),
            Reload::Callers if told_by_headers => note(format!(
                "`{name}`{of} tell callers apart: with others, retries would be taken for \
                 somebody else's (allow_scope_change: true allows it)"
            )),
            Reload::Free | Reload::Restart | Reload::Callers => {}
        }
    }
    let per_route = (before.edge.key_per_route, after.edge.key_per_route);
    // Under another path the id belongs to another route; it makes the scope only with `key_per_route`.
    if before.id != after.id && (before.path == after.path || per_route == (true, true)) {
        let id = &after.id;
        note(refused("id", &format!("{of} (now `{id}`)")));
    }
}

fn refused(name: &str, of: &str) -> String {
    format!(
        "`{name}`{of} makes the scope of keys: with another one retries would execute again \
         (allow_scope_change: true allows it)"
    )
}

/// The sources of client ids in `auth` that have changed.
fn changed_sources(old: Option<&AuthConfig>, new: Option<&AuthConfig>) -> Vec<&'static str> {
    let (Some(old), Some(new)) = (old, new) else {
        return match (old, new) {
            (None, None) => Vec::new(),
            _ => vec!["auth"],
        };
    };
    let claim = |auth: &AuthConfig| auth.jwt.as_ref().map(|jwt| jwt.client_id_claim.clone());
    // Another issuer uses the same names for other clients.
    let issuer = |auth: &AuthConfig| auth.jwt.as_ref().map(|jwt| jwt.issuer.clone());
    let trusted = |auth: &AuthConfig| auth.trusted_header.as_ref().map(|one| one.name.clone());
    let external = |auth: &AuthConfig| {
        auth.external
            .as_ref()
            .map(|one| one.client_id_header.clone())
    };
    let changed = [
        (
            "auth.api_keys",
            old.api_keys.is_empty() != new.api_keys.is_empty() || renamed(old, new),
        ),
        ("auth.jwt.client_id_claim", claim(old) != claim(new)),
        ("auth.jwt.issuer", issuer(old) != issuer(new)),
        ("auth.trusted_header.name", trusted(old) != trusted(new)),
        (
            "auth.external.client_id_header",
            external(old) != external(new),
        ),
    ];
    changed
        .iter()
        .filter(|(_, changed)| *changed)
        .map(|(name, _)| *name)
        .collect()
}

/// Whether an API key in both belongs to another client now.
fn renamed(old: &AuthConfig, new: &AuthConfig) -> bool {
    let owners: HashMap<_, _> = old
        .api_keys
        .iter()
        .map(|key| (key.sha256, &key.client_id))
        .collect();
    new.api_keys.iter().any(|key| {
        owners
            .get(&key.sha256)
            .is_some_and(|owner| **owner != key.client_id)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, parse};

    fn config(text: &str) -> Config {
        let backends = "backends: [{ url: \"http://127.0.0.1:1\" }]";
        let text = text.replace("BACKENDS", backends);
        match parse("test.yaml", &text, &|_| None, &Overrides::default()) {
            Ok(config) => config,
            Err(found) => panic!("{found}"),
        }
    }

    fn names(old: &str, new: &str) -> Vec<String> {
        let name = |line: &String| line.split('`').nth(1).unwrap_or_default().to_owned();
        refusals(&config(old), &config(new))
            .iter()
            .map(name)
            .collect()
    }

    const PLAIN: &str = "idempotency: { enabled: true }\nroutes: [{ id: a, path: /a, BACKENDS }]";

    #[test]
    fn what_the_process_holds_on_to() {
        for (line, name) in [
            ("listen: 127.0.0.1:1", "listen"),
            ("admin: { listen: 127.0.0.1:1 }", "admin.listen"),
            ("store: { url: \"memory:\" }", "store"),
            ("store: { timeout: 1s }", "store"),
        ] {
            for allowed in ["", "allow_scope_change: true\n"] {
                let new = format!("{line}\n{allowed}{PLAIN}");
                assert_eq!(names(PLAIN, &new), [name]);
            }
        }
    }

    #[test]
    fn what_makes_a_scope() {
        let auth = "auth: { trusted_header: { name: X-Client, from: [10.0.0.0/8] } }\n";
        let clients = format!("{auth}{PLAIN}");
        for (old, new, expected) in [
            (
                PLAIN.to_owned(),
                clients.clone(),
                &["auth", "key_scope"][..],
            ),
            (
                clients.clone(),
                clients.replace("X-Client", "X-Other"),
                &["auth.trusted_header.name"],
            ),
            (
                clients.clone(),
                clients.replace("enabled: true", "enabled: true, key_scope: global"),
                &["key_scope"],
            ),
            (
                PLAIN.to_owned(),
                PLAIN.replace("enabled: true", "enabled: true, key_per_route: true"),
                &["key_per_route"],
            ),
            (PLAIN.to_owned(), PLAIN.replace("id: a", "id: b"), &["id"]),
            (
                PLAIN.to_owned(),
                PLAIN.replace("enabled: true", "enabled: true, header_name: X-Op-Key"),
                &["header_name"],
            ),
            (
                PLAIN.to_owned(),
                PLAIN.replace(
                    "enabled: true",
                    "enabled: true, credential_headers: [X-Tenant]",
                ),
                &["credential_headers"],
            ),
        ] {
            assert_eq!(names(&old, &new), expected, "{new}");
            assert!(names(&old, &format!("allow_scope_change: true\n{new}")).is_empty());
        }
    }

    #[test]
    fn where_a_clients_id_comes_from() {
        let with = |auth: &str| format!("auth: {{ {auth} }}\n{PLAIN}");
        let jwt = "jwt: { jwks_url: 'http://127.0.0.1:1/a', issuer: a, audience: a }";
        let key = "api_keys: [{ client_id: a, sha256: HASH }]".replace("HASH", &"ab".repeat(32));
        let two = key.replace("}]", "}, { client_id: b, sha256: HASH }]");
        let two = two.replace("HASH", &"cd".repeat(32));
        let external = "external: { url: 'http://127.0.0.1:1', client_id_header: X-Id }";
        for (old, new, expected) in [
            (
                jwt,
                jwt.replace("issuer: a", "issuer: b"),
                &["auth.jwt.issuer"][..],
            ),
            (
                jwt,
                jwt.replace("issuer: a", "issuer: a, client_id_claim: azp"),
                &["auth.jwt.client_id_claim"],
            ),
            (
                jwt,
                format!("shared_client_ids: true, {jwt}, {key}"),
                &["auth.api_keys"],
            ),
            (
                external,
                external.replace("X-Id", "X-Who"),
                &["auth.external.client_id_header"],
            ),
            (
                &key,
                key.replace("client_id: a", "client_id: q"),
                &["auth.api_keys"],
            ),
            // Keys, key sets and addresses may change: the ids stay the same.
            (&key, two.clone(), &[]),
            (&two, key.clone(), &[]),
            (&key, key.replace("ab", "cd"), &[]),
            (jwt, jwt.replace("1/a", "1/b"), &[]),
            (external, external.replace(":1'", ":2', timeout: 1s"), &[]),
        ] {
            assert_eq!(names(&with(old), &with(&new)), expected, "{new}");
        }
    }

    #[test]
    fn what_may_change() {
        let two = PLAIN.replace("routes: [", "routes: [{ id: b, path: /a/b, BACKENDS }, ");
        let auth = "auth: { trusted_header: { name: X-Client, from: [10.0.0.0/8] } }\n";
        let clients = format!("{auth}{PLAIN}");
        for (old, new) in [
            (
                PLAIN.to_owned(),
                PLAIN.replace(
                    "enabled: true",
                    "enabled: true, ttl: 48h, fingerprint: { mode: raw }",
                ),
            ),
            // Headers do not distinguish authenticated callers, in any scope.
            (
                clients.clone(),
                clients.replace("enabled: true", "enabled: true, credential_headers: [X-T]"),
            ),
            (
                clients.replace("enabled: true", "enabled: true, key_scope: global"),
                clients.replace(
                    "enabled: true",
                    "enabled: true, key_scope: global, credential_headers: [X-T]",
                ),
            ),
            // A route added or removed: without `key_per_route` its keys are shared by all routes.
            (PLAIN.to_owned(), two.clone()),
            (two, PLAIN.to_owned()),
            // Keys that no route honours have no scope.
            (
                PLAIN.replace("true", "false"),
                PLAIN.replace("true", "false").replace("id: a", "id: b"),
            ),
        ] {
            assert!(names(&old, &new).is_empty(), "{:?}", names(&old, &new));
        }
        let apart = PLAIN.replace("enabled: true", "enabled: true, key_per_route: true");
        let two = apart.replace("routes: [", "routes: [{ id: b, path: /a/b, BACKENDS }, ");
        assert_eq!(
            names(&apart, &two),
            ["id"],
            "its requests had the scope of route a"
        );
    }
}

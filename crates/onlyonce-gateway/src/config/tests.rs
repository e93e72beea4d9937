//! Configurations, good and bad, and exactly what is said about them.

mod bad;
mod declared;
mod documents;
mod good;
mod hostile;
mod identity;
mod outbox;
mod reconcile;
mod seeds;
mod voices;
mod warned;

use super::*;

/// A route that is right, for tests about something else.
const ROUTE: &str = "routes: [{ id: a, path: /, backends: [{ url: \"http://up:3000\" }] }]\n";

fn env(name: &str) -> Option<String> {
    match name {
        "PORT" => Some("4711".to_owned()),
        "PSP_TOKEN" => Some("sk_live_hunter2".to_owned()),
        "DB" => Some("oracle://app:hunter2@db/x".to_owned()),
        "S" | "HOME" | "OO_ADMIN" | "OO_LOOK" => Some("whsec".to_owned()),
        "MAIL_SECRET" => Some("whsec_c2VjcmV0".to_owned()),
        name if name.ends_with("_SECRET") || name.ends_with("_TOKEN") => Some("t0ken".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn parsed(text: &str) -> Result<Config, Diagnostics> {
    parse("oo.yaml", text, &env, &Overrides::default())
}

fn good(text: &str) -> Config {
    parsed(text).unwrap_or_else(|diagnostics| panic!("{text}\n{diagnostics}"))
}

/// `LINE:COL: message` of every error.
fn errors(text: &str) -> Vec<String> {
    match parsed(text) {
        Ok(_) => Vec::new(),
        Err(Diagnostics(found)) => found.iter().map(brief).collect(),
    }
}

fn brief(diagnostic: &Diagnostic) -> String {
    format!(
        "{}:{}: {}",
        diagnostic.line, diagnostic.col, diagnostic.message
    )
}

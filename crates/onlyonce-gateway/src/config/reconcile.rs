//! The `reconcile` option of a route: how it is found out what became of an unknown key.
//!
//! Deliberately absent: a webhook's secret. Its variable's name stands here. The headers of a query may
//! hold a credential, and are marked so that nothing prints them.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onlyonce::reconcile::{Rule, Then, When};
use onlyonce_core::{fingerprint::Pointer, policy::ReconcilePolicy};
use serde_json::{Value as Json, json};

use super::{
    Route,
    diagnostics::{Report, quoted},
    fields::{COMPLETE, OUTCOME, QUERY, RECONCILE, WEBHOOK, WHEN},
    scalar::{self, Found, header_name, holding},
    section::Section,
    setting::View,
    traffic::trust,
    tree::{Node, Span, Value},
    view::{MASKED, masked},
};
use crate::{http_client::Endpoint, provider, tls::Trust};

/// What may stand in the URL of a query.
pub(crate) const PLACEHOLDERS: [&str; 3] = ["{key}", "{client}", "{route}"];

/// How it is found out what became of an unknown key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReconcileConfig {
    /// The question to the provider.
    pub query: Option<QueryConfig>,
    /// What its answers mean.
    pub outcomes: Vec<Rule>,
    /// What the provider tells of its own accord.
    pub webhook: Option<WebhookConfig>,
    /// Whether no two clients send the same key to this provider.
    pub provider_keys_unique: bool,
    /// What the machine needs to know.
    pub policy: ReconcilePolicy,
}

/// The question to the provider.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueryConfig {
    /// The URL with its placeholders.
    pub url: String,
    /// The same as operators may see it.
    pub shown_url: String,
    /// Whose word it is, with `https://`, that the host is the one that was meant.
    pub trust: Trust,
    /// Its headers.
    pub headers: HeaderMap,
    /// From connecting to the end of the answer.
    pub timeout: Duration,
}

/// How events are signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Standard Webhooks.
    Standard,
    /// `Stripe-Signature`.
    Stripe,
}

/// What the provider tells of its own accord.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WebhookConfig {
    /// How events are signed.
    pub scheme: Scheme,
    /// The variable that holds the secret.
    pub secret_env: String,
    /// Where the key stands in an event.
    pub key: Pointer,
    /// Where the client's id stands.
    pub client: Option<Pointer>,
    /// Where it stands when it happened; `None` is the time of the signature.
    pub at: Option<Pointer>,
    /// What events mean.
    pub outcomes: Vec<Rule>,
    /// How old, or how far in the future, a signature may be.
    pub tolerance: Duration,
}

/// What a section says about reconciliation, and where.
#[derive(Clone, Debug)]
pub(super) struct StatedReconcile {
    pub(super) config: ReconcileConfig,
    pub(super) query_at: Span,
    pub(super) webhook_at: Span,
}

/// `operator` is a promise that somebody looks, and needs nothing from the gateway: `None`.
pub(super) fn read(parent: &Section<'_>, report: &mut Report<'_>) -> Option<StatedReconcile> {
    let (node, key_at) = parent.node("reconcile")?;
    if !matches!(node.value, Value::Map(_)) {
        parent.word("reconcile", report);
        return None;
    }
    let section = Section::open(&RECONCILE, node, key_at, report);
    let query = query(&section, report);
    let webhook = webhook(&section, report);
    let outcomes = outcomes(&section, Answers::Have, report);
    if !section.says("query") && !section.says("webhook") {
        report
            .error(key_at, "`reconcile` has neither a `query` nor a `webhook`")
            .hint("say `reconcile: operator` if a person looks into unknown outcomes");
    }
    for (one, other) in [("query", "outcomes"), ("outcomes", "query")] {
        if section.says(one) && !section.says(other) {
            let at = section.place(one).unwrap_or(key_at);
            report
                .error(at, format!("`{one}` without `{other}` decides nothing"))
                .hint("`outcomes` says what the answers to `query` mean");
        }
    }
    let policy = ReconcilePolicy {
        after: section.get_or_default("after", report),
        attempts: section.get_or_default("attempts", report),
        upstream_max_execution: section.get("upstream_max_execution", report),
        negative_gap: section.get_or_default("negative_gap", report),
        asks: section.says("query"),
    };
    let releases = |rules: &[Rule]| rules.iter().any(|rule| rule.then == Then::NotExecuted);
    let by_webhook = webhook
        .as_ref()
        .is_some_and(|said| releases(&said.outcomes));
    if (releases(&outcomes) || by_webhook) && policy.upstream_max_execution.is_none() {
        let place = match releases(&outcomes) {
            true => "outcomes",
            false => "webhook",
        };
        report
            .warning(
                section.place(place).unwrap_or(key_at),
                "without `upstream_max_execution` a negative answer releases nothing: it makes a dead \
                 letter",
            )
            .hint("say how long the provider may go on after its connection is gone, for example `5m`");
    }
    Some(StatedReconcile {
        query_at: section
            .section("query", &QUERY, &mut Report::new("", ""))
            .place("url")
            .unwrap_or(key_at),
        webhook_at: section.place("webhook").unwrap_or(key_at),
        config: ReconcileConfig {
            query,
            outcomes,
            webhook,
            provider_keys_unique: section.get_or_default("provider_keys_unique", report),
            policy,
        },
    })
}

fn query(parent: &Section<'_>, report: &mut Report<'_>) -> Option<QueryConfig> {
    let (node, at) = parent.node("query")?;
    let section = Section::open(&QUERY, node, at, report);
    require(&section, &["url"], at, report);
    let headers = headers(&section, report);
    let timeout = section.get_or_default("timeout", report);
    let found = section.scalar("url", report)?;
    let trust = trust(&section, found.text.starts_with("https://"), report);
    Some(QueryConfig {
        url: url(found, report)?,
        shown_url: without_secrets(found.written),
        trust: trust.ok()?.unwrap_or_else(Trust::public),
        headers,
        timeout,
    })
}

/// A URL whose placeholders stand in its path and query alone: a key never chooses the host.
fn url(found: Found<'_>, report: &mut Report<'_>) -> Option<String> {
    let filled = PLACEHOLDERS
        .iter()
        .fold(found.text.to_owned(), |text, name| text.replace(name, "x"));
    let mistake = if filled.contains(['{', '}']) {
        Some("the placeholders of a query are `{key}`, `{client}` and `{route}`".to_owned())
    } else {
        match Endpoint::parse(&filled) {
            Err(error) => Some(format!("a query's URL: {error}")),
            Ok(_) if authority(found.text).contains('{') => {
                Some("a placeholder has no place in a query's host".to_owned())
            }
            Ok(_) if found.text.contains('#') => Some("a query's URL has no fragment".to_owned()),
            Ok(_) if !found.text.contains("{key}") => {
                Some("a query without `{key}` asks about no key".to_owned())
            }
            Ok(_) => None,
        }
    };
    match mistake {
        Some(mistake) => {
            report
                .error(found.at, mistake)
                .hint("for example `http://psp.internal/payments?client={client}&key={key}`");
            None
        }
        None => Some(found.text.to_owned()),
    }
}

/// `url` as it is written, so that a variable stays a name, without what else its query may hold.
fn without_secrets(url: &str) -> String {
    let Some((place, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((_, value)) if PLACEHOLDERS.contains(&value) => pair.to_owned(),
        Some((name, _)) => format!("{name}={MASKED}"),
        None => MASKED.to_owned(),
    });
    format!("{place}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// What stands between the scheme and the path.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

/// Headers of requests that the gateway makes; their values are marked as secret.
pub(super) fn headers(section: &Section<'_>, report: &mut Report<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some((node, at)) = section.node("headers") else {
        return headers;
    };
    let Value::Map(entries) = &node.value else {
        report
            .error(at, "`headers` must be a mapping of names to values")
            .hint("for example `{ Authorization: \"Bearer ${PSP_TOKEN}\" }`");
        return headers;
    };
    for entry in entries {
        let name = Found {
            text: &entry.key,
            written: &entry.key,
            at: entry.key_at,
        };
        let name: Option<HeaderName> = header_name(name, report);
        let what = format!("the header {}", quoted(&entry.key));
        let Some(found) = scalar::of(&entry.node, entry.key_at, &what, report) else {
            continue;
        };
        match (name, HeaderValue::from_str(found.text)) {
            (Some(name), Ok(mut value)) => {
                value.set_sensitive(true);
                headers.append(name, value);
            }
            (_, Err(_)) => {
                report.error(
                    found.at,
                    format!("{what} has a value that no header can hold"),
                );
            }
            (None, Ok(_)) => {}
        }
    }
    headers
}

fn webhook(parent: &Section<'_>, report: &mut Report<'_>) -> Option<WebhookConfig> {
    let (node, at) = parent.node("webhook")?;
    let section = Section::open(&WEBHOOK, node, at, report);
    require(&section, &["secret_env", "key", "outcomes"], at, report);
    let scheme = section.get_or_default("scheme", report);
    let outcomes = outcomes(&section, Answers::HaveNot, report);
    let said_at = section.says("at");
    if !said_at && outcomes.iter().any(|rule| rule.then == Then::NotExecuted) {
        report
            .error(at, "a webhook with `not_executed` demands `at`")
            .hint("a late word about an earlier attempt would release the current one");
    }
    let tolerance = section.get_or_default("tolerance", report);
    let (key, client) = (section.get("key", report), section.get("client", report));
    let when = section.get("at", report);
    let usable = |secret: &str| provider::is_webhook_secret(scheme, secret);
    let hint = "it is the secret that the provider shows for this webhook";
    Some(WebhookConfig {
        scheme,
        secret_env: holding(&section, "secret_env", report, usable, hint)?,
        key: key?,
        client,
        at: when,
        outcomes,
        tolerance,
    })
}

/// Whether what the rules read has a status.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Have,
    HaveNot,
}

fn outcomes(parent: &Section<'_>, answers: Answers, report: &mut Report<'_>) -> Vec<Rule> {
    let Some((node, at)) = parent.node("outcomes") else {
        return Vec::new();
    };
    let Value::List(items) = &node.value else {
        report
            .error(at, "`outcomes` must be a list")
            .hint("for example `[{ when: { status: [404] }, not_executed: true }]`");
        return Vec::new();
    };
    if items.is_empty() {
        report.error(at, "`outcomes` is empty, so that nothing is ever decided");
    }
    items
        .iter()
        .filter_map(|item| outcome(item, answers, report))
        .collect()
}

fn outcome(node: &Node, answers: Answers, report: &mut Report<'_>) -> Option<Rule> {
    let section = Section::open(&OUTCOME, node, node.at, report);
    require(&section, &["when"], node.at, report);
    let (node_of_when, at) = section.node("when")?;
    let condition = Section::open(&WHEN, node_of_when, at, report);
    let when = when(&condition, at, answers, report);
    let mut said = Vec::new();
    if section.says("complete") {
        said.push(complete(&section, report));
    }
    for (place, name, then) in [
        (&section, "not_executed", Then::NotExecuted),
        (&section, "pending", Then::Pending),
        // `pending` may also stand where the condition does.
        (&condition, "pending", Then::Pending),
    ] {
        if place.says(name) {
            let word = place.word(name, report);
            said.push(word.map(|_| then));
        }
    }
    match <[_; 1]>::try_from(said) {
        Ok([then]) => Some(Rule { when, then: then? }),
        Err(_) => {
            report
                .error(
                    node.at,
                    "an outcome says one of `complete`, `not_executed` and `pending`",
                )
                .hint("what is none of them is left out: no match is inconclusive");
            None
        }
    }
}

fn when(section: &Section<'_>, at: Span, answers: Answers, report: &mut Report<'_>) -> When {
    if answers == Answers::HaveNot
        && let Some(at) = section.place("status")
    {
        report.error(at, "an event has no status");
    }
    if section.says("in") && !section.says("pointer") {
        report
            .error(at, "`in` without `pointer`: there is no value to compare")
            .hint("for example `{ pointer: /status, in: [succeeded] }`");
    }
    let conditions = ["status", "pointer", "in", "empty", "absent"];
    if !conditions.iter().any(|name| section.says(name)) {
        report
            .error(at, "`when` is empty, and would match every answer")
            .hint("say which answers are meant, for example `{ status: [404] }`");
    }
    When {
        status: section.get("status", report).unwrap_or_default(),
        pointer: section.get("pointer", report),
        one_of: section.get("in", report).unwrap_or_default(),
        empty: section.get("empty", report),
        absent: section.get("absent", report),
    }
}

fn complete(parent: &Section<'_>, report: &mut Report<'_>) -> Option<Then> {
    let (node, at) = parent.node("complete")?;
    let section = Section::open(&COMPLETE, node, at, report);
    require(&section, &["status"], at, report);
    let body = section.get("body", report);
    let status = StatusCode::from_u16(section.get("status", report)?).ok()?;
    Some(Then::Complete { status, body })
}

/// Complains of each of `fields` that is missing.
pub(super) fn require(section: &Section<'_>, fields: &[&str], at: Span, report: &mut Report<'_>) {
    for field in fields {
        if !section.says(field) {
            report.error(at, format!("{} without `{field}`", section.name()));
        }
    }
}

/// What holds between a route's scope and the way its provider is asked.
pub(super) fn rules(stated: &StatedReconcile, per_client: bool, report: &mut Report<'_>) {
    let config = &stated.config;
    let names_client = |query: &QueryConfig| query.url.contains("{client}");
    if !per_client {
        if config.query.as_ref().is_some_and(names_client) {
            report
                .error(
                    stated.query_at,
                    "`{client}` in a query, and all clients share one scope",
                )
                .hint("leave it out, or configure `auth` and `key_scope: per_client`");
        }
        return;
    }
    if config.provider_keys_unique {
        return;
    }
    const HINT: &str = "another client's key may be meant; or say `provider_keys_unique: true` if none can be equal";
    if config
        .query
        .as_ref()
        .is_some_and(|query| !names_client(query))
    {
        report
            .error(
                stated.query_at,
                "a query without `{client}`, and each client has keys of its own",
            )
            .hint(HINT);
    }
    if config
        .webhook
        .as_ref()
        .is_some_and(|webhook| webhook.client.is_none())
    {
        report
            .error(
                stated.webhook_at,
                "a webhook without `client`, and each client has keys of its own",
            )
            .hint(HINT);
    }
}

/// How unknown outcomes of `route` are looked into, as `GET /config` shows it.
pub(super) fn view(route: &Route) -> Json {
    route
        .reconcile
        .as_deref()
        .map_or_else(|| "operator".into(), View::view)
}

impl View for ReconcileConfig {
    fn view(&self) -> Json {
        let policy = &self.policy;
        json!({
            "query": self.query.view(),
            "outcomes": self.outcomes.view(),
            "upstream_max_execution": policy.upstream_max_execution.view(),
            "negative_gap": policy.negative_gap.view(),
            "after": policy.after.view(),
            "attempts": policy.attempts,
            "webhook": self.webhook.view(),
            "provider_keys_unique": self.provider_keys_unique,
        })
    }
}

impl View for QueryConfig {
    fn view(&self) -> Json {
        json!({
            "url": self.shown_url,
            "ca_file": self.trust.path(),
            "headers": masked(&self.headers),
            "timeout": self.timeout.view(),
        })
    }
}

impl View for WebhookConfig {
    fn view(&self) -> Json {
        json!({
            "scheme": self.scheme.view(),
            "secret_env": self.secret_env,
            "key": self.key.view(),
            "client": self.client.view(),
            "at": self.at.view(),
            "outcomes": self.outcomes.view(),
            "tolerance": self.tolerance.view(),
        })
    }
}

impl View for Rule {
    fn view(&self) -> Json {
        let when = &self.when;
        let mut shown = json!({ "when": {
            "status": when.status.view(),
            "pointer": when.pointer.view(),
            "in": when.one_of,
            "empty": when.empty.view(),
            "absent": when.absent.view(),
        }});
        match &self.then {
            Then::NotExecuted => shown["not_executed"] = true.into(),
            Then::Pending => shown["pending"] = true.into(),
            Then::Complete { status, body } => {
                shown["complete"] = json!({ "status": status.view(), "body": body.view() });
            }
        }
        shown
    }
}

//! The `reconcile` option of a route: how unknown keys are resolved.
//!
//! Deliberately absent: a webhook's secret. Its variable's name is given here. The headers of a query may
//! hold a credential, and are marked as sensitive so that nothing prints them.

mod outcomes;

use std::time::Duration;

use http::HeaderMap;
use onlyonce::reconcile::{Rule, Then};
use onlyonce_core::policy::ReconcilePolicy;
use serde_json::{Value as Json, json};

use super::{
    ReconcileConfig, Route, WebhookConfig,
    diagnostics::Report,
    fields::{Field, QUERY, RECONCILE, WEBHOOK},
    scalar::{Found, check_secret},
    section::Section,
    setting::{Group, Setting, View},
    traffic::trust,
    tree::{Span, Value},
    view::MASKED,
};
use crate::{http_client::Endpoint, provider, tls::Trust};

/// The placeholders in the URL of a query.
pub(crate) const PLACEHOLDERS: [&str; 3] = ["{key}", "{client}", "{route}"];

impl ReconcileConfig {
    /// The part that the machine needs.
    pub(super) fn policy(&self) -> ReconcilePolicy {
        ReconcilePolicy {
            after: self.after,
            attempts: self.attempts,
            upstream_max_execution: self.upstream_max_execution,
            negative_gap: self.negative_gap,
            asks: self.query.is_some(),
        }
    }
}

/// The query to the provider.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueryConfig {
    /// The URL with its placeholders.
    pub url: String,
    /// The URL as operators may see it.
    pub shown_url: String,
    /// The trusted authorities for `https://`.
    pub trust: Trust,
    /// The query's headers.
    pub headers: HeaderMap,
    /// Applies to connecting, and again to the whole answer.
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

/// The `reconcile` option of a section, with positions.
#[derive(Clone, Debug)]
pub(super) struct StatedReconcile {
    pub(super) config: ReconcileConfig,
    pub(super) query_at: Span,
    pub(super) webhook_at: Span,
}

/// Reads the option. `operator` is a promise that a person decides, and needs nothing of the gateway: `None`.
pub(super) fn read(parent: &Section<'_>, report: &mut Report<'_>) -> Option<StatedReconcile> {
    let (node, key_at) = parent.node("reconcile")?;
    if !matches!(node.value, Value::Map(_)) {
        parent.word("reconcile", report);
        return None;
    }
    let section = Section::open(&RECONCILE, node, key_at, report);
    let config = ReconcileConfig::read(&section, report)?;
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
    let by_webhook = config.webhook.as_ref();
    let by_webhook = by_webhook.is_some_and(|webhook| releases(&webhook.outcomes));
    let by_query = releases(&config.outcomes);
    if (by_query || by_webhook) && config.upstream_max_execution.is_none() {
        let place = match by_query {
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
            .section("query", &QUERY, &mut Report::quiet())
            .place("url")
            .unwrap_or(key_at),
        webhook_at: section.place("webhook").unwrap_or(key_at),
        config,
    })
}

/// Whether one of `rules` may release a key.
fn releases(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.then == Then::NotExecuted)
}

impl Setting for QueryConfig {
    fn read(parent: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, at) = parent.node(field.name)?;
        let section = Section::open(&QUERY, node, at, report);
        require(&section, &["url"], at, report);
        let headers = section.get("headers", report).unwrap_or_default();
        let timeout = section.get_or_default("timeout", report);
        let found = section.scalar("url", report)?;
        let trust = trust(&section, found.text.starts_with("https://"), report);
        Some(Self {
            url: url(found, report)?,
            shown_url: without_secrets(found.written),
            trust: trust.ok()?.unwrap_or_else(Trust::public),
            headers,
            timeout,
        })
    }
}

/// A URL with placeholders in its path and query only: a key never chooses the host.
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

/// `url` as written, with variables by name, and without values in its query that may be secret.
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

/// The part between the scheme and the path.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or_default()
}

impl Setting for WebhookConfig {
    fn read(parent: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, at) = parent.node(field.name)?;
        let section = Section::open(&WEBHOOK, node, at, report);
        require(&section, &["secret_env", "key", "outcomes"], at, report);
        let outcomes: Option<Vec<Rule>> = section.get("outcomes", &mut Report::quiet());
        if !section.says("at") && outcomes.is_some_and(|rules| releases(&rules)) {
            report
                .error(at, "a webhook with `not_executed` demands `at`")
                .hint("a late word about an earlier attempt would release the current one");
        }
        let scheme = section.get_or_default("scheme", &mut Report::quiet());
        let usable = |secret: &str| provider::is_webhook_secret(scheme, secret);
        let hint = "it is the secret that the provider shows for this webhook";
        check_secret(&section, "secret_env", report, usable, hint);
        <Self as Group>::read(&section, report)
    }
}

/// Reports each of `fields` that is missing.
pub(super) fn require(section: &Section<'_>, fields: &[&str], at: Span, report: &mut Report<'_>) {
    for field in fields {
        if !section.says(field) {
            report.error(at, format!("{} without `{field}`", section.name()));
        }
    }
}

/// Checks a route's scope against the query and the webhook.
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

/// A route's `reconcile` option, as `GET /config` shows it.
pub(super) fn view(route: &Route) -> Json {
    let config = route.reconcile.as_deref();
    config.map_or_else(|| "operator".into(), View::view)
}

impl View for QueryConfig {
    fn view(&self) -> Json {
        json!({
            "url": self.shown_url,
            "ca_file": self.trust.path(),
            "headers": self.headers.view(),
            "timeout": self.timeout.view(),
        })
    }
}

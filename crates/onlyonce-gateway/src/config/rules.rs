//! Rules between fields: contradictions, and warnings about risky but allowed settings.
//!
//! Every rule checks the resulting policy, whichever line of the file, dialect or profile it came from, and
//! points at the line nearest to the cause.

use std::time::Duration;

use http::Method;
use onlyonce_core::policy::{
    Dialect, EdgeRules, KeyScope, OnInFlight, OnStoreError, Policy, Profile,
};

use super::{
    StoreConfig, diagnostics::Report, lower, options::Stated, overruled, reconcile,
    routes::WrittenRoute, store::StoreUrl, tree::Span,
};

/// With a shorter ttl, a client that retries after a pause finds its key forgotten.
const SHORT_TTL: Duration = Duration::from_secs(3_600);

/// What the rules need to know beside the route.
pub(super) struct Surroundings<'a, 'n> {
    pub(super) global: &'a Stated<'n>,
    pub(super) store: &'a StoreConfig,
    pub(super) store_at: Span,
    pub(super) has_auth: bool,
    /// The position of `upstream_reuse: true` for all routes.
    pub(super) reuse_at: Option<Span>,
}

/// A route and its resulting policy.
pub(super) struct Ruled<'a, 'n> {
    pub(super) route: &'a WrittenRoute<'n>,
    pub(super) policy: &'a Policy,
    pub(super) edge: &'a EdgeRules,
}

impl Ruled<'_, '_> {
    /// The line nearest to the cause: in the route's section, else in the section for all routes.
    fn place(&self, around: &Surroundings<'_, '_>, fields: &[&str]) -> Span {
        let route = self.route.stated.place(fields);
        route
            .or_else(|| around.global.place(fields))
            .unwrap_or(self.route.at)
    }

    /// Whether the value of each of `fields` was intended. A default in place of an invalid value contradicts
    /// nothing; but an invalid value elsewhere does not silence a rule.
    fn means(&self, around: &Surroundings<'_, '_>, fields: &[&str]) -> bool {
        let route = &self.route.stated;
        fields.iter().all(|field| {
            let fields = &[*field];
            let holds = match route.place(fields) {
                Some(_) => route,
                None => around.global,
            };
            !holds.garbles(fields)
        })
    }

    pub(super) fn name(&self) -> &str {
        self.route.fields.id.as_deref().unwrap_or("?")
    }
}

/// Contradictions within a section, whatever the routes do with it.
pub(super) fn section_contradictions(
    stated: &Stated<'_>,
    store: &StoreUrl,
    has_auth: bool,
    report: &mut Report<'_>,
) {
    if stated.options.key_scope == Some(KeyScope::PerClient)
        && !has_auth
        && let Some(at) = stated.place(&["key_scope"])
    {
        report
            .error(
                at,
                "`key_scope: per_client` without `auth`: there is no client to tell apart",
            )
            .hint("configure `auth`, or say `key_scope: global`");
    }
    if let Some(mode) = stated.mode
        && store.mode_name() != mode
        && let Some(at) = stated.place(&["mode"])
    {
        let (message, hint) = match mode {
            "local" => (
                format!("`mode: local` contradicts a {} store", store.scheme()),
                "leave `mode` out: it follows `store.url`",
            ),
            _ => (
                "`mode: distributed` needs a store that several gateways can share".to_owned(),
                "for example `redis: { address: \"host:6379\" }`, or a `store.url` of PostgreSQL",
            ),
        };
        report.error(at, message).hint(hint);
    }
}

/// Reports options without effect, because none of the routes that they are for has the option they need:
/// neither in effect nor, in the sections `heard` for them, with an invalid value.
pub(super) fn in_vain<'p>(
    stated: &Stated<'_>,
    heard: &[&Stated<'_>],
    mut policies: impl Iterator<Item = &'p Policy> + Clone,
    report: &mut Report<'_>,
) {
    let garbled = |field| heard.iter().any(|stated| stated.garbles(&[field]));
    if let Some(at) = stated.place(&["request_time_header"])
        && !garbled("max_request_age")
        && !policies
            .clone()
            .any(|policy| policy.max_request_age.is_some())
    {
        report
            .error(
                at,
                "`request_time_header` without `max_request_age` has no effect",
            )
            .hint("say how old a request may be, for example `max_request_age: 5m`");
    }
    if stated.options.burst.is_some()
        && !garbled("new_keys_per_second")
        && !policies.any(|policy| policy.new_keys.is_some())
    {
        let at = stated.place(&["limits"]).unwrap_or_default();
        report
            .error(at, "`burst` without `new_keys_per_second` has no effect")
            .hint("say how many new keys a second a client may bring");
    }
}

/// Reports `auth` on a route if there is no `auth` at the top level.
pub(super) fn auth_of_route(route: &WrittenRoute<'_>, has_auth: bool, report: &mut Report<'_>) {
    if let Some(at) = route.auth_at.filter(|_| !has_auth) {
        report
            .error(at, "a route with `auth`, and no `auth` at the top level")
            .hint("configure `auth`, or leave it out here");
    }
}

/// Contradictions of a protected route.
pub(super) fn contradictions(
    ruled: &Ruled<'_, '_>,
    around: &Surroundings<'_, '_>,
    report: &mut Report<'_>,
) {
    let policy = ruled.policy;
    if !policy.enabled {
        return;
    }
    quantities(ruled, around, report);
    if policy.header_name == policy.replayed_header {
        let name = &policy.header_name;
        report.error(
            ruled.place(around, &["replayed_header", "header_name"]),
            format!("`header_name` and `replayed_header` are both `{name}`"),
        );
    }
    if policy.on_in_flight == OnInFlight::Accept {
        let strict = match (policy.profile, policy.dialect) {
            (Profile::Payments, _) => Some("profile `payments`"),
            (_, Dialect::Stripe) => Some("dialect `stripe`"),
            _ => None,
        };
        if let Some(strict) = strict {
            let at = ruled.place(around, &["on_in_flight"]);
            report
                .error(
                    at,
                    format!("`on_in_flight: accept` is not possible in {strict}"),
                )
                .hint("its clients take a 202 for success; say `wait` or `reject`");
        }
    }
    if policy.profile == Profile::Payments {
        payments(ruled, around, report);
    }
    if let Some(stated) = lower::looked_into(ruled.route, around.global) {
        let per_client = ruled.edge.key_scope == Some(KeyScope::PerClient);
        reconcile::rules(stated, per_client, report);
    }
}

fn quantities(ruled: &Ruled<'_, '_>, around: &Surroundings<'_, '_>, report: &mut Report<'_>) {
    let policy = ruled.policy;
    let times = ["max_execution", "timeout"];
    if policy.max_execution < policy.timeout && ruled.means(around, &times) {
        let at = ruled.place(around, &times);
        let message = format!(
            "`max_execution` ({}) is shorter than `timeout` ({})",
            humantime::format_duration(policy.max_execution),
            humantime::format_duration(policy.timeout),
        );
        report
            .error(at, message)
            .hint("an execution is watched at least until its client is told");
    }
    let lengths = ["min_key_length", "max_key_length"];
    if policy.key_rules.min_length > policy.key_rules.max_length && ruled.means(around, &lengths) {
        let at = ruled.place(around, &lengths);
        let (min, max) = (policy.key_rules.min_length, policy.key_rules.max_length);
        report.error(
            at,
            format!("no key is at least {min} and at most {max} bytes long"),
        );
    }
}
fn payments(ruled: &Ruled<'_, '_>, around: &Surroundings<'_, '_>, report: &mut Report<'_>) {
    if !ruled.route.stated.says("reconcile") && !around.global.says("reconcile") {
        report
            .error(
                ruled.place(around, &["profile"]),
                "profile `payments` demands `reconcile`",
            )
            .hint("say `reconcile: operator` if a person looks into unknown outcomes");
    }
    let says = |name| ruled.route.stated.says(name) || around.global.says(name);
    let edge = ruled.edge;
    let by_header = says("credential_headers") && !edge.credential_headers.is_empty();
    let by_cookie = says("credential_cookies") && !edge.credential_cookies.is_empty();
    if !around.has_auth && !by_header && !by_cookie {
        report
            .error(
                ruled.place(around, &["credential_headers", "profile"]),
                "profile `payments` demands that callers are told apart",
            )
            .hint(
                "configure `auth`; or say where the credential stands that your API checks, for example \
                 `credential_headers: [Authorization]` or `credential_cookies: [session]`",
            );
    }
    let embedded = around.store.url.mode_name() == "local";
    if embedded && around.store.url.survives_a_restart() && !around.store.single_node {
        report
            .error(
                around.store_at,
                "profile `payments` on an embedded store, which one gateway alone can use",
            )
            .hint(
                "say `store: { single_node: true }` if this is the only gateway, or take a store that \
                 gateways share, for example `postgres://…`",
            );
    }
    if !around.store.url.survives_a_restart() {
        report
            .error(
                around.store_at,
                "profile `payments` demands a store that survives a crash",
            )
            .hint("for example `sqlite:onlyonce.db`");
    }
}

/// Warns of risky but allowed settings.
pub(super) fn warnings(
    routes: &[Ruled<'_, '_>],
    around: &Surroundings<'_, '_>,
    routes_at: Span,
    report: &mut Report<'_>,
) {
    let protected: Vec<_> = routes.iter().filter(|ruled| ruled.policy.enabled).collect();
    if protected.is_empty() {
        report
            .warning(
                routes_at,
                "no route is protected: every request passes through unrecorded",
            )
            .hint("say `enabled: true` under `idempotency`");
    }
    if !around.has_auth
        && let Some(shared) = protected
            .iter()
            .find(|r| r.edge.key_scope != Some(KeyScope::PerClient))
    {
        report
            .warning(
                shared.place(around, &["key_scope"]),
                "without `auth` all clients share one namespace of keys",
            )
            .hint("callers are told apart by `credential_headers` and `credential_cookies` alone");
        if shared.edge.credential_cookies.is_empty() {
            report
                .warning(
                    shared.place(around, &["credential_cookies"]),
                    "callers that differ in their cookies alone are not told apart",
                )
                .hint(
                    "name the cookie of your sessions, for example `credential_cookies: [session]`",
                );
        }
    }
    if let Some(boundless) = protected
        .iter()
        .find(|ruled| ruled.policy.new_keys.is_none() && !ruled.policy.shadow)
    {
        report
            .warning(
                boundless.place(around, &["limits"]),
                format!(
                    "route `{}` takes any number of new keys from one client",
                    boundless.name()
                ),
            )
            .hint(
                "for example `limits: { new_keys_per_second: 1000 }`; with `auth`, profile `safe` has limits",
            );
    }
    for ruled in routes.iter().filter(|ruled| !ruled.policy.enabled) {
        if let Some(at) = ruled.route.stated.idle() {
            report
                .warning(
                    at,
                    format!(
                        "route `{}` has options for keys but ignores keys",
                        ruled.name()
                    ),
                )
                .hint("say `enabled: true`, here or for all routes");
        }
    }
    for ruled in protected {
        route_warnings(ruled, around, report);
    }
}

fn route_warnings(ruled: &Ruled<'_, '_>, around: &Surroundings<'_, '_>, report: &mut Report<'_>) {
    let (policy, name) = (ruled.policy, ruled.name());
    let takes = |method: &Method| {
        ruled
            .route
            .fields
            .methods
            .as_ref()
            .is_none_or(|methods| methods.contains(method))
    };
    if !policy.methods.iter().any(takes) {
        report.warning(
            ruled.place(around, &["methods"]),
            format!("route `{name}` takes none of the methods on which keys are honoured"),
        );
    }
    if takes(&Method::POST) && policy.honours(&Method::POST) && !policy.demands_key(&Method::POST) {
        report
            .warning(
                ruled.place(around, &["enforce"]),
                format!("route `{name}` lets POST requests without a key pass unprotected"),
            )
            .hint("say `enforce: true` once every client sends a key");
    }
    let says_5xx = policy.profile == Profile::Payments || policy.dialect == Dialect::Stripe;
    let said = |stated: &Stated<'_>| stated.options.on_5xx.is_some();
    if !(says_5xx || said(&ruled.route.stated) || said(around.global)) {
        report
            .warning(
                ruled.route.at,
                format!(
                    "route `{name}` does not say `on_5xx`: a request that was answered with 500 or 503 is \
                     executed again"
                ),
            )
            .hint(
                "say `on_5xx: retry` if the API undoes what it could not finish, else `on_5xx: unknown`",
            );
    }
    overruled::warn(ruled, around, report);
    if policy.shadow {
        report
            .warning(
                ruled.place(around, &["shadow"]),
                format!(
                    "route `{name}` is in shadow mode: keys are observed and nothing is protected"
                ),
            )
            .hint("say `shadow: false` once you have seen enough");
    }
    if policy.ttl < SHORT_TTL {
        report.warning(
            ruled.place(around, &["ttl"]),
            format!(
                "route `{name}` forgets answers after {}",
                humantime::format_duration(policy.ttl)
            ),
        );
    }
    if policy.hide_card_numbers && around.store.encryption_key_env.is_none() {
        report
            .warning(
                ruled.place(around, &["profile"]),
                format!(
                    "route `{name}` has profile `payments`, and answers are stored as they are"
                ),
            )
            .hint(
                "`store.encryption_key_env` encrypts keys and answers; see docs/guide/at-rest.md",
            );
    }
    // Beside an SQLite file, its lock file reveals a loss, unless both are lost.
    let is_elsewhere = around.store.url.mode_name() == "distributed";
    if policy.demands_sync() && is_elsewhere && around.store.spool_dir.is_none() {
        report
            .warning(
                ruled.place(around, &["profile"]),
                format!(
                    "route `{name}` has profile `payments`, and a store that loses keys while the gateway is \
                     stopped is not recognised"
                ),
            )
            .hint("`store.spool_dir` keeps what is known of the store on another disk");
    }
    if policy.on_store_error == OnStoreError::Bypass {
        report.warning(
            ruled.place(around, &["on_store_error", "profile", "dialect"]),
            format!("route `{name}` lets requests through unprotected while the store is down"),
        );
    }
}

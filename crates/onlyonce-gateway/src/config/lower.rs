//! From the tree to a [`Config`]: the top level and its smaller sections.

use std::{net::SocketAddr, time::Duration};

use onlyonce_core::policy::{EdgeRules, KeyScope, Policy};

use super::{
    Config, Route,
    diagnostics::{Diagnostics, Report},
    fields::{ADMIN, IDEMPOTENCY, LIMITS, TOP},
    options::Stated,
    outbox, overruled,
    reconcile::StatedReconcile,
    routes::{self, RouteAuth, WrittenRoute},
    rules::{self, Ruled, Surroundings},
    section::Section,
    setting::Group,
    store,
    tree::{Node, Span},
};

/// The configuration in `root`, or everything that is wrong with it. A `worker` needs no routes.
pub(super) fn lower(
    root: Option<Node>,
    worker: bool,
    mut report: Report<'_>,
) -> Result<Config, Diagnostics> {
    let config = root.and_then(|root| config(&root, worker, &mut report));
    let failed = report.has_errors();
    let found = report.into_found();
    match config {
        Some(config) if !failed => Ok(Config {
            warnings: found,
            ..config
        }),
        _ => Err(Diagnostics(found)),
    }
}

fn config(root: &Node, worker: bool, report: &mut Report<'_>) -> Option<Config> {
    let top = Section::open(&TOP, root, root.at, report);
    let mut config = Config::read(&top, report)?;
    config.admin.is_said = top.says("admin");
    distinct_listeners(&top, config.listen, config.admin.listen, report);
    let store_at = store::complete(&top, &mut config.store, report);
    outbox::rules(&top, &config, report);
    let limits = top.section("limits", &LIMITS, report);
    config.held_bytes = limits.get_or_default("held_bytes", report);
    let for_all = ForAll {
        upstream_idle: top.get_or_default("upstream_idle", report),
        upstream_reuse: top.get_or_default("upstream_reuse", report),
        connect_timeout: top.get_or_default("connect_timeout", report),
        first_byte_timeout: top.get("first_byte_timeout", report),
        mode_name: config.store.url.mode_name(),
    };

    let routes_at = top.node("routes").map_or(top.at, |(_, key_at)| key_at);
    let mut global = Stated::read(top.section("idempotency", &IDEMPOTENCY, report), report);
    global.lift(top, &["limits", "path_readings"], report);
    let written = match worker && !top.says("routes") {
        true => Vec::new(),
        false => routes::read(&top, report),
    };
    let policies: Vec<Policy> = written
        .iter()
        .map(|route| {
            let mut policy = Policy::resolve(&route.stated.options, &global.options);
            if top.says("auth") {
                // With `auth`, every request with a key is authenticated, on every route.
                policy = policy.for_authenticated(&route.stated.options, &global.options);
            }
            policy.reconcile = looked_into(route, &global).map(|stated| stated.config.policy());
            policy
        })
        .collect();
    let edges: Vec<EdgeRules> = written
        .iter()
        .map(|route| {
            let mut edge = EdgeRules::resolve(&route.stated.options, &global.options);
            if top.says("auth") {
                edge.key_scope = edge.key_scope.or(Some(KeyScope::PerClient));
            }
            edge
        })
        .collect();
    let around = Surroundings {
        global: &global,
        store: &config.store,
        store_at,
        has_auth: top.says("auth"),
        reuse_at: top
            .place("upstream_reuse")
            .filter(|_| for_all.upstream_reuse),
    };
    if !written.is_empty() {
        rule(&written, (&policies, &edges), &around, routes_at, report);
    }

    let routes = written
        .into_iter()
        .zip(policies.into_iter().zip(edges))
        .map(|(written, rules)| route(written, rules, &global, &for_all));
    config.routes = routes.collect::<Option<_>>()?;
    config.elsewhere = Policy::resolve(&global.options, &global.options);
    Some(config)
}

/// How a route's unknown outcomes are reconciled: its own option, or the one for all routes.
pub(super) fn looked_into<'a>(
    route: &'a WrittenRoute<'_>,
    global: &'a Stated<'_>,
) -> Option<&'a StatedReconcile> {
    match route.stated.says("reconcile") {
        true => route.stated.reconcile.as_ref(),
        false => global.reconcile.as_ref(),
    }
}

/// The defaults for all routes.
struct ForAll {
    upstream_idle: Duration,
    upstream_reuse: bool,
    connect_timeout: Duration,
    first_byte_timeout: Option<Duration>,
    mode_name: &'static str,
}

/// A route with its policy.
fn route(
    written: WrittenRoute<'_>,
    (policy, edge): (Policy, EdgeRules),
    global: &Stated<'_>,
    for_all: &ForAll,
) -> Option<Route> {
    // A profile is stricter than an option for all routes.
    let by_profile = overruled::reuse_by_profile(policy.profile);
    let reconcile = looked_into(&written, global).map(|stated| stated.config.clone().into());
    let said = written.fields;
    Some(Route {
        reconcile,
        id: said.id?,
        path: said.path?,
        methods: said.methods,
        backends: written.backends,
        timeout: policy.timeout,
        upstream_idle: said.upstream_idle.unwrap_or(for_all.upstream_idle),
        upstream_reuse: said
            .upstream_reuse
            .or(by_profile)
            .unwrap_or(for_all.upstream_reuse),
        connect_timeout: said.connect_timeout.unwrap_or(for_all.connect_timeout),
        first_byte_timeout: said.first_byte_timeout.or(for_all.first_byte_timeout),
        auth_optional: said.auth == RouteAuth::Optional,
        cors: said.cors,
        policy,
        edge,
        mode_name: for_all.mode_name,
    })
}

fn rule(
    written: &[WrittenRoute<'_>],
    (policies, edges): (&[Policy], &[EdgeRules]),
    around: &Surroundings<'_, '_>,
    routes_at: Span,
    report: &mut Report<'_>,
) {
    let ruled: Vec<_> = written
        .iter()
        .zip(policies.iter().zip(edges))
        .map(|(route, (policy, edge))| Ruled {
            route,
            policy,
            edge,
        })
        .collect();
    rules::section_contradictions(around.global, &around.store.url, around.has_auth, report);
    let routes = written.iter().map(|route| &route.stated);
    let heard: Vec<&Stated<'_>> = routes.chain([around.global]).collect();
    rules::in_vain(around.global, &heard, policies.iter(), report);
    for one in &ruled {
        let stated = &one.route.stated;
        let heard = [stated, around.global];
        rules::in_vain(stated, &heard, [one.policy].into_iter(), report);
        rules::auth_of_route(one.route, around.has_auth, report);
        rules::section_contradictions(
            &one.route.stated,
            &around.store.url,
            around.has_auth,
            report,
        );
        rules::contradictions(one, around, report);
    }
    // In a refused file, a warning may be caused by a mistake.
    if !report.has_errors() {
        rules::warnings(&ruled, around, routes_at, report);
    }
}

fn distinct_listeners(
    top: &Section<'_>,
    data: SocketAddr,
    admin: SocketAddr,
    report: &mut Report<'_>,
) {
    // Port 0 is a different port each time.
    if admin == data && admin.port() != 0 {
        let section = top.section("admin", &ADMIN, &mut Report::quiet());
        let at = section
            .place("listen")
            .or(top.place("listen"))
            .unwrap_or(top.at);
        report
            .error(at, format!("`listen` and `admin.listen` are both {admin}"))
            .hint("the admin API has a listener of its own");
    }
}

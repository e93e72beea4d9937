//! From the tree to a [`Config`]: the top level and its smaller sections.

use std::{net::SocketAddr, ops::RangeInclusive, time::Duration};

use onlyonce::worker;
use onlyonce_core::policy::{KeyScope, Policy, Profile};
use onlyonce_store::{
    at_rest::{Compression, Keyring},
    identity::IDENTITY_BYTES,
    postgres::Pooler,
};

use super::{
    AdminConfig, Config, DEFAULT_ADMIN_LISTEN, DEFAULT_BODY_TIMEOUT, DEFAULT_CONNECT_TIMEOUT,
    DEFAULT_DRAIN_TIMEOUT, DEFAULT_HEADER_TIMEOUT, DEFAULT_HELD_BYTES, DEFAULT_LISTEN,
    DEFAULT_MAX_CONNECTIONS, DEFAULT_MAX_HEADER_BYTES, DEFAULT_SEND_TIMEOUT, DEFAULT_STORE_FILE,
    DEFAULT_STORE_TIMEOUT, DEFAULT_TOKEN_ENV, DEFAULT_TUNNEL_IDLE, DEFAULT_UPSTREAM_IDLE, Route,
    StoreConfig, Workers, auth,
    diagnostics::{Diagnostics, Report, quoted},
    fields::{ADMIN, IDEMPOTENCY, LIMITS, REDIS, STORE, TOP, WORKERS},
    interpolate,
    options::{ANY, SOME, Stated},
    outbox,
    reconcile::StatedReconcile,
    routes::{self, WrittenRoute},
    rules::{self, Ruled, Surroundings},
    section::Section,
    store::StoreUrl,
    traffic,
    tree::{Node, Span},
};

/// What may stand between the gateway and PostgreSQL.
const COMPRESSIONS: [(&str, Compression); 3] = [
    ("none", Compression::None),
    ("zstd", Compression::Zstd),
    ("dictionary", Compression::Dictionary),
];
const POOLERS: [(&str, Pooler); 2] = [("none", Pooler::None), ("transaction", Pooler::Transaction)];
/// Connections at once: at least one, and no more than a process can have open files.
const CONNECTIONS: RangeInclusive<usize> = 1..=1_000_000;
/// The largest head of a request, in bytes: below this browsers fail, above it nobody needs it.
const HEADER_BYTES: RangeInclusive<usize> = (8 << 10)..=(1 << 20);
/// Bytes that are held for clients: fewer would refuse the bodies that are allowed.
const HELD_BYTES: RangeInclusive<usize> = (1 << 20)..=(1 << 40);
/// A worker that runs more often than this does nothing else.
const WORKER_INTERVAL: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(86_400);

/// The configuration that `root` describes, or all that is wrong with it.
/// A `worker` needs no routes.
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
    let listen = top.address("listen", report).unwrap_or(DEFAULT_LISTEN);
    let tls = traffic::tls(&top, report);
    let admin = admin(&top, listen, report);
    let (store, store_at) = store(&top, report);
    let auth = auth::read(&top, report);
    let workers = workers(&top, report);
    let outbox = outbox::read(&top, &store.url, report);
    let drain_timeout = top
        .duration("drain_timeout", ANY, report)
        .unwrap_or(DEFAULT_DRAIN_TIMEOUT);
    let mut client = |field: &str, default| top.duration(field, SOME, report).unwrap_or(default);
    let header_timeout = client("header_timeout", DEFAULT_HEADER_TIMEOUT);
    let body_timeout = client("body_timeout", DEFAULT_BODY_TIMEOUT);
    let send_timeout = client("send_timeout", DEFAULT_SEND_TIMEOUT);
    let tunnel_idle = client("tunnel_idle", DEFAULT_TUNNEL_IDLE);
    let allow_scope_change = top.boolean("allow_scope_change", report).unwrap_or(false);
    let upstream_idle = top.duration("upstream_idle", ANY, report);
    let upstream_reuse = top.boolean("upstream_reuse", report);
    let connect_timeout = top.duration("connect_timeout", SOME, report);
    let first_byte_timeout = top.duration("first_byte_timeout", SOME, report);

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
                // Whoever sends a key is authenticated then, on every route.
                policy = policy.for_authenticated(&route.stated.options, &global.options);
                policy.key_scope = policy.key_scope.or(Some(KeyScope::PerClient));
            }
            policy.reconcile =
                looked_into(route, &global).map(|stated| stated.config.policy.clone());
            policy
        })
        .collect();
    let around = Surroundings {
        global: &global,
        store: &store,
        store_at,
        has_auth: top.says("auth"),
        reuse_at: top
            .place("upstream_reuse")
            .filter(|_| upstream_reuse == Some(true)),
    };
    if !written.is_empty() {
        rule(&written, &policies, &around, routes_at, report);
    }

    let mode_name = store.url.mode_name();
    let said = SaidForAll {
        upstream_idle,
        upstream_reuse,
        connect_timeout,
        first_byte_timeout,
    };
    let routes = written
        .into_iter()
        .zip(policies)
        .map(|(written, policy)| route(written, policy, &global, said, mode_name));
    Some(Config {
        listen,
        tls,
        admin,
        store,
        auth,
        elsewhere: Policy::resolve(&global.options, &global.options),
        workers,
        outbox,
        routes: routes.collect::<Option<_>>()?,
        drain_timeout,
        header_timeout,
        body_timeout,
        send_timeout,
        tunnel_idle,
        max_connections: top
            .number("max_connections", CONNECTIONS, report)
            .unwrap_or(DEFAULT_MAX_CONNECTIONS),
        max_header_bytes: max_header_bytes(&top, report),
        held_bytes: held_bytes(&top, report),
        forwarded: traffic::forwarded(&top, report),
        request_id: top.boolean("request_id", report).unwrap_or(true),
        allow_scope_change,
        warnings: Vec::new(),
    })
}

/// How unknown outcomes of a route are looked into: as it says itself, or as all of them are.
pub(super) fn looked_into<'a>(
    route: &'a WrittenRoute<'_>,
    global: &'a Stated<'_>,
) -> Option<&'a StatedReconcile> {
    match route.stated.says("reconcile") {
        true => route.stated.reconcile.as_ref(),
        false => global.reconcile.as_ref(),
    }
}

/// What the top level says about every route's backends.
#[derive(Clone, Copy)]
struct SaidForAll {
    upstream_idle: Option<Duration>,
    upstream_reuse: Option<bool>,
    connect_timeout: Option<Duration>,
    first_byte_timeout: Option<Duration>,
}

/// A route with what holds for it.
fn route(
    written: WrittenRoute<'_>,
    policy: Policy,
    global: &Stated<'_>,
    said: SaidForAll,
    mode_name: &'static str,
) -> Option<Route> {
    // A profile is stricter than what is said for all.
    let by_profile = (policy.profile == Profile::Payments).then_some(false);
    let reconcile = looked_into(&written, global).map(|stated| stated.config.clone().into());
    Some(Route {
        reconcile,
        id: written.id?,
        path: written.path?,
        methods: written.methods,
        backends: written.backends,
        timeout: policy.timeout,
        upstream_idle: written
            .upstream_idle
            .or(said.upstream_idle)
            .unwrap_or(DEFAULT_UPSTREAM_IDLE),
        upstream_reuse: written
            .upstream_reuse
            .or(by_profile)
            .or(said.upstream_reuse)
            .unwrap_or(true),
        connect_timeout: written
            .connect_timeout
            .or(said.connect_timeout)
            .unwrap_or(DEFAULT_CONNECT_TIMEOUT),
        first_byte_timeout: written.first_byte_timeout.or(said.first_byte_timeout),
        auth_optional: written.auth_optional,
        cors: written.cors,
        policy,
        mode_name,
    })
}

/// `limits.held_bytes`.
fn held_bytes(top: &Section<'_>, report: &mut Report<'_>) -> usize {
    let section = top.section("limits", &LIMITS, report);
    let said = section.size("held_bytes", report);
    let Some(size) = said.and_then(|size| usize::try_from(size).ok()) else {
        return DEFAULT_HELD_BYTES;
    };
    if !HELD_BYTES.contains(&size) {
        let at = section.place("held_bytes").unwrap_or(section.at);
        report.error(at, "`held_bytes` is from 1MiB to 1TiB");
    }
    size
}

fn max_header_bytes(top: &Section<'_>, report: &mut Report<'_>) -> usize {
    let field = "max_header_size";
    let said = top.size(field, report);
    let Some(size) = said.and_then(|size| usize::try_from(size).ok()) else {
        return DEFAULT_MAX_HEADER_BYTES;
    };
    if !HEADER_BYTES.contains(&size) {
        let at = top.place(field).unwrap_or(top.at);
        report.error(at, format!("`{field}` is from 8KiB to 1MiB"));
    }
    size
}

fn rule(
    written: &[WrittenRoute<'_>],
    policies: &[Policy],
    around: &Surroundings<'_, '_>,
    routes_at: Span,
    report: &mut Report<'_>,
) {
    let ruled: Vec<_> = written
        .iter()
        .zip(policies)
        .map(|(route, policy)| Ruled { route, policy })
        .collect();
    rules::section_contradictions(around.global, &around.store.url, around.has_auth, report);
    rules::in_vain(around.global, policies.iter(), report);
    for one in &ruled {
        rules::in_vain(&one.route.stated, [one.policy].into_iter(), report);
        rules::auth_of_route(one.route, around.has_auth, report);
        rules::section_contradictions(
            &one.route.stated,
            &around.store.url,
            around.has_auth,
            report,
        );
        rules::contradictions(one, around, report);
    }
    // A warning about a file that is refused anyway may be about a mistake in it.
    if !report.has_errors() {
        rules::warnings(&ruled, around, routes_at, report);
    }
}

fn admin(top: &Section<'_>, data: SocketAddr, report: &mut Report<'_>) -> AdminConfig {
    let section = top.section("admin", &ADMIN, report);
    let listen = section
        .address("listen", report)
        .unwrap_or(DEFAULT_ADMIN_LISTEN);
    // Port 0 is a different port each time.
    if listen == data && listen.port() != 0 {
        let at = section
            .place("listen")
            .or(top.place("listen"))
            .unwrap_or(top.at);
        report
            .error(at, format!("`listen` and `admin.listen` are both {listen}"))
            .hint("the admin API has a listener of its own");
    }
    AdminConfig {
        is_said: top.says("admin"),
        listen,
        token_env: env_name(&section, "token_env", report)
            .unwrap_or_else(|| DEFAULT_TOKEN_ENV.to_owned()),
        readonly_token_env: env_name(&section, "readonly_token_env", report),
        public_metrics: section.boolean("public_metrics", report).unwrap_or(false),
        mask_keys: section.boolean("mask_keys", report).unwrap_or(false),
        audit_retention: section
            .duration("audit_retention", SOME, report)
            .unwrap_or(worker::DEFAULT_KEEP_AUDIT),
    }
}

/// The name of an environment variable, which must hold something: without it the gateway would not start,
/// or nobody would get in.
pub(super) fn env_name(
    section: &Section<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    let name = variable(section, field, report)?;
    if let Some(at) = section.place(field)
        && report.is_unset(&name)
    {
        report
            .error(
                at,
                format!("`{field}`: the environment variable {name} is not set or empty"),
            )
            .hint("set it; `check --no-env` is for machines that have no secrets");
    }
    Some(name)
}

/// The same, where what it holds must be `usable`; the hint says what is. The value is never said.
pub(super) fn env_holding(
    section: &Section<'_>,
    field: &str,
    report: &mut Report<'_>,
    usable: impl Fn(&str) -> bool,
    hint: &str,
) -> Option<String> {
    let name = env_name(section, field, report)?;
    if let (Some(at), Some(value)) = (section.place(field), report.value(&name))
        && !usable(&value)
    {
        let what = format!("`{field}`: {name} holds no usable secret");
        report.error(at, what).hint(hint);
    }
    Some(name)
}

/// The name of an environment variable, whose value is not looked at here.
pub(super) fn variable(
    section: &Section<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    let found = section.scalar(field, report)?;
    if !interpolate::is_name(found.text) {
        // Somebody who puts the token itself here must not find it in a log.
        report
            .error(
                found.at,
                format!("`{field}` is the name of an environment variable"),
            )
            .hint(format!("for example `{DEFAULT_TOKEN_ENV}`"));
        return None;
    }
    Some(found.text.to_owned())
}

/// The identity that the store must have: 32 hexadecimal digits, in any case.
fn store_identity(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let found = section.scalar("identity", report)?;
    let digits = found.text.to_ascii_lowercase();
    if digits.len() == 2 * IDENTITY_BYTES && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Some(digits);
    }
    report
        .error(found.at, "`identity` is 32 hexadecimal digits")
        .hint("`onlyonce migrate --store URL` and the start-up line print it");
    None
}

/// The variable with the keys, which must hold some: a gateway that cannot read its records is better
/// not started. What it holds is never said.
fn encryption(section: &Section<'_>, report: &mut Report<'_>) -> Option<String> {
    let at = section.place("encryption_key_env")?;
    let name = variable(section, "encryption_key_env", report)?;
    if !report.looks_at_env() {
        return Some(name);
    }
    let form = "it holds ID:BASE64[,ID:BASE64…], each key 32 bytes: `openssl rand -base64 32`";
    match std::env::var(&name) {
        Err(_) => {
            let what = format!("`encryption_key_env`: {name} is not set");
            report.error(at, what).hint(form);
        }
        Ok(text) => {
            if let Err(error) = Keyring::parse(&text) {
                let what = format!("`encryption_key_env`: {name}: {error}");
                report.error(at, what).hint(form);
            }
        }
    }
    Some(name)
}

/// The store, and where its URL stands.
fn store(top: &Section<'_>, report: &mut Report<'_>) -> (StoreConfig, Span) {
    let section = top.section("store", &STORE, report);
    let url = section
        .scalar("url", report)
        .and_then(|found| match StoreUrl::parse(found.text) {
            Ok(url) => Some(url),
            Err(error) => {
                let message = format!("{error}: {}", quoted(found.written));
                report.error(found.at, message).hint(error.hint());
                None
            }
        });
    let url = match redis_address(top, &section, report) {
        Some(address) => Some(address),
        None => url,
    };
    let mut config = StoreConfig {
        url: url.unwrap_or_else(|| StoreUrl::Sqlite(DEFAULT_STORE_FILE.into())),
        timeout: section
            .duration("timeout", SOME, report)
            .unwrap_or(DEFAULT_STORE_TIMEOUT),
        migrate: section.boolean("migrate", report).unwrap_or(true),
        create: section.boolean("create", report).unwrap_or(false),
        single_node: section.boolean("single_node", report).unwrap_or(false),
        encryption_key_env: encryption(&section, report),
        compression: Compression::None,
        plain_settle: section.boolean("plain_settle", report).unwrap_or(false),
        pooler: section
            .word("pooler", &POOLERS, report)
            .unwrap_or(Pooler::None),
        cache: redis_url(&section, "cache", report),
        allow_eviction: section.boolean("allow_eviction", report).unwrap_or(false),
        identity: store_identity(&section, report),
        spool_dir: section
            .scalar("spool_dir", report)
            .map(|found| found.text.into()),
    };
    let compression = section.word("compression", &COMPRESSIONS, report);
    config.compression = compression.unwrap_or(match config.url {
        StoreUrl::Memory => Compression::None,
        _ => Compression::default(),
    });
    if let Some(at) = section.place("plain_settle")
        && config.encryption_key_env.is_none()
    {
        let what = "`plain_settle` says something only with `encryption_key_env`";
        report.error(at, what);
    }
    if let Some(at) = section.place("spool_dir")
        && config.url.mode_name() == "local"
    {
        report
            .error(
                at,
                "`spool_dir` needs a store that several gateways can share",
            )
            .hint("an embedded store is on this machine's disk already");
    }
    if let Some(at) = section.place("pooler")
        && !matches!(config.url, StoreUrl::Postgres(_))
    {
        let kind = config.url.scheme();
        report.error(at, format!("`pooler` has no meaning for a {kind} store"));
    }
    if let Some(at) = section.place("allow_eviction")
        && !matches!(config.url, StoreUrl::Redis(_))
    {
        let kind = config.url.scheme();
        report.error(
            at,
            format!("`allow_eviction` has no meaning for a {kind} store"),
        );
    }
    if let Some(at) = section.place("cache")
        && matches!(config.url, StoreUrl::Memory | StoreUrl::Redis(_))
    {
        let kind = config.url.scheme();
        report
            .error(
                at,
                format!("`cache` stands in front of SQL, not of a {kind} store"),
            )
            .hint("leave it out, or keep the records in PostgreSQL");
    }
    let places = [section.place("url"), top.place("redis")];
    let place = places.into_iter().flatten().next();
    (config, place.unwrap_or(section.at))
}

/// The store that `redis.address` names, where `store.url` names none.
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
    redis_url(&section, "address", report)
}

/// The address of a Redis server in `field`.
fn redis_url(section: &Section<'_>, field: &str, report: &mut Report<'_>) -> Option<StoreUrl> {
    let found = section.scalar(field, report)?;
    match StoreUrl::parse_redis(found.text) {
        Ok(url) => Some(url),
        Err(error) => {
            let message = format!("{error}: {}", quoted(found.written));
            report.error(found.at, message).hint(error.hint());
            None
        }
    }
}

fn workers(top: &Section<'_>, report: &mut Report<'_>) -> Workers {
    let section = top.section("workers", &WORKERS, report);
    let defaults = Workers::default();
    let mut every = |field: &str, default: Duration| {
        section
            .duration(field, WORKER_INTERVAL, report)
            .unwrap_or(default)
    };
    Workers {
        sweep_every: every("sweep_every", defaults.sweep_every),
        reap_every: every("reap_every", defaults.reap_every),
        reconcile_every: every("reconcile_every", defaults.reconcile_every),
        deliver_every: every("deliver_every", defaults.deliver_every),
    }
}

//! The gateway's configuration: a YAML file, validated when it is read.
//!
//! Every field is declared once, in `fields/`. Text becomes a tree with positions (`tree.rs`), the tree is
//! read section by section as the fields are declared (`section.rs`, `setting.rs`), options become policies
//! (`lower.rs`), and policies are checked against each other (`rules.rs`). Every stage continues after a
//! mistake, so that one run of `onlyonce check` shows all of them.
//!
//! Deliberately absent: secrets. A configuration contains the names of the variables that hold them.

mod auth;
mod backend;
pub(crate) mod change;
mod check;
mod cors;
mod diagnostics;
mod fields;
mod headers;
mod interpolate;
mod lower;
mod network;
mod options;
mod outbox;
mod overruled;
mod reconcile;
mod routes;
mod rules;
mod scalar;
pub(crate) mod schema;
mod section;
mod setting;
mod store;
mod traffic;
mod tree;
pub(crate) mod units;
pub(crate) mod view;
mod words;

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Method;
use onlyonce_core::policy::{EdgeRules, Policy};

#[cfg(test)]
pub(crate) use auth::ApiKey;
pub(crate) use auth::{JwtConfig, JwtKeys, is_client_id};
pub(crate) use backend::Backend;
pub use check::check;
pub(crate) use cors::Origins;
pub(crate) use diagnostics::Diagnostic;
pub use diagnostics::Diagnostics;
pub(crate) use fields::{
    AuthConfig, CorsConfig, ExternalConfig, Forwarded, OutboxConfig, ReconcileConfig,
};
pub use fields::{Config, StoreConfig};
pub(crate) use fields::{TrustedHeader, WebhookConfig};
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "kafka"))]
pub(crate) use outbox::Broker;
pub(crate) use outbox::{BrokerConfig, HttpConfig, TargetConfig, WayConfig};
pub(crate) use reconcile::{QueryConfig, Scheme};
pub use schema::schema;
pub use store::{StoreUrl, StoreUrlError};
pub(crate) use traffic::{ForwardedHeaders, TlsConfig};
pub use tree::yaml;
pub use units::{UnitError, duration};
pub use view::view;

use diagnostics::Report;
use tree::{Node, Span, Value};

/// The default name of the variable that holds the admin token.
pub const DEFAULT_TOKEN_ENV: &str = "ONLYONCE_ADMIN_TOKEN";
/// The variable that holds the store's encryption keys if there is no configuration file.
pub const DEFAULT_ENCRYPTION_KEY_ENV: &str = "ONLYONCE_ENCRYPTION_KEYS";

/// Which requests a route takes, the rules for them, and where they go.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The route's name in metrics, scopes and the admin API.
    pub id: String,
    /// The prefix of the paths that the route takes.
    pub path: String,
    /// The methods that the route takes; `None` is all.
    pub methods: Option<Vec<Method>>,
    /// Where the route's requests go. Never empty.
    pub(crate) backends: Vec<Backend>,
    /// From dispatch to the end of the answer, for the client; the same as the policy's.
    pub(crate) timeout: Duration,
    /// A pooled connection that idled longer is not used for a new key.
    pub(crate) upstream_idle: Duration,
    /// Whether a request with a key may share an HTTP/1.1 connection with others.
    pub(crate) upstream_reuse: bool,
    /// How long connecting to a backend may take.
    pub(crate) connect_timeout: Duration,
    /// How long the first byte of an answer may take; the default is `timeout`.
    pub(crate) first_byte_timeout: Option<Duration>,
    /// Whether requests without a key need no credential.
    pub(crate) auth_optional: bool,
    /// Which pages may read the gateway's own answers; `None` for none.
    pub(crate) cors: Option<CorsConfig>,
    /// Everything about keys.
    pub policy: Policy,
    /// How the route's paths are read and its callers distinguished.
    pub(crate) edge: EdgeRules,
    /// How the route's unknown keys are reconciled; `None` leaves them to people.
    pub(crate) reconcile: Option<Arc<ReconcileConfig>>,
    /// `local` or `distributed`, as shown by the admin API.
    pub(crate) mode_name: &'static str,
}

impl Route {
    /// Whether the route takes this method, in any letter case.
    pub(crate) fn takes_method(&self, method: &str) -> bool {
        let is = |one: &Method| one.as_str().eq_ignore_ascii_case(method);
        let methods = self.methods.as_ref();
        methods.is_none_or(|methods| methods.iter().any(is))
    }

    fn leads_to(&self, path: &str) -> bool {
        path.strip_prefix(self.path.as_str()).is_some_and(|rest| {
            rest.is_empty() || self.path.ends_with('/') || rest.starts_with('/')
        })
    }
}

impl Config {
    /// The index of the route that takes a request: of those whose path is a prefix of `path`, by
    /// whole segments, and that take `method`, the one with the longest path. OPTIONS asks about the
    /// methods of a path, so it goes wherever any of them does.
    pub(crate) fn route_match(&self, method: &Method, path: &str) -> Option<usize> {
        self.route_match_named(method.as_str(), path)
    }

    /// The same for the name of a method, in any letter case.
    pub(crate) fn route_match_named(&self, method: &str, path: &str) -> Option<usize> {
        let longest = |takes: &dyn Fn(&Route) -> bool| {
            let routes = self.routes.iter().enumerate();
            let taking = routes.filter(|(_, route)| takes(route));
            let longest = taking.max_by_key(|(_, route)| route.path.len());
            longest.map(|(index, _)| index)
        };
        let asks = method.eq_ignore_ascii_case(Method::OPTIONS.as_str());
        longest(&|route| route.takes_method(method) && route.leads_to(path)).or_else(|| {
            asks.then(|| longest(&|route| route.leads_to(path)))
                .flatten()
        })
    }

    /// The routes whose keys are honoured.
    pub fn protected(&self) -> impl Iterator<Item = &Route> {
        self.routes
            .iter()
            .filter(|route| route.policy.enabled && !route.policy.shadow)
    }

    /// The other files that the configuration was made from; a change in them changes its meaning.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let served = self.tls.iter().flat_map(|tls| [&tls.cert, &tls.key]);
        let mut files: Vec<PathBuf> = served.cloned().collect();
        let asked = self.auth.iter().flat_map(|auth| auth.endpoints());
        let backends = self.routes.iter().flat_map(|route| &route.backends);
        let targets = self.outbox.targets.iter();
        let targets = targets.filter_map(|target| match &target.way {
            WayConfig::Http(http) => Some(&http.url.backend),
            WayConfig::Broker(_) => None,
        });
        for backend in backends.chain(asked).chain(targets) {
            let file = backend.tls.as_ref().and_then(|trust| trust.path());
            files.extend(file.map(Path::to_owned));
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The routes whose keys are only observed.
    pub(crate) fn observed(&self) -> impl Iterator<Item = &Route> {
        self.routes
            .iter()
            .filter(|route| route.policy.enabled && route.policy.shadow)
    }
}

/// What the command line overrides in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`.
    pub listen: Option<SocketAddr>,
    /// `--admin`.
    pub admin: Option<SocketAddr>,
    /// `--store`.
    pub store: Option<String>,
    /// Whether named variables may be unset: for `check` on a machine without secrets.
    pub no_env: bool,
    /// Whether only the background loops run, so that no route is needed.
    pub worker: bool,
}

impl Overrides {
    fn apply(&self, root: &mut Node) {
        if let Some(listen) = self.listen {
            root.set(&["listen"], Node::word(listen.to_string()));
        }
        if let Some(admin) = self.admin {
            root.set(&["admin", "listen"], Node::word(admin.to_string()));
        }
        if let Some(store) = &self.store {
            root.set(&["store", "url"], Node::word(store));
            // The older form of the same setting.
            root.remove("redis");
        }
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// Everything that is wrong with the file, or one diagnostic without a position if it cannot be read.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Config, Diagnostics> {
    let name = path.display().to_string();
    match read(path) {
        Ok(text) => parse(&name, &text, &|name| std::env::var(name).ok(), overrides),
        Err(error) => {
            let mut report = Report::new(&name, "");
            report.error(Span::default(), format!("cannot be read: {error}"));
            Err(Diagnostics(report.into_found()))
        }
    }
}

/// Parses `text`, which messages call `name`; `env` looks up environment variables.
///
/// # Errors
/// Everything that is wrong with the text.
pub fn parse(
    name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Config, Diagnostics> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut report = Report::new(name, text);
    if !overrides.no_env {
        report = report.with_env(env);
    }
    let mut root = tree::parse(text, env, &mut report);
    if let Some(root) = &mut root {
        overrides.apply(root);
    }
    lower::lower(root, overrides.worker, report)
}

/// The configuration of `serve --upstream URL` without a file: one route that takes everything, protected
/// with the defaults.
///
/// # Errors
/// What is wrong with the URLs; these diagnostics have no position.
pub fn for_upstream(url: &str, overrides: &Overrides) -> Result<Config, Diagnostics> {
    let backend = Node::map([("url", Node::word(url))]);
    let route = Node::map([
        ("id", Node::word("default")),
        ("path", Node::word("/")),
        ("backends", Node::unplaced(Value::List(vec![backend]))),
    ]);
    let mut root = Node::map([
        ("idempotency", Node::map([("enabled", Node::word("true"))])),
        ("routes", Node::unplaced(Value::List(vec![route]))),
    ]);
    overrides.apply(&mut root);
    let mut config = lower::lower(Some(root), false, Report::new("command line", ""))?;
    for warning in &mut config.warnings {
        // A file's hints name options that this command line does not have.
        warning.hint =
            Some("a configuration file can say otherwise: `serve --config FILE`".to_owned());
    }
    Ok(config)
}

/// The configuration of `worker --store URL` without a file: defaults, with encryption keys if there are any.
///
/// # Errors
/// What is wrong with the URL; these diagnostics have no position.
pub fn for_worker(overrides: &Overrides) -> Result<Config, Diagnostics> {
    let mut root = Node::map([]);
    if std::env::var_os(DEFAULT_ENCRYPTION_KEY_ENV).is_some() {
        let name = Node::word(DEFAULT_ENCRYPTION_KEY_ENV);
        root.set(&["store", "encryption_key_env"], name);
    }
    overrides.apply(&mut root);
    lower::lower(Some(root), true, Report::new("command line", ""))
}

/// Reads a file, up to one byte beyond the size limit of a configuration.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    use io::Read as _;

    let mut bytes = Vec::new();
    // One byte more than allowed, so that a larger file is noticed.
    let limit = tree::MAX_TEXT_BYTES as u64 + 1;
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    match bytes.len() > tree::MAX_TEXT_BYTES {
        // The file is refused for its size, wherever it was cut.
        true => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        false => {
            String::from_utf8(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

#[cfg(test)]
mod tests;

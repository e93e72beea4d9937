//! Route selection: the one place that picks a request's routes.
//!
//! There are two questions. *Where does the request go?* depends on the path as it stands: the longest prefix
//! wins, after percent-encoding and dot segments are undone. *Whose rules apply?* depends on every path and
//! method that a server behind the gateway may read in the request, because that server chooses the
//! operation: of all routes that these readings lead to, the strictest one rules. Otherwise `/API/payments`,
//! `/api/payments;v=1` or a `GET` that a header turns into `POST` would bypass the keys of `/api/payments`
//! wherever a weaker route takes the rest.

mod readings;

use std::borrow::Cow;

use http::{HeaderMap, Method};
use onlyonce_core::{
    policy::{PathReadings, Policy, Profile},
    readings::{Methods, URL_OVERRIDES},
};

use crate::config::{Config, Route};
use readings::Reading;

/// The routes of a request, by index in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The route whose backends and timeouts the request gets.
    pub taken_by: usize,
    /// The route whose `idempotency` section and id apply to the request.
    pub ruled_by: usize,
}

/// How strictly a route protects one request. Later fields decide only where earlier ones are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Strictness {
    attention: Attention,
    demands_key: bool,
    is_payments: bool,
}

/// How a route treats a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Attention {
    None,
    Observed,
    Honoured,
}

impl Strictness {
    fn of(policy: &Policy, methods: Methods<'_>) -> Self {
        let is_honoured = policy.honours(methods);
        Self {
            attention: match (is_honoured, policy.shadow) {
                (false, _) => Attention::None,
                (true, true) => Attention::Observed,
                (true, false) => Attention::Honoured,
            },
            demands_key: policy.demands_key(methods),
            is_payments: is_honoured && policy.profile == Profile::Payments,
        }
    }
}

/// The routes of a request; `None` if no route takes it.
pub fn find(config: &Config, method: &Method, path: &str, headers: &HeaderMap) -> Option<Found> {
    let plain = plain_path(path);
    let taken_by = config.route_match(method, &plain)?;
    let methods = Methods::of(method, headers);
    let ruled_by = strictest(config, taken_by, methods, (path, &plain), headers);
    Some(Found { taken_by, ruled_by })
}

/// The strictest route of all readings; `taken_by` unless another one is stricter.
fn strictest(
    config: &Config,
    taken_by: usize,
    methods: Methods<'_>,
    (path, plain): (&str, &str),
    headers: &HeaderMap,
) -> usize {
    let mut search = Search {
        config,
        methods,
        found: taken_by,
        strictness: Strictness::of(&config.routes[taken_by].policy, methods),
    };
    // Nearly always no route is stricter than the one that takes the request, and the readings are skipped.
    if !search.has_stricter() {
        return taken_by;
    }
    for method in methods.iter().skip(1) {
        if let Some(index) = config.route_match_named(method, plain) {
            search.offer(index);
        }
    }
    let is_exact = config.routes[taken_by].edge.path_readings == PathReadings::Exact;
    let overrides = || {
        let values = URL_OVERRIDES.iter().map(|name| headers.get_all(name));
        values.flatten().map(|value| value.as_bytes())
    };
    if is_exact || (search.is_plain(path) && overrides().next().is_none()) {
        return search.found;
    }
    // Headers may name the same method repeatedly, and each method is tried with each path.
    let mut named: Vec<&str> = Vec::new();
    for method in methods.iter() {
        if !named.iter().any(|one| one.eq_ignore_ascii_case(method)) && search.knows(method) {
            named.push(method);
        }
    }
    let paths = std::iter::once(path.as_bytes()).chain(overrides().map(path_of));
    for path in paths {
        readings::each(path, |reading| {
            for method in &named {
                search.follow(method, reading);
            }
            search.has_stricter()
        });
    }
    search.found
}

/// The strictest route so far.
struct Search<'a> {
    config: &'a Config,
    methods: Methods<'a>,
    found: usize,
    strictness: Strictness,
}

impl Search<'_> {
    fn has_stricter(&self) -> bool {
        self.config
            .routes
            .iter()
            .any(|route| Strictness::of(&route.policy, self.methods) > self.strictness)
    }

    fn offer(&mut self, index: usize) {
        let strictness = Strictness::of(&self.config.routes[index].policy, self.methods);
        if strictness > self.strictness {
            (self.found, self.strictness) = (index, strictness);
        }
    }

    /// Whether no reading of `path` can differ from the path itself for any route.
    fn is_plain(&self, path: &str) -> bool {
        let mut routes = self.config.routes.iter();
        readings::is_plain(path) && routes.all(|route| readings::is_plain(&route.path))
    }

    /// Whether `method` is the request's own, or any route mentions it.
    fn knows(&self, method: &str) -> bool {
        let is = |one: &Method| one.as_str().eq_ignore_ascii_case(method);
        let own = self.methods.iter().next();
        own.is_some_and(|own| own == method)
            || self.config.routes.iter().any(|route| {
                let taken = route.methods.iter().flatten();
                taken.chain(&route.policy.methods).any(is)
            })
    }

    /// Offers the route that a reading leads to: the longest path, and among equals the strictest route.
    fn follow(&mut self, method: &str, reading: &Reading<'_>) {
        let begins = |route: &Route| {
            let may = route.edge.path_readings == PathReadings::Common;
            let begins = || reading.begins_with(&route.path);
            (may && route.takes_method(method)).then(begins).flatten()
        };
        let longest = self.config.routes.iter().filter_map(begins).max();
        let Some(longest) = longest else { return };
        for (index, route) in self.config.routes.iter().enumerate() {
            if begins(route) == Some(longest) {
                self.offer(index);
            }
        }
    }
}

/// The path in an override header, whose value is a path or a whole URL.
fn path_of(named: &[u8]) -> &[u8] {
    let named = named.trim_ascii();
    let after_scheme = named.windows(3).position(|three| three == b"://");
    let is_before_path = |at: &usize| !named[..*at].contains(&b'/');
    let path = match after_scheme.filter(is_before_path) {
        Some(at) => {
            let rest = &named[at + 3..];
            let slash = rest.iter().position(|byte| *byte == b'/');
            slash.map_or(&b"/"[..], |slash| &rest[slash..])
        }
        None => named,
    };
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &path[..end.unwrap_or(path.len())]
}

/// The path in the form that is compared with routes: without percent-encoding, dot segments and empty
/// segments. The request is forwarded unchanged.
pub(crate) fn plain_path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/').filter(|segment| !segment.is_empty()) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let slash = if decoded.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    Cow::Owned(format!("/{}{slash}", segments.join("/")))
}

#[cfg(test)]
mod tests;

//! Whether a retry of an operation is safe, by the route that takes it or by the document.

use http::{HeaderName, Method};

use super::openapi::{Exempt, Operation};
use onlyonce_gateway::{
    config::{Config, Route},
    routing,
};

/// Stands for any value of a path parameter; no route names it.
const ANY_VALUE: &str = "onlyonce-audit-any";

/// What operations are judged by.
pub(super) struct Judge<'a> {
    pub(super) config: Option<&'a Config>,
    pub(super) key_header: &'a HeaderName,
    pub(super) allow_optional: bool,
}

/// How keys are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Required and honoured.
    Enforced,
    /// Honoured if present.
    Honoured,
    /// Ignored.
    Ignored,
}

impl Keys {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Honoured => "honoured",
            Self::Ignored => "ignored",
        }
    }
}

/// The verdict on one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Protected,
    /// The method is idempotent by definition, so a repetition changes nothing more.
    Idempotent,
    /// Declared exempt, for this reason.
    Exempt(String),
    /// Not safe, and how to fix it.
    Hole(String),
}

impl Verdict {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Protected => "protected",
            Self::Idempotent => "idempotent",
            Self::Exempt(_) => "exempt",
            Self::Hole(_) => "hole",
        }
    }
}

/// An operation and its verdict.
#[derive(Clone, Debug)]
pub(super) struct Judged {
    pub(super) operation: Operation,
    /// The ids of the routes that take it; several if a path parameter decides.
    pub(super) routes: Vec<String>,
    pub(super) keys: Keys,
    /// Whether the document declares the header: `None` if not, otherwise whether it is required.
    pub(super) declared: Option<bool>,
    pub(super) verdict: Verdict,
}

impl Judged {
    pub(super) fn is_hole(&self) -> bool {
        matches!(self.verdict, Verdict::Hole(_))
    }

    pub(super) fn is_protected(&self) -> bool {
        self.verdict == Verdict::Protected
    }
}

impl Judge<'_> {
    pub(super) fn judge(&self, operation: &Operation) -> Judged {
        let (routes, keys, header, advice) = match self.config {
            Some(config) => by_config(config, operation),
            None => self.by_document(operation),
        };
        let declared = declared(operation, &header);
        Judged {
            routes,
            keys,
            declared,
            verdict: self.verdict(operation, keys, advice),
            operation: operation.clone(),
        }
    }

    fn verdict(&self, operation: &Operation, keys: Keys, advice: String) -> Verdict {
        let by_definition = matches!(operation.method, Method::PUT | Method::DELETE);
        match (keys, &operation.exempt) {
            (Keys::Enforced, _) => Verdict::Protected,
            (_, Exempt::Because(reason)) => Verdict::Exempt(reason.clone()),
            (_, Exempt::WithoutReason) => {
                Verdict::Hole("exempt without a reason: x-onlyonce: { exempt: REASON }".to_owned())
            }
            (Keys::Honoured, _) if self.allow_optional => Verdict::Protected,
            (_, Exempt::No) if by_definition => Verdict::Idempotent,
            (_, Exempt::No) => Verdict::Hole(advice),
        }
    }

    fn by_document(&self, operation: &Operation) -> (Vec<String>, Keys, HeaderName, String) {
        let (keys, advice) = match declared(operation, self.key_header) {
            Some(true) => (Keys::Enforced, String::new()),
            Some(false) => (
                Keys::Honoured,
                format!("declare {} as required", self.key_header),
            ),
            None => (
                Keys::Ignored,
                format!("declare {} as a required header", self.key_header),
            ),
        };
        (Vec::new(), keys, self.key_header.clone(), advice)
    }
}

fn declared(operation: &Operation, header: &HeaderName) -> Option<bool> {
    let mut headers = operation.headers.iter();
    let found = headers.find(|(name, _)| name == header.as_str());
    found.map(|(_, required)| *required)
}

/// Of all routes that may take the operation, the weakest decides.
fn by_config(config: &Config, operation: &Operation) -> (Vec<String>, Keys, HeaderName, String) {
    let (usual, sometimes) = catching(config, operation);
    let routes: Vec<&Route> = usual.into_iter().chain(sometimes).collect();
    let header = routes.first().map_or(
        http::header::HeaderName::from_static("idempotency-key"),
        |route| route.policy.header_name.clone(),
    );
    let ids = routes.iter().map(|route| route.id.clone()).collect();
    let weakest = routes
        .iter()
        .min_by_key(|route| strength(keys(route, &operation.method)));
    let (Some(weakest), Some(_)) = (weakest, usual) else {
        let when = match routes.is_empty() {
            true => "",
            false => " for some values of its parameters",
        };
        let advice = format!("no route takes it{when}: whoever serves it does so without OnlyOnce");
        return (ids, Keys::Ignored, header, advice);
    };
    let keys = keys(weakest, &operation.method);
    let advice = advice(weakest, &operation.method, keys);
    (ids, keys, header, advice)
}

fn strength(keys: Keys) -> u8 {
    match keys {
        Keys::Ignored => 0,
        Keys::Honoured => 1,
        Keys::Enforced => 2,
    }
}

fn keys(route: &Route, method: &Method) -> Keys {
    let policy = &route.policy;
    // Shadow mode observes keys and protects nothing.
    if !policy.enabled || policy.shadow || !policy.honours(method) {
        Keys::Ignored
    } else if policy.demands_key(method) {
        Keys::Enforced
    } else {
        Keys::Honoured
    }
}

fn advice(route: &Route, method: &Method, keys: Keys) -> String {
    let id = &route.id;
    match keys {
        Keys::Enforced => String::new(),
        Keys::Honoured => format!("set `enforce: true` for the route `{id}`"),
        Keys::Ignored if !route.policy.enabled => {
            format!("set `enabled: true` and `enforce: true` for the route `{id}`")
        }
        Keys::Ignored if route.policy.shadow => {
            format!("set `shadow: false` for the route `{id}`, which is only observed")
        }
        Keys::Ignored => {
            format!("add {method} to the `methods` of `idempotency` of the route `{id}`")
        }
    }
}

/// The route that takes the operation, and those that take it for some values of its parameters.
fn catching<'c>(config: &'c Config, operation: &Operation) -> (Option<&'c Route>, Vec<&'c Route>) {
    let template: Vec<&str> = operation.path.split('/').collect();
    let usual: Vec<&str> = template.iter().map(|segment| fixed(segment)).collect();
    let found = routing::find(
        config,
        &operation.method,
        &usual.join("/"),
        &http::HeaderMap::new(),
    );
    let route = |index: usize| config.routes.get(index);
    let longest = found.and_then(|found| route(found.taken_by));
    let longest = longest.map_or(0, |route| route.path.len());
    // If another reading of the path leads to a stricter route, that route's rules apply.
    let usual = found.and_then(|found| route(found.ruled_by));
    let sometimes = config.routes.iter().filter(|route| {
        let methods = route.methods.as_ref();
        methods.is_none_or(|methods| methods.contains(&operation.method))
            && route.path.len() > longest
            && may_begin(&template, &route.path)
    });
    (usual, sometimes.collect())
}

fn fixed(segment: &str) -> &str {
    match segment.contains('{') {
        true => ANY_VALUE,
        false => segment,
    }
}

/// Whether some path of the template begins with `route`, by whole segments.
fn may_begin(template: &[&str], route: &str) -> bool {
    let segments: Vec<&str> = route.trim_end_matches('/').split('/').collect();
    segments.len() <= template.len()
        && segments
            .iter()
            .zip(template)
            .all(|(segment, part)| segment == part || part.contains('{'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onlyonce_gateway::config;

    fn config(routes: &str) -> Config {
        let text = format!("idempotency: {{ enabled: true }}\nroutes:\n{routes}");
        config::parse("test", &text, &|_| None, &config::Overrides::default()).unwrap()
    }

    fn operation(method: Method, path: &str) -> Operation {
        Operation {
            method,
            path: path.to_owned(),
            id: None,
            headers: Vec::new(),
            exempt: Exempt::No,
            flows: Vec::new(),
            tags: Vec::new(),
            family: String::new(),
        }
    }

    fn judge(config: &Config, method: Method, path: &str) -> Judged {
        let judge = Judge {
            config: Some(config),
            key_header: &HeaderName::from_static("idempotency-key"),
            allow_optional: false,
        };
        judge.judge(&operation(method, path))
    }

    #[test]
    fn the_longest_prefix_decides() {
        let backends = "backends: [{ url: \"http://127.0.0.1:1\" }]";
        let config = config(&format!(
            "  - {{ id: all, path: /, {backends} }}\n\
             \x20 - {{ id: pay, path: /pay, {backends}, idempotency: {{ enforce: true }} }}\n\
             \x20 - {{ id: off, path: /pay/raw, {backends}, idempotency: {{ enabled: false }} }}\n"
        ));
        let protected = judge(&config, Method::POST, "/pay");
        assert!(protected.is_protected());
        assert_eq!(protected.routes, ["pay"]);
        let honoured = judge(&config, Method::POST, "/orders");
        assert_eq!(honoured.keys, Keys::Honoured);
        assert!(honoured.is_hole());
        assert!(judge(&config, Method::POST, "/pay/raw/x").is_hole());
        // The value `raw` takes another route, so the parameter is a hole.
        let sometimes = judge(&config, Method::POST, "/pay/{id}");
        assert_eq!(sometimes.routes, ["pay", "off"]);
        assert!(sometimes.is_hole());
        assert_eq!(
            judge(&config, Method::DELETE, "/pay").verdict,
            Verdict::Idempotent
        );
        assert_eq!(
            judge(&config, Method::PUT, "/orders").verdict,
            Verdict::Idempotent
        );
    }

    #[test]
    fn what_is_only_observed_is_a_hole() {
        let config = config(
            "  - { id: a, path: /, shadow: true, backends: [{ url: \"http://127.0.0.1:1\" }], \
             idempotency: { enforce: true } }\n",
        );
        assert!(judge(&config, Method::POST, "/a").is_hole());
    }

    #[test]
    fn what_no_route_takes_is_a_hole() {
        let config = config(
            "  - { id: a, path: /a, methods: [GET], backends: [{ url: \"http://127.0.0.1:1\" }] }\n",
        );
        let lost = judge(&config, Method::POST, "/a");
        assert!(lost.is_hole() && lost.routes.is_empty());
    }

    #[test]
    fn what_no_route_takes_for_some_values_is_a_hole() {
        let config = config(
            "  - { id: a, path: /v1/a, backends: [{ url: \"http://127.0.0.1:1\" }], \
             idempotency: { enforce: true } }\n",
        );
        assert!(judge(&config, Method::POST, "/v1/a/{id}").is_protected());
        let lost = judge(&config, Method::POST, "/{version}/a");
        assert_eq!(
            (lost.routes.as_slice(), lost.keys),
            (&["a".to_owned()][..], Keys::Ignored)
        );
        let Verdict::Hole(advice) = lost.verdict else {
            panic!("{lost:?}");
        };
        assert!(advice.contains("for some values"), "{advice}");
    }
}

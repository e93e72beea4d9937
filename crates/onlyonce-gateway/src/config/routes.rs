//! The routes of a configuration: the requests that they take, and where these go.

use http::Method;

use super::{
    backend::Backend,
    diagnostics::{Report, quoted},
    fields::{BACKEND, IDEMPOTENCY, ROUTE, RouteFields},
    options::Stated,
    scalar::Found,
    section::Section,
    setting::Group,
    traffic,
    tree::{Node, Span, Value},
};

/// The longest route id, in characters.
const MAX_ID_LENGTH: usize = 64;
/// The gateway's own paths.
const RESERVED_PATH: &str = "/.onlyonce";

/// Whether requests without a key need a credential, if `auth` is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteAuth {
    Required,
    Optional,
}

/// A route as written. Anything missing or wrong in it is in the report.
pub(super) struct WrittenRoute<'n> {
    pub(super) fields: RouteFields,
    pub(super) backends: Vec<Backend>,
    /// The position of `auth`.
    pub(super) auth_at: Option<Span>,
    pub(super) stated: Stated<'n>,
    /// The position of the route as a whole.
    pub(super) at: Span,
}

/// All routes under `top`.
pub(super) fn read<'n>(top: &Section<'n>, report: &mut Report<'_>) -> Vec<WrittenRoute<'n>> {
    const HINT: &str =
        "a route has an `id`, a `path` and `backends`; only `onlyonce worker` needs none";
    let Some((node, key_at)) = top.node("routes") else {
        if !top.says("routes") {
            report.error(top.at, "`routes` is missing").hint(HINT);
        }
        return Vec::new();
    };
    let routes: Vec<_> = match &node.value {
        Value::List(items) => items
            .iter()
            .filter_map(|item| route(item, report))
            .collect(),
        Value::Null => Vec::new(),
        Value::Map(_) | Value::Scalar(_) | Value::Broken => {
            report
                .error(node.at, "`routes` must be a list")
                .hint("put `- ` before each route");
            return Vec::new();
        }
    };
    if routes.is_empty() {
        report.error(key_at, "`routes` is empty").hint(HINT);
    }
    repeated_ids(&routes, report);
    unreachable_routes(&routes, report);
    routes
}

fn route<'n>(node: &'n Node, report: &mut Report<'_>) -> Option<WrittenRoute<'n>> {
    let section = Section::open(&ROUTE, node, node.at, report);
    for field in ["id", "path", "backends"] {
        if !section.says(field) {
            report.error(node.at, format!("a route without `{field}`"));
        }
    }
    if section.is_empty_list("methods") {
        let at = section.place("methods").unwrap_or(node.at);
        report
            .error(at, "`methods` is empty")
            .hint("leave it out to take every method");
    }
    let mut stated = Stated::read(section.section("idempotency", &IDEMPOTENCY, report), report);
    let lifted = [
        "timeout",
        "max_execution",
        "limits",
        "shadow",
        "path_readings",
    ];
    stated.lift(section, &lifted, report);
    Some(WrittenRoute {
        fields: RouteFields::read(&section, report)?,
        backends: backends(&section, report),
        auth_at: section.place("auth"),
        stated,
        at: section.place("id").unwrap_or(node.at),
    })
}

pub(super) fn id(found: Found<'_>, _: &str, report: &mut Report<'_>) -> Option<String> {
    let valid = (1..=MAX_ID_LENGTH).contains(&found.text.len())
        && found
            .text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !valid {
        report
            .error(
                found.at,
                format!("{} cannot be a route's id", quoted(found.written)),
            )
            .hint("1 to 64 letters, digits, `_` and `-`");
    }
    valid.then(|| found.text.to_owned())
}

pub(super) fn path(found: Found<'_>, _: &str, report: &mut Report<'_>) -> Option<String> {
    let text = found.text;
    let complaint = if !text.starts_with('/') {
        Some((
            "a path starts with a slash",
            format!("did you mean `/{}`?", found.written),
        ))
    } else if text == RESERVED_PATH || text.starts_with("/.onlyonce/") {
        Some((
            "the gateway keeps this path for itself",
            "choose another path".to_owned(),
        ))
    } else if text.contains(['*', '{', '}']) {
        Some((
            "a path holds no patterns",
            "it is a prefix: leave out the rest".to_owned(),
        ))
    } else if text.contains(['?', '#']) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        Some((
            "this is not a path",
            "for example `/api/payments`".to_owned(),
        ))
    } else if is_encoded(text) {
        Some((
            "no request can reach this path, since percent-encoding is undone before it is compared",
            "write the character itself".to_owned(),
        ))
    } else if text.contains("//") || text.split('/').any(|segment| matches!(segment, "." | "..")) {
        Some((
            "a path has no empty and no dot segments",
            "for example `/api/pay`".to_owned(),
        ))
    } else {
        None
    };
    match complaint {
        None => Some(text.to_owned()),
        Some((message, hint)) => {
            report
                .error(found.at, format!("{message}: {}", quoted(found.written)))
                .hint(hint);
            None
        }
    }
}

/// Whether a part of the path is percent-encoded.
fn is_encoded(path: &str) -> bool {
    percent_encoding::percent_decode_str(path).count() != path.len()
}

fn backends(section: &Section<'_>, report: &mut Report<'_>) -> Vec<Backend> {
    const HINT: &str = "for example `backends: [{ url: \"http://127.0.0.1:3000\" }]`";
    let Some((node, key_at)) = section.node("backends") else {
        return Vec::new();
    };
    let items = match &node.value {
        Value::List(items) if !items.is_empty() => items,
        Value::List(_) | Value::Null => {
            report
                .error(key_at, "a route needs at least one backend")
                .hint(HINT);
            return Vec::new();
        }
        Value::Map(_) | Value::Scalar(_) | Value::Broken => {
            report
                .error(node.at, "`backends` must be a list")
                .hint(HINT);
            return Vec::new();
        }
    };
    let backend = |item| {
        let section = Section::open(&BACKEND, item, item.at, report);
        if matches!(item.value, Value::Map(_) | Value::Null) && !section.says("url") {
            report.error(item.at, "a backend without `url`").hint(HINT);
        }
        backend(&section, report)
    };
    items.iter().filter_map(backend).collect()
}

fn backend(section: &Section<'_>, report: &mut Report<'_>) -> Option<Backend> {
    let weight = section.get_or_default("weight", report);
    let http2 = section.get("http2", report);
    let found = section.scalar("url", report)?;
    match Backend::parse(found.text) {
        Ok(backend) => Some(Backend {
            weight,
            tls: traffic::trust(section, backend.tls.is_some(), report).ok()?,
            http2,
            ..backend
        }),
        Err(error) => {
            report
                .error(found.at, format!("{error}: {}", quoted(found.written)))
                .hint(error.hint());
            None
        }
    }
}

fn repeated_ids(routes: &[WrittenRoute<'_>], report: &mut Report<'_>) {
    for (index, route) in routes.iter().enumerate() {
        let Some(id) = &route.fields.id else { continue };
        let before = routes[..index]
            .iter()
            .find(|other| other.fields.id.as_ref() == Some(id));
        if let Some(first) = before {
            report
                .error(
                    route.at,
                    format!("a second route with the id {}", quoted(id)),
                )
                .hint(format!("the first one is in line {}", first.at.line));
        }
    }
}

/// Reports routes that share a path and a method with an earlier one, and routes for CONNECT alone.
fn unreachable_routes(routes: &[WrittenRoute<'_>], report: &mut Report<'_>) {
    for route in routes {
        let tunnels = |methods: &Vec<Method>| {
            !methods.is_empty() && methods.iter().all(|method| method == Method::CONNECT)
        };
        if route.fields.methods.as_ref().is_some_and(tunnels) {
            report
                .error(route.at, "no request can reach a route for CONNECT alone")
                .hint("a gateway opens no tunnels: CONNECT gets 404");
        }
    }
    for (index, route) in routes.iter().enumerate() {
        let Some(path) = &route.fields.path else {
            continue;
        };
        let rival = routes[..index].iter().find(|other| {
            other.fields.path.as_ref() == Some(path)
                && overlap(&other.fields.methods, &route.fields.methods)
        });
        if let Some(first) = rival {
            let message = format!("two routes take the same requests under {}", quoted(path));
            report.error(route.at, message).hint(format!(
                "the other one is in line {}; give them other paths or other `methods`",
                first.at.line
            ));
        }
    }
}

fn overlap(left: &Option<Vec<Method>>, right: &Option<Vec<Method>>) -> bool {
    match (left, right) {
        (Some(left), Some(right)) => left.iter().any(|method| right.contains(method)),
        _ => true,
    }
}

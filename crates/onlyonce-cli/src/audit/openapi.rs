//! The operations of an OpenAPI 3 document that change state.
//!
//! Deliberately absent: webhooks and callbacks, which are requests by the API to others.

use anyhow::{Context, bail};
use http::Method;
use serde_json::Value;

use super::documents::{Documents, Members, Placed};

/// The methods that change state.
const CHANGING: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) method: Method,
    /// With the base path, parameters in braces.
    pub(super) path: String,
    pub(super) id: Option<String>,
    /// The declared headers, in lower case, and whether they are required.
    pub(super) headers: Vec<(String, bool)>,
    pub(super) exempt: Exempt,
    pub(super) flows: Vec<String>,
    pub(super) tags: Vec<String>,
    /// The first segment of the path, for operations without a flow and a tag.
    pub(super) family: String,
}

/// Whether the operation was declared not to need a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exempt {
    No,
    Because(String),
    WithoutReason,
}

/// All operations, in the order of the document.
///
/// # Errors
/// When it is not an OpenAPI 3 document, or refers to something that is not there.
pub(super) fn operations(
    documents: &mut Documents,
    document: &Placed,
    base_path: Option<&str>,
) -> anyhow::Result<Vec<Operation>> {
    let root = &document.value;
    let version = root["openapi"].as_str().unwrap_or_default();
    if !version.starts_with("3.") {
        bail!("this is not an OpenAPI 3 document: `openapi` must say 3.x");
    }
    let root = documents.members(document)?;
    let Some(paths) = root.get("paths").filter(|paths| paths.value.is_object()) else {
        bail!("the document has no `paths`");
    };
    let mut operations = Vec::new();
    let paths = documents.members(paths).context("paths")?;
    let items = paths.iter().filter(|(path, _)| !path.starts_with("x-"));
    for (path, item) in items {
        let item = documents.members(item).with_context(|| path.to_owned())?;
        for method in CHANGING {
            let name = method.as_str().to_ascii_lowercase();
            let Some(operation) = item.get(&name) else {
                continue;
            };
            let place = || format!("{method} {path}");
            let operation = documents.members(operation).with_context(place)?;
            let base = match base_path {
                Some(path) => path.trim_end_matches('/').to_owned(),
                None => server_path([&operation, &item, &root]),
            };
            let headers = headers(documents, &item, &operation).with_context(place)?;
            operations.push(read(&method, (base, path), headers, &operation));
        }
    }
    Ok(operations)
}

fn read(
    method: &Method,
    (base, path): (String, &str),
    headers: Vec<(String, bool)>,
    operation: &Members,
) -> Operation {
    let words = |value: &Value| match value {
        Value::String(word) => vec![word.clone()],
        Value::Array(items) => {
            let words = items.iter().filter_map(Value::as_str);
            words.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let family = path.split('/').find(|segment| !segment.is_empty());
    let id = operation.value("operationId").as_str();
    Operation {
        method: method.clone(),
        path: format!("{base}{path}"),
        id: id.map(str::to_owned),
        headers,
        exempt: exempt(operation),
        flows: words(operation.value("x-onlyonce-flow")),
        tags: words(operation.value("tags")),
        family: family.unwrap_or_default().to_owned(),
    }
}

/// `x-onlyonce: { exempt: REASON }`, or `x-onlyonce: "exempt: REASON"`.
fn exempt(operation: &Members) -> Exempt {
    let reason = match operation.value("x-onlyonce") {
        Value::String(text) => text
            .strip_prefix("exempt")
            .map(|reason| reason.trim_start_matches(':')),
        Value::Object(members) => members
            .get("exempt")
            .filter(|value| **value != Value::Bool(false))
            .map(|reason| reason.as_str().unwrap_or_default()),
        _ => None,
    };
    let reason = reason.map(
        |reason| match operation.value("x-onlyonce-reason").as_str() {
            Some(beside) if reason.trim().is_empty() => beside.trim(),
            _ => reason.trim(),
        },
    );
    match reason {
        None => Exempt::No,
        Some("") => Exempt::WithoutReason,
        Some(reason) => Exempt::Because(reason.to_owned()),
    }
}

/// Header parameters of the operation, and of its path unless the operation overrides them.
fn headers(
    documents: &mut Documents,
    item: &Members,
    operation: &Members,
) -> anyhow::Result<Vec<(String, bool)>> {
    let mut headers: Vec<(String, bool)> = Vec::new();
    let lists = [operation, item].map(|one| one.items("parameters"));
    for parameter in lists.iter().flatten() {
        // An unresolvable parameter hides no operation.
        let Ok(parameter) = documents.members(parameter) else {
            continue;
        };
        if parameter.value("in") != "header" {
            continue;
        }
        let name = parameter.value("name").as_str().unwrap_or_default();
        let name = name.to_ascii_lowercase();
        if !headers.iter().any(|(known, _)| *known == name) {
            headers.push((name, *parameter.value("required") == true));
        }
    }
    Ok(headers)
}

/// The path of the first server's URL, without a trailing slash: the server of the operation, of its path, or
/// of the document, whichever is found first. Variables have their defaults.
fn server_path(places: [&Members; 3]) -> String {
    let mut servers = places.iter().map(|place| &place.value("servers")[0]);
    let Some(server) = servers.find(|server| server["url"].is_string()) else {
        return String::new();
    };
    let mut url = server["url"].as_str().unwrap_or_default().to_owned();
    for (name, variable) in server["variables"].as_object().into_iter().flatten() {
        if let Some(default) = variable["default"].as_str() {
            url = url.replace(&format!("{{{name}}}"), default);
        }
    }
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let after_host = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => url,
    };
    // A relative path is relative to where the document is served, which is assumed to be the root.
    let path = after_host.trim_end_matches('/').trim_start_matches("./");
    match path {
        "" | "." => String::new(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(document: Value, base_path: Option<&str>) -> anyhow::Result<Vec<Operation>> {
        let (mut documents, document) = Documents::alone(document);
        operations(&mut documents, &document, base_path)
    }

    fn paths(document: Value) -> Vec<String> {
        let found = read(document, None).unwrap();
        let name = |one: &Operation| format!("{} {}", one.method, one.path);
        found.iter().map(name).collect()
    }

    #[test]
    fn a_document_is_read() {
        let document = json!({
            "openapi": "3.1.0",
            "servers": [{ "url": "https://api.example/v1/" }],
            "components": { "parameters": { "Key": {
                "in": "header", "name": "Idempotency-Key", "required": true
            } } },
            "paths": {
                "/a/{id}": {
                    "parameters": [{ "$ref": "#/components/parameters/Key" }],
                    "get": {},
                    "post": { "operationId": "make", "tags": ["t"], "x-onlyonce-flow": "f" },
                    "delete": { "x-onlyonce": { "exempt": "the ledger keeps it" } },
                },
                "/b": { "patch": { "x-onlyonce": "exempt" }, "put": { "x-onlyonce": "exempt: why" } },
            },
        });
        let found = read(document.clone(), None).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|one| format!("{} {}", one.method, one.path))
            .collect();
        assert_eq!(
            names,
            [
                "POST /v1/a/{id}",
                "DELETE /v1/a/{id}",
                "PUT /v1/b",
                "PATCH /v1/b"
            ]
        );
        assert_eq!(found[0].headers, [("idempotency-key".to_owned(), true)]);
        assert_eq!(
            (found[0].flows[0].as_str(), found[0].family.as_str()),
            ("f", "a")
        );
        assert_eq!(
            found[1].exempt,
            Exempt::Because("the ledger keeps it".to_owned())
        );
        assert_eq!(found[2].exempt, Exempt::Because("why".to_owned()));
        assert_eq!(found[3].exempt, Exempt::WithoutReason);
        let other = read(document, Some("/x/")).unwrap();
        assert_eq!(other[0].path, "/x/a/{id}");
    }

    #[test]
    fn other_documents_are_refused() {
        assert!(read(json!({ "swagger": "2.0", "paths": {} }), None).is_err());
        assert!(read(json!({ "openapi": "3.0.3" }), None).is_err());
        assert!(read(json!({ "openapi": "3.0.3", "paths": [] }), None).is_err());
        assert_eq!(
            read(json!({ "openapi": "3.0.3", "paths": {} }), None).unwrap(),
            []
        );
    }

    #[test]
    fn references_are_followed_or_named() {
        let document = json!({
            "openapi": "3.1.0",
            "components": { "pathItems": {
                "a b": { "post": {} },
                "G": { "get": {}, "$ref": "#/components/pathItems/H" },
                "H": { "patch": {} },
            } },
            "paths": {
                "x-more": { "$ref": "#/nowhere", "post": {} },
                "/users/{id}": { "put": {} },
                "/encoded": { "$ref": "#/components/pathItems/a%20b" },
                "/other": { "$ref": "#/paths/~1users~1%7Bid%7D" },
                "/beside": { "$ref": "#/components/pathItems/G", "post": {} },
            },
        });
        assert_eq!(
            paths(document),
            [
                "PUT /users/{id}",
                "POST /encoded",
                "PUT /other",
                "POST /beside",
                "PATCH /beside"
            ]
        );
        for (reference, why) in [
            (json!("#/components/pathItems/Nope"), "leads nowhere"),
            (json!("#anchor"), "leads nowhere"),
            (json!("#/paths/~1p"), "references lead to one another"),
            (json!("./gone.yaml"), "`./gone.yaml` cannot be followed"),
            (json!("https://api.example/x.yaml"), "another host"),
            (json!("../x.yaml"), "out of the document's folder"),
            (json!(7), "must be a text"),
        ] {
            let paths = json!({ "/p": { "$ref": reference } });
            let document = json!({ "openapi": "3.1.0", "paths": paths });
            let error = format!("{:#}", read(document, None).unwrap_err());
            assert!(error.contains(why) && error.contains("/p"), "{error}");
        }
    }

    #[test]
    fn the_nearest_server_counts() {
        let variables = json!({ "b": { "default": "v3" }, "h": { "default": "api.example" } });
        let document = json!({
            "openapi": "3.0.3",
            "servers": [{ "url": "https://{h}/{b}/", "variables": variables }],
            "paths": {
                "/a": { "post": {} },
                "/b": { "servers": [{ "url": "/v2" }], "post": {},
                        "patch": { "servers": [{ "url": "https://other.example" }] } },
                "/c": { "servers": [{ "url": "v4" }], "post": {} },
                "/d": { "servers": [], "post": {} },
                "/e": { "servers": [{ "url": "https://api.example/{t}" }], "post": {} },
            },
        });
        let expected = ["/v3/a", "/v2/b", "/b", "/v4/c", "/v3/d", "/{t}/e"];
        let expected = expected.map(|path| match path {
            "/b" => "PATCH /b".to_owned(),
            path => format!("POST {path}"),
        });
        assert_eq!(paths(document), expected);
    }
}

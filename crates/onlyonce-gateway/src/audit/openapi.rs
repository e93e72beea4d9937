//! The operations of an OpenAPI 3 document that change something.
//!
//! Deliberately absent: webhooks and callbacks, which are requests of the API to others; external
//! references.

use anyhow::bail;
use http::Method;
use serde_json::Value;

/// The methods that change something.
const CHANGING: [Method; 4] = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
/// How many references may lead to one another.
const MAX_REFERENCES: usize = 16;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) method: Method,
    /// With the base path, parameters in braces.
    pub(super) path: String,
    pub(super) id: Option<String>,
    /// The headers that it declares, in lower case, and whether they are required.
    pub(super) headers: Vec<(String, bool)>,
    pub(super) exempt: Exempt,
    pub(super) flows: Vec<String>,
    pub(super) tags: Vec<String>,
    /// The first segment of the path, for those without a flow and a tag.
    pub(super) family: String,
}

/// Whether somebody has decided that it needs no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exempt {
    No,
    Because(String),
    WithoutReason,
}

/// All of them, in the order of the document.
///
/// # Errors
/// When it is not an OpenAPI 3 document.
pub(super) fn operations(
    document: &Value,
    base_path: Option<&str>,
) -> anyhow::Result<Vec<Operation>> {
    let version = document["openapi"].as_str().unwrap_or_default();
    if !version.starts_with("3.") {
        bail!("this is not an OpenAPI 3 document: `openapi` must say 3.x");
    }
    let base = match base_path {
        Some(path) => path.trim_end_matches('/').to_owned(),
        None => server_path(document),
    };
    let Some(paths) = document["paths"].as_object() else {
        bail!("the document has no `paths`");
    };
    let mut operations = Vec::new();
    for (path, item) in paths {
        let item = resolve(document, item);
        for method in CHANGING {
            let name = method.as_str().to_ascii_lowercase();
            if let Some(operation) = item.get(&name) {
                let place = (format!("{base}{path}"), path.as_str());
                operations.push(read(document, &method, place, item, operation));
            }
        }
    }
    Ok(operations)
}

fn read(
    document: &Value,
    method: &Method,
    (full, path): (String, &str),
    item: &Value,
    operation: &Value,
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
    Operation {
        method: method.clone(),
        path: full,
        id: operation["operationId"].as_str().map(str::to_owned),
        headers: headers(document, item, operation),
        exempt: exempt(operation),
        flows: words(&operation["x-onlyonce-flow"]),
        tags: words(&operation["tags"]),
        family: family.unwrap_or_default().to_owned(),
    }
}

/// `x-onlyonce: { exempt: REASON }`, or `x-onlyonce: "exempt: REASON"`.
fn exempt(operation: &Value) -> Exempt {
    let reason = match &operation["x-onlyonce"] {
        Value::String(text) => text
            .strip_prefix("exempt")
            .map(|reason| reason.trim_start_matches(':')),
        Value::Object(members) => members
            .get("exempt")
            .filter(|value| **value != Value::Bool(false))
            .map(|reason| reason.as_str().unwrap_or_default()),
        _ => None,
    };
    let reason = reason.map(|reason| match operation["x-onlyonce-reason"].as_str() {
        Some(beside) if reason.trim().is_empty() => beside.trim(),
        _ => reason.trim(),
    });
    match reason {
        None => Exempt::No,
        Some("") => Exempt::WithoutReason,
        Some(reason) => Exempt::Because(reason.to_owned()),
    }
}

/// Header parameters of the operation, and of its path where the operation says nothing else.
fn headers(document: &Value, item: &Value, operation: &Value) -> Vec<(String, bool)> {
    let mut headers: Vec<(String, bool)> = Vec::new();
    let lists = [&operation["parameters"], &item["parameters"]];
    for parameter in lists.into_iter().filter_map(Value::as_array).flatten() {
        let parameter = resolve(document, parameter);
        if parameter["in"] != "header" {
            continue;
        }
        let name = parameter["name"]
            .as_str()
            .unwrap_or_default()
            .to_ascii_lowercase();
        if !headers.iter().any(|(known, _)| *known == name) {
            headers.push((name, parameter["required"] == true));
        }
    }
    headers
}

/// What `value` stands for: itself, or what its `$ref` within the document leads to.
fn resolve<'d>(document: &'d Value, value: &'d Value) -> &'d Value {
    let mut value = value;
    for _ in 0..MAX_REFERENCES {
        let Some(reference) = value.get("$ref").and_then(Value::as_str) else {
            return value;
        };
        let found = reference
            .strip_prefix('#')
            .and_then(|pointer| document.pointer(pointer));
        match found {
            Some(found) => value = found,
            None => return value,
        }
    }
    value
}

/// The path of the first server's URL, without a slash at its end.
fn server_path(document: &Value) -> String {
    let url = document["servers"][0]["url"].as_str().unwrap_or_default();
    let after_host = match url.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => url,
    };
    let path = after_host.trim_end_matches('/');
    // A path that is to be filled in later tells nothing.
    match path.contains('{') {
        true => String::new(),
        false => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let found = operations(&document, None).unwrap();
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
        let other = operations(&document, Some("/x/")).unwrap();
        assert_eq!(other[0].path, "/x/a/{id}");
    }

    #[test]
    fn other_documents_are_refused() {
        assert!(operations(&json!({ "swagger": "2.0", "paths": {} }), None).is_err());
        assert!(operations(&json!({ "openapi": "3.0.3" }), None).is_err());
        assert_eq!(
            operations(&json!({ "openapi": "3.0.3", "paths": {} }), None).unwrap(),
            []
        );
    }
}

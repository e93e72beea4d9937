//! Query parameters: only those in the OpenAPI description are accepted.
//!
//! An ignored parameter would be a filter that does not filter: `?stat=unknown` would list every key.

use std::{collections::HashMap, sync::LazyLock};

use axum::{
    extract::{MatchedPath, Query, Request},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode};

use super::{Refused, openapi::openapi};

/// The query parameters of each operation.
static KNOWN: LazyLock<HashMap<(String, Method), Vec<String>>> = LazyLock::new(|| {
    let document = openapi();
    let paths = document["paths"].as_object().into_iter().flatten();
    let operations = paths.flat_map(|(path, operations)| {
        let operations = operations.as_object().into_iter().flatten();
        operations.map(move |(method, operation)| (path, method, operation))
    });
    operations
        .filter_map(|(path, method, operation)| {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let of_query = parameters.filter(|parameter| parameter["in"] == "query");
            let names = of_query.filter_map(|parameter| parameter["name"].as_str());
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).ok()?;
            Some(((path.clone(), method), names.map(str::to_owned).collect()))
        })
        .collect()
});

/// Refuses a request with a query parameter that its operation does not have. An operation that the
/// description does not list has none.
pub(super) async fn refuse_unknown(request: Request, next: Next) -> Response {
    match unknown(&request) {
        Some(refused) => refused.into_response(),
        None => next.run(request).await,
    }
}

fn unknown(request: &Request) -> Option<Refused> {
    // The handler refuses a query that cannot be parsed.
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(request.uri()).ok()?;
    // Without a matched path the request gets 404 anyway.
    let path = request.extensions().get::<MatchedPath>()?;
    // Scrapers send the same parameters to every target, and none of them is a filter here.
    if path.as_str() == "/metrics" {
        return None;
    }
    let method = match *request.method() {
        Method::HEAD => Method::GET,
        ref method => method.clone(),
    };
    let known = KNOWN.get(&(path.as_str().to_owned(), method));
    let known = known.map_or(&[][..], Vec::as_slice);
    let (name, _) = given.iter().find(|(name, _)| !known.contains(name))?;
    let listed = match known {
        [] => "This address takes no parameters".to_owned(),
        known => format!("This address takes `{}`", known.join("`, `")),
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let detail = format!("There is no parameter `{name}` here. {listed}. Nothing was done.");
    Some(Refused::new(StatusCode::BAD_REQUEST, "bad_request", detail))
}

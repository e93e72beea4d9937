//! The dashboard's files, embedded in the executable and served to everybody: they contain no data.
//!
//! Nothing in them is inline or comes from another host, and the content security policy makes the browser
//! enforce that.

use axum::{
    extract::{Path, Request},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use rust_embed::{EmbeddedFile, RustEmbed};

/// What the pages may load and do: their own files, and requests to their own listener.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers on every answer of a listener that serves pages.
const GUARDS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

#[derive(RustEmbed)]
#[folder = "dashboard/"]
struct Files;

/// `GET /`.
pub(super) async fn index(headers: HeaderMap) -> Response {
    file("index.html", &headers)
}

/// `GET /assets/…`.
pub async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Response {
    file(&path, &headers)
}

/// The file of this name; 304 if the browser has it already.
pub fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some(found) = Files::get(path) else {
        let detail = "There is no such file.";
        return super::Refused::new(StatusCode::NOT_FOUND, "not_found", detail).into_response();
    };
    let tag = tag(&found);
    let known = headers.get(header::IF_NONE_MATCH) == Some(&tag);
    let (status, body) = match known {
        true => (StatusCode::NOT_MODIFIED, Vec::new()),
        false => (StatusCode::OK, found.data.into_owned()),
    };
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(path)));
    // Cacheable, but revalidated each time, so that a new version shows immediately.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::ETAG, tag);
    response
}

/// Adds the headers that restrict pages to their own files.
pub async fn guarded(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in GUARDS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

fn tag(file: &EmbeddedFile) -> HeaderValue {
    let hash = file.metadata.sha256_hash();
    let hex: String = hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    HeaderValue::try_from(format!("\"{hex}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The browser would block them, and break the page.
    #[test]
    fn nothing_is_inline_or_from_elsewhere() {
        let mut pages = 0;
        for name in Files::iter() {
            let file = Files::get(&name).unwrap();
            let text = String::from_utf8(file.data.into_owned()).unwrap();
            if name.ends_with(".html") {
                pages += 1;
                for bad in ["<style", " style=", " onclick=", " onload=", "javascript:"] {
                    assert!(!text.contains(bad), "{name} has {bad}");
                }
                for script in text.split("<script").skip(1) {
                    assert!(script.starts_with(" type=\"module\" src="), "{name}");
                }
            }
            if name.ends_with(".html") || name.ends_with(".css") {
                assert!(!text.contains("//"), "{name} names another host");
            }
            if !name.starts_with("vendor/") {
                assert!(
                    !text.contains("innerHTML"),
                    "{name} builds markup from text"
                );
            }
        }
        assert!(pages >= 1);
    }
}

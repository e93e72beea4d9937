//! Turns a received request into the request that is sent upstream.

use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
    uri::{Authority, InvalidUri, PathAndQuery},
};
use http_body::Body as _;

use onlyonce::Body;
use onlyonce::layer::strip_hop_by_hop;

/// Makes `request` fit for HTTP/1.1 and for any backend; returns its path and query exactly as received.
pub(super) fn prepare(request: &mut Request<Body>) -> PathAndQuery {
    strip_hop_by_hop(request.headers_mut());
    // Our own listener has answered it, and has requested the body if it was wanted.
    request.headers_mut().remove(EXPECT);
    let uri = std::mem::take(request.uri_mut()).into_parts();
    if let Some(host) = uri.authority.as_ref().and_then(host_value) {
        // From `:authority` or an absolute request target, both of which take precedence over Host.
        request.headers_mut().insert(HOST, host);
    }
    *request.version_mut() = Version::HTTP_11;
    frame(request);
    uri.path_and_query
        .unwrap_or_else(|| PathAndQuery::from_static("/"))
}

/// The request target of `path` under `prefix`.
pub(super) fn target(prefix: &str, path: &PathAndQuery) -> Result<Uri, InvalidUri> {
    if prefix.is_empty() || path.as_str() == "*" {
        return Ok(Uri::from(path.clone()));
    }
    let mut joined = BytesMut::with_capacity(prefix.len() + path.as_str().len());
    joined.put_slice(prefix.as_bytes());
    joined.put_slice(path.as_str().as_bytes());
    PathAndQuery::from_maybe_shared(joined.freeze()).map(Uri::from)
}

/// Converts to HTTP/2, which has the host in the target and no framing headers.
pub(super) fn into_http2(request: &mut Request<Body>, scheme: &str) {
    let headers = request.headers_mut();
    headers.remove(TRANSFER_ENCODING);
    let host = headers.remove(HOST);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    if authority.is_some() {
        parts.scheme = scheme.parse().ok();
        parts.authority = authority;
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
}

/// Converts back, for a request that was returned unsent; the next sender sets its target.
pub(super) fn into_http1(request: &mut Request<Body>) {
    if *request.version_mut() != Version::HTTP_2 {
        return;
    }
    if let Some(host) = request.uri().authority().and_then(host_value) {
        request.headers_mut().insert(HOST, host);
    }
    if let Some(target) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = Uri::from(target);
    }
    *request.version_mut() = Version::HTTP_11;
    frame(request);
}

fn host_value(authority: &Authority) -> Option<HeaderValue> {
    let host = authority.as_str();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(host.as_bytes())).ok()
}

/// Sets the framing headers to what the body is, whatever the client sent.
///
/// hyper trusts a given Content-Length, sends none for an empty body, and drops a body of unknown length on
/// GET and HEAD; each of these would change the request.
fn frame(request: &mut Request<Body>) {
    let length = if request.body().is_end_stream() {
        Some(0)
    } else {
        request.body().size_hint().exact()
    };
    let bodiless = matches!(
        *request.method(),
        Method::GET
            | Method::HEAD
            | Method::DELETE
            | Method::OPTIONS
            | Method::TRACE
            | Method::CONNECT
    );
    let headers = request.headers_mut();
    match length {
        Some(0) if bodiless => {
            headers.remove(CONTENT_LENGTH);
        }
        Some(length) => {
            if declared_length(headers) != Some(length) {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
        }
        None => {
            headers.remove(CONTENT_LENGTH);
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
}

/// The Content-Length, if there is exactly one and it is a plain number.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    let digits = value.as_bytes().iter().all(u8::is_ascii_digit);
    value.to_str().ok().filter(|_| digits)?.parse().ok()
}

//! Rules of HTTP about the head of a request that the protocol library does not enforce.

use http::{
    HeaderMap, HeaderValue, Request, Uri, Version, header,
    uri::{Authority, PathAndQuery},
};
use onlyonce::Problem;

/// The bytes around a header: a colon, a space and the line end.
const AROUND_A_HEADER: usize = 4;
/// The bytes around a target: two spaces, the version and the line end; and the empty line after the head.
const AROUND_A_TARGET: usize = 14;
const MAX_PORT_DIGITS: usize = 5;

/// Checks that the request can be read in one way only, and that its head is not too large.
///
/// # Errors
/// What is wrong with the request. Nothing else in it can be trusted then.
pub(super) fn check<B>(request: &Request<B>, max_header_bytes: usize) -> Result<(), Problem> {
    let headers = request.headers();
    if head_bytes(request) > max_header_bytes {
        return Err(Problem::HeadersTooLarge(max_header_bytes as u64));
    }
    if !is_plainly_coded(headers) {
        return Err(Problem::RequestMalformed(
            "its transfer coding is not `chunked` alone",
        ));
    }
    // The library's table for HTTP/2 names allows a quote, unlike the one for HTTP/1. No name has a quote
    // (RFC 9110 5.1), and a backend would be sent a line that is not a header.
    if headers.keys().any(|name| name.as_str().contains('"')) {
        return Err(Problem::RequestMalformed("a header's name has a quote"));
    }
    // Over HTTP/1 such white space is none of the value; over HTTP/2 it is forbidden (RFC 9113 8.2.1), and what
    // is made of it would differ from what the client sees.
    let is_padded = |value: &HeaderValue| value.as_bytes().trim_ascii().len() < value.len();
    if request.version() == Version::HTTP_2 && headers.values().any(is_padded) {
        return Err(Problem::RequestMalformed(
            "a header's value begins or ends with white space",
        ));
    }
    check_host(request)
}

/// Adds the missing path to an absolute target, so that it is routed, compared and forwarded like the same
/// target in its usual form: `http://h?q` is `/?q` (RFC 9110 4.2.3).
pub(super) fn complete_target(uri: &mut Uri) {
    let Some(target) = uri.path_and_query().map(PathAndQuery::as_str) else {
        return;
    };
    if !target.starts_with('?') {
        return;
    }
    let whole = PathAndQuery::try_from(format!("/{target}")).ok();
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = whole;
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// The size of the head in HTTP/1.1, with one space where any number may stand.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let authority = request.uri().authority();
    let authority = authority.map_or(0, |authority| authority.as_str().len());
    let line = request.method().as_str().len() + target + authority + AROUND_A_TARGET;
    let headers = request.headers().iter();
    headers.fold(line, |bytes, (name, value)| {
        bytes + name.as_str().len() + value.len() + AROUND_A_HEADER
    })
}

/// Whether the body has no transfer coding but `chunked`. Transfer codings end at the gateway, so any other
/// coding would be lost, and its bytes would be taken for the body itself.
fn is_plainly_coded(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    codings.next().is_none_or(|first| {
        first.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none()
    })
}

/// Checks that the request names exactly one host (RFC 9112 3.2, RFC 9113 8.3.1).
fn check_host<B>(request: &Request<B>) -> Result<(), Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    // With two hosts, the reader decides what the request means.
    if hosts.next().is_some() {
        return Err(Problem::RequestMalformed("it has more than one Host"));
    }
    let authority = request.uri().authority();
    // A user before the host is a deprecated way to make one host look like another (RFC 9110 4.2.4).
    if authority.is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Problem::RequestMalformed("its target names a user"));
    }
    // The authority replaces Host upstream, so it has to be a valid host (RFC 9110 4.2.1).
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return Err(Problem::RequestMalformed("its target names no host"));
    }
    match host {
        Some(host) if !is_host(host.as_bytes()) => {
            return Err(Problem::RequestMalformed("its Host is not one"));
        }
        None if authority.is_none() && request.version() > Version::HTTP_10 => {
            return Err(Problem::RequestMalformed("it has no Host"));
        }
        _ => {}
    }
    let contradicts = |host: &HeaderValue| {
        authority.is_some_and(|authority| {
            let authority = without_default_port(authority.as_str().as_bytes());
            !without_default_port(host.as_bytes()).eq_ignore_ascii_case(authority)
        })
    };
    // In HTTP/1.1 an absolute target overrides Host; in HTTP/2 they must be equal.
    if request.version() == Version::HTTP_2 && host.is_some_and(contradicts) {
        return Err(Problem::RequestMalformed("its Host is not its authority"));
    }
    Ok(())
}

fn without_default_port(host: &[u8]) -> &[u8] {
    let https = host.strip_suffix(b":443");
    https.or(host.strip_suffix(b":80")).unwrap_or(host)
}

/// Whether `value` is a host, with or without a port.
fn is_host(value: &[u8]) -> bool {
    // Most hosts are a plain name and a number, and need no parser.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let mut parts = value.splitn(2, |byte| *byte == b':');
    let (name, port) = (parts.next().unwrap_or(b""), parts.next().unwrap_or(b""));
    let is_port = port.len() <= MAX_PORT_DIGITS && port.iter().all(u8::is_ascii_digit);
    if !name.is_empty() && name.iter().all(is_plain) && is_port {
        return true;
    }
    let Ok(authority) = Authority::try_from(value) else {
        return false;
    };
    let text = authority.as_str();
    let after_name = text.strip_prefix(authority.host());
    let port = after_name.map(|rest| rest.strip_prefix(':').unwrap_or("0"));
    let digits = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.len() <= MAX_PORT_DIGITS
    };
    !authority.host().is_empty() && !text.contains('@') && port.is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in [
            "a",
            "api.test",
            "API.test:8080",
            "[::1]",
            "[::1]:80",
            "192.0.2.1",
            "a_b",
            "a:",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "", " ", "a b", "a/b", "a?b", "a#b", "u@a", "a:b", "a:1x", "a:123456", "a,b c", "[::1",
            "http://a", "a\\b", ":80",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
        assert!(!is_host(b"a\xffb"));
    }

    fn request(version: Version, uri: &str, hosts: &[&str]) -> Result<(), Problem> {
        let mut request = Request::builder().version(version).uri(uri);
        for host in hosts {
            request = request.header("host", *host);
        }
        check(&request.body(()).unwrap(), 8 << 10)
    }

    #[test]
    fn a_request_names_one_host() {
        use Version as V;
        for (version, uri, hosts) in [
            (V::HTTP_11, "/", &["a"][..]),
            (V::HTTP_10, "/", &[]),
            (V::HTTP_11, "http://b/", &["a"]),
            (V::HTTP_2, "http://a/", &[]),
            (V::HTTP_2, "http://a/", &["A"]),
            (V::HTTP_2, "https://a:443/", &["a"]),
            (V::HTTP_2, "/", &["a"]),
        ] {
            assert_eq!(request(version, uri, hosts), Ok(()), "{uri} {hosts:?}");
        }
        for (version, uri, hosts) in [
            (V::HTTP_11, "/", &[][..]),
            (V::HTTP_11, "/", &["a", "a"]),
            (V::HTTP_11, "/", &[""]),
            (V::HTTP_10, "/", &["a b"]),
            (V::HTTP_2, "/", &[]),
            (V::HTTP_2, "http://a/", &["b"]),
            (V::HTTP_2, "http://a:81/", &["a"]),
            (V::HTTP_2, "http://u@a/", &[]),
            (V::HTTP_11, "http://u:p@a/", &["a"]),
            (V::HTTP_11, "http://:80/", &["a"]),
            (V::HTTP_2, "http://:80/", &[]),
            (V::HTTP_11, "http://a:1x/", &["a"]),
        ] {
            assert!(request(version, uri, hosts).is_err(), "{uri} {hosts:?}");
        }
    }

    /// The table of the library for names in lower case, which HTTP/2 is read with.
    #[test]
    fn a_name_has_no_quote() {
        let name = http::HeaderName::from_lowercase(b"a\"b").expect(
            "should the library refuse it, \
             the check is not needed any more",
        );
        let mut request = Request::new(());
        request
            .headers_mut()
            .insert("host", HeaderValue::from_static("a"));
        assert!(check(&request, 8 << 10).is_ok());
        request
            .headers_mut()
            .insert(name, HeaderValue::from_static("1"));
        assert!(check(&request, 8 << 10).is_err());
    }

    #[test]
    fn a_target_has_a_path() {
        for (given, whole) in [
            ("http://a?q=1", "http://a/?q=1"),
            ("http://a", "http://a/"),
            ("http://a/p?q", "http://a/p?q"),
            ("/?q", "/?q"),
            ("*", "*"),
        ] {
            let mut uri = given.parse().unwrap();
            complete_target(&mut uri);
            assert_eq!(uri.to_string(), whole);
            let target = uri.path_and_query().unwrap().as_str();
            assert!(target.starts_with(['/', '*']), "{given}: {target}");
        }
    }

    #[test]
    fn a_head_is_measured_to_the_byte() {
        let text = "POST /p?q=1 HTTP/1.1\r\nhost: a\r\nx-filler: ";
        for (filler, fits) in [
            (8_192 - text.len() - 4, true),
            (8_192 - text.len() - 3, false),
        ] {
            let request = Request::post("/p?q=1").header("host", "a");
            let request = request.header("x-filler", "v".repeat(filler)).body(());
            let checked = check(&request.unwrap(), 8_192);
            assert_eq!(checked.is_ok(), fits, "{filler}");
        }
    }
}

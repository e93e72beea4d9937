//! Hop-by-hop headers, which must not cross the gateway in either direction.
//!
//! Deliberately absent: framing. Content-Length and Transfer-Encoding are set where a message is written,
//! because only that code knows the body.

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        AUTHORIZATION, CONNECTION, COOKIE, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};

/// Removed whether or not `Connection` names them (RFC 9110 7.6.1, and RFC 2616 13.5.1 for the older ones).
const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Headers that say whom a request is for and who sends it. `Connection` has no say over them.
const END_TO_END: [HeaderName; 4] = [
    HOST,
    AUTHORIZATION,
    COOKIE,
    HeaderName::from_static("x-api-key"),
];

/// Whether [`strip_hop_by_hop`] has to do with a header of this name. One pass over the names costs less than
/// one lookup for each header of the list, and nearly always there is none.
fn concerns_one_hop(name: &HeaderName) -> bool {
    *name == CONNECTION || *name == TE || HOP_BY_HOP.contains(name)
}

/// Removes what concerns only the connection of the message: `Connection`, the headers it names, and the
/// headers that are hop-by-hop by definition.
///
/// `TE: trailers` stays, because this gateway forwards trailers.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(concerns_one_hop) {
        return;
    }
    if headers.contains_key(CONNECTION) {
        for name in named_in_connection(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    if headers.contains_key(TE) {
        let trailers = headers.get_all(TE).iter().any(accepts_trailers);
        headers.remove(TE);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// Removes from `Connection` the names of headers that are for the other end, including `more`. A host or a
/// credential that was compared here must reach the upstream: otherwise a client could be admitted by a
/// credential that the upstream never sees.
pub fn keep_end_to_end(headers: &mut HeaderMap, more: &[HeaderName]) {
    let is_kept = |name: &HeaderName| END_TO_END.contains(name) || more.contains(name);
    if !headers.contains_key(CONNECTION) || !named_in_connection(headers).iter().any(is_kept) {
        return;
    }
    let lines: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    headers.remove(CONNECTION);
    for line in lines {
        let options = line.as_bytes().split(|byte| *byte == b',');
        let kept: Vec<&[u8]> = options
            .map(<[u8]>::trim_ascii)
            .filter(|option| !HeaderName::from_bytes(option).is_ok_and(|name| is_kept(&name)))
            .collect();
        if let Ok(line) = HeaderValue::from_bytes(&kept.join(&b", "[..])) {
            headers.append(CONNECTION, line);
        }
    }
}

/// The protocols to which a request asks to upgrade its connection, WebSocket for instance. Whether it may is
/// another question: what the layer protects never changes its protocol.
///
/// Other versions of HTTP are excluded: some clients ask for `h2c` with every request, and all of those would
/// be unprotected. TLS is excluded too, since it is the listener's concern.
pub fn wanted_upgrade(version: Version, headers: &HeaderMap) -> Option<&HeaderValue> {
    if version != Version::HTTP_11 || !names_upgrade(headers) {
        return None;
    }
    let mut values = headers.get_all(UPGRADE).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    let may_pass = |protocol: &[u8]| {
        let name = protocol.split(|byte| *byte == b'/').next();
        let name = name.unwrap_or_default().trim_ascii();
        !name.is_empty()
            && ![&b"h2c"[..], b"h2", b"http", b"tls"]
                .iter()
                .any(|taken| name.eq_ignore_ascii_case(taken))
    };
    let passes = value.as_bytes().split(|byte| *byte == b',').all(may_pass);
    passes.then_some(value)
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

/// The header names that `Connection` declares hop-by-hop.
///
/// The everyday values name no header and are skipped, so that they cost no allocation. `TE` has a rule of
/// its own.
pub(super) fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| {
            !(option.eq_ignore_ascii_case(b"keep-alive")
                || option.eq_ignore_ascii_case(b"close")
                || option.eq_ignore_ascii_case(b"te"))
        })
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .collect()
}

fn accepts_trailers(value: &HeaderValue) -> bool {
    value
        .as_bytes()
        .split(|byte| *byte == b',')
        .any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        headers
    }

    #[test]
    fn what_connection_names_goes_and_the_rest_stays() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-One"),
            ("connection", " x-two ,, not a name"),
            ("x-one", "1"),
            ("x-one", "1 again"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("authorization", "Bearer t"),
            ("content-type", "text/plain"),
        ]);
        strip_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [AUTHORIZATION.as_str(), CONTENT_TYPE.as_str(), "x-three"]
        );
    }

    #[test]
    fn host_and_credentials_are_no_matter_of_one_hop() {
        for (connection, left) in [
            ("Authorization", ""),
            ("Host", ""),
            ("close, authorization ,X-One", "close, X-One"),
            ("X-Tenant, x-api-key,Cookie", ""),
        ] {
            let mut headers = map(&[
                ("x-one", "1"),
                ("host", "a.test"),
                ("authorization", "Bearer t"),
                ("x-api-key", "k"),
                ("cookie", "session=a"),
                ("x-tenant", "t"),
            ]);
            headers.insert(CONNECTION, HeaderValue::from_static(connection));
            keep_end_to_end(&mut headers, &[HeaderName::from_static("x-tenant")]);
            assert_eq!(headers[CONNECTION], left, "{connection}");
            strip_hop_by_hop(&mut headers);
            let names = ["host", "authorization", "x-api-key", "cookie", "x-tenant"];
            assert!(
                names.iter().all(|name| headers.contains_key(*name)),
                "{connection}"
            );
            assert_eq!(headers.contains_key("x-one"), !connection.contains("X-One"));
        }
    }

    #[test]
    fn the_fixed_list_goes_without_being_named() {
        let mut headers = map(&[
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authenticate", "Basic"),
            ("proxy-authorization", "Basic x"),
            ("te", "gzip"),
            ("trailer", "x-sum"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty(), "{headers:?}");
    }

    #[test]
    fn te_keeps_trailers_alone() {
        let mut headers = map(&[
            ("connection", "TE"),
            ("te", "gzip;q=0.5"),
            ("te", "Trailers"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("te", "trailers")]));
    }
}

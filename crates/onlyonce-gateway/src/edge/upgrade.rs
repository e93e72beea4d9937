//! Which requests ask for another protocol on their connection, a WebSocket for instance.

use http::{HeaderMap, HeaderValue, Request, Version, header};

/// What a request asks for, as a request extension.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade(pub(crate) HeaderValue);

/// The protocols that `request` asks for, where a gateway may let them through.
///
/// Another HTTP is not among them: what came over it would meet neither a route nor a key (some
/// clients ask for `h2c` with every request). Neither is TLS, which is this listener's own affair.
pub(super) fn wanted<B>(request: &Request<B>) -> Option<Upgrade> {
    let headers = request.headers();
    if request.version() != Version::HTTP_11 || !names_upgrade(headers) {
        return None;
    }
    let mut values = headers.get_all(header::UPGRADE).iter();
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
    passes.then(|| Upgrade(value.clone()))
}

fn names_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(connection: &str, upgrade: &[&str]) -> bool {
        let mut request = Request::builder().header("connection", connection);
        for value in upgrade {
            request = request.header("upgrade", *value);
        }
        wanted(&request.body(()).unwrap()).is_some()
    }

    #[test]
    fn other_protocols_pass_and_other_http_does_not() {
        assert!(asks("Upgrade", &["websocket"]));
        assert!(asks("keep-alive, upgrade", &["foo/2, bar"]));
        for (connection, upgrade) in [
            ("keep-alive", &["websocket"][..]),
            ("Upgrade", &[]),
            ("Upgrade", &["h2c"]),
            ("Upgrade, HTTP2-Settings", &["H2C"]),
            ("Upgrade", &["websocket, h2c"]),
            ("Upgrade", &["HTTP/2.0"]),
            ("Upgrade", &["TLS/1.0"]),
            ("Upgrade", &["websocket", "h2c"]),
            ("Upgrade", &[""]),
        ] {
            assert!(!asks(connection, upgrade), "{connection} {upgrade:?}");
        }
    }
}

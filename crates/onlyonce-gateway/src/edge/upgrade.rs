//! Which requests ask for another protocol on their connection, a WebSocket for instance.

use http::{HeaderValue, Request};
use onlyonce::layer::wanted_upgrade;

/// What a request asks for, as a request extension.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade(pub(crate) HeaderValue);

/// The protocols that `request` asks for, where a gateway may let them through.
pub(super) fn wanted<B>(request: &Request<B>) -> Option<Upgrade> {
    wanted_upgrade(request.version(), request.headers()).map(|value| Upgrade(value.clone()))
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

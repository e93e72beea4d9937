//! Which requests may upgrade their connection to another protocol, such as WebSocket.

use http::{HeaderValue, Method, Request};
use onlyonce::{Policy, layer::wanted_upgrade};

/// The requested protocols, as a request extension.
#[derive(Clone, Debug)]
pub(crate) struct Upgrade(pub(crate) HeaderValue);

/// The upgrade that `request` asks for, if it is allowed. Otherwise the request is forwarded without the
/// upgrade.
///
/// On a protected route only GET may upgrade, and only if it is not itself protected: a server that ignores
/// the upgrade could execute any other request.
pub(super) fn granted<B>(
    request: &Request<B>,
    policy: &Policy,
    is_protected: bool,
) -> Option<Upgrade> {
    let is_open = !policy.enabled || policy.shadow;
    let may = is_open || (request.method() == Method::GET && !is_protected);
    wanted(request).filter(|_| may)
}

/// The protocols that `request` asks for, if a gateway may forward them.
fn wanted<B>(request: &Request<B>) -> Option<Upgrade> {
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
    fn only_get_upgrades_where_keys_are_honoured() {
        let asks = |method: &str| {
            let request = Request::builder().method(method);
            let request = request.header("connection", "upgrade");
            request.header("upgrade", "websocket").body(()).unwrap()
        };
        let protects = Policy::default();
        let off = Policy::builder().enabled(false).build();
        let observes = Policy::builder().shadow(true).build();
        for method in ["GET", "get", "HEAD", "POST", "post", "DELETE", "OPTIONS"] {
            let is_get = method == "GET";
            assert_eq!(granted(&asks(method), &protects, false).is_some(), is_get);
            assert!(granted(&asks(method), &protects, true).is_none());
            assert!(granted(&asks(method), &off, false).is_some());
            assert!(granted(&asks(method), &observes, true).is_some());
        }
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

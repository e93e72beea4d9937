//! The headers that tell a backend about a request's origin: its address, protocol, host and request id.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{FORWARDED, HOST},
};

use onlyonce::Body;

use crate::{
    config::{Forwarded, ForwardedHeaders},
    edge::{Came, RequestId, X_REQUEST_ID},
};

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST_ASKED: HeaderName = HeaderName::from_static("x-forwarded-host");
const PORT: HeaderName = HeaderName::from_static("x-forwarded-port");

/// The most headers added to a request.
const MARKS: usize = 4;

/// How the requests of one route are marked.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding {
    config: Forwarded,
    /// The header of the key, which is never changed.
    spared: HeaderName,
}

impl Forwarding {
    pub(crate) fn new(config: Forwarded, spared: HeaderName) -> Self {
        Self { config, spared }
    }

    /// Marks `request`, whose hop-by-hop headers were removed and whose `Host` is the client's.
    pub(super) fn mark(&self, request: &mut Request<Body>) {
        if let Some(RequestId(id)) = request.extensions_mut().remove() {
            self.set(request.headers_mut(), X_REQUEST_ID, id);
        }
        let Some(came) = request.extensions().get::<Came>().copied() else {
            return;
        };
        if self.config.headers == ForwardedHeaders::None {
            return;
        }
        let headers = request.headers_mut();
        headers.reserve(MARKS);
        let peer = came.peer.to_canonical();
        if !self.config.trust.iter().any(|block| block.contains(peer)) {
            for name in [FOR, PROTO, HOST_ASKED, PORT, FORWARDED] {
                if name != self.spared {
                    headers.remove(name);
                }
            }
        }
        let host = headers.get(HOST).cloned();
        let scheme = if came.is_secure { "https" } else { "http" };
        if self.config.headers != ForwardedHeaders::Forwarded {
            self.append(headers, FOR, &peer.to_string());
            self.set_if_absent(headers, PROTO, Some(HeaderValue::from_static(scheme)));
            self.set_if_absent(headers, HOST_ASKED, host.clone());
        }
        if self.config.headers != ForwardedHeaders::XForwarded {
            self.append(headers, FORWARDED, &element(peer, scheme, host.as_ref()));
        }
    }

    fn set(&self, headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) {
        if name != self.spared {
            headers.insert(name, value);
        }
    }

    fn set_if_absent(&self, headers: &mut HeaderMap, name: HeaderName, value: Option<HeaderValue>) {
        if let Some(value) = value
            && !headers.contains_key(&name)
        {
            self.set(headers, name, value);
        }
    }

    /// Appends `element` to a list header, joined into one line.
    fn append(&self, headers: &mut HeaderMap, name: HeaderName, element: &str) {
        if !headers.contains_key(&name) {
            if let Ok(value) = HeaderValue::from_str(element) {
                self.set(headers, name, value);
            }
            return;
        }
        let mut list: Vec<u8> = Vec::new();
        for value in headers.get_all(&name) {
            list.extend_from_slice(value.as_bytes());
            list.extend_from_slice(b", ");
        }
        list.extend_from_slice(element.as_bytes());
        if let Ok(value) = HeaderValue::from_bytes(&list) {
            self.set(headers, name, value);
        }
    }
}

/// One element of `Forwarded` (RFC 7239 4).
fn element(peer: IpAddr, scheme: &str, host: Option<&HeaderValue>) -> String {
    let mut text = match peer {
        IpAddr::V4(peer) => format!("for={peer}"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
    };
    text.push_str(";proto=");
    text.push_str(scheme);
    // A host consists of letters, digits and a few symbols; any other value is left out rather than escaped.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(byte);
    let host = host.filter(|host| host.as_bytes().iter().all(is_plain));
    if let Some(host) = host.and_then(|host| host.to_str().ok()) {
        text.push_str(&format!(";host=\"{host}\""));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(headers: ForwardedHeaders, trust: &[&str], sent: &[(&str, &str)]) -> HeaderMap {
        let mut request = Request::new(Body::empty());
        for (name, value) in sent {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            request
                .headers_mut()
                .append(name, HeaderValue::from_str(value).unwrap());
        }
        request.extensions_mut().insert(Came {
            peer: "::ffff:192.0.2.7".parse().unwrap(),
            is_secure: true,
        });
        let trust = trust.iter().map(|block| block.parse().unwrap()).collect();
        let spared = HeaderName::from_static("idempotency-key");
        Forwarding::new(Forwarded { headers, trust }, spared).mark(&mut request);
        request.headers().clone()
    }

    fn one<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
        let mut values = headers.get_all(name).iter();
        let value = values.next().map(|value| value.to_str().unwrap());
        assert!(values.next().is_none(), "{name}");
        value
    }

    const SENT: &[(&str, &str)] = &[
        ("host", "api.test"),
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-proto", "http"),
        ("forwarded", "for=203.0.113.9"),
    ];

    #[test]
    fn a_strangers_word_is_replaced() {
        let headers = marked(ForwardedHeaders::XForwarded, &["10.0.0.0/8"], SENT);
        assert_eq!(one(&headers, "x-forwarded-for"), Some("192.0.2.7"));
        assert_eq!(one(&headers, "x-forwarded-proto"), Some("https"));
        assert_eq!(one(&headers, "x-forwarded-host"), Some("api.test"));
        assert_eq!(one(&headers, "forwarded"), None);
    }

    #[test]
    fn a_trusted_proxys_word_is_added_to() {
        let headers = marked(ForwardedHeaders::Both, &["192.0.2.0/24"], SENT);
        let all = "203.0.113.9, 198.51.100.1, 192.0.2.7";
        assert_eq!(one(&headers, "x-forwarded-for"), Some(all));
        assert_eq!(one(&headers, "x-forwarded-proto"), Some("http"));
        let all = "for=203.0.113.9, for=192.0.2.7;proto=https;host=\"api.test\"";
        assert_eq!(one(&headers, "forwarded"), Some(all));
    }

    #[test]
    fn none_touches_nothing() {
        let headers = marked(ForwardedHeaders::None, &[], SENT);
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 2);
        assert_eq!(one(&headers, "forwarded"), Some("for=203.0.113.9"));
    }

    #[test]
    fn the_header_of_the_key_is_spared() {
        let forwarding = Forwarding::new(Forwarded::default(), X_REQUEST_ID);
        let mut request = Request::new(Body::empty());
        let key = HeaderValue::from_static("the-key");
        request.headers_mut().insert(X_REQUEST_ID, key.clone());
        let made = HeaderValue::from_static("made");
        request.extensions_mut().insert(RequestId(made));
        forwarding.mark(&mut request);
        assert_eq!(request.headers().get(X_REQUEST_ID), Some(&key));
    }
}

//! A backend of a route.

use http::Uri;

use crate::tls::Trust;

/// One upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    /// The name or address to connect to; an IPv6 address has no brackets here.
    pub host: String,
    /// The port to connect to.
    pub port: u16,
    /// The prefix of every path: empty, or starts with a slash and does not end with one.
    pub prefix: String,
    /// The backend's weight among the route's backends.
    pub weight: u32,
    /// The trusted authorities; `None` for plain text.
    pub tls: Option<Trust>,
    /// Whether to use HTTP/2; `None` leaves that to the TLS handshake, if there is one.
    pub http2: Option<bool>,
}

/// Why a text is not the URL of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BackendUrlError {
    /// No URL, or one without a scheme.
    #[error("a backend is a URL with scheme and host")]
    Form,
    /// A scheme other than `http` and `https`.
    #[error("the scheme of a backend is `http` or `https`")]
    Scheme,
    /// `user:password@`.
    #[error("credentials have no place in a backend's URL")]
    Credentials,
    /// `?…` or `#…`.
    #[error("a backend's URL ends with its path")]
    Tail,
    /// Not 1 to 65535.
    #[error("this is not a port")]
    Port,
}

impl BackendUrlError {
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::Form | Self::Scheme | Self::Port => "for example `http://127.0.0.1:3000`",
            Self::Credentials => "the client's own credentials are forwarded unchanged",
            Self::Tail => "the path and query of each request are put after it",
        }
    }
}

impl Backend {
    /// Parses `http://HOST[:PORT][/PREFIX]`, or the same with `https://`.
    pub(crate) fn parse(text: &str) -> Result<Self, BackendUrlError> {
        if text.contains(['?', '#']) {
            return Err(BackendUrlError::Tail);
        }
        let uri: Uri = text.parse().map_err(|_| BackendUrlError::Form)?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(Trust::public()),
            Some(_) => return Err(BackendUrlError::Scheme),
            None => return Err(BackendUrlError::Form),
        };
        let authority = uri.authority().ok_or(BackendUrlError::Form)?;
        if authority.as_str().contains('@') {
            return Err(BackendUrlError::Credentials);
        }
        let host = authority.host();
        // `Uri::port` ignores a port that is out of range.
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => default_port(tls.is_some()),
            Some(rest) => rest
                .strip_prefix(':')
                .and_then(|digits| digits.parse().ok())
                .filter(|port| *port != 0)
                .ok_or(BackendUrlError::Port)?,
            None => return Err(BackendUrlError::Form),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(BackendUrlError::Form);
        }
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            host: host.to_owned(),
            port,
            prefix,
            weight: 1,
            tls,
            http2: None,
        })
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Host and port as in a URL or a `Host` header.
    pub(crate) fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        if self.port == default_port(self.tls.is_some()) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

fn default_port(has_tls: bool) -> u16 {
    if has_tls { 443 } else { 80 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let backend = |host: &str, port, prefix: &str| {
            Ok(Backend {
                host: host.to_owned(),
                port,
                prefix: prefix.to_owned(),
                weight: 1,
                tls: None,
                http2: None,
            })
        };
        let secured = |port| {
            let plain = backend("payments", port, "")?;
            let tls = Some(Trust::public());
            Ok(Backend { tls, ..plain })
        };
        for (text, expected) in [
            ("http://127.0.0.1:3000", backend("127.0.0.1", 3000, "")),
            ("http://payments", backend("payments", 80, "")),
            ("http://payments:8080/v1/", backend("payments", 8080, "/v1")),
            ("http://[::1]:3000/", backend("::1", 3000, "")),
            ("https://payments", secured(443)),
            ("https://payments:80", secured(80)),
            ("ftp://payments", Err(BackendUrlError::Scheme)),
            ("payments:8080", Err(BackendUrlError::Form)),
            ("", Err(BackendUrlError::Form)),
            ("http://", Err(BackendUrlError::Form)),
            ("http://me:pw@payments", Err(BackendUrlError::Credentials)),
            ("http://payments?x=1", Err(BackendUrlError::Tail)),
            ("http://payments#top", Err(BackendUrlError::Tail)),
            ("http://payments:99999", Err(BackendUrlError::Port)),
            ("http://payments:0", Err(BackendUrlError::Port)),
        ] {
            assert_eq!(Backend::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn authorities() {
        for text in ["127.0.0.1:3000", "payments", "[::1]:3000", "[::1]"] {
            let backend = Backend::parse(&format!("http://{text}")).unwrap();
            assert_eq!(backend.authority(), text);
        }
    }
}

//! The destination of a request: a URL, parsed once.

use std::net::IpAddr;

use http::Uri;

/// Host, port, path and query of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it is `https://`.
    pub tls: bool,
    /// The host, an IPv6 address without its brackets.
    pub host: String,
    /// The port, given or implied.
    pub port: u16,
    /// Host and port as in the `Host` header.
    pub authority: String,
    /// The path, never empty.
    pub path: String,
    /// The text after the question mark.
    pub query: Option<String>,
}

/// Why a URL cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    /// The text is not an HTTP URL.
    #[error("this is not a URL such as http://127.0.0.1:8080/payments")]
    NotAUrl,
    /// The URL contains a user name or a password.
    #[error("credentials do not belong into a URL: give them with --header")]
    UserInfo,
    /// The port is not a number from 1 to 65535.
    #[error("its port is no number from 1 to 65535")]
    Port,
}

impl Endpoint {
    /// Parses `url`.
    ///
    /// # Errors
    /// Why the URL cannot be used; the error does not repeat it.
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let uri: Uri = url.parse().map_err(|_| BadUrl::NotAUrl)?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(BadUrl::NotAUrl),
        };
        let authority = uri.authority().ok_or(BadUrl::NotAUrl)?;
        if authority.as_str().contains('@') {
            return Err(BadUrl::UserInfo);
        }
        let host = uri.host().ok_or(BadUrl::NotAUrl)?;
        // `Uri::port` ignores an invalid port.
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => {
                if tls {
                    443
                } else {
                    80
                }
            }
            Some(rest) => rest
                .strip_prefix(':')
                .and_then(|digits| digits.parse().ok())
                .filter(|port| *port != 0)
                .ok_or(BadUrl::Port)?,
            None => return Err(BadUrl::NotAUrl),
        };
        let path = if uri.path().is_empty() {
            "/"
        } else {
            uri.path()
        };
        Ok(Self {
            tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            authority: authority.as_str().to_owned(),
            path: path.to_owned(),
            query: uri.query().map(str::to_owned),
        })
    }

    /// Path and query as they go on the wire.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }

    /// The URL for people, without the query, which may hold a credential.
    pub fn shown(&self) -> String {
        let query = if self.query.is_some() { "?…" } else { "" };
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}{query}", self.authority, self.path)
    }

    /// A copy with one more query parameter.
    pub fn with_parameter(&self, parameter: &str) -> Self {
        let query = match &self.query {
            Some(query) => format!("{query}&{parameter}"),
            None => parameter.to_owned(),
        };
        Self {
            query: Some(query),
            ..self.clone()
        }
    }

    /// A copy with one more path segment.
    pub fn below(&self, segment: &str) -> Self {
        Self {
            path: format!("{}/{segment}", self.path.trim_end_matches('/')),
            ..self.clone()
        }
    }

    /// Whether the host is this machine.
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let endpoint = Endpoint::parse("http://[::1]:8080/a?b=c").unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port), ("::1", 8080));
        assert_eq!(endpoint.target(), "/a?b=c");
        assert_eq!(endpoint.shown(), "http://[::1]:8080/a?…");
        assert!(endpoint.is_loopback());
        assert_eq!(endpoint.with_parameter("d=1").target(), "/a?b=c&d=1");
        assert_eq!(endpoint.below("x").path, "/a/x");
        assert!(!Endpoint::parse("http://api.example").unwrap().is_loopback());
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let tls = Endpoint::parse("https://a/").unwrap();
        assert!(tls.tls && tls.port == 443);
        assert_eq!(Endpoint::parse("http://u:p@a/"), Err(BadUrl::UserInfo));
        for text in ["", "/payments", "ftp://a/", "http://"] {
            assert_eq!(Endpoint::parse(text), Err(BadUrl::NotAUrl), "{text}");
        }
        for text in [
            "http://a:x/",
            "http://a:99999/",
            "http://a:0/",
            "http://a:/",
        ] {
            assert_eq!(Endpoint::parse(text), Err(BadUrl::Port), "{text}");
        }
    }
}

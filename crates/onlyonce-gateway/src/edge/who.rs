//! The identity of an authenticated request: the scope of its key, and what distinguishes callers that share
//! a scope.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, HeaderName, header::COOKIE, request::Parts};
use onlyonce::Identity;
use onlyonce_core::{Scope, policy::KeyScope};

use crate::{auth::ClientId, config::Route};

/// How the callers of one route are distinguished.
pub(super) struct Who {
    route: String,
    per_client: bool,
    per_route: bool,
    credential_headers: Vec<HeaderName>,
    credential_cookies: Vec<String>,
    /// The key's header, if a request without it needs no identity.
    needless_without: Option<HeaderName>,
}

impl Who {
    pub(super) fn new(route: &Route) -> Self {
        Self {
            route: route.id.clone(),
            per_client: route.edge.key_scope == Some(KeyScope::PerClient),
            per_route: route.edge.key_per_route,
            credential_headers: route.edge.credential_headers.clone(),
            credential_cookies: route.edge.credential_cookies.clone(),
            needless_without: route
                .auth_optional
                .then(|| route.policy.header_name.clone()),
        }
    }

    /// The request's identity; `None` if keys are per client and the client is not known.
    pub(super) fn identity(
        &self,
        headers: &HeaderMap,
        client: Option<&ClientId>,
    ) -> Option<Identity> {
        if self.per_client {
            let Some(client) = client.map(ClientId::as_str) else {
                let header = self.needless_without.as_ref()?;
                // If at all, the request is refused for the missing key, and no scope is touched.
                let nobody = || Identity::shared(Scope::global(), Vec::new());
                return (!headers.contains_key(header)).then(nobody);
            };
            return Some(match self.per_route {
                true => Identity::client_of_route(&self.route, client),
                false => Identity::client(client),
            });
        }
        let scope = match self.per_route {
            true => Scope::route(&self.route, None),
            false => Scope::global(),
        };
        if let Some(client) = client.map(ClientId::as_str) {
            let caller = vec![b"client".to_vec(), client.as_bytes().to_vec()];
            return Some(Identity::shared(scope, caller).of_client(client));
        }
        let identity = Identity::shared(scope, self.credentials(headers));
        Some(identity.with_cookies(self.cookies(headers)))
    }

    /// Without authentication, equal credentials mean the same caller.
    fn credentials(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        let mut caller = Vec::new();
        for name in &self.credential_headers {
            for value in headers.get_all(name) {
                caller.push(name.as_str().as_bytes().to_vec());
                caller.push(value.as_bytes().to_vec());
            }
        }
        caller
    }

    /// The cookies that carry a session, and none of the others, which change from request to request.
    fn cookies(&self, headers: &HeaderMap) -> Vec<Vec<u8>> {
        if self.credential_cookies.is_empty() || !headers.contains_key(COOKIE) {
            return Vec::new();
        }
        let mut found = Vec::new();
        // In the order of the list, whatever the order in the header.
        for name in &self.credential_cookies {
            for (_, value) in pairs(headers).filter(|(sent, _)| *sent == name.as_bytes()) {
                found.push(name.as_bytes().to_vec());
                found.push(value.to_vec());
            }
        }
        found
    }
}

/// Detects callers that only an unlisted cookie distinguishes: two sessions would count as one caller. Warns
/// once, since the cause is the configuration.
#[derive(Default)]
pub(super) struct UnmarkedSessions {
    is_said: AtomicBool,
}

impl UnmarkedSessions {
    pub(super) fn watch(&self, who: &Who, request: &Parts) {
        let headers = &request.headers;
        if self.is_said.load(Ordering::Relaxed) || !headers.contains_key(COOKIE) {
            return;
        }
        let is_known = request.extensions.get::<ClientId>().is_some()
            || !who.credentials(headers).is_empty()
            || !who.cookies(headers).is_empty();
        if is_known {
            return;
        }
        let Some(name) = pairs(headers).find_map(|(name, _)| session_name(name)) else {
            return;
        };
        if !self.is_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                route = who.route,
                cookie = name,
                "a cookie that looks like a session does not tell callers apart; if it is one, add it to \
                 credential_cookies"
            );
        }
    }
}

/// The longest cookie name that is logged, in bytes.
const MAX_LOGGED_NAME: usize = 64;

/// `name`, if it looks like the name of a session cookie.
fn session_name(name: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(name).ok()?;
    if name.len() > MAX_LOGGED_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let is_forgery_token = lower.contains("csrf") || lower.contains("xsrf");
    let words = ["sess", "auth", "token", "jwt", "login"];
    let is_session = lower.ends_with("sid") || words.iter().any(|word| lower.contains(word));
    (is_session && !is_forgery_token).then_some(name)
}

/// The cookies of a request, by name and value.
fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = headers.get_all(COOKIE).iter();
    let pieces = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pieces.filter_map(|piece| {
        let piece = piece.trim_ascii();
        let at = piece.iter().position(|byte| *byte == b'=')?;
        Some((
            piece[..at].trim_ascii_end(),
            piece[at + 1..].trim_ascii_start(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_sessions_own_value_counts() {
        let who = Who {
            route: "r".to_owned(),
            per_client: false,
            per_route: false,
            credential_headers: Vec::new(),
            credential_cookies: vec!["JSESSIONID".to_owned(), "session".to_owned()],
            needless_without: None,
        };
        let read = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(COOKIE, HeaderValue::from_static(line));
            }
            let found = who.cookies(&headers);
            let found: Vec<String> = found
                .into_iter()
                .map(|part| String::from_utf8(part).unwrap())
                .collect();
            found.join(" ")
        };
        for lines in [
            &["session=a"][..],
            &["_ga=1; session=a; theme=dark"],
            &["_ga=2;session=a", "other=x"],
            &[" session = a "],
        ] {
            assert_eq!(read(lines), "session a", "{lines:?}");
        }
        assert_eq!(read(&["session=b; JSESSIONID=a"]), "JSESSIONID a session b");
        assert_eq!(read(&["session=a=b"]), "session a=b");
        assert_eq!(read(&["Session=a; xsession=a; session"]), "");
        assert_eq!(read(&["session=a; session=b"]), "session a session b");
    }
}

//! Dashboard sign-in: the admin token is exchanged for a cookie that scripts cannot read.
//!
//! A session stores only the role of its token. It lives in this process, so a restart ends it. A change
//! through a session must come from a page of this listener: a form or script of another site may carry the
//! cookie, but neither the header nor the origin. Deliberately absent: such checks on requests with a bearer
//! token, which no browser sends by itself.

use std::{collections::HashMap, time::Duration};

use aws_lc_rs::digest::{SHA256, digest};
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Admin, Refused};

/// The most sessions; one more ends the oldest.
const MAX_SESSIONS: usize = 1_000;
/// How long a session lasts.
const LIFETIME: Duration = Duration::from_secs(12 * 3_600);
/// The largest sign-in body, in bytes: it holds a token, and anybody may send one.
const MAX_SIGN_IN: usize = 4 << 10;
/// The random part of a session's id, in bytes.
const ID_BYTES: usize = 32;
/// The header on every change from the dashboard. A page of another site could send it only after a CORS
/// preflight, which this listener never grants.
const PAGE_HEADER: &str = "x-onlyonce-page";

/// What a token, or a session opened with it, permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Read and change.
    Operator,
    /// Read only.
    ReadOnly,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ReadOnly => "read_only",
        }
    }
}

/// The stored hash of a session's id, which is useless for signing in.
pub(super) type Mark = [u8; 32];

/// The sessions of this process.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Mark, (Role, Instant)>>);

impl Sessions {
    /// Opens a session and returns its id.
    fn open(&self, role: Role) -> Option<String> {
        let mut id = [0_u8; ID_BYTES];
        aws_lc_rs::rand::fill(&mut id).ok()?;
        let id = URL_SAFE_NO_PAD.encode(id);
        let mut live = self.0.lock();
        live.retain(|_, (_, began)| began.elapsed() < LIFETIME);
        if live.len() >= MAX_SESSIONS {
            let oldest = live.iter().min_by_key(|(_, (_, began))| *began);
            if let Some(oldest) = oldest.map(|(mark, _)| *mark) {
                live.remove(&oldest);
            }
        }
        live.insert(mark(&id), (role, Instant::now()));
        Some(id)
    }

    /// The role of this session, while it lasts.
    pub(super) fn role(&self, mark: &Mark) -> Option<Role> {
        let (role, began) = *self.0.lock().get(mark)?;
        (began.elapsed() < LIFETIME).then_some(role)
    }

    fn close(&self, mark: &Mark) {
        self.0.lock().remove(mark);
    }

    /// Ends all sessions.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

fn mark(id: &str) -> Mark {
    let hash = digest(&SHA256, id.as_bytes());
    let mut mark = [0; 32];
    mark.copy_from_slice(hash.as_ref());
    mark
}

/// The mark of the session that the request's cookie names, whether that session exists or not.
pub(super) fn marked(headers: &HeaderMap) -> Option<Mark> {
    let name = cookie_name(headers);
    let lines = headers.get_all(header::COOKIE).into_iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, id)| mark(id))
}

/// Cookies ignore ports, so the port is in the name: two gateways on one machine have separate sessions.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let port = host
        .and_then(|host| host.rsplit_once(':'))
        .and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(port) => format!("onlyonce_session_{port}"),
        None => "onlyonce_session".to_owned(),
    }
}

/// Whether a change comes from a page of this listener.
pub fn is_from_own_page(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let same_site = text("sec-fetch-site").is_none_or(|site| site == "same-origin");
    let same_origin = match (text("origin"), text("host")) {
        (Some(origin), Some(host)) => origin
            .split_once("://")
            .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host)),
        _ => false,
    };
    headers.contains_key(PAGE_HEADER) && same_site && same_origin
}

/// The refusal of a change that another site may have made.
pub fn forged() -> Refused {
    let detail = "This was not sent by the dashboard of this gateway. Nothing was changed.";
    Refused::new(StatusCode::FORBIDDEN, "forbidden", detail)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
}

/// `POST /session`: signs in.
pub(super) async fn sign_in(
    State(admin): State<Admin>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Refused> {
    // Checked before waiting for the body, since anybody may send one.
    if !is_from_own_page(&headers) {
        return Err(forged());
    }
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_SIGN_IN).await;
    let given: Option<SignIn> = body
        .ok()
        .and_then(|body| serde_json::from_slice(&body).ok());
    let Some(given) = given else {
        return Err(admin.unauthenticated());
    };
    let role = match admin.role_of_guess(&head.extensions, given.token.trim().as_bytes()) {
        Ok(role) => role,
        Err(wrong) => return Err(admin.turned_away(wrong).await),
    };
    let id = admin.0.sessions.open(role).ok_or_else(|| {
        let detail = "The system gave no randomness for a session.";
        Refused::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
    })?;
    let cookie = cookie(&headers, &id, LIFETIME);
    Ok((cookie, Json(json!({ "role": role.as_str() }))).into_response())
}

/// `DELETE /session`: signs out.
pub(super) async fn sign_out(
    State(admin): State<Admin>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    if !is_from_own_page(&headers) {
        return Err(forged());
    }
    if let Some(mark) = marked(&headers) {
        admin.0.sessions.close(&mark);
    }
    let cookie = cookie(&headers, "", Duration::ZERO);
    Ok((cookie, StatusCode::NO_CONTENT).into_response())
}

/// `GET /session`: the caller's role.
pub(super) async fn show(role: axum::Extension<Role>) -> Json<Value> {
    Json(json!({ "role": role.as_str() }))
}

/// The header that sets the cookie, with `Secure` only if the page was loaded over HTTPS.
fn cookie(
    headers: &HeaderMap,
    id: &str,
    lasts: Duration,
) -> [(header::HeaderName, HeaderValue); 1] {
    let origin = headers.get(header::ORIGIN).map(HeaderValue::as_bytes);
    let secure = match origin.is_some_and(|origin| origin.starts_with(b"https://")) {
        true => "; Secure",
        false => "",
    };
    let name = cookie_name(headers);
    let seconds = lasts.as_secs();
    let line = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    // Names, digits and base64 are visible ASCII, so this cannot fail.
    let line = HeaderValue::try_from(line).unwrap_or(HeaderValue::from_static(""));
    [(header::SET_COOKIE, line)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (
                header::HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn only_the_own_page_changes_things() {
        let page = [
            ("x-onlyonce-page", "1"),
            ("host", "a:9"),
            ("origin", "http://a:9"),
        ];
        let own = headers(&page);
        assert!(is_from_own_page(&own));
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", "http://a:8"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let mut other = own.clone();
            other.insert(name, HeaderValue::from_static(value));
            assert!(!is_from_own_page(&other), "{name}: {value}");
        }
        for missing in ["x-onlyonce-page", "origin"] {
            let mut other = own.clone();
            other.remove(missing);
            assert!(!is_from_own_page(&other), "without {missing}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_end_and_are_bounded() {
        let sessions = Sessions::default();
        let first = mark(&sessions.open(Role::ReadOnly).unwrap());
        assert_eq!(sessions.role(&first), Some(Role::ReadOnly));
        tokio::time::advance(LIFETIME / 2).await;
        for _ in 0..MAX_SESSIONS {
            sessions.open(Role::Operator).unwrap();
        }
        assert_eq!(sessions.role(&first), None, "the oldest had to go");
        assert_eq!(sessions.0.lock().len(), MAX_SESSIONS);
        let last = mark(&sessions.open(Role::Operator).unwrap());
        tokio::time::advance(LIFETIME).await;
        assert_eq!(sessions.role(&last), None, "its time is over");
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let jar = headers(&[
            ("host", "a:9"),
            ("cookie", "x=1; onlyonce_session_9=abc; y=2"),
        ]);
        assert_eq!(marked(&jar), Some(mark("abc")));
        let other = headers(&[("host", "a:8"), ("cookie", "onlyonce_session_9=abc")]);
        assert_eq!(marked(&other), None);
    }
}

//! Authentication by an external service: the request to the service, and what its answer means.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use onlyonce::Body;

use super::{ClientId, Found, Shown, X_API_KEY, only};
use crate::{config::ExternalConfig, outbound::Outbound};

/// How much of an answer's body is read, in bytes, so that its connection can be reused.
const MAX_BODY: usize = 64 << 10;
/// The headers that may hold a credential.
const CREDENTIALS: [HeaderName; 3] = [header::AUTHORIZATION, X_API_KEY, header::COOKIE];

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The external service.
pub(super) struct External {
    asked: Outbound,
    target: String,
    client_id_header: HeaderName,
    timeout: Duration,
}

impl External {
    pub(super) fn new(config: &ExternalConfig) -> Self {
        Self {
            asked: Outbound::new(&config.url.backend, config.timeout),
            target: config.url.target.clone(),
            client_id_header: config.client_id_header.clone(),
            timeout: config.timeout,
        }
    }

    /// 2xx with a client id identifies the client, 401 and 403 identify nobody, anything else is unavailable.
    pub(super) async fn ask(&self, shown: Shown<'_>) -> Found {
        let answer = self.asked.send(question(shown), &self.target, MAX_BODY);
        let (head, _) = match tokio::time::timeout(self.timeout, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return unavailable(&error.to_string()),
            Err(_) => return unavailable("it took too long"),
        };
        match head.status {
            status if status.is_success() => {
                let named = only(&head.headers, &self.client_id_header)
                    .and_then(|value| std::str::from_utf8(value).ok())
                    .and_then(ClientId::new);
                match named {
                    Some(client) => Found::Client(client),
                    None => unavailable("it said yes without one usable client id"),
                }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Found::Nobody,
            status => unavailable(&format!("it answered {}", status.as_u16())),
        }
    }
}

fn unavailable(reason: &str) -> Found {
    tracing::warn!(reason, "the authenticating service did not say who asks");
    Found::Unavailable
}

/// The request to the service: a GET with the method, the address and the credentials of the client's
/// request, and without its body.
fn question(shown: Shown<'_>) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    let headers = request.headers_mut();
    for name in CREDENTIALS {
        for value in shown.headers.get_all(&name) {
            headers.append(name.clone(), value.clone());
        }
    }
    let target = shown
        .uri
        .path_and_query()
        .map_or("/", |target| target.as_str());
    let host = shown
        .uri
        .authority()
        .and_then(|authority| HeaderValue::try_from(authority.as_str()).ok())
        .or_else(|| shown.headers.get(header::HOST).cloned());
    let said = [
        (METHOD, HeaderValue::try_from(shown.method.as_str()).ok()),
        (URI, HeaderValue::try_from(target).ok()),
        (HOST, host),
        (
            FOR,
            shown
                .peer
                .and_then(|peer| HeaderValue::try_from(peer.to_canonical().to_string()).ok()),
        ),
    ];
    for (name, value) in said {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
    request
}

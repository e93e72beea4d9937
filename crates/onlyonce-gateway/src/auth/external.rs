//! A service that is asked about every request: what it is asked, and what its answer means.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use onlyonce::Body;
use tower::ServiceExt;

use super::{ClientId, Found, Shown, X_API_KEY, only};
use crate::{
    config::{Endpoint, ExternalConfig},
    upstream::{Upstream, UpstreamOptions},
};

/// What is read of an answer's body, in bytes, so that its connection can be used again.
const MAX_BODY: usize = 64 << 10;
/// The headers that may hold a credential.
const CREDENTIALS: [HeaderName; 3] = [header::AUTHORIZATION, X_API_KEY, header::COOKIE];

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The service that is asked.
pub(super) struct External {
    asked: Asked,
    client_id_header: HeaderName,
    timeout: Duration,
}

impl External {
    pub(super) fn new(config: &ExternalConfig) -> Self {
        Self {
            asked: Asked::new(&config.url, config.timeout),
            client_id_header: config.client_id_header.clone(),
            timeout: config.timeout,
        }
    }

    /// 2xx with a client's id is yes, 401 and 403 are no, and anything else means that nobody knows.
    pub(super) async fn ask(&self, shown: Shown<'_>) -> Found {
        let answer = self.asked.send(question(shown), MAX_BODY);
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

/// The question: a GET with the method, the address and the credentials of the request, and without
/// its body.
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

/// An address that the gateway itself asks. Redirects are not followed.
pub(super) struct Asked {
    upstream: Upstream,
    target: String,
}

impl Asked {
    pub(super) fn new(endpoint: &Endpoint, timeout: Duration) -> Self {
        let mut options = UpstreamOptions::new(vec![endpoint.backend.clone()]);
        options.connect_timeout = timeout;
        Self {
            upstream: Upstream::new(options),
            target: endpoint.target.clone(),
        }
    }

    /// Sends `request` as a GET; the answer, and its body if it is not longer than `limit`.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        limit: usize,
    ) -> Result<(http::response::Parts, Option<bytes::Bytes>), AskError> {
        *request.method_mut() = Method::GET;
        *request.uri_mut() = Uri::try_from(self.target.as_str()).map_err(AskError::new)?;
        let answer = self.upstream.clone().oneshot(request).await;
        let (head, body) = answer.map_err(AskError::new)?.into_parts();
        let body = Limited::new(body, limit).collect().await.ok();
        Ok((head, body.map(http_body_util::Collected::to_bytes)))
    }
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
#[error("it could not be asked: {0}")]
pub(super) struct AskError(String);

impl AskError {
    fn new(error: impl std::error::Error) -> Self {
        // The causes say which part failed; none of them holds a header.
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self(text)
    }
}

//! Messages as HTTP requests: a POST to one URL, with the same idempotency key every time, signed according
//! to Standard Webhooks.
//!
//! Deliberately absent: redirects, which would take a message to a place that nobody agreed to; and any part
//! of a receiver's body in a reason, since reasons are displayed and logged.

mod pooled;
mod signature;

use std::error::Error as StdError;

use ::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{
        AUTHORIZATION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, EXPECT,
        HOST, TE,
    },
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use onlyonce::{
    Answer, Body, BoxError, EndedByClose,
    body::may_be_cut,
    clock::Clock,
    find_not_sent,
    layer::strip_hop_by_hop,
    outbox::{Delivery, Parcel, Publish},
};
use onlyonce_core::fingerprint::Pointer;
use tower::ServiceExt as _;
use tower_service::Service;

pub use pooled::{Pooled, PooledError};
pub use signature::{BadSecret, Secrets};

/// The default for the largest answer that is kept, in bytes.
pub const DEFAULT_MAX_ANSWER_BYTES: usize = 1 << 20;
/// The longest id that a receiver may give a message, in bytes; a longer one is not kept.
pub const MAX_PROVIDER_ID_BYTES: usize = 255;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The headers kept from a receiver's answer: those needed to read its body.
const KEPT: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_ENCODING, CONTENT_LANGUAGE];

/// The destination of messages, and how to send them.
#[derive(Clone)]
pub struct HttpOptions {
    /// The URL, with `http` or `https` and a host, and without credentials.
    pub url: Uri,
    /// The header for the message's key.
    pub key_header: HeaderName,
    /// The secrets that messages are signed with, if they are.
    pub secret: Option<Secrets>,
    /// Headers of every message, such as `Authorization`. They override the message's own.
    pub headers: HeaderMap,
    /// Where an answer has the receiver's id for the message, if one is looked for.
    pub provider_id: Option<Pointer>,
    /// The largest answer that is kept, in bytes. A longer one still means that the message arrived.
    pub max_answer: usize,
}

impl HttpOptions {
    /// The defaults: `Idempotency-Key`, unsigned, the receiver's id at `/id`.
    pub fn new(url: Uri) -> Self {
        Self {
            url,
            key_header: IDEMPOTENCY_KEY,
            secret: None,
            headers: HeaderMap::new(),
            provider_id: Pointer::parse("/id").ok(),
            max_answer: DEFAULT_MAX_ANSWER_BYTES,
        }
    }
}

/// Why nothing can be sent to a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadUrl {
    /// It is not absolute.
    #[error("a receiver's URL begins with http:// or https:// and a host")]
    Form,
    /// It holds credentials.
    #[error("a receiver's URL holds no credentials: give it an Authorization header")]
    Credentials,
}

/// Sends messages to one URL with `S`, an HTTP client service. If nothing was sent, its errors must have a
/// [`NotSent`](onlyonce::NotSent) in their chain of sources.
pub struct Http<S> {
    service: S,
    options: HttpOptions,
    /// The pointer as text, for looking it up in an answer.
    provider_id: Option<String>,
    clock: Clock,
}

impl<S> Http<S> {
    /// Does not connect yet.
    ///
    /// # Errors
    /// [`BadUrl`] if messages cannot be sent to the URL.
    pub fn new(service: S, mut options: HttpOptions) -> Result<Self, BadUrl> {
        let scheme = options.url.scheme_str();
        if !matches!(scheme, Some("http" | "https")) {
            return Err(BadUrl::Form);
        }
        let authority = options.url.authority().ok_or(BadUrl::Form)?;
        if authority.as_str().contains('@') {
            return Err(BadUrl::Credentials);
        }
        if authority.host().is_empty() {
            return Err(BadUrl::Form);
        }
        without_transport(&mut options.headers);
        for value in options.headers.values_mut() {
            value.set_sensitive(true);
        }
        Ok(Self {
            service,
            provider_id: options.provider_id.as_ref().map(ToString::to_string),
            options,
            clock: Clock::system(),
        })
    }

    /// The request, or why the message can never be sent.
    fn request(&self, parcel: &Parcel) -> Result<Request<Body>, String> {
        let mut headers = own_headers(parcel)?;
        without_transport(&mut headers);
        // Credentials come from the configuration, never from a message.
        headers.remove(AUTHORIZATION);
        for name in self.options.headers.keys() {
            headers.remove(name);
        }
        headers.extend(self.options.headers.clone());
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
        let key = HeaderValue::from_str(&parcel.key);
        let key = key.map_err(|_| "its key cannot be sent in a header")?;
        headers.insert(self.options.key_header.clone(), key);
        self.sign(parcel, &mut headers);

        let mut request = Request::new(Body::from(parcel.payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.options.url.clone();
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Adds the Standard Webhooks headers. The id is the message's own and has no full stop, as the standard
    /// requires of signed parts.
    fn sign(&self, parcel: &Parcel, headers: &mut HeaderMap) {
        let id = parcel.id.to_string();
        let seconds = self.clock.moment().since_1970().as_secs();
        headers.remove(WEBHOOK_SIGNATURE);
        if let Some(secrets) = &self.options.secret {
            let signature = secrets.sign(&id, &seconds.to_string(), &parcel.payload);
            // Base64, commas and spaces: always a header value.
            if let Ok(value) = HeaderValue::from_str(&signature) {
                headers.insert(WEBHOOK_SIGNATURE, value);
            }
        }
        if let Ok(value) = HeaderValue::from_str(&id) {
            headers.insert(WEBHOOK_ID, value);
        }
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(seconds));
    }

    /// The result of a complete answer.
    fn read(&self, status: StatusCode, headers: &HeaderMap, body: Option<Bytes>) -> Delivery {
        let answer = body.map(|body| {
            let mut answer = Answer::new(status, body);
            for name in KEPT {
                if let Some(value) = headers.get(&name) {
                    answer = answer.with(name, value.clone());
                }
            }
            answer
        });
        if status.is_success() {
            let provider_id = answer
                .as_ref()
                .and_then(|answer| self.provider_id(&answer.body));
            return Delivery::Delivered {
                provider_id,
                answer,
            };
        }
        let reason = format!("the receiver said {}", status.as_u16());
        Delivery::Refused { reason, answer }
    }

    fn provider_id(&self, body: &[u8]) -> Option<String> {
        let document: serde_json::Value = serde_json::from_slice(body).ok()?;
        let found = match document.pointer(self.provider_id.as_deref()?)? {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Number(number) => number.to_string(),
            _ => return None,
        };
        (1..=MAX_PROVIDER_ID_BYTES)
            .contains(&found.len())
            .then_some(found)
    }
}

impl<S, B> Publish for Http<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: StdError + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    fn publish<'a>(&'a self, parcel: &'a Parcel) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let request = match self.request(parcel) {
                Ok(request) => request,
                Err(reason) => {
                    let answer = None;
                    return Delivery::Refused { reason, answer };
                }
            };
            let (head, body) = match self.service.clone().oneshot(request).await {
                Ok(response) => response.into_parts(),
                Err(error) => return not_answered(&error),
            };
            let status = head.status;
            if !is_final(status) {
                return Delivery::Unclear(format!("the receiver said {}", status.as_u16()));
            }
            let body = match Limited::new(body, self.options.max_answer).collect().await {
                Ok(body) => Some(body.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => None,
                // The receiver's answer was not read to its end; under the same key the receiver repeats it.
                Err(_) => {
                    let said = status.as_u16();
                    return Delivery::Unclear(format!("the answer with status {said} broke off"));
                }
            };
            // Nothing but the end of its connection says that the answer is complete.
            if head.extensions.get::<EndedByClose>().is_some()
                && body
                    .as_ref()
                    .is_some_and(|body| may_be_cut(&head.headers, body))
            {
                let said = status.as_u16();
                return Delivery::Unclear(format!("the answer with status {said} may be cut off"));
            }
            self.read(status, &head.headers, body)
        })
    }
}

/// Whether a receiver that returned this status would return it again. Other statuses ask for a later retry,
/// or report a failure at an unknown moment.
fn is_final(status: StatusCode) -> bool {
    let later = [
        StatusCode::REQUEST_TIMEOUT,
        // Another attempt under the same key is under way there.
        StatusCode::CONFLICT,
        StatusCode::TOO_EARLY,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    !(status.is_informational() || status.is_server_error() || later.contains(&status))
        && status.as_u16() < 600
}

fn not_answered(error: &(dyn StdError + 'static)) -> Delivery {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    match find_not_sent(error) {
        Some(_) => Delivery::NotSent(reason),
        None => Delivery::Unclear(reason),
    }
}

/// The message's own headers; an error names one that HTTP cannot carry.
fn own_headers(parcel: &Parcel) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(parcel.headers.len() + 8);
    for (name, value) in &parcel.headers {
        let header = HeaderName::try_from(name).ok();
        let (Some(header), Ok(value)) = (header, HeaderValue::from_str(value)) else {
            return Err(format!("its header {name:?} cannot be sent over HTTP"));
        };
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Removes headers that concern the connection.
fn without_transport(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    for name in [HOST, CONTENT_LENGTH, EXPECT, TE] {
        headers.remove(name);
    }
}

//! Refusal -> status, headers and body: the only code that chooses the status of the layer's refusals.
//!
//! Every text says what happened, whether anything was executed, and what to do. None of them repeats a key,
//! a body or a credential.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use onlyonce_core::{Policy, policy::ErrorFormat, record::State};

use crate::{
    body::Body,
    key_status::{KeyStatus, tell_only_keyed},
};

/// The base of problem types: identifiers, explained in `docs/reference/errors.md`.
const TYPE_BASE: &str = "https://onlyonce.dev/errors/";
/// The default for `Retry-After`, in seconds.
const RETRY_AFTER_SECONDS: u64 = 1;
/// `Retry-After`, in seconds, for a key that the store may have lost. The wait ends when the provider or an
/// operator says so, or after a `ttl`.
const HISTORY_LOST_RETRY_AFTER_SECONDS: u64 = 30;
/// Seconds after which to ask again about an unknown outcome. Only in the body: automatic retries would stall
/// on such a header.
const ASK_AGAIN_AFTER_SECONDS: u64 = 30;
/// The gRPC status UNIMPLEMENTED.
const GRPC_UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The two headers in which clients look for whether to retry.
const SHOULD_RETRY: [HeaderName; 2] = [
    HeaderName::from_static("stripe-should-retry"),
    HeaderName::from_static("x-should-retry"),
];

/// A refusal, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The key is missing where it is required.
    KeyMissing,
    /// The header value is not a valid key; the text says why.
    KeyInvalid(String),
    /// The request's body is larger than the limit, in bytes.
    RequestTooLarge(u64),
    /// The request's body took too long to arrive.
    RequestTimeout,
    /// The request's body was incomplete, or was not valid HTTP.
    RequestIncomplete,
    /// The request violates HTTP; the text says why.
    RequestMalformed(&'static str),
    /// The head of the request is larger than the limit, in bytes.
    HeadersTooLarge(u64),
    /// The key was used for another request; its current state.
    KeyReused(State),
    /// The key was used for the same request by another caller; its current state.
    CallerDiffers(State),
    /// Another attempt is running.
    InProgress,
    /// Another attempt is running; the URL to poll.
    InProgressAt(String),
    /// The outcome of the last attempt is unknown; the URL to poll.
    OutcomeUnknown(String),
    /// This attempt is still running: only the client's wait has ended.
    StillRunning,
    /// This attempt was sent, and its outcome is unknown: the upstream took longer than an execution may.
    TimedOut,
    /// This attempt was sent, and its outcome is unknown: the connection failed.
    ConnectionLost,
    /// This attempt was executed, but its answer could not be made durable.
    NotDurable,
    /// The operation was executed; its answer was not stored.
    NotStored {
        /// The status of the answer.
        original_status: StatusCode,
        /// Its `Location`.
        location: Option<HeaderValue>,
        /// Whether the answer is known to have been cut off.
        broke_off: bool,
    },
    /// The store was unavailable.
    StoreUnavailable,
    /// The store has lost keys, and this may be one of them.
    HistoryLost,
    /// Nothing was sent upstream.
    UpstreamNotReached,
    /// The key has expired and may not be used again.
    KeyExpired,
    /// The client brings new keys, or asks, too fast; the seconds after which it may try again.
    RateLimited(u64),
    /// The client has too many live keys; the seconds after which it may try again.
    KeyQuota(u64),
    /// There is no memory for the bytes of this request.
    Overloaded,
    /// There is no memory for the bytes of its stored answer.
    AnswerOverloaded,
    /// Too many executions of the client are running without it.
    TooManyDetached,
    /// The request is too old to bring a new key, or does not say how old it is.
    RequestTooOld,
    /// A gRPC call that carries or requires a key: its outcome cannot be judged yet.
    GrpcUnsupported,
    /// A request without the protection of a key failed after it was sent.
    UpstreamFailed,
    /// A request without the protection of a key was not answered in time.
    UpstreamTimeout,
    /// The request has no credential.
    Unauthenticated,
    /// The authentication service was unavailable.
    AuthenticationUnavailable,
    /// No route matches the request.
    NoRoute,
    /// There is no such key, or not for this caller.
    KeyNotFound,
}

impl Problem {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::KeyMissing => "idempotency_key_missing",
            Self::KeyInvalid(_) => "idempotency_key_invalid",
            Self::RequestTooLarge(_) => "request_too_large",
            Self::RequestIncomplete => "request_incomplete",
            Self::RequestTimeout => "request_timeout",
            Self::RequestMalformed(_) => "request_malformed",
            Self::HeadersTooLarge(_) => "request_headers_too_large",
            Self::KeyReused(_) => "idempotency_key_reused",
            Self::CallerDiffers(_) => "idempotency_caller_differs",
            Self::InProgress | Self::InProgressAt(_) | Self::StillRunning => {
                "idempotency_key_in_progress"
            }
            Self::OutcomeUnknown(_) | Self::TimedOut | Self::ConnectionLost | Self::NotDurable => {
                "idempotency_outcome_unknown"
            }
            Self::NotStored { .. } => "idempotency_response_not_stored",
            Self::StoreUnavailable => "idempotency_store_unavailable",
            Self::HistoryLost => "idempotency_history_lost",
            Self::UpstreamNotReached => "upstream_not_reached",
            Self::KeyExpired => "idempotency_key_expired",
            Self::RateLimited(_) => "idempotency_rate_limited",
            Self::KeyQuota(_) => "idempotency_key_quota",
            Self::Overloaded | Self::AnswerOverloaded | Self::TooManyDetached => "overloaded",
            Self::RequestTooOld => "request_too_old",
            Self::GrpcUnsupported => "grpc_unsupported",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Unauthenticated => "unauthenticated",
            Self::AuthenticationUnavailable => "authentication_unavailable",
            Self::NoRoute => "no_route",
            Self::KeyNotFound => "key_not_found",
        }
    }

    /// The codes of every problem, for the documents.
    pub const CODES: [&'static str; 27] = [
        "idempotency_key_missing",
        "idempotency_key_invalid",
        "request_too_large",
        "request_incomplete",
        "request_timeout",
        "request_malformed",
        "request_headers_too_large",
        "idempotency_key_reused",
        "idempotency_caller_differs",
        "idempotency_key_in_progress",
        "idempotency_outcome_unknown",
        "idempotency_response_not_stored",
        "idempotency_store_unavailable",
        "idempotency_history_lost",
        "upstream_not_reached",
        "idempotency_key_expired",
        "idempotency_rate_limited",
        "idempotency_key_quota",
        "overloaded",
        "request_too_old",
        "grpc_unsupported",
        "upstream_failed",
        "upstream_timeout",
        "unauthenticated",
        "authentication_unavailable",
        "no_route",
        "key_not_found",
    ];

    fn status(&self, policy: &Policy) -> StatusCode {
        match self {
            Self::KeyMissing => policy.missing_status,
            Self::KeyInvalid(_)
            | Self::RequestIncomplete
            | Self::RequestMalformed(_)
            | Self::RequestTooOld => StatusCode::BAD_REQUEST,
            Self::HeadersTooLarge(_) => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::RateLimited(_) | Self::KeyQuota(_) | Self::TooManyDetached => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::RequestTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::KeyReused(_) | Self::CallerDiffers(_) => policy.reused_status,
            // A gRPC call reports its result in `grpc-status`.
            Self::GrpcUnsupported => StatusCode::OK,
            Self::InProgressAt(_) => StatusCode::ACCEPTED,
            Self::InProgress
            | Self::OutcomeUnknown(_)
            | Self::NotStored { .. }
            | Self::KeyExpired => StatusCode::CONFLICT,
            Self::StillRunning | Self::TimedOut | Self::UpstreamTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::ConnectionLost | Self::UpstreamFailed => StatusCode::BAD_GATEWAY,
            Self::NotDurable
            | Self::StoreUnavailable
            | Self::HistoryLost
            | Self::UpstreamNotReached
            | Self::Overloaded
            | Self::AnswerOverloaded
            | Self::AuthenticationUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::NoRoute | Self::KeyNotFound => StatusCode::NOT_FOUND,
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::KeyMissing => "Idempotency key missing",
            Self::KeyInvalid(_) => "Idempotency key invalid",
            Self::RequestTooLarge(_) => "Request too large",
            Self::RequestIncomplete => "Request incomplete",
            Self::RequestTimeout => "Request timeout",
            Self::RequestMalformed(_) => "Request malformed",
            Self::HeadersTooLarge(_) => "Request headers too large",
            Self::KeyReused(_) => "Idempotency key reused",
            Self::CallerDiffers(_) => "Another caller",
            Self::GrpcUnsupported => "gRPC not supported",
            Self::InProgress | Self::InProgressAt(_) | Self::StillRunning => "Request in progress",
            Self::OutcomeUnknown(_) | Self::TimedOut | Self::ConnectionLost | Self::NotDurable => {
                "Outcome unknown"
            }
            Self::NotStored { .. } => "Response not stored",
            Self::StoreUnavailable => "Idempotency store unavailable",
            Self::HistoryLost => "Idempotency history lost",
            Self::UpstreamNotReached => "Upstream not reached",
            Self::KeyExpired => "Idempotency key expired",
            Self::RateLimited(_) => "Too many requests",
            Self::KeyQuota(_) => "Too many live keys",
            Self::Overloaded | Self::AnswerOverloaded | Self::TooManyDetached => "Overloaded",
            Self::RequestTooOld => "Request too old",
            Self::UpstreamFailed => "Upstream failed",
            Self::UpstreamTimeout => "Upstream timeout",
            Self::Unauthenticated => "Not authenticated",
            Self::AuthenticationUnavailable => "Authentication unavailable",
            Self::NoRoute => "No route",
            Self::KeyNotFound => "Key not found",
        }
    }

    fn detail(&self, policy: &Policy) -> String {
        let header = policy.header_name.as_str();
        match self {
            Self::KeyMissing => format!(
                "This request must carry the header {header}. Nothing was executed. Send it again \
                 with a key of its own, and with the same key on every retry."
            ),
            Self::KeyInvalid(why) => format!(
                "The header {header} does not hold a valid key: {} Nothing was executed.",
                sentence(why)
            ),
            Self::RequestTooLarge(limit) => format!(
                "The body is larger than {limit} bytes, the limit for requests with a key. Nothing \
                 was executed."
            ),
            Self::RequestTimeout => "The body of this request took too long to arrive. Nothing was \
                 executed and the key was not used. Send it again with the same key."
                .to_owned(),
            Self::RequestIncomplete => "The body of this request did not arrive whole. Nothing was \
                 executed and the key was not used. Send it again with the same key."
                .to_owned(),
            Self::RequestMalformed(why) => format!(
                "This request is malformed: {why}. Nothing was executed and no key was used. Mend it \
                 and send it again."
            ),
            Self::HeadersTooLarge(limit) => format!(
                "The request line and the headers are larger than {limit} bytes, or are too many. \
                 Nothing was executed and no key was used. Send fewer or shorter headers."
            ),
            Self::GrpcUnsupported => "This route protects requests by their key, and it cannot judge \
                 how a call of gRPC ended. Nothing was executed. Send the call without a key, over a \
                 route that does not demand one."
                .to_owned(),
            Self::KeyReused(_) => "This key was used before for a different request. This request \
                 was not executed, and the first one is untouched. If this is a retry, repeat the \
                 first request exactly; a new key may execute it twice. Another operation needs a key \
                 of its own."
                .to_owned(),
            Self::CallerDiffers(_) => "This key was used before for the same request, with another \
                 credential. This request was neither executed nor answered from the first one, which \
                 is untouched. If this is a retry, present the credential of the first request. Do not \
                 take a new key: that may execute it twice."
                .to_owned(),
            Self::InProgress | Self::InProgressAt(_) => "The first request with this key is still \
                 running. This one was not executed. Send it again with the same key after \
                 Retry-After to get the first one's answer."
                .to_owned(),
            Self::OutcomeUnknown(_) => "An earlier request with this key was sent, and nobody saw \
                 how it ended: it may have taken effect. This one was not executed. Do not retry with \
                 a new key, which may execute it twice; ask again with this one later, ask at Location, \
                 or ask the operator."
                .to_owned(),
            Self::StillRunning => "The upstream has not answered yet, and the request goes on: it may \
                 still take effect. Do not retry with a new key; send it again with the same key after \
                 Retry-After to get its answer."
                .to_owned(),
            Self::TimedOut => "The request was sent and the upstream did not answer in time: it \
                 may have taken effect. Do not retry with a new key; ask again with this one later."
                .to_owned(),
            Self::ConnectionLost => "The request was sent and the connection to the upstream \
                 failed: it may have taken effect. Do not retry with a new key; ask again with this \
                 one later."
                .to_owned(),
            Self::NotDurable => "The request was executed, but its answer could not be made \
                 durable. Do not retry with a new key; ask again with this one later."
                .to_owned(),
            Self::NotStored { original_status, broke_off: false, .. } => format!(
                "The request with this key was executed and answered with status {original_status}. \
                 The answer was erased or not kept, so it cannot be given again, and the request \
                 was not executed again."
            ),
            Self::NotStored { original_status, .. } => format!(
                "The request with this key was executed and answered with status {original_status}. \
                 The answer was too large to keep and broke off before its end, so it may be that \
                 not everything was done. It cannot be given again, and the request was not executed \
                 again. Look up what became of it."
            ),
            Self::StoreUnavailable => "The store of idempotency keys cannot be reached. Nothing \
                 was sent upstream and nothing was executed. Send the request again with the same \
                 key."
                .to_owned(),
            Self::HistoryLost => "The store of idempotency keys has lost some of them, and does not know \
                 this one: the request may have been executed before. This time nothing was sent upstream \
                 and nothing was executed. Do not take a new key; send it again with the same key later, \
                 or look up what became of it."
                .to_owned(),
            Self::UpstreamNotReached => "The upstream could not be reached, or had no room. No byte \
                 of the request was sent and nothing was executed. Send it again with the same key."
                .to_owned(),
            Self::KeyExpired => "This key was used before and has expired. This request was not \
                 executed. Look up what became of the first one before you use a new key."
                .to_owned(),
            Self::RateLimited(_) => "This client sends new keys, or asks about keys, faster than it \
                 may. Nothing was executed and nothing is remembered of this request. Send it again \
                 with the same key after Retry-After."
                .to_owned(),
            Self::KeyQuota(_) => "This client has as many keys in progress as it may \
                 have. Nothing was executed and nothing is remembered of this request. Send it again \
                 with the same key once one of them is settled."
                .to_owned(),
            Self::Overloaded => "The gateway holds as many bytes for its clients, or for this one, as it \
                 may. Nothing was executed. Take the answers that are ready, and send this request again \
                 with the same key after Retry-After."
                .to_owned(),
            Self::AnswerOverloaded => "This key is completed and its answer is stored; it was not executed \
                 again. But the gateway holds as many bytes for its clients, or for this one, as it may. \
                 Take the answers that are ready, and send this request again with the same key after \
                 Retry-After."
                .to_owned(),
            Self::TooManyDetached => "Too many executions of this client are running that it no longer \
                 waits for. Nothing was executed and nothing is remembered of this request. Send it \
                 again with the same key after Retry-After."
                .to_owned(),
            Self::RequestTooOld => "This request is older than a request with a new key may be, or \
                 does not say when it was made. Nothing was executed. If it was made before, look up \
                 what became of it; otherwise make it anew."
                .to_owned(),
            Self::UpstreamFailed => "The request was sent and the connection to the upstream \
                 failed: it may have taken effect. It was not protected by a key, so nothing is remembered \
                 of it."
                .to_owned(),
            Self::UpstreamTimeout => "The request was sent and the upstream did not answer in \
                 time: it may have taken effect. It was not protected by a key, so nothing is remembered of \
                 it."
                .to_owned(),
            Self::Unauthenticated => {
                "This request carries no valid credential. Nothing was executed.".to_owned()
            }
            Self::AuthenticationUnavailable => "Who sent this request could not be found out, since \
                 whoever knows could not be asked. Nothing was executed. Send it again with the same \
                 key."
                .to_owned(),
            Self::NoRoute => "No route takes this request. Nothing was executed.".to_owned(),
            Self::KeyNotFound => "There is no such key for this caller.".to_owned(),
        }
    }

    fn should_retry(&self) -> Option<bool> {
        match self {
            Self::InProgress
            | Self::InProgressAt(_)
            | Self::StillRunning
            | Self::StoreUnavailable
            | Self::HistoryLost
            | Self::UpstreamNotReached
            | Self::RateLimited(_)
            | Self::KeyQuota(_)
            | Self::TooManyDetached => Some(true),
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::KeyReused(_)
            | Self::CallerDiffers(_)
            | Self::OutcomeUnknown(_)
            | Self::TimedOut
            | Self::ConnectionLost
            | Self::NotDurable
            | Self::NotStored { .. }
            | Self::KeyExpired => Some(false),
            Self::RequestTooLarge(_)
            | Self::Overloaded
            | Self::AnswerOverloaded
            | Self::RequestTooOld
            | Self::RequestIncomplete
            | Self::RequestMalformed(_)
            | Self::HeadersTooLarge(_)
            | Self::RequestTimeout
            | Self::GrpcUnsupported
            | Self::UpstreamFailed
            | Self::UpstreamTimeout
            | Self::Unauthenticated
            | Self::AuthenticationUnavailable
            | Self::NoRoute
            | Self::KeyNotFound => None,
        }
    }

    /// The current status of the key, if the request has one.
    pub fn key_status(&self) -> KeyStatus {
        match self {
            Self::KeyReused(state) | Self::CallerDiffers(state) => KeyStatus::Is(*state),
            Self::InProgress | Self::InProgressAt(_) | Self::StillRunning => {
                KeyStatus::Is(State::InProgress)
            }
            Self::OutcomeUnknown(_) | Self::TimedOut | Self::ConnectionLost | Self::NotDurable => {
                KeyStatus::Is(State::Unknown)
            }
            Self::NotStored { .. } | Self::AnswerOverloaded => KeyStatus::Is(State::Completed),
            Self::UpstreamNotReached => KeyStatus::Is(State::FailedRetryable),
            Self::KeyExpired => KeyStatus::Is(State::Expired),
            Self::UpstreamFailed | Self::UpstreamTimeout => KeyStatus::Bypassed,
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::RequestTooLarge(_)
            | Self::RequestTimeout
            | Self::RequestIncomplete
            | Self::RequestMalformed(_)
            | Self::HeadersTooLarge(_)
            | Self::StoreUnavailable
            | Self::HistoryLost
            | Self::RateLimited(_)
            | Self::KeyQuota(_)
            | Self::RequestTooOld
            | Self::GrpcUnsupported
            | Self::Unauthenticated
            | Self::AuthenticationUnavailable
            | Self::NoRoute
            | Self::Overloaded
            | Self::TooManyDetached
            | Self::KeyNotFound => KeyStatus::NotLookedUp,
        }
    }

    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::InProgress
            | Self::InProgressAt(_)
            | Self::StillRunning
            | Self::StoreUnavailable
            | Self::UpstreamNotReached
            | Self::Overloaded
            | Self::AnswerOverloaded
            | Self::TooManyDetached
            | Self::AuthenticationUnavailable => Some(RETRY_AFTER_SECONDS),
            Self::HistoryLost => Some(HISTORY_LOST_RETRY_AFTER_SECONDS),
            Self::RateLimited(seconds) | Self::KeyQuota(seconds) => Some(*seconds),
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::RequestTooLarge(_)
            | Self::RequestIncomplete
            | Self::RequestMalformed(_)
            | Self::HeadersTooLarge(_)
            | Self::RequestTimeout
            | Self::KeyReused(_)
            | Self::CallerDiffers(_)
            | Self::GrpcUnsupported
            // Automatic retries would stall on it.
            | Self::OutcomeUnknown(_)
            | Self::TimedOut
            | Self::ConnectionLost
            | Self::NotDurable
            | Self::NotStored { .. }
            | Self::KeyExpired
            | Self::RequestTooOld
            | Self::UpstreamFailed
            | Self::UpstreamTimeout
            | Self::Unauthenticated
            | Self::NoRoute
            | Self::KeyNotFound => None,
        }
    }

    /// Stripe's clients distinguish errors by this word. `invalid_request_error` means that nothing happened.
    fn stripe_type(&self, status: StatusCode) -> &'static str {
        match self {
            Self::KeyMissing
            | Self::KeyInvalid(_)
            | Self::KeyReused(_)
            | Self::CallerDiffers(_)
            | Self::KeyExpired
            | Self::InProgress
            | Self::InProgressAt(_)
            | Self::OutcomeUnknown(_)
            | Self::AnswerOverloaded
            | Self::NotStored { .. } => "idempotency_error",
            Self::Unauthenticated => "authentication_error",
            _ if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The response under `policy` to a request without a key.
    pub fn unkeyed_response(&self, policy: &Policy) -> Response<Body> {
        let mut response = self.response(policy);
        tell_only_keyed(response.headers_mut(), false);
        response
    }

    /// The response under `policy` to a request with a key.
    pub fn response(&self, policy: &Policy) -> Response<Body> {
        if let Self::GrpcUnsupported = self {
            return self.trailers_only(policy);
        }
        let status = self.status(policy);
        let mut response = Response::new(Body::from(self.body(status, policy)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let content_type = match policy.error_format {
            ErrorFormat::Hybrid | ErrorFormat::Problem => "application/problem+json",
            ErrorFormat::Stripe => "application/json",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.key_status().say(headers);
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(should) = self.should_retry() {
            set_should_retry(headers, should);
        }
        match self {
            Self::NotStored {
                location: Some(location),
                ..
            } => {
                headers.insert(header::LOCATION, location.clone());
            }
            Self::InProgressAt(place) | Self::OutcomeUnknown(place) => {
                if let Ok(place) = HeaderValue::from_str(place) {
                    headers.insert(header::LOCATION, place);
                }
            }
            Self::Unauthenticated => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }

    /// The response to a gRPC call: the status is in the headers, and there is no message.
    fn trailers_only(&self, policy: &Policy) -> Response<Body> {
        let mut response = Response::new(Body::from(Bytes::new()));
        let headers = response.headers_mut();
        let content_type = HeaderValue::from_static("application/grpc");
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        self.key_status().say(headers);
        headers.insert(GRPC_STATUS, GRPC_UNIMPLEMENTED);
        if let Ok(message) = HeaderValue::try_from(grpc_message(&self.detail(policy))) {
            headers.insert(GRPC_MESSAGE, message);
        }
        response
    }

    fn body(&self, status: StatusCode, policy: &Policy) -> Bytes {
        let code = self.code();
        let detail = self.detail(policy);
        let mut body = serde_json::Map::new();
        if policy.error_format != ErrorFormat::Stripe {
            body.insert("type".into(), format!("{TYPE_BASE}{code}").into());
            body.insert("title".into(), self.title().into());
            body.insert("status".into(), status.as_u16().into());
            body.insert("detail".into(), detail.as_str().into());
            body.insert("code".into(), code.into());
        }
        if let Self::NotStored {
            original_status,
            broke_off,
            ..
        } = self
        {
            body.insert("original_status".into(), original_status.as_u16().into());
            // Without `broke_off`, nothing records that the answer reached its end.
            if *broke_off {
                body.insert("stream_complete".into(), false.into());
            }
        }
        if let Self::OutcomeUnknown(_) = self {
            body.insert(
                "ask_again_after_seconds".into(),
                ASK_AGAIN_AFTER_SECONDS.into(),
            );
        }
        if policy.error_format != ErrorFormat::Problem {
            body.insert(
                "error".into(),
                serde_json::json!({
                    "type": self.stripe_type(status),
                    "code": code,
                    "message": detail,
                }),
            );
        }
        serde_json::Value::Object(body).to_string().into()
    }
}

/// `text` as a gRPC message: visible ASCII and spaces except the percent sign, the rest percent-encoded.
fn grpc_message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `text` with one full stop at its end.
fn sentence(text: &str) -> String {
    format!("{}.", text.trim_end_matches('.'))
}

/// Tells a client whether to retry, in the two headers that clients read.
pub(crate) fn set_should_retry(headers: &mut http::HeaderMap, should: bool) {
    let value = HeaderValue::from_static(if should { "true" } else { "false" });
    for name in SHOULD_RETRY {
        headers.insert(name, value.clone());
    }
}

#[cfg(test)]
mod tests;

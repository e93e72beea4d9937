//! What an answer says about retrying.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;

/// The longest `Retry-After` that is followed; longer ones are cut to this.
const LONGEST: Duration = Duration::from_secs(300);

/// The header in which a server states the status of the key.
const KEY_STATUS: HeaderName = HeaderName::from_static("idempotency-status");

/// The code with which a server says that the outcome is unknown.
const UNKNOWN: &str = "idempotency_outcome_unknown";

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The answer is final.
    Done,
    /// Send again with the same key, not before this time has passed.
    Again(Duration),
    /// The outcome is unknown; ask whether the server has learned more.
    Ask,
}

/// What to do after this answer. An unknown outcome comes first, then the server's hint, then the status.
pub(crate) fn after(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Next {
    let wait = retry_after(headers);
    let key = headers.get(KEY_STATUS).map(HeaderValue::as_bytes);
    let failed = status.is_client_error() || status.is_server_error();
    if is_unknown(status, body) || (failed && key == Some(b"unknown")) {
        return Next::Ask;
    }
    match hint(headers) {
        Some(true) => Next::Again(wait),
        Some(false) => Next::Done,
        // The error is the stored answer: sending again would only repeat it.
        None if key == Some(b"completed") => Next::Done,
        None if is_passing(status) => Next::Again(wait),
        None => Next::Done,
    }
}

fn hint(headers: &HeaderMap) -> Option<bool> {
    let names = ["x-should-retry", "stripe-should-retry"];
    let value = names.iter().find_map(|name| headers.get(*name))?;
    match value.as_bytes() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// For answers without a hint: statuses about the moment, not about the request. The key makes it safe to
/// send again; a stored answer is simply repeated.
fn is_passing(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        )
}

fn is_unknown(status: StatusCode, body: &[u8]) -> bool {
    (status.is_server_error() || status == StatusCode::CONFLICT)
        && serde_json::from_slice::<Value>(body)
            // As a problem document, or in the format of Stripe's API.
            .is_ok_and(|body| body["code"] == UNKNOWN || body["error"]["code"] == UNKNOWN)
}

fn retry_after(headers: &HeaderMap) -> Duration {
    let said = headers.get(header::RETRY_AFTER);
    let seconds = said.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn next(status: u16, headers: &[(&'static str, &str)], body: &str) -> Next {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        after(StatusCode::from_u16(status).unwrap(), &map, body.as_bytes())
    }

    #[test]
    fn hints_come_before_statuses() {
        let at_once = Next::Again(Duration::ZERO);
        let later = Next::Again(Duration::from_secs(2));
        let unknown = r#"{"code":"idempotency_outcome_unknown"}"#;
        let as_stripe = r#"{"error":{"type":"api_error","code":"idempotency_outcome_unknown"}}"#;
        for (status, headers, body, expected) in [
            (201, &[][..], "", Next::Done),
            (400, &[], "", Next::Done),
            (409, &[], "", Next::Done),
            (
                409,
                &[("x-should-retry", "true"), ("retry-after", "2")],
                "",
                later,
            ),
            (
                202,
                &[("stripe-should-retry", "true"), ("retry-after", "2")],
                "",
                later,
            ),
            (500, &[], "", at_once),
            (500, &[("x-should-retry", "false")], "", Next::Done),
            (503, &[("retry-after", "2")], "", later),
            (429, &[("retry-after", "99999")], "", Next::Again(LONGEST)),
            (429, &[("retry-after", "soon")], "", at_once),
            (502, &[("x-should-retry", "false")], unknown, Next::Ask),
            (409, &[("retry-after", "2")], unknown, Next::Ask),
            (502, &[("idempotency-status", "unknown")], "", Next::Ask),
            (201, &[("idempotency-status", "unknown")], "", Next::Done),
            (500, &[("idempotency-status", "completed")], "", Next::Done),
            (
                500,
                &[("idempotency-status", "failed_retryable")],
                "",
                at_once,
            ),
            (504, &[("x-should-retry", "false")], as_stripe, Next::Ask),
            (200, &[], unknown, Next::Done),
        ] {
            assert_eq!(
                next(status, headers, body),
                expected,
                "{status} {headers:?}"
            );
        }
    }
}

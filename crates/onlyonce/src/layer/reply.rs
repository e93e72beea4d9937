//! The response to the client: the first answer, a stored one, or a refusal.

use std::{
    cell::RefCell,
    time::{Duration, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue, Response, header, response::Parts};
use onlyonce_core::{
    Key, Policy, Record, Timestamp,
    machine::Refusal,
    policy::OnInFlight,
    record::{State, StoredBody, StoredResponse},
};

use super::{
    headers::{EXPIRES, GENERATION, NEVER_STORED_OF_ERRORS, announce_trailers},
    strip_hop_by_hop,
};
use crate::{
    body::Body,
    engine::Replay,
    key_status::KeyStatus,
    limits::{BodyBudget, Holder, NoRoom},
    problem::{Problem, set_should_retry},
};

/// Room for the headers that a replay usually adds.
const ADDED_HEADERS: usize = 7;
/// The last moment that an HTTP date can express.
const END_OF_YEAR_9999_MILLIS: u64 = 253_402_300_799_000;

/// The upstream's answer, for the request that executed.
pub(super) fn first(
    parts: Parts,
    body: Body,
    trailers: Option<&HeaderMap>,
    record: Option<&Record>,
    key: &HeaderValue,
    policy: &Policy,
) -> Response<Body> {
    let mut response = Response::from_parts(parts, body);
    let headers = response.headers_mut();
    strip_hop_by_hop(headers);
    announce_trailers(headers, trailers);
    headers.insert(policy.header_name.clone(), key.clone());
    KeyStatus::Is(record.map_or(State::Unknown, |record| record.state)).say(headers);
    if let Some(record) = record {
        tell(
            headers,
            record
                .times
                .expires_at
                .filter(|_| record.response.is_some()),
            record.generation,
        );
    }
    response
}

/// A stored answer, whose bytes count against `holder` until they are taken. `origin` is the page that asks,
/// if a browser sends one.
///
/// # Errors
/// [`NoRoom`] if the budget has no room for them.
pub(super) fn replayed(
    replay: &Replay,
    (key, origin): (&HeaderValue, Option<&HeaderValue>),
    policy: &Policy,
    (budget, holder): (&BodyBudget, Option<Holder>),
) -> Result<Response<Body>, NoRoom> {
    let StoredResponse {
        status,
        headers,
        body,
    } = &*replay.response;
    let (body, trailers) = match body {
        StoredBody::Full { bytes, trailers } => (
            Body::full(budget.hold(holder, bytes.clone())?, trailers.clone()),
            trailers.as_ref(),
        ),
        // The machine refuses these. Should one arrive here, an empty body would be a lie.
        StoredBody::NotStored => return Ok(not_stored(&replay.response, false).response(policy)),
        // The store's wrapper unpacks these. Without it nobody can, and a block is not an answer.
        StoredBody::Packed { .. } => return Ok(Problem::StoreUnavailable.response(policy)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = *status;
    *response.headers_mut() = with_room(headers);
    let headers = response.headers_mut();
    headers.remove(crate::transaction::VERSION);
    if let Some(origin) = origin {
        close_to_other_origins(headers, origin);
    }
    announce_trailers(headers, trailers);
    headers.insert(policy.header_name.clone(), key.clone());
    headers.insert(
        policy.replayed_header.clone(),
        HeaderValue::from_static("true"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    tell(headers, replay.expires_at, replay.generation);
    KeyStatus::Is(State::Completed).say(headers);
    if status.is_client_error() || status.is_server_error() {
        // Answers stored by earlier releases may still have these.
        for name in &NEVER_STORED_OF_ERRORS {
            headers.remove(name);
        }
    }
    if status.is_server_error() {
        set_should_retry(headers, false);
    }
    Ok(response)
}

/// Removes a permission to read a stored answer that names another origin than the one that asks. A
/// permission for every origin stays.
fn close_to_other_origins(headers: &mut HeaderMap, origin: &HeaderValue) {
    let named = headers.get_all(header::ACCESS_CONTROL_ALLOW_ORIGIN);
    if named.iter().all(|named| named == "*" || named == origin) {
        return;
    }
    headers.remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
    headers.remove(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
    let vary = headers.get_all(header::VARY);
    if !vary.iter().any(|known| known == "Origin") {
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
    }
}

/// A copy with capacity for what a replay adds. A plain clone has none, and would grow header by header.
fn with_room(headers: &HeaderMap) -> HeaderMap {
    let mut copy = HeaderMap::with_capacity(headers.len() + ADDED_HEADERS);
    for (name, value) in headers {
        copy.append(name.clone(), value.clone());
    }
    copy
}

fn tell(headers: &mut HeaderMap, expires_at: Option<Timestamp>, generation: u32) {
    if let Some(value) = expires_at.and_then(date) {
        headers.insert(&EXPIRES, value);
    }
    if generation > 1 {
        headers.insert(&GENERATION, HeaderValue::from(generation));
    }
}

thread_local! {
    /// The last date formatted, and its second: many answers expire in the same second.
    static LAST_DATE: RefCell<Option<(u64, HeaderValue)>> = const { RefCell::new(None) };
}

/// `at` as an HTTP date, which has whole seconds.
fn date(at: Timestamp) -> Option<HeaderValue> {
    // The format has four digits for the year.
    let millis = u64::try_from(at.0)
        .unwrap_or_default()
        .min(END_OF_YEAR_9999_MILLIS);
    let second = millis / 1_000;
    LAST_DATE.with_borrow_mut(|last| {
        if let Some((_, value)) = last.as_ref().filter(|(known, _)| *known == second) {
            return Some(value.clone());
        }
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        let value = HeaderValue::try_from(date).ok()?;
        *last = Some((second, value.clone()));
        Some(value)
    })
}

/// The problem for a refusal of `key`.
pub(super) fn refused(refusal: &Refusal, key: &Key, route: Option<&str>) -> Problem {
    match refusal {
        Refusal::Reused(state) => Problem::KeyReused(*state),
        Refusal::CallerDiffers(state) => Problem::CallerDiffers(*state),
        Refusal::OutcomeUnknown => Problem::OutcomeUnknown(where_to_ask(key, route)),
        Refusal::ResponseNotStored {
            response,
            broke_off,
        } => not_stored(response, *broke_off),
        Refusal::Expired => Problem::KeyExpired,
    }
}

fn not_stored(response: &StoredResponse, broke_off: bool) -> Problem {
    Problem::NotStored {
        original_status: response.status,
        location: response.headers.get(header::LOCATION).cloned(),
        broke_off,
    }
}

/// The problem for a request that does not wait, or no longer waits, for a running one.
pub(super) fn in_flight(how: OnInFlight, key: &Key, route: Option<&str>) -> Problem {
    match how {
        OnInFlight::Wait | OnInFlight::Reject => Problem::InProgress,
        OnInFlight::Accept => Problem::InProgressAt(where_to_ask(key, route)),
    }
}

/// Where a client asks about `key`. If each route has its own keys, the look-up must name the route.
fn where_to_ask(key: &Key, route: Option<&str>) -> String {
    let route = route
        .map(|route| format!("?route={route}"))
        .unwrap_or_default();
    let key = segment(&key.header_value());
    format!("/.onlyonce/keys/{key}{route}")
}

/// `text` as one percent-encoded path segment.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_segment() {
        assert_eq!(segment("a/b c%"), "a%2Fb%20c%25");
        for (key, asked) in [
            (".", "%22.%22"),
            ("..", "%22..%22"),
            ("...", "..."),
            ("a b", "%22a%20b%22"),
        ] {
            let asked = format!("/.onlyonce/keys/{asked}");
            assert_eq!(where_to_ask(&Key::from_stored(key), None), asked);
        }
    }
}

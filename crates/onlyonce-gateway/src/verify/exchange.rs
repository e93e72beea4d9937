//! A request that was sent, and what came back.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use super::{
    endpoint::Endpoint,
    profile::{EXPIRIES, MARKERS},
};

/// A request to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) endpoint: Endpoint,
    /// The user's headers, credentials among them: their values are never shown.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) key_header: HeaderName,
    /// One line of the key header for each.
    pub(crate) keys: Vec<HeaderValue>,
    pub(crate) body: Bytes,
}

impl Outgoing {
    /// Replaces headers of the same names.
    pub(super) fn set_headers(&mut self, headers: &[(HeaderName, HeaderValue)]) {
        self.headers
            .retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
        self.headers.extend_from_slice(headers);
    }

    pub(super) fn with_key(&self, key: &str) -> Self {
        self.with_key_lines(&[key.as_bytes()])
    }

    /// The same with these lines of the key header. Lines that no header can hold are left out.
    pub(super) fn with_key_lines(&self, lines: &[&[u8]]) -> Self {
        let keys = lines
            .iter()
            .filter_map(|line| HeaderValue::from_bytes(line).ok())
            .collect();
        Self {
            keys,
            ..self.clone()
        }
    }

    pub(super) fn with_body(&self, body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..self.clone()
        }
    }

    pub(super) fn key(&self) -> String {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        self.keys.first().map(text).unwrap_or_default()
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether it came in chunks, without a length.
    pub(crate) chunked: bool,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The header that marks this as a replay, if one does.
    pub(super) fn marker(&self) -> Option<&'static str> {
        MARKERS.into_iter().find(|name| {
            self.header(name)
                .is_some_and(|value| !value.eq_ignore_ascii_case("false"))
        })
    }

    /// The header that says when the key ends, and what it says.
    pub(super) fn expiry(&self) -> Option<(&'static str, &str)> {
        EXPIRIES
            .into_iter()
            .find_map(|name| Some((name, self.header(name)?)))
    }

    /// Whether both are one answer: status, body, and place where both name one. JSON may be written
    /// differently; that is for the check of bytes to complain about.
    pub(super) fn same_as(&self, other: &Self) -> bool {
        let places = |answer: &Self| answer.headers.get(header::LOCATION).cloned();
        let elsewhere = match (places(self), places(other)) {
            (Some(left), Some(right)) => left != right,
            _ => false,
        };
        self.status == other.status && !elsewhere && same_body(&self.body, &other.body)
    }

    /// Whether this is how a request is turned away because its twin is still running.
    pub(super) fn says_busy(&self) -> bool {
        matches!(self.status.as_u16(), 202 | 409 | 423 | 425 | 429)
    }
}

fn same_body(left: &[u8], right: &[u8]) -> bool {
    let json = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
    left == right || json(left).is_some_and(|left| json(right) == Some(left))
}

/// A request, its answer, and when.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) label: &'static str,
    pub(crate) request: Outgoing,
    /// Since the start of the run.
    pub(crate) sent: Duration,
    pub(crate) ended: Duration,
    /// The answer, or why there is none.
    pub(crate) answer: Result<Answer, String>,
}

impl Exchange {
    pub(super) fn ok(&self) -> Option<&Answer> {
        self.answer.as_ref().ok()
    }

    /// The status, or 0 without an answer.
    pub(super) fn status(&self) -> u16 {
        self.ok().map_or(0, |answer| answer.status.as_u16())
    }

    pub(super) fn succeeded(&self) -> bool {
        self.ok().is_some_and(|answer| answer.status.is_success())
    }

    /// Whether the request was turned away as the client's mistake.
    pub(super) fn refused(&self) -> bool {
        self.ok()
            .is_some_and(|answer| answer.status.is_client_error())
    }

    pub(super) fn same_as(&self, other: &Self) -> bool {
        match (self.ok(), other.ok()) {
            (Some(left), Some(right)) => left.same_as(right),
            _ => false,
        }
    }

    pub(super) fn says_busy(&self) -> bool {
        self.ok().is_some_and(Answer::says_busy)
    }

    /// The status in words: `201`, or why there is none.
    pub(super) fn outcome(&self) -> String {
        match &self.answer {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(why) => format!("nothing ({why})"),
        }
    }
}

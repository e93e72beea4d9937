//! A request that was sent, and its answer.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, header};
use onlyonce_gateway::http_client::{Answer, Outgoing};
use serde_json::Value;

use super::profile::{EXPIRIES, MARKERS};

/// What the checks change about a request.
pub(super) trait Vary: Sized {
    /// Replaces headers of the same names.
    fn set_headers(&mut self, headers: &[(HeaderName, HeaderValue)]);

    /// The request with this key.
    fn with_key(&self, key: &str) -> Self {
        self.with_key_lines(&[key.as_bytes()])
    }

    /// The request with these lines of the key header. Lines that no header can hold are left out.
    fn with_key_lines(&self, lines: &[&[u8]]) -> Self;

    /// The request with another body.
    fn with_body(&self, body: impl Into<Bytes>) -> Self;

    /// The first line of the key header.
    fn key(&self) -> String;
}

impl Vary for Outgoing {
    fn set_headers(&mut self, headers: &[(HeaderName, HeaderValue)]) {
        self.headers
            .retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
        self.headers.extend_from_slice(headers);
    }

    fn with_key_lines(&self, lines: &[&[u8]]) -> Self {
        let keys = lines
            .iter()
            .filter_map(|line| HeaderValue::from_bytes(line).ok())
            .collect();
        Self {
            keys,
            ..self.clone()
        }
    }

    fn with_body(&self, body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..self.clone()
        }
    }

    fn key(&self) -> String {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        self.keys.first().map(text).unwrap_or_default()
    }
}

/// What the checks read from an answer.
pub(super) trait Inspect {
    /// The header of this name, if it is text.
    fn header(&self, name: &str) -> Option<&str>;

    /// The header that marks this as a replay, if there is one.
    fn marker(&self) -> Option<&'static str>;

    /// The header that says when the key expires, and its value.
    fn expiry(&self) -> Option<(&'static str, &str)>;

    /// Whether both are the same answer: status, body, and location if both have one. JSON may be formatted
    /// differently; the check of bytes reports that.
    fn same_as(&self, other: &Self) -> bool;

    /// Whether this answer refuses a request because its duplicate is still running.
    fn says_busy(&self) -> bool;
}

impl Inspect for Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    fn marker(&self) -> Option<&'static str> {
        MARKERS.into_iter().find(|name| {
            self.header(name)
                .is_some_and(|value| !value.eq_ignore_ascii_case("false"))
        })
    }

    fn expiry(&self) -> Option<(&'static str, &str)> {
        EXPIRIES
            .into_iter()
            .find_map(|name| Some((name, self.header(name)?)))
    }

    fn same_as(&self, other: &Self) -> bool {
        let places = |answer: &Self| answer.headers.get(header::LOCATION).cloned();
        let elsewhere = match (places(self), places(other)) {
            (Some(left), Some(right)) => left != right,
            _ => false,
        };
        self.status == other.status && !elsewhere && same_body(&self.body, &other.body)
    }

    fn says_busy(&self) -> bool {
        matches!(self.status.as_u16(), 202 | 409 | 423 | 425 | 429)
    }
}

fn same_body(left: &[u8], right: &[u8]) -> bool {
    let json = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
    left == right || json(left).is_some_and(|left| json(right) == Some(left))
}

/// A request, its answer, and their times.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) label: &'static str,
    pub(super) request: Outgoing,
    /// Since the start of the run.
    pub(super) sent: Duration,
    pub(super) ended: Duration,
    /// The answer, or why there is none.
    pub(super) answer: Result<Answer, String>,
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

    /// Whether the request was refused with a client error.
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

    /// The status as text, such as `201`, or why there is none.
    pub(super) fn outcome(&self) -> String {
        match &self.answer {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(why) => format!("nothing ({why})"),
        }
    }
}

//! The faults that a client of the demo's API may request, per request, in the header `Demo-Fault`: a
//! comma-separated list.
//!
//! Only parsing lives here; `api.rs` carries the faults out. The header is not part of the gateway's
//! fingerprint, so a retry without it is the same request.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

/// The header that names the faults.
pub(super) const HEADER: &str = "demo-fault";

const MAX_SLEEP_MS: u64 = 600_000;
const MAX_PADDING_BYTES: usize = 64 * 1024 * 1024;

/// The faults of one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    pub(super) slow_before: Duration,
    pub(super) slow_after: Duration,
    pub(super) before: Option<Before>,
    pub(super) after: Option<After>,
    pub(super) padding_bytes: Option<usize>,
    pub(super) dressed: Option<Dress>,
}

/// An unusual form of the answer to a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dress {
    /// Bytes that are not text.
    Binary,
    /// No body at all.
    Empty,
    /// In chunks, without a length.
    Chunked,
}

/// Replaces the booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Fail,
    Status(StatusCode),
    HangUp,
    NotExecuted,
    Decline,
}

/// Replaces the answer to a booking that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Fail,
    HangUp,
}

/// A fault that this API does not know.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Demo-Fault takes slow=MS, slow-after=MS, fail, fail-after, status=NNN, hang-up, \
     hang-up-before, big=BYTES, binary, empty, chunked, not-executed and decline"
)]
pub(super) struct UnknownFault;

impl Faults {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, UnknownFault> {
        let mut faults = Self::default();
        for line in headers.get_all(HEADER) {
            let line = line.to_str().map_err(|_| UnknownFault)?;
            for word in line
                .split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty())
            {
                faults.add(word)?;
            }
        }
        Ok(faults)
    }

    fn add(&mut self, word: &str) -> Result<(), UnknownFault> {
        match word
            .split_once('=')
            .map_or((word, None), |(name, value)| (name, Some(value)))
        {
            ("slow", Some(ms)) => self.slow_before = sleep(ms)?,
            ("slow-after", Some(ms)) => self.slow_after = sleep(ms)?,
            ("status", Some(code)) => self.before = Some(Before::Status(status(code)?)),
            ("big", Some(bytes)) => self.padding_bytes = Some(padding(bytes)?),
            ("fail", None) => self.before = Some(Before::Fail),
            ("hang-up-before", None) => self.before = Some(Before::HangUp),
            ("not-executed", None) => self.before = Some(Before::NotExecuted),
            ("decline", None) => self.before = Some(Before::Decline),
            ("fail-after", None) => self.after = Some(After::Fail),
            ("hang-up", None) => self.after = Some(After::HangUp),
            ("binary", None) => self.dressed = Some(Dress::Binary),
            ("empty", None) => self.dressed = Some(Dress::Empty),
            ("chunked", None) => self.dressed = Some(Dress::Chunked),
            _ => return Err(UnknownFault),
        }
        Ok(())
    }
}

fn sleep(ms: &str) -> Result<Duration, UnknownFault> {
    let ms = ms
        .parse::<u64>()
        .ok()
        .filter(|ms| *ms <= MAX_SLEEP_MS)
        .ok_or(UnknownFault)?;
    Ok(Duration::from_millis(ms))
}

fn padding(bytes: &str) -> Result<usize, UnknownFault> {
    bytes
        .parse()
        .ok()
        .filter(|bytes| *bytes <= MAX_PADDING_BYTES)
        .ok_or(UnknownFault)
}

/// A final status: 1xx would leave the client waiting for the real one.
fn status(code: &str) -> Result<StatusCode, UnknownFault> {
    let status: StatusCode = code.parse().map_err(|_| UnknownFault)?;
    if (200..600).contains(&status.as_u16()) {
        Ok(status)
    } else {
        Err(UnknownFault)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn parse(line: &'static str) -> Result<Faults, UnknownFault> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_static(line));
        Faults::from_headers(&headers)
    }

    #[test]
    fn faults_combine_and_none_is_none() {
        let faults = parse("slow=20, hang-up,big=9").unwrap();
        assert_eq!(faults.slow_before, Duration::from_millis(20));
        assert_eq!(
            (faults.after, faults.padding_bytes),
            (Some(After::HangUp), Some(9))
        );
        assert_eq!(
            Faults::from_headers(&HeaderMap::new()),
            Ok(Faults::default())
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "slow",
            "slow=x",
            "slow=600001",
            "status=99",
            "status=100",
            "fail=1",
            "Fail",
        ] {
            assert_eq!(parse(line), Err(UnknownFault), "{line}");
        }
    }
}

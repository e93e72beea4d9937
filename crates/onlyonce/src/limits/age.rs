//! The age of a request, as the request states it.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::rfc3339;

/// Whether a request is older than `longest` according to `header`, at `now` since 1970. A request without
/// the header, with two of them, or with a time further than `longest` in the future counts as too old.
pub fn is_too_old(
    headers: &HeaderMap,
    header: &HeaderName,
    longest: Duration,
    now: Duration,
) -> bool {
    let mut values = headers.get_all(header).iter();
    let said = values
        .next()
        .filter(|_| values.next().is_none())
        .and_then(|value| value.to_str().ok())
        .and_then(|text| seconds(text.trim()));
    said.is_none_or(|made| {
        let now = i128::from(now.as_secs());
        (now - i128::from(made)).unsigned_abs() > u128::from(longest.as_secs())
    })
}

/// Seconds since 1970 of a time in Unix seconds or in RFC 3339.
fn seconds(text: &str) -> Option<i64> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    let is_number = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && !whole.is_empty();
    if is_number {
        return whole.parse().ok();
    }
    rfc3339::millis(text).map(|millis| millis.div_euclid(1_000))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1700000000", Some(1_700_000_000)),
            ("1700000000.75", Some(1_700_000_000)),
            ("2023-11-14T22:13:20Z", Some(1_700_000_000)),
            ("2023-11-14t22:13:20.123z", Some(1_700_000_000)),
            ("2023-11-15T00:13:20+02:00", Some(1_700_000_000)),
            ("2023-11-14 16:43:20-05:30", Some(1_700_000_000)),
            ("", None),
            (".5", None),
            ("-5", None),
            ("now", None),
            ("99999999999999999999", None),
            ("2023-11-14T22:13:20", None),
            ("2023-11-14T22:13:20+0200", None),
            ("Tue, 14 Nov 2023 22:13:20 GMT", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn ages() {
        let header = HeaderName::from_static("x-time");
        let old = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&header, HeaderValue::from_str(value).unwrap());
            }
            let (longest, now) = (Duration::from_secs(300), Duration::from_secs(10_000));
            is_too_old(&headers, &header, longest, now)
        };
        for young in ["10000", "9700", "10300", " 9999 "] {
            assert!(!old(&[young]), "{young}");
        }
        for other in ["9699", "10301", "0", "soon", ""] {
            assert!(old(&[other]), "{other}");
        }
        assert!(old(&[]), "it does not say");
        assert!(old(&["10000", "10000"]), "it says it twice");
    }
}

//! How old a request says it is.

use std::time::Duration;

use http::{HeaderMap, HeaderName};

/// Whether a request is older than `longest`, by what it says in `header`, when it is `now` since 1970.
/// One that says nothing, says it twice, or says a time that lies further in the future than that is
/// taken for too old.
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
    rfc3339(text)
}

fn rfc3339(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let is = |at: usize, any: &[u8]| text.as_bytes().get(at).is_some_and(|b| any.contains(b));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let shaped = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !shaped || !in_range {
        return None;
    }
    let mut zone = text.get(19..)?;
    if let Some(fraction) = zone.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        zone = fraction.get(digits..).filter(|_| digits > 0)?;
    }
    let at = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(at - offset(zone)?)
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let two = |text: &str| -> Option<i64> {
        (text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

/// Days from 1970 to a date of the Gregorian calendar, after Howard Hinnant: years begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
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
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2024-02-29T00:00:00Z", Some(1_709_164_800)),
            ("", None),
            (".5", None),
            ("-5", None),
            ("now", None),
            ("99999999999999999999", None),
            ("2023-11-14T22:13:20", None),
            ("2023-11-14T22:13:20.Z", None),
            ("2023-11-14T22:13Z", None),
            ("2023-13-14T22:13:20Z", None),
            ("2023-11-14T22:13:20+2:00", None),
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

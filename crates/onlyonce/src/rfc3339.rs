//! RFC 3339 times, as clients, providers and ledgers write them.
//!
//! The offset is applied, never dropped: a time with an unreadable offset is invalid.

/// Milliseconds since 1970 of a time like `2023-11-15T00:13:20.5+02:00`. `t` and `z` may be lower case, and a
/// space may replace the `T`. A fraction of a second is truncated to three digits. `None` for everything
/// else, including a time without an offset.
pub fn millis(text: &str) -> Option<i64> {
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
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !shaped || !in_range {
        return None;
    }
    let mut zone = text.get(19..)?;
    let mut thousandths = 0;
    if let Some(fraction) = zone.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        zone = fraction.get(digits..).filter(|_| digits > 0)?;
        let three = fraction.bytes().take(digits).chain([b'0'; 2]).take(3);
        thousandths = three.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    }
    let at = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some((at - offset(zone)?) * 1_000 + thousandths)
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

/// The number of days in a month.
fn days_of(year: i64, month: i64) -> i64 {
    let (next_year, next) = match month {
        12 => (year + 1, 1),
        month => (year, month + 1),
    };
    days(next_year, next, 1) - days(year, month, 1)
}

/// Days from 1970 to a Gregorian date, by Howard Hinnant's algorithm: years begin in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let at = Some(1_700_000_000_000);
        for (text, expected) in [
            ("2023-11-14T22:13:20Z", at),
            ("2023-11-14t22:13:20z", at),
            ("2023-11-14 22:13:20Z", at),
            ("2023-11-15T00:13:20+02:00", at),
            ("2023-11-14 16:43:20-05:30", at),
            ("2023-11-14T22:13:20-00:00", at),
            ("2023-11-14T22:13:20.1Z", Some(1_700_000_000_100)),
            ("2023-11-14T22:13:20.12z", Some(1_700_000_000_120)),
            ("2023-11-14T22:13:20.1239Z", Some(1_700_000_000_123)),
            ("2023-11-15T04:13:20.519830+06:00", Some(1_700_000_000_519)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1969-12-31T23:59:59.5Z", Some(-500)),
            ("2024-02-29T00:00:00Z", Some(1_709_164_800_000)),
            ("2023-12-31T00:00:00Z", Some(1_703_980_800_000)),
            ("2023-02-29T00:00:00Z", None),
            ("2023-11-31T00:00:00Z", None),
            ("2023-11-00T00:00:00Z", None),
            ("2023-13-14T22:13:20Z", None),
            ("2023-11-14T24:13:20Z", None),
            ("2023-11-14T22:13:20", None),
            ("2023-11-14T22:13:20.Z", None),
            ("2023-11-14T22:13Z", None),
            ("2023-11-14T22:13:20+2:00", None),
            ("2023-11-14T22:13:20+0200", None),
            ("2023-11-14T22:13:20+02:00Z", None),
            ("2023-11-14T22:13:20.5+02", None),
            ("Tue, 14 Nov 2023 22:13:20 GMT", None),
            ("", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }
}

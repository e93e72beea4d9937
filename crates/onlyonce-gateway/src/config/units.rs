//! Durations and sizes as people write them: `1h30m`, `500ms`, `512KiB`.

use std::time::Duration;

/// The longest duration: ample, yet safe to add to a clock.
pub(super) const MAX_DURATION: Duration = Duration::from_secs(10 * 366 * 86_400);
/// The largest size of a body, in bytes: bodies are held in memory.
pub(super) const MAX_SIZE: u64 = 1 << 30;
/// The largest size of anything, in bytes. A field's own range may be narrower.
const LARGEST: u64 = 1 << 40;

/// Why a text is not a duration or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A number without a unit.
    #[error("a duration needs a unit")]
    BareNumber,
    /// Not a duration at all.
    #[error("this is not a duration")]
    Duration,
    /// Longer than ten years.
    #[error("the longest duration is ten years")]
    TooLong,
    /// Not a size at all; decimal units are not accepted.
    #[error("this is not a size")]
    Size,
    /// Larger than 1 TiB.
    #[error("the largest size is 1TiB")]
    TooLarge,
}

impl UnitError {
    pub(super) fn hint(self) -> &'static str {
        match self {
            Self::BareNumber => "write the unit, for example `30s`, `500ms` or `24h`",
            Self::Duration => "for example `500ms`, `30s`, `1h30m`, `24h` or `7d`",
            Self::TooLong => "for example `30d`",
            Self::Size => "a number of bytes, or for example `512KiB` or `1MiB`",
            Self::TooLarge => "for example `1MiB`",
        }
    }
}

/// A Go-style duration.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(UnitError::BareNumber);
    }
    // humantime reads `5M` as five months, but the writer means minutes.
    if text.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(UnitError::Duration);
    }
    match humantime::parse_duration(text) {
        Ok(duration) if duration > MAX_DURATION => Err(UnitError::TooLong),
        Ok(duration) => Ok(duration),
        Err(humantime::DurationError::NumberOverflow) => Err(UnitError::TooLong),
        Err(_) => Err(UnitError::Duration),
    }
}

/// A duration as Go prints it: `48h0m0s`, `1m30s`, `500ms`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1_000 {
        return if millis == 0 {
            "0s".to_owned()
        } else {
            format!("{millis}ms")
        };
    }
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let (seconds, rest) = (millis / 1_000 % 60, millis % 1_000);
    let fraction = match rest {
        0 => String::new(),
        rest => format!(".{rest:03}").trim_end_matches('0').to_owned(),
    };
    match (hours, minutes) {
        (0, 0) => format!("{seconds}{fraction}s"),
        (0, minutes) => format!("{minutes}m{seconds}{fraction}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}{fraction}s"),
    }
}

/// A size in bytes, with a binary unit or none.
pub(super) fn size(text: &str) -> Result<u64, UnitError> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(UnitError::Size);
    }
    let factor: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err(UnitError::Size),
    };
    // This fails only on too many digits.
    let number: u64 = number.parse().map_err(|_| UnitError::TooLarge)?;
    number
        .checked_mul(factor)
        .filter(|bytes| *bytes <= LARGEST)
        .ok_or(UnitError::TooLarge)
}

/// A size in the largest binary unit that divides it.
pub(super) fn binary(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(fits) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_look_like_gos() {
        let shown = |millis| go_duration(Duration::from_millis(millis));
        assert_eq!(shown(48 * 3_600_000), "48h0m0s");
        assert_eq!(shown(90_000), "1m30s");
        assert_eq!(shown(500), "500ms");
        assert_eq!(shown(1_500), "1.5s");
        assert_eq!(shown(0), "0s");
    }

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("24h", 86_400_000),
            ("1h30m", 5_400_000),
            ("24h0m0s", 86_400_000),
            ("500ms", 500),
            ("7d", 604_800_000),
            ("1.5h", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for (text, error) in [
            ("30", UnitError::BareNumber),
            ("0", UnitError::BareNumber),
            ("1.5", UnitError::BareNumber),
            ("", UnitError::Duration),
            ("soon", UnitError::Duration),
            ("-1s", UnitError::Duration),
            ("5M", UnitError::Duration),
            ("11y", UnitError::TooLong),
            ("99999999999999999999999s", UnitError::TooLong),
        ] {
            assert_eq!(duration(text), Err(error), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("512KiB", 512 << 10),
            ("1MiB", 1 << 20),
            ("1 GiB", 1 << 30),
            ("2GiB", 2 << 30),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, error) in [
            ("", UnitError::Size),
            ("1MB", UnitError::Size),
            ("1mib", UnitError::Size),
            ("-1", UnitError::Size),
            ("1.5MiB", UnitError::Size),
            ("1025GiB", UnitError::TooLarge),
            ("99999999999999999999999", UnitError::TooLarge),
            ("18446744073709551615GiB", UnitError::TooLarge),
        ] {
            assert_eq!(size(text), Err(error), "{text}");
        }
    }
}

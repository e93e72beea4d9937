//! Times as given on the command line and in ledgers.

use onlyonce_gateway::{
    clock::{self, read_rfc3339},
    config,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Numbers that are read as Unix seconds, 2001 to 2286. Shorter or longer ones are something else, such as a
/// day without its dashes.
const SECONDS: std::ops::Range<f64> = 1e9..1e10;
/// Numbers that are read as Unix milliseconds, for the same years.
const MILLIS: std::ops::Range<f64> = 1e12..1e13;

/// A time before now such as `48h`, a day, or a time in RFC 3339.
pub(super) fn on_the_command_line(text: &str) -> Option<SystemTime> {
    written(text).or_else(|| clock::now().checked_sub(config::duration(text).ok()?))
}

/// A time in RFC 3339, a day, or Unix seconds or milliseconds.
pub(super) fn of_a_ledger(text: &str) -> Option<SystemTime> {
    written(text).or_else(|| {
        let is_number = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let seconds = match text.parse::<f64>().ok().filter(|_| is_number)? {
            number if SECONDS.contains(&number) => number,
            number if MILLIS.contains(&number) => number / 1_000.0,
            _ => return None,
        };
        Some(UNIX_EPOCH + Duration::from_secs_f64(seconds))
    })
}

/// RFC 3339; UTC if there is no offset or only a day.
fn written(text: &str) -> Option<SystemTime> {
    read_rfc3339(text)
        .or_else(|| read_rfc3339(&format!("{text}Z")))
        .or_else(|| read_rfc3339(&format!("{text}T00:00:00Z")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_people_write_them() {
        let day = on_the_command_line("2026-01-31").unwrap();
        for same in [
            "2026-01-31T00:00:00Z",
            "2026-01-31 00:00:00",
            "2026-01-31t00:00:00.000z",
            "2026-01-31T02:00:00+02:00",
            "2026-01-30T18:00:00.000-06:00",
        ] {
            assert_eq!(on_the_command_line(same), Some(day), "{same}");
            assert_eq!(of_a_ledger(same), Some(day), "{same}");
        }
        assert!(on_the_command_line("48h").unwrap() < clock::now());
        for wrong in [
            "soon",
            "2026-01-31T00:00:00+0200",
            "2026-02-30",
            "1769817600",
        ] {
            assert_eq!(on_the_command_line(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn moments_as_ledgers_have_them() {
        let day = on_the_command_line("2026-01-31");
        for same in ["1769817600", "1769817600.0", "1769817600000"] {
            assert_eq!(of_a_ledger(same), day, "{same}");
        }
        for wrong in [
            "",
            "48h",
            "soon",
            "2026",
            "20260131",
            "20260131120000",
            "-1769817600",
            "NaN",
            "1e9",
        ] {
            assert_eq!(of_a_ledger(wrong), None, "{wrong}");
        }
    }
}

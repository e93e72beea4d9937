//! Wall-clock time for people, from the same clock that the embedded store reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onlyonce_core::Timestamp;
use onlyonce_store::clock::StoreClock;

/// The current time.
pub fn now() -> SystemTime {
    system_time(StoreClock::system().now())
}

/// The current time, as a store on this machine sees it.
pub(crate) fn store_now() -> Timestamp {
    StoreClock::system().now()
}

/// Converts a store's timestamp to a `SystemTime`.
fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or_default())
}

/// Parses an RFC 3339 time with any offset; `None` for times before 1970.
pub fn read_rfc3339(text: &str) -> Option<SystemTime> {
    let millis = onlyonce::rfc3339::millis(text)?;
    (millis >= 0).then(|| system_time(Timestamp(millis)))
}

/// The last whole second of a four-digit year, in milliseconds since the epoch.
const END_OF_YEAR_9999: i64 = 253_402_300_799_000;

/// Formats a time as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(at: Timestamp) -> String {
    let at = Timestamp(at.0.clamp(0, END_OF_YEAR_9999));
    humantime::format_rfc3339_millis(system_time(at)).to_string()
}

//! Wall-clock time for people: the same clock that the embedded store reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onlyonce_core::Timestamp;
use onlyonce_store::clock::StoreClock;

/// Now.
pub fn now() -> SystemTime {
    system_time(StoreClock::system().now())
}

/// Now, as a store on this machine tells it.
pub(crate) fn store_now() -> Timestamp {
    StoreClock::system().now()
}

/// A store's time as the operating system tells it.
fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or_default())
}

/// A moment that somebody wrote in RFC 3339, with whatever offset.
pub fn read_rfc3339(text: &str) -> Option<SystemTime> {
    let millis = onlyonce::rfc3339::millis(text)?;
    (millis >= 0).then(|| system_time(Timestamp(millis)))
}

/// The last moment that four digits of a year can tell, in milliseconds.
const END_OF_YEAR_9999: i64 = 253_402_300_799_000;

/// RFC 3339 in UTC with milliseconds.
pub fn rfc3339(at: Timestamp) -> String {
    let at = Timestamp(at.0.clamp(0, END_OF_YEAR_9999));
    humantime::format_rfc3339_millis(system_time(at)).to_string()
}

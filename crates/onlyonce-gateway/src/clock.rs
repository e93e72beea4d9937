//! Wall-clock time for people: the same clock that the embedded store reads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onlyonce_core::Timestamp;
use onlyonce_store::clock::StoreClock;

/// Now.
pub(crate) fn now() -> SystemTime {
    system_time(StoreClock::system().now())
}

/// A store's time as the operating system tells it.
fn system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).unwrap_or_default())
}

/// RFC 3339 in UTC with milliseconds.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    humantime::format_rfc3339_millis(system_time(at)).to_string()
}

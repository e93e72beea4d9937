//! What the tests stand on: the real binary, a counting upstream and a client that can misbehave.
//!
//! Deliberately absent: any mock of our own traits, and any wait without a deadline.

pub(crate) mod admin;
pub(crate) mod client;
pub(crate) mod clients;
pub(crate) mod frames;
pub(crate) mod gateway;
pub(crate) mod history;
pub(crate) mod mount;
pub(crate) mod process;
pub(crate) mod provider;
pub(crate) mod script;
pub(crate) mod secure;
pub(crate) mod server;
pub(crate) mod upstream;
pub(crate) mod wire;
pub(crate) mod worker;

use std::time::Duration;

pub(crate) use client::{Connection, Request, Response};
pub(crate) use gateway::{Gateway, Setup};
pub(crate) use onlyonce_testkit::soak::is_on as soak;
pub(crate) use script::Script;
pub(crate) use server::{Mortal, Server};
pub(crate) use upstream::Upstream;

/// Nothing in this suite may take longer than this to say something. It ends what hangs; it is no
/// measure of speed, so it leaves room for a machine with better things to do.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The pause between two looks at something that gives no signal.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// The marker of a replay in the default dialect.
pub(crate) const REPLAYED: &str = "X-Idempotent-Replayed";

/// Milliseconds.
pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The future's value, or a panic that names what was waited for.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, Box::pin(future)).await {
        Ok(value) => value,
        Err(_) => panic!("waited {DEADLINE:?} for {what}"),
    }
}

/// Looks again and again until `look` yields something: for what the program only shows when asked.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    })
    .await
}

/// Seconds since 1970 of an IMF-fixdate (`Sun, 06 Nov 1994 08:49:37 GMT`); `None` for any other form.
pub(crate) fn imf_fixdate(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    if text.len() != 29 || !text.ends_with(" GMT") {
        return None;
    }
    let day: i64 = text.get(5..7)?.parse().ok()?;
    let month = MONTHS
        .iter()
        .position(|name| text.get(8..11) == Some(name))? as i64
        + 1;
    let year: i64 = text.get(12..16)?.parse().ok()?;
    let [hour, minute, second] = [17, 20, 23].map(|at| text.get(at..at + 2)?.parse::<i64>().ok());
    // Days from the civil date, after Howard Hinnant: years begin in March.
    let (shifted, month_index) = (year - i64::from(month <= 2), (month + 9) % 12);
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * month_index + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100
        + day_of_year
        - 719_468;
    let name = DAYS[usize::try_from(days.rem_euclid(7)).ok()?];
    (text.get(..5)? == format!("{name}, "))
        .then_some(days * 86_400 + hour? * 3_600 + minute? * 60 + second?)
}

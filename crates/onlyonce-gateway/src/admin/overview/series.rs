//! The time series: the number of requests by decision, per second.

use onlyonce::stats::{Event, RouteStats};
use serde_json::{Value, json};

use super::measured::Quantiles;

/// The decisions, in the order in which they are shown.
pub(super) const DECISIONS: [&str; 5] = ["new", "replayed", "waited", "refused", "unknown"];
/// The columns of a row: its time, its length, and the decisions made in it. The last three are pairs of the
/// median and the 99th percentile, or null.
pub(super) const COLUMNS: [&str; 10] = [
    "at_ms",
    "span_ms",
    "new",
    "replayed",
    "waited",
    "refused",
    "unknown",
    "reserve_ms",
    "upstream_ms",
    "complete_ms",
];

/// Requests by decision, since startup or within an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decided(pub(super) [u64; 5]);

impl Decided {
    /// The counts of a route.
    pub(super) fn of(stats: &RouteStats) -> Self {
        let sum = |events: &[Event]| events.iter().map(|event| stats.total(*event)).sum::<u64>();
        let waited = sum(&[Event::Waited]);
        let refused = sum(&[
            Event::Misused,
            Event::CallerDiffers,
            Event::Enforced,
            Event::InvalidKey,
            Event::TooLarge,
            Event::GrpcUnsupported,
            Event::Unauthenticated,
            Event::AuthenticationUnavailable,
            Event::HistoryLost,
            Event::Expired,
            Event::NotStored,
            Event::Incomplete,
            Event::RateLimited,
            Event::KeyQuota,
            Event::TooOld,
            Event::Overloaded,
            Event::StoreError,
            // Requests that met a running one and were told to retry, immediately or after a wait.
            Event::SentAway,
        ]);
        let new = sum(&[Event::Created, Event::Retried, Event::ExecutedAfterExpiry]);
        Self([
            new,
            sum(&[Event::Replayed]),
            waited,
            refused,
            sum(&[Event::Unknown]),
        ])
    }

    pub(super) fn and(self, other: Self) -> Self {
        let mut sum = self;
        for (mine, theirs) in sum.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
        sum
    }

    /// The increase over `before`; a removed route does not make it negative.
    pub(super) fn since(self, before: Self) -> Self {
        let mut difference = self;
        for (now, then) in difference.0.iter_mut().zip(before.0) {
            *now = now.saturating_sub(then);
        }
        difference
    }

    pub(super) fn shown(self) -> Value {
        let pairs = DECISIONS.into_iter().zip(self.0);
        pairs
            .map(|(name, count)| (name.to_owned(), Value::from(count)))
            .collect()
    }
}

/// One interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The end of the interval, in milliseconds since 1970.
    pub(super) at_ms: i64,
    /// The length of the interval, in milliseconds.
    pub(super) span_ms: u64,
    pub(super) decided: Decided,
    pub(super) latency: [Quantiles; 3],
}

impl Row {
    pub(super) fn shown(&self) -> Value {
        let [new, replayed, waited, refused, unknown] = self.decided.0;
        let [reserve, upstream, complete] = self.latency;
        json!([
            self.at_ms,
            self.span_ms,
            new,
            replayed,
            waited,
            refused,
            unknown,
            reserve,
            upstream,
            complete
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_the_difference() {
        let before = Decided([1, 2, 3, 4, 5]);
        let now = Decided([1, 4, 3, 9, 0]);
        assert_eq!(now.since(before), Decided([0, 2, 0, 5, 0]));
        assert_eq!(before.and(now), Decided([2, 6, 6, 13, 5]));
    }
}

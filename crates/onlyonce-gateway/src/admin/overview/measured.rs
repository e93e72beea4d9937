//! Latencies and clients, read from the Prometheus exposition, which is the one account of what was measured.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

/// The stages with latencies, and their histograms.
const STAGES: [(&str, &str); 3] = [
    ("reserve", "onlyonce_reserve_seconds_bucket"),
    ("upstream", "onlyonce_upstream_seconds_bucket"),
    ("complete", "onlyonce_complete_seconds_bucket"),
];
/// The counter of answered duplicates.
const REPLAYS: &str = "api_idempotency_reserve_replay_total";
/// The length of the interval that quantiles cover.
const WINDOW: Duration = Duration::from_secs(10);
/// The most clients shown, those with the most duplicates first.
const MAX_CLIENTS: usize = 10;

/// Cumulative counts by upper bound in seconds; the last bound is infinite.
type Buckets = Vec<(f64, f64)>;
/// The median and the 99th percentile, in milliseconds.
pub(super) type Quantiles = Option<[f64; 2]>;

/// Recent measurements.
#[derive(Default)]
pub(super) struct Measured {
    window: VecDeque<(Instant, [Buckets; 3])>,
}

impl Measured {
    /// Adds a reading of the exposition, and returns the recent latency of each stage. `None` if no times are
    /// measured at all.
    pub(super) fn take(&mut self, text: &str, now: Instant) -> Option<[Quantiles; 3]> {
        let buckets = STAGES.map(|(_, name)| buckets(text, name));
        if buckets.iter().all(Vec::is_empty) {
            return None;
        }
        // The newest reading older than the window stays as the baseline, unless it is too old.
        while self.window.len() > 1 && now.duration_since(self.window[1].0) >= WINDOW {
            self.window.pop_front();
        }
        self.window
            .retain(|(at, _)| now.duration_since(*at) < 2 * WINDOW);
        self.window.push_back((now, buckets));
        let (first, last) = (&self.window.front()?.1, &self.window.back()?.1);
        Some(std::array::from_fn(|stage| {
            quantiles(&first[stage], &last[stage])
        }))
    }
}

/// The latencies by stage, as shown.
pub(super) fn shown(latency: [Quantiles; 3]) -> Value {
    let stages = STAGES.into_iter().zip(latency);
    let one =
        |quantiles: Quantiles| quantiles.map(|[p50, p99]| json!({ "p50_ms": p50, "p99_ms": p99 }));
    stages
        .map(|((name, _), quantiles)| (name.to_owned(), Value::from(one(quantiles))))
        .collect()
}

/// The clients with the most duplicates.
pub(super) fn clients(text: &str) -> Vec<Value> {
    let mut by_client: BTreeMap<String, f64> = BTreeMap::new();
    for (labels, value) in samples(text, REPLAYS) {
        if let Some(client) = label(labels, "client") {
            *by_client.entry(client).or_default() += value;
        }
    }
    let mut clients: Vec<(String, f64)> = by_client.into_iter().collect();
    clients.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    clients.truncate(MAX_CLIENTS);
    clients
        .into_iter()
        // Counters are integers.
        .map(|(client, duplicates)| json!({ "client": client, "duplicates": duplicates as u64 }))
        .collect()
}

/// A histogram, summed over its routes.
fn buckets(text: &str, name: &str) -> Buckets {
    let mut sums: Buckets = Vec::new();
    for (labels, value) in samples(text, name) {
        let bound = label(labels, "le").map(|bound| bound.parse().unwrap_or(f64::INFINITY));
        let Some(bound) = bound else { continue };
        match sums.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, sum)) => *sum += value,
            None => sums.push((bound, value)),
        }
    }
    sums.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    sums
}

/// The quantiles of the requests between two readings, interpolated linearly within buckets.
fn quantiles(before: &Buckets, after: &Buckets) -> Quantiles {
    let then = |index: usize| before.get(index).map_or(0.0, |(_, count)| *count);
    let grown: Vec<(f64, f64)> = after
        .iter()
        .enumerate()
        .map(|(index, (bound, count))| (*bound, count - then(index)))
        .collect();
    let total = grown
        .last()
        .map(|(_, count)| *count)
        .filter(|total| *total > 0.0)?;
    let at = |share: f64| {
        let wanted = share * total;
        let mut low = (0.0, 0.0);
        for (bound, count) in &grown {
            if *count >= wanted {
                let inside = (count - low.1).max(f64::EPSILON);
                // The slowest requests have only a lower bound.
                let bound = if bound.is_finite() { *bound } else { low.0 };
                return 1_000.0 * (low.0 + (bound - low.0) * (wanted - low.1) / inside);
            }
            low = (*bound, *count);
        }
        1_000.0 * low.0
    };
    Some([at(0.5), at(0.99)].map(|ms| (ms * 1_000.0).round() / 1_000.0))
}

/// The samples of `name`: labels and values.
fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?.strip_prefix('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        Some((labels, value.parse().ok()?))
    })
}

/// The value of a label, unescaped.
fn label(labels: &str, wanted: &str) -> Option<String> {
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, letter) => value.push(letter),
            }
        };
        if name == wanted {
            return Some(value);
        }
        rest = after[end + 1..].trim_start_matches(',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(fast: u64, slow: u64) -> String {
        let name = "onlyonce_reserve_seconds_bucket";
        let all = fast + slow;
        format!(
            "# TYPE onlyonce_reserve_seconds histogram\n\
             {name}{{route=\"a\",le=\"0.001\"}} {fast}\n\
             {name}{{route=\"a\",le=\"0.1\"}} {all}\n\
             {name}{{route=\"a\",le=\"+Inf\"}} {all}\n\
             {name}{{route=\"b\",le=\"0.001\"}} 0\n\
             api_idempotency_reserve_replay_total{{route=\"a\",client=\"x\\\"}} y\"}} 4\n\
             api_idempotency_reserve_replay_total{{route=\"b\",client=\"x\\\"}} y\"}} 1\n\
             api_idempotency_reserve_replay_total{{route=\"b\",client=\"z\"}} 9\n\
             api_idempotency_reserve_replay_total{{route=\"b\"}} 50\n"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn quantiles_are_those_of_the_window() {
        let mut measured = Measured::default();
        let start = Instant::now();
        let second = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(measured.take(&text(1_000, 0), start), Some([None; 3]));
        let [reserve, upstream, _] = measured.take(&text(1_100, 0), second(1)).unwrap();
        assert_eq!(reserve, Some([0.5, 0.99]), "a hundred within a millisecond");
        assert_eq!(upstream, None);
        for at in 2..=12 {
            measured.take(&text(1_100, 0), second(at));
        }
        let [reserve, ..] = measured.take(&text(1_100, 10), second(13)).unwrap();
        let [p50, _] = reserve.unwrap();
        assert!(
            (1.0..=100.0).contains(&p50),
            "only the slow ones are left: {p50}"
        );
        assert_eq!(measured.take("", second(14)), None);
    }

    #[test]
    fn clients_are_counted_over_routes() {
        let found = clients(&text(0, 0));
        assert_eq!(found[0], json!({ "client": "z", "duplicates": 9 }));
        assert_eq!(found[1], json!({ "client": "x\"} y", "duplicates": 5 }));
        assert_eq!(found.len(), 2);
    }
}

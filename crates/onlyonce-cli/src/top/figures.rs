//! The displayed figures, from the admin API's overview: rates are computed from two samples of the totals.

use std::collections::VecDeque;

use serde_json::Value;
use tokio::time::Instant;

/// The decisions, in display order.
pub(super) const DECISIONS: [&str; 5] = ["new", "replayed", "waited", "refused", "unknown"];
/// Rates that are kept for the chart.
const KEPT: usize = 300;

/// The figures of a gateway as of the last sample.
pub(super) struct Figures {
    pub(super) now: Value,
    /// Requests per second by decision, the oldest first.
    pub(super) rates: VecDeque<[f64; 5]>,
    /// Why the last query failed.
    pub(super) failure: Option<String>,
    looked: Instant,
}

impl Figures {
    pub(super) fn new(now: Value) -> Self {
        Self {
            now,
            rates: VecDeque::new(),
            failure: None,
            looked: Instant::now(),
        }
    }

    /// Adds another sample.
    pub(super) fn update(&mut self, look: anyhow::Result<Value>) {
        let next = match look {
            Ok(next) => next,
            Err(error) => {
                self.failure = Some(format!("{error:#}"));
                return;
            }
        };
        let seconds = self.looked.elapsed().as_secs_f64().max(0.001);
        let before = totals(&self.now);
        let after = totals(&next);
        // A restarted gateway counts from zero.
        let rate = |index: usize| (after[index] - before[index]).max(0.0) / seconds;
        if self.rates.len() == KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back(std::array::from_fn(rate));
        self.looked = Instant::now();
        self.now = next;
        self.failure = None;
    }

    /// The latest rates.
    pub(super) fn rate(&self) -> [f64; 5] {
        self.rates.back().copied().unwrap_or_default()
    }

    pub(super) fn text(&self, pointer: &str) -> &str {
        let found = self.now.pointer(pointer);
        found.and_then(Value::as_str).unwrap_or("-")
    }

    pub(super) fn number(&self, pointer: &str) -> u64 {
        let found = self.now.pointer(pointer);
        found.and_then(Value::as_u64).unwrap_or_default()
    }

    pub(super) fn list(&self, name: &str) -> &[Value] {
        self.now[name].as_array().map_or(&[], Vec::as_slice)
    }

    /// One line: health, store, configuration.
    pub(super) fn headline(&self) -> String {
        let writable = self.now["store"]["writable"].as_bool() == Some(true);
        let shadow = self.list("shadow_routes");
        let names: Vec<&str> = shadow.iter().filter_map(Value::as_str).collect();
        let shadow = match names.is_empty() {
            true => String::new(),
            false => format!("  SHADOW {}", names.join(",")),
        };
        format!(
            "OnlyOnce {}  {}  store {} ({}, {}, breaker {})  config {}  protected {}/{}{shadow}",
            self.text("/version"),
            self.text("/status"),
            self.text("/store/kind"),
            self.text("/store/level"),
            if writable { "writable" } else { "NOT WRITABLE" },
            self.text("/store/breaker"),
            self.number("/config/generation"),
            self.number("/protected_routes"),
            self.list("routes").len(),
        )
    }

    /// One line: the findings of shadow mode, if a route uses it.
    pub(super) fn shadow(&self) -> Option<String> {
        let total = self.now["shadow"].as_object()?;
        let count = |name: &str| total.get(name).and_then(Value::as_u64).unwrap_or_default();
        let since = total.get("since").and_then(Value::as_str).unwrap_or("-");
        Some(format!(
            "shadow since {since}: {} duplicates would have been answered, {} requests refused, of {} ({} without a \
             key)",
            count("duplicates"),
            count("refused"),
            count("requests"),
            count("without_key"),
        ))
    }
}

fn totals(overview: &Value) -> [f64; 5] {
    DECISIONS.map(|name| overview["totals"][name].as_f64().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn shadow_mode_in_one_line() {
        let total = json!({
            "since": "2026-11-10T00:00:00.000Z", "requests": 900, "duplicates": 310, "refused": 57, "without_key": 4
        });
        let figures = Figures::new(json!({ "shadow": total }));
        let line = figures.shadow().expect("a route is observed");
        assert!(
            line.contains("310 duplicates would have been answered, 57 requests refused"),
            "{line}"
        );
        assert!(crate::top::plain::text(&figures).contains(&line));
        assert_eq!(Figures::new(json!({ "shadow": null })).shadow(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_differences_by_time() {
        let mut figures = Figures::new(json!({ "totals": { "new": 10, "replayed": 1 } }));
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        figures.update(Ok(json!({ "totals": { "new": 30, "replayed": 0 } })));
        assert_eq!(figures.rate(), [10.0, 0.0, 0.0, 0.0, 0.0]);
        figures.update(Err(anyhow::anyhow!("gone")));
        assert_eq!(figures.failure.as_deref(), Some("gone"));
        assert_eq!(figures.rate()[0], 10.0, "what was known stays");
    }
}

//! `GET /shadow`: the observations of shadow mode in the last week, by route and client, and a checklist to
//! read before a route is switched on.
//!
//! Everything here comes from the observations of this process. Nothing is stored.

use std::time::Duration;

use axum::{Json, extract::State};
use onlyonce::{
    policy::Enforce,
    shadow::{Observations, REPORT_SPAN, Tally, Would},
};
use onlyonce_core::Timestamp;
use onlyonce_store::{Level, clock::StoreClock};
use serde_json::{Map, Value, json};

use super::Admin;
use crate::{clock::rfc3339, config::units::go_duration, edge::Lane};

/// `GET /shadow`.
pub(super) async fn report(State(admin): State<Admin>) -> Json<Value> {
    let edge = admin.0.current.edge();
    let level = admin.0.engine.store().level();
    let now = StoreClock::system().now();
    let routes: Vec<Value> = observed(&edge.lanes)
        .map(|(lane, observations)| route(lane, observations, level, now))
        .collect();
    Json(json!({
        "span": go_duration(REPORT_SPAN),
        "total": total(&edge.lanes, now),
        "routes": routes,
    }))
}

/// The sum over all routes in shadow mode; null if there is none.
pub(super) fn total(lanes: &[Lane], now: Timestamp) -> Value {
    let reports = observed(lanes).map(|(_, observations)| observations.report());
    let sum = reports.fold(None, |sum: Option<(Duration, Tally)>, report| {
        let (covers, tally) = sum.unwrap_or_default();
        Some((covers.max(report.covers), tally.and(&report.all)))
    });
    sum.map_or(Value::Null, |(covers, tally)| {
        let mut shown = figures(&tally);
        shown["since"] = since(now, covers);
        shown
    })
}

fn observed(lanes: &[Lane]) -> impl Iterator<Item = (&Lane, &Observations)> {
    lanes
        .iter()
        .filter_map(|lane| Some((lane, lane.layer.observations()?)))
}

fn route(lane: &Lane, observations: &Observations, level: Level, now: Timestamp) -> Value {
    let report = observations.report();
    let clients: Vec<Value> = report
        .clients
        .iter()
        .map(|one| {
            let mut shown = figures(&one.would);
            shown["client"] = one.client.as_deref().into();
            shown
        })
        .collect();
    let others = (report.other_clients.requests() > 0).then(|| figures(&report.other_clients));
    let mut shown = figures(&report.all);
    shown["route"] = lane.route.id.as_str().into();
    shown["path"] = lane.route.path.as_str().into();
    shown["since"] = since(now, report.covers);
    shown["would"] = words(|would| report.all.of(would));
    shown["clients"] = clients.into();
    shown["other_clients"] = others.into();
    shown["samples"] = samples(observations);
    shown["checklist"] = checklist(lane, &report.all, report.covers, level);
    shown
}

/// The start of an interval that ends now and is `covers` long.
fn since(now: Timestamp, covers: Duration) -> Value {
    let covers = i64::try_from(covers.as_millis()).unwrap_or(i64::MAX);
    rfc3339(Timestamp(now.0.saturating_sub(covers))).into()
}

/// The most asked-for figures.
fn figures(tally: &Tally) -> Value {
    json!({
        "requests": tally.requests(),
        "duplicates": tally.duplicates(),
        "refused": tally.refused(),
        "without_key": tally.of(Would::Keyless) + tally.of(Would::Missing),
    })
}

/// A count for each word.
pub(super) fn words(count: impl Fn(Would) -> u64) -> Value {
    let words = Would::ALL.iter();
    let words: Map<String, Value> = words
        .map(|would| (would.as_str().to_owned(), count(*would).into()))
        .collect();
    words.into()
}

/// The latest requests worth looking into.
pub(super) fn samples(observations: &Observations) -> Value {
    let samples = observations.samples().into_iter().map(|sample| {
        json!({
            "at": rfc3339(sample.at),
            "key": sample.key.map(|key| key.to_string()),
            "client": sample.client.as_deref(),
            "would": sample.would.as_str(),
        })
    });
    samples.collect()
}

/// What to check before a route is switched on.
fn checklist(lane: &Lane, all: &Tally, covers: Duration, level: Level) -> Value {
    let of = |would: Would| all.of(would);
    let mut items = Vec::new();
    let mut item = |check: &str, ok: bool, good: &str, bad: String| {
        let detail = if ok { good.to_owned() } else { bad };
        items.push(json!({ "check": check, "ok": ok, "detail": detail }));
    };
    item(
        "observed_for_a_week",
        covers >= REPORT_SPAN && all.requests() > 0,
        "Observed for a week.",
        format!(
            "Observed for {}. Look for a week, so that weekly jobs are seen. A restart of the gateway begins \
             anew.",
            observed_for(covers)
        ),
    );
    let keyless = of(Would::Keyless) + of(Would::Missing);
    let missing = match lane.layer.policy().enforce {
        Enforce::Off => {
            "They would pass unprotected, as now; with `enforce` they would be refused."
        }
        _ => "Those that `enforce` covers would be refused.",
    };
    item(
        "requests_have_keys",
        keyless == 0,
        "Every request has a key.",
        format!("{} without a key. {missing}", requests(keyless)),
    );
    item(
        "keys_are_valid",
        of(Would::Invalid) == 0,
        "Every key is valid.",
        format!(
            "{} with an invalid key would be refused.",
            requests(of(Would::Invalid))
        ),
    );
    item(
        "keys_are_not_reused",
        of(Would::Mismatch) == 0,
        "No key was used for two different requests.",
        format!(
            "{} used a known key with other content, or from another caller, and would be refused. If they \
             differ in something that does not matter, `fingerprint.ignore` leaves it out.",
            requests(of(Would::Mismatch))
        ),
    );
    let asks = lane.route.reconcile.is_some();
    item(
        "unknown_outcomes_end",
        of(Would::Unknown) == 0 || asks,
        match asks {
            true => "The provider is asked about unknown outcomes.",
            false => "No retry met an unknown outcome.",
        },
        format!(
            "{} met an unknown outcome and would wait for an operator. `reconcile` has the gateway ask the \
             provider.",
            requests(of(Would::Unknown))
        ),
    );
    // Every refusal but those above.
    let above = [
        Would::Missing,
        Would::Invalid,
        Would::Mismatch,
        Would::Unknown,
    ];
    let refusals = Would::ALL.iter().filter(|would| would.is_refused());
    let others = refusals.filter(|would| !above.contains(would) && of(**would) > 0);
    let others: Vec<Would> = others.copied().collect();
    let other = others.iter().map(|would| of(*would)).sum::<u64>();
    let named: Vec<&str> = others.iter().map(|would| would.as_str()).collect();
    item(
        "nothing_else_is_refused",
        other == 0,
        "Nothing else would be refused.",
        format!(
            "{} would be refused: {}.",
            requests(other),
            named.join(", ")
        ),
    );
    item(
        "everything_was_observed",
        of(Would::Unobserved) == 0,
        "Every request was observed.",
        format!(
            "{} could not be observed, for want of room.",
            requests(of(Would::Unobserved))
        ),
    );
    item(
        "the_store_is_durable",
        level == Level::Sync,
        "The store keeps what it has acknowledged.",
        format!(
            "The store's level is `{}`: a crash or a failover may lose keys, and a retry would then be \
             executed again.",
            level.as_str()
        ),
    );
    items.into()
}

fn requests(count: u64) -> String {
    match count {
        1 => "1 request".to_owned(),
        count => format!("{count} requests"),
    }
}

/// A duration in its two largest units.
fn observed_for(covers: Duration) -> String {
    let minutes = covers.as_secs() / 60;
    let (days, hours, minutes) = (minutes / 1_440, minutes / 60 % 24, minutes % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes} min"),
        (0, hours) => format!("{hours} h {minutes} min"),
        (days, hours) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_time_reads_well() {
        let told = [59, 3_600 + 120, 26 * 3_600].map(|s| observed_for(Duration::from_secs(s)));
        assert_eq!(told, ["0 min", "1 h 2 min", "1 d 2 h"]);
        assert_eq!(requests(1), "1 request");
    }
}

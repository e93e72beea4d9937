//! Alarms and the dashboard name metrics that exist, and the alarms ring when they should.

use std::{collections::BTreeSet, process::Command};

use onlyonce::stats::{DECLARED, Kind};
use serde_json::Value;

use super::{read, read_yaml, root, run, text};

/// Names of what `/metrics` has samples of.
fn samples() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for metric in DECLARED {
        match metric.kind {
            Kind::Counter | Kind::Gauge => drop(names.insert(metric.name.to_owned())),
            Kind::Histogram => names
                .extend(["bucket", "sum", "count"].map(|part| format!("{}_{part}", metric.name))),
        }
    }
    names
}

/// The metrics that a query names: what stands before a brace or a bracket, and whatever looks like one of
/// ours.
fn named(query: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    let mut names = BTreeSet::new();
    let mut rest = query;
    while let Some(start) = rest.find(is_part) {
        rest = &rest[start..];
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let is_ours = ["api_idempotency_", "onlyonce_", "onlyonce:"]
            .iter()
            .any(|prefix| word.starts_with(prefix));
        let is_name = word.starts_with(|letter: char| letter.is_ascii_alphabetic());
        if is_ours || (is_name && after.starts_with(['{', '['])) {
            names.insert(word.to_owned());
        }
        rest = after;
    }
    names
}

fn rules() -> Vec<Value> {
    let rules = read_yaml("deploy/prometheus-rules.yml");
    let groups = rules["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
    rules.cloned().collect()
}

#[test]
fn a_query_gives_away_its_metrics() {
    let query = r#"sum by (route) (rate(gone_total{route=~"$route"}[5m])) / onlyonce_keys > 3"#;
    let found: Vec<String> = named(query).into_iter().collect();
    assert_eq!(found, ["gone_total", "onlyonce_keys"]);
}

#[test]
fn alarms_name_metrics_that_exist() {
    let rules = rules();
    let recorded = rules.iter().filter_map(|rule| rule["record"].as_str());
    let mut there = samples();
    there.extend(recorded.map(str::to_owned));
    let mut queried = 0;
    for rule in &rules {
        let names = named(rule["expr"].as_str().expect("a query"));
        assert!(!names.is_empty(), "{rule}");
        for name in names {
            assert!(there.contains(&name), "{name} in {rule}");
            queried += 1;
        }
    }
    assert!(queried > 20, "{queried}");
}

#[test]
fn the_dashboard_names_metrics_that_exist() {
    let board: Value = serde_json::from_str(&read("deploy/grafana-dashboard.json")).expect("JSON");
    let there = samples();
    let mut shown = BTreeSet::new();
    let panels = board["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array());
    let queries = targets.flatten().map(|target| &target["expr"]);
    let variables = board["templating"]["list"].as_array().expect("variables");
    let asked = variables
        .iter()
        .filter(|variable| variable["type"] == "query");
    for query in queries.chain(asked.map(|variable| &variable["query"])) {
        let query = query.as_str().expect("a query");
        let names = named(query);
        assert!(!names.is_empty(), "{query}");
        for name in names {
            assert!(there.contains(&name), "{name} in {query}");
            shown.insert(name);
        }
    }
    // What is counted is shown: of a histogram one of its parts.
    for metric in DECLARED {
        let is_shown = shown.iter().any(|name| name.starts_with(metric.name));
        assert!(is_shown, "{} is in no panel", metric.name);
    }
    let ids: BTreeSet<u64> = panels
        .iter()
        .filter_map(|panel| panel["id"].as_u64())
        .collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
}

#[test]
fn every_alarm_is_explained() {
    let guide = read("docs/guide/operations.md");
    for rule in rules() {
        if let Some(alarm) = rule["alert"].as_str() {
            assert!(guide.contains(&format!("### {alarm}\n")), "{alarm}");
        }
    }
}

#[test]
fn alarms_ring_when_they_should() {
    let promtool = |arguments: &[&str]| {
        let mut command = Command::new("promtool");
        let output = run(command.args(arguments).current_dir(root().join("deploy")));
        assert!(output.status.success(), "{}", text(&output));
    };
    promtool(&["check", "rules", "prometheus-rules.yml"]);
    promtool(&["test", "rules", "prometheus-rules.test.yml"]);
    let scenarios = read("deploy/prometheus-rules.test.yml");
    for rule in rules() {
        if let Some(alarm) = rule["alert"].as_str() {
            assert!(scenarios.contains(alarm), "{alarm} rings in no scenario");
        }
    }
}

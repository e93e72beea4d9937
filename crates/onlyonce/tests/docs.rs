//! The documents say what the code says: codes, words, statuses and hints of
//! `docs/reference/errors.md`, and the listings of `docs/guide/library.md`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{fs, path::PathBuf};

use http::StatusCode;
use onlyonce::{Policy, Problem, stats::DECLARED};
use onlyonce_core::record::{JournalEvent, LastError};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text between the heading `title` and the next one of its level.
fn section<'t>(page: &'t str, title: &str) -> &'t str {
    let heading = format!("\n## {title}\n");
    let (_, rest) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no section `{title}`"));
    rest.split_once("\n## ").map_or(rest, |(text, _)| text)
}

/// The cells of every row of the section's table, without its head, without backticks.
fn rows(section: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let inner = line.trim_matches('|');
        let cell = |text: &str| text.trim().trim_matches('`').to_owned();
        inner.split('|').map(cell).collect()
    };
    let table = section.lines().filter(|line| line.starts_with('|'));
    table.skip(2).map(cells).collect()
}

fn first_cells(section: &str) -> Vec<String> {
    rows(section)
        .into_iter()
        .map(|mut row| row.remove(0))
        .collect()
}

#[test]
fn every_code_has_its_section() {
    let page = read("docs/reference/errors.md");
    let headings: Vec<&str> = section(&page, "Problem codes")
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .map(|heading| heading.trim_matches('`'))
        .collect();
    assert_eq!(headings, Problem::CODES);
}

#[test]
fn every_word_has_its_row() {
    let page = read("docs/reference/errors.md");
    assert_eq!(
        first_cells(section(&page, "Words of `last_error`")),
        LastError::ALL.map(LastError::as_str)
    );
    assert_eq!(
        first_cells(section(&page, "Words of `event`")),
        JournalEvent::ALL.map(JournalEvent::as_str)
    );
}

#[test]
fn every_metric_has_its_row() {
    let page = read("docs/reference/metrics.md");
    let told: Vec<Vec<String>> = DECLARED
        .iter()
        .map(|metric| {
            [
                metric.name,
                metric.kind.as_str(),
                metric.labels,
                metric.help,
            ]
        })
        .map(|cells| cells.map(str::to_owned).to_vec())
        .collect();
    let mut documented = rows(section(&page, "All metrics"));
    for row in &mut documented {
        row.remove(3);
    }
    assert_eq!(documented, told);
}

/// One of each, in the order of the page.
fn problems() -> Vec<Problem> {
    vec![
        Problem::KeyMissing,
        Problem::KeyInvalid("why".to_owned()),
        Problem::RequestTooLarge(1),
        Problem::RequestIncomplete,
        Problem::RequestTimeout,
        Problem::KeyReused,
        Problem::InProgress,
        Problem::InProgressAt("/.onlyonce/keys/k".to_owned()),
        Problem::OutcomeUnknown,
        Problem::TimedOut,
        Problem::ConnectionLost,
        Problem::NotDurable,
        Problem::NotStored {
            original_status: StatusCode::CREATED,
            location: None,
        },
        Problem::StoreUnavailable,
        Problem::UpstreamNotReached,
        Problem::KeyExpired,
        Problem::RateLimited(1),
        Problem::KeyQuota(5),
        Problem::RequestTooOld,
        Problem::UpstreamFailed,
        Problem::UpstreamTimeout,
        Problem::Unauthenticated,
        Problem::AuthenticationUnavailable,
        Problem::NoRoute,
        Problem::KeyNotFound,
    ]
}

#[test]
fn statuses_and_hints_are_as_the_table_says() {
    let page = read("docs/reference/errors.md");
    let told: Vec<Vec<String>> = problems()
        .iter()
        .map(|problem| {
            let response = problem.response(&Policy::default());
            let header = |name: &str| {
                let value = response.headers().get(name);
                value
                    .map_or("-", |value| value.to_str().unwrap())
                    .to_owned()
            };
            assert_eq!(header("stripe-should-retry"), header("x-should-retry"));
            vec![
                problem.code().to_owned(),
                response.status().as_u16().to_string(),
                header("retry-after"),
                header("x-should-retry"),
            ]
        })
        .collect();
    assert_eq!(rows(section(&page, "All of them at a glance")), told);
}

/// The lines of `text` that are not empty, without their indentation.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

#[test]
fn listings_are_parts_of_the_examples() {
    let examples =
        ["axum", "hyper"].map(|name| read(&format!("crates/onlyonce/examples/{name}.rs")));
    let page = read("docs/guide/library.md");
    let listings: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```").map(|(listing, _)| listing))
        .collect();
    assert!(!listings.is_empty());
    for listing in listings {
        let wanted = lines(listing);
        let found = examples.iter().any(|example| {
            let have = lines(example);
            have.windows(wanted.len()).any(|window| window == wanted)
        });
        assert!(found, "in no example:\n{listing}");
    }
}

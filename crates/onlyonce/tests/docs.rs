//! The documents say what the code says: codes, words, statuses and hints of
//! `docs/reference/errors.md`, the tests and planted bugs of `docs/reference/threats.md`, and the listings
//! of the library's guides.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{collections::HashMap, fs, path::PathBuf, time::Duration};

use http::StatusCode;
use onlyonce::{
    Policy, Problem,
    policy::{Options, Profile},
    stats::DECLARED,
};
use onlyonce_core::record::{JournalEvent, LastError, State};

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
        let cell = |text: &str| text.trim().trim_matches(['*', '`']).to_owned();
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
        Problem::RequestMalformed("why"),
        Problem::HeadersTooLarge(1),
        Problem::KeyReused(State::Completed),
        Problem::CallerDiffers(State::Completed),
        Problem::InProgress,
        Problem::InProgressAt("/.onlyonce/keys/k".to_owned()),
        Problem::StillRunning,
        Problem::OutcomeUnknown("/.onlyonce/keys/k".to_owned()),
        Problem::TimedOut,
        Problem::ConnectionLost,
        Problem::NotDurable,
        Problem::NotStored {
            original_status: StatusCode::CREATED,
            location: None,
            broke_off: false,
        },
        Problem::StoreUnavailable,
        Problem::HistoryLost,
        Problem::UpstreamNotReached,
        Problem::KeyExpired,
        Problem::RateLimited(1),
        Problem::KeyQuota(5),
        Problem::Overloaded,
        Problem::TooManyDetached,
        Problem::RequestTooOld,
        Problem::GrpcUnsupported,
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
                header("idempotency-status"),
            ]
        })
        .collect();
    assert_eq!(rows(section(&page, "All of them at a glance")), told);
}

/// For how long what is kept, by profile.
#[test]
fn retention_is_as_the_table_says() {
    let page = read("docs/reference/config.md");
    let (_, table) = page.split_once("\n### Profiles\n").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let profiles = [Profile::Safe, Profile::Payments, Profile::Cache].map(|profile| {
        let options = Options {
            profile: Some(profile),
            ..Options::default()
        };
        Policy::resolve(&options, &Options::default())
    });
    let told = |row: &str, time: fn(&Policy) -> Duration| {
        let period = |policy: &Policy| match time(policy).as_secs() / 3_600 {
            hours if hours <= 72 => format!("{hours}h"),
            hours => format!("{}d", hours / 24),
        };
        let mut cells = vec![row.to_owned()];
        cells.extend(profiles.iter().map(period));
        cells
    };
    let written = rows(table);
    for row in [
        told("ttl", |policy| policy.ttl),
        told("tombstone_ttl", |policy| policy.tombstone_ttl),
    ] {
        assert!(written.contains(&row), "{row:?} is not in {written:?}");
    }
}

/// A test that the page of threats names.
struct Named {
    /// The file without its folders and its ending.
    module: String,
    /// The file as a path of modules.
    path: String,
    test: String,
    text: String,
}

/// The tests that `text` names.
fn named_tests(text: &str) -> Vec<Named> {
    let parts = text.split('`');
    let named = parts.filter_map(|part| part.split_once(".rs::"));
    named
        .map(|(file, test)| {
            let folder = match file.split_once('/') {
                Some(("http", _)) => "crates/onlyonce-cli/tests/",
                Some(("machine", _)) => "crates/onlyonce-core/tests/machine/",
                Some(("policy", _)) => "crates/onlyonce-core/src/policy/",
                Some(("store_tests", _)) => "crates/onlyonce-store/tests/",
                Some(("failover", _)) => "crates/onlyonce-store/tests/",
                Some(("testkit", _)) => "crates/onlyonce-testkit/src/",
                Some(("library", _)) => "crates/onlyonce/tests/",
                Some(("reconcile", _)) => "crates/onlyonce/src/reconcile/",
                Some(("store_clock", _)) => "crates/onlyonce/src/engine/store_clock/",
                _ => "crates/onlyonce/src/",
            };
            let name = match file.split_once('/') {
                Some(("http" | "failover", _)) | None => file,
                Some((_, name)) => name,
            };
            Named {
                module: file.rsplit('/').next().unwrap().to_owned(),
                path: file.replace('/', "::"),
                test: test.to_owned(),
                text: read(&format!("{folder}{name}.rs")),
            }
        })
        .collect()
}

/// Every test that the page of threats names is there, and is a test.
#[test]
fn every_named_test_exists() {
    let page = read("docs/reference/threats.md");
    let cases = read("crates/onlyonce-testkit/src/conformance.rs");
    let named = named_tests(&page);
    for Named {
        module, test, text, ..
    } in &named
    {
        let (before, _) = text
            .split_once(&format!("fn {test}("))
            .unwrap_or_else(|| panic!("{module}.rs has no {test}"));
        let attributes = before.rsplit("\n\n").next().unwrap();
        let is_test = attributes.contains("#[test]") || attributes.contains("#[tokio::test");
        let is_case = cases.contains(&format!("                {test},\n"));
        assert!(is_test || is_case, "{module}::{test} is no test");
    }
    assert!(named.len() > 60, "{} tests are named", named.len());
}

/// Whether the command of a planted bug runs this test: each word after the name of the test program is a
/// part of the names of tests, and without any it runs all.
fn runs(command: &str, named: &Named) -> bool {
    let programs = [" --test ", " --lib", " --bin onlyonce"];
    let Some((_, rest)) = programs.iter().find_map(|word| command.split_once(word)) else {
        return false;
    };
    let mut words = rest.split_whitespace().filter(|word| *word != "--");
    let path = format!("{}::{}", named.path, named.test);
    let program = match command.contains(" --test ") {
        true => words.next(),
        false => None,
    };
    let mut words = words.peekable();
    if words.peek().is_none() {
        // A program of several files has the name of their folder.
        let folder = named.path.split("::").next();
        return program == Some(&named.module) || program.is_some() && program == folder;
    }
    words.any(|word| {
        // A case of the stores' contract stands in a module for each store.
        let of_a_store = program == Some("conformance") && word.ends_with(&named.test);
        path.contains(word) || of_a_store
    })
}

/// Every line of the page of threats names a planted bug whose command runs one of the line's tests.
#[test]
fn every_line_has_been_seen_red() {
    let folder = root().join("tests/mutants");
    let mut commands: HashMap<String, String> = HashMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Some((number, _)) = name.split_once('-') {
            let mutant = read(&format!("tests/mutants/{name}"));
            let command = mutant.lines().next().unwrap().to_owned();
            let before = commands.insert(number.to_owned(), command);
            assert_eq!(before, None, "two planted bugs have the number {number}");
        }
    }
    let page = read("docs/reference/threats.md");
    let mut lines = 0;
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.last() == Some(&"seen red by") {
            continue;
        }
        let named = named_tests(cells[cells.len() - 2]);
        assert!(!named.is_empty(), "no test is named: {line}");
        let numbers: Vec<&str> = cells[cells.len() - 1].split(", ").collect();
        for number in &numbers {
            let command = commands.get(*number);
            let command = command.unwrap_or_else(|| panic!("no planted bug {number}: {line}"));
            assert!(
                named.iter().any(|named| runs(command, named)),
                "{number} runs none of the tests: {line}"
            );
        }
        lines += 1;
    }
    assert!(lines > 40, "{lines} lines");
}

/// The lines of `text` that are not empty, without their indentation.
fn lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect()
}

/// The guides of the library, and the examples that their listings are parts of.
const GUIDES: [(&str, &[&str]); 6] = [
    (
        "library",
        &["onlyonce/examples/axum.rs", "onlyonce/examples/hyper.rs"],
    ),
    (
        "axum",
        &["onlyonce/examples/axum.rs", "onlyonce/examples/routes.rs"],
    ),
    ("transactions", &["onlyonce/examples/transaction.rs"]),
    ("phases", &["onlyonce/examples/rides/ride.rs"]),
    ("inbox", &["onlyonce/examples/inbox.rs"]),
    (
        "outbox",
        &[
            "onlyonce-publish/examples/outbox.rs",
            "onlyonce-publish/examples/orders.rs",
        ],
    ),
];

#[test]
fn listings_are_parts_of_the_examples() {
    for (guide, examples) in GUIDES {
        let examples: Vec<String> = examples
            .iter()
            .map(|path| read(&format!("crates/{path}")))
            .collect();
        let page = read(&format!("docs/guide/{guide}.md"));
        let listings: Vec<&str> = page
            .split("```rust\n")
            .skip(1)
            .filter_map(|rest| rest.split_once("```").map(|(listing, _)| listing))
            .collect();
        assert!(!listings.is_empty(), "{guide}");
        assert!(
            !page.contains("```rust,"),
            "{guide}: a listing of no example"
        );
        for listing in listings {
            let wanted = lines(listing);
            let found = examples.iter().any(|example| {
                let have = lines(example);
                have.windows(wanted.len()).any(|window| window == wanted)
            });
            assert!(found, "{guide}: in no example:\n{listing}");
        }
    }
}

//! What cargo makes of our manifests: a feature of the library brings the client of its own database and no
//! other, and every crate that is published can be.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// What the features are there to leave out.
const OPTIONAL: [&str; 7] = [
    "axum-core",
    "opentelemetry",
    "redis",
    "rusqlite",
    "sqlx",
    "sqlx-mysql",
    "sqlx-postgres",
];

/// What cargo says to these arguments.
fn cargo(arguments: &[&str]) -> String {
    let said = Command::new(env!("CARGO"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(arguments)
        .args(["--offline", "--locked"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{error}");
    String::from_utf8(said.stdout).unwrap()
}

/// The optional dependencies of `package` when it is built with these arguments, without those of tests.
fn brought_by(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--package", package];
    let form = ["--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let names = cargo(&[&tree[..], &form[..], arguments].concat());
    let names = names.lines().filter_map(|line| line.split(' ').next());
    names
        .filter(|name| OPTIONAL.contains(name))
        .map(str::to_owned)
        .collect()
}

/// Goal: who asks for one store does not build the client of another.
///
/// Method: `cargo tree` of the library for each feature alone, for none and for the default.
/// Evidence: the optional dependencies in it.
#[test]
fn a_feature_brings_its_own_dependencies_alone() {
    let cases: [(&str, &[&str]); 7] = [
        ("", &[]),
        ("sqlite", &["rusqlite"]),
        ("postgres", &["sqlx", "sqlx-postgres"]),
        ("mysql", &["sqlx", "sqlx-mysql"]),
        ("redis", &["redis"]),
        ("axum", &["axum-core"]),
        ("otlp", &["opentelemetry"]),
    ];
    for (feature, expected) in cases {
        let brought = brought_by(
            "onlyonce",
            &["--no-default-features", "--features", feature],
        );
        let expected: BTreeSet<String> = expected.iter().copied().map(str::to_owned).collect();
        assert_eq!(brought, expected, "with the feature `{feature}`");
    }
    let by_default = brought_by("onlyonce", &[]);
    assert!(by_default.is_empty(), "by default: {by_default:?}");
}

/// Goal: the gateway opens every kind of store that its configuration can name.
///
/// Method: `cargo tree` of the gateway and of the program, as they are built by default.
/// Evidence: the client of every database.
#[test]
fn the_gateway_has_every_store() {
    for package in ["onlyonce-gateway", "onlyonce-cli"] {
        let brought = brought_by(package, &[]);
        for client in ["redis", "rusqlite", "sqlx-mysql", "sqlx-postgres"] {
            assert!(brought.contains(client), "{package} has no {client}");
        }
    }
}

/// Goal: `cargo package` does not begin to fail unseen.
///
/// Method: `cargo metadata` of the workspace.
/// Evidence: every crate but the program and the test kit can be published, says what it is, and names a
/// version of each of our crates that it needs; what it needs for tests alone is published without them.
#[test]
fn every_crate_but_two_can_be_published() {
    let metadata = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let is_published = |package: &&Value| package["publish"].is_null();
    let mut kept: Vec<&str> = packages
        .iter()
        .filter(|package| !is_published(package))
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, ["onlyonce-cli", "onlyonce-testkit"]);
    for package in packages.iter().filter(is_published) {
        let name = &package["name"];
        for field in ["description", "license", "readme", "documentation"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            let words = package[field].as_array().unwrap();
            assert!((1..=5).contains(&words.len()), "{name}: {field}");
        }
        let docs_rs = &package["metadata"]["docs"]["rs"];
        assert_eq!(docs_rs["all-features"], true, "{name}");
        for dependency in package["dependencies"].as_array().unwrap() {
            let (needs, version) = (dependency["name"].as_str().unwrap(), &dependency["req"]);
            let is_ours = dependency["path"].is_string();
            let is_for_tests = dependency["kind"] == "dev";
            if is_ours && !is_for_tests {
                assert_ne!(version, "*", "{name} needs a version of {needs}");
                assert!(!kept.contains(&needs), "{name} needs {needs}");
            }
        }
    }
}

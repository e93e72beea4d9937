//! A feature of the library brings the client of its own database and no other, as cargo itself resolves
//! the dependencies.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::{collections::BTreeSet, process::Command};

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

/// The optional dependencies of `package` when it is built with these arguments, without those of tests.
fn brought_by(package: &str, arguments: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(["tree", "--offline", "--locked", "--package", package])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .args(arguments)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{error}");
    let names = String::from_utf8(tree.stdout).unwrap();
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

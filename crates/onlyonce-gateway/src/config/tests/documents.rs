//! What the documents say about configurations: the examples are good, and the reference names every
//! field.

use super::*;
use crate::config::{
    fields::{
        ADMIN, API_KEY, AUTH, BACKEND, EXTERNAL, FINGERPRINT, IDEMPOTENCY, JWT, LIMITS, ROUTE,
        STORE, Schema, TOP, TRUSTED_HEADER, WORKERS,
    },
    unsupported,
};

fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

#[test]
fn every_example_is_good() {
    let mut seen = 0;
    for entry in fs::read_dir(docs().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "yaml") {
            good(&fs::read_to_string(&path).unwrap());
            seen += 1;
        }
    }
    assert!(seen > 0, "there is an example");
}

/// The text below the heading, up to the next one of its level.
fn section<'t>(page: &'t str, heading: &str) -> &'t str {
    let heading = format!("\n## {heading}\n");
    let (_, rest) = page
        .split_once(&heading)
        .unwrap_or_else(|| panic!("no section{heading}"));
    rest.split_once("\n## ").map_or(rest, |(text, _)| text)
}

/// `a route` is under `A route`.
fn heading(schema: &Schema) -> String {
    let (first, rest) = schema.name.split_at(1);
    first.to_uppercase() + rest
}

#[test]
fn the_reference_names_every_field() {
    let page = fs::read_to_string(docs().join("reference/config.md")).unwrap();
    let not_yet = section(&page, "Not supported yet");
    for schema in [
        &TOP,
        &ADMIN,
        &STORE,
        &WORKERS,
        &AUTH,
        &API_KEY,
        &JWT,
        &TRUSTED_HEADER,
        &EXTERNAL,
        &ROUTE,
        &BACKEND,
        &IDEMPOTENCY,
        &FINGERPRINT,
        &LIMITS,
    ] {
        let rows = section(&page, &heading(schema));
        let refused = not_yet
            .lines()
            .find(|line| line.starts_with(&format!("| {} |", schema.name)));
        for field in schema.fields {
            let has_row = rows.contains(&format!("\n| `{field}` |"));
            let is_refused = refused.is_some_and(|line| line.contains(&format!("`{field}`")));
            if unsupported::field(schema, field) {
                assert!(
                    is_refused && !has_row,
                    "`{field}` of {} is refused",
                    schema.name
                );
            } else {
                assert!(has_row, "`{field}` of {} has no row", schema.name);
            }
        }
    }
}

//! What the contract names and this version does not do yet.
//!
//! Such a field is refused, never passed over: whoever writes `encryption_key_env` and gets a store in
//! plain text has lost more than one whose gateway does not start. Supporting something means taking its
//! line out of here and giving it a reader.

use super::{
    diagnostics::Report,
    fields::{STORE, Schema, TOP},
    tree::Span,
};

/// Fields, by section.
const FIELDS: &[(&Schema, &str)] = &[(&TOP, "redis"), (&STORE, "cache")];

/// Values of fields that are supported otherwise; a URL counts by its scheme.
const VALUES: &[(&Schema, &str, &str)] = &[(&STORE, "url", "redis")];

/// Whether `field` of `section` is still to come.
pub(super) fn field(section: &Schema, field: &str) -> bool {
    FIELDS
        .iter()
        .any(|(schema, name)| schema.name == section.name && *name == field)
}

/// Whether `value` of `field` of `section` is still to come.
pub(super) fn value(section: &Schema, field: &str, value: &str) -> bool {
    VALUES
        .iter()
        .any(|(schema, name, word)| schema.name == section.name && *name == field && *word == value)
}

/// Notes that `what` is still to come.
pub(super) fn refuse(report: &mut Report<'_>, at: Span, what: &str) {
    report
        .error(at, format!("{what} is not supported by this version yet"))
        .hint("it is refused rather than ignored, so that nothing runs with less than it says");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_a_field_that_exists() {
        let values = VALUES.iter().map(|(schema, name, _)| (schema, name));
        for (schema, name) in FIELDS
            .iter()
            .map(|(schema, name)| (schema, name))
            .chain(values)
        {
            assert!(schema.has(name), "{name} in {}", schema.name);
        }
    }
}

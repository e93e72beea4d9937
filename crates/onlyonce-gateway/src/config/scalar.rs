//! Single values, and types for them that several sections use.

use std::ops::RangeInclusive;

use http::HeaderName;

use super::{
    diagnostics::{Report, quoted},
    section::Section,
    tree::{Node, Span, Value},
};

/// A scalar and its position.
#[derive(Clone, Copy)]
pub(super) struct Found<'n> {
    /// The effective value.
    pub(super) text: &'n str,
    /// The form that may be printed.
    pub(super) written: &'n str,
    pub(super) at: Span,
}

/// The header that `found` names.
pub(super) fn header_name(found: Found<'_>, report: &mut Report<'_>) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(found.text.as_bytes()).ok();
    if name.is_none() {
        report.error(
            found.at,
            format!("{} is not the name of a header", quoted(found.written)),
        );
    }
    name
}

/// The single value in `node`; messages call it `what`.
pub(super) fn of<'n>(
    node: &'n Node,
    key_at: Span,
    what: &str,
    report: &mut Report<'_>,
) -> Option<Found<'n>> {
    match &node.value {
        Value::Scalar(scalar) => Some(Found {
            text: &scalar.text,
            written: &scalar.written,
            at: node.at,
        }),
        Value::Broken => None,
        Value::Null => {
            report.error(key_at, format!("{what} has no value"));
            None
        }
        Value::List(_) | Value::Map(_) => {
            report.error(node.at, format!("{what} must be a single value"));
            None
        }
    }
}

/// Reports if the value of the variable named in `field` is not `usable`; the hint says what is. The value is
/// never printed.
pub(super) fn check_secret(
    section: &Section<'_>,
    field: &str,
    report: &mut Report<'_>,
    usable: impl Fn(&str) -> bool,
    hint: &str,
) {
    let name: Option<String> = section.get(field, &mut Report::quiet());
    if let (Some(at), Some(name)) = (section.place(field), name)
        && let Some(value) = report.value(&name)
        && !usable(&value)
    {
        let what = format!("`{field}`: {name} holds no usable secret");
        report.error(at, what).hint(hint);
    }
}

/// `value`, if it is within `bounds`.
pub(super) fn bounded<T: PartialOrd>(
    field: &str,
    found: Found<'_>,
    value: T,
    bounds: &RangeInclusive<T>,
    report: &mut Report<'_>,
    show: impl Fn(&T) -> String,
) -> Option<T> {
    let complaint = if value < *bounds.start() {
        format!(
            "`{field}` is at least {}, not {}",
            show(bounds.start()),
            quoted(found.written)
        )
    } else if value > *bounds.end() {
        format!(
            "`{field}` is at most {}, not {}",
            show(bounds.end()),
            quoted(found.written)
        )
    } else {
        return Some(value);
    };
    report.error(found.at, complaint);
    None
}

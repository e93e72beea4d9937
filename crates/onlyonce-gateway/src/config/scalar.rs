//! Single values, and the types that several sections read them as.

use std::ops::RangeInclusive;

use http::{HeaderName, Method};

use super::{
    diagnostics::{Report, quoted},
    section::Section,
    tree::{Node, Span, Value},
};

/// Headers that steer the connection or that the gateway itself writes: none can carry a key.
const RESERVED_HEADERS: [&str; 15] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "idempotency-attempt",
    "idempotency-outcome",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A scalar and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Found<'n> {
    /// What counts.
    pub(super) text: &'n str,
    /// What may be printed.
    pub(super) written: &'n str,
    pub(super) at: Span,
}

/// A header that the gateway itself reads or writes, under `field`.
pub(super) fn own_header(
    field: &str,
    found: Found<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderName> {
    let name = header_name(found, report)?;
    if RESERVED_HEADERS.contains(&name.as_str()) {
        report.error(
            found.at,
            format!("`{field}` cannot be {}", quoted(found.written)),
        );
        return None;
    }
    Some(name)
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

/// The method that `found` names.
pub(super) fn method(found: Found<'_>, report: &mut Report<'_>) -> Option<Method> {
    let upper = found.text.to_ascii_uppercase();
    match Method::from_bytes(found.text.as_bytes()) {
        Ok(method) if upper == found.text => Some(method),
        Ok(_) => {
            report
                .error(
                    found.at,
                    format!("methods are upper case, not {}", quoted(found.written)),
                )
                .hint_if((found.text == found.written).then(|| format!("did you mean `{upper}`?")));
            None
        }
        Err(_) => {
            report.error(
                found.at,
                format!("{} is not a method", quoted(found.written)),
            );
            None
        }
    }
}

/// The cookie that `found` names.
pub(super) fn cookie_name(found: Found<'_>, report: &mut Report<'_>) -> Option<String> {
    // A token of RFC 9110, as a header's name is; but letter case counts.
    if HeaderName::from_bytes(found.text.as_bytes()).is_ok() {
        return Some(found.text.to_owned());
    }
    report
        .error(
            found.at,
            format!("{} cannot be the name of a cookie", quoted(found.written)),
        )
        .hint("for example `[session]`, or `auto`");
    None
}

/// The single value that `node` is; `what` names it in messages.
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

/// Complains where the variable that `field` names holds nothing `usable`; the hint says what is.
/// What it holds is never said.
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

/// `value`, where it is within `bounds`.
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

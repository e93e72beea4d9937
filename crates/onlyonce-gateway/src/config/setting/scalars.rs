//! Single values of types that several sections use.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use http::{HeaderName, Method, StatusCode};
use onlyonce_core::fingerprint::Pointer;

use super::Scalar;
use crate::config::{
    DEFAULT_TOKEN_ENV,
    diagnostics::{Report, quoted},
    fields::{Field, Item, Kind},
    interpolate,
    scalar::{self, Found},
    units,
};

/// Headers that control the connection or that the gateway itself writes; none can carry a key.
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

impl Scalar for Duration {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let duration = match units::duration(found.text) {
            Ok(duration) => duration,
            Err(error) => {
                let message = format!("`{}`: {error}, {}", field.name, quoted(found.written));
                report.error(found.at, message).hint(error.hint());
                return None;
            }
        };
        let Kind::Duration(bounds) = &field.kind else {
            return Some(duration);
        };
        scalar::bounded(field.name, found, duration, bounds, report, |bound| {
            humantime::format_duration(*bound).to_string()
        })
    }
}

/// A whole number or a size in bytes.
fn whole(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<u64> {
    let name = field.name;
    match &field.kind {
        Kind::Size(bounds) => match units::size(found.text) {
            Ok(size) if bounds.contains(&size) => Some(size),
            Ok(_) => {
                let (least, most) = (units::binary(*bounds.start()), units::binary(*bounds.end()));
                report.error(found.at, format!("`{name}` is from {least} to {most}"));
                None
            }
            Err(error) => {
                let message = format!("`{name}`: {error}, {}", quoted(found.written));
                report.error(found.at, message).hint(error.hint());
                None
            }
        },
        kind => {
            let Ok(number) = found.text.parse() else {
                let message = format!("`{name}` is a whole number, not {}", quoted(found.written));
                report.error(found.at, message);
                return None;
            };
            let Kind::Number(bounds) = kind else {
                return Some(number);
            };
            scalar::bounded(name, found, number, bounds, report, u64::to_string)
        }
    }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
                whole(found, field, report)?.try_into().ok()
            }
        }
    )*};
}
whole_numbers!(u16, u32, u64, usize);

impl Scalar for SocketAddr {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let address = found.text.parse().ok();
        if address.is_none() {
            let message = format!(
                "`{}` is an IP address and a port, not {}",
                field.name,
                quoted(found.written)
            );
            report
                .error(found.at, message)
                .hint("for example `127.0.0.1:8080` or `[::1]:8080`");
        }
        address
    }
}

impl Scalar for HeaderName {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let name = scalar::header_name(found, report)?;
        let is_own = matches!(field.kind, Kind::Header);
        if is_own && RESERVED_HEADERS.contains(&name.as_str()) {
            let message = format!("`{}` cannot be {}", field.name, quoted(found.written));
            report.error(found.at, message);
            return None;
        }
        Some(name)
    }
}

impl Scalar for Method {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let upper = found.text.to_ascii_uppercase();
        let Ok(method) = Method::from_bytes(found.text.as_bytes()) else {
            let message = format!("{} is not a method", quoted(found.written));
            report.error(found.at, message);
            return None;
        };
        if upper != found.text {
            let message = format!("methods are upper case, not {}", quoted(found.written));
            let is_plain = found.text == found.written;
            report
                .error(found.at, message)
                .hint_if(is_plain.then(|| format!("did you mean `{upper}`?")));
            return None;
        }
        let honours = matches!(field.kind, Kind::List(Item::KeyedMethods));
        if honours && (method == Method::CONNECT || method == Method::OPTIONS) {
            let message = format!("{method} always passes through and takes no key");
            report.error(found.at, message);
            return None;
        }
        Some(method)
    }
}

impl Scalar for StatusCode {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let status = found.text.parse().ok();
        let status = status.and_then(|code: u16| StatusCode::from_u16(code).ok());
        let Some(status) = status.filter(|status| status.as_u16() <= 599) else {
            let message = format!("{} is not a status", quoted(found.written));
            report.error(found.at, message);
            return None;
        };
        let releases = matches!(field.kind, Kind::List(Item::Statuses));
        if releases && status.as_u16() < 400 {
            let message = format!("`{}` cannot hold {}", field.name, status.as_u16());
            report
                .error(found.at, message)
                .hint("a request that succeeded would be executed again");
            return None;
        }
        Some(status)
    }
}

impl Scalar for Pointer {
    fn of(found: Found<'_>, _: &Field, report: &mut Report<'_>) -> Option<Self> {
        let pointer = Pointer::parse(found.text);
        if let Err(error) = &pointer {
            report
                .error(found.at, format!("{error}: {}", quoted(found.written)))
                .hint("for example `/metadata/trace_id`");
        }
        pointer.ok()
    }
}

impl Scalar for PathBuf {
    fn of(found: Found<'_>, _: &Field, _: &mut Report<'_>) -> Option<Self> {
        Some(found.text.into())
    }
}

impl Scalar for String {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        match &field.kind {
            Kind::Name(check) | Kind::Path(check) | Kind::CheckedText(check) => {
                check(found, field.name, report)
            }
            Kind::List(Item::Headers) => {
                let name = scalar::header_name(found, report)?;
                Some(name.as_str().to_owned())
            }
            Kind::WordsOrList(_, Item::Cookies) => {
                // A token of RFC 9110, like a header's name; but letter case matters.
                let is_name = HeaderName::from_bytes(found.text.as_bytes()).is_ok();
                if !is_name {
                    let name = quoted(found.written);
                    report
                        .error(found.at, format!("{name} cannot be the name of a cookie"))
                        .hint("for example `[session]`, or `auto`");
                }
                is_name.then(|| found.text.to_owned())
            }
            kind => {
                if matches!(kind, Kind::List(Item::Texts)) && found.text.is_empty() {
                    report.error(found.at, "an empty name");
                }
                Some(found.text.to_owned())
            }
        }
    }
}

/// The name of an environment variable, whose value is not read here.
pub(in crate::config) fn variable(
    found: Found<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    if !interpolate::is_name(found.text) {
        // The value may be the token itself, which must not get into a log.
        report
            .error(
                found.at,
                format!("`{field}` is the name of an environment variable"),
            )
            .hint(format!("for example `{DEFAULT_TOKEN_ENV}`"));
        return None;
    }
    Some(found.text.to_owned())
}

/// The name of an environment variable that must not be empty: otherwise the gateway would not start, or
/// nobody could sign in.
pub(in crate::config) fn filled_variable(
    found: Found<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<String> {
    let name = variable(found, field, report)?;
    if report.is_unset(&name) {
        report
            .error(
                found.at,
                format!("`{field}`: the environment variable {name} is not set or empty"),
            )
            .hint("set it; `check --no-env` is for machines that have no secrets");
    }
    Some(name)
}

//! The types that fields have: how each is read from a file, and how `GET /config` shows it.
//!
//! One type may have several spellings, a number of things and a number of bytes for instance;
//! then the field's [`Kind`] decides.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Method, StatusCode};
use onlyonce_core::fingerprint::Pointer;
use serde_json::{Value as Json, json};

use super::{
    DEFAULT_TOKEN_ENV, Route,
    diagnostics::{Report, listed, nearest, quoted},
    fields::{Field, Item, Kind, Schema},
    interpolate,
    scalar::{self, Found},
    section::Section,
    tree::Value,
    units,
};

/// A type that a field can have.
pub(super) trait Setting: Sized {
    /// What the file says. `None` both for "not said" and for "said wrongly"; in the second case
    /// the report knows, and no configuration comes of it.
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self>;
}

/// A setting that is a single value, in a field or in a list.
pub(super) trait Scalar: Sized {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self>;
}

/// A setting that is one of a few words.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// As a file has them.
    const NAMES: &'static [&'static str];
    /// What they mean, in the same order.
    const VALUES: &'static [Self];

    /// As a file has it.
    fn name(self) -> &'static str {
        let index = Self::VALUES.iter().position(|value| *value == self);
        index.map_or("", |index| Self::NAMES[index])
    }
}

/// A section with a struct of its own, which `section!` makes.
pub(super) trait Group: Sized {
    const SCHEMA: &'static Schema;

    /// What the section says. `None` where something is missing without which it has no meaning.
    fn read(section: &Section<'_>, report: &mut Report<'_>) -> Option<Self>;

    /// The section under `field`, or what holds without one.
    fn of(parent: &Section<'_>, field: &str, report: &mut Report<'_>) -> Option<Self> {
        let section = parent.section(field, Self::SCHEMA, report);
        Self::read(&section, report)
    }

    /// The fields that `new` has other values for.
    fn changed(&self, new: &Self) -> Vec<&'static str>;

    /// Those of them that cannot change while the gateway runs.
    fn needing_restart(&self, new: &Self) -> Vec<&'static str> {
        let fields = Self::SCHEMA.fields.iter().filter(|field| field.restart);
        let held: Vec<&str> = fields.map(|field| field.name).collect();
        let mut changed = self.changed(new);
        changed.retain(|name| held.contains(name));
        changed
    }
}

/// The options of a section whose struct is declared elsewhere, which `options!` makes.
pub(super) trait Table {
    type Options;
    const SCHEMA: &'static Schema;

    /// Reads the option `field`, unless something was said of it before.
    fn read(
        section: &Section<'_>,
        field: &str,
        options: &mut Self::Options,
        report: &mut Report<'_>,
    );

    /// Reads all of them.
    fn read_all(section: &Section<'_>, options: &mut Self::Options, report: &mut Report<'_>) {
        for field in Self::SCHEMA.fields {
            Self::read(section, field.name, options, report);
        }
    }

    /// What was said, by the names of the options.
    fn said(options: &Self::Options) -> Vec<(&'static str, Option<Json>)>;

    /// What holds for `route`, as `GET /config` shows it.
    fn view(route: &Route) -> Json;
}

/// A value as `GET /config` shows it: no secret, and as a file could say it.
pub(super) trait View {
    fn view(&self) -> Json;
}

impl<T: Scalar> Setting for T {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        T::of(section.scalar(field.name, report)?, field, report)
    }
}

/// Items that make no sense are left out.
impl<T: Scalar> Setting for Vec<T> {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let read = |found, report: &mut Report<'_>| T::of(found, field, report);
        let Kind::TextOrList = field.kind else {
            return section.list(field.name, report, read);
        };
        let (node, key_at) = section.node(field.name)?;
        let said = match node.value {
            Value::List(_) => section.list(field.name, report, read)?,
            _ => vec![T::of(section.scalar(field.name, report)?, field, report)?],
        };
        if said.is_empty() {
            report.error(key_at, format!("`{}` is empty", field.name));
            return None;
        }
        Some(said)
    }
}

impl<T: Word> Scalar for T {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let index = one_of(T::NAMES, found, field.name, report)?;
        T::VALUES.get(index).copied()
    }
}

impl<T: Word> View for T {
    fn view(&self) -> Json {
        word(self.name())
    }
}

/// A word of a file as YAML reads it.
pub(super) fn word(word: &str) -> Json {
    match word {
        "true" => true.into(),
        "false" => false.into(),
        word => word.into(),
    }
}

/// Which of `names` was said.
pub(super) fn one_of(
    names: &[&str],
    found: Found<'_>,
    field: &str,
    report: &mut Report<'_>,
) -> Option<usize> {
    let known = names.iter().position(|name| *name == found.text);
    if known.is_none() {
        let message = format!(
            "`{field}` is {}, not {}",
            listed(names),
            quoted(found.written)
        );
        let meant = match found.text {
            "yes" | "on" | "True" | "TRUE" if names.contains(&"true") => Some("true"),
            "no" | "off" | "False" | "FALSE" if names.contains(&"false") => Some("false"),
            text => nearest(text, names),
        };
        report
            .error(found.at, message)
            .hint_if(meant.map(|word| format!("did you mean `{word}`?")));
    }
    known
}

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

/// A whole number, of things or of bytes.
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
        match field.kind {
            Kind::Header => scalar::own_header(field.name, found, report),
            _ => scalar::header_name(found, report),
        }
    }
}

impl Scalar for Method {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let method = scalar::method(found, report)?;
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
            Kind::WordsOrList(_, Item::Cookies) => scalar::cookie_name(found, report),
            kind => {
                if matches!(kind, Kind::List(Item::Texts)) && found.text.is_empty() {
                    report.error(found.at, "an empty name");
                }
                Some(found.text.to_owned())
            }
        }
    }
}

/// The name of an environment variable, whose value is not looked at here.
pub(super) fn variable(found: Found<'_>, field: &str, report: &mut Report<'_>) -> Option<String> {
    if !interpolate::is_name(found.text) {
        // Somebody who puts the token itself here must not find it in a log.
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

/// The name of an environment variable, which must hold something: without it the gateway would not
/// start, or nobody would get in.
pub(super) fn filled_variable(
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

macro_rules! views {
    ($($type:ty: |$value:ident| $view:expr;)*) => {$(
        impl View for $type {
            fn view(&self) -> Json {
                let $value = self;
                json!($view)
            }
        }
    )*};
}

views! {
    Duration: |value| units::go_duration(*value);
    HeaderName: |value| value.as_str();
    HeaderValue: |value| String::from_utf8_lossy(value.as_bytes());
    Method: |value| value.as_str();
    Path: |value| value;
    PathBuf: |value| value;
    Pointer: |value| value.to_string();
    SocketAddr: |value| value.to_string();
    StatusCode: |value| value.as_u16();
    String: |value| value;
    str: |value| value;
    u16: |value| value;
    u32: |value| value;
    u64: |value| value;
    usize: |value| value;
}

impl<T: View> View for Option<T> {
    fn view(&self) -> Json {
        self.as_ref().map_or(Json::Null, View::view)
    }
}

impl<T: View> View for Vec<T> {
    fn view(&self) -> Json {
        self.as_slice().view()
    }
}

impl<T: View> View for [T] {
    fn view(&self) -> Json {
        self.iter().map(View::view).collect()
    }
}

impl View for Json {
    fn view(&self) -> Json {
        self.clone()
    }
}

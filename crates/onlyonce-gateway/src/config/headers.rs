//! Headers of the gateway's own requests; many are credentials.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value as Json;

use super::{
    diagnostics::{Report, quoted},
    fields::Field,
    scalar::{self, Found, header_name},
    section::Section,
    setting::{Setting, View},
    tree::{Entry, Value},
    view::MASKED,
};

impl Setting for HeaderMap {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        let (node, at) = section.node(field.name)?;
        let Value::Map(entries) = &node.value else {
            report
                .error(at, "`headers` must be a mapping of names to values")
                .hint("for example `{ Authorization: \"Bearer ${PSP_TOKEN}\" }`");
            return None;
        };
        let read = |entry| header(entry, report);
        Some(entries.iter().filter_map(read).collect())
    }
}

/// A header, whose value is marked as sensitive.
fn header(entry: &Entry, report: &mut Report<'_>) -> Option<(HeaderName, HeaderValue)> {
    let name = Found {
        text: &entry.key,
        written: &entry.key,
        at: entry.key_at,
    };
    let name = header_name(name, report);
    let what = format!("the header {}", quoted(&entry.key));
    let found = scalar::of(&entry.node, entry.key_at, &what, report)?;
    let Ok(mut value) = HeaderValue::from_str(found.text) else {
        let message = format!("{what} has a value that no header can hold");
        report.error(found.at, message);
        return None;
    };
    value.set_sensitive(true);
    Some((name?, value))
}

/// Shows only the names.
impl View for HeaderMap {
    fn view(&self) -> Json {
        let names = self.keys().map(ToString::to_string);
        names.map(|name| (name, Json::from(MASKED))).collect()
    }
}

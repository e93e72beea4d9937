//! The types of fields: how each is read from a file, and how `GET /config` shows it.
//!
//! One type may have several spellings, such as a count and a number of bytes; then the field's [`Kind`]
//! decides.

mod scalars;

use serde_json::Value as Json;

use super::{
    Route,
    diagnostics::{Report, listed, nearest, quoted},
    fields::{Field, Kind, Reload, Schema},
    scalar::Found,
    section::Section,
    tree::Value,
};
pub(super) use scalars::{filled_variable, variable};

/// A type that a field can have.
pub(super) trait Setting: Sized {
    /// Reads the value. `None` both for a missing and for an invalid value; an invalid one is in the report,
    /// and prevents a configuration.
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self>;
}

/// A setting that is a single value, in a field or in a list.
pub(super) trait Scalar: Sized {
    fn of(found: Found<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self>;
}

/// A setting that is one of a few words.
pub(super) trait Word: Copy + PartialEq + 'static {
    /// The words, as in a file.
    const NAMES: &'static [&'static str];
    /// Their meanings, in the same order.
    const VALUES: &'static [Self];

    /// The word for this value.
    fn name(self) -> &'static str {
        let index = Self::VALUES.iter().position(|value| *value == self);
        index.map_or("", |index| Self::NAMES[index])
    }
}

/// A section with a struct of its own, which `section!` makes.
pub(super) trait Group: Sized {
    const SCHEMA: &'static Schema;

    /// Reads the section. `None` if something essential is missing.
    fn read(section: &Section<'_>, report: &mut Report<'_>) -> Option<Self>;

    /// The section under `field`, or its defaults.
    fn of(parent: &Section<'_>, field: &str, report: &mut Report<'_>) -> Option<Self> {
        let section = parent.section(field, Self::SCHEMA, report);
        Self::read(&section, report)
    }

    /// The fields whose values differ in `new`.
    fn changed(&self, new: &Self) -> Vec<&'static str>;

    /// The changed fields that need a restart.
    fn needing_restart(&self, new: &Self) -> Vec<&'static str> {
        let fields = Self::SCHEMA
            .fields
            .iter()
            .filter(|field| field.reload == Reload::Restart);
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

    /// Reads the option `field`, unless it was read before.
    fn read(
        section: &Section<'_>,
        field: &str,
        options: &mut Self::Options,
        report: &mut Report<'_>,
    );

    /// Reads all options.
    fn read_all(section: &Section<'_>, options: &mut Self::Options, report: &mut Report<'_>) {
        for field in Self::SCHEMA.fields {
            Self::read(section, field.name, options, report);
        }
    }

    /// The options that were set, by name.
    fn said(options: &Self::Options) -> Vec<(&'static str, Option<Json>)>;

    /// The resulting options of `route`, as `GET /config` shows them.
    fn view(route: &Route) -> Json;
}

/// A value as `GET /config` shows it: without secrets, and as a file could contain it.
pub(super) trait View {
    fn view(&self) -> Json;
}

impl<T: Scalar> Setting for T {
    fn read(section: &Section<'_>, field: &Field, report: &mut Report<'_>) -> Option<Self> {
        T::of(section.scalar(field.name, report)?, field, report)
    }
}

/// Leaves out invalid items.
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

/// A word of a file, with YAML's booleans as JSON's.
pub(super) fn word(word: &str) -> Json {
    match word {
        "true" => true.into(),
        "false" => false.into(),
        word => word.into(),
    }
}

/// The index of the given word in `names`.
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

//! Reads typed values from one mapping of the tree.
//!
//! Every reader returns `None` both for a missing and for an invalid value. An invalid value is in the
//! report, and prevents a configuration.

use super::{
    diagnostics::{Report, listed, nearest, quoted},
    fields::{self, Kind, Schema},
    scalar::{self, Found},
    setting::{self, Setting},
    tree::{Entry, Node, Span, Value},
};

/// One mapping, whose unknown fields are already reported.
#[derive(Clone, Copy)]
pub(super) struct Section<'n> {
    schema: &'static Schema,
    entries: &'n [Entry],
    /// The section's position.
    pub(super) at: Span,
}

impl<'n> Section<'n> {
    /// A section that is not in the file.
    pub(super) fn absent(schema: &'static Schema, at: Span) -> Self {
        Self {
            schema,
            entries: &[],
            at,
        }
    }

    /// Opens `node`, which is at or after `at`.
    pub(super) fn open(
        schema: &'static Schema,
        node: &'n Node,
        at: Span,
        report: &mut Report<'_>,
    ) -> Self {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            // A section whose lines are all commented out is empty.
            Value::Null | Value::Broken => &[],
            Value::Scalar(_) | Value::List(_) => {
                report.hide(node.at);
                report
                    .error(node.at, format!("{} must be a mapping", schema.name))
                    .hint(format!(
                        "its fields are {}",
                        listed(&schema.names()[..schema.fields.len().min(4)])
                    ));
                &[]
            }
        };
        for entry in entries {
            if schema.field(&entry.key).is_none() {
                unknown_field(schema, entry, report);
            }
        }
        Self {
            schema,
            entries,
            at,
        }
    }

    /// The section's name in messages.
    pub(super) fn name(&self) -> &'static str {
        self.schema.name
    }

    /// Whether `field` is present.
    pub(super) fn says(&self, field: &str) -> bool {
        self.entry(field).is_some()
    }

    /// Whether any field is present.
    pub(super) fn says_anything(&self) -> bool {
        !self.entries.is_empty()
    }

    /// The value of `field`, if it is present and has not been reported as broken.
    pub(super) fn node(&self, field: &str) -> Option<(&'n Node, Span)> {
        let is_declared = self.schema.field(field).is_some();
        debug_assert!(is_declared, "{field} has no place in the schema");
        let entry = self.entry(field)?;
        let readable = !matches!(entry.node.value, Value::Broken);
        readable.then_some((&entry.node, entry.key_at))
    }

    /// The position of the value of `field`.
    pub(super) fn place(&self, field: &str) -> Option<Span> {
        self.entry(field).map(|entry| match entry.node.value {
            Value::Null => entry.key_at,
            _ => entry.node.at,
        })
    }

    /// The section under `field`.
    pub(super) fn section(
        &self,
        field: &str,
        schema: &'static Schema,
        report: &mut Report<'_>,
    ) -> Section<'n> {
        match self.node(field) {
            Some((node, at)) => Section::open(schema, node, at, report),
            None => Section::absent(schema, self.at),
        }
    }

    /// A single value.
    pub(super) fn scalar(&self, field: &str, report: &mut Report<'_>) -> Option<Found<'n>> {
        let (node, key_at) = self.node(field)?;
        scalar::of(node, key_at, &quoted(field), report)
    }

    /// Reads `field` from the file: see [`Setting::read`].
    pub(super) fn get<T: Setting>(&self, field: &str, report: &mut Report<'_>) -> Option<T> {
        let declared = self.schema.field(field);
        debug_assert!(declared.is_some(), "{field} has no place in the schema");
        T::read(self, declared?, report)
    }

    /// Reads `field`, or its declared default.
    ///
    /// # Panics
    /// If the declaration has no default of this type; a test reads them all.
    pub(super) fn get_or_default<T: Setting>(&self, field: &str, report: &mut Report<'_>) -> T {
        let default = || {
            let value = self.schema.field(field)?.value?;
            let entries = [Entry::unplaced(field, Node::word(value))];
            let section = Section {
                entries: &entries,
                ..*self
            };
            section.get(field, &mut Report::quiet())
        };
        let said = self.get(field, report).or_else(default);
        said.expect("a default is a value of its field")
    }

    /// The word in `field`, which takes words, alone or beside something else.
    pub(super) fn word(&self, field: &str, report: &mut Report<'_>) -> Option<&'static str> {
        let (Kind::Words(names) | Kind::WordsOrList(names, _) | Kind::WordsOrSection(names, _)) =
            self.schema.field(field)?.kind
        else {
            return None;
        };
        let found = self.scalar(field, report)?;
        let index = setting::one_of(names, found, field, report)?;
        names.get(index).copied()
    }

    /// Reads a list with `read`; invalid items are left out.
    pub(super) fn list<T>(
        &self,
        field: &str,
        report: &mut Report<'_>,
        read: impl Fn(Found<'n>, &mut Report<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (node, key_at) = self.node(field)?;
        let Value::List(items) = &node.value else {
            let at = if node.value == Value::Null {
                key_at
            } else {
                node.at
            };
            report
                .error(at, format!("`{field}` must be a list"))
                .hint("for example `[a, b]`");
            return None;
        };
        let what = format!("an item of `{field}`");
        let read = |item: &'n Node| {
            let found = scalar::of(item, item.at, &what, report)?;
            read(found, report)
        };
        Some(items.iter().filter_map(read).collect())
    }

    /// Whether `field` is an empty list.
    pub(super) fn is_empty_list(&self, field: &str) -> bool {
        matches!(self.node(field), Some((Node { value: Value::List(items), .. }, _)) if items.is_empty())
    }

    fn entry(&self, field: &str) -> Option<&'n Entry> {
        self.entries.iter().find(|entry| entry.key == field)
    }
}

fn unknown_field(schema: &Schema, entry: &Entry, report: &mut Report<'_>) {
    let message = format!("unknown field {} in {}", quoted(&entry.key), schema.name);
    let hint = if entry.key == "<<" {
        "merge keys are not part of YAML 1.2; repeat the fields".to_owned()
    } else if let Some(name) = continued(&entry.key, &schema.names()) {
        format!("did you mean `{name}`?")
    } else if let Some(home) = fields::home_of(&entry.key) {
        format!("`{}` belongs in {home}", entry.key)
    } else if let Some(name) = nearest(&entry.key, &schema.names()) {
        format!("did you mean `{name}`?")
    } else {
        let names: Vec<String> = schema
            .names()
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        format!("its fields are {}", names.join(", "))
    };
    // An unknown field's value may be a misplaced secret.
    let after = Span {
        col: entry.key_at.col.saturating_add(entry.key_at.width),
        width: u32::MAX,
        ..entry.key_at
    };
    report.hide(match &entry.node.value {
        Value::Scalar(_) if entry.node.at.line == after.line => entry.node.at,
        _ => after,
    });
    report.error(entry.key_at, message).hint(hint);
}

/// The field of which `text` is the first word, as `client` is of `client_id` and `token` of `token_env`.
/// Such a field is more likely meant than a field called `text` in another section.
fn continued<'w>(text: &str, names: &[&'w str]) -> Option<&'w str> {
    let begins = |name: &&&str| {
        let rest = name.strip_prefix(text);
        rest.is_some_and(|rest| rest.starts_with('_'))
    };
    names.iter().find(begins).copied()
}

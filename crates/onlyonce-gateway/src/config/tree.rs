//! YAML text as a tree with positions.
//!
//! A local mistake (a duplicate key, an alias without an anchor, a tag) is reported and parsing continues. A
//! syntax error ends it, since anything after that would be guesswork.
//!
//! Everything is bounded: the text, the depth, and the number of nodes after alias expansion.
//! Deliberately absent: merge keys (`<<`), tags, several documents, keys that are not plain words.

mod build;
pub mod yaml;

use super::diagnostics::{Report, quoted};
use build::{Builder, Step};
pub(super) use yaml::Span;
use yaml::{Event, Options};

/// The largest configuration, in bytes.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;
/// The deepest nesting.
const MAX_DEPTH: usize = 32;
/// The most nodes after alias expansion.
const MAX_NODES: usize = 50_000;

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: Span,
    pub(super) value: Value,
}

/// The kinds of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Empty, `~` or `null`.
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// A value that has been reported already.
    Broken,
}

/// A single value, with environment variables expanded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scalar {
    /// The effective value.
    pub(super) text: String,
    /// The value as written in the file: the only form that may be printed.
    pub(super) written: String,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: Span,
    pub(super) node: Node,
}

impl Entry {
    /// An entry that is not from a file.
    pub(super) fn unplaced(key: &str, node: Node) -> Self {
        Self {
            key: key.to_owned(),
            key_at: Span::default(),
            node,
        }
    }
}

impl Node {
    /// A value that is not from a file.
    pub(super) fn unplaced(value: Value) -> Self {
        Self {
            at: Span::default(),
            value,
        }
    }

    /// A scalar that is not from a file.
    pub(super) fn word(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::unplaced(Value::Scalar(Scalar {
            written: text.clone(),
            text,
        }))
    }

    /// A mapping that is not from a file.
    pub(super) fn map<const N: usize>(entries: [(&str, Node); N]) -> Self {
        let entries = entries.map(|(key, node)| Entry::unplaced(key, node));
        Self::unplaced(Value::Map(entries.into()))
    }

    /// Puts `node` at `path`, and replaces whatever is there.
    pub(super) fn set(&mut self, path: &[&str], node: Node) {
        let [first, rest @ ..] = path else {
            *self = node;
            return;
        };
        if !matches!(self.value, Value::Map(_)) {
            self.value = Value::Map(Vec::new());
        }
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        let index = entries
            .iter()
            .position(|entry| entry.key == *first)
            .unwrap_or_else(|| {
                entries.push(Entry::unplaced(first, Node::unplaced(Value::Null)));
                entries.len() - 1
            });
        entries[index].node.set(rest, node);
    }

    /// Takes `key` and its value out of a map.
    pub(super) fn remove(&mut self, key: &str) {
        if let Value::Map(entries) = &mut self.value {
            entries.retain(|entry| entry.key != key);
        }
    }

    /// The number of nodes and of levels, this node included.
    fn extent(&self) -> (usize, usize) {
        let sum = |(nodes, depth): (usize, usize), (more, level): (usize, usize)| {
            (nodes + more, depth.max(level))
        };
        let (nodes, depth) = match &self.value {
            Value::List(items) => items.iter().map(Node::extent).fold((0, 0), sum),
            Value::Map(entries) => entries.iter().map(|e| e.node.extent()).fold((0, 0), sum),
            Value::Null | Value::Scalar(_) | Value::Broken => (0, 0),
        };
        (nodes + 1, depth + 1)
    }
}

/// The tree of `text`; `None` if it cannot be parsed.
pub(super) fn parse(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    report: &mut Report<'_>,
) -> Option<Node> {
    let start = Span {
        line: 1,
        col: 1,
        width: 1,
    };
    if text.len() > MAX_TEXT_BYTES {
        // The file was not read any further, so its size is not known.
        let message =
            format!("a configuration has at most {MAX_TEXT_BYTES} bytes, and this file has more");
        report.error(start, message);
        return None;
    }
    let options = Options {
        max_depth: MAX_DEPTH,
        directives: false,
        unknown_aliases: true,
    };
    let mut builder = Builder::new(env, report);
    let mut root = None;
    for parsed in yaml::events(text, options) {
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                builder.report().error(error.at, error.to_string());
                return None;
            }
        };
        if let (Event::Document, Some(_)) = (&parsed.event, &root) {
            builder.report().error(
                parsed.at,
                "a configuration is one YAML document, and here starts another",
            );
            return None;
        }
        if let Some((tag, at)) = parsed.tag {
            let message = format!("the tag {} has no meaning here", quoted(&tag));
            builder
                .report()
                .error(at, message)
                .hint("write the value without it");
        }
        match builder.take(parsed.event, parsed.at) {
            Step::Going => {}
            Step::Done(node) => root = Some(node),
            Step::TooMuch => return None,
        }
    }
    Some(root.unwrap_or(Node {
        at: start,
        value: Value::Null,
    }))
}

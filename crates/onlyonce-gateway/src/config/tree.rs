//! YAML text as a tree that remembers where everything stands.
//!
//! Mistakes that cost only themselves (a duplicate key, an alias without an anchor, a tag) are
//! reported and the tree goes on; a syntax error ends it, for what follows would be guesswork.
//!
//! Everything is bounded: the text, the depth, and the number of nodes after aliases are written out.
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
/// Nodes after every alias is written out.
const MAX_NODES: usize = 50_000;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) at: Span,
    pub(super) value: Value,
}

/// What stands there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Something that has been reported already.
    Broken,
}

/// A single value, environment variables put in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scalar {
    /// What counts.
    pub(super) text: String,
    /// What the file says: the only form that may be printed.
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
    /// An entry that stands in no file.
    pub(super) fn unplaced(key: &str, node: Node) -> Self {
        Self {
            key: key.to_owned(),
            key_at: Span::default(),
            node,
        }
    }
}

impl Node {
    /// A value that stands in no file.
    pub(super) fn unplaced(value: Value) -> Self {
        Self {
            at: Span::default(),
            value,
        }
    }

    /// A scalar that stands in no file.
    pub(super) fn word(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::unplaced(Value::Scalar(Scalar {
            written: text.clone(),
            text,
        }))
    }

    /// A mapping that stands in no file.
    pub(super) fn map<const N: usize>(entries: [(&str, Node); N]) -> Self {
        let entries = entries.map(|(key, node)| Entry::unplaced(key, node));
        Self::unplaced(Value::Map(entries.into()))
    }

    /// Puts `node` at the end of `path`, over whatever is there.
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

    /// This node and all below it, and how many levels that is.
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

/// The tree of `text`; `None` when nothing sensible could be read.
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
        // How many more it has nobody has read.
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

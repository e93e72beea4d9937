//! Builds the tree from the parser's events, without recursion and within limits.

use std::collections::HashMap;

use super::{Entry, MAX_DEPTH, MAX_NODES, Node, Scalar, Span, Value, yaml::Event};
use crate::config::{
    diagnostics::{Report, quoted},
    interpolate,
};

/// A collection that has not ended yet.
struct Open {
    at: Span,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    /// The entries so far, and the key whose value comes next; `Some(None)` for an invalid key.
    Map(Vec<Entry>, Option<Option<(String, Span)>>),
}

/// The result of an event.
pub(super) enum Step {
    /// The document is not complete yet.
    Going,
    /// The document is complete.
    Done(Node),
    /// A limit is exceeded, and reported.
    TooMuch,
}

/// Assembles nodes from events.
pub(super) struct Builder<'a, 'r> {
    env: &'a dyn Fn(&str) -> Option<String>,
    report: &'a mut Report<'r>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'a, 'r> Builder<'a, 'r> {
    pub(super) fn new(env: &'a dyn Fn(&str) -> Option<String>, report: &'a mut Report<'r>) -> Self {
        Self {
            env,
            report,
            open: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
        }
    }

    pub(super) fn report(&mut self) -> &mut Report<'r> {
        self.report
    }

    /// Takes the next event, which is at `at`.
    pub(super) fn take(&mut self, event: Event<'_>, at: Span) -> Step {
        match event {
            Event::Scalar {
                text,
                is_plain,
                anchor,
            } => {
                let value = self.scalar(&text, is_plain, at);
                self.place(Node { at, value }, anchor)
            }
            Event::List(anchor) => self.begin(Open {
                at,
                anchor,
                content: Content::List(Vec::new()),
            }),
            Event::Map(anchor) => self.begin(Open {
                at,
                anchor,
                content: Content::Map(Vec::new(), None),
            }),
            Event::End => match self.open.pop() {
                Some(Open {
                    at,
                    anchor,
                    content,
                }) => {
                    let value = match content {
                        Content::List(items) => Value::List(items),
                        Content::Map(entries, _) => Value::Map(entries),
                    };
                    self.place(Node { at, value }, anchor)
                }
                None => Step::Going,
            },
            Event::Alias(anchor) => self.alias(anchor, at),
            Event::UnknownAlias(name) => {
                let message = format!(
                    "no anchor {} stands before this",
                    quoted(&format!("&{name}"))
                );
                self.report.error(at, message);
                self.place(
                    Node {
                        at,
                        value: Value::Broken,
                    },
                    0,
                )
            }
            Event::Document => Step::Going,
        }
    }

    fn scalar(&mut self, text: &str, is_plain: bool, at: Span) -> Value {
        if is_plain && matches!(text, "" | "~" | "null" | "Null" | "NULL") {
            return Value::Null;
        }
        // A key is a name; variables are for values.
        if self.awaits_key() {
            return Value::Scalar(Scalar {
                text: text.to_owned(),
                written: text.to_owned(),
            });
        }
        match interpolate::expand(text, self.env) {
            Ok(expanded) => Value::Scalar(Scalar {
                text: expanded,
                written: text.to_owned(),
            }),
            Err(problem) => {
                self.report
                    .error(at, problem.to_string())
                    .hint(problem.hint());
                Value::Broken
            }
        }
    }

    fn awaits_key(&self) -> bool {
        matches!(
            self.open.last(),
            Some(Open {
                content: Content::Map(_, None),
                ..
            })
        )
    }

    fn begin(&mut self, open: Open) -> Step {
        if self.open.len() >= MAX_DEPTH {
            self.report
                .error(open.at, format!("nested deeper than {MAX_DEPTH} levels"));
            return Step::TooMuch;
        }
        self.open.push(open);
        Step::Going
    }

    fn alias(&mut self, anchor: usize, at: Span) -> Step {
        let Some(node) = self.anchors.get(&anchor) else {
            self.report
                .error(at, "an alias inside the very value that it stands for");
            return self.place(
                Node {
                    at,
                    value: Value::Broken,
                },
                0,
            );
        };
        let (nodes, depth) = node.extent();
        if self.open.len() + depth > MAX_DEPTH || self.nodes + nodes > MAX_NODES {
            self.report.error(at, "too much stands behind aliases");
            return Step::TooMuch;
        }
        let node = node.clone();
        // `place` counts one of them.
        self.nodes += nodes - 1;
        self.place(node, 0)
    }

    /// Adds a finished node to the collection that it belongs to.
    fn place(&mut self, node: Node, anchor: usize) -> Step {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            self.report
                .error(node.at, format!("more than {MAX_NODES} values"));
            return Step::TooMuch;
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
            self.nodes += node.extent().0;
        }
        match self.open.last_mut().map(|open| &mut open.content) {
            None => return Step::Done(node),
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map(_, awaited @ None)) => {
                *awaited = Some(match node.value {
                    Value::Scalar(scalar) => Some((scalar.text, node.at)),
                    Value::Broken => None,
                    Value::Null | Value::List(_) | Value::Map(_) => {
                        self.report.error(node.at, "a key must be a word");
                        None
                    }
                });
            }
            Some(Content::Map(entries, awaited @ Some(_))) => {
                if let Some((key, key_at)) = awaited.take().flatten() {
                    match entries.iter().find(|entry| entry.key == key) {
                        Some(first) => self
                            .report
                            .error(key_at, format!("{} is here twice", quoted(&key)))
                            .hint(format!("the first one is in line {}", first.key_at.line)),
                        None => entries.push(Entry { key, key_at, node }),
                    }
                }
            }
        }
        Step::Going
    }
}

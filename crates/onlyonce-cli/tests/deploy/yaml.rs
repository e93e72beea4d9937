//! YAML files of `deploy/` as JSON values, from the events of the gateway's own parser.
//!
//! Deliberately absent: bounds and places in the text. These files are ours, and one that is wrong stops the
//! test.

use std::collections::HashMap;

use onlyonce_gateway::config::yaml::{self, Event, Options};
use serde_json::{Map, Value};

const OPTIONS: Options = Options {
    max_depth: 32,
    directives: false,
    unknown_aliases: false,
};

/// The one document in `text`.
pub(crate) fn parse(text: &str) -> Value {
    let events = yaml::events(text, OPTIONS).map(|placed| placed.expect("YAML").event);
    let events = events.filter(|event| *event != Event::Document);
    let mut reader = Reader {
        events,
        anchors: HashMap::new(),
    };
    let document = reader.value().expect("a document");
    assert_eq!(reader.value(), None, "there is one document");
    document
}

struct Reader<I> {
    events: I,
    anchors: HashMap<usize, Value>,
}

impl<'t, I: Iterator<Item = Event<'t>>> Reader<I> {
    /// The next value, or `None` where a list, a mapping or the text ends.
    fn value(&mut self) -> Option<Value> {
        let (value, anchor) = match self.events.next()? {
            Event::End => return None,
            Event::Scalar {
                text,
                is_plain,
                anchor,
            } => (scalar(&text, is_plain), anchor),
            Event::List(anchor) => {
                let items = std::iter::from_fn(|| self.value()).collect();
                (Value::Array(items), anchor)
            }
            Event::Map(anchor) => (Value::Object(self.members()), anchor),
            Event::Alias(anchor) => (self.anchors[&anchor].clone(), 0),
            other => panic!("{other:?}"),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Some(value)
    }

    fn members(&mut self) -> Map<String, Value> {
        let (mut own, mut merged) = (Map::new(), Map::new());
        loop {
            let name = match self.events.next().expect("the end of the mapping") {
                Event::End => break,
                Event::Scalar { text, .. } => text.into_owned(),
                other => panic!("a name must be a word: {other:?}"),
            };
            match (name.as_str(), self.value().expect("a value")) {
                ("<<", Value::Object(more)) => merged.extend(more),
                (_, value) => {
                    let before = own.insert(name.clone(), value);
                    assert_eq!(before, None, "`{name}` is here twice");
                }
            }
        }
        merged.extend(own);
        merged
    }
}

fn scalar(text: &str, is_plain: bool) -> Value {
    match text {
        "" | "~" | "null" if is_plain => Value::Null,
        "true" | "false" if is_plain => (text == "true").into(),
        _ if is_plain => text
            .parse::<i64>()
            .map_or_else(|_| text.into(), Value::from),
        _ => text.into(),
    }
}

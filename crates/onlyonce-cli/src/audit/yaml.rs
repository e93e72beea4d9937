//! A YAML reader that produces JSON values, as far as OpenAPI documents need it.
//!
//! The configuration has its own reader, which knows positions and environment variables. A third party's
//! document needs neither, but may be far larger. Everything is bounded.

use std::collections::HashMap;

use anyhow::bail;
use onlyonce_gateway::config::yaml::{self, Event, Options};
use serde_json::{Map, Value};

/// The maximum nesting depth.
const MAX_DEPTH: usize = 128;
/// The maximum number of values after all aliases are expanded.
const MAX_VALUES: usize = 1_000_000;

/// A collection that is not complete yet.
enum Open {
    List(Vec<Value>, usize),
    Map(Members, usize),
}

/// The members of a mapping so far.
#[derive(Default)]
struct Members {
    own: Map<String, Value>,
    /// The mappings that `<<` merges, for names that the mapping itself does not have.
    merged: Vec<Value>,
    /// The name whose value comes next.
    name: Option<String>,
}

/// The first document in `text`.
///
/// # Errors
/// Where it is not YAML, names a member twice, or is beyond the bounds.
pub(crate) fn parse(text: &str) -> anyhow::Result<Value> {
    let options = Options {
        max_depth: MAX_DEPTH,
        directives: true,
        unknown_aliases: false,
    };
    let mut builder = Builder::default();
    for parsed in yaml::events(text, options) {
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => bail!("line {}: {error}", error.at.line),
        };
        match builder.take(parsed.event) {
            Ok(None) => {}
            Ok(Some(document)) => return Ok(document),
            Err(why) => bail!("line {}: {why}", parsed.at.line),
        }
    }
    Ok(Value::Null)
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, (Value, usize)>,
    values: usize,
}

impl Builder {
    /// Takes the next event. Returns the document once it is complete.
    fn take(&mut self, event: Event<'_>) -> Result<Option<Value>, String> {
        match event {
            Event::Scalar {
                text,
                is_plain,
                anchor,
            } => {
                let value = match self.open.last() {
                    // A name is text, even if it looks like a number.
                    Some(Open::Map(Members { name: None, .. }, _)) => {
                        Value::String(text.into_owned())
                    }
                    _ => scalar(&text, is_plain),
                };
                self.place(value, anchor, 1)
            }
            Event::List(anchor) => self.begin(Open::List(Vec::new(), anchor)),
            Event::Map(anchor) => self.begin(Open::Map(Members::default(), anchor)),
            Event::End => match self.open.pop() {
                Some(Open::List(items, anchor)) => self.place(Value::Array(items), anchor, 1),
                Some(Open::Map(members, anchor)) => self.place(members.finish(), anchor, 1),
                None => Ok(None),
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some((value, size)) => self.place(value, 0, size),
                None => Err("an alias of something that is not complete".to_owned()),
            },
            Event::Document | Event::UnknownAlias(_) => Ok(None),
        }
    }

    fn begin(&mut self, open: Open) -> Result<Option<Value>, String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(format!("nested deeper than {MAX_DEPTH} levels"));
        }
        self.open.push(open);
        Ok(None)
    }

    fn place(&mut self, value: Value, anchor: usize, size: usize) -> Result<Option<Value>, String> {
        self.values += size;
        if self.values > MAX_VALUES {
            return Err(format!("more than {MAX_VALUES} values"));
        }
        if anchor != 0 {
            let size = size_of(&value);
            self.values += size;
            self.anchors.insert(anchor, (value.clone(), size));
        }
        match self.open.last_mut() {
            None => return Ok(Some(value)),
            Some(Open::List(items, _)) => items.push(value),
            Some(Open::Map(members, _)) => members.take(value)?,
        }
        Ok(None)
    }
}

impl Members {
    /// Takes a name or its value, whichever is next.
    fn take(&mut self, value: Value) -> Result<(), String> {
        match (self.name.take(), value) {
            (None, Value::String(name)) => self.name = Some(name),
            (None, _) => return Err("a name must be a word".to_owned()),
            (Some(name), value) if name == "<<" => self.merged.push(value),
            (Some(name), _) if self.own.contains_key(&name) => {
                return Err(format!("`{name}` is here twice"));
            }
            (Some(name), value) => drop(self.own.insert(name, value)),
        }
        Ok(())
    }

    fn finish(mut self) -> Value {
        for value in self.merged {
            merge(&mut self.own, value);
        }
        Value::Object(self.own)
    }
}

fn merge(members: &mut Map<String, Value>, value: Value) {
    match value {
        Value::Object(more) => {
            for (name, item) in more {
                members.entry(name).or_insert(item);
            }
        }
        Value::Array(items) => items.into_iter().for_each(|item| merge(members, item)),
        _ => {}
    }
}

fn size_of(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size_of).sum(),
        Value::Object(members) => members.values().map(size_of).sum(),
        _ => 0,
    }
}

fn scalar(text: &str, is_plain: bool) -> Value {
    if !is_plain {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        text => text
            .parse::<i64>()
            .map_or_else(|_| text.into(), Value::from),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_becomes_json() {
        let text = "a: &x { b: true, c: [1, '2', ~] }\nd: *x\n'200': |\n  text\ne:\n";
        let inner = json!({ "b": true, "c": [1, "2", null] });
        let wanted = json!({ "a": inner, "d": inner, "200": "text\n", "e": null });
        assert_eq!(parse(text).unwrap(), wanted);
        let merged = parse("a: &x { b: 1, c: 1 }\nd: { <<: *x, b: 2 }\n").unwrap();
        assert_eq!(merged["d"], json!({ "b": 2, "c": 1 }));
    }

    #[test]
    fn what_is_wrong_has_a_line() {
        for (text, words) in [
            ("a: 1\na: 2\n", "line 2: `a` is here twice"),
            ("a: [\n", "line 1: this is not YAML"),
            ("[a]: 1\n", "a name must be a word"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(parse(&"[".repeat(9_999)).is_err());
        // Each line is ten times the previous one.
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..9 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(",");
            laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        assert!(parse(&laughs).is_err());
    }
}

//! `onlyonce schema`: the configuration as JSON Schema, from the tables that the reader uses.
//!
//! The schema describes the structure, for editors; only `onlyonce check` knows the rules between fields.

use serde_json::{Map, Value, json};

use super::{
    fields::{ALL, Field, Item, Kind, Schema, TOP},
    setting::word,
};

/// The schema, draft 2020-12.
pub fn schema() -> Value {
    let mut defs: Map<String, Value> = ALL
        .iter()
        .filter(|section| section.name != TOP.name)
        .map(|section| (definition(section), object(section)))
        .collect();
    defs.insert(
        "variable".to_owned(),
        json!({
            "type": "string",
            "pattern": "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}",
            "description": "${NAME} takes an environment variable",
        }),
    );
    let mut schema = object(&TOP);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["$id"] = "https://onlyonce.dev/schema/config.json".into();
    schema["title"] = "OnlyOnce configuration".into();
    schema["$defs"] = defs.into();
    schema
}

/// The name of a section's definition: `an API key` becomes `api_key`.
fn definition(section: &Schema) -> String {
    let name = section.name.trim_matches('`');
    let name = name.strip_prefix("an ").or(name.strip_prefix("a "));
    let name = name.unwrap_or(section.name).trim_matches('`');
    name.to_lowercase().replace(' ', "_")
}

fn object(section: &Schema) -> Value {
    let fields = || section.fields.iter();
    let properties: Map<String, Value> = fields()
        .map(|field| (field.name.to_owned(), property(field)))
        .collect();
    let required: Vec<&str> = fields()
        .filter(|field| field.default == "required")
        .map(|field| field.name)
        .collect();
    let mut object = json!({
        // A section whose lines are all commented out is null.
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        object["type"] = "object".into();
        object["required"] = required.into();
    }
    object
}

fn property(field: &Field) -> Value {
    let mut property = takes(&field.kind);
    if !field.about.is_empty() {
        property["description"] = plain(field.about).into();
    }
    if let Some(default) = default(field) {
        property["default"] = default;
    }
    property
}

fn takes(kind: &Kind) -> Value {
    let string = || json!({ "type": "string" });
    match kind {
        Kind::Address | Kind::File | Kind::Folder | Kind::Header | Kind::Name(_) => string(),
        Kind::Path(_) | Kind::Text | Kind::CheckedText(_) | Kind::Url => string(),
        Kind::RedisAddress | Kind::RedisUrl => string(),
        Kind::Boolean => or_variable(json!({ "type": "boolean" })),
        Kind::Duration(_) => {
            or_variable(json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)? *[a-zµ]" }))
        }
        Kind::Hex => or_variable(json!({ "type": "string", "pattern": "^[0-9A-Fa-f]+$" })),
        Kind::Number(_) => or_variable(json!({ "type": "integer", "minimum": 0 })),
        Kind::Size(_) => json!({
            "anyOf": [
                { "type": "integer", "minimum": 0 },
                { "type": "string", "pattern": "^[0-9]+ *([KMGT]iB|B)?$" },
                variable(),
            ],
        }),
        Kind::TextOrList => json!({
            "anyOf": [string(), { "type": "array", "items": string() }],
        }),
        Kind::Words(words) => {
            or_variable(json!({ "enum": words.iter().map(|one| word(one)).collect::<Vec<_>>() }))
        }
        Kind::List(item) => json!({ "type": "array", "items": item_of(*item) }),
        Kind::WordsOrList(words, item) => json!({
            "anyOf": [
                { "enum": words.iter().map(|one| word(one)).collect::<Vec<_>>() },
                { "type": "array", "items": item_of(*item) },
            ],
        }),
        Kind::Section(section) => reference(&definition(section)),
        Kind::WordsOrSection(words, section) => json!({
            "anyOf": [
                { "enum": words.iter().map(|one| word(one)).collect::<Vec<_>>() },
                reference(&definition(section)),
            ],
        }),
        Kind::Map => {
            let value = json!({ "type": ["string", "integer", "number", "boolean"] });
            json!({ "type": "object", "additionalProperties": value })
        }
        Kind::Sections(section) => {
            json!({ "type": "array", "items": reference(&definition(section)) })
        }
    }
}

fn item_of(item: Item) -> Value {
    match item {
        Item::Cookies
        | Item::Headers
        | Item::KeyedMethods
        | Item::Methods
        | Item::Networks
        | Item::Origins
        | Item::Pointers => json!({ "type": "string" }),
        Item::Texts | Item::Values => json!({ "type": ["string", "integer", "number", "boolean"] }),
        Item::AnyStatuses => {
            or_variable(json!({ "type": "integer", "minimum": 100, "maximum": 599 }))
        }
        Item::Statuses => or_variable(json!({ "type": "integer", "minimum": 400, "maximum": 599 })),
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn variable() -> Value {
    reference("variable")
}

fn or_variable(schema: Value) -> Value {
    json!({ "anyOf": [schema, variable()] })
}

/// The default, if the table gives it as a value.
fn default(field: &Field) -> Option<Value> {
    let text = field.default.strip_prefix('`')?.strip_suffix('`')?;
    if text.contains('`') {
        return None;
    }
    let list = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    Some(match (list, &field.kind) {
        (Some(items), _) => items.split(", ").map(number_or_word).collect(),
        (None, Kind::Number(_)) => number_or_word(text),
        (None, _) => word(text),
    })
}

fn number_or_word(text: &str) -> Value {
    text.parse::<u64>()
        .map_or_else(|_| text.into(), Value::from)
}

/// A cell of the reference without links and backticks.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = link.split_once("](").and_then(|(words, after)| {
            let (_, after) = after.split_once(')')?;
            Some((words, after))
        });
        let Some((words, after)) = parts else {
            text.push_str(before);
            text.push('[');
            rest = link;
            continue;
        };
        text.push_str(before);
        text.push_str(words);
        rest = after;
    }
    text.push_str(rest);
    text.replace('`', "").replace("\\|", "|")
}

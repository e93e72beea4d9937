//! The OpenAPI description of the shadow report.

use serde_json::{Value, json};

use super::{content, object, operation, reference, time};

pub(super) fn report() -> Value {
    operation(
        "shadow",
        "What shadow mode has observed in the last week, by route and client",
        content(reference("ShadowReport")),
    )
}

fn figures() -> Vec<(&'static str, Value)> {
    let count = |description: &str| json!({ "type": "integer", "description": description });
    vec![
        ("requests", count("That were looked at.")),
        (
            "duplicates",
            count("That would have got the first one's answer."),
        ),
        ("refused", count("That would have been refused.")),
        (
            "without_key",
            count("Without a key, refused for it or not."),
        ),
    ]
}

fn nullable(schema: &Value) -> Value {
    json!({ "oneOf": [schema, { "type": "null" }] })
}

pub(super) fn schema() -> Value {
    let string = json!({ "type": "string" });
    let nothing = json!({ "type": ["string", "null"] });
    let total = object([figures(), vec![("since", time())]].concat());
    let client = object([figures(), vec![("client", nothing.clone())]].concat());
    let sample = object(vec![
        ("at", time()),
        ("key", nothing.clone()),
        ("client", nothing),
        ("would", string.clone()),
    ]);
    let item = object(vec![
        ("check", string.clone()),
        ("ok", json!({ "type": "boolean" })),
        ("detail", string.clone()),
    ]);
    let list = |items: Value| json!({ "type": "array", "items": items });
    let own = vec![
        ("route", string.clone()),
        ("path", string.clone()),
        ("since", time()),
        (
            "would",
            json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
        ),
        ("clients", list(client)),
        ("other_clients", nullable(&object(figures()))),
        ("samples", list(sample)),
        ("checklist", list(item)),
    ];
    object(vec![
        ("span", string),
        ("total", nullable(&total)),
        ("routes", list(object([figures(), own].concat()))),
    ])
}

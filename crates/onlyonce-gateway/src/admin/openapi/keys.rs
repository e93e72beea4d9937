//! The OpenAPI description of the lists of keys and of the audit.

use onlyonce_core::record::JournalEvent;
use serde_json::{Value, json};

use super::{content, object, operation, paging, parameter, reference, time};

pub(super) fn list() -> Value {
    let mut list = operation("list", "Keys, newest first", content(reference("KeyPage")));
    let string = json!({ "type": "string" });
    let mut parameters = vec![
        parameter("state", "query", "Only this state.", reference("State")),
        parameter("route", "query", "Only this route.", string.clone()),
        parameter(
            "client",
            "query",
            "Only keys of this client.",
            string.clone(),
        ),
        parameter(
            "key",
            "query",
            "Only this key, written as in its header.",
            string,
        ),
    ];
    parameters.extend(paging());
    list["parameters"] = parameters.into();
    list
}

pub(super) fn audit() -> Value {
    let page = content(reference("AuditPage"));
    let mut audit = operation("audit", "What happened to keys, newest first", page);
    let string = json!({ "type": "string" });
    let events = JournalEvent::ALL.map(JournalEvent::as_str);
    let mut parameters = vec![
        parameter(
            "actor",
            "query",
            "Only lines of these: executor, sweeper, reaper, reconciler, operator; commas between them.",
            string.clone(),
        ),
        parameter(
            "event",
            "query",
            &format!(
                "Only these, with commas between them: {}.",
                events.join(", ")
            ),
            string.clone(),
        ),
        parameter(
            "key",
            "query",
            "Only this key, written as in its header.",
            string.clone(),
        ),
        parameter(
            "client",
            "query",
            "With `key`: only of this client.",
            string,
        ),
        parameter(
            "keys",
            "query",
            "Whether each line has its `key`.",
            json!({ "type": "boolean", "default": false }),
        ),
    ];
    parameters.extend(paging());
    audit["parameters"] = parameters.into();
    audit
}

/// `GET /idempotency/keys/{id}/retries`: the retries that this gateway has seen.
pub(super) fn retries() -> Value {
    operation(
        "retries",
        "The retries of a key that this gateway has seen",
        content(reference("Retries")),
    )
}

pub(super) fn retries_schema() -> Value {
    let count = |description: &str| json!({ "type": "integer", "description": description });
    let retries = object(vec![
        ("answered", count("Duplicates that got the stored answer.")),
        (
            "refused",
            count("Told that it is in progress, or its outcome unknown."),
        ),
        ("last_at", time()),
        ("since", time()),
    ]);
    json!({ "oneOf": [retries, { "type": "null" }], "description": "Since this gateway was started." })
}

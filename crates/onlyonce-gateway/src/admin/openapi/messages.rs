//! The OpenAPI description of messages.

use onlyonce_core::MessageState;
use serde_json::{Value, json};

use super::{content, operation, paging, parameter, reference, time};

/// `GET /outbox`.
pub(super) fn list() -> Value {
    let page = content(reference("MessagePage"));
    let mut list = operation("outbox", "Messages, newest first", page);
    let string = json!({ "type": "string" });
    let states = "Only these states: one, or several with commas between them.";
    let mut parameters = vec![
        parameter("state", "query", states, string.clone()),
        parameter("target", "query", "Only this target.", string),
    ];
    parameters.extend(paging());
    list["parameters"] = parameters.into();
    list
}

/// `GET /outbox/{message}`.
pub(super) fn one() -> Value {
    of_message(operation(
        "message",
        "A message",
        content(reference("Message")),
    ))
}

/// `POST /outbox/{message}/retry`.
pub(super) fn retry() -> Value {
    let summary = "Send a message again that is dead or unknown, under the same key";
    let mut retry = decide("retry_message", summary, false);
    let force =
        "Send it although it may have arrived and its receiver would not know its key again.";
    retry["requestBody"]["content"]["application/json"]["schema"]["properties"]["force"] =
        json!({ "type": "boolean", "description": force });
    retry
}

/// `POST /outbox/{message}/discard`.
pub(super) fn discard() -> Value {
    let summary = "Let a message be that is dead or unknown";
    decide("discard_message", summary, true)
}

fn of_message(mut operation: Value) -> Value {
    let id = parameter(
        "message",
        "path",
        "A message's id.",
        json!({ "type": "string" }),
    );
    operation["parameters"] = json!([id]);
    operation
}

/// An operator's decision about a message.
fn decide(id: &str, summary: &str, reason_is_required: bool) -> Value {
    let mut decide = operation(id, summary, content(reference("Message")));
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": { "reason": { "type": ["string", "null"], "maxLength": 1_000 } },
    });
    if reason_is_required {
        schema["required"] = json!(["reason"]);
    }
    decide["requestBody"] = json!({
        "required": reason_is_required,
        "content": { "application/json": { "schema": schema } },
    });
    of_message(decide)
}

/// The members of a message.
pub(super) fn members() -> Vec<(&'static str, Value)> {
    let states = MessageState::ALL.map(MessageState::as_str);
    let string = || json!({ "type": "string" });
    let maybe = || json!({ "type": ["string", "null"] });
    let number = || json!({ "type": "integer" });
    vec![
        ("id", string()),
        ("state", json!({ "type": "string", "enum": states })),
        ("target", string()),
        ("type", string()),
        (
            "aggregate",
            json!({
                "type": ["object", "null"],
                "properties": { "type": string(), "id": string() },
            }),
        ),
        ("ordering_key", maybe()),
        ("downstream_key", string()),
        ("key_id", maybe()),
        ("settles_key", json!({ "type": "boolean" })),
        ("attempts", number()),
        ("provider_id", maybe()),
        ("last_error", maybe()),
        ("created_at", time()),
        ("due_at", time()),
        ("delivered_at", time()),
        ("bytes", number()),
        ("unclear_since", time()),
        (
            "waits_for",
            json!({
                "type": ["string", "null"],
                "enum": [
                    "no_such_target", "due_time", "next_attempt", "receiver", "earlier_message",
                    "delivery", null,
                ],
            }),
        ),
    ]
}

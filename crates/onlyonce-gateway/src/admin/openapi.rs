//! `GET /openapi.json`: the description of the admin API, from the same words that its answers use.

mod keys;
mod messages;
mod shadow;

use axum::Json;
use onlyonce_core::State;
use serde_json::{Map, Value, json};

/// `GET /openapi.json`.
pub(super) async fn document() -> Json<Value> {
    Json(openapi())
}

/// The description. A test compares `docs/reference/openapi.json` with it.
pub(super) fn openapi() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "OnlyOnce admin API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Keys, counters and health of a gateway, on a listener of its own.",
        },
        "security": [{ "token": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "responses": {
                "Problem": {
                    "description": "It was not done; the body says why.",
                    "content": {
                        "application/problem+json": { "schema": reference("Problem") },
                    },
                },
            },
            "schemas": schemas(),
        },
    })
}

fn paths() -> Value {
    let id = parameter("id", "path", "A key's id.", json!({ "type": "string" }));
    let of_key = |mut operation: Value| {
        operation["parameters"] = match operation["parameters"].take() {
            Value::Array(more) => [id.clone()].into_iter().chain(more).collect(),
            _ => json!([id.clone()]),
        };
        operation
    };
    json!({
        "/healthz": { "get": open(operation("healthz", "Whether the process runs", text())) },
        "/readyz": { "get": open(ready()) },
        "/metrics": { "get": operation("metrics", "Prometheus metrics", text()) },
        "/openapi.json": {
            "get": operation("openapi", "This document", content(json!({ "type": "object" }))),
        },
        "/config": {
            "get": operation(
                "config",
                "The configuration in effect, without secrets",
                content(json!({ "type": "object" })),
            ),
        },
        "/idempotency": {
            "get": operation(
                "routes",
                "What each route does and has counted, by its id",
                content(json!({
                    "type": "object",
                    "additionalProperties": reference("Route"),
                })),
            ),
        },
        "/overview": {
            "get": operation(
                "overview",
                "What the gateway is doing now",
                content(reference("Overview")),
            ),
        },
        "/shadow": { "get": shadow::report() },
        "/idempotency/keys": { "get": keys::list() },
        "/idempotency/keys/{id}": {
            "get": of_key(operation("show", "A key with its history", content(reference("KeyWithHistory")))),
            "delete": of_key(forget()),
        },
        "/idempotency/keys/{id}/resolve": {
            "post": of_key(change("resolve", "Say what became of an unknown key", "Resolution")),
        },
        "/idempotency/keys/{id}/extend": {
            "post": of_key(change("extend", "Keep an answer longer", "Extension")),
        },
        "/idempotency/keys/{id}/erase": { "post": of_key(erase()) },
        "/idempotency/keys/{id}/retries": { "get": of_key(keys::retries()) },
        "/idempotency/keys/{id}/probe": {
            "post": of_key(operation(
                "probe",
                "Ask the provider about a key, so that its negative answers count",
                content(reference("Probe")),
            )),
        },
        "/dead-letters": { "get": dead_letters() },
        "/dead-letters/resolve": { "post": resolve_many() },
        "/idempotency/keys/{id}/response": { "post": of_key(reveal()) },
        "/outbox": { "get": messages::list() },
        "/outbox/{message}": { "get": messages::one() },
        "/outbox/{message}/retry": { "post": messages::retry() },
        "/outbox/{message}/discard": { "post": messages::discard() },
        "/audit": { "get": keys::audit() },
        "/store/accept-loss": { "post": accept_loss() },
    })
}

fn dead_letters() -> Value {
    let page = content(reference("DeadLetterPage"));
    let mut list = operation(
        "dead_letters",
        "What waits for a person, newest first",
        page,
    );
    let string = json!({ "type": "string" });
    let kinds = json!({ "type": "string", "enum": ["reconcile", "outbox"] });
    let mut parameters = vec![
        parameter("kind", "query", "Only this kind.", kinds),
        parameter("route", "query", "Only this route.", string.clone()),
        parameter("client", "query", "Only keys of this client.", string),
    ];
    parameters.extend(paging());
    list["parameters"] = parameters.into();
    list
}

fn resolve_many() -> Value {
    let answer = content(reference("Resolved"));
    let mut many = operation(
        "resolve_many",
        "Say what became of many dead letters",
        answer,
    );
    many["requestBody"] = json!({
        "required": true,
        "content": { "application/json": { "schema": reference("ManyResolution") } },
    });
    many
}

fn paging() -> Vec<Value> {
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": 500, "default": 50 });
    vec![
        parameter("limit", "query", "Rows of a page.", limit),
        parameter(
            "cursor",
            "query",
            "The `next` of the page before.",
            json!({ "type": "string" }),
        ),
    ]
}

fn forget() -> Value {
    let answer = content(reference("KeyWithHistory"));
    let mut forget = operation("forget", "Forget a key, leaving a tombstone", answer);
    forget["parameters"] = json!([
        parameter(
            "force",
            "query",
            "Even though the operation took effect.",
            json!({ "type": "boolean", "default": false }),
        ),
        parameter(
            "reason",
            "query",
            "Goes to the audit.",
            json!({ "type": "string" })
        ),
    ]);
    forget
}

fn erase() -> Value {
    let answer = content(reference("KeyWithHistory"));
    let summary = "Remove a person's data from a key; it is not executed again";
    let mut erase = operation("erase", summary, answer);
    erase["requestBody"] = json!({
        "required": false,
        "content": { "application/json": { "schema": {
            "type": "object",
            "additionalProperties": false,
            "properties": { "reason": { "type": "string", "maxLength": 1_000 } },
        } } },
    });
    erase
}

fn accept_loss() -> Value {
    let accepted = json!({ "type": "boolean" });
    let answer = content(object(vec![("accepted", accepted)]));
    let summary = "Accept that the store has lost keys: retries of missing keys are executed";
    let mut accept = operation("accept_loss", summary, answer);
    accept["requestBody"] = json!({
        "required": true,
        "content": { "application/json": { "schema": {
            "type": "object",
            "additionalProperties": false,
            "required": ["reason"],
            "properties": { "reason": { "type": "string", "maxLength": 1_000 } },
        } } },
    });
    accept
}

fn change(id: &str, summary: &str, body: &str) -> Value {
    let mut change = operation(id, summary, content(reference("KeyWithHistory")));
    change["requestBody"] = json!({
        "required": true,
        "content": { "application/json": { "schema": reference(body) } },
    });
    change
}

fn reveal() -> Value {
    let answer = content(reference("StoredAnswer"));
    let mut reveal = operation(
        "response",
        "The stored answer itself; it is audited",
        answer,
    );
    reveal["requestBody"] = json!({
        "required": false,
        "content": { "application/json": { "schema": {
            "type": "object",
            "additionalProperties": false,
            "properties": { "reason": { "type": "string", "maxLength": 1_000 } },
        } } },
    });
    reveal
}

fn ready() -> Value {
    let mut ready = operation(
        "readyz",
        "Whether requests can be protected now",
        content(reference("Ready")),
    );
    ready["responses"]["503"] = ready["responses"]["200"].clone();
    ready
}

fn operation(id: &str, summary: &str, content: Value) -> Value {
    json!({
        "operationId": id,
        "summary": summary,
        "responses": {
            "200": { "description": "Done.", "content": content },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    })
}

/// Marks an operation that needs no token.
fn open(mut operation: Value) -> Value {
    operation["security"] = json!([]);
    operation
}

fn content(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

fn text() -> Value {
    json!({ "text/plain": { "schema": { "type": "string" } } })
}

fn parameter(name: &str, place: &str, description: &str, schema: Value) -> Value {
    json!({
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": schema,
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn schemas() -> Value {
    let states: Vec<&str> = State::ALL.iter().map(|state| state.as_str()).collect();
    json!({
        "State": { "type": "string", "enum": states },
        "Key": object(key_members()),
        "KeyWithHistory": object({
            let mut members = key_members();
            members.push(("revision", json!({ "type": "integer" })));
            members.push(("dead_letter", json!({ "type": "boolean" })));
            members.push(("history", json!({ "type": "array", "items": reference("Event") })));
            members.push(("waiters", json!({ "type": "integer", "description": "At this gateway." })));
            members
        }),
        "KeyPage": page("keys", "Key"),
        "Event": object(event_members()),
        "AuditLine": object({
            let mut members = event_members();
            members.push(("key_id", json!({ "type": "string" })));
            members
        }),
        "AuditPage": page("audit", "AuditLine"),
        "DeadLetter": object(vec![
            ("id", json!({ "type": "string" })),
            ("kind", json!({ "type": "string", "enum": ["reconcile", "outbox"] })),
            ("key_id", json!({ "type": ["string", "null"] })),
            ("route", json!({ "type": "string" })),
            ("reason", json!({ "type": "string" })),
            ("attempts", json!({ "type": "integer" })),
            ("created_at", time()),
        ]),
        "DeadLetterPage": page("dead_letters", "DeadLetter"),
        "Message": object(messages::members()),
        "MessagePage": page("messages", "Message"),
        "Probe": object(vec![
            ("id", json!({ "type": "string" })),
            ("route", json!({ "type": "string" })),
            ("found", json!({ "type": "boolean" })),
            ("outcome", json!({
                "type": "string",
                "enum": ["completed", "not_executed", "inconclusive"],
            })),
            ("detail", json!({ "type": "string" })),
            ("proven", json!({ "type": "boolean" })),
        ]),
        "Resolved": object(vec![
            ("dry_run", json!({ "type": "boolean" })),
            ("matched", json!({ "type": "array", "items": { "type": "string" } })),
            ("resolved", json!({ "type": "array", "items": { "type": "string" } })),
            ("refused", json!({ "type": "array", "items": { "type": "object" } })),
        ]),
        "ManyResolution": many_resolution(),
        "Resolution": resolution(),
        "Extension": object(vec![
            ("ttl", json!({ "type": "string", "description": "From now on, such as 48h." })),
        ]),
        "Route": {
            "type": "object",
            "required": [
                "header_name", "ttl", "enforce", "key_scope", "mode", "total_requests", "cache_hits",
                "cache_misses", "in_flight_waits", "enforced", "invalid_key", "store_errors",
                "responses_stored",
            ],
            "properties": {
                "header_name": { "type": "string" },
                "ttl": { "type": "string" },
                "enforce": { "type": "boolean" },
                "key_scope": { "type": "string", "enum": ["per_client", "global"] },
                "mode": { "type": "string", "enum": ["local", "distributed"] },
                "enabled": { "type": "boolean" },
                "shadow": { "type": ["object", "null"] },
            },
            "additionalProperties": { "type": "integer", "description": "A counter." },
        },
        "StoredAnswer": stored_answer(),
        "Retries": keys::retries_schema(),
        "ShadowReport": shadow::schema(),
        "Overview": overview(),
        "Ready": object(vec![
            ("status", json!({ "type": "string", "enum": ["ready", "unavailable", "stopping"] })),
            ("reason", json!({ "type": ["string", "null"] })),
            ("refusing_routes", json!({ "type": "array", "items": { "type": "string" } })),
            ("store", json!({ "type": "object" })),
            ("protected_routes", json!({ "type": "integer" })),
            ("shadow_routes", json!({ "type": "array", "items": { "type": "string" } })),
            ("routes", json!({ "type": "integer" })),
            ("config", object(vec![
                ("generation", json!({ "type": "integer" })),
                ("loaded_at", time()),
                ("last_error", json!({ "type": ["string", "null"] })),
            ])),
        ]),
        "Problem": object(vec![
            ("type", json!({ "type": "string", "format": "uri" })),
            ("title", json!({ "type": "string" })),
            ("status", json!({ "type": "integer" })),
            ("detail", json!({ "type": "string" })),
            ("code", json!({ "type": "string" })),
        ]),
    })
}

fn stored_answer() -> Value {
    let values = json!({ "type": "array", "items": { "type": "string" } });
    json!({
        "type": "object",
        "required": ["status", "headers", "stored", "bytes", "truncated"],
        "properties": {
            "status": { "type": "integer" },
            "headers": { "type": "object", "additionalProperties": values },
            "stored": { "type": "boolean", "description": "False where it was too large." },
            "bytes": { "type": "integer" },
            "truncated": { "type": "boolean", "description": "Only its beginning is shown." },
            "body": { "type": "string" },
            "body_base64": { "type": "string", "description": "Where it is not text." },
        },
    })
}

fn overview() -> Value {
    let decided = || json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    let objects = || json!({ "type": "array", "items": { "type": "object" } });
    let mut schema = object(vec![
        ("at", json!({ "type": "string", "format": "date-time" })),
        (
            "status",
            json!({ "type": "string", "enum": ["ready", "unavailable", "stopping"] }),
        ),
        ("reason", json!({ "type": ["string", "null"] })),
        (
            "refusing_routes",
            json!({ "type": "array", "items": { "type": "string" } }),
        ),
        ("store", json!({ "type": "object" })),
        ("config", json!({ "type": "object" })),
        ("protected_routes", json!({ "type": "integer" })),
        (
            "shadow_routes",
            json!({ "type": "array", "items": { "type": "string" } }),
        ),
        ("routes", objects()),
        ("totals", decided()),
        (
            "keys",
            json!({ "type": ["object", "null"], "description": "How many by state." }),
        ),
        (
            "outbox",
            json!({ "type": ["object", "null"], "description": "How many messages by state." }),
        ),
        (
            "shadow",
            json!({ "type": ["object", "null"], "description": "The `total` of `/shadow`." }),
        ),
        (
            "oldest_unknown_seconds",
            json!({ "type": ["integer", "null"] }),
        ),
        ("held_bytes", json!({ "type": "integer" })),
        ("detached", json!({ "type": "integer" })),
        ("waiting", json!({ "type": "integer" })),
        ("executing", json!({ "type": "integer" })),
        ("workers", objects()),
        ("clients", objects()),
        ("latency", json!({ "type": ["object", "null"] })),
        ("version", json!({ "type": "string" })),
    ]);
    // The newest sample is present only while somebody watches.
    schema["properties"]["row"] = json!({ "type": "array" });
    schema
}

fn time() -> Value {
    json!({ "type": ["string", "null"], "format": "date-time" })
}

fn key_members() -> Vec<(&'static str, Value)> {
    let string = || json!({ "type": "string" });
    let integer = || json!({ "type": "integer" });
    let response = json!({
        "type": ["object", "null"],
        "required": ["status", "bytes"],
        "properties": { "status": integer(), "bytes": integer() },
    });
    vec![
        ("id", string()),
        ("scope", string()),
        ("key", string()),
        ("spelling", json!({ "type": ["string", "null"] })),
        ("route", string()),
        ("method", string()),
        ("path", string()),
        ("state", reference("State")),
        ("attempt", integer()),
        ("generation", integer()),
        ("created_at", time()),
        ("last_run_at", time()),
        ("completed_at", time()),
        ("expires_at", time()),
        ("lease_until", time()),
        ("reconcile_after", time()),
        ("release_not_before", time()),
        ("response", response),
        ("last_error", json!({ "type": ["string", "null"] })),
        ("erased", json!({ "type": "boolean" })),
    ]
}

fn event_members() -> Vec<(&'static str, Value)> {
    let state = || json!({ "oneOf": [reference("State"), { "type": "null" }] });
    vec![
        ("at", json!({ "type": "string", "format": "date-time" })),
        ("event", json!({ "type": "string" })),
        ("from", state()),
        ("to", state()),
        ("attempt", json!({ "type": "integer" })),
        ("actor", json!({ "type": "string" })),
        ("detail", json!({ "type": ["string", "null"] })),
    ]
}

fn resolution() -> Value {
    let header = json!({
        "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
    });
    json!({
        "type": "object",
        "required": ["outcome", "reason"],
        "additionalProperties": false,
        "properties": {
            "outcome": { "type": "string", "enum": ["completed", "failed_retryable"] },
            "reason": { "type": "string", "minLength": 1 },
            "revision": {
                "type": "integer",
                "description": "The revision that the decision was made on.",
            },
            "force": { "type": "boolean", "default": false, "description": "Release all the same." },
            "response": {
                "oneOf": [
                    { "type": "string", "enum": ["provider"] },
                    {
                        "type": "object",
                        "required": ["status"],
                        "additionalProperties": false,
                        "properties": {
                            "status": { "type": "integer", "minimum": 200, "maximum": 999 },
                            "headers": { "type": "object", "additionalProperties": header },
                            "body": { "type": "string" },
                            "body_base64": { "type": "string" },
                        },
                    },
                ],
            },
        },
    })
}

fn many_resolution() -> Value {
    let mut many = resolution();
    let properties = &mut many["properties"];
    properties["dry_run"] = json!({ "type": "boolean", "default": true });
    properties["filter"] = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "route": { "type": "string" },
            "client": { "type": "string" },
            "reason": { "type": "string", "description": "A part of the letter's reason." },
        },
    });
    properties["response"] = json!({ "type": "string", "enum": ["provider"] });
    if let Some(properties) = properties.as_object_mut() {
        properties.remove("revision");
    }
    many
}

/// An object whose members are all required.
fn object(members: Vec<(&'static str, Value)>) -> Value {
    let required: Vec<&str> = members.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> = members
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn page(name: &'static str, item: &str) -> Value {
    object(vec![
        (name, json!({ "type": "array", "items": reference(item) })),
        ("next", json!({ "type": ["string", "null"] })),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rewrite the file with `ONLYONCE_WRITE_DOCS=1`.
    #[test]
    fn the_document_is_checked_in() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/openapi.json"
        );
        let text = format!("{:#}\n", openapi());
        if std::env::var_os("ONLYONCE_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let written: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(
            written == openapi(),
            "docs/reference/openapi.json is not what the code says; write it anew"
        );
    }
}

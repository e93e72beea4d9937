//! `onlyonce audit`: a flow with one unprotected step is found, and a closed one is good.
//!
//! Goal: the hole that nobody sees, because every other step is protected. Method: the real binary
//! with a document and a configuration. Evidence: its JSON and its exit code.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::{process::binary, within};

const DOCUMENT: &str = "
openapi: 3.0.3
servers: [{ url: https://shop.example/v1 }]
components:
  parameters:
    Key: { in: header, name: Idempotency-Key, required: true, schema: { type: string } }
paths:
  /orders:
    get: {}
    post: { x-onlyonce-flow: checkout, parameters: [{ $ref: '#/components/parameters/Key' }] }
  /orders/{id}/payments:
    parameters: [{ $ref: '#/components/parameters/Key' }]
    post: { x-onlyonce-flow: checkout }
  /mails:
    post: { x-onlyonce-flow: checkout, operationId: sendReceipt }
  /orders/{id}:
    delete: { tags: [orders] }
  /pings:
    post: { x-onlyonce: { exempt: a ping changes nothing } }
";

const BACKENDS: &str = "backends: [{ url: \"http://127.0.0.1:1\" }]";

fn config(mails: &str) -> String {
    format!(
        "store: {{ url: \"memory:\" }}\nidempotency: {{ enabled: true, enforce: true }}\nroutes:\n  \
         - {{ id: orders, path: /v1/orders, {BACKENDS} }}\n  \
         - {{ id: mails, path: /v1/mails, {BACKENDS}, idempotency: {{ {mails} }} }}\n"
    )
}

/// Runs `audit` on the document, and on a configuration if there is one.
async fn audit(document: &str, config: Option<&str>, more: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let (api, gateway) = (
        folder.path().join("api"),
        folder.path().join("gateway.yaml"),
    );
    std::fs::write(&api, document).unwrap();
    let mut command = Command::new(binary());
    command.args(["audit", "--openapi"]).arg(&api).args(more);
    if let Some(config) = config {
        std::fs::write(&gateway, config).unwrap();
        command.arg("--config").arg(&gateway);
    }
    within("the audit", command.output()).await.unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON on standard output")
}

fn verdict<'d>(document: &'d Value, path: &str) -> &'d str {
    let operations = document["operations"].as_array().unwrap().iter();
    let mut found = operations.filter(|one| one["path"] == path);
    found.next().unwrap()["verdict"].as_str().unwrap()
}

#[tokio::test]
async fn one_open_step_breaks_the_flow() {
    let output = audit(DOCUMENT, Some(&config("enabled: false")), &["--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let found = json(&output);
    assert_eq!(found["holes"], 1);
    assert_eq!(verdict(&found, "/v1/orders/{id}/payments"), "protected");
    assert_eq!(verdict(&found, "/v1/orders/{id}"), "idempotent");
    assert_eq!(verdict(&found, "/v1/mails"), "hole");
    assert_eq!(verdict(&found, "/v1/pings"), "exempt");
    let flow = &found["flows"][0];
    assert_eq!(
        (&flow["name"], &flow["state"]),
        (&"checkout".into(), &"broken".into())
    );
    assert_eq!(flow["holes"], serde_json::json!(["POST /v1/mails"]));

    let text = audit(DOCUMENT, Some(&config("enabled: false")), &[]).await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Flow checkout"), "{text}");
    assert!(text.contains("for the route `mails`"), "{text}");
}

#[tokio::test]
async fn a_key_that_is_not_demanded_is_a_hole_unless_allowed() {
    let optional = config("enforce: false");
    let output = audit(DOCUMENT, Some(&optional), &["--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(verdict(&json(&output), "/v1/mails"), "hole");
    let allowed = audit(DOCUMENT, Some(&optional), &["--allow-optional"]).await;
    assert_eq!(allowed.status.code(), Some(0));
}

#[tokio::test]
async fn without_a_hole_the_answer_is_yes() {
    let output = audit(DOCUMENT, Some(&config("enforce: true")), &["--json"]).await;
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(json(&output)["holes"], 0);
    assert_eq!(json(&output)["flows"][0]["state"], "whole");
    // Elsewhere, no route takes it.
    let output = audit(
        DOCUMENT,
        Some(&config("enforce: true")),
        &["--base-path=/v2"],
    )
    .await;
    assert_eq!(output.status.code(), Some(1));
}

/// A document in several files is looked through as a whole, and what cannot be looked at is named.
#[tokio::test]
async fn references_to_other_files() {
    let parts = [
        (
            "api",
            "openapi: 3.0.3\npaths:\n  /payments: { $ref: './paths/pay.yaml#/a%20b' }\n",
        ),
        (
            "paths/pay.yaml",
            "a b:\n  parameters: [{ $ref: '../key.json' }]\n  post: {}\n  patch: { $ref: more.yaml }\n",
        ),
        ("paths/more.yaml", "operationId: amend\n"),
        (
            "key.json",
            r#"{"in":"header","name":"Idempotency-Key","required":true}"#,
        ),
    ];
    let run = async |parts: &[(&str, &str)]| {
        let folder = TempDir::new().unwrap();
        std::fs::create_dir(folder.path().join("paths")).unwrap();
        for (name, text) in parts {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let mut command = Command::new(binary());
        command.args(["audit", "--json", "--openapi", "api"]);
        command.current_dir(folder.path());
        within("the audit", command.output()).await.unwrap()
    };
    let output = run(&parts).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = json(&output);
    assert_eq!(verdict(&found, "/payments"), "protected");
    assert_eq!(found["operations"][1]["operation_id"], "amend");
    // Without the header it is a hole, and without the file it is an error.
    let holes = parts.map(|(name, text)| (name, text.replace("true", "false")));
    let holes: Vec<_> = holes
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    assert_eq!(run(&holes).await.status.code(), Some(1));
    let output = run(&parts[..2]).await;
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("PATCH /payments"), "{error}");
    assert!(error.contains("`more.yaml` cannot be followed"), "{error}");
    // A header that cannot be looked up is not demanded, as far as anybody knows.
    assert_eq!(run(&parts[..3]).await.status.code(), Some(1));
    for reference in [
        "#/components/pathItems/Nope",
        "https://api.example/x.yaml#/a",
    ] {
        let document = format!("openapi: 3.1.0\npaths: {{ /p: {{ $ref: '{reference}' }} }}\n");
        let output = audit(&document, None, &[]).await;
        assert_eq!(output.status.code(), Some(2), "{reference}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(reference) && error.contains("/p"), "{error}");
    }
}

/// An operation stands where its own server says, and a parameter may lead past every route.
#[tokio::test]
async fn where_an_operation_stands() {
    let config = config("enforce: true");
    for (paths, code) in [
        ("/orders: { post: {} }", 0),
        ("/orders: { servers: [{ url: /v2 }], post: {} }", 1),
        (
            "/orders: { post: { servers: [{ url: 'https://x.example' }] } }",
            1,
        ),
    ] {
        let document = format!(
            "openapi: 3.0.3\nservers: [{{ url: 'https://{{h}}/{{b}}', variables: {{ h: {{ default: x }}, \
             b: {{ default: v1 }} }} }}]\npaths: {{ {paths} }}\n"
        );
        let output = audit(&document, Some(&config), &[]).await;
        assert_eq!(output.status.code(), Some(code), "{paths}: {output:?}");
    }
    let document = "openapi: 3.0.3\npaths: { '/{any}/orders': { post: {} } }\n";
    let output = audit(document, Some(&config), &["--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let found = json(&output);
    let why = found["operations"][0]["why"].as_str().unwrap();
    assert!(why.contains("for some values"), "{found}");
}

/// Without a configuration the document's own promises count, in YAML and in JSON.
#[tokio::test]
async fn a_document_is_taken_at_its_word() {
    let output = audit(DOCUMENT, None, &["--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(verdict(&json(&output), "/v1/orders"), "protected");
    assert_eq!(verdict(&json(&output), "/v1/mails"), "hole");
    let as_json = r#"{"openapi":"3.1.0","paths":{"/a":{"post":{"parameters":[
        {"in":"header","name":"idempotency-key","required":true}]}}}}"#;
    assert_eq!(audit(as_json, None, &[]).await.status.code(), Some(0));
}

#[tokio::test]
async fn what_cannot_be_read_is_usage() {
    for document in ["swagger: '2.0'", "a: [", "{\"openapi\":"] {
        let output = audit(document, None, &[]).await;
        assert_eq!(output.status.code(), Some(2), "{document}");
        assert!(output.stderr.starts_with(b"error: "));
    }
    let output = audit(DOCUMENT, Some("routes: 7"), &[]).await;
    assert_eq!(output.status.code(), Some(2));
}

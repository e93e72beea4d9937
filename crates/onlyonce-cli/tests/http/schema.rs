//! `onlyonce schema` prints the JSON Schema that is checked in.

use serde_json::Value;
use tokio::process::Command;

use crate::harness::{process::binary, within};

const CHECKED_IN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/config.schema.json"
);

/// Goal: an editor can be given what the command prints.
///
/// Method: run it. Evidence: exit code 0, and the document that is checked in, of the draft it names.
#[tokio::test]
async fn the_command_prints_what_is_checked_in() {
    let mut command = Command::new(binary());
    let output = within("the schema", command.arg("schema").output()).await;
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checked_in: Value = serde_json::from_slice(&std::fs::read(CHECKED_IN).unwrap()).unwrap();
    assert_eq!(printed, checked_in);
    assert_eq!(
        printed["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
}

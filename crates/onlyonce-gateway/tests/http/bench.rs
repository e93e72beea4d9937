//! `onlyonce bench --url`: what its exit code says.

use tokio::process::Command;

use crate::harness::{Gateway, Upstream, process::binary, within};

/// Goal: a script learns from the exit code whether there was anything to measure.
///
/// Method: a gateway that answers; an address where nobody listens; both as text and as JSON.
/// Evidence: 0 and 1, and the figures all the same.
#[tokio::test]
async fn nobody_answers() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let good = format!("http://{}/payments", gateway.data());
    for (url, expected) in [(good.as_str(), 0), ("http://127.0.0.1:1/x", 1)] {
        for json in [None, Some("--json")] {
            let mut command = Command::new(binary());
            let command = command
                .args(["bench", "--url", url, "--rate", "20", "--time", "500ms"])
                .args(json);
            let output = within("the load", command.output()).await.unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(expected), "{url}: {printed}");
            assert!(printed.contains("failed"), "{printed}");
        }
    }
}

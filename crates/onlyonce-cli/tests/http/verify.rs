//! `onlyonce verify`: every check is red on an API with just that defect, and green on one without.
//!
//! Goal: a verdict that can be believed. Method: the real binary against an API of our own that does
//! everything right except for what it is told, and against the gateway in each dialect. Evidence:
//! the verdicts in `--json` and the exit code.

pub(crate) mod front;
mod stub;

use std::{path::PathBuf, process::Stdio, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    harness::{Gateway, Setup, clients::key_of, process::binary},
    postgres::database,
};
use front::Front;
use stub::{Defect, Stub};

/// A run of the real binary may take this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of a run.
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
    folder: TempDir,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|error| panic!("{error}\n{}\n{}", self.out, self.err))
    }

    fn verdict(&self, check: &str) -> String {
        let document = self.json();
        let found = document["checks"].as_array().unwrap().iter();
        let finding = found.filter(|one| one["id"] == check).collect::<Vec<_>>();
        assert_eq!(finding.len(), 1, "{check} in {document:#}");
        finding[0]["verdict"].as_str().unwrap().to_owned()
    }

    /// Every check that is not one of `allowed`, with its verdict and what was seen.
    fn other_than(&self, allowed: &[&str]) -> Vec<String> {
        let document = self.json();
        let checks = document["checks"].as_array().unwrap().iter();
        checks
            .filter(|one| !allowed.contains(&one["verdict"].as_str().unwrap()))
            .map(|one| format!("{} {}: {}", one["id"], one["verdict"], one["seen"]))
            .collect()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

/// Runs `onlyonce verify URL` with a body and `arguments`; `{dir}` in them is a folder.
async fn verify(url: &str, arguments: &[&str]) -> Run {
    let folder = TempDir::new().unwrap();
    let body: PathBuf = folder.path().join("body.json");
    std::fs::write(&body, r#"{"amount":1000,"to":"ada","note":{"a":1,"b":2}}"#).unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut command = Command::new(binary());
    command
        .args(["verify", url, "--body"])
        .arg(&body)
        .args(arguments.iter().map(|one| one.replace("{dir}", dir)))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .expect("verify comes to an end")
        .unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        folder,
    }
}

/// Everything that can be said about the stub behind `url`.
fn all_about(stub: &Stub, other: &str, second: Option<&str>) -> Vec<String> {
    let mut arguments = vec![
        "--json".to_owned(),
        format!("--count-url={}", stub.url("/count")),
        "--count-pointer=/executed".to_owned(),
        format!("--header=Authorization: Bearer {}", key_of("one")),
        format!(
            "--second-caller-header=Authorization: Bearer {}",
            key_of("two")
        ),
        format!("--other-url={other}"),
        "--duplicates=20".to_owned(),
    ];
    for case in ["slow", "4xx", "5xx", "binary", "empty", "large", "chunked"] {
        arguments.push(format!("--case={case}=header:X-Fault: {case}"));
    }
    if let Some(second) = second {
        arguments.push(format!("--second-url={second}"));
    }
    arguments
}

async fn verify_stub(stub: &Stub, more: &[&str]) -> Run {
    let second = stub.second_url("/pay");
    let arguments = all_about(stub, &stub.url("/other"), Some(&second));
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend_from_slice(more);
    verify(&stub.url("/pay"), &arguments).await
}

#[tokio::test]
async fn an_api_that_is_right_passes_every_check() {
    let stub = Stub::start(Defect::None).await;
    let run = verify_stub(&stub, &[]).await;
    assert_eq!(run.other_than(&["pass"]), Vec::<String>::new());
    assert_eq!(run.json()["summary"]["pass"], 28);
    assert_eq!(run.code, Some(0));
}

#[tokio::test]
async fn each_check_is_red_on_its_defect() {
    for (defect, check) in Defect::ALL {
        let stub = Stub::start(defect).await;
        let run = verify_stub(&stub, &["--only", check]).await;
        assert_eq!(run.verdict(check), "fail", "{defect:?}\n{}", run.out);
        assert_eq!(run.code, Some(1), "{defect:?}");
        let finding = &run.json()["checks"][0];
        assert!(finding["cost"].as_str().is_some_and(|cost| cost.len() > 20));
        assert!(!finding["evidence"].as_array().unwrap().is_empty());
    }
}

/// The marker that a profile demands, and a repeated server error where it is to be replayed.
#[tokio::test]
async fn profiles_differ() {
    let stub = Stub::start(Defect::None).await;
    let run = verify_stub(&stub, &["--profile=stripe"]).await;
    let failed = run.other_than(&["pass"]).join("\n");
    for check in ["marker", "5xx", "mismatch"] {
        assert!(
            failed.contains(&format!("\"{check}\"")),
            "{check}: {failed}"
        );
    }
    let run = verify_stub(&stub, &["--profile=runway", "--only=marker,missing-key"]).await;
    assert_eq!(run.verdict("marker"), "pass");
    assert_eq!(run.verdict("missing-key"), "fail");
}

/// The gateway is held against its own checks: in front of an API that knows nothing of keys.
#[tokio::test]
async fn the_gateway_is_green_in_each_dialect() {
    for (dialect, more) in [
        ("ietf", ""),
        ("ietf", ", on_in_flight: reject"),
        ("stripe", ""),
        ("runway", ""),
    ] {
        let stub = Stub::start(Defect::Replay).await;
        let options = format!("enforce: true, dialect: {dialect}{more}");
        let gateway = Setup::with(&options).start_before(&stub.url("")).await;
        let at = |path: &str| format!("http://{}{path}", gateway.data());
        let mut arguments = all_about(&stub, &at("/other"), None);
        arguments.push(format!("--profile={dialect}"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let run = verify(&at("/pay"), &arguments).await;
        let left = run.other_than(&["pass"]);
        // One node cannot disagree with itself.
        assert!(
            matches!(left.as_slice(), [one] if one.starts_with("\"two-nodes\"")),
            "{dialect}: {left:#?}"
        );
        assert_eq!(run.code, Some(0));
    }
}

/// Two gateways on one PostgreSQL: every check there is, two nodes among them.
#[tokio::test]
async fn two_gateways_are_green_in_each_dialect() {
    for dialect in ["ietf", "stripe", "runway"] {
        let stub = Stub::start(Defect::Replay).await;
        let options = format!("enforce: true, dialect: {dialect}");
        let setup = Setup::with(&options).store(&database());
        let here = setup.clone().start_before(&stub.url("")).await;
        let there = setup.start_before(&stub.url("")).await;
        let at = |gateway: &Gateway, path: &str| format!("http://{}{path}", gateway.data());
        let second = at(&there, "/pay");
        let mut arguments = all_about(&stub, &at(&here, "/other"), Some(&second));
        arguments.push(format!("--profile={dialect}"));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let run = verify(&at(&here, "/pay"), &arguments).await;
        assert_eq!(run.other_than(&["pass"]), Vec::<String>::new(), "{dialect}");
        assert_eq!(run.code, Some(0));
    }
}

/// With clients of their own, each caller's key is another key: both are executed, neither sees the
/// other's answer.
#[tokio::test]
async fn clients_of_their_own_have_executions_of_their_own() {
    let stub = Stub::start(Defect::Replay).await;
    let gateway = Setup::with("enforce: true")
        .clients(&["one", "two"])
        .start_before(&stub.url(""))
        .await;
    let url = format!("http://{}/pay", gateway.data());
    let mut arguments = all_about(&stub, &url, None);
    arguments.push("--only=other-caller,missing-key,replay".to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = verify(&url, &arguments).await;
    assert_eq!(run.other_than(&["pass"]), Vec::<String>::new());
    let document = run.json();
    let checks = document["checks"].as_array().unwrap();
    let other = checks
        .iter()
        .find(|one| one["id"] == "other-caller")
        .unwrap();
    assert_eq!(other["seen"], "each caller has an execution of their own");
}

#[tokio::test]
async fn without_a_count_answers_tell_executions_apart() {
    let stub = Stub::start(Defect::Replay).await;
    let run = verify(
        &stub.url("/pay"),
        &["--json", "--only=replay,concurrent,hang-up"],
    )
    .await;
    assert_eq!(run.json()["executions"], "inferred_from_answers");
    for check in ["replay", "concurrent"] {
        assert_eq!(run.verdict(check), "fail");
    }
    assert_eq!(run.json()["checks"][0]["sure"], "from answers");
    assert_eq!(run.verdict("hang-up"), "cannot_tell");
    let strict = ["--json", "--only=hang-up", "--strict"];
    assert_eq!(verify(&stub.url("/pay"), &strict).await.code, Some(1));
}

/// The API executes everything and always says `ok`. No check about executions may be green.
#[tokio::test]
async fn answers_that_are_all_the_same_prove_nothing() {
    let stub = Stub::start(Defect::SameAnswers).await;
    let second = format!("--second-url={}", stub.second_url("/pay"));
    let arguments = [
        "--json",
        "--duplicates=5",
        "--case=slow=header:X-Fault: slow",
        "--case=5xx=header:X-Fault: 5xx",
        "--header=Authorization: Bearer one",
        "--second-caller-header=Authorization: Bearer two",
        &second,
    ];
    let run = verify(&stub.url("/pay"), &arguments).await;
    assert_eq!(run.json()["executions"], "the_api_s_word");
    let green = run.other_than(&["fail", "cannot_tell", "not_applicable"]);
    let names: Vec<&str> = green
        .iter()
        .filter_map(|one| one.split('"').nth(1))
        .collect();
    // A method in lower case is refused with 405, which says that nothing ran.
    assert_eq!(names, ["bytes", "expiry", "method-case"], "{green:#?}");
    assert_eq!(run.verdict("replay"), "cannot_tell");
}

#[tokio::test]
async fn credentials_are_in_no_output() {
    let stub = Stub::start(Defect::Replay).await;
    let files = ["--html={dir}/page.html", "--junit={dir}/suite.xml"];
    let secret = [
        "--header=Authorization: Bearer hunter2",
        "--only=replay,other-caller",
    ];
    let second = "--second-caller-header=X-Api-Key: hunter2";
    let arguments = [&files[..], &secret[..], &[second]].concat();
    let run = verify(&stub.url("/pay?api_key=hunter2"), &arguments).await;
    let page = run.file("page.html");
    let suite = run.file("suite.xml");
    for text in [&run.out, &run.err, &page, &suite] {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(run.out.contains("pays twice"), "{}", run.out);
    assert!(page.starts_with("<!doctype html>") && page.contains("pays twice"));
    assert!(suite.contains("<failure type=\"danger\""), "{suite}");
    assert_eq!(run.code, Some(1));
}

/// Behind TLS the same, and a certificate that nobody vouches for is not believed.
#[tokio::test]
async fn https_is_spoken_and_certificates_are_checked() {
    let stub = Stub::start(Defect::None).await;
    let front = Front::start(stub.address()).await;
    let url = front.url("/pay");
    let ca = concat!(
        "--ca=",
        env!("CARGO_MANIFEST_DIR"),
        "/tests/http/verify/tls/ca.pem"
    );
    let run = verify(&url, &["--json", "--only=replay,concurrent,hang-up", ca]).await;
    assert_eq!(run.other_than(&["pass"]), Vec::<String>::new());
    let run = verify(&url, &[]).await;
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains("no secure connection"), "{}", run.err);
}

#[tokio::test]
async fn another_machine_is_not_touched_without_asking() {
    // An address for documentation, where nobody is.
    let run = verify("http://192.0.2.1/pay", &[]).await;
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains("--yes"), "{}", run.err);
    assert!(run.err.contains("up to 173 requests"), "{}", run.err);
}

#[tokio::test]
async fn a_run_that_cannot_be_made_says_why() {
    let stub = Stub::start(Defect::None).await;
    let (pay, missing) = (stub.url("/pay"), stub.url("/nothing"));
    let still = format!("--count-url={}", stub.url("/still"));
    for (url, arguments, words) in [
        (pay.as_str(), vec!["--ca={dir}/none.pem"], "--ca"),
        (pay.as_str(), vec!["--case=fast=header:a: b"], "fast"),
        (
            pay.as_str(),
            vec!["--header=Authorization"],
            "a header is `Name: value`",
        ),
        (
            missing.as_str(),
            vec![],
            "answered 404 to the plain request",
        ),
        (
            pay.as_str(),
            vec![still.as_str()],
            "moved the count at --count-url by 0",
        ),
        ("http://127.0.0.1:1/pay", vec![], "cannot connect"),
    ] {
        let run = verify(url, &arguments).await;
        assert_eq!(run.code, Some(2), "{url} {arguments:?}\n{}", run.err);
        assert!(run.err.contains(words), "{words}\n{}", run.err);
    }
}

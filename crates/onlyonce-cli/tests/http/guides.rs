//! The listings of the guides do what the guides say: they are run as they stand.

use std::{path::Path, time::Duration};

use tokio::process::Command;

use crate::harness::{Gateway, Request, Script, Upstream, eventually, process::binary};

/// How long a listing may take.
const TIMEOUT: Duration = Duration::from_secs(60);

fn guide(name: &str) -> String {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    std::fs::read_to_string(guides.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The listings of `page` in this language.
fn listings(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    let listings = parts.filter_map(|part| part.split_once("\n```"));
    listings.map(|(listing, _)| listing.to_owned()).collect()
}

/// Runs a listing in `folder` as a client of `gateway`, and gives what it printed.
async fn run(gateway: &Gateway, folder: &Path, program: &[&str], listing: &str) -> String {
    let file = folder.join(program[1]);
    std::fs::write(&file, listing).unwrap();
    let mut command = Command::new(program[0]);
    command.args(&program[2..]).arg(&file).current_dir(folder);
    command.env("API", format!("http://{}", gateway.data()));
    command.env("NO_PROXY", "127.0.0.1").kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output());
    let output = output.await.expect("the listing ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{listing}\n{said}\n{wrong}");
    said
}

/// Goal: whoever copies a client from the guide has one that is safe to run again.
///
/// Method: each listing of `clients.md` twice in one folder, as after a crash.
/// Evidence: the upstream's own count: one execution for each language, and the same answer.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_safe_to_run_again() {
    let page = guide("clients.md");
    let programs: [(&str, &[&str]); 3] = [
        ("sh", &["bash", "pay.sh", "-eu"]),
        ("python", &["python3", "pay.py"]),
        ("js", &["node", "pay.mjs"]),
    ];
    for (language, program) in programs {
        let upstream = Upstream::start();
        let body = r#"{"id":"p_1","amount":1000}"#;
        upstream.always(
            Script::created()
                .header("Content-Type", "application/json")
                .body(body),
        );
        let gateway = Gateway::start(&upstream, "").await;
        let [listing] = &listings(&page, language)[..] else {
            panic!("one listing in {language}");
        };
        let folder = tempfile::tempdir().unwrap();
        let first = run(&gateway, folder.path(), program, listing).await;
        assert!(first.contains("p_1"), "{language}: {first}");
        let second = run(&gateway, folder.path(), program, listing).await;
        assert_eq!(first, second, "{language}");
        assert_eq!(upstream.executions(), 1, "{language}");
    }
}

/// Goal: a client from the guide that meets an unknown outcome waits until it is settled, and makes no
/// second payment.
///
/// Method: the upstream books and hangs up; somebody resolves the key while the listing runs.
/// Evidence: the listing prints the answer of the resolution; the upstream's own count is one.
#[tokio::test(flavor = "multi_thread")]
async fn clients_wait_for_what_nobody_knows() {
    let page = guide("clients.md");
    let programs: [(&str, &[&str]); 2] = [
        ("python", &["python3", "pay.py"]),
        ("js", &["node", "pay.mjs"]),
    ];
    for (language, program) in programs {
        let upstream = Upstream::start();
        upstream.always(Script::hang_up());
        let gateway = Gateway::start(&upstream, "").await;
        let [listing] = &listings(&page, language)[..] else {
            panic!("one listing in {language}");
        };
        let folder = tempfile::tempdir().unwrap();
        let settled = async {
            let id = eventually("an unknown key", async || {
                let path = "/idempotency/keys?state=unknown";
                let page = gateway.admin(Request::get(path)).await.expect(200).json();
                page["keys"][0]["id"].as_str().map(str::to_owned)
            });
            let path = format!("/idempotency/keys/{}/resolve", id.await);
            let said = r#"{"outcome":"completed","reason":"in the ledger","response":{"status":201,
                "headers":{"Content-Type":"application/json"},"body":"{\"id\":\"p_7\"}"}}"#;
            let resolve = Request::post(&path).json(said);
            gateway.admin(resolve).await.expect(200);
        };
        let listed = run(&gateway, folder.path(), program, listing);
        let (said, ()) = tokio::join!(listed, settled);
        assert!(said.contains("p_7"), "{language}: {said}");
        assert_eq!(upstream.executions(), 1, "{language}");
    }
}

/// Goal: the quickstart works as it stands.
///
/// Method: its listings one after the other, and `check` on its file.
/// Evidence: each ends well; the upstream's own count is one.
#[tokio::test(flavor = "multi_thread")]
async fn the_quickstart_works() {
    let page = guide("quickstart.md");
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let folder = tempfile::tempdir().unwrap();
    let listings_in_sh = listings(&page, "sh");
    assert_eq!(listings_in_sh.len(), 2);
    for listing in &listings_in_sh {
        run(&gateway, folder.path(), &["bash", "try.sh", "-eu"], listing).await;
    }
    assert_eq!(upstream.executions(), 1);
    for file in listings(&page, "yaml") {
        let path = folder.path().join("onlyonce.yaml");
        std::fs::write(&path, file).unwrap();
        let output = Command::new(binary()).arg("check").arg(&path).output();
        let output = output.await.unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Goal: the versions in the guide are those that were tried.
///
/// Method: the table of the guide, and what the tests of the SDKs install.
/// Evidence: the same numbers.
#[test]
fn versions_are_those_that_were_tried() {
    let page = guide("clients.md");
    for (name, package) in crate::sdks::PACKAGES {
        let version = package.rsplit(['=', '@']).next().unwrap();
        assert!(
            page.contains(&format!("| {name} | {version} |")),
            "{name} {version}"
        );
    }
}

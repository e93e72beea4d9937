//! The browser and what drives it: Debian's chromium and node, and two packages from the npm registry,
//! installed once under the target folder.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
    time::Duration,
};

use serde_json::Value;
use tokio::process::Command;

/// The longest that one script may take. It ends what hangs; it is no measure of speed.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(300);

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/browser");
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/images");

/// The folder with the scripts and their packages; `None` where the registry cannot be reached.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(install).as_deref()
}

fn install() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("browser");
    std::fs::create_dir_all(&folder).expect("a folder for the scripts");
    let wanted =
        std::fs::read(Path::new(SCRIPTS).join("package.json")).expect("a list of packages");
    let installed = std::fs::read(folder.join("installed.json")).ok();
    if installed.as_ref() != Some(&wanted) {
        std::fs::write(folder.join("package.json"), &wanted).expect("a list of packages");
        let run = std::process::Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
            .args(["--fetch-retries=1", "--fetch-timeout=20000"])
            .current_dir(&folder)
            .output()
            .expect("npm is installed: ./test does that");
        if !run.status.success() {
            let why = String::from_utf8_lossy(&run.stderr).into_owned();
            let packages =
                why.contains("network") || why.contains("fetch") || why.contains("ECONN");
            assert!(packages, "npm failed: {why}");
            return None;
        }
        std::fs::write(folder.join("installed.json"), &wanted).expect("a note of what is there");
    }
    for entry in std::fs::read_dir(SCRIPTS).expect("the scripts") {
        let path = entry.expect("a script").path();
        if path.extension().is_some_and(|ending| ending == "mjs") {
            let name = path.file_name().expect("a name");
            std::fs::copy(&path, folder.join(name)).expect("a copy beside the packages");
        }
    }
    Some(folder)
}

/// Runs a script in the browser. `place` tells it where things are.
pub(super) async fn run(script: &str, place: &Value) -> bool {
    let Some(folder) = folder() else {
        let told = format!("\nSKIPPED {script}: the npm registry cannot be reached\n");
        // Past the test runner, which would keep it for failures.
        let _ = std::io::stderr().write_all(told.as_bytes());
        return false;
    };
    let mut command = Command::new("node");
    command
        .arg(script)
        .current_dir(folder)
        .env("PLACE", place.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if std::env::var_os("ONLYONCE_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(PICTURES).expect("a folder for pictures");
        command.env("PICTURES", PICTURES);
    }
    let child = command
        .spawn()
        .expect("node is installed: ./test does that");
    let ended = tokio::time::timeout(SCRIPT_DEADLINE, child.wait_with_output()).await;
    let ended = ended.expect("a script that ends").expect("its output");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    println!("{out}");
    assert!(ended.status.success(), "{script}:\n{out}\n{err}");
    true
}

//! The printed text contains the real addresses and paths, and a shell can parse its commands.

use super::*;

fn text(folder: &str) -> String {
    welcome(&Facts {
        gateway: "127.0.0.1:8181".parse().unwrap(),
        gateway_pid: 4711,
        admin: "127.0.0.1:9191".parse().unwrap(),
        api: "127.0.0.1:3131".parse().unwrap(),
        api_pid: 4712,
        page: "127.0.0.1:7171".parse().unwrap(),
        folder: Path::new(folder),
        token: "00112233445566778899aabbccddeeff",
        tag: "7f3a",
    })
}

#[test]
fn the_text_has_the_real_places() {
    let text = text("/tmp/demo");
    for place in [
        "http://127.0.0.1:8181/payments",
        "http://127.0.0.1:9191/idempotency",
        "http://127.0.0.1:3131/ledger/count",
        "pid 4711",
        "http://127.0.0.1:7171",
        "00112233445566778899aabbccddeeff",
        "kill -9 $(cat /tmp/demo/gateway.pid)",
        "once-7f3a",
    ] {
        assert!(text.contains(place), "{place}\n{text}");
    }
    assert!(text.lines().all(|line| line.len() <= 140), "{text}");
}

/// A shell must be able to parse every command, even with an awkward folder name.
#[test]
fn every_command_is_shell() {
    for folder in ["/tmp/demo", "/tmp/it's a demo"] {
        let text = text(folder);
        let commands: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("   "))
            .collect();
        let script: String = commands
            .iter()
            .skip_while(|line| !line.trim_start().starts_with("curl"))
            .filter(|line| !is_prose(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let checked = std::process::Command::new("sh")
            .args(["-n", "-c", &script])
            .output();
        let checked = checked.unwrap();
        assert!(checked.status.success(), "{script}\n{checked:?}");
    }
}

fn is_prose(line: &str) -> bool {
    line.ends_with('.') && !line.contains("curl")
}

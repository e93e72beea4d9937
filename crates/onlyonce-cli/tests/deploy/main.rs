//! What is in `deploy/` fits this program.
//!
//! Files of other programs are given to those programs where they are at hand. No container engine is
//! assumed: of the image and the compose file it is checked that they hold together.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod dependencies;
mod monitoring;
mod yaml;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use onlyonce_gateway::config::{self, Overrides};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn read_yaml(path: &str) -> Value {
    yaml::parse(&read(path))
}

fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?} (./test installs it): {error}"))
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

fn strings(list: &Value) -> Vec<&str> {
    let items = list.as_array().expect("a list").iter();
    items.map(|item| item.as_str().expect("text")).collect()
}

#[test]
fn services_of_the_compose_file_hold_together() {
    let compose = read_yaml("deploy/compose.yml");
    let services = compose["services"].as_object().expect("services");
    let gateways: Vec<&str> = services
        .keys()
        .map(String::as_str)
        .filter(|name| name.starts_with("gateway"))
        .collect();
    assert_eq!(gateways, ["gateway-1", "gateway-2"]);
    let mut ports = Vec::new();
    for (name, service) in services {
        assert!(service["image"].is_string(), "{name} has an image");
        if let Some(needed) = service["depends_on"].as_object() {
            for (needed, how) in needed {
                let other = services.get(needed).unwrap_or_else(|| panic!("{needed}"));
                let healthy = how["condition"] == "service_healthy";
                assert!(!healthy || other["healthcheck"].is_object(), "{needed}");
            }
        }
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let (source, _) = volume.as_str().unwrap().split_once(':').unwrap();
            let is_there = match source.strip_prefix("./") {
                Some(file) => root().join("deploy").join(file).is_file(),
                None => compose["volumes"].get(source).is_some(),
            };
            assert!(is_there, "{name}: {source}");
        }
        if service["ports"].is_array() {
            ports.extend(strings(&service["ports"]));
        }
    }
    let count = ports.len();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!((ports.len(), count), (4, 4), "no two services share a port");
    assert!(ports.iter().all(|port| port.starts_with("127.0.0.1:")));
    let build = &services["api"]["build"];
    assert_eq!(build["dockerfile"], "deploy/Dockerfile");
}

#[test]
fn the_gateways_of_the_compose_file_start() {
    let text = read("deploy/compose/onlyonce.yaml");
    let environment = |name: &str| (name == "POSTGRES_PASSWORD").then(|| "secret".to_owned());
    let config = config::parse("onlyonce.yaml", &text, &environment, &Overrides::default())
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    assert_eq!(config.protected().count(), 1);
    assert_eq!(config.store.url.scheme(), "postgres");
}

#[test]
fn the_image_is_made_of_stages_that_exist() {
    let file = read("deploy/Dockerfile");
    let known = [
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "VOLUME",
        "ENV",
        "EXPOSE",
        "USER",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    ];
    let lines = file.lines().map(str::trim);
    let lines: Vec<(&str, &str)> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{line}")))
        .collect();
    assert_eq!(lines[0].0, "FROM");
    let mut stages = Vec::new();
    for (instruction, rest) in &lines {
        assert!(known.contains(instruction), "{instruction}");
        match *instruction {
            "FROM" => stages.extend(rest.split_once(" AS ").map(|(_, name)| name)),
            "COPY" if rest.starts_with("--from=") => {
                let stage = rest["--from=".len()..].split(' ').next().unwrap();
                assert!(stages.contains(&stage), "{stage}");
            }
            "ENTRYPOINT" | "CMD" | "VOLUME" => {
                let list: Value = serde_json::from_str(rest).expect("a JSON list");
                assert!(!strings(&list).is_empty());
            }
            "RUN" => {
                let script = rest.split(' ').next().unwrap();
                assert!(root().join(script).is_file(), "{script}");
            }
            _ => {}
        }
    }
    let users = lines
        .iter()
        .filter(|(instruction, _)| *instruction == "USER");
    assert_eq!(
        users.map(|(_, user)| *user).collect::<Vec<_>>(),
        ["nonroot"]
    );
}

#[test]
fn the_service_is_well_formed_and_closed() {
    let unit = read("deploy/onlyonce.service");
    assert!(unit.contains("ExecStart=/usr/local/bin/onlyonce serve --config "));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onlyonce.service");
    // `verify` wants to see the program, which need not be installed here.
    fs::write(&file, unit.replace("/usr/local/bin/onlyonce", "/bin/true")).unwrap();
    if Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("SKIPPED: systemd-analyze is not here, so the unit was not verified");
        return;
    }
    let verified = run(Command::new("systemd-analyze").arg("verify").arg(&file));
    assert!(verified.status.success(), "{}", text(&verified));
    assert_eq!(text(&verified), "");
    // 0 is closed and 10 is open; the threshold is in tenths.
    let secure = run(Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--threshold=20", "--no-pager"])
        .arg(&file));
    assert!(secure.status.success(), "{}", text(&secure));
}

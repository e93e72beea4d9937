//! What `deny.toml` demands of the dependencies, checked without `cargo deny`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use serde_json::Value;

use super::{read, root, run, text};

/// Where every dependency has to come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The quoted words of a list in `deny.toml` that begins with this line.
fn list(file: &str, beginning: &str) -> Vec<String> {
    let (_, rest) = file.split_once(beginning).expect("the list is there");
    let (inside, _) = rest.split_once("\n]").expect("the list ends");
    let lines = inside.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split('"').nth(1))
        .map(str::to_owned)
        .collect()
}

/// Whether a licence expression can be met by what is allowed.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    // An old way to write `OR`.
    let spaced = spaced.replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any_of(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression} is read to its end");
    met
}

type Words<'w> = std::iter::Peekable<std::str::SplitWhitespace<'w>>;

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all_of(words, allowed);
    }
    met
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let met = any_of(words, allowed);
        assert_eq!(words.next(), Some(")"));
        return met;
    }
    let mut name = words.next().expect("a licence").to_owned();
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next().expect("an exception"));
    }
    allowed.contains(&name)
}

/// Every package that a build with all features takes. The lock file also names what nobody asks for.
fn packages() -> Vec<Value> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = run(Command::new(cargo)
        .args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--all-features",
        ])
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(root()));
    assert!(output.status.success(), "{}", text(&output));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a graph");
    let needed: BTreeMap<&str, Vec<&str>> = nodes
        .iter()
        .map(|node| {
            let others = node["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter();
            let others = others.filter_map(Value::as_str).collect();
            (node["id"].as_str().expect("an id"), others)
        })
        .collect();
    let own = metadata["workspace_members"].as_array().expect("members");
    let mut left: Vec<&str> = own.iter().filter_map(Value::as_str).collect();
    let mut taken = BTreeSet::new();
    while let Some(id) = left.pop() {
        if taken.insert(id) {
            left.extend(&needed[id]);
        }
    }
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let is_taken = |package: &&Value| package["id"].as_str().is_some_and(|id| taken.contains(id));
    packages.filter(is_taken).cloned().collect()
}

#[test]
fn dependencies_are_what_they_may_be() {
    let deny = read("deny.toml");
    let (allowed, listed) = (list(&deny, "\nallow = ["), list(&deny, "\ndeny = ["));
    let only_once: Vec<&String> = listed
        .iter()
        .filter(|name| deny.contains(&format!("crate = \"{name}\", deny-multiple-versions")))
        .collect();
    assert_eq!(only_once, ["tokio", "hyper", "http", "rustls"]);
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().expect("a name").to_owned();
        let version = package["version"].as_str().expect("a version");
        versions
            .entry(name.clone())
            .or_default()
            .push(version.to_owned());
        let Some(source) = package["source"].as_str() else {
            continue;
        };
        assert_eq!(source, REGISTRY, "{name}");
        let licence = package["license"].as_str();
        let licence = licence.unwrap_or_else(|| panic!("{name} names no licence"));
        assert!(is_allowed(licence, &allowed), "{name}: {licence}");
    }
    assert!(versions.len() > 100, "{} packages", versions.len());
    for name in &listed {
        let found = versions.get(name).map_or(0, Vec::len);
        let most = usize::from(only_once.contains(&name));
        assert!(found <= most, "{name}: {:?}", versions.get(name));
    }
}

#[test]
fn licence_expressions_are_read_as_they_are_meant() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    for yes in [
        "MIT",
        "MIT OR GPL-3.0",
        "GPL-3.0/MIT",
        "MIT AND ISC",
        "(MIT AND ISC) OR X",
    ] {
        assert!(is_allowed(yes, &allowed), "{yes}");
    }
    for no in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND X"] {
        assert!(!is_allowed(no, &allowed), "{no}");
    }
}

//! What `deny.toml` demands of the dependencies, checked without `cargo deny`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

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

/// Name, version and licence of every package that a build with all features takes. The lock file also
/// names what nobody asks for.
fn packages() -> BTreeSet<(String, String, String)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = run(Command::new(cargo)
        .args(["tree", "--locked", "--workspace", "--all-features"])
        .args(["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"])
        .args(["--edges", "normal,build,dev"])
        .current_dir(root()));
    assert!(output.status.success(), "{}", text(&output));
    let listed = String::from_utf8(output.stdout).expect("text");
    let package = |line: &str| {
        // What was listed before is marked.
        let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?);
        Some((name.to_owned(), version.to_owned(), licence.to_owned()))
    };
    listed.lines().filter_map(package).collect()
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
    let packages = packages();
    assert!(packages.len() > 100, "{} packages", packages.len());
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version, licence) in &packages {
        versions.entry(name).or_default().push(version);
        assert!(is_allowed(licence, &allowed), "{name}: {licence}");
    }
    for name in &listed {
        let found = versions.get(name.as_str());
        let most = usize::from(only_once.contains(&name));
        assert!(found.map_or(0, Vec::len) <= most, "{name}: {found:?}");
    }
    for source in read("Cargo.lock")
        .lines()
        .filter(|line| line.starts_with("source = "))
    {
        assert_eq!(source, format!("source = \"{REGISTRY}\""));
    }
}

/// Goal: the page about the crates that a payment passes through speaks of those that are built.
#[test]
fn the_reviewed_crates_are_the_pinned_ones() {
    let (page, lock) = (read("docs/reference/dependencies.md"), read("Cargo.lock"));
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`'), cells.next()?))
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 20, "{rows:?}");
    for (name, version) in rows {
        let pinned = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(lock.contains(&pinned), "{name} {version} is not pinned");
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

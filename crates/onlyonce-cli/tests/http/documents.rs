//! What the documents say is there: links, headings, files and options of the command line.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Folders of the repository that documents name files in.
const NAMED: [&str; 4] = ["crates/", "docs/", "deploy/", "tests/mutants/"];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// Every document, by its path.
fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root(), root().join("docs"), root().join("deploy")];
    let is_root = |folder: &Path| folder == root();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !is_root(&folder) {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    assert!(found.len() > 40, "{} documents", found.len());
    found
}

/// The lines of a document that are prose, not listings.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_listing = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_listing ^= fence;
        !fence && !in_listing
    })
}

/// What stands between `open` and the next `close`.
fn between<'a>(text: &'a str, open: &str, close: char) -> Vec<&'a str> {
    let parts = text.split(open).skip(1);
    parts
        .filter_map(|part| part.split_once(close))
        .map(|(inner, _)| inner)
        .collect()
}

/// The spans of code in a line.
fn code(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The anchors of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.collect::<String>().replace(' ', "-");
        let again = (1..).map(|count| format!("{anchor}-{count}"));
        let mut names = std::iter::once(anchor.clone()).chain(again);
        let free = names.find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Goal: no link of a document leads nowhere.
#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let mut dead = Vec::new();
    for (path, text) in &documents {
        for link in prose(text).flat_map(|line| between(line, "](", ')')) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let Ok(target) = target.canonicalize() else {
                dead.push(format!("{}: {link}", path.display()));
                continue;
            };
            let of_target = documents.get(&target);
            let is_there =
                anchor.is_empty() || of_target.is_some_and(|text| anchors(text).contains(anchor));
            if !is_there {
                dead.push(format!("{}: {link}, no such heading", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "{}", dead.join("\n"));
}

/// Goal: every file that a document names by its path in the repository is there.
#[test]
fn named_files_exist() {
    let mut missing = Vec::new();
    for (path, text) in documents() {
        for named in prose(&text).flat_map(code) {
            let is_path = NAMED.iter().any(|folder| named.starts_with(folder))
                && !named.contains([' ', '{', '<', '*', 'N', '…']);
            let (file, _) = named.split_once("::").unwrap_or((named, ""));
            if is_path && !root().join(file).exists() {
                missing.push(format!("{}: {named}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The long options in a text.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

/// The help of a command and of all below it.
fn helps(words: &[&str]) -> String {
    let binary = crate::harness::process::binary();
    let help = Command::new(binary).args(words).arg("--help").output();
    let mut help = String::from_utf8(help.unwrap().stdout).unwrap();
    let commands = help.split_once("\nCommands:\n").map(|(_, rest)| rest);
    let commands: Vec<String> = commands
        .into_iter()
        .flat_map(|rest| rest.lines().take_while(|line| !line.is_empty()))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    for name in commands {
        help += &helps(&[words, &[name.as_str()]].concat());
    }
    help
}

/// Goal: every option that a document gives a command is one.
///
/// Method: the options of each `onlyonce ...` in the documents, in listings and in the text.
/// Evidence: `--help` of every command.
#[test]
fn options_exist() {
    let help = helps(&[]);
    let known: BTreeSet<&str> = options(&help).collect();
    assert!(
        known.contains("--upstream") && known.contains("--store"),
        "{known:?}"
    );
    let (mut unknown, mut looked_at) = (Vec::new(), 0);
    for (path, text) in documents() {
        let listed = text.lines().map(str::trim_start);
        let listed = listed.filter(|line| line.starts_with("onlyonce "));
        let named = prose(&text).flat_map(code);
        let named = named.filter(|span| span.starts_with("onlyonce "));
        for command in listed.chain(named) {
            // What comes behind is a comment, or another command.
            let command = command
                .split([';', '|', '#', '&'])
                .next()
                .unwrap_or_default();
            for option in options(command) {
                looked_at += 1;
                if !known.contains(option) {
                    unknown.push(format!("{}: {option} in {command}", path.display()));
                }
            }
        }
    }
    assert!(looked_at > 30, "{looked_at} options");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// Goal: documents say what is, not what is to come.
#[test]
fn nothing_is_promised_for_later() {
    for (path, text) in documents() {
        // Decisions tell what was known when they were made.
        if path
            .components()
            .any(|part| part.as_os_str() == "decisions")
        {
            continue;
        }
        for phrase in ["not yet", "coming soon"] {
            let line = text.lines().find(|line| line.contains(phrase));
            assert_eq!(line, None, "{}", path.display());
        }
    }
}

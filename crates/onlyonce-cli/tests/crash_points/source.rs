//! The names of the failpoints, read off the source of every crate.

use std::path::Path;

const MACRO: &str = "failpoint!(";

/// Every literal inside every `failpoint!`, in the order of the files.
pub(crate) fn failpoints() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(crates).expect("the folder of the crates") {
        let source = entry.expect("a crate").path().join("src");
        if source.is_dir() {
            read_folder(&source, &mut names);
        }
    }
    assert!(!names.is_empty(), "the scan finds something");
    names
}

fn read_folder(folder: &Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of source") {
        let path = entry.expect("a file of source").path();
        if path.is_dir() {
            read_folder(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("source that can be read");
            read_text(&text, names);
        }
    }
}

fn read_text(text: &str, names: &mut Vec<String>) {
    for (at, _) in text.match_indices(MACRO) {
        let inside = &text[at + MACRO.len()..];
        let mut depth = 1_usize;
        let end = inside.find(|c| {
            depth = match c {
                '(' => depth + 1,
                ')' => depth - 1,
                _ => depth,
            };
            depth == 0
        });
        let inside = &inside[..end.expect("a macro that is closed")];
        let literals: Vec<_> = inside.split('"').skip(1).step_by(2).collect();
        assert!(
            !literals.is_empty(),
            "a failpoint without a literal: {inside}"
        );
        names.extend(literals.into_iter().map(str::to_owned));
    }
}

#[test]
fn names_are_found_in_both_forms() {
    let text = r#"
        failpoint!("a.before");
        failpoint!(match began {
            New(_) => Some("b.before"),
            Again => "c.before",
        });
    "#;
    let mut names = Vec::new();
    read_text(text, &mut names);
    assert_eq!(names, ["a.before", "b.before", "c.before"]);
}

//! Texts that were never meant to be read.

use onlyonce_testkit::fuzz::Fuzz;

use super::*;
use crate::config::diagnostics::Severity;

/// What configurations are made of.
const WORDS: &[&str] = &[
    "routes:\n",
    "idempotency:",
    "store:",
    "admin:",
    "limits:",
    "backends:",
    "url:",
    "id:",
    "path:",
    "auth:",
    "methods:",
    "ttl:",
    "enforce:",
    "fingerprint:",
    "reconcile:",
    "profile:",
    "payments",
    "true",
    "30s",
    "1MiB",
    "http://up",
    "/",
    "a",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "\n    ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&a ",
    "*a",
    "\"",
    "'",
    "|\n",
    ">-\n",
    "${PORT}",
    "${PSP_TOKEN}",
    "${DB}",
    "${",
    "? ",
    "!!str ",
    "~",
    "#",
    " #",
    "---\n",
    "%",
    "\t",
    "\u{e9}",
    "\u{feff}",
    "\u{1f602}",
    "<<: *a",
];

/// Goal: a text is a configuration, which says the same when it is read again, or its errors say where they
/// are; none of them shows what a variable holds.
#[test]
fn texts_are_read_or_refused() {
    let route = format!("listen: 127.0.0.1:8080\n{ROUTE}");
    Fuzz::new("config", 4_000)
        .seeds([include_str!("full.yaml"), ROUTE, &route])
        .seeds([
            "a: &a [x, *a]\n? b\n: c\n",
            "store: { url: \"${DB}\" }\nredis: { password: x }\n",
        ])
        .words(WORDS)
        .max_bytes(3_000)
        .run(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            let diagnostics = match parsed(&text) {
                Ok(config) => {
                    assert!(!config.routes.is_empty());
                    let shown = view::view(&config);
                    let commented = format!("{text}\n# the end\n");
                    if let Ok(again) = parsed(&commented) {
                        assert_eq!(view::view(&again), shown);
                    }
                    return (0, config.warnings.len());
                }
                Err(diagnostics) => diagnostics,
            };
            let is_error = |one: &&Diagnostic| one.severity == Severity::Error;
            let errors: Vec<_> = diagnostics.0.iter().filter(is_error).collect();
            assert!(!errors.is_empty());
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            let lines: Vec<_> = text.split(['\n', '\r']).collect();
            for one in &errors {
                assert!(!one.message.is_empty());
                assert!(
                    (1..=lines.len() + 1).contains(&(one.line as usize)),
                    "{one}"
                );
                assert!(one.col >= 1, "{one}");
            }
            let printed = format!("{diagnostics}\n{}", diagnostics.summary());
            assert!(text.contains("hunter2") || !printed.contains("hunter2"));
            (errors.len(), errors[0].message.len())
        });
}

#[test]
fn an_alias_bomb_does_not_go_off() {
    let mut text = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let items = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("b{level}: &a{level} [{items}]\n"));
    }
    assert!(
        errors(&text)
            .iter()
            .any(|one| one.ends_with("too much stands behind aliases"))
    );
}

#[test]
fn depth_is_bounded() {
    for text in [
        "[".repeat(100_000),
        "- ".repeat(10_000),
        "{a: ".repeat(10_000),
    ] {
        assert_eq!(errors(&text).len(), 1);
    }
    let mut chain = "a0: &a0 [x]\n".to_owned();
    for level in 1..100 {
        chain.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert!(
        errors(&chain)
            .iter()
            .any(|one| one.ends_with("too much stands behind aliases"))
    );
    assert!(
        errors("a: &a [*a]\n")
            .contains(&"1:8: an alias inside the very value that it stands for".to_owned())
    );
}

#[test]
fn size_is_bounded() {
    let text = "#".repeat(tree::MAX_TEXT_BYTES + 1);
    let larger = "1:1: a configuration has at most 1048576 bytes, and this file has more";
    assert_eq!(errors(&text), [larger]);
    // A character that the limit cuts in two is no other mistake.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "\u{e9}".repeat(tree::MAX_TEXT_BYTES)).unwrap();
    assert_eq!(errors(&read(file.path()).unwrap()), [larger]);
    let text = format!("a: [{}]", "x,".repeat(60_000));
    assert!(errors(&text)[0].ends_with("more than 50000 values"));
}

/// A secret in a field that there is not is still a secret.
#[test]
fn values_of_unknown_fields_are_never_printed() {
    for section in [
        "redis: { address: 'h:1', password: hunter2x }",
        "redis:\n  password: hunter2x",
        "redis: hunter2x",
        "admin: { token: \"hunter2x\", listen: nowhere }",
        "auth: { jwt: { secret: 'hunter2x hunter2x' } }",
        "auth: { api_keys: [{ client_id: a, key: hunter2x }] }",
        "auth: { api_keys: [{ client: a, key: hunter2x, sha256: 1 }] }",
        "store: { paswd: { a: [hunter2x, hunter2x] } }",
        "store: { passwd: [hunter2x, 'hunter2x'], password: hunter2x, url: 'oracle:' }",
        "stor: hunter2x",
        "admin: { token: hunter2x ]",
        "admin: { listen: [, password: hunter2x }",
    ] {
        let refused = parsed(&format!("{section}\n{ROUTE}")).unwrap_err();
        let printed = format!("{refused}\n{}", refused.summary());
        assert!(!printed.contains("hunter2x"), "{printed}");
        assert!(printed.contains("***"), "{printed}");
    }
}

/// The field that is meant stands in the same section, though another section has one of that name.
#[test]
fn hints_name_the_field_that_is_meant() {
    for (section, meant) in [
        ("auth: { api_keys: [{ client: a }] }", "client_id"),
        ("admin: { token: a }", "token_env"),
        ("auth: { jwt: { secret: a } }", "secret_env"),
        ("idempotency: { max_body: 1 }", "max_body_size"),
        ("idempotency: { tombstone-ttl: 1h }", "tombstone_ttl"),
        ("idempotency: { enforced: true }", "enforce"),
        ("lisen: 127.0.0.1:1", "listen"),
    ] {
        let refused = parsed(&format!("{section}\n{ROUTE}"))
            .unwrap_err()
            .to_string();
        let hint = format!("did you mean `{meant}`?");
        assert!(refused.contains(&hint), "{refused}");
    }
}

//! Texts that were never meant to be read.

use proptest::prelude::*;

use super::*;
use crate::config::diagnostics::Severity;

/// YAML out of the pieces that matter here, well formed by chance only.
fn yaml_like() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "routes",
        "idempotency",
        "store",
        "admin",
        "limits",
        "backends",
        "url",
        "id",
        "path",
        "auth",
        "methods",
        "ttl",
        "enforce",
        "fingerprint",
        "reconcile",
        "profile",
        "payments",
        "true",
        "30s",
        "1MiB",
        "http://up",
        "/",
        "a",
        ":",
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
        "${PORT}",
        "${",
        "? ",
        "!!str ",
        "~",
        "#",
        "---\n",
        "%",
        "\t",
        "é",
        "\u{feff}",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn survives(text: &str) {
    match parsed(text) {
        Ok(config) => assert!(!config.routes.is_empty()),
        Err(diagnostics) => {
            assert!(
                diagnostics
                    .0
                    .iter()
                    .any(|one| one.severity == Severity::Error)
            );
            assert!(!diagnostics.to_string().is_empty());
        }
    }
}

proptest! {
    #![proptest_config(onlyonce_testkit::soak::cases(256))]

    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        survives(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_text_is_survived(text in "\\PC*") {
        survives(&text);
    }

    #[test]
    fn yaml_like_text_is_survived(text in yaml_like()) {
        survives(&text);
    }

    #[test]
    fn a_broken_file_is_survived(cut in 0usize..2_000, length in 0usize..20, with in yaml_like()) {
        let mut characters: Vec<char> = include_str!("full.yaml").chars().collect();
        let start = cut.min(characters.len());
        let end = (start + length).min(characters.len());
        characters.splice(start..end, with.chars());
        survives(&characters.into_iter().collect::<String>());
    }
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
    assert_eq!(errors(&text), ["1:1: the file has 1048577 bytes"]);
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

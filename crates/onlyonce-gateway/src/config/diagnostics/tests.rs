//! How findings look on a terminal.

use super::*;

fn rendered(text: &str, at: Span, message: &str, hint: Option<&str>) -> String {
    let mut report = Report::new("oo.yaml", text);
    report.error(at, message).hint_if(hint.map(str::to_owned));
    Diagnostics(report.into_found()).to_string()
}

#[test]
fn a_caret_stands_under_the_place() {
    let at = Span {
        line: 2,
        col: 3,
        width: 4,
    };
    assert_eq!(
        rendered(
            "a:\n  colr: red\n",
            at,
            "unknown field",
            Some("did you mean `color`?")
        ),
        "oo.yaml:2:3: error: unknown field\n      colr: red\n      ^^^^\nhint: did you mean `color`?"
    );
}

#[test]
fn without_a_place_there_is_no_caret() {
    assert_eq!(
        rendered("", Span::default(), "cannot be read", None),
        "oo.yaml: error: cannot be read"
    );
}

#[test]
fn a_place_beyond_the_text_is_survived() {
    for at in [
        Span {
            line: 9,
            col: 9,
            width: 9,
        },
        Span {
            line: 1,
            col: 90,
            width: 900,
        },
    ] {
        assert!(rendered("a: b", at, "odd", None).contains("^"));
    }
}

#[test]
fn a_long_line_is_cut_around_the_caret() {
    let text = format!("{}HERE{}", "x".repeat(5_000), "y".repeat(5_000));
    let shown = rendered(
        &text,
        Span {
            line: 1,
            col: 5_001,
            width: 4,
        },
        "m",
        None,
    );
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].len() < 200 && lines[1].contains("HERE"));
    assert_eq!(lines[1].find("HERE"), lines[2].find("^^^^"));
}

#[test]
fn secrets_are_blotted_out_and_columns_stay() {
    for (line, shown) in [
        ("u: postgres://app:pw@db/x", "u: postgres://app***@db/x"),
        ("u: \"redis://:p@w/1@db\"", "u: \"redis://******@db\""),
        ("u: redis://token@db", "u: redis://*****@db"),
        (
            "u: mysql://db/x?password=s3c&a=b",
            "u: mysql://db/x?password=***&a=b",
        ),
        (
            "u: http://h/p?key={key}&api_key=s3c&token=${T}",
            "u: http://h/p?key={key}&api_key=***&token=${T}",
        ),
        ("h: { a: \"Bearer abc\" }", "h: { a: \"Bearer ***\" }"),
        ("h: Bearer ${TOKEN}", "h: Bearer ${TOKEN}"),
        ("u: http://127.0.0.1:3000/a", "u: http://127.0.0.1:3000/a"),
        ("k: [{ sha256: 0aff }]", "k: [{ sha256: **** }]"),
        ("sha256: \"a b\", x: y", "sha256: \"***\", x: y"),
        ("secret_env: OO_JWT, b: c", "secret_env: OO_JWT, b: c"),
        ("{ token_env: \"s3cr-et\" }", "{ token_env: \"*******\" }"),
    ] {
        assert_eq!(blotted(line), shown);
    }
    assert_eq!(quoted("mysql://u:pw@h"), "`mysql://u***@h`");
    let long = quoted(&format!("mysql://u:{}@h", "pw".repeat(40)));
    assert!(!long.contains("pw") && long.ends_with("*…`"), "{long}");
}

#[test]
fn values_of_headers_are_blotted_out() {
    let text = "\
a: { headers: { X-Key: \"s3cret, }\", X Y: s3cret, B: \"Bearer ${T}\" }, max: 7 }
credential_headers: [X-Key]
query:
  url: http://h
  headers: # s3cret is no value here
    X-Key: s3cret
    X-Long: >
      s3cret s3cret

    \"X-C\": '${T} s3cret'
  timeout: 5s
b: { \"headers\": {
  A: s3cret,
  B: 's3cret' }, c: d }
headers: &all { A: s3cret
";
    let shown = "\
a: { headers: { X-Key: \"******* *\", X Y: ******, B: \"****** ${T}\" }, max: 7 }
credential_headers: [X-Key]
query:
  url: http://h
  headers: # s3cret is no value here
    X-Key: ******
    X-Long: *
      ****** ******

    \"X-C\": '${T} ******'
  timeout: 5s
b: { \"headers\": {
  A: ******,
  B: '******' }, c: d }
headers: &all { A: ******
";
    let found = blot::without_header_values(text);
    assert_eq!(found, shown.lines().collect::<Vec<_>>());
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let shown = rendered(
        "a: \u{1b}[31m",
        Span {
            line: 1,
            col: 4,
            width: 1,
        },
        "m",
        None,
    );
    assert!(!shown.contains('\u{1b}'));
    assert!(!quoted("\u{1b}[31m\n").contains(['\u{1b}', '\n']));
}

#[test]
fn suggestions_are_near_or_absent() {
    let words = ["timeout", "ttl", "enforce", "on_in_flight"];
    assert_eq!(nearest("timout", &words), Some("timeout"));
    assert_eq!(nearest("Enforce", &words), Some("enforce"));
    assert_eq!(nearest("on-in-flight", &words), Some("on_in_flight"));
    assert_eq!(nearest("zebra", &words), None);
}

#[test]
fn a_flood_of_mistakes_is_bounded() {
    let mut report = Report::new("oo.yaml", "");
    for line in 1..10_000 {
        report.error(
            Span {
                line,
                col: 1,
                width: 1,
            },
            "m",
        );
    }
    assert_eq!(report.errors(), 9_999);
    assert_eq!(report.into_found().len(), MAX_DIAGNOSTICS);
}

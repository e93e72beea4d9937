//! Fingerprints of recipe 1 as the first releases made them, to the byte: records that were made then are
//! compared under that recipe until they are gone.

use super::*;

/// The stored form of a recipe of version 1, written by hand.
fn stored(mode: u8, fields: &[&str], ignore: &[&str], headers: &[&str]) -> Vec<u8> {
    let mut out = vec![1, mode];
    for list in [fields, ignore, headers] {
        out.extend((list.len() as u64).to_be_bytes());
        for text in list {
            out.extend((text.len() as u64).to_be_bytes());
            out.extend(text.as_bytes());
        }
    }
    out
}

const OLD_DEFAULT: [&str; 4] = [
    "content-encoding",
    "content-type",
    "if-match",
    "if-none-match",
];

/// Method, target, headers and body of a request.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a [u8]);

const JSON_BODY: &[u8] =
    br#"{ "to":"x", "amount": 1000.0, "note":"\u00e9\n", "list":[1e21, -0, 0.1] }"#;

const CASES: [Case<'static>; 14] = [
    ("POST", "/p?q=1", &[("content-type", JSON)], JSON_BODY),
    (
        "POST",
        "/p?q=1",
        &[("content-type", JSON), ("host", "a.test")],
        JSON_BODY,
    ),
    (
        "post",
        "/p?q=1",
        &[("content-type", "Application/JSON; charset=utf-8")],
        JSON_BODY,
    ),
    (
        "POST",
        "/p",
        &[("content-type", JSON)],
        br#"{"a":9007199254740993}"#,
    ),
    ("POST", "/p", &[("content-type", JSON)], br#"{"a":1,"a":2}"#),
    (
        "POST",
        "/p",
        &[("content-type", JSON)],
        br#"{"a":12345678901234567,"b":0.30000000000000004}"#,
    ),
    (
        "POST",
        "/p",
        &[("content-type", JSON)],
        b"{\"z\":{\"y\":1,\"b\":2},\"a\":\"\xf0\x9f\x98\x80\"}",
    ),
    ("PUT", "/p", &[("content-type", FORM)], b"b=2&a=1&a=0&%61=3"),
    (
        "POST",
        "/p",
        &[("content-type", "multipart/form-data; boundary=x")],
        b"--x\r\ncontent-disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n",
    ),
    (
        "POST",
        "/p",
        &[
            ("content-type", "text/plain"),
            ("if-match", "\"e\""),
            ("if-match", "\"f\""),
        ],
        b"raw",
    ),
    (
        "POST",
        "/p",
        &[("content-type", JSON), ("content-encoding", "gzip")],
        b"\x1f\x8b\x08not really",
    ),
    (
        "POST",
        "/p",
        &[("content-type", JSON), ("content-encoding", "identity")],
        JSON_BODY,
    ),
    (
        "POST",
        "/p",
        &[("content-type", JSON), ("content-type", JSON)],
        JSON_BODY,
    ),
    (
        "PATCH",
        "/",
        &[("x-http-method-override", "PUT"), ("x-tenant-id", "t")],
        b"",
    ),
];

fn printed(recipe: &Recipe) -> Vec<String> {
    let fingerprint = |(method, target, pairs, body): &Case<'_>| {
        let view = RequestView {
            method,
            authority: None,
            target,
            headers: &headers(pairs),
            body,
        };
        format!("{:?}", hasher().fingerprint(recipe, &view))
    };
    CASES.iter().map(fingerprint).collect()
}

#[test]
fn recipe_1_is_what_it_was() {
    let recipes = [
        stored(0, &[], &[], &OLD_DEFAULT),
        stored(1, &[], &[], &OLD_DEFAULT),
        stored(
            0,
            &["/amount", "/list/0"],
            &[],
            &["content-type", "x-tenant-id"],
        ),
        stored(0, &[], &["/note"], &["content-type", "no name"]),
    ];
    let mut found = String::new();
    for bytes in recipes {
        let recipe = Recipe::decode(&bytes).expect("a recipe of version 1");
        assert_eq!(recipe.encode(), bytes, "it is stored as it was");
        found.push_str(&format!("{}\n", recipe.id()));
        for line in printed(&recipe) {
            found.push_str(&line);
            found.push('\n');
        }
    }
    assert_eq!(found, include_str!("golden.txt"));
}

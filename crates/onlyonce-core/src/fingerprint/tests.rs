//! Tests of whole fingerprints and of recipes. The canonical form has its own in `tests/canonical`.

mod canonical;
mod golden;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::secret::Secret;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn hasher() -> ScopeHasher {
    Secret::from_bytes([1; 32]).scope_hasher("global")
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let name: HeaderName = name.parse().expect("a header name");
        map.append(name, HeaderValue::from_str(value).expect("a header value"));
    }
    map
}

fn with_headers(recipe: &Recipe, pairs: &[(&str, &str)], body: impl AsRef<[u8]>) -> Fingerprint {
    let headers = &headers(pairs);
    let body = body.as_ref();
    hasher().fingerprint(
        recipe,
        &RequestView {
            method: "POST",
            authority: None,
            target: "/p?q=1",
            headers,
            body,
        },
    )
}

fn of(content_type: &str, body: impl AsRef<[u8]>) -> Fingerprint {
    with_headers(&Recipe::default(), &[("content-type", content_type)], body)
}

fn selecting(fields: &[&str], ignore: &[&str]) -> Recipe {
    let parse = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| Pointer::parse(text).expect("a pointer"))
            .collect()
    };
    let headers = Recipe::default().headers().to_vec();
    Recipe::new(BodyMode::Json, parse(fields), parse(ignore), headers)
}

#[test]
fn json_is_compared_by_meaning() {
    let reference = of(JSON, r#"{"amount":1000,"to":"x"}"#);
    for same in [
        r#"{"to":"x","amount":1000}"#,
        "{ \"amount\" : 1000.0,\r\n\t\"to\":\"x\" }",
        r#"{"amount":1e3,"t\u006f":"\u0078"}"#,
    ] {
        assert_eq!(of(JSON, same), reference, "{same}");
        assert_eq!(
            of("Application/JSON; charset=utf-8", same),
            reference,
            "{same}"
        );
    }
    assert_ne!(of(JSON, r#"{"amount":1001,"to":"x"}"#), reference);
    assert_ne!(of("text/plain", r#"{"amount":1000,"to":"x"}"#), reference);
    let suffixed = |body| of("application/vnd.api+json", body);
    assert_eq!(suffixed("[1, 2]"), suffixed("[1,2]"));
    assert_ne!(of("json", "[1, 2]"), of("json", "[1,2]"));
    assert_ne!(of("text/json", "[1, 2]"), of("text/json", "[1,2]"));
}

#[test]
fn what_jcs_conflates_stays_different() {
    for (one, other) in [
        ("9007199254740993", "9007199254740992"),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":2,"\u0061":2}"#, r#"{"a":2}"#),
        ("1e-400", "0"),
        ("1e400", "1e401"),
        (r#""\ud800""#, r#""\ud801""#),
        (r#""\ud800""#, "\"\u{fffd}\""),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("", "null"),
        ("[1", "[1 "),
        ("", " "),
    ] {
        assert_ne!(of(JSON, one), of(JSON, other), "{one} {other}");
        assert_eq!(of(JSON, one), of(JSON, one));
    }
    assert_eq!(of(JSON, "-0"), of(JSON, "0"));
}

#[test]
fn a_raw_fingerprint_never_equals_a_canonical_one() {
    let body = r#"{"a":1}"#;
    let raw = Recipe::new(
        BodyMode::Raw,
        vec![],
        vec![],
        Recipe::default().headers().to_vec(),
    );
    let json = [("content-type", JSON)];
    assert_ne!(with_headers(&raw, &json, body), of(JSON, body));
    assert_ne!(
        with_headers(&raw, &json, "[1, 2]"),
        with_headers(&raw, &json, "[1,2]")
    );
    // The same with one recipe and equal headers: the kind of body alone must tell them apart.
    let mut seen = Vec::new();
    let bare = Recipe::new(BodyMode::Json, vec![], vec![], vec![]);
    for content_type in [JSON, FORM, "multipart/form-data; boundary=b", "text/plain"] {
        let body = "--b\r\n\r\n\r\n--b--";
        let body = if content_type == JSON {
            r#""--b""#
        } else {
            body
        };
        let print = with_headers(&bare, &[("content-type", content_type)], body);
        assert!(!seen.contains(&print), "{content_type}");
        seen.push(print);
    }
}

#[test]
fn two_content_types_are_compared_by_bytes() {
    let twice = [("content-type", JSON), ("content-type", JSON)];
    let print = |body: &str| with_headers(&Recipe::default(), &twice, body);
    assert_ne!(print("[1, 2]"), print("[1,2]"));
}

fn zipped(format: &str, level: u32, body: &[u8]) -> Vec<u8> {
    use flate2::{Compression, write};
    use std::io::Write;
    let level = Compression::new(level);
    match format {
        "gzip" => {
            let mut out = write::GzEncoder::new(Vec::new(), level);
            out.write_all(body).unwrap();
            out.finish().unwrap()
        }
        "zlib" => {
            let mut out = write::ZlibEncoder::new(Vec::new(), level);
            out.write_all(body).unwrap();
            out.finish().unwrap()
        }
        _ => {
            let mut out = write::DeflateEncoder::new(Vec::new(), level);
            out.write_all(body).unwrap();
            out.finish().unwrap()
        }
    }
}

/// Under every compression a body is the same body, and what cannot be undone stays as it came.
#[test]
fn compression_is_undone() {
    let under = |coding: &str, body: &[u8]| {
        let pairs = [("content-type", JSON), ("content-encoding", coding)];
        with_headers(&Recipe::default(), &pairs, body)
    };
    let body = br#"{"amount": 10, "to": "x"}"#;
    let plain = of(JSON, body);
    assert_eq!(under("identity", body), plain);
    let moved = br#"{"to":"x","amount":10.0}"#;
    for level in [0, 1, 9] {
        for body in [&body[..], moved] {
            assert_eq!(under("gzip", &zipped("gzip", level, body)), plain);
            assert_eq!(under("X-GZIP", &zipped("gzip", level, body)), plain);
            assert_eq!(under("deflate", &zipped("zlib", level, body)), plain);
            assert_eq!(under("deflate", &zipped("bare", level, body)), plain);
            let twice = zipped("gzip", level, &zipped("zlib", 6, body));
            assert_eq!(under("deflate, gzip", &twice), plain);
        }
    }
    let two_members = [zipped("gzip", 6, &body[..5]), zipped("gzip", 6, &body[5..])].concat();
    assert_eq!(under("gzip", &two_members), plain);
    // Raw bodies are compared decoded, too.
    let raw = Recipe::new(BodyMode::Raw, vec![], vec![], vec![]);
    let gzip = [("content-encoding", "gzip")];
    let zip = zipped("gzip", 1, body);
    assert_eq!(
        with_headers(&raw, &gzip, &zip),
        with_headers(&raw, &[], body)
    );
    // What is broken, cut short, followed by more, of another coding or a bomb is not undone: its bytes and
    // its coding count.
    let whole = zipped("gzip", 6, body);
    let space = vec![b' '; 2 << 20];
    let bomb = zipped("gzip", 9, &space);
    assert_ne!(under("gzip", &bomb), of(JSON, &space));
    let mut seen = vec![
        plain,
        under("br", &whole),
        under("zstd", &whole),
        under("gzip", body),
    ];
    for length in 0..whole.len() {
        seen.push(under("gzip", &whole[..length]));
    }
    for format in ["gzip", "zlib", "bare"] {
        let coding = if format == "gzip" { "gzip" } else { "deflate" };
        seen.push(under(
            coding,
            &[&zipped(format, 6, body)[..], b"x"].concat(),
        ));
    }
    seen.push(under("gzip", &bomb));
    seen.push(under("gzip, gzip, gzip, gzip, gzip", &whole));
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
}

/// Everything by which a server tells requests apart counts, and how it travelled does not.
#[test]
fn host_overrides_and_tenants_count() {
    let print = |authority: Option<&str>, target: &str, pairs: &[(&str, &str)], recipe: &Recipe| {
        let headers = &headers(pairs);
        let view = RequestView {
            method: "POST",
            authority,
            target,
            headers,
            body: b"",
        };
        hasher().fingerprint(recipe, &view)
    };
    let recipe = &Recipe::default();
    let here = print(None, "/p", &[("host", "api.test")], recipe);
    for (authority, pairs) in [
        (Some("api.test"), &[][..]),
        (Some("API.test:443"), &[("host", "ignored.test")]),
        (None, &[("host", "Api.Test.:80")]),
    ] {
        assert_eq!(print(authority, "/p", pairs, recipe), here);
    }
    let host = ("host", "api.test");
    let mut seen = vec![
        here,
        print(None, "/p", &[("host", "other.test")], recipe),
        print(Some("api.test:8080"), "/p", &[], recipe),
        print(None, "/p", &[], recipe),
        print(None, "/p?a=1", &[host], recipe),
    ];
    for name in [
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
        "x-tenant-id",
        "x_account_id",
        "x-merchant-id",
        "x-on-behalf-of",
        "x-api-version",
    ] {
        for value in ["a", "b"] {
            seen.push(print(None, "/p", &[host, (name, value)], recipe));
        }
    }
    let distinct: std::collections::HashSet<_> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len());
    // In another letter case a method is itself; under its name with underscores a header is, too.
    let lower = hasher().fingerprint(
        recipe,
        &RequestView {
            method: "post",
            authority: Some("api.test"),
            target: "/p",
            headers: &HeaderMap::new(),
            body: b"",
        },
    );
    assert_eq!(lower, here);
    assert_eq!(
        print(None, "/p", &[host, ("x_tenant_id", "a")], recipe),
        print(None, "/p", &[host, ("x-tenant-id", "a")], recipe)
    );
    // As the route says.
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    let anywhere = &Recipe::default().with_target(false, &[], vec![]);
    let one = print(None, "/p", &[host], anywhere);
    assert_eq!(print(Some("other.test"), "/p", &[], anywhere), one);
    let aliases = &Recipe::default().with_target(true, &names(&["API.test.", "b.test"]), vec![]);
    let one = print(None, "/p", &[host], aliases);
    assert_eq!(print(Some("b.test:443"), "/p", &[], aliases), one);
    assert_ne!(print(Some("c.test"), "/p", &[], aliases), one);
    let ignoring = &Recipe::default().with_target(true, &[], names(&["utm", "a b"]));
    let one = print(None, "/p?x=1&y=2", &[host], ignoring);
    for same in [
        "/p?utm=1&x=1&y=2",
        "/p?x=1&u%74m=&y=2&a+b=c",
        "/p?x=1&y=2&utm",
    ] {
        assert_eq!(print(None, same, &[host], ignoring), one, "{same}");
    }
    for other in ["/p?x=1", "/p?y=2&x=1", "/p?x=1&y=2&UTM=1"] {
        assert_ne!(print(None, other, &[host], ignoring), one, "{other}");
    }
    for recipe in [anywhere, aliases, ignoring] {
        assert_eq!(Recipe::decode(&recipe.encode()).as_ref(), Ok(recipe));
    }
    assert_ne!(anywhere.id(), aliases.id());
}

#[test]
fn method_target_scope_and_listed_headers_count() {
    let map = headers(&[
        ("content-type", JSON),
        ("x-other", "1"),
        ("if-match", "\"e\""),
    ]);
    let view = RequestView {
        method: "POST",
        authority: None,
        target: "/p",
        headers: &map,
        body: b"{}",
    };
    let print = |view: &RequestView<'_>| hasher().fingerprint(&Recipe::default(), view);
    let reference = print(&view);
    assert_ne!(
        print(&RequestView {
            method: "PUT",
            ..view
        }),
        reference
    );
    assert_ne!(
        print(&RequestView {
            target: "/p?",
            ..view
        }),
        reference
    );
    assert_ne!(
        print(&RequestView {
            target: "/P",
            ..view
        }),
        reference
    );
    let other = headers(&[
        ("content-type", JSON),
        ("x-other", "2"),
        ("if-match", "\"e\""),
    ]);
    assert_eq!(
        print(&RequestView {
            headers: &other,
            ..view
        }),
        reference
    );
    let other = headers(&[("content-type", JSON), ("if-match", "\"f\"")]);
    assert_ne!(
        print(&RequestView {
            headers: &other,
            ..view
        }),
        reference
    );
    let other = headers(&[
        ("content-type", JSON),
        ("if-match", "\"e\""),
        ("if-match", "\"e\""),
    ]);
    assert_ne!(
        print(&RequestView {
            headers: &other,
            ..view
        }),
        reference
    );
    let scope = Secret::from_bytes([1; 32]).scope_hasher("client:a");
    assert_ne!(scope.fingerprint(&Recipe::default(), &view), reference);
}

#[test]
fn fields_alone_count() {
    let recipe = selecting(&["/amount", "/to/0/iban"], &[]);
    let print = |body: &str| with_headers(&recipe, &[("content-type", JSON)], body);
    let reference = print(r#"{"amount":5,"to":[{"iban":"DE"}],"trace":1}"#);
    assert_eq!(
        print(r#"{"trace":2,"to":[{"iban":"DE","x":0},7],"amount":5.0}"#),
        reference
    );
    assert_ne!(print(r#"{"amount":6,"to":[{"iban":"DE"}]}"#), reference);
    assert_ne!(print(r#"{"amount":5}"#), reference);
    // Absent, null and empty are three things.
    assert_ne!(print(r#"{"amount":null}"#), print("{}"));
    assert_ne!(print(r#"{"amount":""}"#), print("{}"));
    // A body that is not canonical is compared whole.
    assert_ne!(
        print(r#"{"amount":5,"a":1,"a":1}"#),
        print(r#"{"amount":5,"a":1,"a":2}"#)
    );
}

#[test]
fn ignored_values_do_not_count() {
    let recipe = selecting(&[], &["/sent_at", "/meta/trace"]);
    let print = |body: &str| with_headers(&recipe, &[("content-type", JSON)], body);
    let reference = print(r#"{"amount":5,"meta":{"k":1},"sent_at":7}"#);
    assert_eq!(
        print(r#"{"meta":{"trace":"t","k":1},"amount":5}"#),
        reference
    );
    assert_ne!(print(r#"{"amount":5,"meta":{"k":2}}"#), reference);
    let both = selecting(&["/meta"], &["/meta/trace"]);
    let print = |body: &str| with_headers(&both, &[("content-type", JSON)], body);
    assert_eq!(
        print(r#"{"meta":{"k":1,"trace":1}}"#),
        print(r#"{"a":1,"meta":{"k":1}}"#)
    );
}

#[test]
fn forms_and_multipart_by_content() {
    assert_eq!(of(FORM, "a=1&b=2"), of(FORM, "b=2&a=1"));
    assert_ne!(of(FORM, "a=1&a=2"), of(FORM, "a=2&a=1"));
    assert_ne!(of("text/plain", "a=1&b=2"), of("text/plain", "b=2&a=1"));
    let print = |boundary: &str, value: &str, tail: &str| {
        let body = format!("--{boundary}\r\nA: b\r\n\r\n{value}\r\n--{boundary}{tail}");
        of(&format!("multipart/form-data; boundary={boundary}"), body)
    };
    assert_eq!(print("x", "1", "--\r\n"), print("y", "1", "--\r\n"));
    assert_ne!(print("x", "1", "--\r\n"), print("x", "2", "--\r\n"));
    assert_ne!(print("x", "1", ""), print("y", "1", ""));
}

/// Stored fingerprints must match after an upgrade, so the bytes themselves are pinned.
#[test]
fn the_construction_never_changes() {
    let found = format!(
        "{} {:?}",
        Recipe::default().id(),
        of(JSON, r#"{"amount":1000}"#)
    );
    assert_eq!(found, include_str!("tests/golden_2.txt").trim_end());
}

#[test]
fn recipes_are_normal_and_survive_storage() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let one = Recipe::new(
        BodyMode::Json,
        vec![],
        vec![],
        names(&["X-B", "x-a", "x-b"]),
    );
    let other = Recipe::new(BodyMode::Json, vec![], vec![], names(&["x-a", "X-b"]));
    assert_eq!(one, other);
    assert_eq!(one.headers(), ["x-a", "x-b"]);
    let full = selecting(&["/b", "/a~1b", ""], &["/c/0"]);
    assert_eq!(full, selecting(&["", "/a~1b", "/b", "/b"], &["/c/0"]));
    for recipe in [&one, &full, &Recipe::default()] {
        assert_eq!(Recipe::decode(&recipe.encode()).as_ref(), Ok(recipe));
    }
    assert_ne!(one.id(), full.id());
    assert_ne!(selecting(&["/a"], &[]).id(), selecting(&[], &["/a"]).id());
}

#[test]
fn damaged_recipes_are_refused() {
    let good = selecting(&["/a"], &["/b"]).encode();
    for length in 0..good.len() {
        assert!(Recipe::decode(&good[..length]).is_err(), "{length}");
    }
    assert_eq!(
        Recipe::decode(&[&good[..], b"x"].concat()),
        Err(RecipeError::Damaged)
    );
    let later = [&[3], &good[1..]].concat();
    assert_eq!(Recipe::decode(&later), Err(RecipeError::Version(3)));
    let mut unsorted = vec![1, 0];
    write_length(0, &mut unsorted);
    write_length(0, &mut unsorted);
    write_length(2, &mut unsorted);
    write_framed(b"b", &mut unsorted);
    write_framed(b"a", &mut unsorted);
    assert_eq!(Recipe::decode(&unsorted), Err(RecipeError::Damaged));
}

#[test]
fn large_buffers_are_given_back() {
    let body = format!("[{}1]", "1,".repeat(MAX_KEPT_BYTES));
    let _ = of(JSON, body);
    let kept = BUFFERS.with_borrow(|buffers| buffers.message.capacity() + buffers.json.capacity());
    assert!(kept <= MAX_KEPT_BYTES);
}

proptest! {
    #![proptest_config(onlyonce_testkit::soak::cases(256))]

    #[test]
    fn any_body_of_any_type_has_a_stable_fingerprint(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        content_type in prop_oneof![
            Just(JSON), Just(FORM), Just("multipart/form-data; boundary=b"), Just("text/plain"),
        ],
    ) {
        prop_assert_eq!(of(content_type, &body), of(content_type, &body));
    }

    #[test]
    fn multipart_like_bodies_never_panic(body in "(--b|\r\n|--|:|a|\\\\|\"| |\n){0,40}") {
        let _ = of("multipart/form-data; boundary=b", body);
    }

    #[test]
    fn form_like_bodies_never_panic(body in "(a|b|&|=|%|\\+|%61|%4|\\[|\\]|;|\u{e9}){0,60}") {
        let _ = of(FORM, body);
    }

    /// Moving a whole pair past pairs of other names changes nothing; moving it past its own does.
    #[test]
    fn forms_are_compared_by_name_and_order(
        pairs in proptest::collection::vec(("[a-c]{1,2}", "[0-9]{0,3}"), 2..8),
        at in 0_usize..8,
    ) {
        let at = at % (pairs.len() - 1);
        let mut swapped = pairs.clone();
        swapped.swap(at, at + 1);
        let text = |pairs: &[(String, String)]| {
            let pairs: Vec<_> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
            of(FORM, pairs.join("&"))
        };
        let harmless = pairs[at].0 != pairs[at + 1].0 || pairs[at] == pairs[at + 1];
        prop_assert_eq!(text(&pairs) == text(&swapped), harmless);
    }

    /// A new boundary is the same request; another content is another one.
    #[test]
    fn multiparts_are_compared_part_by_part(
        parts in proptest::collection::vec(("[a-z]{1,8}", "[ -~]{0,40}"), 1..6),
        boundaries in ("[A-Za-z0-9]{20,40}", "[A-Za-z0-9]{20,40}"),
    ) {
        let body = |boundary: &str, parts: &[(String, String)]| {
            let mut body = String::new();
            for (name, content) in parts {
                body += &format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"");
                body += &format!("\r\n\r\n{content}\r\n");
            }
            of(&format!("multipart/form-data; boundary={boundary}"), format!("{body}--{boundary}--\r\n"))
        };
        let one = body(&boundaries.0, &parts);
        prop_assert_eq!(one, body(&boundaries.1, &parts));
        let mut other = parts.clone();
        other[0].1.push('!');
        prop_assert_ne!(one, body(&boundaries.1, &other));
    }

    #[test]
    fn content_types_never_panic(parameters in "(;|boundary|=|\"|\\\\|a| |b){0,20}") {
        let _ = multipart::boundary(parameters.as_bytes());
    }

    #[test]
    fn recipes_of_random_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let _ = Recipe::decode(&bytes);
        let _ = Recipe::decode(&[&[1, 0][..], &bytes].concat());
    }
}

//! Tests of the canonical form: the public JCS vectors, another implementation as oracle, and the
//! texts that must not be canonicalised.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::super::json::{canonicalise, rounded};
use super::super::{MAX_DEPTH, Pointer, pointer};

fn canonical(text: &str) -> Option<String> {
    canonicalise(text.as_bytes()).map(|out| String::from_utf8(out).expect("canonical is UTF-8"))
}

#[test]
fn jcs_vectors() {
    let Some(root) = crate::vectors::path("jcs/testdata") else {
        return;
    };
    let mut checked = 0;
    for entry in std::fs::read_dir(root.join("input")).expect("the vectors are readable") {
        let name = entry.expect("the vectors are readable").file_name();
        let read = |kind: &str| {
            std::fs::read(root.join(kind).join(&name)).expect("the vectors are readable")
        };
        let (input, output) = (read("input"), read("output"));
        assert_eq!(rounded(&input).as_ref(), Some(&output), "{name:?}");
        assert_eq!(canonicalise(&output).as_ref(), Some(&output), "{name:?}");
        // 333333333.33333329 is not what JCS prints for it, so that file is hashed raw.
        let exact = (name != "values.json").then_some(output);
        assert_eq!(canonicalise(&input), exact, "{name:?}");
        checked += 1;
    }
    assert!(checked >= 6, "only {checked} vectors ran");
}

#[test]
fn canonical_forms() {
    for (text, expected) in [
        (" [ 1 , 2 ] ", "[1,2]"),
        ("{}", "{}"),
        ("[ ]", "[]"),
        ("{ }", "{}"),
        (
            r#"{"b":{"d":1,"c":2},"a":[{"z":0,"y":0}]}"#,
            r#"{"a":[{"y":0,"z":0}],"b":{"c":2,"d":1}}"#,
        ),
        (r#"{"aa":1,"a":2}"#, r#"{"a":2,"aa":1}"#),
        (r#"{"":1,"\u0000":2}"#, r#"{"":1,"\u0000":2}"#),
        // Escaped bytes alone would put the backslash of "\n" behind "A".
        (
            r#"{"A":1,"\n":2,"\"":3,"]":4,"\\":5}"#,
            r#"{"\n":2,"\"":3,"A":1,"\\":5,"]":4}"#,
        ),
        (
            r#"{"x\n":1,"x\tA":2,"x\t":3}"#,
            r#"{"x\t":3,"x\tA":2,"x\n":1}"#,
        ),
        // UTF-16 puts a surrogate pair before U+FB33, UTF-8 behind it.
        (
            "{\"\u{fb33}\":1,\"\u{1f602}\":2,\"\u{d7ff}\":3}",
            "{\"\u{d7ff}\":3,\"\u{1f602}\":2,\"\u{fb33}\":1}",
        ),
        (
            r#""\u00e9\/\u001f\u007f\ud83d\ude02\b\f\u000d\u0022\u005C""#,
            "\"\u{e9}/\\u001f\u{7f}\u{1f602}\\b\\f\\r\\\"\\\\\"",
        ),
        ("true", "true"),
        ("-0.0", "0"),
    ] {
        assert_eq!(canonical(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn texts_without_a_canonical_form() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\" 1}",
        "nul",
        "truex",
        "True",
        "01",
        "1.",
        "+1",
        "'a'",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u+123\"",
        "\"\\u 123\"",
        "\"a\nb\"",
        "\"\t\"",
        "1 2",
        "{}{}",
        "\u{feff}{}",
        "// c\n1",
        "NaN",
        "\"\\ud800\"",
        "\"\\ud800\\n\"",
        "\"\\ud800\\ud800\"",
        "\"\\udc00\"",
        "\"\\ude02\\ud83d\"",
        "9007199254740993",
        "1e-400",
        "1e400",
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"b":2,"a":3}"#,
        r#"{"b":1,"a":2,"b":3}"#,
        r#"{"a":1,"\u0061":1}"#,
        r#"[{"x":{"k":1,"k":2}}]"#,
    ] {
        assert_eq!(canonical(text), None, "{text}");
    }
    for bytes in [
        &b"\"\xff\""[..],
        b"\"\xc3\"",
        b"\"\xed\xa0\x80\"",
        b"\xff",
        b"[1]\0",
    ] {
        assert_eq!(canonicalise(bytes), None, "{bytes:?}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(canonical(&nested(MAX_DEPTH)).is_some());
    assert_eq!(canonical(&nested(MAX_DEPTH + 1)), None);
    assert_eq!(canonical(&nested(100_000)), None);
    assert_eq!(canonical(&"[".repeat(100_000)), None);
    assert_eq!(canonical(&"{\"a\":".repeat(100_000)), None);
    let objects = format!(
        "{}1{}",
        "{\"b\":0,\"a\":".repeat(MAX_DEPTH),
        "}".repeat(MAX_DEPTH)
    );
    assert!(canonical(&objects).is_some_and(|text| text.starts_with("{\"a\":{\"a\":")));
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..(1_i64 << 53)).prop_map(Value::from),
        (-1000_i64..1000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((text(), inner), 0..6).prop_map(|pairs| Value::Object(Map::from_iter(pairs))),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,3}",
        "[\\x00-\\x24\\[-\\]\u{d7ff}\u{fb33}\u{1f602}]{0,4}",
        any::<String>()
    ]
}

/// The same value written differently: members in another order, white space, escapes.
fn disguise(value: &Value, salt: u64, out: &mut String) {
    let space = [" ", "", "\n\t", "\r"][usize::try_from(salt % 4).expect("below four")];
    let next = salt.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    out.push_str(space);
    match value {
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                disguise(item, next ^ at as u64, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            let turn = usize::try_from(next % 5)
                .expect("below five")
                .min(members.len());
            members.rotate_left(turn);
            out.push('{');
            for (at, (name, item)) in members.into_iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                disguise(&Value::from(name.as_str()), next, out);
                out.push(':');
                disguise(item, next ^ at as u64, out);
            }
            out.push('}');
        }
        Value::String(text) if salt.is_multiple_of(3) => {
            out.push('"');
            for unit in text.encode_utf16() {
                out.push_str(&format!("\\u{unit:04X}"));
            }
            out.push('"');
        }
        other => out.push_str(&other.to_string()),
    }
    out.push_str(space);
}

/// The value of a decimal numeral as its significant digits and the exponent of the last of them.
fn decimal(text: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().expect("an exponent");
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", integer.trim_start_matches('-'));
    let significant = digits.trim_end_matches('0');
    let zeros = i64::try_from(digits.len() - significant.len()).expect("short");
    let fraction = i64::try_from(fraction.len()).expect("short");
    match significant.trim_start_matches('0') {
        "" => (false, String::new(), 0),
        digits => (
            text.starts_with('-'),
            digits.to_owned(),
            exponent - fraction + zeros,
        ),
    }
}

proptest! {
    #![proptest_config(onlyonce_testkit::soak::cases(1024))]

    #[test]
    fn agrees_with_another_implementation(value in json()) {
        let oracle = serde_json_canonicalizer::to_vec(&value).expect("the oracle takes any value");
        let text = serde_json::to_vec(&value).expect("a value has a text");
        prop_assert_eq!(rounded(&text), Some(oracle.clone()));
        // What serde_json prints is the shortest decimal already, so nothing is inexact.
        prop_assert_eq!(canonicalise(&text), Some(oracle));
    }

    #[test]
    fn order_space_and_escapes_do_not_matter(value in json(), salt: u64) {
        let mut other = String::new();
        disguise(&value, salt, &mut other);
        let plain = canonical(&value.to_string());
        prop_assert!(plain.is_some());
        prop_assert_eq!(canonical(&other), plain.clone());
        prop_assert_eq!(plain.as_deref().and_then(canonical), plain);
    }

    #[test]
    fn numbers_are_canonical_if_and_only_if_exact(
        text in "-?(0|[1-9][0-9]{0,22})(\\.[0-9]{1,22})?([eE][+-]?[0-9]{1,3})?",
    ) {
        let double: f64 = text.parse().expect("a numeral");
        let printed = rounded(text.as_bytes());
        prop_assert_eq!(printed.is_some(), double.is_finite());
        if let Some(printed) = printed {
            let printed = String::from_utf8(printed).expect("ASCII");
            prop_assert_eq!(printed.parse::<f64>().expect("a numeral"), double);
            let oracle = serde_json_canonicalizer::to_string(&double).expect("finite");
            prop_assert_eq!(&printed, &oracle);
            prop_assert_eq!(canonical(&text).is_some(), decimal(&text) == decimal(&printed));
        }
    }

    /// Doubles that end halfway between two decimals, where implementations differ if they can.
    #[test]
    fn ties_go_to_the_even_digit(mantissa in (1_u64 << 52)..(1 << 53), halvings in 0..60_i32) {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let double = mantissa as f64 * 0.5_f64.powi(halvings);
        let oracle = serde_json_canonicalizer::to_string(&double).expect("finite");
        prop_assert_eq!(canonical(&oracle), Some(oracle.clone()));
        let exact = format!("{double:.64}");
        let printed = rounded(exact.as_bytes()).and_then(|out| String::from_utf8(out).ok());
        prop_assert_eq!(printed, Some(oracle));
    }

    #[test]
    fn short_numbers_are_always_exact(digits in 0_u64..1_000_000_000_000_000, exponent in -290..290) {
        let text = format!("{digits}e{exponent}");
        prop_assert_eq!(canonical(&text), rounded(text.as_bytes()).and_then(|out| String::from_utf8(out).ok()));
        let double: f64 = text.parse().expect("a numeral");
        let oracle = serde_json_canonicalizer::to_string(&double).expect("finite");
        prop_assert_eq!(canonical(&text), Some(oracle));
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..100)) {
        let _ = canonicalise(&bytes);
    }

    #[test]
    fn nearly_json_never_panics(text in "(\\{|\\}|\\[|\\]|,|:|\"|\\\\|u|d800|a|1|-|\\.|e| |null){0,40}") {
        let canonical = canonicalise(text.as_bytes());
        // Whatever we accept, the reference parser accepts.
        prop_assert!(canonical.is_none() || serde_json::from_str::<Value>(&text).is_ok());
    }

    #[test]
    fn pointers_find_what_serde_json_finds(value in json()) {
        let text = canonicalise(value.to_string().as_bytes()).expect("exact");
        let mut paths = vec![String::new()];
        while let Some(path) = paths.pop() {
            let there = value.pointer(&path).expect("a path into the value");
            let pointer = Pointer::parse(&path).expect("a pointer");
            let found = pointer::find(&text, &pointer);
            let expected = canonicalise(there.to_string().as_bytes());
            prop_assert_eq!(found, expected.as_deref());
            match there {
                Value::Array(items) => paths.extend((0..items.len()).map(|at| format!("{path}/{at}"))),
                Value::Object(members) => paths.extend(members.keys().map(|name| {
                    format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"))
                })),
                _ => {}
            }
        }
    }
}

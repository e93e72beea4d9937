//! Tests of key parsing: tables, the public structured-field vectors, properties.

use proptest::prelude::*;

use super::*;

fn parse(value: &str) -> Result<String, KeyError> {
    Key::parse(value.as_bytes(), &KeyRules::default()).map(|key| key.as_str().to_owned())
}

#[test]
fn accepted_values_and_their_keys() {
    for (value, key) in [
        ("abc", "abc"),
        ("\"abc\"", "abc"),
        (" \tabc \t", "abc"),
        ("\"abc\";p=1;q", "abc"),
        ("\"a b\"", "a b"),
        ("\"a\\\"b\\\\c\"", "a\"b\\c"),
        ("a\"b", "a\"b"),
        ("ABC", "ABC"),
        (":colon:", ":colon:"),
        (
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
            "8e03978e-40d5-43dd-bc93-6894a57f9324",
        ),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAV"),
    ] {
        assert_eq!(parse(value).as_deref(), Ok(key), "{value}");
    }
}

/// Every way to write `key` as a header value.
fn spellings(key: &str) -> Vec<String> {
    let quoted = Key::from_stored(key).quoted();
    let mut all: Vec<String> = ["", ";v=2", "; a; b=?0"]
        .iter()
        .map(|parameters| format!("{quoted}{parameters}"))
        .collect();
    if Key::from_stored(key).header_value() == key {
        all.push(key.to_owned());
    }
    all.iter()
        .map(|one| format!("\t {one} "))
        .chain(all.clone())
        .collect()
}

const ODD: [&str; 11] = [
    "abc",
    ".",
    "..",
    "a b",
    " ",
    "a\"b",
    "a\\b",
    "\"",
    "\"abc\"",
    "\"a b",
    "\"abc\";v=2",
];

#[test]
fn a_key_is_one_key_however_it_is_spelled() {
    for text in ODD {
        let key = Key::from_stored(text);
        for value in spellings(text) {
            let read = Key::parse(value.as_bytes(), &ANY).unwrap();
            assert_eq!(read, key, "{value}");
            let spelling = Spelling::of(&key, value.as_bytes()).unwrap();
            assert_eq!(&*spelling.value(&key), value.trim().as_bytes(), "{value}");
            let erased = spelling.clone().without(&key).unwrap();
            assert_eq!(erased.value(&key), spelling.value(&key), "{value}");
            assert_eq!(erased.clone().without(&key), Some(erased), "{value}");
            assert_eq!(Key::asked_for(&value).as_ref(), Ok(&key), "{value}");
            // Whoever was sent it, and calls it by any name it may know, means this key.
            for name in key.names(Some(&spelling)) {
                assert!(Key::meant_by(&name).contains(&key), "{value}: {name}");
            }
            assert!(
                key.names(Some(&spelling))
                    .iter()
                    .any(|name| name == value.trim())
            );
            assert!(key.names(Some(&spelling)).iter().any(|name| name == text));
        }
        assert_eq!(Key::asked_for(&key.header_value()).as_ref(), Ok(&key));
        let both = key.names(None);
        assert_eq!(both, [text.to_owned(), key.quoted()]);
        assert!(both.iter().all(|name| Key::meant_by(name).contains(&key)));
    }
}

#[test]
fn a_name_may_mean_two_keys_and_a_question_one() {
    let texts = |keys: Vec<Key>| -> Vec<String> {
        keys.iter().map(|key| key.as_str().to_owned()).collect()
    };
    assert_eq!(texts(Key::meant_by("\"abc\"")), ["\"abc\"", "abc"]);
    assert_eq!(texts(Key::meant_by("\"abc")), ["\"abc"]);
    assert_eq!(texts(Key::meant_by("abc")), ["abc"]);
    assert_eq!(Key::asked_for("a b"), Ok(Key::from_stored("a b")));
    assert_eq!(Key::asked_for("\"abc"), Err(KeyError::Malformed));
    // An application may have made it without any header.
    assert_eq!(
        Key::asked_for("\u{e9}t\u{e9}"),
        Ok(Key::from_stored("\u{e9}t\u{e9}"))
    );
}

#[test]
fn a_spelling_has_an_end() {
    let key = Key::from_stored("abc");
    let long = |length: usize| format!("\"abc\";p={}", "x".repeat(length - 8));
    let fits = Spelling::of(&key, long(MAX_SPELLING_BYTES).as_bytes());
    assert_eq!(fits.unwrap().value(&key).len(), MAX_SPELLING_BYTES);
    let too_long = Spelling::of(&key, long(MAX_SPELLING_BYTES + 1).as_bytes());
    assert_eq!(too_long, Err(KeyError::SpellingTooLong));
}

#[test]
fn refused_values_and_their_reasons() {
    for (value, error) in [
        ("", KeyError::Empty),
        (" \t ", KeyError::Empty),
        ("\"\"", KeyError::Empty),
        ("a b", KeyError::Space),
        ("a\tb", KeyError::Character),
        ("a\u{7f}b", KeyError::Character),
        ("gr\u{fc}n", KeyError::Character),
        ("\"abc", KeyError::Malformed),
        ("\"abc\\", KeyError::Malformed),
        ("\"abc\"x", KeyError::Malformed),
        ("\"abc\", \"def\"", KeyError::Malformed),
        ("\"a\tb\"", KeyError::Malformed),
        ("\"gr\u{fc}n\"", KeyError::Malformed),
        ("\"a\\nb\"", KeyError::Malformed),
        ("\"", KeyError::Malformed),
    ] {
        assert_eq!(parse(value), Err(error), "{value}");
    }
}

#[test]
fn lengths_count_after_unwrapping() {
    let rules = KeyRules {
        max_length: 4,
        min_length: 3,
        reject_sensitive: true,
    };
    let length = |value: &str| Key::parse(value.as_bytes(), &rules).map(|key| key.as_str().len());
    assert_eq!(length("abcd"), Ok(4));
    assert_eq!(length("\"abcd\""), Ok(4));
    assert_eq!(length("abcde"), Err(KeyError::TooLong { max: 4 }));
    assert_eq!(length("\"ab\""), Err(KeyError::TooShort { min: 3 }));
    let limit = "k".repeat(DEFAULT_MAX_LENGTH_BYTES);
    assert_eq!(parse(&limit), Ok(limit.clone()));
    assert!(parse(&format!("{limit}k")).is_err());
}

#[test]
fn sensitive_keys_are_refused() {
    use Sensitive::{CardNumber, Email, NationalId, PhoneNumber};
    for (value, kind) in [
        ("jane@example.com", Email),
        ("jane.doe+tag@mail.example.co.uk", Email),
        ("\"jane@example.com\"", Email),
        ("4242424242424242", CardNumber),
        ("4242-4242-4242-4242", CardNumber),
        ("\"4242 4242 4242 4242\"", CardNumber),
        ("\" 4242424242424242 \"", CardNumber),
        ("4242--4242-4242-4242", CardNumber),
        ("-4242424242424242", CardNumber),
        ("4242-4242-4242-4242-", CardNumber),
        ("\"4242 - 4242  4242-4242\"", CardNumber),
        ("4222222222222", CardNumber),
        ("5555555555554444", CardNumber),
        ("2223003122003222", CardNumber),
        ("378282246310005", CardNumber),
        ("6011111111111117", CardNumber),
        ("30569309025904", CardNumber),
        ("38520000023237", CardNumber),
        ("3530111333300000", CardNumber),
        ("6200000000000005", CardNumber),
        ("6759649826438453", CardNumber),
        ("o'hara!#$%&*+-/=?^_`{|}~@example.com", Email),
        ("a@example.com.", Email),
        ("+4915112345678", PhoneNumber),
        ("+1-202-555-0143", PhoneNumber),
        ("\"+1 (202) 555.0143\"", PhoneNumber),
        ("078-05-1120", NationalId),
    ] {
        assert_eq!(parse(value), Err(KeyError::Sensitive(kind)), "{value}");
    }
}

#[test]
fn ordinary_keys_are_not_sensitive() {
    for value in [
        "order@v1",
        "order@v1.2",
        "@example.com",
        "jane@",
        "jane@example",
        "a@b@example.com",
        "order:7@eu.example",
        "order-4242424242424242-7",
        "4242424242424241",
        "1700000000000",
        "1700000000000000",
        "9999999999999995",
        "550e8400-e29b-41d4-a716-446655440000",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "4915112345679",
        "+0123456789",
        "+1234567",
        "+1234567890123456",
        "+49151-abc-5678",
        "078-05-11200",
        "0078-05-1120",
        "078-051-120",
    ] {
        assert_eq!(parse(value).as_deref(), Ok(value));
    }
    let lax = KeyRules {
        reject_sensitive: false,
        ..KeyRules::default()
    };
    assert!(Key::parse(b"jane@example.com", &lax).is_ok());
}

#[test]
fn neither_debug_nor_errors_repeat_the_key() {
    let key = Key::from_stored("secret-key");
    assert_eq!(format!("{key:?}"), "Key(..)");
    let refused = "jane@example.com";
    let Err(error) = Key::parse(refused.as_bytes(), &KeyRules::default()) else {
        panic!("an e-mail address was accepted");
    };
    assert!(error.to_string().contains("an e-mail address"));
    assert!(!error.to_string().contains("jane") && !format!("{error:?}").contains("jane"));
}

#[test]
fn structured_field_vectors() {
    let rules = KeyRules {
        max_length: 1024,
        min_length: 1,
        reject_sensitive: false,
    };
    let mut checked = 0;
    for file in ["sf/string.json", "sf/string-generated.json", "sf/item.json"] {
        let Some(path) = crate::vectors::path(file) else {
            return;
        };
        let text = std::fs::read(path).expect("the vectors are readable");
        let cases: Vec<serde_json::Value> =
            serde_json::from_slice(&text).expect("the vectors are JSON");
        for case in &cases {
            // Two header lines are refused before a key is parsed, so they are not our case.
            let lines = case["raw"].as_array().expect("every case has lines");
            let [line] = lines.as_slice() else { continue };
            let line = line.as_str().expect("a line is a string");
            let parsed = Key::parse(line.as_bytes(), &rules);
            if case["must_fail"] == true && line.starts_with('"') {
                assert!(parsed.is_err(), "{}", case["name"]);
                checked += 1;
            } else if let Some(expected) = case["expected"][0].as_str() {
                let expected = match expected {
                    "" => Err(KeyError::Empty),
                    text => Ok(Key::from_stored(text)),
                };
                assert_eq!(parsed, expected, "{}", case["name"]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 250, "only {checked} cases ran");
}

#[test]
fn card_numbers_are_found_in_text_and_look_alikes_are_not() {
    let holds = |text: &str| super::holds_card_number(text.as_bytes());
    for number in [
        "4242424242424242",
        "4242 4242 4242 4242",
        "4242-4242-4242-4242",
        "378282246310005",
        "3782 822463 10005",
        "5555555555554444",
        "30569309025904",
        "6011111111111117",
        "3530111333300000",
    ] {
        for text in [
            number.to_owned(),
            format!(r#"{{"card":"{number}","cvc":"123"}}"#),
            format!("card={number}&amount=1"),
            format!("paid with {number}."),
            format!("{number} 123"),
            format!("12 {number}"),
            format!("<pan>{number}</pan>"),
        ] {
            assert!(holds(&text), "{text}");
        }
    }
    for text in [
        "",
        "4242424242424241",
        "1700000000000000",
        "0.4242424242424242",
        "x4242424242424242",
        "4242424242424242x",
        "pay_4242424242424242",
        "42424242424242421234567890",
        "4242  4242  4242  4242",
        "0191f2c4-7b3a-7000-8000-0123456789ab",
        r#"{"amount":1000,"ids":[1,2,3,4,5,6,7,8,9]}"#,
    ] {
        assert!(!holds(text), "{text}");
    }
}

proptest! {
    #![proptest_config(onlyonce_testkit::soak::cases(256))]

    #[test]
    fn parse_never_panics(value in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Key::parse(&value, &KeyRules::default());
    }

    #[test]
    fn looking_for_cards_never_panics(text in "[0-9 .x-]{0,80}") {
        let _ = super::holds_card_number(text.as_bytes());
    }

    #[test]
    fn quoted_bytes_never_panic(value in "\"[ -~\\t\u{e9}]{0,40}") {
        let _ = Key::parse(value.as_bytes(), &KeyRules::default());
    }

    #[test]
    fn digits_and_separators_never_panic(value in "[+0-9 ().@-]{0,40}") {
        let _ = Key::parse(format!("\"{value}\"").as_bytes(), &KeyRules::default());
    }

    #[test]
    fn quoting_does_not_make_another_key(value in "[!#-\\[\\]-~][!-\\[\\]-~&&[^\"]]{0,60}") {
        let quoted = format!("\"{value}\"");
        prop_assert_eq!(parse(&quoted), parse(&value));
    }
}

//! Keys as header values.

use onlyonce_core::{Key, Spelling, key::KeyRules};
use onlyonce_testkit::fuzz::Fuzz;

const SEEDS: &[&str] = &[
    "8e03978e-40d5-43dd-bc93-6894a57f9324",
    "\"8e03978e-40d5-43dd-bc93-6894a57f9324\"",
    " \tabc \t",
    "\"a\\\"b\\\\c\"",
    "\"a b\";p=1;q; r=?0;s=\"x\\\"\";t=tok/en:*;u=-12.345;v=:aGk=:;w=@1700000000;x=%\"f%c3%bc\"",
    "\"\"",
    "\"abc",
    "\"abc\"x",
    "a\"b",
    "a b",
    "gr\u{fc}n",
    "\"abc\";a=999999999999999;b=999999999999.999;*c.d-e_1",
];

const WORDS: &[&str] = &[
    "\"", "\\", "\\\"", "\\\\", ";", "=", " ", "\t", ";a", "; a=", "?1", "@0", ":YQ==:", ":YQ:",
    "%\"", "%c3%bc", "tok", "-", ".", "*",
];

/// Goal: a value is a key exactly where the contract says so, and it is one key, however it is spelled.
#[test]
fn keys() {
    let lax = KeyRules {
        max_length: usize::MAX,
        min_length: 1,
        reject_sensitive: false,
    };
    Fuzz::new("key", 250_000)
        .seeds(SEEDS)
        .words(WORDS)
        .max_bytes(200)
        .run(|value| {
            let read = Key::parse(value, &lax).ok();
            let expected = match key_in(value) {
                Reading::Key(text) => Some(text),
                Reading::NoKey => None,
                Reading::Unsure => return (3, 0),
            };
            assert_eq!(read.as_ref().map(Key::as_str), expected.as_deref());
            // What a route refuses beyond the grammar, it refuses in both spellings.
            let strict = Key::parse(value, &KeyRules::default());
            let Some(key) = read else {
                assert!(strict.is_err());
                return (0, value.len());
            };
            let printed = key.header_value().into_owned();
            let strictly = Key::parse(printed.as_bytes(), &KeyRules::default());
            assert_eq!(strictly, strict);
            let again = Key::parse(printed.as_bytes(), &lax).unwrap();
            assert_eq!(again, key);
            assert_eq!(again.header_value(), printed);

            let spelling = Spelling::of(&key, value).unwrap();
            let trimmed = value.trim_ascii();
            assert_eq!(&*spelling.value(&key), trimmed);
            let text = str::from_utf8(trimmed).unwrap();
            assert_eq!(Key::asked_for(text).as_ref(), Ok(&key));
            for name in key.names(Some(&spelling)) {
                assert!(Key::meant_by(&name).contains(&key), "{name}");
            }
            let kind = 1 + usize::from(trimmed.starts_with(b"\""));
            (kind, trimmed.len() - key.as_str().len())
        });
}

enum Reading {
    Key(String),
    NoKey,
    /// Base64 that RFC 9651 lets a reader take or refuse.
    Unsure,
}

/// Section 2 of the contract.
fn key_in(value: &[u8]) -> Reading {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = value.iter().position(|byte| !is_space(byte));
    let to = value.iter().rposition(|byte| !is_space(byte));
    let (Some(from), Some(to)) = (from, to) else {
        return Reading::NoKey;
    };
    let value = &value[from..=to];
    if value[0] != b'"' {
        return match value.iter().all(|byte| (0x21..=0x7e).contains(byte)) {
            true => Reading::Key(String::from_utf8(value.to_vec()).unwrap()),
            false => Reading::NoKey,
        };
    }
    let mut item = Item {
        value,
        unsure: false,
    };
    match item.string().filter(|_| item.parameters().is_some()) {
        Some(text) if !text.is_empty() && item.unsure => Reading::Unsure,
        Some(text) if !text.is_empty() => Reading::Key(text),
        _ => Reading::NoKey,
    }
}

/// A String of RFC 9651 with its parameters, read by the algorithms of its section 4.2.
struct Item<'a> {
    value: &'a [u8],
    unsure: bool,
}

impl Item<'_> {
    fn peek(&self) -> Option<u8> {
        self.value.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.value.split_first()?;
        self.value = rest;
        Some(*first)
    }

    fn skip(&mut self, wanted: impl Fn(u8) -> bool) -> usize {
        let count = self.value.iter().take_while(|byte| wanted(**byte)).count();
        self.value = &self.value[count..];
        count
    }

    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        self.next().filter(|byte| *byte == b'"')?;
        loop {
            match self.next()? {
                b'"' => return Some(text),
                b'\\' => text.push(char::from(
                    self.next().filter(|byte| matches!(byte, b'"' | b'\\'))?,
                )),
                byte @ 0x20..=0x7e => text.push(char::from(byte)),
                _ => return None,
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.peek() == Some(b';') {
            self.next();
            self.skip(|byte| byte == b' ');
            self.next()
                .filter(|byte| byte.is_ascii_lowercase() || *byte == b'*')?;
            self.skip(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
            });
            if self.peek() == Some(b'=') {
                self.next();
                self.bare_item()?;
            }
        }
        self.value.is_empty().then_some(())
    }

    fn bare_item(&mut self) -> Option<()> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number().map(drop),
            b'"' => self.string().map(drop),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_token =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                self.skip(is_token);
                Some(())
            }
            b':' => self.byte_sequence(),
            b'?' => {
                self.next();
                self.next()
                    .filter(|byte| matches!(byte, b'0' | b'1'))
                    .map(drop)
            }
            b'@' => {
                self.next();
                let is_whole = self.number()?;
                is_whole.then_some(())
            }
            b'%' => self.display_string(),
            _ => None,
        }
    }

    /// Whether it is an integer.
    fn number(&mut self) -> Option<bool> {
        if self.peek() == Some(b'-') {
            self.next();
        }
        let whole = self.skip(|byte| byte.is_ascii_digit());
        if whole == 0 || self.peek() != Some(b'.') {
            return (1..=15).contains(&whole).then_some(true);
        }
        self.next();
        let fraction = self.skip(|byte| byte.is_ascii_digit());
        (whole <= 12 && (1..=3).contains(&fraction)).then_some(false)
    }

    fn byte_sequence(&mut self) -> Option<()> {
        self.next();
        let end = self.value.iter().position(|byte| *byte == b':')?;
        let (coded, rest) = self.value.split_at(end);
        self.value = &rest[1..];
        let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        if !coded.iter().all(is_digit) {
            return None;
        }
        let digits = coded.iter().take_while(|byte| **byte != b'=').count();
        let is_sound = coded.len() % 4 == 0
            && coded.len() - digits <= 2
            && coded[digits..].iter().all(|byte| *byte == b'=')
            && digits % 4 == 0;
        self.unsure |= !is_sound;
        Some(())
    }

    fn display_string(&mut self) -> Option<()> {
        self.next();
        self.next().filter(|byte| *byte == b'"')?;
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return String::from_utf8(text).ok().map(drop),
                b'%' => {
                    let mut nibble = || {
                        let digit = self.next()?;
                        let value = char::from(digit).to_digit(16)?;
                        (!digit.is_ascii_uppercase()).then_some(value)
                    };
                    let byte = nibble()? * 16 + nibble()?;
                    text.push(u8::try_from(byte).unwrap());
                }
                byte @ 0x20..=0x7e => text.push(byte),
                _ => return None,
            }
        }
    }
}

//! JSON bodies.

use http::HeaderValue;
use onlyonce_core::fingerprint::canonicalise;
use onlyonce_testkit::fuzz::Fuzz;

use super::Bodies;

const SEEDS: &[&str] = &[
    r#"{"amount":1000,"currency":"eur","to":{"iban":"DE02","name":"J\u00f6rg"},"tags":["a","b"]}"#,
    r#" { "b" : [ 1.0 , -0 , 1e3 , 0.1 , 123456789012345678 ] , "a" : null } "#,
    r#"{"\u0061":true,"b":false}"#,
    r#"["\ud83d\ude02","\ud800","\u001f","\b\f\n\r\t\/\\\""]"#,
    r#"{"a":1,"\u0061":2}"#,
    "9007199254740993",
    "[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001,1e21,1e-7]",
    "{\"\u{fb33}\":1,\"\u{1f602}\":2,\"\u{d7ff}\":3,\"\":4,\"aaaaaaaab\":5,\"aaaaaaaaa\":6}",
    "{\"\u{1f602}\":1,\"\u{e000}\":2,\"\u{efff}\":3,\"\u{10000}\":4}",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    "5e-324",
    "[900719925474099.2,900719925474099.3]",
    "1.7976931348623157e308",
];

const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "\\ud83d",
    "\\ude02",
    "\\u0000",
    "null",
    "true",
    "false",
    "1e",
    "e-",
    "E+",
    ".",
    "-",
    "\"a\":",
    "{\"a\":1}",
    "0000000",
    "\u{fb33}",
    "\u{1f602}",
    "\\n",
    "\"\\u0061\":",
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
];

/// Goal: two bodies have one fingerprint exactly where they are one value to the digit; where a value is
/// in doubt, exactly where they are the same bytes.
#[test]
fn json() {
    let bodies = Bodies::new();
    let content_type = HeaderValue::from_static("application/json");
    let fingerprint = |body: &[u8]| bodies.fingerprint(&content_type, body);
    Fuzz::new("json", 60_000)
        .seeds(SEEDS)
        .words(WORDS)
        .run(|body| {
            let read = read(body);
            let expected = read.as_ref().ok().map(Value::canonical);
            let canonical = canonicalise(body);
            let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            assert_eq!(canonical.as_deref().map(as_text), expected);
            let this = fingerprint(body);
            let spaced = fingerprint(&[body, b" "].concat());
            assert_eq!(this == spaced, canonical.is_some(), "hashed by its meaning");
            match (read, canonical) {
                (Ok(value), Some(canonical)) => {
                    assert_eq!(canonicalise(&canonical).as_ref(), Some(&canonical));
                    let mut disguised = String::new();
                    value.disguise(&mut disguised);
                    assert_eq!(fingerprint(disguised.as_bytes()), this, "{disguised}");
                    assert_ne!(fingerprint(value.changed().canonical().as_bytes()), this);
                    ("", value.shape(), canonical.len() / 16)
                }
                (Err(why), _) => (why, body.len() as u64 / 8, 0),
                (Ok(_), None) => unreachable!("compared above"),
            }
        });
}

#[derive(Clone)]
enum Value {
    Null,
    Bool(bool),
    /// As ECMAScript prints it.
    Number(String),
    Text(String),
    Array(Vec<Value>),
    /// In the order of the text.
    Object(Vec<(String, Value)>),
}

/// The value of a text that has one beyond doubt (section 5 of the contract), or what is against it.
fn read(body: &[u8]) -> Result<Value, &'static str> {
    let text = str::from_utf8(body).map_err(|_| "encoding")?;
    let mut reader = Reader(text);
    let value = reader.value(0)?;
    reader.space();
    match reader.0 {
        "" => Ok(value),
        _ => Err("more"),
    }
}

struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn space(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn eat(&mut self, word: &str) -> bool {
        self.space();
        let rest = self.0.strip_prefix(word);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Result<Value, &'static str> {
        self.space();
        for (word, value) in [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ] {
            if self.eat(word) {
                return Ok(value);
            }
        }
        if self.0.starts_with('"') {
            return self.text().map(Value::Text);
        }
        let is_object = self.eat("{");
        if !is_object && !self.eat("[") {
            return self.number().map(Value::Number);
        }
        if depth == 128 {
            return Err("depth");
        }
        let (mut items, mut members) = (Vec::new(), Vec::new());
        let end = if is_object { "}" } else { "]" };
        while !self.eat(end) {
            if !(items.is_empty() && members.is_empty() || self.eat(",")) {
                return Err("comma");
            }
            self.space();
            if !is_object {
                items.push(self.value(depth + 1)?);
                continue;
            }
            let name = self.text()?;
            if !self.eat(":") {
                return Err("colon");
            }
            if members.iter().any(|(other, _)| *other == name) {
                return Err("duplicate");
            }
            members.push((name, self.value(depth + 1)?));
        }
        Ok(match is_object {
            true => Value::Object(members),
            false => Value::Array(items),
        })
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let mut units = Vec::new();
        self.0 = self.0.strip_prefix('"').ok_or("quote")?;
        loop {
            let mut rest = self.0.chars();
            let character = rest.next().ok_or("open")?;
            self.0 = rest.as_str();
            let plain = match character {
                '"' => return String::from_utf16(&units).map_err(|_| "surrogate"),
                '\0'..' ' => return Err("control"),
                '\\' => {
                    let kind = rest.next().ok_or("open")?;
                    self.0 = rest.as_str();
                    match kind {
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        '"' | '\\' | '/' => kind,
                        'u' => {
                            let digits = self.0.get(..4).ok_or("hex")?;
                            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                                return Err("hex");
                            }
                            units.push(u16::from_str_radix(digits, 16).unwrap());
                            self.0 = &self.0[4..];
                            continue;
                        }
                        _ => return Err("escape"),
                    }
                }
                other => other,
            };
            units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
        }
    }

    fn digits(&mut self) -> Result<&str, &'static str> {
        let text = self.0;
        let end = text.bytes().take_while(u8::is_ascii_digit).count();
        self.0 = &text[end..];
        match end {
            0 => Err("digits"),
            _ => Ok(&text[..end]),
        }
    }

    fn number(&mut self) -> Result<String, &'static str> {
        let text = self.0;
        self.0 = self.0.strip_prefix('-').unwrap_or(self.0);
        let whole = self.digits()?;
        if whole.len() > 1 && whole.starts_with('0') {
            return Err("zero");
        }
        if let Some(rest) = self.0.strip_prefix('.') {
            self.0 = rest;
            self.digits()?;
        }
        if let Some(rest) = self.0.strip_prefix(['e', 'E']) {
            self.0 = rest.strip_prefix(['+', '-']).unwrap_or(rest);
            self.digits()?;
        }
        let text = &text[..text.len() - self.0.len()];
        let double: f64 = text.parse().unwrap();
        if !double.is_finite() {
            return Err("infinite");
        }
        let shortest = shortest(double);
        match decimal(text) == decimal(&shortest) {
            true => Ok(ecmascript(&decimal(&shortest))),
            false => Err("inexact"),
        }
    }
}

/// The shortest digits that mean this double; of several the nearest, and of two as near the even one, which
/// is not always what Rust prints.
fn shortest(double: f64) -> String {
    let shortest = format!("{double:e}");
    let digits = shortest.split('e').next().unwrap_or_default();
    let count = digits.bytes().filter(u8::is_ascii_digit).count();
    // To so many digits as they are nearest, half to even.
    let nearest = format!("{double:.*e}", count - 1);
    match nearest.parse() == Ok(double) {
        true => nearest,
        false => shortest,
    }
}

/// Sign, digits without zeros around them, and the power of ten of the last one.
type Decimal = (bool, String, i64);

fn decimal(text: &str) -> Decimal {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return (false, String::new(), 0);
    }
    let huge = if exponent.starts_with('-') {
        i64::MIN / 2
    } else {
        i64::MAX / 2
    };
    let exponent = exponent.parse().unwrap_or(huge);
    let behind = fraction.len() as i64 - (digits.len() - significant.len()) as i64;
    let significant = significant.trim_start_matches('0').to_owned();
    (negative, significant, exponent - behind)
}

/// Number::toString of ECMAScript, section 6.1.6.1.20.
fn ecmascript((negative, digits, power): &Decimal) -> String {
    if digits.is_empty() {
        return "0".to_owned();
    }
    let count = digits.len() as i64;
    let point = count + power;
    let zeros = |count: i64| "0".repeat(usize::try_from(count).unwrap());
    let text = match point {
        _ if count <= point && point <= 21 => format!("{digits}{}", zeros(point - count)),
        1..=21 => {
            let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap());
            format!("{whole}.{fraction}")
        }
        -5..=0 => format!("0.{}{digits}", zeros(-point)),
        _ => {
            let exponent = point - 1;
            let sign = if exponent < 0 { "" } else { "+" };
            match digits.split_at(1) {
                (first, "") => format!("{first}e{sign}{exponent}"),
                (first, rest) => format!("{first}.{rest}e{sign}{exponent}"),
            }
        }
    };
    format!("{}{text}", if *negative { "-" } else { "" })
}

impl Value {
    /// RFC 8785.
    fn canonical(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Number(text) => text.clone(),
            Self::Text(text) => quoted(text),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::canonical).collect();
                format!("[{}]", items.join(","))
            }
            Self::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                members.sort_by_key(|(name, _)| name.encode_utf16().collect::<Vec<_>>());
                let one = |(name, value): &(String, Self)| {
                    format!("{}:{}", quoted(name), value.canonical())
                };
                let members: Vec<_> = members.into_iter().map(one).collect();
                format!("{{{}}}", members.join(","))
            }
        }
    }

    /// The same value in other bytes.
    fn disguise(&self, out: &mut String) {
        out.push_str("\n ");
        let escaped = |text: &str| -> String {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
            format!("\"{}\"", units.collect::<String>())
        };
        match self {
            Self::Text(text) => out.push_str(&escaped(text)),
            Self::Number(text) if text.contains('e') => out.push_str(&text.replace('e', "E")),
            Self::Number(text) if text.contains('.') => out.push_str(&format!("{text}0e0")),
            Self::Number(text) => out.push_str(&format!("{text}.00")),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { "\t," } else { "" });
                    item.disguise(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().rev().enumerate() {
                    out.push_str(if at > 0 { "\r," } else { "" });
                    out.push_str(&format!("{} :", escaped(name)));
                    value.disguise(out);
                }
                out.push('}');
            }
            other => out.push_str(&other.canonical()),
        }
    }

    /// A value that differs in its last place.
    fn changed(&self) -> Self {
        match self {
            Self::Null => Self::Bool(false),
            Self::Bool(value) => Self::Bool(!value),
            Self::Number(text) => Self::Text(text.clone()),
            Self::Text(text) => Self::Text(format!("{text}\0")),
            Self::Array(items) => match items.split_last() {
                Some((last, rest)) => Self::Array([rest, &[last.changed()]].concat()),
                None => Self::Object(Vec::new()),
            },
            Self::Object(members) => match members.split_last() {
                Some(((name, last), rest)) => {
                    let last = (name.clone(), last.changed());
                    Self::Object([rest, &[last]].concat())
                }
                None => Self::Array(Vec::new()),
            },
        }
    }

    /// Which kinds of values there are, and how deep.
    fn shape(&self) -> u64 {
        let below = |values: &mut dyn Iterator<Item = &Self>| {
            values.fold(0, |shape, value| shape | value.shape() << 8)
        };
        match self {
            Self::Null => 1,
            Self::Bool(_) => 2,
            Self::Number(text) if text.contains('e') => 4,
            Self::Number(text) if text.contains('.') => 8,
            Self::Number(_) => 16,
            Self::Text(_) => 32,
            Self::Array(items) => 64 | below(&mut items.iter()),
            Self::Object(members) => 128 | below(&mut members.iter().map(|(_, value)| value)),
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = "\"".to_owned();
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..' ' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

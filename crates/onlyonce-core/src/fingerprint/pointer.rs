//! JSON pointers (RFC 6901) and what they select from a canonical text.
//!
//! The input of `find` and `prune` is our own canonical output: valid, without white space, no deeper than
//! the canonicaliser allows. That keeps the walk here simple.

use std::fmt;

use super::json::unescaped;

/// A parsed JSON pointer; tokens are held unescaped. The empty pointer is the whole document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pointer(Vec<String>);

/// Why a text is not a JSON pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// A pointer is empty or starts with a slash.
    #[error("a JSON pointer that is not empty must start with a slash")]
    MissingSlash,
    /// A tilde stands only in `~0` and `~1`.
    #[error("in a JSON pointer a tilde must be followed by 0 or 1")]
    Escape,
}

impl Pointer {
    /// Parses the string form of RFC 6901, section 3.
    ///
    /// # Errors
    /// [`PointerError`] names the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Pointer, PointerError> {
        if text.is_empty() {
            return Ok(Pointer(Vec::new()));
        }
        let tokens = text.strip_prefix('/').ok_or(PointerError::MissingSlash)?;
        tokens
            .split('/')
            .map(unescape_token)
            .collect::<Result<_, _>>()
            .map(Pointer)
    }

    /// The unescaped reference tokens, outermost first.
    pub fn tokens(&self) -> &[String] {
        &self.0
    }
}

/// The string form, which parses back to the same pointer.
impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|token| write!(f, "/{}", token.replace('~', "~0").replace('/', "~1")))
    }
}

fn unescape_token(token: &str) -> Result<String, PointerError> {
    let mut plain = String::with_capacity(token.len());
    let mut characters = token.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '~' => match characters.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(PointerError::Escape),
            },
            other => other,
        });
    }
    Ok(plain)
}

/// The canonical text of the value that `pointer` names, if there is one.
pub(super) fn find<'a>(document: &'a [u8], pointer: &Pointer) -> Option<&'a [u8]> {
    pointer.0.iter().try_fold(document, |value, token| {
        children(value)
            .find(|child| child.label.is(token))
            .map(|child| child.value)
    })
}

/// Appends `document` without the values that `pointers` name, names and commas included.
pub(super) fn prune(document: &[u8], pointers: &[Pointer], out: &mut Vec<u8>) {
    let paths: Vec<&[String]> = pointers.iter().map(Pointer::tokens).collect();
    if !paths.iter().any(|path| path.is_empty()) {
        prune_value(document, &paths, out);
    }
}

fn prune_value(value: &[u8], paths: &[&[String]], out: &mut Vec<u8>) {
    let (Some(open @ (b'{' | b'[')), Some(close), false) =
        (value.first(), value.last(), paths.is_empty())
    else {
        out.extend_from_slice(value);
        return;
    };
    out.push(*open);
    let mut first = true;
    for child in children(value) {
        let deeper: Vec<&[String]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(token, _)| child.label.is(token))
            .map(|(_, rest)| rest)
            .collect();
        if deeper.iter().any(|path| path.is_empty()) {
            continue;
        }
        if !first {
            out.push(b',');
        }
        first = false;
        out.extend_from_slice(child.prefix);
        prune_value(child.value, &deeper, out);
    }
    out.push(*close);
}

/// What a token has to match.
enum Label<'a> {
    /// A member's name as it is escaped in the canonical text, without quotes.
    Name(&'a [u8]),
    Index(usize),
}

impl Label<'_> {
    fn is(&self, token: &str) -> bool {
        match self {
            Label::Name(name) => unescaped(name).eq(token.bytes()),
            // Only "0" and numbers without a leading zero or sign are indices.
            Label::Index(index) => match token.as_bytes() {
                [b'0'] => *index == 0,
                [b'1'..=b'9', ..] => token.parse() == Ok(*index),
                _ => false,
            },
        }
    }
}

/// One member or element: its label, the text before its value, its value.
struct Child<'a> {
    label: Label<'a>,
    prefix: &'a [u8],
    value: &'a [u8],
}

/// The members of an object or the elements of an array; nothing for any other value.
fn children(value: &[u8]) -> impl Iterator<Item = Child<'_>> {
    let is_object = value.first() == Some(&b'{');
    let inner = match value {
        [b'{' | b'[', inner @ .., _] => inner,
        _ => &[],
    };
    let mut at = 0;
    let mut index = 0;
    std::iter::from_fn(move || {
        if at >= inner.len() {
            return None;
        }
        let start = at;
        let label = if is_object {
            let name_end = string_end(inner, start);
            at = name_end + 1;
            Label::Name(inner.get(start + 1..name_end - 1)?)
        } else {
            Label::Index(index)
        };
        let (prefix, value_start) = (inner.get(start..at)?, at);
        let value_end = value_end(inner, value_start);
        // Past the value and the comma that follows it, if any.
        at = value_end + 1;
        index += 1;
        Some(Child {
            label,
            prefix,
            value: inner.get(value_start..value_end)?,
        })
    })
}

/// One past the closing quote of the string that starts at `start`.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    loop {
        match text.get(at) {
            None => return text.len(),
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
        }
    }
}

/// One past the value that starts at `start`.
fn value_end(text: &[u8], start: usize) -> usize {
    let mut at = start;
    let mut depth = 0_usize;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string_end(text, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).expect("the test's pointer is valid")
    }

    #[test]
    fn parsing_and_printing() {
        for (text, tokens) in [
            ("", vec![]),
            ("/", vec![""]),
            ("/a/b", vec!["a", "b"]),
            ("/a~1b/m~0n/~01", vec!["a/b", "m~n", "~1"]),
            ("/a/", vec!["a", ""]),
        ] {
            assert_eq!(pointer(text).tokens(), tokens, "{text}");
            assert_eq!(pointer(text).to_string(), text);
        }
        assert_eq!(Pointer::parse("a"), Err(PointerError::MissingSlash));
        assert_eq!(Pointer::parse("/a~"), Err(PointerError::Escape));
        assert_eq!(Pointer::parse("/a~2"), Err(PointerError::Escape));
    }

    /// The document and the answers of RFC 6901, section 5.
    #[test]
    fn examples_of_the_rfc() {
        let document = super::super::canonicalise(
            br#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,
                "m~n":8,"\u0001":9}"#,
        )
        .expect("the document is canonical");
        for (text, value) in [
            ("/foo", "[\"bar\",\"baz\"]"),
            ("/foo/0", "\"bar\""),
            ("/foo/1", "\"baz\""),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
            ("/\u{1}", "9"),
        ] {
            assert_eq!(
                find(&document, &pointer(text)),
                Some(value.as_bytes()),
                "{text}"
            );
        }
        assert_eq!(find(&document, &pointer("")), Some(&document[..]));
        for absent in [
            "/bar", "/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/0/x", "/ /0",
        ] {
            assert_eq!(find(&document, &pointer(absent)), None, "{absent}");
        }
    }

    #[test]
    fn pruning_keeps_the_rest_valid() {
        let document = br#"{"a":{"b":[1,{"c":2},3],"d":"}],"},"e":null,"f":[]}"#;
        for (pointers, left) in [
            (&["/a"][..], r#"{"e":null,"f":[]}"#),
            (&["/e"], r#"{"a":{"b":[1,{"c":2},3],"d":"}],"},"f":[]}"#),
            (
                &["/f", "/a/b/1/c"],
                r#"{"a":{"b":[1,{},3],"d":"}],"},"e":null}"#,
            ),
            (
                &["/a/b/0", "/a/d"],
                r#"{"a":{"b":[{"c":2},3]},"e":null,"f":[]}"#,
            ),
            (&["/a", "/e", "/f"], "{}"),
            (&["/a", "/a/b"], r#"{"e":null,"f":[]}"#),
            (
                &["/nothing", "/a/b/7"],
                str::from_utf8(document).expect("ASCII"),
            ),
            (&[""], ""),
        ] {
            let pointers: Vec<Pointer> = pointers.iter().map(|text| pointer(text)).collect();
            let mut out = Vec::new();
            prune(document, &pointers, &mut out);
            assert_eq!(str::from_utf8(&out), Ok(left), "{pointers:?}");
        }
    }
}

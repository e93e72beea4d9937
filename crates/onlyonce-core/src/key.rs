//! The client's idempotency key: parsed once, valid ever after.
//!
//! The first byte decides how a value is parsed: a quote means an RFC 9651 String, anything else an opaque
//! run of visible ASCII. There is deliberately no fallback from one to the other, because an unquoted UUID is
//! sometimes a valid Token and a broken String is never a key.
//!
//! This module alone decides how a key is parsed from a header, how it was spelled there, under which names
//! others may know it, and which keys a name can mean.
//!
//! Deliberately absent: a requirement for UUIDs (real SDKs send other shapes) and anything that makes or
//! rewrites a key.

mod sensitive;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sfv::{Item, Parser};

pub use sensitive::{Sensitive, holds_card_number};

/// The default for the longest key accepted, in bytes after unwrapping.
pub const DEFAULT_MAX_LENGTH_BYTES: usize = 256;

/// A valid key, unwrapped: `"abc"` and `abc` are equal. Cloning shares the text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(Arc<str>);

/// The longest spelling of a key, in bytes.
pub const MAX_SPELLING_BYTES: usize = 1_024;

/// How a key is written in a header. Every attempt sends these bytes upstream. The spelling parses to its
/// key, and differs from the key only if the client sent a structured string.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Spelling {
    /// The key itself.
    Literal,
    /// These bytes. Once personal data is erased, an empty string replaces the key.
    Quoted(Arc<[u8]>),
}

/// What remains of a quoted key after erasure. No key is empty.
const ERASED: &[u8] = b"\"\"";

impl Spelling {
    /// The spelling of `key` in a header value, without surrounding white space.
    ///
    /// # Errors
    /// [`KeyError::SpellingTooLong`] beyond [`MAX_SPELLING_BYTES`].
    pub fn of(key: &Key, value: &[u8]) -> Result<Self, KeyError> {
        let value = trim_optional_white_space(value);
        if value.len() > MAX_SPELLING_BYTES {
            return Err(KeyError::SpellingTooLong);
        }
        Ok(match value == key.as_str().as_bytes() {
            true => Self::Literal,
            false => Self::Quoted(Arc::from(value)),
        })
    }

    /// The header value for `key`.
    pub fn value<'a>(&'a self, key: &'a Key) -> Cow<'a, [u8]> {
        match self {
            Self::Literal => key.as_str().as_bytes().into(),
            Self::Quoted(value) => match value.strip_prefix(ERASED) {
                Some(parameters) => [key.quoted().as_bytes(), parameters].concat().into(),
                None => Cow::Borrowed(value),
            },
        }
    }

    /// The spelling of `key` with the key itself erased.
    pub(crate) fn without(self, key: &Key) -> Option<Self> {
        match &self {
            Self::Literal => Some(self),
            Self::Quoted(value) if value.starts_with(ERASED) => Some(self),
            Self::Quoted(value) => {
                let parameters = value.strip_prefix(key.quoted().as_bytes())?;
                Some(Self::Quoted([ERASED, parameters].concat().into()))
            }
        }
    }
}

/// Hides the spelling, which contains the key: keys never reach a log.
impl fmt::Debug for Spelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Literal => "Spelling(literal)",
            Self::Quoted(_) => "Spelling(quoted)",
        })
    }
}

/// A route's requirements for a key beyond its syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRules {
    /// The longest key accepted, in bytes after unwrapping.
    pub max_length: usize,
    /// The shortest key accepted, in bytes after unwrapping. An empty key is refused even at 0.
    pub min_length: usize,
    /// Whether keys that look like personal data are refused.
    pub reject_sensitive: bool,
}

impl Default for KeyRules {
    fn default() -> Self {
        KeyRules {
            max_length: DEFAULT_MAX_LENGTH_BYTES,
            min_length: 1,
            reject_sensitive: true,
        }
    }
}

/// Why a header value is not a key. The message is fit for a client and never repeats the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing is left after trimming and unwrapping.
    #[error("The key is empty.")]
    Empty,
    /// Longer than the route allows.
    #[error("The key is longer than {max} bytes.")]
    TooLong {
        /// The longest length allowed, in bytes.
        max: usize,
    },
    /// Shorter than the route demands.
    #[error("The key is shorter than {min} bytes.")]
    TooShort {
        /// The shortest length allowed, in bytes.
        min: usize,
    },
    /// The header value is longer than any spelling may be.
    #[error("The key's header is longer than {MAX_SPELLING_BYTES} bytes.")]
    SpellingTooLong,
    /// A space inside a key that is not quoted.
    #[error("The key contains a space; a key with spaces must be a quoted string.")]
    Space,
    /// A control or non-ASCII byte inside a key that is not quoted.
    #[error("The key contains a character that is not visible ASCII.")]
    Character,
    /// Starts with a quote but is not a String of RFC 9651.
    #[error("The key starts with a quote but is not a valid structured field string (RFC 9651).")]
    Malformed,
    /// Looks like personal data, which must not be in an identifier that is stored and displayed.
    #[error("The key looks like {0}; keys must not carry personal data, send a random one.")]
    Sensitive(Sensitive),
}

impl Key {
    /// Parses one header value.
    ///
    /// # Errors
    /// The error says what is wrong with the value, without repeating any of it.
    pub fn parse(value: &[u8], rules: &KeyRules) -> Result<Key, KeyError> {
        let value = trim_optional_white_space(value);
        let key = match value.first() {
            None => return Err(KeyError::Empty),
            Some(b'"') => unwrap_string(value)?,
            Some(_) => opaque(value)?,
        };
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        if key.len() > rules.max_length {
            return Err(KeyError::TooLong {
                max: rules.max_length,
            });
        }
        if key.len() < rules.min_length {
            return Err(KeyError::TooShort {
                min: rules.min_length,
            });
        }
        if rules.reject_sensitive
            && let Some(kind) = Sensitive::detect(&key)
        {
            return Err(KeyError::Sensitive(kind));
        }
        Ok(Key(key))
    }

    /// The key that a query names by a header value. No route's rules apply: they were applied when the key
    /// was used. A value that does not start with a quote is taken literally, since no other key could be
    /// meant.
    ///
    /// # Errors
    /// The error says what is wrong with the value, without repeating any of it.
    pub fn asked_for(value: &str) -> Result<Key, KeyError> {
        match Key::parse(value.as_bytes(), &ANY) {
            Err(KeyError::Space | KeyError::Character) => Ok(Key(Arc::from(value))),
            read => read,
        }
    }

    /// The keys that a recipient of a key may mean by `name`: the text itself and, if it starts with a quote,
    /// the key that it spells as a header value.
    pub fn meant_by(name: &str) -> Vec<Key> {
        let mut keys = vec![Key::from_stored(name)];
        if name.starts_with('"')
            && let Ok(spelled) = Key::parse(name.as_bytes(), &ANY)
        {
            keys.push(spelled);
        }
        keys
    }

    /// The names under which a recipient may know this key: the header value of its first attempt, and the
    /// key itself. Without a recorded `spelling`, both forms.
    pub fn names<'a>(&'a self, spelling: Option<&'a Spelling>) -> Vec<Cow<'a, str>> {
        let text = Cow::Borrowed(self.as_str());
        match spelling {
            Some(Spelling::Literal) => vec![text],
            Some(Spelling::Quoted(value)) => vec![String::from_utf8_lossy(value), text],
            None => vec![text, Cow::Owned(self.quoted())],
        }
    }

    /// A header value that parses to this key: the key itself if possible, otherwise a structured string. A
    /// dot segment is also quoted, because a client would interpret it in the path of a URL, encoded or not.
    pub fn header_value(&self) -> Cow<'_, str> {
        let is_dot_segment = matches!(self.as_str(), "." | "..");
        match self.0.starts_with('"') || self.0.contains(' ') || is_dot_segment {
            true => Cow::Owned(self.quoted()),
            false => Cow::Borrowed(self.as_str()),
        }
    }

    /// The key as a structured string (RFC 9651, 4.1.6).
    fn quoted(&self) -> String {
        let mut out = String::with_capacity(self.0.len() + 2);
        out.push('"');
        for character in self.0.chars() {
            if matches!(character, '"' | '\\') {
                out.push('\\');
            }
            out.push(character);
        }
        out.push('"');
        out
    }

    /// A key read back from a store, where only parsed keys are ever written.
    pub fn from_stored(stored: &str) -> Key {
        Key(Arc::from(stored))
    }

    /// The unwrapped text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The rules for a key in a query.
const ANY: KeyRules = KeyRules {
    max_length: usize::MAX,
    min_length: 1,
    reject_sensitive: false,
};

/// Hides the key: keys never reach a log, and `{:?}` of a struct that contains one is how they would.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn trim_optional_white_space(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn unwrap_string(value: &[u8]) -> Result<Arc<str>, KeyError> {
    let item: Item = Parser::new(value)
        .parse()
        .map_err(|_| KeyError::Malformed)?;
    let text = item.bare_item.as_string().ok_or(KeyError::Malformed)?;
    Ok(Arc::from(text.as_str()))
}

fn opaque(value: &[u8]) -> Result<Arc<str>, KeyError> {
    for byte in value {
        match byte {
            0x21..=0x7E => {}
            b' ' => return Err(KeyError::Space),
            _ => return Err(KeyError::Character),
        }
    }
    str::from_utf8(value)
        .map(Arc::from)
        .map_err(|_| KeyError::Character)
}

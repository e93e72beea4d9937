//! `application/x-www-form-urlencoded` bodies: pairs sorted by name.
//!
//! Only the order is normalised. The bytes of each pair stay as received, so `%41` and `A` are different
//! values: refusing a retry that was encoded differently is safe, replaying another request is not. Names are
//! compared decoded for the same reason: `a=1&%61=2` gives a server two values of one name, and their order
//! is part of the request.

use std::cmp::Ordering;

use super::frame::{write_framed, write_length};

/// Bodies with more pairs than this are hashed raw.
pub const MAX_FORM_PAIRS: usize = 16_384;

/// Appends the sorted pairs of `body`; `None`, with `out` untouched, if there are too many.
pub(super) fn write_form(body: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut pairs: Vec<&[u8]> = body
        .split(|byte| *byte == b'&')
        .take(MAX_FORM_PAIRS + 1)
        .collect();
    if pairs.len() > MAX_FORM_PAIRS {
        return None;
    }
    pairs.sort_by(|a, b| compare(a, b));
    write_length(pairs.len(), out);
    for pair in pairs {
        write_framed(pair, out);
    }
    Some(())
}

fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (raw_name(a), raw_name(b));
    // The common case needs neither decoding nor a search for brackets.
    if !a
        .iter()
        .chain(b)
        .any(|byte| matches!(byte, b'%' | b'+' | b'['))
    {
        return a.cmp(b);
    }
    sort_name(a).cmp(sort_name(b))
}

fn raw_name(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// The decoded name, cut where order begins to matter.
///
/// In `items[][id]=1&items[][n]=2&items[][id]=3` it is the order of *different* names that tells
/// Rails and PHP which item a field belongs to, so all names below one `[]` sort as one.
fn sort_name(raw: &[u8]) -> impl Iterator<Item = u8> {
    let mut decoded = decode(raw).peekable();
    let mut seen = [0_u8; 2];
    std::iter::from_fn(move || {
        decoded.peek()?;
        if seen == *b"[]" {
            return None;
        }
        let byte = decoded.next()?;
        seen = [seen[1], byte];
        Some(byte)
    })
}

/// Percent-decoding as forms do it; a malformed escape stands for itself.
pub(super) fn decode(raw: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = raw;
    std::iter::from_fn(move || {
        let (byte, tail) = rest.split_first()?;
        rest = tail;
        Some(match (byte, tail) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (nibble(*high), nibble(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            _ => *byte,
        })
    })
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        write_form(body.as_bytes(), &mut out).map(|()| out)
    }

    #[test]
    fn order_of_different_names_does_not_matter() {
        assert_eq!(form("a=1&b=2&c"), form("c&b=2&a=1"));
        assert_eq!(
            form("card[exp]=1&card[number]=2"),
            form("card[number]=2&card[exp]=1")
        );
        assert_eq!(form("a[]=1&b=2&a[]=3"), form("b=2&a[]=1&a[]=3"));
    }

    #[test]
    fn order_of_equal_names_does() {
        assert_ne!(form("a=1&a=2"), form("a=2&a=1"));
        assert_ne!(form("a=1&%61=2"), form("%61=2&a=1"));
        assert_ne!(form("x+y=1&x%20y=2"), form("x%20y=2&x+y=1"));
        assert_ne!(
            form("i[][id]=1&i[][n]=2&i[][id]=3&i[][n]=4"),
            form("i[][id]=1&i[][id]=3&i[][n]=2&i[][n]=4"),
        );
        assert_eq!(
            form("i[][id]=1&i[][n]=2&z=1"),
            form("z=1&i[][id]=1&i[][n]=2")
        );
    }

    #[test]
    fn nothing_else_is_normalised() {
        for (a, b) in [
            ("a=A", "a=%41"),
            ("a", "a="),
            ("a=1", "a=1&"),
            ("a=1&b=2", "a=1%26b=2"),
            ("", "="),
        ] {
            assert_ne!(form(a), form(b), "{a} {b}");
        }
    }

    #[test]
    fn too_many_pairs_are_raw() {
        assert!(form(&"&".repeat(MAX_FORM_PAIRS - 1)).is_some());
        assert!(form(&"&".repeat(MAX_FORM_PAIRS)).is_none());
    }
}

//! Detects keys that are plainly personal data.
//!
//! The whole key must have the shape. A search for substrings would refuse order numbers and UUIDs, and a
//! refused key is an outage for the client that sends it.

use std::fmt;

/// The fewest and most digits of a payment card number.
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;
/// The fewest and most digits of an international telephone number (E.164).
const PHONE_DIGITS: std::ops::RangeInclusive<usize> = 8..=15;
/// The longest local part of an e-mail address, in bytes (RFC 5321).
const MAX_LOCAL_PART_BYTES: usize = 64;
/// The longest label of a domain name, in bytes (RFC 1035).
const MAX_LABEL_BYTES: usize = 63;

/// The kind of personal data that a key looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sensitive {
    /// `name@example.com`.
    Email,
    /// A payment card number of a known issuer that passes the Luhn check.
    CardNumber,
    /// An E.164 telephone number with its plus sign.
    PhoneNumber,
    /// A number shaped NNN-NN-NNNN.
    NationalId,
}

impl fmt::Display for Sensitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sensitive::Email => "an e-mail address",
            Sensitive::CardNumber => "a payment card number",
            Sensitive::PhoneNumber => "a telephone number",
            Sensitive::NationalId => "a national identity number",
        })
    }
}

impl Sensitive {
    /// The kind of personal data that `key` as a whole looks like, if any.
    pub(super) fn detect(key: &str) -> Option<Sensitive> {
        // Only a quoted key can have spaces at its ends; they do not change the number.
        let key = key.trim_matches(' ');
        if is_national_id(key.as_bytes()) {
            Some(Sensitive::NationalId)
        } else if is_card_number(key) {
            Some(Sensitive::CardNumber)
        } else if is_phone_number(key) {
            Some(Sensitive::PhoneNumber)
        } else if is_email(key) {
            Some(Sensitive::Email)
        } else {
            None
        }
    }
}

fn is_national_id(key: &[u8]) -> bool {
    key.len() == 11
        && key.iter().enumerate().all(|(at, byte)| match at {
            3 | 6 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn is_email(key: &str) -> bool {
    let Some((local, domain)) = key.split_once('@') else {
        return false;
    };
    let local_ok = (1..=MAX_LOCAL_PART_BYTES).contains(&local.len())
        && local.split('.').all(|atom| {
            !atom.is_empty()
                && atom
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&b))
        });
    // The root of all names may be written.
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    // A last label of letters distinguishes `a@example.com` from `order@v1` and `order@v1.2`.
    let Some((parents, top)) = domain.rsplit_once('.') else {
        return false;
    };
    local_ok && is_top_level(top) && parents.split('.').all(is_label)
}

fn is_top_level(label: &str) -> bool {
    (label.len() >= 2 && label.len() <= MAX_LABEL_BYTES)
        && (label.bytes().all(|b| b.is_ascii_alphabetic())
            || (label.to_ascii_lowercase().starts_with("xn--") && is_label(label)))
}

fn is_label(label: &str) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_phone_number(key: &str) -> bool {
    let Some(number) = key.strip_prefix('+') else {
        return false;
    };
    if !number
        .bytes()
        .all(|b| b.is_ascii_digit() || b" -.()".contains(&b))
    {
        return false;
    }
    let mut digits = number.bytes().filter(u8::is_ascii_digit);
    let first = digits.next();
    first.is_some_and(|digit| digit != b'0') && PHONE_DIGITS.contains(&(1 + digits.count()))
}

fn is_card_number(key: &str) -> bool {
    let mut digits = [0_u8; 19];
    let mut count = 0;
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' => {
                let Some(slot) = digits.get_mut(count) else {
                    return false;
                };
                *slot = byte - b'0';
                count += 1;
            }
            // Any number of separators, since the whole key is the number.
            b' ' | b'-' => {}
            _ => return false,
        }
    }
    let digits = &digits[..count];
    CARD_DIGITS.contains(&count) && has_known_issuer(digits) && passes_luhn(digits)
}

/// Whether `text` contains a payment card number: 13 to 19 digits, in one run or in groups separated by one
/// space or dash each, of a known issuer, that pass the Luhn check. Longer numbers do not count, nor do
/// digits after a letter, a point, a plus sign or an underscore, or before a letter or an underscore.
///
/// One pass; each digit group begins at most as many candidates as a card has digits.
pub fn holds_card_number(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let touches =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'+');
        let free = !at
            .checked_sub(1)
            .is_some_and(|before| touches(&text[before]));
        if free && begins_card_number(&text[at..]) {
            return true;
        }
        // Skip to the next group: a card number does not begin in the middle of a run of digits.
        while at < text.len() && text[at].is_ascii_digit() {
            at += 1;
        }
    }
    false
}

/// Whether `text`, which begins with a digit, begins with a card number that ends at the end of a group.
fn begins_card_number(text: &[u8]) -> bool {
    let mut digits = [0_u8; 19];
    let mut count = 0;
    for (at, byte) in text.iter().enumerate() {
        let next = text.get(at + 1);
        match byte {
            b'0'..=b'9' => {
                let Some(slot) = digits.get_mut(count) else {
                    return false;
                };
                *slot = byte - b'0';
                count += 1;
                let ends = !next.is_some_and(|next| next.is_ascii_alphanumeric() || *next == b'_');
                let whole = &digits[..count];
                if ends
                    && CARD_DIGITS.contains(&count)
                    && has_known_issuer(whole)
                    && passes_luhn(whole)
                {
                    return true;
                }
            }
            b' ' | b'-' if next.is_some_and(u8::is_ascii_digit) => {}
            _ => return false,
        }
    }
    false
}

fn has_known_issuer(digits: &[u8]) -> bool {
    let length = digits.len();
    let prefix = |take: usize| {
        digits[..take]
            .iter()
            .fold(0_u32, |n, d| n * 10 + u32::from(*d))
    };
    let (two, three, four, six) = (prefix(2), prefix(3), prefix(4), prefix(6));
    let visa = digits[0] == 4 && matches!(length, 13 | 16 | 19);
    let mastercard = length == 16 && matches!((two, four), (51..=55, _) | (_, 2221..=2720));
    let amex = length == 15 && matches!(two, 34 | 37);
    let discover = length >= 16
        && (four == 6011
            || two == 65
            || (644..=649).contains(&three)
            || (622_126..=622_925).contains(&six));
    let diners = length >= 14 && (matches!(two, 36 | 38 | 39) || matches!(three, 300..=305 | 309));
    let jcb = length >= 16 && (3528..=3589).contains(&four);
    let union_pay = length >= 16 && two == 62;
    let maestro = matches!(four, 5018 | 5020 | 5038 | 5893 | 6304 | 6759 | 6761..=6763);
    visa || mastercard || amex || discover || diners || jcb || union_pay || maestro
}

fn passes_luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| match (at % 2, u32::from(*digit)) {
            (0, digit) => digit,
            (_, digit) if digit > 4 => digit * 2 - 9,
            (_, digit) => digit * 2,
        })
        .sum();
    sum.is_multiple_of(10)
}

//! URL-encoded forms.

use std::collections::BTreeMap;

use http::HeaderValue;
use onlyonce_testkit::fuzz::Fuzz;

use super::Bodies;

const SEEDS: &[&str] = &[
    "amount=1000&currency=eur&to=x",
    "a=1&%61=2&a+b=3&a%20b=4",
    "items[][id]=1&items[][n]=2&items[][id]=3&z=1",
    "items%5B%5D%5Bid%5D=1&items[][n]=2",
    "a&a=&=a&&=",
    "a=%zz&a=%4&%=1",
];

const WORDS: &[&str] = &[
    "&", "=", "%61", "a", "+", "%20", "[]", "%5B", "%5d", "[", "]", "%", "&a=1",
];

/// Goal: two forms have one fingerprint exactly where each name has the same values in the same order. All
/// names below one `[]` are one name.
#[test]
fn forms() {
    let bodies = Bodies::new();
    let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    let fingerprint = |body: &[u8]| bodies.fingerprint(&content_type, body);
    Fuzz::new("form", 20_000)
        .seeds(SEEDS)
        .words(WORDS)
        .max_bytes(60)
        .run(|body| {
            let this = (fingerprint(body), names(body));
            let pairs: Vec<&[u8]> = body.split(|byte| *byte == b'&').collect();
            let mut same = 0;
            let mut compare = |other: &[&[u8]]| {
                let other = other.join(&b'&');
                let is_same = names(&other) == this.1;
                assert_eq!(
                    fingerprint(&other) == this.0,
                    is_same,
                    "\"{}\"",
                    other.escape_ascii()
                );
                same += usize::from(is_same);
            };
            // In another order, with one pair twice, without one, and with one changed.
            let reversed: Vec<&[u8]> = pairs.iter().rev().copied().collect();
            compare(&reversed);
            let at = body.len() % pairs.len();
            let mut other = pairs.clone();
            other.rotate_left(at);
            compare(&other);
            other.clone_from(&pairs);
            other.swap(0, at);
            compare(&other);
            other.insert(0, pairs[at]);
            compare(&other);
            let changed = [pairs[at], b"+"].concat();
            other[0] = &changed;
            compare(&other);
            (pairs.len(), this.1.len(), same)
        });
}

/// The pairs as they came, by the name that a server reads.
fn names(body: &[u8]) -> BTreeMap<Vec<u8>, Vec<&[u8]>> {
    let mut names = BTreeMap::<_, Vec<_>>::new();
    for pair in body.split(|byte| *byte == b'&') {
        let name = pair.splitn(2, |byte| *byte == b'=').next().unwrap();
        let name = decoded(name);
        let below = name.windows(2).position(|two| two == b"[]");
        let name = match below {
            Some(at) => name[..at + 2].to_vec(),
            None => name,
        };
        names.entry(name).or_default().push(pair);
    }
    names
}

fn decoded(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < name.len() {
        let escape = name.get(at + 1..at + 3).filter(|_| name[at] == b'%');
        let escape = escape.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        if let Some(digits) = escape {
            let digits = str::from_utf8(digits).unwrap();
            out.push(u8::from_str_radix(digits, 16).unwrap());
            at += 3;
        } else {
            out.push(if name[at] == b'+' { b' ' } else { name[at] });
            at += 1;
        }
    }
    out
}

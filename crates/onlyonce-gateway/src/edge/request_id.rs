//! An id for each request, which correlates the logs of the client, this gateway and the backend.
//!
//! It is unrelated to keys: two attempts of one operation are two requests.

use std::sync::{
    LazyLock,
    atomic::{AtomicU64, Ordering},
};

use http::{HeaderMap, HeaderName, HeaderValue};
use onlyonce_core::Key;

/// The header that carries the id.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is taken over from a client, in bytes.
const MAX_BYTES: usize = 128;

/// Request extension: the id of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) HeaderValue);

impl RequestId {
    /// The client's id, if it sent exactly one, short and of printable ASCII; otherwise a new one.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(&X_REQUEST_ID).iter();
        let only = values.next().filter(|_| values.next().is_none());
        Self(match only.filter(|value| is_plain(value)) {
            Some(value) => value.clone(),
            None => fresh(),
        })
    }

    /// The id for the log; masked if it contains the key in any spelling.
    pub(super) fn shown<'k>(&self, keys: impl IntoIterator<Item = &'k HeaderValue>) -> &str {
        let id = self.0.to_str().unwrap_or_default();
        let lower = id.to_ascii_lowercase();
        let holds = |text: &str| !text.is_empty() && lower.contains(&text.to_ascii_lowercase());
        for value in keys {
            let Ok(value) = value.to_str() else { continue };
            let value = value.trim();
            let key = Key::asked_for(value);
            let names = key.as_ref().map(|key| key.names(None)).unwrap_or_default();
            let bare = value.trim_matches('"');
            if holds(bare) || names.iter().any(|name| holds(name.trim_matches('"'))) {
                return "(the key)";
            }
        }
        id
    }
}

fn is_plain(value: &HeaderValue) -> bool {
    (1..=MAX_BYTES).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// A unique id: a random number of this process, and a counter.
fn fresh() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| {
        let mut bytes = [0; 8];
        aws_lc_rs::rand::fill(&mut bytes)
            .expect("the system's random source does not fail on Linux");
        u64::from_ne_bytes(bytes)
    });
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut digits = [0; 32];
    for (at, digit) in digits.iter_mut().enumerate() {
        let number = if at < 16 { *PROCESS } else { count };
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * (at % 16)) & 0xf) as usize];
    }
    HeaderValue::from_bytes(&digits).expect("hex digits make a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_holds_the_key_is_not_shown() {
        let shown = |id: &'static str, key: &'static str| {
            let id = RequestId(HeaderValue::from_static(id));
            id.shown([&HeaderValue::from_static(key)]).to_owned()
        };
        for (id, key) in [
            ("abc", "abc"),
            ("abc", "\"abc\""),
            ("ABC", "\"abc\";v=2"),
            ("req-abc-1", "abc"),
            ("\"abc\"", "abc"),
            ("a\"b", "\"a\\\"b\""),
            ("a\\\"b", "a\"b"),
            ("x-abc", "\"abc"),
        ] {
            assert_eq!(shown(id, key), "(the key)", "{id} {key}");
        }
        assert_eq!(shown("req-1", "abc"), "req-1");
        assert_eq!(shown("req-1", ""), "req-1");
    }

    #[test]
    fn a_good_one_is_kept_and_a_bad_one_replaced() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(X_REQUEST_ID, HeaderValue::from_str(value).unwrap());
            }
            RequestId::of(&headers).0.to_str().unwrap().to_owned()
        };
        assert_eq!(of(&["abc-1"]), "abc-1");
        let long = "x".repeat(MAX_BYTES + 1);
        for bad in [&[][..], &[""], &["two words"], &["a", "b"], &[&long]] {
            let made = of(bad);
            assert_eq!(made.len(), 32, "{bad:?}");
            assert_ne!(made, of(bad));
        }
    }
}

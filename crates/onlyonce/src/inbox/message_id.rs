//! The source of a message's id.

use onlyonce_core::fingerprint::Pointer;

/// The longest id that a message may have, in bytes.
pub const MAX_MESSAGE_ID_BYTES: usize = 255;

/// Where the sender of a message put its id, by which [`process_once`](crate::Transactions::process_once)
/// recognises it.
///
/// Deliberately absent: offsets, sequence numbers and delivery tags. They are positions in a broker, and a
/// message that was sent twice has two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageIdFrom {
    /// In the header of this name, in any letter case.
    Header(String),
    /// In the JSON content, at this place: a string or an integer.
    Pointer(Pointer),
}

impl MessageIdFrom {
    /// The id of a message with these headers and this content; `None` if it is missing, repeated, empty, too
    /// long, or not an id.
    ///
    /// A message without an id must not be processed as if it had one: refuse it, or put it aside.
    pub fn of<'h>(
        &self,
        headers: impl IntoIterator<Item = (&'h str, &'h str)>,
        body: &[u8],
    ) -> Option<String> {
        let id = match self {
            Self::Header(name) => {
                let mut values = headers
                    .into_iter()
                    .filter(|(header, _)| header.eq_ignore_ascii_case(name))
                    .map(|(_, value)| value);
                let value = values.next()?;
                if values.next().is_some() {
                    return None;
                }
                value.to_owned()
            }
            Self::Pointer(pointer) => {
                let document: serde_json::Value = serde_json::from_slice(body).ok()?;
                match document.pointer(&pointer.to_string())? {
                    serde_json::Value::String(text) => text.clone(),
                    // A fraction can be written in more than one way.
                    serde_json::Value::Number(number) if !number.is_f64() => number.to_string(),
                    _ => return None,
                }
            }
        };
        (1..=MAX_MESSAGE_ID_BYTES).contains(&id.len()).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_a_header() {
        let from = MessageIdFrom::Header("Nats-Msg-Id".to_owned());
        let of = |headers: &[(&'static str, &'static str)]| from.of(headers.iter().copied(), b"");
        assert_eq!(
            of(&[("a", "b"), ("nats-msg-id", "m1")]).as_deref(),
            Some("m1")
        );
        assert_eq!(of(&[("a", "b")]), None);
        assert_eq!(of(&[("Nats-Msg-Id", "")]), None);
        let twice = [("Nats-Msg-Id", "m1"), ("nats-msg-id", "m2")];
        assert_eq!(of(&twice), None, "one of them may be forged");
        let long = "x".repeat(MAX_MESSAGE_ID_BYTES + 1);
        assert_eq!(from.of([("nats-msg-id", long.as_str())], b""), None);
        assert!(from.of([("nats-msg-id", &long[1..])], b"").is_some());
    }

    #[test]
    fn from_the_content() {
        let of = |pointer: &str, body: &str| {
            let from = MessageIdFrom::Pointer(Pointer::parse(pointer).unwrap());
            from.of([("id", "not this")], body.as_bytes())
        };
        let body = r#"{"event":{"id":"e1","number":7,"share":0.5,"none":null},"a/b":"c"}"#;
        assert_eq!(of("/event/id", body).as_deref(), Some("e1"));
        assert_eq!(of("/event/number", body).as_deref(), Some("7"));
        assert_eq!(of("/a~1b", body).as_deref(), Some("c"));
        for absent in ["/event", "/event/share", "/event/none", "/id", ""] {
            assert_eq!(of(absent, body), None, "{absent}");
        }
        assert_eq!(of("/event/id", "no JSON"), None);
        assert_eq!(of("/id", r#"{"id":""}"#), None);
    }
}

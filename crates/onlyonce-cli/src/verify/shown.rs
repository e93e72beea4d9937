//! Requests and answers as text: short, and without credentials.
//!
//! Values of the user's own headers are never shown, whatever their names, nor is a query. JSON members that
//! look like secrets are masked in requests and answers alike.

use http::{HeaderName, header};
use onlyonce_gateway::http_client::{Answer, Outgoing};
use serde_json::{Map, Value};

use super::exchange::{Exchange, Inspect as _};

/// The maximum length of a shown body, in characters.
const MOST_OF_A_BODY: usize = 240;
/// The maximum length of a shown key, in characters.
const MOST_OF_A_KEY: usize = 48;
const MASKED: &str = "…";

/// Headers whose values reveal nothing about the caller.
const HARMLESS: [HeaderName; 3] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    header::CONTENT_ENCODING,
];

/// Headers of an answer that are shown.
const TELLING: [&str; 14] = [
    "content-type",
    "location",
    "etag",
    "link",
    "retry-after",
    "idempotency-key",
    "idempotency-key-expires",
    "idempotency-expires",
    "x-idempotency-expires",
    "x-idempotent-replayed",
    "idempotent-replayed",
    "idempotency-replayed",
    "idempotency-replay",
    "x-idempotency-replayed",
];

/// Parts of names that indicate secrets.
const SECRETS: [&str; 11] = [
    "password",
    "passwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "authorization",
    "credential",
    "card",
    "cvc",
    "iban",
];

/// The parts of a message: a head such as `POST /payments`, headers, body.
pub(super) struct Shown {
    pub(super) head: String,
    pub(super) headers: Vec<String>,
    pub(super) body: String,
}

impl Shown {
    /// On one line.
    pub(super) fn line(&self) -> String {
        let mut parts = vec![self.head.clone()];
        parts.extend(self.headers.iter().cloned());
        if !self.body.is_empty() {
            parts.push(self.body.clone());
        }
        parts.join("  ")
    }
}

/// A request as text.
pub(super) fn request(request: &Outgoing) -> Shown {
    let query = match &request.endpoint.query {
        Some(query) if query.contains("onlyonce_verify") => "?…onlyonce_verify=1",
        Some(_) => "?…",
        None => "",
    };
    let key = |key: &http::HeaderValue| {
        let text: String = key.as_bytes().iter().map(visible).collect();
        format!("{}: {}", request.key_header, cut(&text, MOST_OF_A_KEY))
    };
    let headers = request.headers.iter().map(|(name, value)| {
        let shown = HARMLESS
            .contains(name)
            .then(|| value.to_str().ok())
            .flatten();
        format!("{name}: {}", shown.unwrap_or(MASKED))
    });
    let place = format!(
        "{}{}{query}",
        request.endpoint.authority, request.endpoint.path
    );
    Shown {
        head: format!("{} {place}", request.method),
        headers: request.keys.iter().map(key).chain(headers).collect(),
        body: body(&request.body),
    }
}

/// An answer as text.
pub(super) fn answer(exchange: &Exchange) -> Shown {
    match &exchange.answer {
        Ok(answer) => Shown {
            head: answer.status.to_string(),
            headers: telling(answer),
            body: body(&answer.body),
        },
        Err(why) => Shown {
            head: format!("no answer: {why}"),
            headers: Vec::new(),
            body: String::new(),
        },
    }
}

fn telling(answer: &Answer) -> Vec<String> {
    let line = |name: &&str| {
        let value = answer.header(name)?;
        Some(format!("{name}: {}", cut(value, MOST_OF_A_BODY)))
    };
    TELLING.iter().filter_map(line).collect()
}

fn body(bytes: &[u8]) -> String {
    if let Ok(mut value) = serde_json::from_slice::<Value>(bytes) {
        mask(&mut value);
        return cut(&value.to_string(), MOST_OF_A_BODY);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => cut(&text.escape_debug().to_string(), MOST_OF_A_BODY),
        Err(_) => format!("({} bytes, binary)", bytes.len()),
    }
}

fn mask(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(mask),
        Value::Object(members) => mask_members(members),
        _ => {}
    }
}

fn mask_members(members: &mut Map<String, Value>) {
    for (name, item) in members.iter_mut() {
        let name = name.to_ascii_lowercase();
        if SECRETS.iter().any(|secret| name.contains(secret)) {
            *item = MASKED.into();
        } else {
            mask(item);
        }
    }
}

/// A byte of a key as printable text.
fn visible(byte: &u8) -> String {
    match byte {
        b' '..=b'~' => char::from(*byte).to_string(),
        byte => format!("\\x{byte:02x}"),
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};

    use super::*;
    use onlyonce_gateway::http_client::Endpoint;

    #[test]
    fn credentials_are_not_shown() {
        let sent = Outgoing {
            method: Method::POST,
            endpoint: Endpoint::parse("http://a:1/b?api_key=hunter2").unwrap(),
            headers: vec![
                (
                    header::AUTHORIZATION,
                    HeaderValue::from_static("Bearer hunter2"),
                ),
                (
                    HeaderName::from_static("x-mine"),
                    HeaderValue::from_static("hunter2"),
                ),
                (header::CONTENT_TYPE, HeaderValue::from_static("text/plain")),
            ],
            key_header: HeaderName::from_static("idempotency-key"),
            keys: vec![HeaderValue::from_static("k")],
            body: r#"{"a":[{"client_secret":"hunter2","amount":1}]}"#.into(),
        };
        let line = request(&sent).line();
        assert!(!line.contains("hunter2"), "{line}");
        for part in [
            "idempotency-key: k",
            "content-type: text/plain",
            r#""amount":1"#,
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn long_and_binary_bodies_are_short() {
        assert_eq!(body(b"\xff\x00"), "(2 bytes, binary)");
        assert!(body("x".repeat(9_999).as_bytes()).ends_with("… (9999 bytes)"));
    }
}

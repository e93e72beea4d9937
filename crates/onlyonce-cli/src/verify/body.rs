//! Bodies: a template, and variants with the same or another meaning.

use bytes::Bytes;
use serde_json::Value;

const UNIQUE: &str = "{{unique}}";
const UNIQUE_NUMBER: &str = "{{unique_number}}";

/// A body with placeholders for what differs from key to key.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    varies: bool,
}

impl Template {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&bytes);
        let varies = text.contains(UNIQUE) || text.contains(UNIQUE_NUMBER);
        Self { bytes, varies }
    }

    /// Whether another `unique` makes another body.
    pub(super) fn varies(&self) -> bool {
        self.varies
    }

    pub(super) fn is_json(&self) -> bool {
        serde_json::from_slice::<Value>(&self.fill("0")).is_ok()
    }

    /// The body for `unique`, which is hexadecimal.
    pub(super) fn fill(&self, unique: &str) -> Bytes {
        match std::str::from_utf8(&self.bytes) {
            Ok(text) if self.varies => text
                .replace(UNIQUE_NUMBER, &number(unique))
                .replace(UNIQUE, unique)
                .into(),
            _ => self.bytes.clone().into(),
        }
    }
}

/// Nine digits, the first of them not zero, for a hexadecimal word.
pub(super) fn number(unique: &str) -> String {
    let tail = &unique[unique.len().saturating_sub(7)..];
    let value = u64::from_str_radix(tail, 16).unwrap_or_default();
    (100_000_000 + value).to_string()
}

/// A body with another meaning, changed as little as possible: another number, or another letter. `None` for
/// an empty one.
pub(super) fn changed(body: &[u8]) -> Option<Bytes> {
    if let Ok(mut value) = serde_json::from_slice::<Value>(body)
        && (change(&mut value, Value::is_number) || change(&mut value, Value::is_string))
    {
        return Some(value.to_string().into());
    }
    let mut bytes = body.to_vec();
    let at = bytes.iter().rposition(u8::is_ascii_digit);
    let at = at.or_else(|| bytes.iter().rposition(u8::is_ascii_alphanumeric))?;
    bytes[at] = match bytes[at] {
        b'9' | b'z' | b'Z' => bytes[at] - 1,
        other => other + 1,
    };
    Some(bytes.into())
}

/// Changes the first value, members in order, that is `wanted`.
fn change(value: &mut Value, wanted: fn(&Value) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, wanted)),
        Value::Object(members) => members.values_mut().any(|item| change(item, wanted)),
        Value::Number(number) if wanted(&Value::Number(number.clone())) => {
            *value = match number.as_i64() {
                Some(whole) => (whole.wrapping_add(1)).into(),
                None => (number.as_f64().unwrap_or_default() + 1.0).into(),
            };
            true
        }
        Value::String(text) if wanted(&Value::String(text.clone())) => {
            text.push('x');
            true
        }
        _ => false,
    }
}

/// The same JSON with its members in reverse order and other white space; `None` if that changes nothing or
/// the body is not JSON.
pub(super) fn reordered(body: &[u8]) -> Option<Bytes> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let text = serde_json::to_vec_pretty(&reverse(value)).ok()?;
    (text != body).then(|| text.into())
}

fn reverse(value: Value) -> Value {
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(reverse).collect()),
        Value::Object(members) => {
            let members = members.into_iter().rev();
            Value::Object(members.map(|(name, item)| (name, reverse(item))).collect())
        }
        other => other,
    }
}

/// The first half of the body: a request that any API has to refuse.
pub(super) fn broken(body: &[u8]) -> Option<Bytes> {
    let is_json = serde_json::from_slice::<Value>(body)
        .is_ok_and(|value| value.is_object() || value.is_array());
    is_json.then(|| Bytes::copy_from_slice(&body[..body.len().div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled() {
        let template = Template::new(br#"{"id":"{{unique}}","n":{{unique_number}}}"#.to_vec());
        assert!(template.varies() && template.is_json());
        let filled = template.fill("00000000000f");
        assert_eq!(filled, r#"{"id":"00000000000f","n":100000015}"#);
        assert!(!Template::new(b"plain".to_vec()).varies());
    }

    #[test]
    fn one_value_changes() {
        let change = |text: &str| changed(text.as_bytes()).unwrap();
        assert_eq!(
            change(r#"{"who":"ada","amount":1000}"#),
            r#"{"who":"ada","amount":1001}"#
        );
        assert_eq!(change(r#"{"who":"ada"}"#), r#"{"who":"adax"}"#);
        assert_eq!(change("a=19&b=c"), "a=18&b=c");
        assert_eq!(changed(b""), None);
    }

    #[test]
    fn the_other_order_is_the_same_json() {
        let body = br#"{"a":1,"b":{"c":2,"d":[3,{"e":4,"f":5}]}}"#;
        let turned = reordered(body).unwrap();
        assert!(turned.starts_with(b"{\n  \"b\""));
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        assert_eq!(read(&turned), read(body));
        assert_eq!(reordered(b"a=1"), None);
    }

    #[test]
    fn half_a_body_is_no_json() {
        let half = broken(br#"{"amount":1000}"#).unwrap();
        assert!(serde_json::from_slice::<Value>(&half).is_err());
        assert_eq!(broken(b"a=1"), None);
    }
}

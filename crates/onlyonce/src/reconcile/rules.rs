//! The rules that interpret a provider's JSON.
//!
//! A body that becomes a stored answer is cut out of the provider's bytes unchanged, so that no number is
//! rounded and no member reordered.

use std::{collections::HashMap, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use onlyonce_core::{
    StoredResponse,
    fingerprint::Pointer,
    record::{Evidence, StoredBody},
};
use serde_json::{Value, value::RawValue};

/// A condition, and its consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The condition.
    pub when: When,
    /// The consequence.
    pub then: Then,
}

/// A condition on an answer or an event. Every part that is set must hold.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct When {
    /// The status is one of these; any, if empty.
    pub status: Vec<StatusCode>,
    /// The body has a value here.
    pub pointer: Option<Pointer>,
    /// That value is one of these; any except null, if empty.
    pub one_of: Vec<String>,
    /// The body is JSON and has an empty list, object or text here.
    pub empty: Option<Pointer>,
    /// The body is JSON and has nothing here, or null.
    pub absent: Option<Pointer>,
}

/// What a matching rule says about the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// The operation took effect; retries get this answer.
    Complete {
        /// Its status.
        status: StatusCode,
        /// The place of its body in the provider's; `None` is no body.
        body: Option<Pointer>,
    },
    /// The operation had no effect.
    NotExecuted,
    /// The operation is still running, which does not count as a look.
    Pending,
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Judged {
    /// It says what became of the operation.
    Says(Evidence),
    /// It says that the operation is still running.
    Pending,
    /// It is about several operations; the text says where.
    Several(String),
    /// It decides nothing; the text says why.
    Inconclusive(String),
}

/// The meaning of a provider's answer under `rules`; of an event, if there is no status.
pub fn judge(
    rules: &[Rule],
    status: Option<StatusCode>,
    kind: Option<&HeaderValue>,
    body: &Bytes,
) -> Judged {
    let text = std::str::from_utf8(body).ok();
    let Some(rule) = rules.iter().find(|rule| rule.when.holds(status, text)) else {
        return Judged::Inconclusive(match status {
            Some(status) => format!("no rule matches the answer with status {}", status.as_u16()),
            None => "no rule matches the event".to_owned(),
        });
    };
    // With several operations under one key no rule can tell which one is meant. An event is about one.
    if status.is_some()
        && let Some(list) = text.and_then(|text| rule.list_of_several(text))
    {
        return Judged::Several(list);
    }
    match &rule.then {
        Then::Pending => Judged::Pending,
        Then::NotExecuted => Judged::Says(Evidence::NotExecuted),
        Then::Complete { status, body: None } => Judged::Says(Evidence::Completed(
            StoredResponse::plain(*status, Bytes::new()).into(),
        )),
        Then::Complete {
            status,
            body: Some(pointer),
        } => match part(body, text, pointer) {
            Some(bytes) => {
                let json = HeaderValue::from_static("application/json");
                // A part of JSON is JSON; for the whole body the provider's content type holds.
                let kind = kind.filter(|_| pointer.tokens().is_empty()).cloned();
                let mut headers = HeaderMap::new();
                headers.insert(header::CONTENT_TYPE, kind.unwrap_or(json));
                Judged::Says(Evidence::Completed(
                    StoredResponse {
                        status: *status,
                        headers,
                        body: StoredBody::Full {
                            bytes,
                            trailers: None,
                        },
                    }
                    .into(),
                ))
            }
            None => Judged::Inconclusive(format!("the body has nothing at {pointer}")),
        },
    }
}

impl Rule {
    /// The list with more than one element from which the rule reads one, as a pointer.
    fn list_of_several(&self, document: &str) -> Option<String> {
        let body = match &self.then {
            Then::Complete { body, .. } => body.as_ref(),
            Then::NotExecuted | Then::Pending => None,
        };
        let read = [self.when.pointer.as_ref(), body];
        read.into_iter()
            .flatten()
            .find_map(|pointer| several_at(document, pointer))
    }
}

/// The first list with more than one element on the path of `pointer`.
fn several_at(document: &str, pointer: &Pointer) -> Option<String> {
    let mut current: &RawValue = serde_json::from_str(document).ok()?;
    let mut way = String::new();
    for token in pointer.tokens() {
        if current.get().starts_with('[') {
            let items: Vec<&RawValue> = serde_json::from_str(current.get()).ok()?;
            if items.len() > 1 {
                return Some(format!("{} at {way:?}", items.len()));
            }
        }
        current = step(current, token)?;
        way.push('/');
        way.push_str(token);
    }
    None
}

/// Part of a query's identity, so fields added later are shown only if they are set.
impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("When");
        shown.field("status", &self.status);
        shown.field("pointer", &self.pointer);
        shown.field("one_of", &self.one_of);
        for (name, pointer) in [("empty", &self.empty), ("absent", &self.absent)] {
            if let Some(pointer) = pointer {
                shown.field(name, pointer);
            }
        }
        shown.finish()
    }
}

impl When {
    fn holds(&self, status: Option<StatusCode>, body: Option<&str>) -> bool {
        let right_status =
            self.status.is_empty() || status.is_some_and(|status| self.status.contains(&status));
        let right_value = match &self.pointer {
            None => true,
            Some(pointer) => body
                .and_then(|body| text_at(body, pointer))
                .is_some_and(|text| self.one_of.is_empty() || self.one_of.contains(&text)),
        };
        let value_at = |pointer: &Pointer| {
            let body = body.filter(|body| is_json(body))?;
            Some(raw_at(body, pointer).unwrap_or("null"))
        };
        let holds = |pointer: &Option<Pointer>, wanted: fn(&str) -> bool| {
            pointer
                .as_ref()
                .is_none_or(|pointer| value_at(pointer).is_some_and(wanted))
        };
        right_status
            && right_value
            && holds(&self.empty, is_empty)
            && holds(&self.absent, |value| value == "null")
    }
}

/// Whether `text` is JSON to its end: an error page says nothing about absence.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

fn is_empty(value: &str) -> bool {
    match serde_json::from_str(value) {
        Ok(Value::Array(items)) => items.is_empty(),
        Ok(Value::Object(members)) => members.is_empty(),
        Ok(Value::String(text)) => text.is_empty(),
        _ => false,
    }
}

fn part(body: &Bytes, text: Option<&str>, pointer: &Pointer) -> Option<Bytes> {
    if pointer.tokens().is_empty() {
        return Some(body.clone());
    }
    let found = raw_at(text?, pointer)?;
    Some(body.slice_ref(found.as_bytes()))
}

/// The text of the value that `pointer` names in `document`: strings without their quotes, other values as
/// written. `None` for null and if there is nothing.
pub fn text_at(document: &str, pointer: &Pointer) -> Option<String> {
    let raw = raw_at(document, pointer)?;
    match serde_json::from_str(raw).ok()? {
        Value::String(text) => Some(text),
        Value::Number(_) | Value::Bool(_) => Some(raw.to_owned()),
        Value::Null => None,
        // A rule without a list of values may ask whether something is there.
        Value::Array(_) | Value::Object(_) => Some(raw.to_owned()),
    }
}

/// The value that `pointer` names in `document`, as written there.
fn raw_at<'a>(document: &'a str, pointer: &Pointer) -> Option<&'a str> {
    let mut current: &'a RawValue = serde_json::from_str(document).ok()?;
    for token in pointer.tokens() {
        current = step(current, token)?;
    }
    Some(current.get())
}

/// The member or element of `current` that `token` names.
fn step<'a>(current: &'a RawValue, token: &str) -> Option<&'a RawValue> {
    let text = current.get();
    match text.as_bytes().first()? {
        b'{' => {
            let members: HashMap<String, &'a RawValue> = serde_json::from_str(text).ok()?;
            members.get(token).copied()
        }
        b'[' => {
            let plain = token == "0" || !token.starts_with('0');
            let index: usize = token.parse().ok().filter(|_| plain)?;
            let items: Vec<&'a RawValue> = serde_json::from_str(text).ok()?;
            items.get(index).copied()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    fn rule(status: &[u16], at: &str, one_of: &[&str], then: Then) -> Rule {
        Rule {
            when: When {
                status: status
                    .iter()
                    .map(|code| StatusCode::from_u16(*code).unwrap())
                    .collect(),
                pointer: (!at.is_empty()).then(|| pointer(at)),
                one_of: one_of.iter().map(|text| (*text).to_owned()).collect(),
                ..When::default()
            },
            then,
        }
    }

    fn complete(status: u16, body: &str) -> Then {
        Then::Complete {
            status: StatusCode::from_u16(status).unwrap(),
            body: Some(pointer(body)),
        }
    }

    fn heard(status: u16, body: &'static str) -> Judged {
        let rules = [
            rule(&[200], "/status", &["succeeded"], complete(201, "")),
            rule(&[200], "/status", &["declined"], complete(402, "/error")),
            rule(&[404], "", &[], Then::NotExecuted),
        ];
        let status = StatusCode::from_u16(status).unwrap();
        judge(
            &rules,
            Some(status),
            None,
            &Bytes::from_static(body.as_bytes()),
        )
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let body = r#"{ "status":"succeeded", "amount": 12345678901234567890.10 }"#;
        let Judged::Says(Evidence::Completed(response)) = heard(200, body) else {
            panic!("not completed")
        };
        assert_eq!(response.status, 201);
        let StoredBody::Full { bytes, .. } = &response.body else {
            panic!("no body")
        };
        assert_eq!(bytes, body, "to the letter");
        let declined = r#"{"status":"declined","error":{ "code" : 1.50 }}"#;
        let Judged::Says(Evidence::Completed(response)) = heard(200, declined) else {
            panic!("not completed")
        };
        let StoredBody::Full { bytes, .. } = &response.body else {
            panic!("no body")
        };
        assert_eq!(
            (response.status.as_u16(), &bytes[..]),
            (402, &b"{ \"code\" : 1.50 }"[..])
        );
        assert_eq!(heard(404, ""), Judged::Says(Evidence::NotExecuted));
    }

    #[test]
    fn what_no_rule_matches_says_nothing() {
        for (status, body) in [
            (200, r#"{"status":"processing"}"#),
            (200, r#"{"status":null}"#),
            (200, "not json"),
            (200, ""),
            (500, r#"{"status":"succeeded"}"#),
            (200, r#"{"status":"declined"}"#),
        ] {
            assert!(
                matches!(heard(status, body), Judged::Inconclusive(_)),
                "{body}"
            );
        }
    }

    /// What `when` says of `body`, under status 200.
    fn holds(when: When, body: &str) -> bool {
        when.holds(Some(StatusCode::OK), Some(body))
    }

    #[test]
    fn nothing_is_told_apart_from_no_answer() {
        let empty = |body| {
            let empty = Some(pointer("/data"));
            holds(
                When {
                    empty,
                    ..When::default()
                },
                body,
            )
        };
        let absent = |body| {
            let absent = Some(pointer("/data"));
            holds(
                When {
                    absent,
                    ..When::default()
                },
                body,
            )
        };
        for (body, is_empty, is_absent) in [
            (r#"{"data":[]}"#, true, false),
            (r#"{"data":{}}"#, true, false),
            (r#"{"data":""}"#, true, false),
            (r#"{"data":[ ]}"#, true, false),
            (r#"{"data":[null]}"#, false, false),
            (r#"{"data":0}"#, false, false),
            (r#"{"data":false}"#, false, false),
            (r#"{"data":null}"#, false, true),
            (r#"{}"#, false, true),
            (r#"[]"#, false, true),
            // No answer at all, or the half of one.
            ("", false, false),
            ("<html>busy</html>", false, false),
            (r#"{"other":1"#, false, false),
            (r#"{"other":1} trailing"#, false, false),
        ] {
            assert_eq!((empty(body), absent(body)), (is_empty, is_absent), "{body}");
        }
    }

    #[test]
    fn one_of_several_is_not_picked() {
        let rules = [
            Rule {
                when: When {
                    empty: Some(pointer("/data")),
                    ..When::default()
                },
                then: Then::NotExecuted,
            },
            rule(&[], "/data/0/status", &["open"], Then::Pending),
            rule(&[], "/data/0/status", &["paid"], complete(201, "/data/0")),
        ];
        let heard = |status, body: &'static str| {
            judge(&rules, status, None, &Bytes::from_static(body.as_bytes()))
        };
        let ok = Some(StatusCode::OK);
        let says = |judged| matches!(judged, Judged::Says(Evidence::Completed(_)));
        assert_eq!(
            heard(ok, r#"{"data":[]}"#),
            Judged::Says(Evidence::NotExecuted)
        );
        assert!(says(heard(ok, r#"{"data":[{"status":"paid"}]}"#)));
        assert_eq!(
            heard(ok, r#"{"data":[{"status":"open"}]}"#),
            Judged::Pending
        );
        let two = r#"{"data":[{"status":"paid"},{"status":"refunded"}]}"#;
        assert!(matches!(heard(ok, two), Judged::Several(_)));
        assert!(says(heard(None, two)), "an event is about one operation");
    }

    #[test]
    fn pointers_reach_into_lists_and_other_scalars() {
        let document = r#"{"data":[{"paid":true,"n":0.10},{"a/b":"x"}]}"#;
        for (at, expected) in [
            ("/data/0/paid", Some("true")),
            ("/data/0/n", Some("0.10")),
            ("/data/1/a~1b", Some("x")),
            ("/data/01/a~1b", None),
            ("/data/2", None),
            ("/data/0/paid/x", None),
        ] {
            assert_eq!(text_at(document, &pointer(at)).as_deref(), expected, "{at}");
        }
    }
}

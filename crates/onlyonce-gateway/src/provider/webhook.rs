//! A provider's webhook events: the key, the outcome, and the time.

use std::time::Duration;

use anyhow::bail;
use aws_lc_rs::hmac;
use bytes::Bytes;
use http::HeaderMap;
use onlyonce::{
    reconcile::{Judged, Told, judge, text_at},
    rfc3339,
};
use onlyonce_core::{Timestamp, fingerprint::Pointer};

use super::signature::{self, BadSignature};
use crate::{clock, config::Scheme, config::WebhookConfig};

/// The longest key or client id that is read from an event, in bytes.
const MAX_NAME: usize = 1_024;
/// The rest of a second after its start, in milliseconds.
const SECOND_LEFT: Duration = Duration::from_millis(999);
/// Numbers from here on are milliseconds: as seconds they would be in the year 5138.
const FIRST_MILLIS: f64 = 1e11;

/// A route's webhook.
pub(crate) struct Webhook {
    route: String,
    config: WebhookConfig,
    keys: Vec<hmac::Key>,
}

/// A signed event.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// The event tells the outcome of a key.
    About {
        /// The key.
        key: String,
        /// The client that owns the key, if the event names one.
        client: Option<String>,
        /// The event's content.
        told: Told,
    },
    /// The event is about something else.
    NothingForUs,
}

impl Webhook {
    pub(super) fn new(route: &str, config: &WebhookConfig) -> anyhow::Result<Self> {
        let name = &config.secret_env;
        let keys = signature::keys(config.scheme, &std::env::var(name).unwrap_or_default());
        if keys.is_empty() {
            bail!(
                "route {route}: the variable {name} holds no webhook secret; nothing was started"
            );
        }
        Ok(Self {
            route: route.to_owned(),
            config: config.clone(),
            keys,
        })
    }

    /// Whether a request carries a header for the provider's signature.
    pub(crate) fn is_signed(&self, headers: &HeaderMap) -> bool {
        signature::is_present(self.config.scheme, headers)
    }

    /// Verifies and reads an event of the provider.
    pub(crate) fn hear(&self, headers: &HeaderMap, body: &Bytes) -> Result<Heard, BadSignature> {
        let config = &self.config;
        let now = (clock::store_now(), config.tolerance);
        let signed = signature::check(config.scheme, &self.keys, headers, body, now)?;
        let Ok(text) = std::str::from_utf8(body) else {
            return Ok(Heard::NothingForUs);
        };
        let short =
            |pointer: &Pointer| text_at(text, pointer).filter(|text| text.len() <= MAX_NAME);
        let event = match config.scheme {
            Scheme::Standard => signed.id,
            Scheme::Stripe => Pointer::parse("/id").ok().as_ref().and_then(short),
        };
        // No key or client id contains a control character.
        let named = |pointer: &Pointer| short(pointer).filter(|name| !name.contains('\0'));
        let Some(key) = named(&config.key) else {
            return Ok(Heard::NothingForUs);
        };
        let Judged::Says(evidence) = judge(&config.outcomes, None, None, body) else {
            return Ok(Heard::NothingForUs);
        };
        let at = match &config.at {
            // The second of the signature was not over at signing time.
            None => Some((signed.at.plus(SECOND_LEFT), SECOND_LEFT)),
            Some(pointer) => short(pointer).and_then(|text| moment(&text)),
        };
        let Some((at, coarse)) = at else {
            let route = &self.route;
            tracing::warn!(
                route,
                "a webhook does not say when it happened: it is left alone"
            );
            return Ok(Heard::NothingForUs);
        };
        Ok(Heard::About {
            key,
            client: config.client.as_ref().and_then(named),
            told: Told {
                // An event without an id is identified by its text.
                event: event.unwrap_or_else(|| text.to_owned()),
                route: self.route.clone(),
                evidence,
                at,
                coarse,
            },
        })
    }

    /// Whether events must name the client that owns the key.
    pub(crate) fn names_client(&self) -> bool {
        self.config.client.is_some()
    }
}

/// Parses Unix seconds, whole or fractional, Unix milliseconds or RFC 3339. Returns the time and how much
/// earlier it may have been. A whole second stands for its end, since the event may have happened then.
fn moment(text: &str) -> Option<(Timestamp, Duration)> {
    let (millis, whole) = match text.parse::<f64>() {
        Ok(number) if !(0.0..1e15).contains(&number) => return None,
        Ok(number) if number >= FIRST_MILLIS => (number as i64, false),
        Ok(number) => {
            let whole = !text.contains(['.', 'e', 'E']);
            ((number * 1_000.0) as i64, whole)
        }
        Err(_) => {
            let millis = rfc3339::millis(text).filter(|millis| *millis >= 0)?;
            (millis, !text.contains('.'))
        }
    };
    let coarse = if whole { SECOND_LEFT } else { Duration::ZERO };
    Some((Timestamp(millis).plus(coarse), coarse))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use http::{HeaderName, HeaderValue};
    use onlyonce_core::record::Evidence;
    use onlyonce_testkit::fuzz::Fuzz;
    use serde_json::{Value, value::RawValue};

    use super::*;

    #[test]
    fn moments_in_every_form() {
        for (text, expected) in [
            ("1700000000", Some(1_700_000_000_999)),
            ("1700000000.5", Some(1_700_000_000_500)),
            ("1700000000123", Some(1_700_000_000_123)),
            ("2023-11-14T22:13:20Z", Some(1_700_000_000_999)),
            ("2023-11-14T22:13:20.250Z", Some(1_700_000_000_250)),
            ("2023-11-14t22:13:20z", Some(1_700_000_000_999)),
            ("2023-11-15T00:13:20+02:00", Some(1_700_000_000_999)),
            ("2023-11-14T16:13:20.250999-06:00", Some(1_700_000_000_250)),
            ("2023-11-14T22:13:20", None),
            ("2023-11-14T22:13:20.250+0200", None),
            ("-5", None),
            ("yesterday", None),
            ("NaN", None),
        ] {
            let (at, coarse) = moment(text).unzip();
            assert_eq!(at, expected.map(Timestamp), "{text}");
            let whole = expected.map(|millis: i64| millis % 1_000 == 999);
            assert_eq!(coarse.map(|coarse| coarse == SECOND_LEFT), whole, "{text}");
        }
    }

    const CONFIG: &str = "routes: [{ id: a, path: /, backends: [{ url: \"http://up\" }], idempotency: { \
         enabled: true, enforce: true, reconcile: { webhook: { scheme: standard, secret_env: \
         A_SECRET, key: /data/key, at: /at, outcomes: [{ when: { pointer: /type, in: [paid] }, \
         complete: { status: 201, body: /data } }, { when: { pointer: /type, in: [refused] }, \
         not_executed: true }] } } } }]\n";

    fn webhook() -> Webhook {
        let env = |name: &str| (name == "A_SECRET").then(|| "whsec_AAAA".to_owned());
        let config = crate::config::parse("oo.yaml", CONFIG, &env, &Default::default());
        let config = config.unwrap_or_else(|wrong| panic!("{wrong}"));
        let reconcile = config.routes[0].reconcile.as_deref().unwrap();
        let config = reconcile.webhook.clone().unwrap();
        Webhook {
            route: "a".to_owned(),
            keys: signature::keys(config.scheme, "whsec_AAAA"),
            config,
        }
    }

    /// Goal: an event is about a key only if another reader of JSON finds that key, that word and a time in
    /// it, and then it says what the word stands for; without its signature it is about nothing.
    #[test]
    fn events_are_about_what_they_say() {
        let webhook = webhook();
        let named = |name: &'static str, value: String| {
            (
                HeaderName::from_static(name),
                value.parse::<HeaderValue>().unwrap(),
            )
        };
        Fuzz::new("webhook", 25_000)
            .seeds([
                r#"{"type":"paid","at":1700000000,"data":{"key":"k-1","amount":1}}"#,
                r#"{"type":"refused","at":"2023-11-14T22:13:20.250Z","data":{"key":"\"a b\""}}"#,
                r#"{"type":"paid","type":"refused","at":1700000000123,"data":{"key":7}}"#,
                r#"{"type":"\u0070aid","at":1.5e9,"data":[{"key":"x"}]}"#,
            ])
            .words([
                "paid",
                "refused",
                "\"key\":",
                "\"data\":{",
                "\"at\":",
                "\\u0000",
                "null",
                "{",
                "}",
                "1e400",
            ])
            .max_bytes(300)
            .run(|event| {
                let seconds = (clock::store_now().0 / 1_000).to_string();
                let body = Bytes::copy_from_slice(event);
                let message = [b"e.", seconds.as_bytes(), b".", event].concat();
                let tag = STANDARD.encode(hmac::sign(&webhook.keys[0], &message));
                let mut headers = HeaderMap::from_iter([
                    named("webhook-id", "e".to_owned()),
                    named("webhook-timestamp", seconds),
                    named("webhook-signature", format!("v1,{tag}")),
                ]);
                let heard = webhook.hear(&headers, &body).expect("it is signed");
                headers.insert("webhook-id", HeaderValue::from_static("f"));
                assert_eq!(webhook.hear(&headers, &body), Err(BadSignature));

                let Ok(value) = serde_json::from_slice::<Value>(event) else {
                    // A number that no double holds is no reason not to read the rest.
                    let is_json = serde_json::from_slice::<&RawValue>(event).is_ok();
                    assert!(is_json || heard == Heard::NothingForUs);
                    return (3, usize::from(is_json));
                };
                let at = |pointer: &str| value.pointer(pointer).filter(|it| !it.is_null());
                let word = at("/type").and_then(Value::as_str);
                let Heard::About { key, client, told } = heard else {
                    let plain = at("/data/key").and_then(Value::as_str);
                    let plain = plain.filter(|key| key.len() < 9 && !key.contains('\0'));
                    let time = at("/at").and_then(Value::as_u64).filter(|at| *at < 1 << 40);
                    let is_plain = plain.is_some() && time.is_some();
                    assert!(!is_plain || !matches!(word, Some("paid" | "refused")));
                    return (0, usize::from(word.is_some()));
                };
                assert_eq!(client, None);
                match at("/data/key").expect("a key") {
                    Value::String(text) => assert_eq!(*text, key),
                    Value::Array(_) | Value::Object(_) | Value::Number(_) | Value::Bool(_) => {}
                    Value::Null => panic!("no key"),
                }
                assert!(at("/at").is_some() && told.at.0 >= 0);
                assert_eq!((&*told.route, &*told.event), ("a", "e"));
                match (word, &told.evidence) {
                    (Some("paid"), Evidence::Completed(answer)) => {
                        assert_eq!(answer.status, 201);
                        (1, key.len())
                    }
                    (Some("refused"), Evidence::NotExecuted) => (2, key.len()),
                    other => panic!("{other:?}"),
                }
            });
    }
}

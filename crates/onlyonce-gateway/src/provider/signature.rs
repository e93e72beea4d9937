//! Webhook signatures, which cover an event's bytes and its time.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use http::{HeaderMap, HeaderName};
use onlyonce_core::Timestamp;

use crate::config::Scheme;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");

/// The prefix of a Standard Webhooks secret.
const SECRET_PREFIX: &str = "whsec_";
/// The most signatures checked in one header; further ones are ignored.
const MAX_SIGNATURES: usize = 16;

/// The event is not from the provider, or not recent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadSignature;

/// What a valid signature covers beside the body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signed {
    /// The provider's id of the event, if the signature covers one.
    pub(super) id: Option<String>,
    /// When it was signed.
    pub(super) at: Timestamp,
}

/// The keys in `secrets`, which are separated by white space.
pub(super) fn keys(scheme: Scheme, secrets: &str) -> Vec<hmac::Key> {
    let mut keys = Vec::new();
    // Anybody can sign with an empty key, which is what an unset variable leaves.
    let mut add = |bytes: &[u8]| {
        if !bytes.is_empty() {
            keys.push(hmac::Key::new(hmac::HMAC_SHA256, bytes));
        }
    };
    for secret in secrets.split_whitespace() {
        match scheme {
            // The whole secret is the key, including its prefix; but the prefix alone is no secret.
            Scheme::Stripe if secret == SECRET_PREFIX => {}
            Scheme::Stripe => add(secret.as_bytes()),
            Scheme::Standard => {
                let bare = secret.strip_prefix(SECRET_PREFIX);
                let coded = bare.unwrap_or(secret);
                let decoded = STANDARD.decode(coded).or(STANDARD_NO_PAD.decode(coded));
                if let Ok(bytes) = decoded {
                    add(&bytes);
                }
                if bare.is_none() {
                    // A secret that was never encoded.
                    add(secret.as_bytes());
                }
            }
        }
    }
    keys
}

/// Whether the signature's header is present.
pub(super) fn is_present(scheme: Scheme, headers: &HeaderMap) -> bool {
    headers.contains_key(match scheme {
        Scheme::Standard => WEBHOOK_SIGNATURE,
        Scheme::Stripe => STRIPE_SIGNATURE,
    })
}

/// Checks the signature of `body` at the time `now`.
pub(super) fn check(
    scheme: Scheme,
    keys: &[hmac::Key],
    headers: &HeaderMap,
    body: &[u8],
    (now, tolerance): (Timestamp, Duration),
) -> Result<Signed, BadSignature> {
    let (id, seconds, given) = match scheme {
        Scheme::Standard => standard(headers)?,
        Scheme::Stripe => stripe(headers)?,
    };
    let at: i64 = seconds.parse().map_err(|_| BadSignature)?;
    let at = Timestamp(at.checked_mul(1_000).ok_or(BadSignature)?);
    let apart = at.since(now).max(now.since(at));
    if apart > tolerance {
        return Err(BadSignature);
    }
    let mut message = Vec::with_capacity(body.len() + 64);
    if let Some(id) = &id {
        message.extend_from_slice(id.as_bytes());
        message.push(b'.');
    }
    message.extend_from_slice(seconds.as_bytes());
    message.push(b'.');
    message.extend_from_slice(body);
    let good = keys.iter().any(|key| {
        given
            .iter()
            .any(|tag| hmac::verify(key, &message, tag).is_ok())
    });
    good.then_some(Signed { id, at }).ok_or(BadSignature)
}

type Parts = (Option<String>, String, Vec<Vec<u8>>);

fn only(headers: &HeaderMap, name: &HeaderName) -> Result<String, BadSignature> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or(BadSignature)?;
    if values.next().is_some() {
        return Err(BadSignature);
    }
    value.to_str().map(str::to_owned).map_err(|_| BadSignature)
}

fn standard(headers: &HeaderMap) -> Result<Parts, BadSignature> {
    let id = only(headers, &WEBHOOK_ID)?;
    let seconds = only(headers, &WEBHOOK_TIMESTAMP)?;
    let given = only(headers, &WEBHOOK_SIGNATURE)?;
    let given = given
        .split(' ')
        .filter_map(|one| one.strip_prefix("v1,"))
        .take(MAX_SIGNATURES)
        .filter_map(|coded| STANDARD.decode(coded).ok())
        .collect();
    Ok((Some(id), seconds, given))
}

fn stripe(headers: &HeaderMap) -> Result<Parts, BadSignature> {
    let line = only(headers, &STRIPE_SIGNATURE)?;
    let mut seconds = None;
    let mut given = Vec::new();
    for (name, value) in line
        .split(',')
        .filter_map(|part| part.trim().split_once('='))
        .take(MAX_SIGNATURES)
    {
        match name {
            "t" => seconds = Some(value.to_owned()),
            "v1" => given.extend(hex(value)),
            _ => {}
        }
    }
    Ok((None, seconds.ok_or(BadSignature)?, given))
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let nibble = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    let byte = |[high, low]: &[u8; 2]| Some(nibble(*high)? << 4 | nibble(*low)?);
    rest.is_empty()
        .then(|| pairs.iter().map(byte).collect())
        .flatten()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOW: Timestamp = Timestamp(1_674_087_231_000);
    const TOLERANCE: Duration = Duration::from_secs(300);

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_str(value).unwrap(),
                )
            })
            .collect()
    }

    /// The example of the Standard Webhooks specification's own libraries.
    #[test]
    fn the_standards_own_example() {
        let keys = keys(Scheme::Standard, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let headers = headers(&[
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            (
                "webhook-signature",
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
        ]);
        let now = Timestamp(1_614_265_330_000);
        let body = b"{\"test\": 2432232314}";
        let checked = check(Scheme::Standard, &keys, &headers, body, (now, TOLERANCE));
        assert_eq!(
            checked.map(|signed| signed.id),
            Ok(Some("msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned()))
        );
        for (body, late) in [(&b"{\"test\":  2432232314}"[..], 0), (&body[..], 301_000)] {
            let now = (Timestamp(now.0 + late), TOLERANCE);
            let checked = check(Scheme::Standard, &keys, &headers, body, now);
            assert_eq!(checked, Err(BadSignature));
        }
    }

    #[test]
    fn stripes_way() {
        let secret = "whsec_test";
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, b"1674087231.{}");
        let hex: String = tag
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let keys = keys(Scheme::Stripe, secret);
        let check = |line: &str| {
            let headers = headers(&[("stripe-signature", line)]);
            check(Scheme::Stripe, &keys, &headers, b"{}", (NOW, TOLERANCE)).is_ok()
        };
        assert!(check(&format!("t=1674087231,v1={hex}")));
        assert!(check(&format!("t=1674087231,v1=00,v1={hex},v0=ab")));
        for line in [
            format!("t=1674087232,v1={hex}"),
            format!("t=1674087231,v0={hex}"),
            format!("v1={hex}"),
            "t=1674087231".to_owned(),
            format!("t=99999999999999999999,v1={hex}"),
        ] {
            assert!(!check(&line), "{line}");
        }
    }

    #[test]
    fn a_secret_without_a_key_lets_nobody_in() {
        for scheme in [Scheme::Standard, Scheme::Stripe] {
            assert!(keys(scheme, "  ").is_empty());
        }
        assert!(keys(Scheme::Standard, "whsec_not base64!").len() <= 1);
        for scheme in [Scheme::Standard, Scheme::Stripe] {
            assert!(keys(scheme, "whsec_").is_empty());
        }
        assert_eq!(keys(Scheme::Standard, "whsec_AAAA whsec_BBBB").len(), 2);
    }

    /// Goal: whatever is accepted is what the provider signed, to the byte: its id, its second, its body.
    #[test]
    fn nothing_else_is_taken_for_signed() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let keys = [keys(Scheme::Standard, secret), keys(Scheme::Stripe, secret)];
        let (id, seconds, body) = ("msg_1", "1674087231", "{\"type\":\"paid\"}");
        let tag = hmac::sign(&keys[0][0], format!("{id}.{seconds}.{body}").as_bytes());
        let tag = STANDARD.encode(tag);
        let standard = format!(
            "webhook-id: {id}\nwebhook-timestamp: {seconds}\nwebhook-signature: v1,AA== v1,{tag}\n\n{body}"
        );
        let tag = hmac::sign(&keys[1][0], format!("{seconds}.{body}").as_bytes());
        let hex: String = tag
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let stripe = format!("stripe-signature: t={seconds},v1=00,v1={hex},v0=ab\n\n{body}");
        onlyonce_testkit::fuzz::Fuzz::new("signature", 60_000)
            .seeds([&standard, &stripe])
            .words([
                "v1,",
                "v1=",
                "t=",
                ",",
                " ",
                "+",
                "webhook-id: ",
                "stripe-signature: ",
                "\n\n",
            ])
            .max_bytes(400)
            .run(|input| {
                let text = String::from_utf8_lossy(input);
                let (head, sent) = text.split_once("\n\n").unwrap_or((&text, ""));
                let mut headers = HeaderMap::new();
                for line in head.lines() {
                    let (name, value) = line.split_once(": ").unwrap_or((line, ""));
                    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                        headers.append(name, value);
                    }
                }
                let mut seen = Vec::new();
                for (scheme, keys) in [Scheme::Standard, Scheme::Stripe].into_iter().zip(&keys) {
                    let now = (NOW, TOLERANCE);
                    let checked = check(scheme, keys, &headers, sent.as_bytes(), now);
                    if let Ok(signed) = &checked {
                        assert_eq!(sent, body);
                        assert_eq!(signed.at, NOW);
                        let expected = (scheme == Scheme::Standard).then_some(id);
                        assert_eq!(signed.id.as_deref(), expected);
                        assert!(is_present(scheme, &headers));
                    }
                    seen.push((checked.is_ok(), is_present(scheme, &headers)));
                }
                (seen, headers.len())
            });
    }

    /// A sign is not a digit.
    #[test]
    fn digits_alone_are_hexadecimal() {
        assert_eq!(hex("0fF0"), Some(vec![0x0f, 0xf0]));
        for text in ["+f", "-f", "f", "0g", " f", "0f+f"] {
            assert_eq!(hex(text), None, "{text}");
        }
    }
}

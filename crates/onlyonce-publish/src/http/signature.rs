//! Standard Webhooks signatures, which tell a receiver who sent a message, and when.

use std::fmt;

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};

/// The prefix of a secret.
const PREFIX: &str = "whsec_";

/// The secrets that sign messages. During a rotation there are two, and each message has a signature by each.
#[derive(Clone)]
pub struct Secrets(Vec<hmac::Key>);

/// Why a text is not a list of secrets. The message does not repeat the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret is whsec_ and base64; several are separated by spaces")]
pub struct BadSecret;

impl Secrets {
    /// Parses secrets such as `whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw`, separated by white space.
    ///
    /// # Errors
    /// [`BadSecret`] if there is none, or one of them is invalid.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let key = |secret: &str| {
            let coded = secret.strip_prefix(PREFIX).ok_or(BadSecret)?;
            let decoded = STANDARD.decode(coded).or(STANDARD_NO_PAD.decode(coded));
            let bytes = decoded.map_err(|_| BadSecret)?;
            // Anybody could sign with an empty key.
            if bytes.is_empty() {
                return Err(BadSecret);
            }
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let keys: Vec<hmac::Key> = text.split_whitespace().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(BadSecret);
        }
        Ok(Self(keys))
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, seconds: &str, body: &[u8]) -> String {
        let one = |key: &hmac::Key| {
            let mut context = hmac::Context::with_key(key);
            for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
                context.update(part);
            }
            format!("v1,{}", STANDARD.encode(context.sign()))
        };
        let signatures: Vec<String> = self.0.iter().map(one).collect();
        signatures.join(" ")
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example of the Standard Webhooks specification's own libraries, which the gateway's check of
    /// such signatures is tested with as well.
    #[test]
    fn the_standards_own_example() {
        let body = b"{\"test\": 2432232314}";
        let sign = |secrets: &str| {
            let secrets = Secrets::parse(secrets).unwrap();
            secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(EXAMPLE), expected);
        let both = sign(&format!("whsec_AAAA  {EXAMPLE}"));
        let (other, same) = both.split_once(' ').unwrap();
        assert!(other.starts_with("v1,") && other != expected);
        assert_eq!(same, expected);
    }

    #[test]
    fn what_is_no_secret() {
        let unprefixed = EXAMPLE.trim_start_matches(PREFIX);
        for bad in ["", "  ", unprefixed, "whsec_", "whsec_no base64", "whsec_!"] {
            assert_eq!(Secrets::parse(bad).err(), Some(BadSecret), "{bad}");
        }
        assert_eq!(
            format!("{:?}", Secrets::parse(EXAMPLE).unwrap()),
            "Secrets(1)"
        );
    }
}

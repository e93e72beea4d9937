//! Hidden names: a keyed hash replaces the client's id and the key, so that rows can still be found by them,
//! and the names themselves are stored encrypted in place of the path.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use onlyonce_core::{Key, RecordId, Scope};

use super::{
    block::{self, Packing},
    keyring::{Keyring, OpenError, Place},
};

/// The prefix of an encrypted text. No path begins with it, and no word of ours.
const MARK: &str = "~1.";
/// The prefix of a hash that replaces a name.
const HASHED: char = '~';
/// The length of a hash in bytes: the same as a record's id.
const HASH_BYTES: usize = 16;

/// The key for hashing names. It is the same for every key of the ring, so that a rotation loses nothing.
pub(super) struct Names(hmac::Key);

impl Names {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    fn hash(&self, kind: &str, text: &str) -> String {
        let tag = hmac::sign(&self.0, format!("{kind}\0{text}").as_bytes());
        let mut out = String::with_capacity(1 + 2 * HASH_BYTES);
        out.push(HASHED);
        for byte in &tag.as_ref()[..HASH_BYTES] {
            out.push_str(&format!("{byte:02x}"));
        }
        out
    }

    pub(super) fn client(&self, id: &str) -> String {
        self.hash("client", id)
    }

    pub(super) fn key(&self, key: &Key) -> Key {
        Key::from_stored(&self.hash("key", key.as_str()))
    }

    /// The scope with the client's id hashed; the rest comes from the configuration.
    pub(super) fn scope(&self, scope: &Scope) -> Scope {
        let text = scope.as_str();
        let hidden = match text.strip_prefix("client:") {
            Some(client) => format!("client:{}", self.client(client)),
            None => match text.split_once("/client:") {
                Some((route, client)) => format!("{route}/client:{}", self.client(client)),
                None => return scope.clone(),
            },
        };
        Scope::from_stored(&hidden)
    }
}

fn place(field: &'static str, id: RecordId) -> Place<'static> {
    Place {
        field,
        id,
        scope: "",
        key: "",
        generation: 0,
    }
}

/// Whether [`hide`] made `text`.
pub(super) fn is_hidden(text: &str) -> bool {
    text.starts_with(MARK)
}

/// Encrypts a text of the record `id`, as text.
pub(super) fn hide(keys: &Keyring, field: &'static str, id: RecordId, text: &[u8]) -> String {
    let block = block::write(Some(keys), &place(field, id), Packing::None, text);
    format!("{MARK}{}", URL_SAFE_NO_PAD.encode(block))
}

/// Decrypts what [`hide`] made.
pub(super) fn reveal(
    keys: Option<&Keyring>,
    field: &'static str,
    id: RecordId,
    text: &str,
) -> Result<Vec<u8>, OpenError> {
    let encoded = text.strip_prefix(MARK).ok_or(OpenError::Damaged)?;
    let block = URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| OpenError::Damaged)?;
    match block::read(keys, &place(field, id), &block)? {
        (Packing::None, bytes) => Ok(bytes),
        _ => Err(OpenError::Damaged),
    }
}

/// Joins scope, key and path.
pub(super) fn join(scope: &str, key: &str, path: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(scope.len() + key.len() + path.len() + 8);
    for text in [scope, key] {
        // Both are far below the limit: a key has at most some hundred bytes, and so has an id.
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out
}

/// Splits what [`join`] made.
pub(super) fn split(joined: &[u8]) -> Result<(Scope, Key, String), OpenError> {
    fn text(bytes: &[u8]) -> Result<&str, OpenError> {
        str::from_utf8(bytes).map_err(|_| OpenError::Damaged)
    }
    let mut rest = joined;
    let mut texts = [""; 2];
    for found in &mut texts {
        let (length, after) = rest.split_first_chunk::<4>().ok_or(OpenError::Damaged)?;
        let length =
            usize::try_from(u32::from_le_bytes(*length)).map_err(|_| OpenError::Damaged)?;
        let (bytes, after) = after.split_at_checked(length).ok_or(OpenError::Damaged)?;
        *found = text(bytes)?;
        rest = after;
    }
    let [scope, key] = texts;
    let path = text(rest)?.to_owned();
    Ok((Scope::from_stored(scope), Key::from_stored(key), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_and_keys_are_hashed() {
        let names = Names::new(b"x");
        let hidden = |scope: Scope| names.scope(&scope).as_str().to_owned();
        assert_eq!(hidden(Scope::global()), "global");
        assert_eq!(hidden(Scope::route("pay", None)), "route:pay");
        let client = names.client("acme");
        assert_eq!(client.len(), 33);
        assert_eq!(hidden(Scope::client("acme")), format!("client:{client}"));
        assert_eq!(
            hidden(Scope::route("pay", Some("acme"))),
            format!("route:pay/client:{client}")
        );
        assert_ne!(names.client("acme"), names.client("acmf"));
        assert_ne!(client, names.key(&Key::from_stored("acme")).as_str());
    }

    #[test]
    fn names_come_back() {
        let joined = join("client:ä", "k", "/pay?x=1");
        let (scope, key, path) = split(&joined).unwrap();
        assert_eq!(
            (scope.as_str(), key.as_str(), path.as_str()),
            ("client:ä", "k", "/pay?x=1")
        );
        for length in 0..joined.len() - "/pay?x=1".len() {
            assert!(split(&joined[..length]).is_err());
        }
    }
}

//! Values that only a holder of the store's secret can compute: record ids, log tags, caller marks and the
//! per-scope fingerprint keys.
//!
//! Every message starts with its own label and length-prefixes each part, so that no value of one kind can
//! equal a value of another, and no two lists of parts give the same message.
//!
//! Deliberately absent: generating a secret. It is created with the schema and lives in the store.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::hmac;

use crate::key::Key;

/// The usual message is shorter than this.
const USUAL_MESSAGE_BYTES: usize = 160;

/// The secret of one store, shared by every node that uses it.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    // Built once: the key schedule costs as much as hashing a short message.
    mac: hmac::Key,
}

impl Secret {
    /// The secret as it was read from the store.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret {
            bytes,
            mac: hmac::Key::new(hmac::HMAC_SHA256, &bytes),
        }
    }

    /// The bytes to write to a store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The id under which the record of `key` in `scope` is stored.
    pub fn record_id(&self, scope: &str, key: &Key) -> RecordId {
        RecordId(truncate(
            &self.sign("record-id", &[scope.as_bytes(), key.as_str().as_bytes()]),
        ))
    }

    /// The key to send to a provider for `phase` of the operation of `key`. It is the same for every attempt
    /// and every life of the key, and does not reveal the key itself.
    pub fn downstream_key(&self, scope: &str, key: &Key, phase: &str) -> String {
        let parts = [scope.as_bytes(), key.as_str().as_bytes(), phase.as_bytes()];
        RecordId(truncate(&self.sign("downstream-key", &parts))).to_string()
    }

    /// The tag that stands for a key in logs: enough to follow the key, too little to guess it.
    pub fn key_tag(&self, key: &Key) -> KeyTag {
        KeyTag(truncate(&self.sign("key-tag", &[key.as_str().as_bytes()])))
    }

    /// The mark of a caller, to distinguish callers in a shared scope without storing credentials.
    pub fn caller_mark(&self, scope: &str, parts: &[&[u8]]) -> CallerMark {
        let mut message = begin("caller-mark");
        frame(&mut message, scope.as_bytes());
        message.extend_from_slice(&length(parts.len()));
        for part in parts {
            frame(&mut message, part);
        }
        CallerMark(truncate(&hmac::sign(&self.mac, &message)))
    }

    /// The fingerprint key of `scope`; worth caching per scope, cheap to clone.
    pub fn scope_hasher(&self, scope: &str) -> ScopeHasher {
        let derived = self.sign("fingerprint-key", &[scope.as_bytes()]);
        ScopeHasher {
            mac: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())),
        }
    }

    fn sign(&self, label: &str, parts: &[&[u8]]) -> hmac::Tag {
        let mut message = begin(label);
        for part in parts {
            frame(&mut message, part);
        }
        hmac::sign(&self.mac, &message)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The fingerprint key of one scope: equal requests in two scopes have unrelated fingerprints.
#[derive(Clone)]
pub struct ScopeHasher {
    mac: Arc<hmac::Key>,
}

impl ScopeHasher {
    /// The MAC of the concatenated `pieces`; the caller does the framing.
    pub(crate) fn sign(&self, pieces: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.mac);
        for piece in pieces {
            context.update(piece);
        }
        truncate(&context.sign())
    }
}

impl fmt::Debug for ScopeHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeHasher(..)")
    }
}

/// The identity of a record: a MAC of scope and key under the store's secret. Displayed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId(pub [u8; 16]);

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// The text is not 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a record id is 32 lower-case hex digits")]
pub struct RecordIdError;

impl FromStr for RecordId {
    type Err = RecordIdError;

    fn from_str(text: &str) -> Result<RecordId, RecordIdError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut id = [0; 16];
        if pairs.len() != id.len() || !rest.is_empty() {
            return Err(RecordIdError);
        }
        for (byte, [high, low]) in id.iter_mut().zip(pairs) {
            *byte = nibble(*high)? << 4 | nibble(*low)?;
        }
        Ok(RecordId(id))
    }
}

/// Eight hex digits that stand for a key in logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyTag([u8; 4]);

impl fmt::Display for KeyTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for KeyTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// The mark of a caller in a shared scope: comparable and otherwise meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallerMark(pub [u8; 16]);

/// The length prefix of every framed part.
pub(crate) fn length(of: usize) -> [u8; 8] {
    (of as u64).to_be_bytes()
}

/// Writes lower-case hex. Formatting digit by digit would cost more than the hash itself, and every execution
/// sends ids to the upstream.
pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    const AT_ONCE: usize = 32;
    for bytes in bytes.chunks(AT_ONCE) {
        let mut text = [0; 2 * AT_ONCE];
        for (pair, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
            *pair = [
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ];
        }
        let digits = &text[..2 * bytes.len()];
        f.write_str(str::from_utf8(digits).map_err(|_| fmt::Error)?)?;
    }
    Ok(())
}

/// Begins a message. Hashing one buffer costs less than hashing many short ones.
fn begin(label: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(USUAL_MESSAGE_BYTES);
    frame(&mut message, b"onlyonce/1");
    frame(&mut message, label.as_bytes());
    message
}

fn frame(message: &mut Vec<u8>, part: &[u8]) {
    message.extend_from_slice(&length(part.len()));
    message.extend_from_slice(part);
}

/// The first `N` bytes; `N` is at most the 32 that HMAC-SHA-256 has.
fn truncate<const N: usize>(tag: &hmac::Tag) -> [u8; N] {
    *tag.as_ref()
        .first_chunk()
        .expect("an HMAC-SHA-256 tag has 32 bytes and N is at most that")
}

fn nibble(digit: u8) -> Result<u8, RecordIdError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(RecordIdError),
    }
}

//! The encryption keys, and encryption itself.
//!
//! A key of the ring never encrypts anything itself: every record has its own key, derived from the ring's
//! key and the record's id. Nonces of 96 random bits are safe for some four thousand million messages under
//! one key; here that limits the writes to a single record, not the number of records.
//!
//! Deliberately absent: printing. Neither an error nor `Debug` shows a byte of a key.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use onlyonce_core::RecordId;

use crate::StoreError;

/// The length of a key in bytes: AES-256.
pub const KEY_BYTES: usize = 32;
/// The most keys in one ring.
pub const MAX_KEYS: usize = 16;
/// The longest id of a key, in characters.
pub const MAX_KEY_NAME: usize = 32;

/// Accepts either alphabet, with or without padding, as people paste it.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(false);
const READERS: [GeneralPurpose; 2] = [
    GeneralPurpose::new(&STANDARD, LENIENT),
    GeneralPurpose::new(&URL_SAFE, LENIENT),
];

/// Why a list of keys is invalid. The error never repeats its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The text is empty.
    #[error("there is no key in it")]
    Empty,
    /// More than [`MAX_KEYS`].
    #[error("there are more than {MAX_KEYS} keys in it")]
    TooMany,
    /// An entry is not `ID:BASE64`.
    #[error("entry {0} is not ID:BASE64")]
    Form(usize),
    /// An id with invalid characters, or too long.
    #[error("the id of entry {0} is not 1 to {MAX_KEY_NAME} of A-Z a-z 0-9 _ -")]
    Name(usize),
    /// Not base64.
    #[error("the key of entry {0} is not base64")]
    Base64(usize),
    /// Not [`KEY_BYTES`] long.
    #[error("the key of entry {0} has {1} bytes and not {KEY_BYTES}")]
    Length(usize, usize),
    /// The same id twice.
    #[error("entry {0} repeats an id")]
    Twice(usize),
}

/// Why something encrypted cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No key of the ring has the id that it names.
    #[error("it was encrypted with the key {0:?}, which is not among the configured ones")]
    UnknownKey(String),
    /// The data was changed, or written for another place.
    #[error("it was changed, or belongs to another record")]
    Forged,
    /// The data is not ours.
    #[error("it is damaged")]
    Damaged,
    /// The data was written by a newer program.
    #[error("it has version {0}, which this program does not know")]
    Version(u8),
}

impl OpenError {
    /// Whether `error` means that a key is missing.
    pub fn is_missing_key(error: &StoreError) -> bool {
        let StoreError::Unreadable(source) = error else {
            return false;
        };
        matches!(source.downcast_ref(), Some(Self::UnknownKey(_)))
    }

    /// The value of a metric's label.
    pub fn word(&self) -> &'static str {
        match self {
            Self::UnknownKey(_) => "unknown_key",
            Self::Forged => "forged",
            Self::Damaged => "damaged",
            Self::Version(_) => "version",
        }
    }
}

struct NamedKey {
    name: String,
    /// Derives the records' own keys.
    root: hmac::Key,
}

/// One or more keys: the first encrypts, all decrypt.
#[derive(Clone)]
pub struct Keyring(Arc<Vec<NamedKey>>);

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|key| &key.name);
        f.debug_list().entries(names).finish()
    }
}

impl Keyring {
    /// Parses `ID:BASE64[,ID:BASE64…]`.
    ///
    /// # Errors
    /// [`KeyringError`] says which entry is wrong and how, without its content.
    pub fn parse(text: &str) -> Result<Self, KeyringError> {
        if text.trim().is_empty() {
            return Err(KeyringError::Empty);
        }
        let mut keys: Vec<NamedKey> = Vec::new();
        for (at, entry) in text.split(',').enumerate() {
            let place = at + 1;
            if place > MAX_KEYS {
                return Err(KeyringError::TooMany);
            }
            let (name, key) = entry
                .trim()
                .split_once(':')
                .ok_or(KeyringError::Form(place))?;
            let fits = |letter: u8| letter.is_ascii_alphanumeric() || b"_-".contains(&letter);
            if name.is_empty() || name.len() > MAX_KEY_NAME || !name.bytes().all(fits) {
                return Err(KeyringError::Name(place));
            }
            if keys.iter().any(|known| known.name == name) {
                return Err(KeyringError::Twice(place));
            }
            let key = READERS.iter().find_map(|reader| reader.decode(key).ok());
            let key = key.ok_or(KeyringError::Base64(place))?;
            if key.len() != KEY_BYTES {
                return Err(KeyringError::Length(place, key.len()));
            }
            keys.push(NamedKey {
                name: name.to_owned(),
                root: hmac::Key::new(hmac::HMAC_SHA256, &key),
            });
        }
        Ok(Self(Arc::new(keys)))
    }

    /// The ids of the keys, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| key.name.as_str())
    }

    /// Appends the id of the first key, a nonce, and `plain` as ciphertext that only opens at `place`.
    pub(super) fn seal(&self, place: &Place<'_>, plain: &[u8], out: &mut Vec<u8>) {
        let Some(key) = self.0.first() else {
            unreachable!("a ring without keys is refused when it is read")
        };
        out.push(u8::try_from(key.name.len()).expect("an id is at most 32 characters"));
        out.extend_from_slice(key.name.as_bytes());
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce)
            .expect("the system's random source does not fail on Linux");
        out.extend_from_slice(&nonce);
        let bound = place.bound_to(out);
        let start = out.len();
        out.extend_from_slice(plain);
        let tag = record_key(key, place.id)
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(bound),
                &mut out[start..],
            )
            .expect("AES-GCM takes everything that fits into memory");
        out.extend_from_slice(tag.as_ref());
    }

    /// Decrypts what [`seal`](Self::seal) wrote after the first `head` bytes of a block.
    pub(super) fn open(
        &self,
        place: &Place<'_>,
        block: &[u8],
        head: usize,
    ) -> Result<Vec<u8>, OpenError> {
        let rest = block.get(head..).ok_or(OpenError::Damaged)?;
        let (length, rest) = rest.split_first().ok_or(OpenError::Damaged)?;
        let (name, rest) = rest
            .split_at_checked(usize::from(*length))
            .ok_or(OpenError::Damaged)?;
        let (nonce, sealed) = rest
            .split_first_chunk::<NONCE_LEN>()
            .ok_or(OpenError::Damaged)?;
        let key = self.0.iter().find(|key| key.name.as_bytes() == name);
        let key = key.ok_or_else(|| {
            OpenError::UnknownKey(
                String::from_utf8_lossy(name)
                    .chars()
                    .take(MAX_KEY_NAME)
                    .collect(),
            )
        })?;
        let bound = place.bound_to(&block[..block.len() - sealed.len()]);
        let mut plain = sealed.to_vec();
        let length = record_key(key, place.id)
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(bound),
                &mut plain,
            )
            .map_err(|_| OpenError::Forged)?
            .len();
        plain.truncate(length);
        Ok(plain)
    }
}

/// The key of one record.
fn record_key(key: &NamedKey, id: RecordId) -> LessSafeKey {
    let mut message = b"onlyonce/1 record key ".to_vec();
    message.extend_from_slice(&id.0);
    let derived = hmac::sign(&key.root, &message);
    let derived = UnboundKey::new(&AES_256_GCM, derived.as_ref())
        .expect("an HMAC-SHA-256 tag is as long as the key of AES-256");
    LessSafeKey::new(derived)
}

/// Where a ciphertext belongs: it opens nowhere else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The field of the record.
    pub(super) field: &'static str,
    pub(super) id: RecordId,
    pub(super) scope: &'a str,
    pub(super) key: &'a str,
    pub(super) generation: u32,
}

impl Place<'_> {
    /// The associated data of the ciphertext: its place, and what precedes it in its block.
    fn bound_to(&self, head: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(192);
        let generation = self.generation.to_be_bytes();
        let parts = [
            b"onlyonce/1 at rest".as_slice(),
            self.field.as_bytes(),
            &self.id.0,
            self.scope.as_bytes(),
            self.key.as_bytes(),
            &generation,
            head,
        ];
        for part in parts {
            out.extend_from_slice(&(part.len() as u64).to_be_bytes());
            out.extend_from_slice(part);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn place(generation: u32) -> Place<'static> {
        Place {
            field: "answer",
            id: RecordId([3; 16]),
            scope: "client:a",
            key: "k",
            generation,
        }
    }

    #[test]
    fn what_is_refused_is_not_repeated() {
        let bare = ONE.trim_end_matches('=');
        for (text, why) in [
            ("", KeyringError::Empty),
            ("secretsecret", KeyringError::Form(1)),
            (":AAAA", KeyringError::Name(1)),
            ("a b:AAAA", KeyringError::Name(1)),
            ("a:se!cret", KeyringError::Base64(1)),
            ("a:c2VjcmV0", KeyringError::Length(1, 6)),
            (&format!("a:{ONE},a:{ONE}"), KeyringError::Twice(2)),
            (&format!("a:{ONE},"), KeyringError::Form(2)),
            (
                &vec![format!("a:{ONE}"); 2].join(",").replace("a:", "a:x"),
                KeyringError::Base64(1),
            ),
        ] {
            let error = Keyring::parse(text).unwrap_err();
            assert_eq!(error, why);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let ring = Keyring::parse(&format!("new:{bare}, old-1:{ONE}")).unwrap();
        assert_eq!(ring.names().collect::<Vec<_>>(), ["new", "old-1"]);
        assert_eq!(format!("{ring:?}"), r#"["new", "old-1"]"#);
    }

    #[test]
    fn it_opens_at_its_place_alone() {
        let ring = Keyring::parse(&format!("a:{ONE}")).unwrap();
        let mut block = vec![9];
        ring.seal(&place(1), b"secret", &mut block);
        assert_eq!(ring.open(&place(1), &block, 1).unwrap(), b"secret");
        let elsewhere = [
            Place {
                generation: 2,
                ..place(1)
            },
            Place {
                key: "l",
                ..place(1)
            },
            Place {
                scope: "client:b",
                ..place(1)
            },
            Place {
                field: "names",
                ..place(1)
            },
            Place {
                id: RecordId([4; 16]),
                ..place(1)
            },
        ];
        for other in elsewhere {
            assert_eq!(
                ring.open(&other, &block, 1),
                Err(OpenError::Forged),
                "{other:?}"
            );
        }
        for at in 0..block.len() {
            let mut bent = block.clone();
            bent[at] ^= 1;
            assert!(ring.open(&place(1), &bent, 1).is_err(), "byte {at}");
        }
        for length in 0..block.len() {
            assert!(
                ring.open(&place(1), &block[..length], 1).is_err(),
                "{length} bytes"
            );
        }
        let other = Keyring::parse(&format!("b:{ONE}")).unwrap();
        let unknown = OpenError::UnknownKey("a".to_owned());
        assert_eq!(other.open(&place(1), &block, 1), Err(unknown));
    }

    #[test]
    fn the_same_twice_looks_different() {
        let ring = Keyring::parse(&format!("a:{ONE}")).unwrap();
        let (mut one, mut other) = (Vec::new(), Vec::new());
        ring.seal(&place(1), b"secret", &mut one);
        ring.seal(&place(1), b"secret", &mut other);
        assert_ne!(one, other);
    }
}

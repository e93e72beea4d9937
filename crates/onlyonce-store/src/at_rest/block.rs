//! The block for an answer: compressed where that helps, then encrypted if keys are configured.
//!
//! ```text
//! version, flags, [dictionary], then: [key id, nonce,] payload [, tag]
//! payload: length before compression, bytes     the length only where it was compressed
//! ```

use onlyonce_core::RecordId;

use super::keyring::{Keyring, OpenError, Place};

/// The version of a block.
const VERSION: u8 = 1;

const ENCRYPTED: u8 = 1;
const COMPRESSED: u8 = 2;
const WITH_DICTIONARY: u8 = 4;

/// The number of a dictionary: the start of its hash, or the number of the built-in one.
pub(super) type DictionaryId = u32;

/// How the bytes in a block were compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Plain { length: usize },
    Dictionary { id: DictionaryId, length: usize },
}

/// The block for `bytes`, which `packing` describes.
pub(super) fn write(
    keys: Option<&Keyring>,
    place: &Place<'_>,
    packing: Packing,
    bytes: &[u8],
) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 80);
    let mut flags = if keys.is_some() { ENCRYPTED } else { 0 };
    let mut length = None;
    match packing {
        Packing::None => {}
        Packing::Plain { length: before } => {
            flags |= COMPRESSED;
            length = Some(before);
        }
        Packing::Dictionary { length: before, .. } => {
            flags |= COMPRESSED | WITH_DICTIONARY;
            length = Some(before);
        }
    }
    out.extend_from_slice(&[VERSION, flags]);
    if let Packing::Dictionary { id, .. } = packing {
        put_number(u64::from(id), &mut out);
    }
    let Some(keys) = keys else {
        if let Some(length) = length {
            put_number(length as u64, &mut out);
        }
        out.extend_from_slice(bytes);
        return out;
    };
    let mut payload = Vec::with_capacity(bytes.len() + 5);
    if let Some(length) = length {
        put_number(length as u64, &mut payload);
    }
    payload.extend_from_slice(bytes);
    keys.seal(place, &payload, &mut out);
    out
}

/// The bytes in `block`, and how they were compressed.
pub(super) fn read(
    keys: Option<&Keyring>,
    place: &Place<'_>,
    block: &[u8],
) -> Result<(Packing, Vec<u8>), OpenError> {
    let mut rest = block;
    match take_byte(&mut rest)? {
        VERSION => {}
        version => return Err(OpenError::Version(version)),
    }
    let flags = take_byte(&mut rest)?;
    if flags & !(ENCRYPTED | COMPRESSED | WITH_DICTIONARY) != 0 {
        return Err(OpenError::Damaged);
    }
    let dictionary = match flags & WITH_DICTIONARY {
        0 => None,
        _ => {
            let id = take_number(&mut rest)?;
            Some(DictionaryId::try_from(id).map_err(|_| OpenError::Damaged)?)
        }
    };
    let opened;
    if flags & ENCRYPTED != 0 {
        let Some(keys) = keys else {
            return Err(OpenError::UnknownKey(key_name(rest)));
        };
        opened = keys.open(place, block, block.len() - rest.len())?;
        rest = &opened;
    }
    let packing = match (flags & COMPRESSED, dictionary) {
        (0, None) => Packing::None,
        (0, Some(_)) => return Err(OpenError::Damaged),
        (_, dictionary) => {
            let length = take_number(&mut rest)?;
            let length = usize::try_from(length).map_err(|_| OpenError::Damaged)?;
            match dictionary {
                None => Packing::Plain { length },
                Some(id) => Packing::Dictionary { id, length },
            }
        }
    };
    Ok((packing, rest.to_vec()))
}

/// The id of the key in the block, to name it to whoever has to configure it.
fn key_name(rest: &[u8]) -> String {
    let name = rest
        .split_first()
        .and_then(|(length, rest)| rest.get(..usize::from(*length)));
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

fn take_byte(rest: &mut &[u8]) -> Result<u8, OpenError> {
    let (byte, after) = rest.split_first().ok_or(OpenError::Damaged)?;
    *rest = after;
    Ok(*byte)
}

/// Seven bits a byte, the lowest first.
fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Result<u64, OpenError> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = take_byte(rest)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(OpenError::Damaged)
}

/// The place of a block that belongs to no record.
pub(super) fn nowhere<'a>(field: &'static str, name: &'a str) -> Place<'a> {
    Place {
        field,
        id: RecordId([0; 16]),
        scope: "",
        key: name,
        generation: 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring() -> Keyring {
        Keyring::parse("a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap()
    }

    #[test]
    fn every_kind_comes_back() {
        let ring = ring();
        let place = nowhere("answer", "x");
        for keys in [None, Some(&ring)] {
            for packing in [
                Packing::None,
                Packing::Plain { length: 7_000_000 },
                Packing::Dictionary {
                    id: u32::MAX,
                    length: 0,
                },
            ] {
                let block = write(keys, &place, packing, b"bytes");
                assert_eq!(
                    read(Some(&ring), &place, &block),
                    Ok((packing, b"bytes".to_vec()))
                );
                let cut = if keys.is_some() { block.len() } else { 2 };
                for length in 0..cut {
                    assert!(read(Some(&ring), &place, &block[..length]).is_err());
                }
            }
        }
        let sealed = write(Some(&ring), &place, Packing::None, b"bytes");
        let unknown = OpenError::UnknownKey("a".to_owned());
        assert_eq!(read(None, &place, &sealed), Err(unknown));
        let newer = [9, 0, 1];
        assert_eq!(read(None, &place, &newer), Err(OpenError::Version(9)));
    }

    proptest! {
        #![proptest_config(onlyonce_testkit::soak::cases(256))]

        #[test]
        fn bent_blocks_are_errors_or_bytes_never_panics(
            block in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = read(Some(&ring()), &nowhere("answer", "x"), &block);
            let _ = read(None, &nowhere("answer", "x"), &block);
        }
    }
}

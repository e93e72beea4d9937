//! The stored form of a response: a versioned block of bytes for the head, and the body unchanged.
//!
//! A replay must equal the first answer byte for byte, so nothing here goes through text or JSON. An unknown
//! version is an error, never a default.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use onlyonce_core::{
    Spelling, Timestamp,
    record::{Evidence, MarkedBy, Notes, StoredBody, StoredResponse},
};

/// The version of the head block.
const HEAD_VERSION: u8 = 1;
/// The version of the evidence block.
const EVIDENCE_VERSION: u8 = 1;

/// The version of the notes block.
const NOTES_VERSION: u8 = 1;

const SPELLED_LITERALLY: u8 = 1;
const SPELLED_QUOTED: u8 = 1 << 1;
const MARKED_BY_COOKIES: u8 = 1 << 2;
const NEVER_REACHED: u8 = 1 << 3;
const ERASED: u8 = 1 << 4;
const NEGATIVE_AT: u8 = 1 << 5;
const ATTESTED: u8 = 1 << 6;
const NOTES_KNOWN: u8 = SPELLED_LITERALLY
    | SPELLED_QUOTED
    | MARKED_BY_COOKIES
    | NEVER_REACHED
    | ERASED
    | NEGATIVE_AT
    | ATTESTED;

const BODY_NOT_STORED: u8 = 0;
const BODY_FULL: u8 = 1;
const BODY_FULL_WITH_TRAILERS: u8 = 2;
const BODY_PACKED: u8 = 3;

/// The offset of the kind of body in a head.
const KIND_AT: usize = 3;

const EVIDENCE_COMPLETED: u8 = 1;
const EVIDENCE_NOT_EXECUTED: u8 = 2;
const EVIDENCE_CONTRADICTORY: u8 = 3;

/// A block that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The block was written by a newer version.
    #[error("a stored block has version {0}, which this program does not know")]
    Version(u8),
    /// The block is not what this version writes.
    #[error("a stored block is damaged")]
    Damaged,
}

/// The head of `response` as a block: status, headers, trailers and whether the body is stored.
pub fn encode_head(response: &StoredResponse) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.push(HEAD_VERSION);
    out.extend_from_slice(&response.status.as_u16().to_le_bytes());
    match &response.body {
        StoredBody::NotStored => out.push(BODY_NOT_STORED),
        StoredBody::Full { trailers: None, .. } => out.push(BODY_FULL),
        StoredBody::Full {
            trailers: Some(_), ..
        } => out.push(BODY_FULL_WITH_TRAILERS),
        StoredBody::Packed { length, .. } => {
            // Headers and trailers are in the block.
            out.push(BODY_PACKED);
            let length = u32::try_from(*length).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_le_bytes());
            return out;
        }
    }
    encode_headers(&response.headers, &mut out);
    if let StoredBody::Full {
        trailers: Some(trailers),
        ..
    } = &response.body
    {
        encode_headers(trailers, &mut out);
    }
    out
}

/// The response whose head is `block` and whose body is `body`.
///
/// # Errors
/// [`CodecError`] if the block is not one that this version wrote.
pub fn decode_head(block: &[u8], body: Option<Bytes>) -> Result<StoredResponse, CodecError> {
    let mut reader = Reader(block);
    match reader.byte()? {
        HEAD_VERSION => {}
        version => return Err(CodecError::Version(version)),
    }
    let status = StatusCode::from_u16(reader.u16()?).map_err(|_| CodecError::Damaged)?;
    let kind = reader.byte()?;
    if kind == BODY_PACKED {
        let length = u32::from_le_bytes(reader.array()?).into();
        reader.end()?;
        let block = body.ok_or(CodecError::Damaged)?;
        return Ok(StoredResponse {
            status,
            headers: HeaderMap::new(),
            body: StoredBody::Packed { block, length },
        });
    }
    let headers = reader.headers()?;
    let trailers = match kind {
        BODY_FULL_WITH_TRAILERS => Some(reader.headers()?),
        _ => None,
    };
    reader.end()?;
    let body = match (kind, body) {
        (BODY_NOT_STORED, None) => StoredBody::NotStored,
        (BODY_FULL | BODY_FULL_WITH_TRAILERS, Some(bytes)) => StoredBody::Full { bytes, trailers },
        _ => return Err(CodecError::Damaged),
    };
    Ok(StoredResponse {
        status,
        headers,
        body,
    })
}

/// Whether a body belongs to the head `block`.
pub(crate) fn has_body(block: &[u8]) -> bool {
    block
        .get(KIND_AT)
        .is_some_and(|kind| *kind != BODY_NOT_STORED)
}

/// The bytes of a response that are stored beside its head.
pub fn body_of(response: &StoredResponse) -> Option<&[u8]> {
    match &response.body {
        StoredBody::Full { bytes, .. } => Some(bytes),
        StoredBody::Packed { block, .. } => Some(block),
        StoredBody::NotStored => None,
    }
}

/// Evidence as a block.
pub fn encode_evidence(evidence: &Evidence) -> Vec<u8> {
    let mut out = vec![EVIDENCE_VERSION];
    match evidence {
        Evidence::NotExecuted => out.push(EVIDENCE_NOT_EXECUTED),
        Evidence::Contradictory => out.push(EVIDENCE_CONTRADICTORY),
        Evidence::Completed(response) => {
            out.push(EVIDENCE_COMPLETED);
            let head = encode_head(response);
            put_block(&head, &mut out);
            if let Some(bytes) = body_of(response) {
                put_block(bytes, &mut out);
            }
        }
    }
    out
}

/// The evidence in a block.
///
/// # Errors
/// [`CodecError`] if the block is not one that this version wrote.
pub fn decode_evidence(block: &[u8]) -> Result<Evidence, CodecError> {
    let mut reader = Reader(block);
    match reader.byte()? {
        EVIDENCE_VERSION => {}
        version => return Err(CodecError::Version(version)),
    }
    let evidence = match reader.byte()? {
        EVIDENCE_NOT_EXECUTED => Evidence::NotExecuted,
        EVIDENCE_CONTRADICTORY => Evidence::Contradictory,
        EVIDENCE_COMPLETED => {
            let head = reader.block()?;
            let body = match reader.0.is_empty() {
                true => None,
                false => Some(Bytes::copy_from_slice(reader.block()?)),
            };
            Evidence::Completed(decode_head(head, body)?.into())
        }
        _ => return Err(CodecError::Damaged),
    };
    reader.end()?;
    Ok(evidence)
}

/// Notes as a block; `None` if there are none.
pub fn encode_notes(notes: &Notes) -> Option<Vec<u8>> {
    let Notes {
        spelling,
        marked_by,
        never_reached,
        negative_at,
        erased,
        attested,
    } = notes;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let flags = flag(*spelling == Some(Spelling::Literal), SPELLED_LITERALLY)
        | flag(
            matches!(spelling, Some(Spelling::Quoted(_))),
            SPELLED_QUOTED,
        )
        | flag(*marked_by == MarkedBy::Cookies, MARKED_BY_COOKIES)
        | flag(*never_reached, NEVER_REACHED)
        | flag(*erased, ERASED)
        | flag(*attested, ATTESTED)
        | flag(negative_at.is_some(), NEGATIVE_AT);
    if flags == 0 {
        return None;
    }
    let mut out = vec![NOTES_VERSION, flags];
    if let Some(at) = negative_at {
        out.extend_from_slice(&at.0.to_le_bytes());
    }
    if let Some(Spelling::Quoted(value)) = spelling {
        put_block(value, &mut out);
    }
    Some(out)
}

/// The notes in a block, or those of a row without a block.
///
/// # Errors
/// [`CodecError`] if the block is not one that this version wrote.
pub fn decode_notes(block: Option<&[u8]>) -> Result<Notes, CodecError> {
    let Some(block) = block else {
        return Ok(Notes::default());
    };
    let mut reader = Reader(block);
    match reader.byte()? {
        NOTES_VERSION => {}
        version => return Err(CodecError::Version(version)),
    }
    let flags = reader.byte()?;
    let has = |bit: u8| flags & bit != 0;
    if flags & !NOTES_KNOWN != 0 || flags == 0 {
        return Err(CodecError::Damaged);
    }
    let negative_at = match has(NEGATIVE_AT) {
        true => Some(Timestamp(i64::from_le_bytes(reader.array()?))),
        false => None,
    };
    let spelling = match (has(SPELLED_LITERALLY), has(SPELLED_QUOTED)) {
        (false, false) => None,
        (true, false) => Some(Spelling::Literal),
        (false, true) => Some(Spelling::Quoted(reader.block()?.into())),
        (true, true) => return Err(CodecError::Damaged),
    };
    reader.end()?;
    Ok(Notes {
        spelling,
        marked_by: match has(MARKED_BY_COOKIES) {
            true => MarkedBy::Cookies,
            false => MarkedBy::Credentials,
        },
        never_reached: has(NEVER_REACHED),
        negative_at,
        erased: has(ERASED),
        attested: has(ATTESTED),
    })
}

fn encode_headers(headers: &HeaderMap, out: &mut Vec<u8>) {
    // The HTTP parser bounds the count and the lengths, far below these limits.
    out.extend_from_slice(&(headers.len() as u16).to_le_bytes());
    for (name, value) in headers {
        out.extend_from_slice(&(name.as_str().len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_str().as_bytes());
        put_block(value.as_bytes(), out);
    }
}

pub(crate) fn put_block(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Parses a block. Missing bytes are an error, never a panic.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[cfg(any(feature = "redis", feature = "dynamodb"))]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(CodecError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.take(N)?.try_into().map_err(|_| CodecError::Damaged)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, CodecError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn block(&mut self) -> Result<&'a [u8], CodecError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(usize::try_from(length).map_err(|_| CodecError::Damaged)?)
    }

    fn headers(&mut self) -> Result<HeaderMap, CodecError> {
        let count = self.u16()?;
        // The count is not trusted for an allocation: a damaged block would reserve too much.
        let mut headers = HeaderMap::with_capacity(usize::from(count.min(64)));
        for _ in 0..count {
            let length = self.u16()?;
            let name = self.take(usize::from(length))?;
            // The map may come from HTTP/2, where the library allows a quote in a name.
            let name = HeaderName::from_lowercase(name)
                .or_else(|_| HeaderName::from_bytes(name))
                .map_err(|_| CodecError::Damaged)?;
            let value = HeaderValue::from_bytes(self.block()?).map_err(|_| CodecError::Damaged)?;
            // A header map has a maximum size, beyond which appending panics.
            headers
                .try_append(name, value)
                .map_err(|_| CodecError::Damaged)?;
        }
        Ok(headers)
    }

    pub(crate) fn end(&self) -> Result<(), CodecError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(CodecError::Damaged)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.append("link", HeaderValue::from_static("<a>"));
        headers.append("link", HeaderValue::from_static("<b>"));
        headers.append("x-bytes", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        let mut trailers = HeaderMap::new();
        trailers.append("x-sum", HeaderValue::from_static("1"));
        StoredResponse {
            status: StatusCode::CREATED,
            headers,
            body: StoredBody::Full {
                bytes: Bytes::from_static(b"\x00\x01"),
                trailers: Some(trailers),
            },
        }
    }

    #[test]
    fn a_response_comes_back_as_it_was() {
        let response = sample();
        let body = Bytes::from_static(b"\x00\x01");
        assert_eq!(
            decode_head(&encode_head(&response), Some(body)),
            Ok(response.clone())
        );
        let bare = StoredResponse {
            body: StoredBody::NotStored,
            ..response
        };
        assert_eq!(decode_head(&encode_head(&bare), None), Ok(bare.clone()));
        let block = Bytes::from_static(b"block");
        let packed = StoredResponse {
            headers: HeaderMap::new(),
            body: StoredBody::Packed {
                block: block.clone(),
                length: 70_000,
            },
            ..bare
        };
        let head = encode_head(&packed);
        assert_eq!(decode_head(&head, Some(block)), Ok(packed));
        assert_eq!(decode_head(&head, None), Err(CodecError::Damaged));
    }

    #[test]
    fn evidence_comes_back_as_it_was() {
        let completed = Evidence::Completed(sample().into());
        for evidence in [Evidence::NotExecuted, Evidence::Contradictory, completed] {
            assert_eq!(decode_evidence(&encode_evidence(&evidence)), Ok(evidence));
        }
    }

    #[test]
    fn every_set_of_notes_comes_back_as_it_was() {
        let spellings = [
            None,
            Some(Spelling::Literal),
            Some(Spelling::Quoted(b"\"a b\";v=2".as_slice().into())),
        ];
        for spelling in spellings {
            for bits in 0..32_u8 {
                let notes = Notes {
                    spelling: spelling.clone(),
                    marked_by: match bits & 1 {
                        0 => MarkedBy::Credentials,
                        _ => MarkedBy::Cookies,
                    },
                    never_reached: bits & 2 != 0,
                    negative_at: (bits & 4 != 0).then_some(Timestamp(1_700_000_000_123)),
                    erased: bits & 8 != 0,
                    attested: bits & 16 != 0,
                };
                let block = encode_notes(&notes);
                assert_eq!(block.is_none(), notes == Notes::default());
                assert_eq!(decode_notes(block.as_deref()), Ok(notes));
            }
        }
        for damaged in [
            &[][..],
            &[1],
            &[1, 0],
            &[1, 3],
            &[1, 128],
            &[1, 1, 0],
            &[1, 2, 9],
        ] {
            assert_eq!(decode_notes(Some(damaged)), Err(CodecError::Damaged));
        }
        assert_eq!(decode_notes(Some(&[2, 1])), Err(CodecError::Version(2)));
    }

    /// Everything that a map can contain comes back: an unreadable answer could never be replayed.
    #[test]
    fn every_name_that_a_map_holds_comes_back() {
        let mut response = sample();
        for byte in 0..=u8::MAX {
            if let Ok(name) = HeaderName::from_lowercase(&[b'x', byte]) {
                response.headers.insert(name, HeaderValue::from_static("1"));
            }
        }
        assert!(response.headers.len() > 50);
        let body = body_of(&response).map(Bytes::copy_from_slice);
        assert_eq!(decode_head(&encode_head(&response), body), Ok(response));
    }

    /// A 16-bit count allows more than a header map can contain.
    #[test]
    fn more_headers_than_a_map_holds_are_damage() {
        let count = u16::MAX;
        let mut block = vec![HEAD_VERSION, 200, 0, BODY_FULL];
        block.extend_from_slice(&count.to_le_bytes());
        for number in 0..count {
            let name = format!("x-{number:05}");
            block.extend_from_slice(&(name.len() as u16).to_le_bytes());
            block.extend_from_slice(name.as_bytes());
            put_block(b"", &mut block);
        }
        let read = decode_head(&block, Some(Bytes::new()));
        assert_eq!(read, Err(CodecError::Damaged));
    }

    #[test]
    fn a_newer_version_is_refused() {
        let mut block = encode_head(&sample());
        block[0] = 2;
        assert_eq!(decode_head(&block, None), Err(CodecError::Version(2)));
    }

    proptest! {
        #![proptest_config(onlyonce_testkit::soak::cases(256))]

        #[test]
        fn damaged_blocks_are_errors_not_panics(
            block in proptest::collection::vec(any::<u8>(), 0..200),
            cut in 0usize..80,
        ) {
            let _ = decode_head(&block, None);
            let _ = decode_evidence(&block);
            let whole = encode_head(&sample());
            let _ = decode_head(&whole[..cut.min(whole.len())], Some(Bytes::new()));
        }

        /// A valid block with some changed bytes: an error or a response, never a panic; and what is read is
        /// written again identically.
        #[test]
        fn bent_blocks_are_read_or_refused(
            bends in proptest::collection::vec((0usize..120, any::<u8>()), 1..4),
        ) {
            let mut block = encode_head(&sample());
            let mut evidence = encode_evidence(&Evidence::Completed(sample().into()));
            for (at, byte) in bends {
                let (length, evidences) = (block.len(), evidence.len());
                block[at % length] = byte;
                evidence[at % evidences] = byte;
            }
            for body in [None, Some(Bytes::from_static(b"body"))] {
                if let Ok(response) = decode_head(&block, body.clone()) {
                    prop_assert_eq!(decode_head(&encode_head(&response), body), Ok(response));
                }
            }
            if let Ok(read) = decode_evidence(&evidence) {
                prop_assert_eq!(decode_evidence(&encode_evidence(&read)), Ok(read));
            }
        }
    }
}

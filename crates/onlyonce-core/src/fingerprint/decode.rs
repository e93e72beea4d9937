//! Decodes bodies with a Content-Encoding: a request compressed differently is the same request.
//!
//! The output of decoding is bounded, since a few bytes can expand to very many. A body that exceeds the
//! bound, is broken or has another coding stays as it is, and its coding then counts.

use std::io::{BufRead, Read};

use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header::CONTENT_ENCODING};

/// The largest decoded body, in bytes.
pub const MAX_DECODED_BYTES: usize = 8 << 20;
/// The largest ratio of decoded to encoded size.
pub const MAX_EXPANSION: usize = 32;
/// The decoded size that is always allowed, however small the encoded body, in bytes.
const ALWAYS_DECODED_BYTES: usize = 1 << 20;
/// A body with more codings than this is not decoded.
const MAX_CODINGS: usize = 4;

/// The codings of a body in the order in which they were applied, without `identity`.
pub(super) fn codings(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names.map(<[u8]>::trim_ascii);
    names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"))
}

/// The body without its codings; `None` if it has none, or one of them cannot be decoded.
pub(super) fn decoded(headers: &HeaderMap, body: &[u8]) -> Option<Vec<u8>> {
    let codings: Vec<&[u8]> = codings(headers).take(MAX_CODINGS + 1).collect();
    if codings.len() > MAX_CODINGS {
        return None;
    }
    let most = body.len().saturating_mul(MAX_EXPANSION);
    let most = most.clamp(ALWAYS_DECODED_BYTES, MAX_DECODED_BYTES);
    let mut text: Option<Vec<u8>> = None;
    for coding in codings.into_iter().rev() {
        let input = text.as_deref().unwrap_or(body);
        text = Some(undone(coding, input, most)?);
    }
    text
}

fn undone(coding: &[u8], input: &[u8], most: usize) -> Option<Vec<u8>> {
    if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
        return whole(MultiGzDecoder::new(input), most).filter(|_| !input.is_empty());
    }
    if !coding.eq_ignore_ascii_case(b"deflate") {
        return None;
    }
    // `deflate` is the zlib format; some clients send it without the zlib wrapper.
    let mut zlib = ZlibDecoder::new(input);
    if let Some(text) = whole(&mut zlib, most) {
        return is_at_end(zlib.into_inner()).then_some(text);
    }
    let mut bare = DeflateDecoder::new(input);
    let text = whole(&mut bare, most)?;
    is_at_end(bare.into_inner()).then_some(text)
}

/// The whole output of `decoder`, if it is complete and at most `most` bytes.
fn whole(decoder: impl Read, most: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(most).ok()?.checked_add(1)?;
    decoder.take(limit).read_to_end(&mut text).ok()?;
    (text.len() <= most).then_some(text)
}

/// Whether no input is left: trailing bytes would be part of the request but not be compared.
fn is_at_end(mut rest: &[u8]) -> bool {
    rest.fill_buf().is_ok_and(<[u8]>::is_empty)
}

//! Bodies under a Content-Encoding, as they were before: another compression is the same request.
//!
//! Decoding is bounded in what it makes of its input, since a few bytes can stand for very many. What is
//! beyond the bound, broken or in another coding stays as it came, and then its coding counts.

use std::io::{BufRead, Read};

use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, header::CONTENT_ENCODING};

/// The largest body that is made of an encoded one, in bytes.
pub const MAX_DECODED_BYTES: usize = 8 << 20;
/// How many times its own size an encoded body may become.
pub const MAX_EXPANSION: usize = 32;
/// What any encoded body may become, however small it is, in bytes.
const ALWAYS_DECODED_BYTES: usize = 1 << 20;
/// More codings than this, one upon the other, are not undone.
const MAX_CODINGS: usize = 4;

/// The codings of a body in the order in which they were applied, without those that do nothing.
pub(super) fn codings(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names.map(<[u8]>::trim_ascii);
    names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"))
}

/// The body without its codings; `None` if one of them cannot be undone.
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
    // `deflate` is zlib's format; some clients send it without its wrapping.
    let mut zlib = ZlibDecoder::new(input);
    if let Some(text) = whole(&mut zlib, most) {
        return is_at_end(zlib.into_inner()).then_some(text);
    }
    let mut bare = DeflateDecoder::new(input);
    let text = whole(&mut bare, most)?;
    is_at_end(bare.into_inner()).then_some(text)
}

/// All that `decoder` has, if it is whole and not more than `most`.
fn whole(decoder: impl Read, most: usize) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(most).ok()?.checked_add(1)?;
    decoder.take(limit).read_to_end(&mut text).ok()?;
    (text.len() <= most).then_some(text)
}

/// Whether nothing follows: what does would be part of the request and not be compared.
fn is_at_end(mut rest: &[u8]) -> bool {
    rest.fill_buf().is_ok_and(<[u8]>::is_empty)
}

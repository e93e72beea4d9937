//! HTTP/1.1 heads: writes those of requests, and parses those of answers.
//!
//! Deliberately absent: what a head means for the connection and for the body after it.

use std::mem::MaybeUninit;

use bytes::{Buf, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::TRANSFER_ENCODING,
};

use super::Broken;

/// The most lines and bytes in the head of an answer. The bytes of 1xx heads before it count too.
const MAX_LINES: usize = 512;
pub(super) const MAX_BYTES: usize = 512 << 10;
/// A head of up to this many lines is parsed without allocating.
const USUAL_LINES: usize = 64;

/// Appends the head of `request`, whose target is in origin form, to `out`.
pub(super) fn write<B>(request: &Request<B>, out: &mut Vec<u8>) {
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.push(b' ');
    let target = request.uri().path_and_query().map_or("/", |it| it.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in request.headers() {
        write_line(name, value, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends one line of a head, or of trailers.
pub(super) fn write_line(name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Finds the end of lines terminated by an empty one, in bytes that arrive in pieces.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Lines {
    /// The end is not before this position.
    seen: usize,
}

impl Lines {
    /// The length of the lines including the empty one, once it has arrived. A line ends with LF, with or
    /// without CR before it.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(at) = bytes[self.seen..].iter().position(|byte| *byte == b'\n') {
            let next = self.seen + at + 1;
            match bytes[next..] {
                [b'\n', ..] => return Some(next + 1),
                [b'\r', b'\n', ..] => return Some(next + 2),
                // This line break may be the first of two.
                [] | [b'\r'] => {
                    self.seen = next - 1;
                    return None;
                }
                _ => self.seen = next,
            }
        }
        self.seen = bytes.len();
        None
    }
}

/// Takes the head of an answer off `bytes`, once it is complete.
pub(super) fn take(
    bytes: &mut BytesMut,
    lines: &mut Lines,
) -> Result<Option<Response<()>>, Broken> {
    // Empty lines before the status line are skipped, as most clients do.
    while matches!(bytes[..], [b'\n', ..] | [b'\r', b'\n', ..]) {
        bytes.advance(if bytes[0] == b'\r' { 2 } else { 1 });
        *lines = Lines::default();
    }
    let Some(length) = lines.end(bytes) else {
        return Ok(None);
    };
    *lines = Lines::default();
    let head = bytes.split_to(length).freeze();
    parse(&head).map(Some)
}

fn parse(head: &Bytes) -> Result<Response<()>, Broken> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_LINES];
    match parse_into(head, &mut usual) {
        Err(Broken::Head(httparse::Error::TooManyHeaders)) => {
            let mut many = vec![MaybeUninit::uninit(); MAX_LINES];
            parse_into(head, &mut many)
        }
        parsed => parsed,
    }
}

fn parse_into<'h>(
    head: &'h Bytes,
    lines: &mut [MaybeUninit<httparse::Header<'h>>],
) -> Result<Response<()>, Broken> {
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let status = config.parse_response_with_uninit_headers(&mut parsed, head, lines);
    let (httparse::Status::Complete(length), Some(code), Some(minor)) =
        (status.map_err(Broken::Head)?, parsed.code, parsed.version)
    else {
        return Err(Broken::Head(httparse::Error::Status));
    };
    if length != head.len() {
        return Err(Broken::Head(httparse::Error::NewLine));
    }
    let mut response = Response::new(());
    *response.status_mut() =
        StatusCode::from_u16(code).map_err(|_| Broken::Head(httparse::Error::Status))?;
    *response.version_mut() = match minor {
        0 => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    *response.headers_mut() = collect(head, parsed.headers)?;
    forget_identity(response.headers_mut());
    Ok(response)
}

/// Removes `identity`, the obsolete name for no transfer coding: the body is framed as if the header were
/// absent.
fn forget_identity(headers: &mut HeaderMap) {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter().peekable();
    let is_identity = |coding: &HeaderValue| {
        let word = coding.as_bytes().trim_ascii();
        word.eq_ignore_ascii_case(b"identity")
    };
    if codings.peek().is_some() && codings.all(is_identity) {
        headers.remove(TRANSFER_ENCODING);
    }
}

/// Parses the lines of trailers.
pub(super) fn parse_trailers(bytes: &Bytes) -> Result<HeaderMap, Broken> {
    let mut lines = vec![httparse::EMPTY_HEADER; MAX_LINES];
    match httparse::parse_headers(bytes, &mut lines).map_err(Broken::Head)? {
        httparse::Status::Complete((length, lines)) if length == bytes.len() => {
            collect(bytes, lines)
        }
        _ => Err(Broken::Head(httparse::Error::NewLine)),
    }
}

/// Collects header lines. Values share the memory of the head.
fn collect(head: &Bytes, lines: &[httparse::Header<'_>]) -> Result<HeaderMap, Broken> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes());
        let name = name.map_err(|_| Broken::Head(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(line.value));
        let value = value.map_err(|_| Broken::Head(httparse::Error::HeaderValue))?;
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the end of the lines is found in the same place, wherever the bytes are cut.
    #[test]
    fn the_end_of_lines_is_found_however_they_come() {
        for (text, end) in [
            ("a: b\r\n\r\nrest", 8),
            ("a: b\n\nrest", 6),
            ("a: b\n\r\n\r\n", 7),
            ("a: b\r\n\nrest", 7),
            ("a\rb\r\n\r\r\nc\r\n\r\n", 13),
        ] {
            for cut in 0..=text.len() {
                let mut lines = Lines::default();
                let first = lines.end(&text.as_bytes()[..cut]);
                assert_eq!(first, (cut >= end).then_some(end), "{text:?} cut at {cut}");
                if first.is_none() {
                    assert_eq!(lines.end(text.as_bytes()), Some(end), "{text:?} at {cut}");
                }
            }
        }
    }
}

//! `multipart/form-data` bodies, hashed part by part, so that another boundary is the same request.
//!
//! The parser is strict on purpose. Wherever two servers could disagree about where a part ends (a preamble,
//! padding after a boundary, a line that merely begins like one, text after the end), the body is rejected
//! here and its raw bytes are hashed instead.

use super::frame::{write_framed, write_framed_with};

/// Bodies with more parts than this are hashed raw.
pub const MAX_PARTS: usize = 4_096;
/// Bodies with a part of more header lines than this are hashed raw.
pub const MAX_PART_HEADERS: usize = 64;
/// The longest boundary, in bytes (RFC 2046, section 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;

const CRLF: &[u8] = b"\r\n";

/// The boundary in the parameters of a Content-Type; `None` unless there is exactly one.
pub(super) fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let mut rest = &content_type[content_type.iter().position(|byte| *byte == b';')?..];
    let mut found = None;
    while let [b';', tail @ ..] = rest {
        let tail = tail.trim_ascii_start();
        if tail.is_empty() {
            break;
        }
        let (name, tail) = tail.split_at(tail.iter().position(|byte| *byte == b'=')?);
        let (value, tail) = parameter_value(&tail[1..])?;
        if name.eq_ignore_ascii_case(b"boundary") && found.replace(value).is_some() {
            return None;
        }
        rest = tail.trim_ascii_start();
    }
    found.filter(|boundary| matches!(rest, [] | [b';', ..]) && is_boundary(boundary))
}

/// A token or quoted string, and what follows it.
fn parameter_value(input: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let [b'"', quoted @ ..] = input else {
        let end = input
            .iter()
            .position(|byte| *byte == b';' || byte.is_ascii_whitespace())
            .unwrap_or(input.len());
        return Some((input[..end].to_vec(), &input[end..]));
    };
    let mut value = Vec::new();
    let mut bytes = quoted.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some((value, &quoted[at + 1..])),
            b'\\' => value.push(*bytes.next()?.1),
            _ => value.push(*byte),
        }
    }
    None
}

fn is_boundary(boundary: &[u8]) -> bool {
    (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len())
        && boundary.last() != Some(&b' ')
        && boundary
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(b))
}

/// Appends the parts of `body`; on `None`, `out` contains garbage past its old end.
pub(super) fn write_parts(body: &[u8], boundary: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let delimiter = [b"\r\n--", boundary].concat();
    // The first delimiter needs no line break before it, because nothing precedes it.
    let mut rest = body.strip_prefix(&delimiter[CRLF.len()..])?;
    for count in 0..=MAX_PARTS {
        if let Some(end) = rest.strip_prefix(b"--") {
            return (count > 0 && (end.is_empty() || end == CRLF)).then_some(());
        }
        let part = rest.strip_prefix(CRLF)?;
        // The line break after one delimiter could also be the one before the next.
        if part.starts_with(&delimiter[CRLF.len()..]) {
            return None;
        }
        let length = find_delimiter(part, &delimiter)?;
        let content = write_framed_with(out, |out| write_headers(&part[..length], out))?;
        write_framed(content, out);
        rest = &part[length + delimiter.len()..];
    }
    None
}

/// Appends the headers of a part and returns its content.
fn write_headers<'a>(part: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = part;
    for _ in 0..=MAX_PART_HEADERS {
        if let Some(content) = rest.strip_prefix(CRLF) {
            return Some(content);
        }
        let end = rest.windows(CRLF.len()).position(|window| window == CRLF)?;
        let line = &rest[..end];
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
        // White space in a name also begins a folded line. Servers disagree about both, and about bare line
        // breaks.
        let is_name = !name.is_empty() && name.iter().all(u8::is_ascii_graphic);
        if !is_name || value.iter().any(|byte| matches!(byte, b'\r' | b'\n')) {
            return None;
        }
        write_framed_with(out, |out| {
            out.extend(name.iter().map(u8::to_ascii_lowercase))
        });
        write_framed(value[1..].trim_ascii(), out);
        rest = &rest[end + CRLF.len()..];
    }
    None
}

/// Finds the first `delimiter`. Only its first byte is a carriage return, so a failed comparison never has to
/// restart within itself, and the search is linear.
fn find_delimiter(text: &[u8], delimiter: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += text[at..].iter().position(|byte| *byte == b'\r')?;
        if text[at..].starts_with(delimiter) {
            return Some(at);
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(body: &str, boundary: &str) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        write_parts(body.as_bytes(), boundary.as_bytes(), &mut out).map(|()| out)
    }

    fn body(boundary: &str) -> String {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n\
             --{boundary}\r\ncontent-disposition:form-data; name=\"f\"; filename=\"x\"\r\n\
             Content-Type: text/plain\r\n\r\nline\r\n--not\r\n\r\n--{boundary}--\r\n"
        )
    }

    #[test]
    fn boundaries_of_content_types() {
        for (text, expected) in [
            ("multipart/form-data; boundary=abc", Some("abc")),
            ("multipart/form-data;BOUNDARY=\"a b\"", Some("a b")),
            (
                "multipart/form-data; charset=utf-8; boundary=\"a\\:b\" ;",
                Some("a:b"),
            ),
            (
                "multipart/form-data; boundary=----WebKit7MA4",
                Some("----WebKit7MA4"),
            ),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/form-data; boundary=a; boundary=b", None),
            ("multipart/form-data; boundary=\"a", None),
            ("multipart/form-data; boundary=\"a\"b", None),
            ("multipart/form-data; boundary=\"a \"", None),
            ("multipart/form-data; boundary=a b", None),
            ("multipart/form-data; boundary", None),
        ] {
            assert_eq!(
                boundary(text.as_bytes()).as_deref(),
                expected.map(str::as_bytes),
                "{text}"
            );
        }
        let long = format!(
            "multipart/form-data; boundary={}",
            "b".repeat(MAX_BOUNDARY_BYTES + 1)
        );
        assert_eq!(boundary(long.as_bytes()), None);
    }

    #[test]
    fn a_new_boundary_is_the_same_body() {
        let one = parts(&body("one"), "one");
        assert!(one.is_some());
        assert_eq!(one, parts(&body("another"), "another"));
        assert_eq!(one, parts(body("one").trim_end(), "one"));
        assert_ne!(one, parts(&body("one").replace("line", "lime"), "one"));
        assert_ne!(
            one,
            parts(&body("one").replace("text/plain", "text/html"), "one")
        );
        assert_ne!(
            one,
            parts(&body("one").replace("name=\"a\"", "name=\"b\""), "one")
        );
    }

    #[test]
    fn doubtful_bodies_are_not_understood() {
        let good = body("b");
        for (doubtful, why) in [
            (String::new(), "empty"),
            ("--b--\r\n".to_owned(), "no part"),
            (format!("preamble\r\n{good}"), "preamble"),
            (format!("\r\n{good}"), "empty preamble"),
            (format!("{good}epilogue"), "epilogue"),
            (good.replace("--b--\r\n", ""), "no end"),
            (good.replace("--b--", "--b-"), "half an end"),
            (
                good.replace("--b--", "--bx\r\n\r\n\r\n--b--"),
                "a line that begins like a boundary",
            ),
            (good.replace("--b\r\nContent", "--b \r\nContent"), "padding"),
            (
                good.replace("--b\r\nContent", "--b\r\n--b: x\r\nContent"),
                "a header that begins like a boundary",
            ),
            (good.replace("--b\r\n", "--b\n"), "bare line feed"),
            (
                good.replace("Content-Type: text/plain", "Content-Type"),
                "no colon",
            ),
            (
                good.replace("Content-Type: text", "Content-Type : text"),
                "space before colon",
            ),
            (
                good.replace("Content-Type: text", " folded: text"),
                "folded line",
            ),
        ] {
            assert_eq!(parts(&doubtful, "b"), None, "{why}");
        }
    }

    #[test]
    fn limits() {
        let many = |count: usize| format!("{}--b--", "--b\r\n\r\n\r\n".repeat(count));
        assert!(parts(&many(MAX_PARTS), "b").is_some());
        assert!(parts(&many(MAX_PARTS + 1), "b").is_none());
        let headers = |count: usize| format!("--b\r\n{}\r\n\r\n--b--", "A: b\r\n".repeat(count));
        assert!(parts(&headers(MAX_PART_HEADERS), "b").is_some());
        assert!(parts(&headers(MAX_PART_HEADERS + 1), "b").is_none());
    }
}

//! Forms in parts.

use http::HeaderValue;
use onlyonce_core::fingerprint::{MAX_PART_HEADERS, MAX_PARTS};
use onlyonce_testkit::fuzz::Fuzz;

use super::Bodies;

/// The rest of the Content-Type, a line break, and the body.
const SEEDS: &[&str] = &[
    "; boundary=b\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b\r\n\
     content-disposition:form-data; name=\"f\"; filename=\"x\"\r\nContent-Type: text/plain\r\n\r\n\
     line\r\n--not\r\n\r\n--b--\r\n",
    ";BOUNDARY=\"b c\"; charset=utf-8\n--b c\r\n\r\n\r\n--b c--",
    "; boundary=\"a\\:b\" ;\n--a:b\r\nA: 1\r\nA: 2\r\n\r\n\r\n\r\n--a:b--",
    "; boundary=b\n--b\r\n\r\nx\r\n--b \r\n\r\n--b--",
    "; boundary=a; boundary=b\n--a\r\n\r\nx\r\n--a--",
    "; boundary=\"b \"\n--b \r\n\r\n\r\n--b --",
    "; boundary=-\n---\r\n\r\n---\r\n-----",
];

const WORDS: &[&str] = &[
    "\r\n",
    "--b",
    "\r\n--b",
    "\r\n--b\r\n",
    "--b--",
    "--b--\r\n",
    "\r\n\r\n",
    ": ",
    "A: b\r\n",
    ";",
    "; boundary=b",
    "boundary=",
    "\"",
    "--",
    "b",
    " ",
    "\r",
    "\n",
];

const NEW_BOUNDARY: &str = "8c1f6e2b4d7a9053";

/// Goal: two bodies have one fingerprint exactly where their parts are the same in the same order, whatever
/// the boundary is. A body that two servers could take apart differently is compared byte by byte.
#[test]
fn multipart() {
    let bodies = Bodies::new();
    let bare = HeaderValue::from_static("multipart/form-data");
    let new = HeaderValue::from_str(&format!("multipart/form-data; boundary={NEW_BOUNDARY}"));
    let new = new.unwrap();
    Fuzz::new("multipart", 70_000)
        .seeds(SEEDS)
        .words(WORDS)
        .run(|input| {
            let end = input
                .iter()
                .position(|byte| *byte == b'\n')
                .unwrap_or(input.len());
            let (parameters, body) = input.split_at(end);
            let body = body.get(1..).unwrap_or_default();
            let content_type = [&b"multipart/form-data"[..], parameters].concat();
            let Ok(content_type) = HeaderValue::from_bytes(&content_type) else {
                return ("no header", 0, 0);
            };
            if !parameters.is_empty() && !parameters.starts_with(b";") {
                return ("another type", 0, 0);
            }
            let this = bodies.fingerprint(&content_type, body);
            // Without a boundary nothing can be taken apart.
            let is_raw = this == bodies.fingerprint(&bare, body);
            let boundary = boundary(parameters);
            let Some(parts) = boundary
                .as_deref()
                .and_then(|boundary| parts(body, boundary))
            else {
                assert!(is_raw, "{boundary:?} is not a boundary beyond doubt");
                return ("raw", usize::from(boundary.is_some()), body.len() / 8);
            };
            let is_plain =
                parameters.starts_with(b"; boundary=") && !parameters[1..].contains(&b';');
            if is_raw {
                assert!(!is_plain, "a plain boundary was not understood");
                return ("odd", parts.len(), 0);
            }
            assert_eq!(
                bodies.fingerprint(&new, &rendered(&parts)),
                this,
                "with another boundary"
            );
            for at in 0..parts.len() {
                let mut other = parts.clone();
                other[at].1.push(b'\r');
                assert_ne!(bodies.fingerprint(&new, &rendered(&other)), this);
                other = parts.clone();
                other[at].0.push((b"a".to_vec(), b"".to_vec()));
                assert_ne!(bodies.fingerprint(&new, &rendered(&other)), this);
                other = parts.clone();
                other.swap(0, at);
                let is_same = bodies.fingerprint(&new, &rendered(&other)) == this;
                assert_eq!(is_same, other == parts);
            }
            (
                "parts",
                parts.len(),
                parts.iter().map(|part| part.0.len()).sum(),
            )
        });
}

/// The boundary that the parameters of a Content-Type name.
fn boundary(parameters: &[u8]) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = parameters.to_vec();
    while !rest.trim_ascii().is_empty() {
        let parameter = rest.trim_ascii().strip_prefix(b";")?.trim_ascii();
        if parameter.is_empty() {
            break;
        }
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&parameter[..equals], &parameter[equals + 1..]);
        let mut unquoted = Vec::new();
        let end = if value.starts_with(b"\"") {
            let mut at = 1;
            while *value.get(at)? != b'"' {
                at += usize::from(value[at] == b'\\');
                unquoted.push(*value.get(at)?);
                at += 1;
            }
            at + 1
        } else {
            let ends = |byte: &u8| *byte == b';' || byte.is_ascii_whitespace();
            let end = value.iter().position(ends).unwrap_or(value.len());
            unquoted.extend_from_slice(&value[..end]);
            end
        };
        if name.eq_ignore_ascii_case(b"boundary") {
            found.push(unquoted);
        }
        rest = value[end..].to_vec();
    }
    match found.as_slice() {
        [one] => {
            let allowed =
                |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
            let is_sound = (1..=70).contains(&one.len()) && !one.ends_with(b" ");
            (is_sound && one.iter().all(allowed)).then(|| one.clone())
        }
        _ => None,
    }
}

/// The header lines of a part, and its content.
type Part = (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

/// The parts, where every delimiter stands on a line of its own with nothing before the first and nothing
/// after the last.
fn parts(body: &[u8], boundary: &[u8]) -> Option<Vec<Part>> {
    let delimiter = [b"\r\n--", boundary].concat();
    let text = [b"\r\n", body].concat();
    let mut pieces = vec![Vec::new()];
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with(&delimiter) {
            pieces.push(Vec::new());
            at += delimiter.len();
        } else {
            pieces.last_mut()?.push(text[at]);
            at += 1;
        }
    }
    let [first, parts @ .., last] = pieces.as_slice() else {
        return None;
    };
    if !first.is_empty() || parts.is_empty() || !(last == b"--" || last == b"--\r\n") {
        return None;
    }
    if parts.len() > MAX_PARTS {
        return None;
    }
    parts.iter().map(|piece| part(piece)).collect()
}

fn part(piece: &[u8]) -> Option<Part> {
    // The line break behind the delimiter, and the empty line that ends the headers.
    let end = piece.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, content) = (&piece[..end], &piece[end + 4..]);
    let mut headers = Vec::new();
    if end > 0 {
        let head = str::from_utf8(head)
            .map(str::as_bytes)
            .unwrap_or(head)
            .strip_prefix(b"\r\n")?;
        let mut lines: Vec<Vec<u8>> = vec![Vec::new()];
        for (at, byte) in head.iter().enumerate() {
            match byte {
                b'\r' if head.get(at + 1) == Some(&b'\n') => lines.push(Vec::new()),
                b'\n' if at > 0 && head[at - 1] == b'\r' => {}
                byte => lines.last_mut()?.push(*byte),
            }
        }
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let is_name = !name.is_empty() && name.iter().all(|byte| (0x21..=0x7e).contains(byte));
            if !is_name || value.contains(&b'\r') || value.contains(&b'\n') {
                return None;
            }
            headers.push((name.to_ascii_lowercase(), value.trim_ascii().to_vec()));
        }
    }
    (headers.len() <= MAX_PART_HEADERS).then(|| (headers, content.to_vec()))
}

/// The same parts in other bytes.
fn rendered(parts: &[Part]) -> Vec<u8> {
    let mut out = Vec::new();
    for (headers, content) in parts {
        out.extend_from_slice(format!("--{NEW_BOUNDARY}\r\n").as_bytes());
        for (name, value) in headers {
            out.extend_from_slice(&name.to_ascii_uppercase());
            out.extend_from_slice(b": \t");
            out.extend_from_slice(value);
            out.extend_from_slice(b" \r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(content);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(format!("--{NEW_BOUNDARY}--\r\n").as_bytes());
    out
}

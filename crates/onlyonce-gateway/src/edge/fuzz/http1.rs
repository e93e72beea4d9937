//! HTTP/1.1: what the backend may get, what a client framed, and the target.

use onlyonce_testkit::fuzz::Fuzz;

use super::{Framed, Place};

/// Why bytes are no request.
#[derive(Debug)]
pub(super) struct NoRequest;

/// The request that `bytes` begin with and its length, by the letter of RFC 9112; `None` if it is not whole.
pub(super) fn strict(bytes: &[u8]) -> Result<Option<(Framed, usize)>, NoRequest> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = &bytes[..end];
    let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
    let mut lines = Vec::new();
    for line in head.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        lines.push(line);
    }
    let ends = head.iter().filter(|byte| **byte == b'\n').count();
    let whole = head.windows(2).filter(|two| two == b"\r\n").count();
    if ends != whole || !lines.iter().all(|line| line.iter().all(is_text)) {
        return Err(NoRequest);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let words: Vec<_> = lines[0].split(|byte| *byte == b' ').collect();
    let [method, target, b"HTTP/1.1"] = words.as_slice() else {
        return Err(NoRequest);
    };
    if method.is_empty() || !method.iter().all(is_token) || target.is_empty() {
        return Err(NoRequest);
    }
    let mut headers = Vec::new();
    for line in &lines[1..] {
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .ok_or(NoRequest)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().all(is_token) {
            return Err(NoRequest);
        }
        headers.push((text(name), value.trim_ascii().to_vec()));
    }
    let mut request = Framed {
        method: text(method),
        target: text(target),
        headers,
        body: Vec::new(),
    };
    let all = |name: &str| -> Vec<Vec<u8>> {
        let named = request
            .headers
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.clone()).collect()
    };
    let body = &bytes[end + 4..];
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    let length = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => 0,
        ([length], []) => {
            let is_number = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let length = is_number
                .then(|| text(length).parse::<usize>().ok())
                .flatten();
            let length = length.ok_or(NoRequest)?;
            match body.get(..length) {
                Some(body) => request.body = body.to_vec(),
                None => return Ok(None),
            }
            length
        }
        ([], [coding]) if coding == b"chunked" => match chunks(body, true)? {
            Some((body, length)) => {
                request.body = body;
                length
            }
            None => return Ok(None),
        },
        _ => return Err(NoRequest),
    };
    Ok(Some((request, end + 4 + length)))
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

/// The body in chunks that `bytes` begin with, and how many of them it takes.
fn chunks(bytes: &[u8], is_strict: bool) -> Result<Option<(Vec<u8>, usize)>, NoRequest> {
    let (mut body, mut at) = (Vec::new(), 0);
    let line = |at: usize| -> Option<(&[u8], usize)> {
        let end = bytes[at..].iter().position(|byte| *byte == b'\n')?;
        let line = &bytes[at..at + end];
        Some((line.strip_suffix(b"\r").unwrap_or(line), at + end + 1))
    };
    loop {
        let Some((size, next)) = line(at) else {
            return Ok(None);
        };
        let digits = size
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        if !(1..=16).contains(&digits) || (is_strict && digits != size.len()) {
            return Err(NoRequest);
        }
        let size = std::str::from_utf8(&size[..digits]).unwrap();
        let size = usize::from_str_radix(size, 16).map_err(|_| NoRequest)?;
        at = next;
        if size == 0 {
            break;
        }
        let Some(data) = at.checked_add(size).and_then(|end| bytes.get(at..end)) else {
            return Ok(None);
        };
        body.extend_from_slice(data);
        at += size;
        match bytes.get(at..at + 2) {
            Some(b"\r\n") => at += 2,
            Some(_) => return Err(NoRequest),
            None => return Ok(None),
        }
    }
    // Trailers.
    loop {
        match line(at) {
            None => return Ok(None),
            Some((b"", next)) => return Ok(Some((body, next))),
            Some((line, next)) => {
                let name = line.iter().take_while(|byte| is_token(byte)).count();
                if is_strict && (name == 0 || line.get(name) != Some(&b':')) {
                    return Err(NoRequest);
                }
                at = next;
            }
        }
    }
}

/// The requests that a client framed, read as leniently as any server may, but for the body: where its
/// length is in doubt, nothing follows.
fn framed(mut bytes: &[u8]) -> Vec<Framed> {
    let mut requests = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 100];
        let mut head = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(length)) = head.parse(bytes) else {
            return requests;
        };
        let named = |name: &str| -> Vec<&[u8]> {
            let all = head
                .headers
                .iter()
                .filter(|one| one.name.eq_ignore_ascii_case(name));
            all.map(|one| one.value.trim_ascii()).collect()
        };
        let body = &bytes[length..];
        let (lengths, codings) = (named("content-length"), named("transfer-encoding"));
        let read = match (codings.as_slice(), lengths.as_slice()) {
            ([coding], _) if coding.eq_ignore_ascii_case(b"chunked") => {
                chunks(body, false).ok().flatten()
            }
            ([], []) => Some((Vec::new(), 0)),
            ([], [first, others @ ..]) => {
                let number = std::str::from_utf8(first)
                    .ok()
                    .and_then(|text| text.parse().ok());
                let number = number.filter(|_| others.iter().all(|other| other == first));
                let whole = number.and_then(|length: usize| Some((body.get(..length)?, length)));
                whole.map(|(body, length)| (body.to_vec(), length))
            }
            _ => None,
        };
        let Some((body, taken)) = read else {
            return requests;
        };
        let header = |one: &httparse::Header<'_>| (one.name.to_owned(), one.value.to_vec());
        requests.push(Framed {
            method: head.method.unwrap_or_default().to_owned(),
            target: head.path.unwrap_or_default().to_owned(),
            headers: head.headers.iter().map(header).collect(),
            body,
        });
        bytes = &bytes[length + taken..];
    }
}

/// Whether the backend got the request that the client framed.
fn is_same(framed: &Framed, got: &Framed) -> bool {
    // An absolute target arrives without its host, and none has a fragment.
    let target = framed.target.split('#').next();
    let is_target = target == Some(&got.target) || !framed.target.starts_with('/');
    framed.method == got.method && is_target && framed.body == got.body
}

const SEEDS: &[&str] = &[
    "POST /p/@@@@@@@@ HTTP/1.1\r\nhost: h\r\nidempotency-key: k-@@@@@@@@\r\ncontent-type: application/json\r\n\
     content-length: 8\r\n\r\n{\"a\": 1}",
    "POST /p HTTP/1.1\r\nHost: h\r\nIdempotency-Key: \"k-@@@@@@@@\"\r\nTransfer-Encoding: chunked\r\n\r\n\
     4;x=y\r\nbody\r\n3\r\n@@@\r\n0\r\nx-sum: 1\r\n\r\n",
    "POST /a HTTP/1.1\r\nhost: h\r\nidempotency-key: k-@@@@@@@@\r\ncontent-length: 3\r\n\r\nabc\
     GET /b HTTP/1.1\r\nhost: h\r\n\r\nPUT /c HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nde",
    "POST /s HTTP/1.1\r\nhost: h\r\nidempotency-key: k-@@@@@@@@\r\ncontent-length: 4\r\n\
     transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n",
    "POST http://h:80/x?y HTTP/1.1\r\nhost: other\r\nidempotency-key: k-@@@@@@@@\r\nexpect: 100-continue\r\n\
     connection: close, x-hop\r\nx-hop: 1\r\ncontent-length: 1\r\n\r\na",
    "\r\n\nGET / HTTP/1.0\nhost: h\n\n",
    "PATCH /u HTTP/1.1\r\nhost: h\r\nidempotency-key: k-@@@@@@@@\r\nupgrade: x\r\nconnection: upgrade\r\n\
     content-length: 0\r\n\r\n",
];

const WORDS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    "0\r\n\r\n",
    "1\r\na\r\n",
    "content-length: 1\r\n",
    "content-length: 5\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: identity\r\n",
    "transfer-encoding:\tchunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "transfer_encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "connection: content-length\r\n",
    "connection: transfer-encoding\r\n",
    "connection: idempotency-key\r\n",
    "idempotency-key: k-@@@@@@@@\r\n",
    "host: h\r\n",
    "GET / HTTP/1.1\r\nhost: h\r\n\r\n",
    "POST / HTTP/1.1\r\n",
    " HTTP/1.1\r\n",
    "HTTP/1.0",
    ";",
    " ",
    "\t",
    "+",
    "0x",
    "\0",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "content-type: text/plain\r\n",
    "content-encoding: gzip\r\n",
    "expect: 100-continue\r\n",
    "trailer: a\r\n",
    "te: trailers\r\n",
];

#[test]
fn http1() {
    let (mut place, mut executed) = (Place::start(), 0_u64);
    let executions = Fuzz::new("http1", 2_500)
        .seeds(SEEDS)
        .words(WORDS)
        .max_bytes(1_000)
        .run(|input| {
            let bytes = place.numbered(input);
            let framed = framed(&bytes);
            let count = framed.len();
            place.expect(framed);
            let answers = place.exchange(&bytes);
            let arrived = place.arrived(is_same);
            let statuses: Vec<_> = statuses(&answers).collect();
            assert!(statuses.len() <= count + 1, "more answers than requests");
            for one in arrived.iter().filter(|one| is_keyed(one)) {
                replays(&mut place, one);
            }
            executed += arrived.len() as u64;
            let statuses: Vec<_> = statuses.into_iter().take(4).collect();
            (arrived.len(), statuses)
        });
    assert!(executed >= executions / 20, "only {executed} were executed");
}

/// Whether its key counts.
fn is_keyed(got: &Framed) -> bool {
    let method = got.method.to_ascii_uppercase();
    matches!(&*method, "POST" | "PUT" | "PATCH") && got.header("idempotency-key").is_some()
}

/// The statuses of final answers.
fn statuses(answers: &[u8]) -> impl Iterator<Item = [u8; 3]> {
    let begins = answers
        .windows(12)
        .filter(|window| window.starts_with(b"HTTP/1.1 "));
    let statuses = begins.map(|window| [window[9], window[10], window[11]]);
    statuses.filter(|status| status[0] != b'1')
}

/// Goal: the body that was compared is the one that was forwarded. Sent again in the plainest form, the
/// request that the backend got is the same request, and it gets nothing new.
fn replays(place: &mut Place, got: &Framed) {
    const OURS: &[&str] = &[
        "content-length",
        "transfer-encoding",
        "connection",
        "forwarded",
        "via",
        "x-request-id",
        "idempotency-attempt",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
    ];
    let mut again = format!("{} {} HTTP/1.1\r\n", got.method, got.target).into_bytes();
    for (name, value) in &got.headers {
        if !OURS.contains(&&*name.to_ascii_lowercase()) {
            again.extend_from_slice(name.as_bytes());
            again.extend_from_slice(b": ");
            again.extend_from_slice(value);
            again.extend_from_slice(b"\r\n");
        }
    }
    again.extend_from_slice(format!("content-length: {}\r\n\r\n", got.body.len()).as_bytes());
    again.extend_from_slice(&got.body);
    let answers = place.exchange(&again);
    assert!(place.arrived(is_same).is_empty(), "executed again");
    let answers = String::from_utf8_lossy(&answers).to_ascii_lowercase();
    assert!(answers.contains("x-idempotent-replayed: true"), "{answers}");
}

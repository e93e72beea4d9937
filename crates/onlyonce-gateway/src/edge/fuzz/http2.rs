//! HTTP/2: frames in any order, cut, padded, repeated and reset.

use std::time::Duration;

use onlyonce_testkit::fuzz::Fuzz;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{
    Framed, Place,
    frames::{
        CONTINUATION, DATA, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
        WINDOW_UPDATE, block, frame, frames, whole_bodies,
    },
    within,
};

/// How long to wait for answers that may never be due, because the client reset a stream or closed its
/// window. Nothing depends on it but how many executions are seen.
const PATIENCE: Duration = Duration::from_millis(30);

/// Frames as lines: kind, flags and stream, then the payload. Header lines are `name=value`, with `&`
/// between them; small letters give the payload as it is, and `!` bytes that are no frame at all.
const SEEDS: &[&str] = &[
    "H4 1 :method=POST&:scheme=http&:authority=h&:path=/p/@@@@@@@@&idempotency-key=k-@@@@@@@@&content-type=application/json\n\
     D1 1 {\"a\": 1}\n",
    "H0 1 :method=POST&:scheme=http&:authority=h&:path=/c\nC4 1 idempotency-key=\"k-@@@@@@@@\"\n\
     D8 1 \u{3}body\0\0\0\nD9 1 \u{1}more\0\n",
    "H4 1 :method=PUT&:scheme=http&:authority=h&:path=/s&idempotency-key=k-@@@@@@@@&content-length=4\n\
     H5 3 :method=GET&:scheme=http&:authority=h&:path=/g\nD0 1 ab\nD1 1 cd\n",
    "H4 1 :method=POST&:scheme=http&:authority=h&:path=/t&idempotency-key=k-@@@@@@@@\nD0 1 @@@@@@@@\nH5 1 x-sum=1\n",
    "H4 1 :method=POST&:scheme=http&:authority=h&:path=/r&idempotency-key=k-@@@@@@@@\nD0 1 part\nR0 1 \0\0\0\0\n\
     H4 3 :method=POST&:scheme=http&:authority=h&:path=/r&idempotency-key=l-@@@@@@@@\nD0 3 part\nR0 3 \0\0\0\u{8}\n\
     H5 5 :method=POST&:scheme=http&:authority=h&:path=/r&idempotency-key=m-@@@@@@@@\nR0 5 \0\0\0\u{8}\n",
    "S0 0 \0\u{4}\0\0\0\0\nW0 0 \0\0\u{1}\0\nH4 1 :method=POST&:scheme=http&:authority=h&:path=/w&idempotency-key=k-@@@@@@@@&content-length=4\n\
     D1 1 abc\n",
    "H4 1 :method=PATCH&:scheme=http&:path=/n&host=h&idempotency-key=k-@@@@@@@@&te=trailers&cookie=a&cookie=b\nD0 1 \nD0 1 \nD1 1 \n",
];

const WORDS: &[&str] = &[
    "D1 1 x\n",
    "D0 1 y\n",
    "D0 1 \n",
    "D1 3 z\n",
    "D9 1 \u{5}pad\n",
    "R0 1 \0\0\0\u{8}\n",
    "R0 3 \0\0\0\0\n",
    "C4 1 \n",
    "C0 1 x=y\n",
    "S0 0 \n",
    "S1 0 \n",
    "P0 0 12345678\n",
    "G0 0 \0\0\0\0\0\0\0\0\n",
    "W0 1 \0\0\0\0\n",
    "U0 1 unknown\n",
    "H5 1 x-sum=2\n",
    "&content-length=8",
    "&content-length=0",
    "&transfer-encoding=chunked",
    "&connection=close",
    "&idempotency-key=k",
    "&:path=/x",
    "&host=other",
    "&expect=100-continue",
    "&X=y",
    "&a\"b=c",
    "H5 3 :method=POST&:scheme=http&:authority=h&:path=/w&idempotency-key=w-@@@@@@@@\n",
    "H4 5 :method=POST&:scheme=http&:authority=h&:path=/w&idempotency-key=v-@@@@@@@@\n",
    "D1 5 @@@@@@@@\n",
    "!\0\0\n",
    "h4 1 \u{80}\n",
];

/// The frames that the lines stand for.
fn wire(lines: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (Some([kind, flags @ ..]), Some(stream)) = (words.next(), words.next()) else {
            out.extend_from_slice(line.strip_prefix(b"!").unwrap_or_default());
            continue;
        };
        let payload = words.next().unwrap_or_default();
        let number = |text: &[u8], radix: u32| {
            let text = std::str::from_utf8(text).unwrap_or_default();
            u32::from_str_radix(text, radix).unwrap_or(0)
        };
        let payload = match kind {
            b'H' | b'C' => block(payload),
            _ => payload.to_vec(),
        };
        let kind = match kind.to_ascii_uppercase() {
            b'D' => DATA,
            b'H' => HEADERS,
            b'R' => RST_STREAM,
            b'S' => SETTINGS,
            b'P' => PING,
            b'G' => GOAWAY,
            b'W' => WINDOW_UPDATE,
            b'C' => CONTINUATION,
            other => other,
        };
        let flags = number(flags, 16).to_le_bytes()[0];
        out.extend(frame(kind, flags, number(stream, 10), &payload));
    }
    out
}

/// Goal: a stream that the client did not end is never executed, and one that it did at most once.
#[test]
fn http2() {
    let (mut place, mut executed) = (Place::start(), 0_u64);
    let executions = Fuzz::new("http2", 2_500)
        .seeds(SEEDS)
        .words(WORDS)
        .max_bytes(1_000)
        .run(|input| {
            let bytes = wire(&place.numbered(input));
            let (sent, left) = frames(&bytes);
            let bodies = whole_bodies(&sent);
            let count = bodies.len();
            let framed = bodies.into_iter().map(|body| Framed {
                method: String::new(),
                target: String::new(),
                headers: Vec::new(),
                body,
            });
            place.expect(framed.collect());
            let (answered, ended) = converse(&place, &bytes, left.is_empty(), count);
            let arrived = place.arrived(|framed, got| framed.body == got.body);
            executed += arrived.len() as u64;
            (arrived.len(), answered.min(4), ended)
        });
    assert!(executed >= executions / 20, "only {executed} were executed");
}

/// Sends the frames; how many streams were answered, and whether the gateway ended the connection.
fn converse(place: &Place, bytes: &[u8], is_whole: bool, count: usize) -> (usize, bool) {
    place.runtime.block_on(within(async {
        let mut socket = onlyonce_testkit::fuzz::connect(place.address)
            .await
            .unwrap();
        let mut out = [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat();
        out.extend_from_slice(bytes);
        if is_whole {
            out.extend(frame(PING, 0, 0, b"the end."));
        }
        let _ = socket.write_all(&out).await;
        let (mut answers, mut ended) = (Vec::new(), false);
        // A frame that was begun is waited for by the gateway, so there is nothing to wait for here.
        while is_whole && !ended && !is_answered(&answers, count) {
            let read = tokio::time::timeout(PATIENCE, socket.read_buf(&mut answers)).await;
            match read {
                Ok(Ok(1..)) => {}
                Ok(_) => ended = true,
                Err(_) => break,
            }
        }
        let _ = socket.shutdown().await;
        let _ = socket.read_to_end(&mut answers).await;
        (answered(&answers), ended)
    }))
}

/// The streams that the gateway ended.
fn answered(answers: &[u8]) -> usize {
    let (frames, _) = frames(answers);
    let ends = |kind: u8, flags: u8| {
        kind == RST_STREAM || (matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0)
    };
    frames
        .iter()
        .filter(|one| ends(one.kind, one.flags))
        .count()
}

fn is_answered(answers: &[u8], count: usize) -> bool {
    let (frames, _) = frames(answers);
    let heard = |one: &super::frames::Frame<'_>| one.kind == PING && one.payload == b"the end.";
    frames.iter().any(heard) && answered(answers) >= count
}

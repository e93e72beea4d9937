//! Requests of which a part arrives.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};

use super::transport::{Ending, Over, Stream};
use crate::harness::{
    Gateway, REPLAYED, Script, Setup, Upstream,
    frames::{
        CODES, DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame, goaway, literal,
        rst_stream,
    },
    secure::file,
    within,
};

const BODY: &str = "amount=10";
/// Cases under way at once.
const AT_ONCE: usize = 16;

/// A gateway that is spoken to `over` this.
async fn gateway(upstream: &Upstream, over: Over) -> Gateway {
    let setup = Setup::with("");
    let setup = match over {
        Over::Plain => setup,
        Over::Tls => {
            let (cert, key) = (file("server.pem"), file("server.key"));
            let (cert, key) = (cert.display(), key.display());
            setup.top(&format!("tls: {{ cert: \"{cert}\", key: \"{key}\" }}"))
        }
    };
    setup.start(upstream).await
}

/// Stops the gateway, so that nothing is under way any more, and compares what the upstream has
/// executed with `whole`, the keys of messages that were sent whole.
async fn only_whole_ones(mut gateway: Gateway, upstream: &Upstream, whole: &[String]) {
    gateway.sigterm();
    gateway.exited().await;
    let mut executed: BTreeMap<String, usize> = BTreeMap::new();
    for request in upstream.requests() {
        let key = request.headers.one("idempotency-key").unwrap_or("no key");
        *executed.entry(key.to_owned()).or_default() += 1;
    }
    let expected = whole.iter().map(|key| (key.clone(), 1)).collect();
    assert_eq!(executed, expected, "executed, against sent whole");
    gateway.restart().await;
    for state in ["in_progress", "failed_retryable", "unknown"] {
        assert_eq!(gateway.count_in_state(state).await, 0, "{state}");
    }
    let completed = gateway.count_in_state("completed").await;
    assert_eq!(completed, whole.len(), "records");
}

/// How an HTTP/1.1 body is delimited.
#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    /// One byte more than comes.
    LongerLength,
    Chunks,
    Trailers,
}

/// The message, and whether all of it is whole.
fn http1(key: &str, framing: Framing) -> (Vec<u8>, bool) {
    let (line, body) = match framing {
        Framing::Length => (format!("Content-Length: {}", BODY.len()), BODY.to_owned()),
        Framing::LongerLength => {
            let longer = BODY.len() + 1;
            (format!("Content-Length: {longer}"), BODY.to_owned())
        }
        Framing::Chunks | Framing::Trailers => {
            let trailer = match framing {
                Framing::Trailers => "X-Sum: 1\r\n",
                _ => "",
            };
            let (one, two) = BODY.split_at(3);
            let body = format!("3\r\n{one}\r\n6\r\n{two}\r\n0\r\n{trailer}\r\n");
            ("Transfer-Encoding: chunked".to_owned(), body)
        }
    };
    let text = format!(
        "POST /p HTTP/1.1\r\nHost: api.test\r\n\
         Connection: close\r\nIdempotency-Key: {key}\r\n{line}\r\n\r\n{body}"
    );
    (text.into_bytes(), !matches!(framing, Framing::LongerLength))
}

async fn over_http1(over: Over) {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, over).await;
    let (mut cases, mut whole) = (Vec::new(), Vec::new());
    for framing in [
        Framing::Length,
        Framing::LongerLength,
        Framing::Chunks,
        Framing::Trailers,
    ] {
        let all = http1("part-0000", framing).0.len();
        for ending in Ending::all(over) {
            for sent in 0..=all {
                let key = format!("part-{:04}", cases.len());
                let (bytes, is_whole) = http1(&key, framing);
                if sent == all && is_whole {
                    // The whole of it is sent below, by a client that stays.
                    continue;
                }
                cases.push((bytes[..sent].to_vec(), *ending));
            }
        }
        let key = format!("whole-{framing:?}");
        let (bytes, is_whole) = http1(&key, framing);
        if is_whole {
            let mut stream = Stream::open(gateway.data(), over, false).await;
            stream.write(&bytes).await;
            let mut first = [0; 12];
            within("an answer", stream.read(&mut first)).await.unwrap();
            assert_eq!(&first, b"HTTP/1.1 201");
            whole.push(key);
        }
    }
    println!("HTTP/1.1 {over:?}: {} parts of requests", cases.len());
    let to = gateway.data();
    stream::iter(cases)
        .for_each_concurrent(AT_ONCE, |(bytes, ending)| async move {
            let mut stream = Stream::open(to, over, false).await;
            stream.write(&bytes).await;
            stream.end(ending).await;
        })
        .await;
    only_whole_ones(gateway, &upstream, &whole).await;
}

/// Goal: of a request over HTTP/1.1 all is executed, or nothing.
///
/// Method: every prefix of a message in four framings, ended by FIN and by a reset.
/// Evidence: after the gateway has stopped, the upstream has executed what was sent whole, once, and
/// nothing else; no other key has a record.
#[tokio::test]
async fn http1_in_plain_text() {
    over_http1(Over::Plain).await;
}

/// The same over TLS, where the end of a connection may also lack its `close_notify`.
#[tokio::test]
async fn http1_over_tls() {
    over_http1(Over::Tls).await;
}

/// What the head of an HTTP/2 request says, and whether it has a key.
#[derive(Clone, Copy, Debug)]
struct Head {
    length: Option<usize>,
    has_key: bool,
}

const HEADS: [Head; 5] = [
    Head {
        length: Some(BODY.len()),
        has_key: true,
    },
    Head {
        length: Some(BODY.len() + 1),
        has_key: true,
    },
    Head {
        length: Some(BODY.len() - 1),
        has_key: true,
    },
    Head {
        length: None,
        has_key: true,
    },
    // Forwarded as it comes, and its end with it.
    Head {
        length: None,
        has_key: false,
    },
];

fn head(stream: u32, key: &str, head: Head) -> Vec<u8> {
    let mut block = [
        literal(":method", "POST"),
        literal(":scheme", "http"),
        literal(":authority", "api.test"),
        literal(":path", "/p"),
    ]
    .concat();
    if let Some(length) = head.length {
        block.extend(literal("content-length", &length.to_string()));
    }
    if head.has_key {
        block.extend(literal("idempotency-key", key));
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The first `sent` bytes of the body, in frames that do not end the stream.
fn part(stream: u32, sent: usize) -> Vec<u8> {
    let (one, two) = BODY[..sent].split_at(sent.min(3));
    let mut bytes = frame(DATA, 0, stream, one.as_bytes());
    if !two.is_empty() {
        bytes.extend(frame(DATA, 0, stream, two.as_bytes()));
    }
    bytes
}

fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A request that is whole, to see that the connection still serves.
async fn whole_over(stream: &mut Stream, id: u32, key: &str) {
    let what = Head {
        length: None,
        has_key: true,
    };
    let body = frame(DATA, END_STREAM, id, BODY.as_bytes());
    stream.write(&[head(id, key, what), body].concat()).await;
    within("an answer", async {
        while !matches!(stream.frame().await.unwrap(), (HEADERS, _, of, _) if of == id) {}
    })
    .await;
}

async fn over_http2(over: Over) {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, over).await;
    let (mut whole, mut parts) = (Vec::new(), 0);
    // Each stream reset with each code, at once or after the gateway has read what there is.
    for what in HEADS {
        for sent in 0..=BODY.len() {
            for is_read_first in [true, false] {
                let mut stream = Stream::open(gateway.data(), over, true).await;
                stream.write(&hello()).await;
                let (mut begins, mut resets) = (Vec::new(), Vec::new());
                let mut id = 1;
                for code in CODES {
                    begins.extend(head(id, &format!("part-{parts}"), what));
                    begins.extend(part(id, sent));
                    resets.extend(rst_stream(id, code));
                    (parts, id) = (parts + 1, id + 2);
                }
                stream.write(&begins).await;
                if is_read_first {
                    stream.heard().await.unwrap();
                }
                stream.write(&resets).await;
                stream.heard().await.unwrap();
                if sent == BODY.len() / 2 {
                    let key = format!("whole-{}", whole.len());
                    whole_over(&mut stream, id, &key).await;
                    whole.push(key);
                }
                stream.end(Ending::Fin).await;
            }
        }
    }
    // A length that the stream itself contradicts.
    for what in HEADS.into_iter().take(3).skip(1) {
        let mut stream = Stream::open(gateway.data(), over, true).await;
        let end = frame(DATA, END_STREAM, 1, BODY.as_bytes());
        let bytes = [hello(), head(1, "contradicted", what), end].concat();
        stream.write(&bytes).await;
        stream.heard().await.unwrap();
        stream.end(Ending::Fin).await;
        parts += 1;
    }
    // The connection ends at every byte.
    let mut cases = Vec::new();
    for what in HEADS.into_iter().take(4) {
        let bytes = |key: &str| {
            let end = frame(DATA, END_STREAM, 1, &BODY.as_bytes()[4..]);
            [hello(), head(1, key, what), part(1, 4), end].concat()
        };
        for sent in 0..bytes("part-0000").len() {
            for ending in Ending::all(over) {
                let key = format!("cut-{:05}", cases.len());
                let first = bytes(&key)[..sent].to_vec();
                cases.push((first, *ending));
            }
        }
        for sent in 0..=BODY.len() {
            for code in CODES {
                let key = format!("gone-{:05}", cases.len());
                let bytes = [hello(), head(1, &key, what), part(1, sent), goaway(0, code)];
                cases.push((bytes.concat(), Ending::Fin));
            }
        }
    }
    println!(
        "HTTP/2 {over:?}: {parts} streams and {} connections of parts",
        cases.len()
    );
    let to = gateway.data();
    stream::iter(cases)
        .for_each_concurrent(AT_ONCE, |(bytes, ending)| async move {
            let mut stream = Stream::open(to, over, true).await;
            stream.write(&bytes).await;
            stream.end(ending).await;
        })
        .await;
    only_whole_ones(gateway, &upstream, &whole).await;
}

/// Goal: of a request over HTTP/2 all is executed, or nothing; without a key none of it ends upstream as
/// if it were all.
///
/// Method: every prefix of the body, its stream reset with every code, before and after it was read;
/// lengths that are declared too long and too short; every prefix of a connection, ended by FIN, GOAWAY
/// and a reset.
/// Evidence: as for HTTP/1.1.
#[tokio::test]
async fn http2_in_plain_text() {
    over_http2(Over::Plain).await;
}

/// The same over TLS.
#[tokio::test]
async fn http2_over_tls() {
    over_http2(Over::Tls).await;
}

/// Goal: a reset after END_STREAM changes nothing.
///
/// Method: a whole request, reset with each code while the upstream holds it; and one that is reset in
/// the same breath.
/// Evidence: one execution, and its answer is replayed.
#[tokio::test]
async fn a_reset_after_the_end() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    for (number, code) in CODES.into_iter().enumerate() {
        let what = HEADS[number % 2 * 3];
        let whole = |id, key: &str| {
            let end = frame(DATA, END_STREAM, id, BODY.as_bytes());
            [head(id, key, what), end].concat()
        };
        let (held, breath) = (format!("held-{code}"), format!("breath-{code}"));
        upstream.always_for(&held, Script::created().held());
        let mut stream = Stream::open(gateway.data(), Over::Plain, true).await;
        stream.write(&[hello(), whole(1, &held)].concat()).await;
        upstream.begun(2 * number + 1).await;
        stream.write(&rst_stream(1, code)).await;
        stream.heard().await.unwrap();
        upstream.release();
        let bytes = [whole(3, &breath), rst_stream(3, code)].concat();
        stream.write(&bytes).await;
        stream.heard().await.unwrap();
        for key in [held, breath] {
            gateway.until_state(&key, "completed").await;
            let mut retry = Stream::open(gateway.data(), Over::Plain, false).await;
            retry.write(&http1(&key, Framing::Length).0).await;
            let answer = String::from_utf8(retry.until_closed().await).unwrap();
            let answer = answer.to_ascii_lowercase();
            assert!(answer.starts_with("http/1.1 201"), "{key}: {answer}");
            let marker = format!("{}: true", REPLAYED.to_ascii_lowercase());
            assert!(answer.contains(&marker), "{key}: {answer}");
            assert_eq!(upstream.executions_of(&key), 1, "{key}");
        }
    }
}

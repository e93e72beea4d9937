//! Answers of which a part arrives.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use super::transport::{Ending, Over, Stream, acceptor};
use crate::harness::{
    Connection, Gateway, REPLAYED, Request, Setup,
    frames::{
        ACK, CODES, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, SETTINGS, frame, goaway,
        literal, rst_stream,
    },
    secure::file,
    within,
};

const BODY: &str = r#"{"paid":1}"#;
/// The stream that a prepared HTTP/2 answer names, until it is known which one it is.
const THIS_STREAM: u32 = 0x7eee_eeee;
/// REFUSED_STREAM: by this an upstream says that it has not acted.
const REFUSED: u32 = 7;

/// What the upstream says next, and how it ends the connection then.
#[derive(Clone, Debug)]
struct Play {
    bytes: Vec<u8>,
    ending: Ending,
}

/// An upstream that answers each request, one at a time, with the bytes that it was told.
struct Stage {
    addr: SocketAddr,
    next: Arc<Mutex<Option<Play>>>,
    executions: Arc<AtomicUsize>,
    ended: watch::Sender<usize>,
    serving: JoinHandle<()>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Stage {
    async fn open(over: Over, is_http2: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let next: Arc<Mutex<Option<Play>>> = Arc::default();
        let executions: Arc<AtomicUsize> = Arc::default();
        let protocol = if is_http2 { "h2" } else { "http/1.1" };
        let tls = (over == Over::Tls).then(|| acceptor(protocol));
        let ended = watch::Sender::new(0);
        let shared = (next.clone(), executions.clone(), ended.clone());
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let ((next, executions, ended), tls) = (shared.clone(), tls.clone());
                tokio::spawn(async move {
                    serve(stream, tls.as_ref(), is_http2, &next, &executions).await;
                    ended.send_modify(|count| *count += 1);
                });
            }
        });
        Self {
            addr,
            next,
            executions,
            ended,
            serving,
        }
    }

    fn plays(&self, bytes: Vec<u8>, ending: Ending) {
        *self.next.lock() = Some(Play { bytes, ending });
    }

    fn executions(&self) -> usize {
        self.executions.load(Ordering::Acquire)
    }
}

async fn serve(
    stream: tokio::net::TcpStream,
    tls: Option<&TlsAcceptor>,
    is_http2: bool,
    next: &Mutex<Option<Play>>,
    executions: &AtomicUsize,
) {
    let Ok(mut stream) = Stream::accept(stream, tls).await else {
        return;
    };
    if is_http2 {
        let mut preface = [0; PREFACE.len()];
        let mut seen = 0;
        while seen < preface.len() {
            match stream.read(&mut preface[seen..]).await {
                Ok(count @ 1..) => seen += count,
                _ => return,
            }
        }
        stream.write(&frame(SETTINGS, 0, 0, &[])).await;
    }
    loop {
        let Some(id) = (match is_http2 {
            true => request2(&mut stream).await,
            false => request1(&mut stream).await,
        }) else {
            return;
        };
        executions.fetch_add(1, Ordering::AcqRel);
        let Some(play) = next.lock().take() else {
            return;
        };
        let named = THIS_STREAM.to_be_bytes();
        let mut bytes = play.bytes;
        while let Some(at) = bytes.windows(4).position(|four| four == named) {
            bytes[at..at + 4].copy_from_slice(&id.to_be_bytes());
        }
        stream.write(&bytes).await;
        if play.ending != Ending::Open {
            return stream.end(play.ending).await;
        }
    }
}

/// A whole request over HTTP/1.1, whose body has a length.
async fn request1(stream: &mut Stream) -> Option<u32> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4_096]);
    loop {
        let text = String::from_utf8_lossy(&seen).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1)?;
            let length: usize = length.split("\r\n").next()?.parse().ok()?;
            if body.len() >= length {
                return Some(0);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(count @ 1..) => seen.extend(&buffer[..count]),
            _ => return None,
        }
    }
}

/// A whole request over HTTP/2, and its stream.
async fn request2(stream: &mut Stream) -> Option<u32> {
    loop {
        match stream.frame().await.ok()? {
            (HEADERS | DATA, flags, id, _) if flags & END_STREAM != 0 => return Some(id),
            (SETTINGS, 0, ..) => stream.write(&frame(SETTINGS, ACK, 0, &[])).await,
            (PING, 0, _, payload) => stream.write(&frame(PING, ACK, 0, &payload)).await,
            _ => {}
        }
    }
}

/// A gateway before a stage, and a client of it.
struct Theatre {
    stage: Stage,
    gateway: Gateway,
    client: Connection,
    number: usize,
}

impl Theatre {
    async fn open(over: Over, is_http2: bool) -> Self {
        let stage = Stage::open(over, is_http2).await;
        let backend = match over {
            Over::Plain => format!("url: \"http://{}\", http2: {is_http2}", stage.addr),
            Over::Tls => {
                let ca = file("ca.pem");
                let addr = stage.addr.to_string().replace("127.0.0.1", "localhost");
                format!("url: \"https://{addr}\", ca_file: \"{}\"", ca.display())
            }
        };
        let gateway = Setup::with("")
            .store("memory:")
            .replacing_backends(&format!("backends: [{{ {backend} }}]"))
            .start_before("http://unused")
            .await;
        let client = Connection::open(gateway.data()).await.unwrap();
        Self {
            stage,
            gateway,
            client,
            number: 0,
        }
    }

    fn request(&self) -> Request {
        Request::pay(&format!("answer-{:05}", self.number))
    }

    /// One request, which the upstream answers with `bytes`; then the same again, which must not reach it.
    /// Returns the statuses of both, and whether the second was a replay.
    async fn play(&mut self, bytes: Vec<u8>, ending: Ending) -> (u16, u16, bool) {
        self.number += 1;
        let before = self.stage.executions();
        self.stage.plays(bytes, ending);
        let mut ended = self.stage.ended.subscribe();
        ended.mark_unchanged();
        let request = self.request();
        let first = self.client.send(&request).await.unwrap();
        assert_eq!(self.stage.executions(), before + 1, "{first}");
        if matches!(ending, Ending::Fin | Ending::BareFin) {
            // Until the gateway has closed it as well, so that the next request takes another one.
            within("the connection's end", ended.changed())
                .await
                .unwrap();
        }
        let second = self.client.send(&request).await.unwrap();
        let replayed = second.header(REPLAYED) == Some("true");
        (first.status, second.status, replayed)
    }

    /// A part of an answer: unknown, and not executed again.
    async fn is_unknown(&mut self, case: &str, bytes: Vec<u8>, ending: Ending) {
        let before = self.stage.executions();
        let played = self.play(bytes, ending).await;
        assert_eq!(played, (502, 409, false), "{case}, then {ending:?}");
        assert_eq!(self.stage.executions(), before + 1, "{case}, {ending:?}");
    }

    /// A whole answer: stored, and replayed.
    async fn is_stored(&mut self, case: &str, bytes: Vec<u8>, ending: Ending) {
        let before = self.stage.executions();
        let played = self.play(bytes, ending).await;
        assert_eq!(played, (201, 201, true), "{case}, then {ending:?}");
        assert_eq!(self.stage.executions(), before + 1, "{case}, {ending:?}");
    }

    /// The same without a key: the client gets no whole answer.
    async fn breaks_off(&mut self, case: &str, bytes: Vec<u8>, ending: Ending) {
        self.stage.plays(bytes, ending);
        let request = Request::post("/p").json("{}");
        let answer = self.gateway.try_send(&request).await;
        if let Ok(answer) = answer {
            assert_eq!(answer.status, 502, "{case}, then {ending:?}: {answer}");
        }
    }
}

/// How an HTTP/1.1 answer is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length,
    LongerLength,
    Chunks,
    Trailers,
    Close,
}

fn http1(framing: Framing) -> Vec<u8> {
    let (one, two) = BODY.split_at(4);
    let chunks = format!("4\r\n{one}\r\n6\r\n{two}\r\n0\r\n");
    let (line, body) = match framing {
        Framing::Length => ("Content-Length: 10\r\n", BODY.to_owned()),
        Framing::LongerLength => ("Content-Length: 11\r\n", BODY.to_owned()),
        Framing::Chunks => ("Transfer-Encoding: chunked\r\n", format!("{chunks}\r\n")),
        Framing::Trailers => (
            "Transfer-Encoding: chunked\r\n",
            format!("{chunks}X-Sum: 1\r\n\r\n"),
        ),
        Framing::Close => ("", BODY.to_owned()),
    };
    format!("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n{line}\r\n{body}")
        .into_bytes()
}

async fn over_http1(over: Over) {
    let mut theatre = Theatre::open(over, false).await;
    let mut parts = 0;
    for framing in [
        Framing::Length,
        Framing::LongerLength,
        Framing::Chunks,
        Framing::Trailers,
        Framing::Close,
    ] {
        let bytes = http1(framing);
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let head = head.unwrap() + 4;
        for ending in Ending::all(over) {
            // A handshake takes its time; of a head over TLS not every byte is a case of its own.
            let step =
                |sent: &usize| *sent + 3 >= head || over == Over::Plain || sent.is_multiple_of(9);
            for sent in (0..bytes.len()).filter(step) {
                let case = format!("{framing:?}, {sent} of {}", bytes.len());
                theatre
                    .is_unknown(&case, bytes[..sent].to_vec(), *ending)
                    .await;
                parts += 1;
            }
        }
        match framing {
            Framing::LongerLength => {
                theatre
                    .is_unknown("one short", bytes.clone(), Ending::Fin)
                    .await;
            }
            Framing::Close => {
                let case = "all, with only the connection's end";
                theatre.is_stored(case, bytes.clone(), Ending::Fin).await;
                theatre.is_unknown(case, bytes.clone(), Ending::Reset).await;
                if over == Over::Tls {
                    theatre
                        .is_unknown(case, bytes.clone(), Ending::BareFin)
                        .await;
                }
            }
            _ => {
                for ending in [Ending::Open, Ending::Fin] {
                    let case = format!("{framing:?}, all of it");
                    theatre.is_stored(&case, bytes.clone(), ending).await;
                }
            }
        }
        let half = bytes[..head + 5].to_vec();
        if framing != Framing::Close {
            theatre.breaks_off("without a key", half, Ending::Fin).await;
        } else if over == Over::Tls {
            theatre
                .breaks_off("without a key", half, Ending::BareFin)
                .await;
        }
    }
    println!("HTTP/1.1 {over:?}: {parts} parts of answers");
}

/// Goal: a part of an answer over HTTP/1.1 is never stored, and its key is unknown.
///
/// Method: every prefix of an answer in five framings, ended by FIN and by a reset.
/// Evidence: 502, then 409 without another execution; whole ones are replayed.
#[tokio::test]
async fn http1_in_plain_text() {
    over_http1(Over::Plain).await;
}

/// The same over TLS, where the end of a connection may also lack its `close_notify`.
#[tokio::test]
async fn http1_over_tls() {
    over_http1(Over::Tls).await;
}

fn head(length: Option<usize>) -> Vec<u8> {
    let mut block = literal(":status", "201");
    block.extend(literal("content-type", "application/json"));
    if let Some(length) = length {
        block.extend(literal("content-length", &length.to_string()));
    }
    frame(HEADERS, END_HEADERS, THIS_STREAM, &block)
}

fn part(sent: usize) -> Vec<u8> {
    let (one, two) = BODY[..sent].split_at(sent.min(4));
    let mut bytes = frame(DATA, 0, THIS_STREAM, one.as_bytes());
    if !two.is_empty() {
        bytes.extend(frame(DATA, 0, THIS_STREAM, two.as_bytes()));
    }
    bytes
}

async fn over_http2(over: Over) {
    let mut theatre = Theatre::open(over, true).await;
    let all = BODY.len();
    let mut parts = 0;
    let trailers = || {
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            THIS_STREAM,
            &literal("x-sum", "1"),
        )
    };
    for length in [None, Some(all), Some(all + 1), Some(all - 1)] {
        for code in CODES {
            for sent in 0..=all {
                let bytes = [head(length), part(sent), rst_stream(THIS_STREAM, code)].concat();
                let case = format!("{sent} of {length:?}, then {code}");
                theatre.is_unknown(&case, bytes.clone(), Ending::Open).await;
                parts += 1;
                if sent == all / 2 {
                    theatre.breaks_off(&case, bytes, Ending::Open).await;
                }
            }
        }
        let end = frame(DATA, END_STREAM, THIS_STREAM, BODY.as_bytes());
        let whole = [head(length), end].concat();
        let with_trailers = [head(length), part(all), trailers()].concat();
        let case = format!("all of {length:?}");
        if length.is_none_or(|length| length == all) {
            for bytes in [whole, with_trailers] {
                theatre.is_stored(&case, bytes.clone(), Ending::Open).await;
                for code in CODES {
                    let reset = [bytes.clone(), rst_stream(THIS_STREAM, code)].concat();
                    theatre.is_stored(&case, reset, Ending::Open).await;
                }
                for ending in Ending::all(over) {
                    if *ending == Ending::Reset {
                        // What a reset throws away is for the kernels to say.
                        continue;
                    }
                    theatre.is_stored(&case, bytes.clone(), *ending).await;
                }
            }
        } else {
            theatre.is_unknown(&case, whole, Ending::Open).await;
            theatre.is_unknown(&case, with_trailers, Ending::Open).await;
            parts += 2;
        }
    }
    // Not a byte of an answer: only a stream that the upstream says it refused was not executed.
    for code in CODES {
        let bytes = rst_stream(THIS_STREAM, code);
        if code == REFUSED {
            continue;
        }
        theatre.is_unknown("no answer", bytes, Ending::Open).await;
    }
    // The connection ends at every byte.
    let end = frame(DATA, END_STREAM, THIS_STREAM, &BODY.as_bytes()[4..]);
    let bytes = [head(None), part(4), end].concat();
    for sent in 0..bytes.len() {
        for ending in Ending::all(over) {
            if over == Over::Tls && !sent.is_multiple_of(5) {
                continue;
            }
            let first = bytes[..sent].to_vec();
            let case = format!("{sent} of {} bytes", bytes.len());
            theatre.is_unknown(&case, first.clone(), *ending).await;
            parts += 1;
        }
    }
    for sent in 0..BODY.len() {
        for code in CODES {
            let bytes = [head(None), part(sent), goaway(THIS_STREAM, code)].concat();
            let case = format!("{sent} bytes of the body, then GOAWAY {code}");
            theatre.is_unknown(&case, bytes, Ending::Fin).await;
            parts += 1;
        }
    }
    println!("HTTP/2 {over:?}: {parts} parts of answers");
}

/// Goal: a part of an answer over HTTP/2 is never stored, and its key is unknown; a reset after
/// END_STREAM changes nothing.
///
/// Method: every prefix of the body, its stream reset with every code; lengths declared too long and too
/// short; every prefix of the answer's frames, ended by FIN, GOAWAY and a reset.
/// Evidence: 502, then 409 without another execution; whole ones are replayed.
#[tokio::test]
async fn http2_in_plain_text() {
    over_http2(Over::Plain).await;
}

/// The same over TLS.
#[tokio::test]
async fn http2_over_tls() {
    over_http2(Over::Tls).await;
}

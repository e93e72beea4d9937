//! Our HTTP/1.1 client against hyper's, on the same answers: whole, cut after every byte, cut in two
//! pieces, and mutated.
//!
//! Goal: whatever a backend sends, both see the same answer, or neither sees one. Two parsers that
//! disagree about where an answer ends are how one client gets another's.

use futures_util::future::join;
use http::{HeaderMap, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use onlyonce_testkit::fuzz::{self, Fuzz};

use super::*;
use crate::upstream::{http1::Connection, response::is_plainly_coded, transport::Transport};

/// What a client makes of an answer. Bytes of a body that breaks off are not compared: how many were seen
/// is a matter of how they came.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one at a time")]
enum Seen {
    Nothing,
    Part(StatusCode),
    Whole {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
        trailers: Option<HeaderMap>,
    },
}

impl Seen {
    fn is_coded(&self) -> bool {
        matches!(self, Self::Whole { headers, .. } if !is_plainly_coded(headers))
    }

    fn has_trailers(&self) -> bool {
        matches!(
            self,
            Self::Whole {
                trailers: Some(_),
                ..
            }
        )
    }
}

async fn read<B>(response: Response<B>) -> Seen
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let status = response.status();
    let headers = response.headers().clone();
    let mut body = response.into_body();
    let (mut bytes, mut trailers) = (Vec::new(), None);
    while !body.is_end_stream() {
        match body.frame().await {
            None => break,
            Some(Err(_)) => return Seen::Part(status),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
    Seen::Whole {
        status,
        headers,
        body: bytes.into(),
        trailers,
    }
}

/// A body that never comes.
fn endless() -> Body {
    type Nothing = futures_util::stream::Pending<Result<http_body::Frame<Bytes>, std::io::Error>>;
    let nothing: Nothing = futures_util::stream::pending();
    Body::stream(http_body_util::StreamBody::new(nothing))
}

fn has_bare_line_break(pieces: &[&[u8]]) -> bool {
    let bytes = pieces.concat();
    let is_bare = |at: usize| bytes[at] == b'\n' && (at == 0 || bytes[at - 1] != b'\r');
    (0..bytes.len()).any(is_bare)
}

fn has_last_length(pieces: &[&[u8]]) -> bool {
    let text = pieces.concat();
    let is_last = |length: u64| {
        let digits = length.to_string().into_bytes();
        text.windows(digits.len()).any(|window| window == digits)
    };
    is_last(u64::MAX) || is_last(u64::MAX - 1)
}

struct Pair(Server);

impl Pair {
    async fn connect(&self) -> TcpStream {
        let address = self.0.0.local_addr().expect("a bound listener");
        fuzz::connect(address).await.expect("a connection")
    }

    /// Answers one request with these pieces, and closes.
    async fn serve(&self, pieces: &[&[u8]]) {
        let mut socket = self.0.accept().await;
        socket.set_nodelay(true).expect("a socket option");
        read_request(&mut socket).await;
        for piece in pieces {
            // A client that has seen enough may be gone.
            if socket.write_all(piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = socket.shutdown().await;
    }

    /// `overtaken`: the answer comes before the end of a request that never ends.
    async fn ours(&self, method: &Method, pieces: &[&[u8]], overtaken: bool) -> Seen {
        let client = async {
            let connection = Connection::new(Transport::Plain(self.connect().await));
            let mut request = Request::builder()
                .method(method)
                .uri("/")
                .header("host", "h");
            let mut body = Body::empty();
            if overtaken {
                request = request.header("transfer-encoding", "chunked");
                body = endless();
            }
            let request = request.body(body);
            match connection.exchange(request.expect("a request"), None).await {
                Ok(response) => read(response).await,
                Err(_) => Seen::Nothing,
            }
        };
        within(join(client, self.serve(pieces))).await.0
    }

    async fn hypers(&self, method: &Method, pieces: &[&[u8]]) -> Seen {
        let client = async {
            let (mut sender, connection) = http1::Builder::new()
                .max_headers(512)
                .max_buf_size(512 << 10)
                .handshake(TokioIo::new(self.connect().await))
                .await
                .expect("a connection");
            let driven = tokio::spawn(connection);
            let request = Request::builder().method(method).uri("/");
            let request = request.header("host", "h").body(Empty::<Bytes>::new());
            let seen = match sender.send_request(request.expect("a request")).await {
                Ok(response) => read(response).await,
                Err(_) => Seen::Nothing,
            };
            driven.abort();
            seen
        };
        within(join(client, self.serve(pieces))).await.0
    }

    /// What both see, roughly.
    async fn agree(&self, method: &Method, pieces: &[&[u8]]) -> (u16, usize) {
        let hypers = self.hypers(method, pieces).await;
        for overtaken in [false, true] {
            let ours = self.ours(method, pieces, overtaken).await;
            // In a coding that nobody asked for: refused by its name, whatever its bytes are.
            if [&ours, &hypers].into_iter().any(Seen::is_coded) {
                return (1, 0);
            }
            // We are stricter with trailers: their lines end with CR and LF.
            if matches!(ours, Seen::Part(_)) && hypers.has_trailers() && has_bare_line_break(pieces)
            {
                return (2, 0);
            }
            // Lengths that hyper keeps for its own use: it sees nothing, and we a body that breaks off.
            if matches!((&ours, &hypers), (Seen::Part(_), Seen::Nothing)) && has_last_length(pieces)
            {
                return (3, 0);
            }
            let pieces = pieces.iter().map(|it| it.escape_ascii().to_string());
            let pieces: Vec<_> = pieces.collect();
            let case = format!("ours and hyper's, {method} {pieces:?}, overtaken: {overtaken}");
            assert_eq!(ours, hypers, "{case}");
        }
        match hypers {
            Seen::Nothing => (0, 0),
            Seen::Part(status) => (status.as_u16(), 0),
            Seen::Whole { status, body, .. } => (status.as_u16(), 1 + body.len()),
        }
    }
}

/// Answers of every framing, sound and unsound.
const ANSWERS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello, and more",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 4\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\nuntil the end",
    "\r\n\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 200\r\n\r\n",
    "HTTP/1.1 200 \r\nserver: x\r\n\r\nbare",
    "HTTP/1.0 200 OK\r\n\r\nold",
    "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\ncontent-length: 2\n\nok",
    "\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello",
    "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\nHTTP/1.1 201 Made\r\ncontent-length: 1\r\n\r\na",
    "HTTP/1.1 199 What\r\ncontent-length: 3\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n \r\n5  \r\nworld\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n0a\r\n0123456789\r\n000\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: identity, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, identity\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2 ;a\r\nok\r\n0 ; b\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;a\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nok\n0\n\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n;\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\nok\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokk\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nno trailer\r\n\r\n",
    "HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
    "HTTP/1.1 200 OK\r\nx: a\r\n b\r\n\r\n",
    "HTTP/1.1 200 OK\r\n: y\r\n\r\n",
    "HTTP/1.1 200 OK\r\nx: \u{e9}\ty\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 99 Low\r\n\r\n",
    "HTTP/1.1 999 High\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1 2000 Long\r\n\r\n",
    "HTTP/2.0 200 OK\r\n\r\n",
    "http/1.1 200 OK\r\n\r\n",
    "SSH-2.0-x\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nother words",
];

#[tokio::test]
async fn answers_cut_anywhere_are_seen_alike() {
    let pair = Pair(Server::start().await);
    for answer in ANSWERS {
        let answer = answer.as_bytes();
        for method in [Method::POST, Method::HEAD] {
            pair.agree(&method, &[answer]).await;
        }
        for cut in 0..answer.len() {
            pair.agree(&Method::POST, &[&answer[..cut]]).await;
            if cut % 3 == 0 {
                pair.agree(&Method::POST, &[&answer[..cut], &answer[cut..]])
                    .await;
            }
        }
    }
}

/// What answers are made of.
const WORDS: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    "0\r\n\r\n",
    "f",
    ";",
    " ",
    ",",
    ":",
    "\0",
    "HTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "content-length: 1\r\n",
    "transfer-encoding: chunked\r\n",
    "\r\n\r\n",
    "1\r\n",
];

/// Goal: no change to an answer makes the two clients see different ones.
#[test]
fn changed_answers_are_seen_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let pair = Pair(runtime.block_on(Server::start()));
    Fuzz::new("answer", 2_500)
        .seeds(ANSWERS)
        .words(WORDS)
        .max_bytes(400)
        .run(|answer| {
            // In two pieces, cut somewhere that is the same every time.
            let cut = answer.iter().map(|byte| usize::from(*byte)).sum::<usize>();
            let (one, two) = answer.split_at(cut % (answer.len() + 1));
            runtime.block_on(pair.agree(&Method::POST, &[one, two]))
        });
}

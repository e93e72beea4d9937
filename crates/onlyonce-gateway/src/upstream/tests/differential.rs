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
use proptest::{collection, prelude::*, sample::Index};

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

struct Pair(Server);

impl Pair {
    async fn connect(&self) -> TcpStream {
        let address = self.0.0.local_addr().expect("a bound listener");
        TcpStream::connect(address).await.expect("a connection")
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

    async fn agree(&self, method: &Method, pieces: &[&[u8]]) {
        let hypers = self.hypers(method, pieces).await;
        for overtaken in [false, true] {
            let ours = self.ours(method, pieces, overtaken).await;
            // In a coding that nobody asked for: refused by its name, whatever its bytes are.
            if [&ours, &hypers].into_iter().any(Seen::is_coded) {
                return;
            }
            // We are stricter with trailers: their lines end with CR and LF.
            if matches!(ours, Seen::Part(_)) && hypers.has_trailers() && has_bare_line_break(pieces)
            {
                return;
            }
            let pieces = pieces.iter().map(|it| it.escape_ascii().to_string());
            let pieces: Vec<_> = pieces.collect();
            let case = format!("ours and hyper's, {method} {pieces:?}, overtaken: {overtaken}");
            assert_eq!(ours, hypers, "{case}");
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

/// One change to an answer.
#[derive(Clone, Debug)]
enum Change {
    Put(Index, u8),
    Insert(Index, &'static str),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let words = prop::sample::select(vec![
        "\r\n",
        "\n",
        "\r",
        "0",
        "f",
        ";",
        " ",
        ",",
        ":",
        "\0",
        "HTTP/1.1 200 OK\r\n\r\n",
        "content-length: 1\r\n",
        "transfer-encoding: chunked\r\n",
        "\r\n\r\n",
        "1\r\n",
    ]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Put(at, byte)),
        (any::<Index>(), words).prop_map(|(at, word)| Change::Insert(at, word)),
        (any::<Index>(), 1_usize..6).prop_map(|(at, count)| Change::Remove(at, count)),
        (any::<Index>(), 1_usize..12).prop_map(|(at, count)| Change::Repeat(at, count)),
    ]
}

fn changed(answer: &str, changes: &[Change]) -> Vec<u8> {
    let mut bytes = answer.as_bytes().to_vec();
    for change in changes {
        if bytes.is_empty() {
            break;
        }
        let end = |at: usize, count: usize| (at + count).min(bytes.len());
        match change {
            Change::Put(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Change::Insert(at, word) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, word.bytes());
            }
            Change::Remove(at, count) => {
                let at = at.index(bytes.len());
                bytes.drain(at..end(at, *count));
            }
            Change::Repeat(at, count) => {
                let at = at.index(bytes.len());
                let piece = bytes[at..end(at, *count)].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

proptest! {
    // The same ones every time; others in the long run.
    #![proptest_config(onlyonce_testkit::soak::same_cases(600))]

    #[test]
    fn changed_answers_are_seen_alike(
        answer in prop::sample::select(ANSWERS),
        changes in collection::vec(change(), 1..4),
        cut in any::<Index>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let bytes = changed(answer, &changes);
            let (one, two) = bytes.split_at(cut.index(bytes.len() + 1));
            Pair(Server::start().await).agree(&Method::POST, &[one, two]).await;
        });
    }
}

//! HTTP/2 to a backend, frame by frame: what it is sent, and what is proven when no answer comes.

use tokio::io::AsyncReadExt;

use super::*;
use onlyonce::{DispatchGuard, GuardFailed, NotSent};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small payload");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

fn go_away(last: u32, code: u32) -> Vec<u8> {
    let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
    frame(GOAWAY, 0, 0, &payload)
}

/// Status 200, the first entry of the static table that says so, and a body.
fn answer(stream: u32) -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
    [head, frame(DATA, END_STREAM, stream, b"ok")].concat()
}

/// Status 103 and nothing else yet: a literal with the name of the first `:status` in the static table.
fn early(stream: u32) -> Vec<u8> {
    let status = [&[0x08, 3][..], b"103"].concat();
    frame(HEADERS, END_HEADERS, stream, &status)
}

/// The backend's end of a connection.
struct Peer(TcpStream);

impl Peer {
    async fn accept(server: &Server) -> Self {
        let mut socket = server.accept().await;
        let mut preface = [0; PREFACE.len()];
        socket.read_exact(&mut preface).await.expect("a preface");
        assert_eq!(preface, PREFACE);
        socket
            .write_all(&frame(SETTINGS, 0, 0, &[]))
            .await
            .expect("an open connection");
        Self(socket)
    }

    /// The next frame: its kind, flags, stream and payload; `None` at the end.
    async fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((head[3], head[4], stream, payload))
    }

    /// Reads a whole request; its stream, its head as it was encoded, and its body.
    async fn request(&mut self) -> Option<(u32, Vec<u8>, Vec<u8>)> {
        let (mut head, mut body) = (Vec::new(), Vec::new());
        loop {
            let (kind, flags, stream, payload) = self.frame().await?;
            match kind {
                HEADERS => head = payload,
                DATA => body.extend(payload),
                _ => continue,
            }
            if flags & END_STREAM != 0 {
                return Some((stream, head, body));
            }
        }
    }

    async fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("an open connection");
    }
}

fn upstream(server: &Server) -> Upstream {
    let backend = Backend {
        http2: Some(true),
        ..server.backend()
    };
    Upstream::new(UpstreamOptions::new(vec![backend]))
}

fn proves_not_sent(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::NotSent(_))
}

#[tokio::test]
async fn one_connection_carries_one_request_after_the_other() {
    let server = Server::start().await;
    let upstream = upstream(&server);
    let serving = async {
        let mut peer = Peer::accept(&server).await;
        for expected in [1, 3] {
            let (stream, head, body) = peer.request().await.expect("a request");
            assert_eq!((stream, body.as_slice()), (expected, &b"pay"[..]));
            // The host is in `:authority`, Huffman-coded or not; nothing says how HTTP/1.1 frames.
            let text = String::from_utf8_lossy(&head);
            assert!(!text.contains("chunked"), "{text}");
            peer.say(&answer(stream)).await;
        }
        peer
    };
    let asking = async {
        for _ in 0..2 {
            assert_eq!(fetch(&upstream, post("pay")).await, "ok");
        }
    };
    let (_peer, ()) = within(futures_util::future::join(serving, asking)).await;
}

#[tokio::test]
async fn two_at_once_take_two_connections() {
    let server = Server::start().await;
    let upstream = upstream(&server);
    let serving = async {
        let (mut one, mut two) = (Peer::accept(&server).await, Peer::accept(&server).await);
        for peer in [&mut one, &mut two] {
            let (stream, ..) = peer.request().await.expect("a request");
            assert_eq!(stream, 1);
            peer.say(&answer(stream)).await;
        }
        (one, two)
    };
    let asking =
        futures_util::future::join(fetch(&upstream, post("one")), fetch(&upstream, post("two")));
    within(futures_util::future::join(serving, asking)).await;
}

/// Only the backend's own word that it has not looked at the request is proof.
#[tokio::test]
async fn what_the_backend_says_of_a_request_it_does_not_answer() {
    for (what, says, is_proof) in [
        ("refused", reset(1, REFUSED_STREAM), true),
        ("leaves before it", go_away(0, NO_ERROR), true),
        ("cancelled", reset(1, CANCEL), false),
        ("failed", reset(1, INTERNAL_ERROR), false),
        ("leaves in anger", go_away(0, INTERNAL_ERROR), false),
        ("leaves after it", go_away(1, NO_ERROR), false),
        (
            "refused after a 103",
            [early(1), reset(1, REFUSED_STREAM)].concat(),
            false,
        ),
        (
            "leaves before it after a 103",
            [early(1), go_away(0, NO_ERROR)].concat(),
            false,
        ),
        ("says nothing", Vec::new(), false),
    ] {
        let server = Server::start().await;
        let upstream = upstream(&server);
        let serving = async {
            let mut peer = Peer::accept(&server).await;
            peer.request().await.expect("a request");
            peer.say(&says).await;
        };
        let (error, ()) = within(futures_util::future::join(
            call(&upstream, post("pay")),
            serving,
        ))
        .await;
        let error = error.expect_err("no answer");
        assert_eq!(proves_not_sent(&error), is_proof, "{what}: {error:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error() {
    let server = Server::start().await;
    let upstream = upstream(&server);
    let serving = async {
        let mut peer = Peer::accept(&server).await;
        let (stream, ..) = peer.request().await.expect("a request");
        let head = frame(HEADERS, END_HEADERS, stream, &[0x88]);
        peer.say(&[head, frame(DATA, 0, stream, b"o")].concat())
            .await;
    };
    let asking = async {
        let response = call(&upstream, post("pay")).await.expect("a head");
        response.into_body().collect().await
    };
    let (whole, ()) = within(futures_util::future::join(asking, serving)).await;
    assert!(whole.is_err());
}

#[tokio::test]
async fn the_guard_is_asked_before_the_request_leaves() {
    let server = Server::start().await;
    let upstream = upstream(&server);
    let mut request = post("pay");
    request
        .extensions_mut()
        .insert(DispatchGuard::new(|| false));
    let serving = async {
        let mut peer = Peer::accept(&server).await;
        assert!(peer.request().await.is_none(), "a request was sent");
    };
    let (error, ()) = within(futures_util::future::join(
        call(&upstream, request),
        serving,
    ))
    .await;
    match error.expect_err("the guard says no") {
        UpstreamError::NotSent(NotSent { source }) => assert!(source.is::<GuardFailed>()),
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_costs_nothing() {
    let server = Server::start().await;
    let upstream = upstream(&server);
    let serving = async {
        let mut peer = Peer::accept(&server).await;
        let (stream, ..) = peer.request().await.expect("a request");
        peer.say(&answer(stream)).await;
        peer.say(&go_away(1, NO_ERROR)).await;
        drop(peer);
        let mut next = Peer::accept(&server).await;
        let (stream, ..) = next.request().await.expect("a request");
        next.say(&answer(stream)).await;
        next
    };
    let asking = async {
        assert_eq!(fetch(&upstream, post("one")).await, "ok");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(fetch(&upstream, post("two")).await, "ok");
    };
    within(futures_util::future::join(serving, asking)).await;
}

/// Goal: the lease is looked at when the request leaves, whatever else leaves before it.
///
/// Method: a backend that for a while allows no further stream, so that the second request waits; meanwhile
/// a ping is answered, and the lease runs out; then the backend has room again.
/// Evidence: the backend gets no second request, and its sender learns that none was sent.
#[tokio::test]
async fn a_ping_does_not_open_the_way() {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };
    const PING: u8 = 6;
    const ACK: u8 = 1;
    let at_most = |streams: u8| frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]);
    let server = Server::start().await;
    let upstream = upstream(&server);
    let lease = Arc::new(AtomicBool::new(true));
    let (held, over) = (lease.clone(), lease);
    let serving = async {
        let mut peer = Peer::accept(&server).await;
        let (stream, ..) = peer.request().await.expect("a request");
        peer.say(&at_most(0)).await;
        peer.say(&answer(stream)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        peer.say(&frame(PING, 0, 0, &[7; 8])).await;
        loop {
            let (kind, flags, ..) = peer.frame().await.expect("a frame");
            assert_ne!(kind, HEADERS, "no stream is allowed yet");
            if (kind, flags) == (PING, ACK) {
                break;
            }
        }
        over.store(false, Ordering::SeqCst);
        peer.say(&at_most(100)).await;
        let sent = tokio::time::timeout(Duration::from_secs(1), peer.request()).await;
        sent.ok().flatten().is_some()
    };
    let asking = async {
        assert_eq!(fetch(&upstream, post("one")).await, "ok");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut request = post("pay");
        let guard = DispatchGuard::new(move || held.load(Ordering::SeqCst));
        request.extensions_mut().insert(guard);
        upstream.clone().oneshot(request).await.map(|_| ())
    };
    let (sent, told) = within(futures_util::future::join(serving, asking)).await;
    assert!(!sent, "a request left although its lease was over");
    assert!(matches!(told, Err(UpstreamError::NotSent(_))), "{told:?}");
}

//! HTTP/2 in bad faith, frame by frame: resets, heads without an end, heads that grow.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedWriteHalf},
    task::JoinHandle,
};

use crate::bad_input::Siege;
use crate::harness::{
    Gateway, Request, Script, Setup, Upstream,
    client::Http2,
    eventually,
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, frame, literal,
    },
    ms, within,
};

const CONTINUATION: u8 = 9;
/// The error code CANCEL.
const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn payment(key: &str, length: usize) -> Vec<u8> {
    [
        literal(":method", "POST"),
        literal(":scheme", "http"),
        literal(":authority", "api.test"),
        literal(":path", "/payments"),
        literal("content-type", "application/json"),
        literal("content-length", &length.to_string()),
        literal("idempotency-key", key),
    ]
    .concat()
}

/// A connection that says anything and reads everything.
struct Peer {
    out: OwnedWriteHalf,
    /// Ends when the gateway has closed; holds what it said.
    heard: JoinHandle<Vec<u8>>,
}

impl Peer {
    async fn open(addr: SocketAddr) -> Self {
        let stream = within("a connection", TcpStream::connect(addr))
            .await
            .unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut input, out) = stream.into_split();
        let heard = tokio::spawn(async move {
            let (mut heard, mut buffer) = (Vec::new(), [0; 4_096]);
            while let Ok(count @ 1..) = input.read(&mut buffer).await {
                heard.extend(&buffer[..count]);
            }
            heard
        });
        let mut peer = Self { out, heard };
        let _ = peer
            .say(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())
            .await;
        peer
    }

    /// Whether it could still be said.
    async fn say(&mut self, bytes: &[u8]) -> bool {
        let said = within("a write", self.out.write_all(bytes)).await;
        said.is_ok() && !self.heard.is_finished()
    }
}

/// Goal: a value that HTTP/2 forbids is refused, and neither executed nor echoed.
///
/// Method: white space before and behind the key and another header's value. Evidence: 400 and no execution.
#[tokio::test]
async fn values_with_white_space_around_them() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let mut client = Http2::open(gateway.data()).await;
    for value in [" k", "k ", "\tk", "k\t", " \"k\" "] {
        for request in [
            Request::post("/payments").json("{}").key(value),
            Request::pay("k").header("X-Other", value),
        ] {
            let refused = client.send(&request).await;
            refused.refused(400, "request_malformed");
        }
    }
    assert_eq!(upstream.executions(), 0);
}

/// Goal: opening streams and resetting them is no weapon, and never executes anything twice.
///
/// Method: 5,000 payments with a key and their whole body, each reset at once, over as many
/// connections as it takes; then some of the keys again.
/// Evidence: no key has more than one execution; memory is bounded; the gateway goes on.
#[tokio::test]
async fn rapid_reset() {
    const RESETS: u32 = 5_000;
    const BODY: &[u8] = br#"{"amount":1000,"currency":"EUR"}"#;
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(20)));
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let (mut number, mut connections) = (0, 0);
    while number < RESETS {
        let mut peer = Peer::open(gateway.data()).await;
        connections += 1;
        let mut stream = 1;
        loop {
            let key = format!("reset-{number}");
            let bytes = [
                frame(HEADERS, END_HEADERS, stream, &payment(&key, BODY.len())),
                frame(DATA, END_STREAM, stream, BODY),
                frame(RST_STREAM, 0, stream, &CANCEL),
            ];
            let open = peer.say(&bytes.concat()).await;
            (number, stream) = (number + 1, stream + 2);
            if !open || number >= RESETS {
                break;
            }
        }
    }
    eventually("what was begun to end", async || {
        (gateway.count_in_state("in_progress").await == 0).then_some(())
    })
    .await;
    let executed = upstream.executions();
    println!("rapid reset: {RESETS} resets, {connections} connections, {executed} executions");
    for number in (0..RESETS).step_by(250).chain(0..20) {
        let key = format!("reset-{number}");
        gateway.send(&Request::pay(&key)).await.expect(201);
        assert_eq!(upstream.executions_of(&key), 1, "{key}");
    }
    let twice = (0..RESETS).filter(|number| upstream.executions_of(&format!("reset-{number}")) > 1);
    assert_eq!(twice.count(), 0, "executed more than once");
    siege.left_executed().await;
}

/// Goal: streams that are reset before their body is there leave nothing at all.
///
/// Method: 5,000 heads of keyed payments without their body, each reset.
/// Evidence: no execution, no record.
#[tokio::test]
async fn resets_before_the_body() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let mut number = 0;
    while number < 5_000 {
        let mut peer = Peer::open(gateway.data()).await;
        for stream in (1..2_000).step_by(2) {
            let bytes = [
                frame(HEADERS, END_HEADERS, stream, &payment("half", 100)),
                frame(DATA, 0, stream, b"{\"amount\":"),
                frame(RST_STREAM, 0, stream, &CANCEL),
            ];
            number += 1;
            if !peer.say(&bytes.concat()).await {
                break;
            }
        }
    }
    siege.left_nothing().await;
}

/// Goal: a head that never ends is not gathered.
///
/// Method: HEADERS without END_HEADERS, then CONTINUATION frames of 16 KiB.
/// Evidence: the connection is closed after a bounded number of bytes; memory is bounded.
#[tokio::test]
async fn endless_continuation() {
    const SENT_AT_MOST: usize = 64 << 20;
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for value in ["v".repeat(100), String::new()] {
        let mut peer = Peer::open(gateway.data()).await;
        peer.say(&frame(HEADERS, 0, 1, &payment("endless", 0)))
            .await;
        let more = literal("x-more", &value).repeat(16_384 / (9 + value.len()));
        let more = frame(CONTINUATION, 0, 1, &more[..more.len().min(16_384)]);
        let mut sent = 0;
        while peer.say(&more).await {
            sent += more.len();
            assert!(sent < SENT_AT_MOST, "{sent} bytes of one head were taken");
        }
        println!("endless head: closed after {sent} bytes");
    }
    siege.left_nothing().await;
}

/// Goal: a head that grows on being read is measured by what it becomes.
///
/// Method: one header of 4,000 bytes put into the dynamic table, then named 15,000 times.
/// Evidence: refused or closed; memory is bounded, though it would have been 60 MB a stream.
#[tokio::test]
async fn a_head_that_grows() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    let mut bomb = payment("bomb", 0);
    // Literal with incremental indexing; 4,000 in HPACK's 7-bit prefix is 0x7f, then 3,873.
    bomb.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'v'; 4_000]);
    // 62 is the newest entry of the dynamic table.
    bomb.extend(vec![0x80 | 62; 12_000]);
    assert!(bomb.len() <= 16_384);
    for _ in 0..20 {
        let mut peer = Peer::open(gateway.data()).await;
        for stream in (1..40).step_by(2) {
            let flags = END_HEADERS | END_STREAM;
            if !peer.say(&frame(HEADERS, flags, stream, &bomb)).await {
                break;
            }
        }
    }
    siege.left_nothing().await;
}

/// Goal: frames that only make work do not pile up.
///
/// Method: 100,000 pings and empty settings from a peer that reads nothing of the answers.
/// Evidence: memory is bounded; the gateway goes on.
#[tokio::test]
async fn frames_that_ask_for_answers() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let siege = Siege::lay(&gateway, &upstream).await;
    for bytes in [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])] {
        let stream = TcpStream::connect(gateway.data()).await.unwrap();
        let (_unread, mut out) = stream.into_split();
        out.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())
            .await
            .unwrap();
        let flood = bytes.repeat(1_000);
        for _ in 0..100 {
            // Not being read is an answer as good as being closed.
            let written = tokio::time::timeout(ms(200), out.write_all(&flood)).await;
            if !matches!(written, Ok(Ok(()))) {
                break;
            }
        }
    }
    siege.left_nothing().await;
}

/// Goal: a peer that opens no window holds no answers, and loses only those.
///
/// Method: 32 replays of 1 MB asked for with a window of zero, over a connection whose pings are
/// answered; then one with a window.
/// Evidence: each stream is reset within `send_timeout`; memory is bounded; the last answer comes whole,
/// over the same connection.
#[tokio::test]
async fn a_window_that_stays_shut() {
    const SIZE: usize = 1_000_000;
    const STREAMS: u32 = 32;
    const INITIAL_WINDOW: u16 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const PAY: &[u8] = br#"{"amount":1000,"currency":"EUR"}"#;
    let upstream = Upstream::start();
    let gateway = Setup::with("")
        .top("send_timeout: 1s")
        .start(&upstream)
        .await;
    upstream.next(Script::created().body(vec![b'x'; SIZE]));
    gateway.send(&Request::pay("large")).await.expect(201);
    let siege = Siege::lay(&gateway, &upstream).await;
    let mut socket = TcpStream::connect(gateway.data()).await.unwrap();
    let shut = [&INITIAL_WINDOW.to_be_bytes()[..], &[0; 4]].concat();
    let mut said = [PREFACE, &frame(SETTINGS, 0, 0, &shut)].concat();
    let ask = |stream| {
        let head = frame(HEADERS, END_HEADERS, stream, &payment("large", PAY.len()));
        [head, frame(DATA, END_STREAM, stream, PAY)].concat()
    };
    for number in 0..STREAMS {
        said.extend(ask(2 * number + 1));
    }
    socket.write_all(&said).await.unwrap();
    let (mut resets, mut received, mut peak) = (0, 0, 0);
    within("every stream to be reset, and one to be answered", async {
        while received < SIZE {
            let mut head = [0; 9];
            socket.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            socket.read_exact(&mut payload).await.unwrap();
            match (head[3], head[4]) {
                (PING, 0) => socket
                    .write_all(&frame(PING, 1, 0, &payload))
                    .await
                    .unwrap(),
                (SETTINGS, 0) => socket.write_all(&frame(SETTINGS, 1, 0, &[])).await.unwrap(),
                (DATA, _) => received += payload.len(),
                (RST_STREAM, _) => {
                    resets += 1;
                    peak = siege.growth_kib().max(peak);
                    if resets == STREAMS {
                        let open = u32::try_from(SIZE).unwrap().to_be_bytes();
                        let more = [&INITIAL_WINDOW.to_be_bytes()[..], &open].concat();
                        let last = 2 * STREAMS + 1;
                        let bytes = [
                            frame(SETTINGS, 0, 0, &more),
                            frame(WINDOW_UPDATE, 0, 0, &open),
                            ask(last),
                        ];
                        socket.write_all(&bytes.concat()).await.unwrap();
                    }
                }
                _ => {}
            }
        }
    })
    .await;
    assert_eq!((resets, received), (STREAMS, SIZE));
    println!("{STREAMS} shut windows: memory grew by {peak} KiB");
    assert_eq!(upstream.executions_of("large"), 1);
}

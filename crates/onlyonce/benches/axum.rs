//! What the layer costs an axum application: requests/s of a bare application and of the same one
//! under the layer on `memory:`, over real sockets, in one run.
//!
//! `cargo bench -p onlyonce --bench axum`. Server and load share the process and its threads, for both
//! subjects alike, so what counts is the ratio. Medians of three rounds.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use axum::{Router, body::Bytes, http::StatusCode, http::header::CONTENT_TYPE, routing::post};
use onlyonce::{IdempotencyLayer, Identity};
use onlyonce_store::memory::MemoryStore;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

const BODY: &str = r#"{"amount":129900,"billing":{"city":"Reykjavik","country":"IS","line1":"Laugavegur 26","postal_code":"101"},"capture":true,"currency":"eur","customer":"cus_9f8e7d6c5b4a3210","description":"Order 4711, two tickets and a boat","metadata":{"basket":"b-20261115-000042","channel":"web","source":"checkout-v3"},"statement":"NORTHERN BOATS"}"#;
const ANSWER: &str = r#"{"id":"pay_01jcq3y8w9f0t2v4x6z8b0d2f4","object":"payment","amount":129900,"amount_captured":129900,"currency":"eur","customer":"cus_9f8e7d6c5b4a3210","status":"succeeded"}"#;
const ROUNDS: usize = 3;
const CONNECTIONS: usize = 64;
const WARM_UP: Duration = Duration::from_millis(300);
const TIME: Duration = Duration::from_secs(2);
/// Keys that replays take turns with.
const REPLAYED_KEYS: u64 = 1_000;

static NEXT: AtomicU64 = AtomicU64::new(0);
static EXECUTED: AtomicU64 = AtomicU64::new(0);

#[tokio::main]
async fn main() {
    let mut found: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let bare = serve(app()).await;
        found[0].push(measure(bare, false).await);
        let layered = serve(app().layer(layer())).await;
        found[1].push(measure(layered, false).await);
        found[2].push(measure(layered, true).await);
    }
    let [bare, new, replays] = found.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("{CONNECTIONS} requests in flight, 330-byte JSON, medians of {ROUNDS}");
    println!("{:<26} {:>10} {:>6}", "", "requests/s", "ratio");
    for (name, rate) in [
        ("bare axum", bare),
        ("the layer, new keys", new),
        ("the layer, replays", replays),
    ] {
        println!("{name:<26} {rate:>10.0} {:>6.2}", rate / bare);
    }
}

fn app() -> Router {
    Router::new().route(
        "/payments",
        post(|body: Bytes| async move {
            assert_eq!(body.len(), BODY.len());
            EXECUTED.fetch_add(1, Ordering::Relaxed);
            let json = [(CONTENT_TYPE, "application/json")];
            (StatusCode::CREATED, json, ANSWER)
        }),
    )
}

fn layer() -> IdempotencyLayer {
    let identify = |_: &axum::http::request::Parts| Some(Identity::client("bench"));
    IdempotencyLayer::builder(MemoryStore::new())
        .route("payments")
        .identify(identify)
        .build()
}

async fn serve(app: Router) -> SocketAddr {
    use axum::serve::ListenerExt;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

/// Requests per second.
async fn measure(address: SocketAddr, replays: bool) -> f64 {
    if replays {
        let mut client = Client::connect(address).await;
        for key in 0..REPLAYED_KEYS {
            client.send(key, true).await;
        }
    }
    load(address, replays, WARM_UP).await;
    let executed = EXECUTED.load(Ordering::Relaxed);
    let started = Instant::now();
    let done = load(address, replays, TIME).await;
    let elapsed = started.elapsed();
    let executed = EXECUTED.load(Ordering::Relaxed) - executed;
    assert_eq!(executed, if replays { 0 } else { done });
    done as f64 / elapsed.as_secs_f64()
}

async fn load(address: SocketAddr, replays: bool, time: Duration) -> u64 {
    let end = Instant::now() + time;
    let mut busy = JoinSet::new();
    for _ in 0..CONNECTIONS {
        busy.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut done = 0;
            while Instant::now() < end {
                let key = NEXT.fetch_add(1, Ordering::Relaxed);
                let key = if replays { key % REPLAYED_KEYS } else { key };
                client.send(key, replays).await;
                done += 1;
            }
            done
        });
    }
    busy.join_all().await.into_iter().sum()
}

struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let read = Vec::with_capacity(4096);
        Self { stream, read }
    }

    async fn send(&mut self, key: u64, replays: bool) {
        let kind = if replays { "replay" } else { "new" };
        let request = format!(
            "POST /payments HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nidempotency-key: {kind}-{key:016}\r\n\r\n{BODY}",
            BODY.len()
        );
        self.stream.write_all(request.as_bytes()).await.unwrap();
        self.read.clear();
        // The answer ends with what is known to be its body.
        while !self.read.ends_with(ANSWER.as_bytes()) {
            let count = self.stream.read_buf(&mut self.read).await.unwrap();
            assert_ne!(count, 0, "the connection ended");
        }
        assert!(self.read.starts_with(b"HTTP/1.1 201"));
    }
}

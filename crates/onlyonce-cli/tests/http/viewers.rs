//! What it costs to be watched: nothing that requests notice.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::Instant,
};

use crate::harness::{Connection, Gateway, Request, Upstream, eventually, process::TOKEN, soak};

/// Connections that send at once.
const CONNECTIONS: usize = 4;
/// Requests of each in a round.
const IN_A_ROUND: usize = 100;
/// How much slower the slowest may be with viewers, by the full counts.
const MOST: f64 = 1.05;

/// A page that watches; it leaves when dropped.
struct Viewer(TcpStream);

impl Viewer {
    async fn open(gateway: &Gateway) -> Self {
        let mut stream = TcpStream::connect(gateway.admin_addr()).await.unwrap();
        let ask =
            format!("GET /events HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        stream.write_all(ask.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// Reads until a sample has come.
    async fn sample(&mut self) -> String {
        let mut seen = Vec::new();
        let mut part = [0; 4096];
        eventually("a sample", async || {
            let count = self.0.read(&mut part).await.unwrap();
            assert!(count > 0, "the stream has ended");
            seen.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&seen).into_owned();
            text.contains("event: sample").then_some(text)
        })
        .await
    }
}

/// How long requests with new keys take, over connections that stay open.
async fn times(gateway: &Gateway, round: usize) -> Vec<Duration> {
    let mut running = JoinSet::new();
    for lane in 0..CONNECTIONS {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        running.spawn(async move {
            let mut times = Vec::with_capacity(IN_A_ROUND);
            for number in 0..IN_A_ROUND {
                let key = format!("k-{round}-{lane}-{number}");
                let bytes = Request::pay(&key).bytes();
                let began = Instant::now();
                connection.write(&bytes).await.unwrap();
                connection.response().await.unwrap().expect(201);
                times.push(began.elapsed());
            }
            times
        });
    }
    running.join_all().await.into_iter().flatten().collect()
}

/// Goal: requests are as fast with viewers as without.
///
/// Method: rounds in turns, with four viewers and with none; the same load in each.
/// Evidence: the ratio of the 99th percentiles; a viewer has seen what was counted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_cost_requests_nothing() {
    let upstream = Upstream::start();
    let gateway = Gateway::start(&upstream, "").await;
    let rounds = if soak() { 40 } else { 4 };
    let (mut alone, mut watched) = (Vec::new(), Vec::new());
    times(&gateway, rounds).await;
    for round in 0..rounds {
        let mut viewers = Vec::new();
        if round % 2 == 1 {
            for _ in 0..4 {
                viewers.push(Viewer::open(&gateway).await);
            }
        }
        let times = times(&gateway, round).await;
        if let Some(viewer) = viewers.first_mut() {
            let told = viewer.sample().await;
            assert!(told.contains("\"totals\":{\"new\":"), "{told}");
            watched.extend(times);
        } else {
            alone.extend(times);
        }
    }
    let at = |times: &mut Vec<Duration>, per_cent: usize| {
        times.sort();
        times[times.len() * per_cent / 100].as_secs_f64() * 1_000.0
    };
    let medians = (at(&mut alone, 50), at(&mut watched, 50));
    let slowest = (at(&mut alone, 99), at(&mut watched, 99));
    let ratio = slowest.1 / slowest.0;
    println!(
        "{} requests each: median {:.2} ms alone and {:.2} ms watched, p99 {:.2} ms and {:.2} ms, \
         ratio {ratio:.3}",
        alone.len(),
        medians.0,
        medians.1,
        slowest.0,
        slowest.1,
    );
    assert!(!soak() || ratio <= MOST, "ratio {ratio:.3}");
}

//! Memory over many keys: what is remembered is on disk, not in the process.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::Instant,
};

use crate::harness::{Connection, REPLAYED, Request, Setup, soak};

/// Clients at once.
const CLIENTS: usize = 64;
/// What the process may hold at the end beyond what it held after a quarter of the keys, in KiB:
/// less than 100 bytes a key of the long run, where a record takes several hundred on disk.
const MAX_DRIFT_KIB: u64 = 64 << 10;
/// The short run ends after this time if the machine is slow; what was done by then counts.
const SHORT_RUN: Duration = Duration::from_secs(10);
/// With fewer keys than this the short run has shown nothing.
const FEWEST_KEYS: usize = 1_000;

/// Goal: memory does not grow with the number of keys.
///
/// Method: 20,000 new keys on SQLite, or 1,000,000 with `ONLYONCE_SOAK=1`, 64 at a time; the
/// process's memory after a quarter of them and after all.
/// Evidence: VmRSS, printed at every tenth; the upstream counted each key once; early keys replay.
#[tokio::test]
async fn memory_is_flat_over_many_keys() {
    let keys = if soak() { 1_000_000 } else { 20_000 };
    let (upstream, executed) = counting_upstream().await;
    let gateway = Setup::with("")
        .start_before(&format!("http://{upstream}"))
        .await;
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let deadline = (!soak()).then(|| began + SHORT_RUN);
    let (mut quarter, mut told) = (None, 0);
    let running: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(client(gateway.data(), next.clone(), keys, deadline)))
        .collect();
    while !running.iter().all(tokio::task::JoinHandle::is_finished) {
        let done = executed.load(Ordering::Relaxed);
        let late = deadline.is_some() && began.elapsed() >= SHORT_RUN / 4;
        if (done >= keys / 4 || late) && quarter.is_none() {
            quarter = Some(gateway.rss_kib());
        }
        if done / (keys / 10) > told {
            told = done / (keys / 10);
            println!(
                "{done} keys, {} KiB, {:?}",
                gateway.rss_kib(),
                began.elapsed()
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut sent = 0;
    for client in running {
        sent += client.await.expect("every key was answered with 201");
    }
    let (end, quarter) = (gateway.rss_kib(), quarter.expect("a look at a quarter"));
    println!(
        "{sent} keys in {:?}: {quarter} KiB after a quarter, {end} KiB at the end",
        began.elapsed()
    );
    assert!(sent >= FEWEST_KEYS.min(keys), "only {sent} keys");
    assert_eq!(executed.load(Ordering::Relaxed), sent, "each key once");
    assert!(
        end.saturating_sub(quarter) <= MAX_DRIFT_KIB,
        "memory grows with keys"
    );
    let first = gateway.send(&Request::pay("memory-0")).await.expect(201);
    assert_eq!(first.header(REPLAYED), Some("true"));
}

/// Sends the next key until there are no more, and says how many were its.
async fn client(
    gateway: SocketAddr,
    next: Arc<AtomicUsize>,
    keys: usize,
    deadline: Option<Instant>,
) -> usize {
    let mut connection = Connection::open(gateway).await.unwrap();
    let mut sent = 0;
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= keys {
            break;
        }
        let request = Request::pay(&format!("memory-{number}"));
        connection.send(&request).await.unwrap().expect(201);
        sent += 1;
    }
    sent
}

/// An upstream that remembers nothing but a number: the harness's own keeps every request, which
/// is too much for a million.
async fn counting_upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let executed = Arc::new(AtomicUsize::new(0));
    let count = executed.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_all(stream, count.clone()));
        }
    });
    (addr, executed)
}

/// Answers every request whose body ends with the brace that ends the payment of these tests.
async fn answer_all(mut stream: TcpStream, executed: Arc<AtomicUsize>) {
    let mut read = Vec::with_capacity(1_024);
    while let Ok(1..) = stream.read_buf(&mut read).await {
        if read.ends_with(b"}") {
            read.clear();
            let number = executed.fetch_add(1, Ordering::Relaxed);
            let body = format!("{{\"id\":\"pay_{number:020}\",\"status\":\"succeeded\"}}");
            let head = "HTTP/1.1 201 Created\r\nContent-Type: application/json";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Goal: a body takes as much memory as it is long, however small its pieces are.
///
/// Method: 16 requests, each of 400,000 chunks of one byte, whose end does not come.
/// Evidence: VmRSS.
#[tokio::test]
async fn small_pieces_are_no_weapon() {
    const PIECES: usize = 400_000;
    const MOST_KIB: u64 = 96 << 10;
    let (upstream, _) = counting_upstream().await;
    let gateway = Setup::with("")
        .start_before(&format!("http://{upstream}"))
        .await;
    let before = gateway.rss_kib();
    let pieces = "1\r\nx\r\n".repeat(PIECES);
    let mut unfinished = Vec::new();
    for number in 0..16 {
        let mut connection = Connection::open(gateway.data()).await.unwrap();
        let head = format!(
            "POST /payments HTTP/1.1\r\nHost: api.test\r\nIdempotency-Key: k{number}\r\n\
             Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        connection.write(head.as_bytes()).await.unwrap();
        connection.write(pieces.as_bytes()).await.unwrap();
        unfinished.push(connection);
    }
    // What was sent may still be on its way: until nothing has changed for two seconds.
    let (mut most, mut still) = (0, 0);
    for _ in 0..120 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let now = gateway.rss_kib();
        still = if now <= most + 256 { still + 1 } else { 0 };
        most = most.max(now);
        if still == 8 {
            break;
        }
    }
    let grown = most.saturating_sub(before);
    println!("16 bodies of {PIECES} pieces: {grown} KiB");
    assert!(grown <= MOST_KIB, "{grown} KiB for 6,250 KiB of bodies");
    drop(unfinished);
}

//! A long run of mixed traffic, with a reload and a restart of the store in the middle.
//!
//! Ten seconds of it in the short form; ten minutes with `ONLYONCE_SOAK=1`.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_testkit::servers::Postgres;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

use crate::harness::{Connection, Gateway, Request, Response, Setup, eventually, ms, soak};

/// Connections at once while the capacity is measured.
const CLIENTS: usize = 16;
/// The part of the capacity that is used, in percent.
const LOAD_PERCENT: u64 = 80;
/// More requests a second than this are not sent by this one client.
const MAX_RATE: u64 = 20_000;
/// What the process may hold at the end beyond what it held after a third of the time, in KiB.
const MAX_DRIFT_KIB: u64 = 64 << 10;
/// Requests under way at once; beyond it the gateway is not keeping up, and no more are sent.
const MAX_UNDER_WAY: usize = 2_000;

/// An upstream that counts each key, and keeps nothing else.
#[derive(Clone, Default)]
struct Counting(Arc<Mutex<HashMap<String, usize>>>);

impl Counting {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let counting = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(counting.clone().answer(stream));
            }
        });
        addr
    }

    /// Answers every request whose body ends with a brace, with its key.
    async fn answer(self, mut stream: TcpStream) {
        let mut read = Vec::with_capacity(1_024);
        while let Ok(1..) = stream.read_buf(&mut read).await {
            if !read.ends_with(b"}") {
                continue;
            }
            let text = String::from_utf8_lossy(&read).to_lowercase();
            let key = text.split("idempotency-key: ").nth(1).unwrap();
            let key = key.split('\r').next().unwrap().to_owned();
            let body = format!("{{\"key\":\"{key}\"}}");
            *self.0.lock().unwrap().entry(key).or_default() += 1;
            read.clear();
            let head = "HTTP/1.1 201 Created\r\nContent-Type: application/json";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }

    fn of(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).copied().unwrap_or(0)
    }
}

/// What is sent: of each hundred, 20 duplicates, 2 mismatches, 1 client that hangs up, and new keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Duplicate,
    Mismatch,
    HangUp,
}

fn kind(number: u64) -> Kind {
    // Spread over the hundred, and of earlier keys only.
    match (number * 37) % 100 {
        0..20 => Kind::Duplicate,
        20..22 => Kind::Mismatch,
        22 => Kind::HangUp,
        _ => Kind::New,
    }
}

/// What came of it.
#[derive(Default)]
struct Seen {
    latencies: Vec<Duration>,
    statuses: HashMap<u16, usize>,
    /// New keys and duplicates that were answered with 201.
    acknowledged: Vec<String>,
    /// Keys that a mismatch was the first to use.
    taken: Vec<String>,
    /// Everything else that was sent with a good body.
    others: Vec<String>,
}

/// Requests a second, as many as the machine can do with these clients.
async fn capacity(gateway: &Gateway, time: Duration) -> u64 {
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (addr, stop, count) = (gateway.data(), stop.clone(), count.clone());
        clients.spawn(async move {
            let mut connection = Connection::open(addr).await.unwrap();
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let request = Request::pay(&format!("capacity-{client}-{number}"));
                connection.send(&request).await.unwrap().expect(201);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    while clients.join_next().await.is_some() {}
    let rate = count.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    rate as u64
}

/// Connections that wait for their next request.
#[derive(Clone, Default)]
struct Idle(Arc<Mutex<Vec<Connection>>>);

impl Idle {
    /// Sends `request` over one of them, or over a new one. One that the gateway has closed meanwhile is no
    /// answer: the same request goes once more, as a client's does.
    async fn send(&self, addr: SocketAddr, request: &Request) -> std::io::Result<Response> {
        let waiting = self.0.lock().unwrap().pop();
        if let Some(mut connection) = waiting
            && let Ok(answer) = connection.send(request).await
        {
            return Ok(self.kept(connection, answer));
        }
        let mut connection = Connection::open(addr).await?;
        let answer = connection.send(request).await?;
        Ok(self.kept(connection, answer))
    }

    fn kept(&self, connection: Connection, answer: Response) -> Response {
        if answer.header("connection") != Some("close") {
            self.0.lock().unwrap().push(connection);
        }
        answer
    }
}

async fn one(addr: SocketAddr, number: u64, idle: Idle, seen: Arc<Mutex<Seen>>) {
    let kind = kind(number);
    let key = match kind {
        Kind::New | Kind::HangUp => format!("run-{number}"),
        // Something that was sent a while ago, new then.
        Kind::Duplicate | Kind::Mismatch => {
            let mut earlier = number.saturating_sub(50 + number % 400);
            while earlier > 0 && self::kind(earlier) != Kind::New {
                earlier -= 1;
            }
            format!("run-{earlier}")
        }
    };
    let mut request = Request::pay(&key);
    if kind == Kind::Mismatch {
        request = request.json(r#"{"amount":1,"other":true}"#);
    }
    if kind == Kind::HangUp {
        if let Ok(mut connection) = Connection::open(addr).await {
            let _ = connection.write(&request.bytes()).await;
            connection.reset();
        }
        seen.lock().unwrap().others.push(key);
        return;
    }
    let began = Instant::now();
    let Ok(answer) = idle.send(addr, &request).await else {
        panic!("no answer to {key}");
    };
    let took = began.elapsed();
    let mut seen = seen.lock().unwrap();
    seen.latencies.push(took);
    *seen.statuses.entry(answer.status).or_default() += 1;
    match (kind, answer.status) {
        (Kind::Mismatch, 422 | 503) => {}
        // The first with this key was refused for the store, or has not arrived yet: then this one is the
        // first, and the key is its own.
        (Kind::Mismatch, 201) => seen.taken.push(key),
        (Kind::Mismatch, _) => panic!("{key}: {answer}"),
        (_, 201) => {
            let expected = format!("{{\"key\":\"{key}\"}}");
            assert_eq!(answer.text(), expected, "another answer");
            seen.acknowledged.push(key);
        }
        (_, 409 | 422 | 503) => seen.others.push(key),
        _ => panic!("{key}: {answer}"),
    }
}

/// Goal: nothing is executed twice and nothing grows, under everyday traffic and everyday trouble.
///
/// Method: at 80 % of the measured capacity, by the clock and not by the answers: new keys, 20 %
/// duplicates, 2 % mismatches, 1 % clients that hang up; in the middle a reload and, a little later, a
/// restart of PostgreSQL.
/// Evidence: the upstream's count of each key; acknowledged keys replay their bytes at the end; VmRSS;
/// the latencies, printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_traffic() {
    let (run, measure) = match soak() {
        true => (Duration::from_secs(600), Duration::from_secs(10)),
        false => (Duration::from_secs(8), ms(1_500)),
    };
    let mut server = Postgres::start();
    let upstream = Counting::default();
    let addr = upstream.start().await;
    let gateway = Setup::with("lease: 5s, completion_grace: 5s")
        .store(&server.database("longrun"))
        .store_options("timeout: 1s")
        .start_before(&format!("http://{addr}"))
        .await;
    let measured = capacity(&gateway, measure).await;
    let rate = (measured * LOAD_PERCENT / 100).clamp(20, MAX_RATE);
    println!("capacity {measured} requests/s; the run goes at {rate}/s for {run:?}");

    let seen: Arc<Mutex<Seen>> = Arc::default();
    let idle = Idle::default();
    let mut under_way = JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap());
    let began = Instant::now();
    let (mut number, mut third, mut troubled) = (0, None, 0);
    while began.elapsed() < run {
        ticks.tick().await;
        let done = began.elapsed().as_secs_f64() / run.as_secs_f64();
        if done > 0.33 && third.is_none() {
            third = Some(gateway.rss_kib());
        }
        if done > 0.4 && troubled == 0 {
            troubled = 1;
            let config = gateway.config();
            gateway.reconfigure(&config.replace("lease: 5s", "lease: 6s"));
            gateway.sighup();
        }
        if done > 0.5 && troubled == 1 {
            troubled = 2;
            server = tokio::task::spawn_blocking(move || {
                server.stop();
                server.boot();
                server
            })
            .await
            .unwrap();
        }
        if under_way.len() < MAX_UNDER_WAY {
            number += 1;
            under_way.spawn(one(gateway.data(), number, idle.clone(), seen.clone()));
        }
        while let Some(ended) = under_way.try_join_next() {
            ended.unwrap();
        }
    }
    while let Some(ended) = under_way.join_next().await {
        ended.unwrap();
    }
    eventually("nothing in progress", async || {
        (gateway.count_in_state("in_progress").await == 0).then_some(())
    })
    .await;
    let end = gateway.rss_kib();
    judge(&gateway, &upstream, &seen, (number, third.unwrap(), end)).await;
}

async fn judge(
    gateway: &Gateway,
    upstream: &Counting,
    seen: &Mutex<Seen>,
    (sent, third, end): (u64, u64, u64),
) {
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let mut latencies = seen.latencies;
    latencies.sort_unstable();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    println!(
        "{sent} sent, {:?}; p50 {:?}, p99 {:?}, slowest {:?}; {third} KiB after a third, {end} KiB \
         at the end",
        seen.statuses,
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let twice: Vec<String> = {
        let counts = upstream.0.lock().unwrap();
        let twice = counts.iter().filter(|(_, count)| **count > 1);
        twice.map(|(key, _)| key.clone()).collect()
    };
    assert!(twice.is_empty(), "executed twice: {twice:?}");
    let acknowledged: HashSet<&String> = seen.acknowledged.iter().collect();
    let taken = seen.taken.iter().filter(|key| acknowledged.contains(key));
    let both: Vec<&String> = taken.collect();
    assert!(both.is_empty(), "two requests were answered under {both:?}");
    assert!(seen.statuses[&422] > 0 && !seen.acknowledged.is_empty());
    assert!(end.saturating_sub(third) <= MAX_DRIFT_KIB, "memory grows");
    let step = seen.acknowledged.len().div_ceil(200);
    for key in seen.acknowledged.iter().step_by(step) {
        assert_eq!(upstream.of(key), 1, "{key}");
        let replay = gateway.send(&Request::pay(key)).await.expect(201);
        assert_eq!(replay.text(), format!("{{\"key\":\"{key}\"}}"));
    }
    // What was not acknowledged is settled once, or honestly not known.
    for key in seen.others.iter().take(200) {
        let answer = gateway.send(&Request::pay(key)).await;
        assert!(matches!(answer.status, 201 | 409 | 422), "{key}: {answer}");
        assert!(upstream.of(key) <= 1, "{key}");
    }
}

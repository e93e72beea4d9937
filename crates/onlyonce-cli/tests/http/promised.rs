//! The real binary under faults, judged by the checker that knows only the promise: from what clients sent
//! and heard and from what the upstream counted, and from nothing that the gateway says of itself.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use onlyonce_testkit::promise::{self, Asked, At, Event, Heard, Terms, check};
use onlyonce_testkit::servers::Postgres;
use tokio::{
    task::{JoinSet, block_in_place},
    time::{Instant, timeout},
};

use crate::harness::{
    Connection, Gateway, Request, Response, Script, Setup, Upstream, client, eventually, ms, soak,
};

const CLIENTS: usize = 8;
const KEYS: u64 = 60;
/// Longer than the lease of these gateways.
const PAUSE: std::time::Duration = ms(1_500);
/// The default `ttl`, a day, in microseconds.
const KEPT_FOR: u64 = 24 * 60 * 60 * 1_000_000;

/// Requests of one run.
fn requests() -> usize {
    if soak() { 60_000 } else { 2_000 }
}

/// What the upstream does with a key, by its number: answers, loses its answers, or sends clients away.
#[derive(Clone, Copy, PartialEq)]
enum Means {
    Answers,
    Loses,
    SendsAway,
}

impl Means {
    fn of(key: u64) -> Self {
        match key % 10 {
            0 => Self::Loses,
            1 => Self::SendsAway,
            _ => Self::Answers,
        }
    }

    fn script(key: u64) -> Script {
        let delay = ms(key % 7 * 5);
        match Self::of(key) {
            Self::Answers => Script::created().delayed(delay),
            Self::Loses => Script::hang_up(),
            Self::SendsAway => Script::reply(429).delayed(delay),
        }
    }
}

/// What happens, and when: in microseconds, so that a request is always sent before it is executed.
#[derive(Clone)]
struct Tape {
    began: Instant,
    events: Arc<Mutex<Vec<At>>>,
    calls: Arc<AtomicU64>,
}

impl Tape {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            events: Arc::default(),
            calls: Arc::default(),
        }
    }

    fn at(&self, moment: Instant) -> u64 {
        u64::try_from(moment.duration_since(self.began).as_micros()).unwrap()
    }

    fn saw(&self, event: Event) {
        let at = self.at(Instant::now());
        self.events.lock().unwrap().push(At { at, event });
    }
}

fn asked(key: &str, body: &[u8]) -> Asked {
    Asked {
        keyspace: "all".into(),
        caller: "anybody".into(),
        key: key.into(),
        request: String::from_utf8_lossy(body).into(),
    }
}

/// What a client makes of an answer.
fn heard(answer: &Response) -> Heard {
    if answer.header("content-type") == Some("application/problem+json") {
        return Heard::of_problem(&answer.code());
    }
    let number = answer.json()["execution"].as_u64();
    let passed = promise::Answer {
        bytes: [answer.status.to_string().as_bytes(), &answer.body]
            .concat()
            .into(),
        execution: number.map(u128::from),
    };
    match answer.header("idempotency-status") {
        Some("completed") => Heard::Outcome(passed),
        _ => Heard::Passed(passed),
    }
}

/// One request of a client who may change his mind, hang up, or stop before the last byte.
async fn ask(tape: &Tape, addr: SocketAddr, key: &str, dice: u64) {
    let call = tape.calls.fetch_add(1, Ordering::SeqCst);
    let whole = !dice.is_multiple_of(29);
    let body = match dice % 11 {
        // What is cut short is asked for by nobody else.
        _ if !whole => format!("{{\"amount\":1,\"cut\":{call}}}"),
        0 => "{\"amount\":2}".to_owned(),
        _ => "{\"amount\":1}".to_owned(),
    };
    let request = Request::post("/payments").key(key).json(&body);
    let asked = asked(key, body.as_bytes());
    tape.saw(Event::Sent { call, asked, whole });
    if !whole {
        if let Ok(mut connection) = Connection::open(addr).await {
            let bytes = request.bytes();
            let _ = connection.write(&bytes[..bytes.len() - 1]).await;
        }
        return tape.saw(Event::Left { call });
    }
    let patience = match dice % 5 {
        0 => ms(dice % 40),
        _ => ms(60_000),
    };
    match timeout(patience, client::send(addr, &request)).await {
        Ok(Ok(answer)) => tape.saw(Event::Heard {
            call,
            heard: heard(&answer),
        }),
        // Its gateway has died.
        Ok(Err(_)) => tape.saw(Event::Heard {
            call,
            heard: Heard::Nothing,
        }),
        Err(_) => tape.saw(Event::Left { call }),
    }
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}

/// Goal: whatever dies or stands still, what was promised holds.
///
/// Method: clients ask at random under a few keys, change their minds, hang up and stop before the last byte;
/// an upstream that answers late, loses answers and sends clients away; meanwhile `trouble`, again and again.
/// Then everything comes to rest, and every key is asked for once more.
/// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed.
async fn holds(
    what: &str,
    mut gateways: Vec<Gateway>,
    upstream: Upstream,
    trouble: impl AsyncFn(usize, &mut Vec<Gateway>),
) {
    for key in 0..KEYS {
        upstream.always_for(&format!("k-{key}"), Means::script(key));
    }
    let tape = Tape::new();
    let addrs = Arc::new(Mutex::new(
        gateways.iter().map(Gateway::data).collect::<Vec<_>>(),
    ));
    let sent = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (tape, addrs, sent) = (tape.clone(), Arc::clone(&addrs), Arc::clone(&sent));
        clients.spawn(async move {
            let mut dice = Dice(0x9e37_79b9 + client as u64);
            while sent.fetch_add(1, Ordering::SeqCst) < requests() {
                let addr = {
                    let addrs = addrs.lock().unwrap();
                    addrs[dice.roll() as usize % addrs.len()]
                };
                let key = format!("k-{}", dice.roll() % KEYS);
                ask(&tape, addr, &key, dice.roll()).await;
                tokio::time::sleep(ms(dice.roll() % 8)).await;
            }
        });
    }
    for round in 0.. {
        let goal = sent.load(Ordering::SeqCst) + requests() / 10;
        if goal >= requests() {
            break;
        }
        eventually("more requests", async || {
            (sent.load(Ordering::SeqCst) >= goal).then_some(())
        })
        .await;
        trouble(round, &mut gateways).await;
        *addrs.lock().unwrap() = gateways.iter().map(Gateway::data).collect();
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    for gateway in &gateways {
        eventually("the store to be back", async || {
            let ready = gateway.admin_open("/readyz").await;
            (ready.status == 200).then_some(())
        })
        .await;
    }
    eventually("no key to be in progress", async || {
        (gateways[0].count_in_state("in_progress").await == 0).then_some(())
    })
    .await;
    tape.saw(Event::AtRest);
    for key in 0..KEYS {
        // Neither hangs up nor changes his mind.
        ask(&tape, gateways[0].data(), &format!("k-{key}"), 1).await;
    }
    judge(what, &tape, &upstream);
}

fn judge(what: &str, tape: &Tape, upstream: &Upstream) {
    let mut events = std::mem::take(&mut *tape.events.lock().unwrap());
    let executed = upstream.requests();
    for (number, seen) in (1_u128..).zip(&executed) {
        let key = seen.headers.one("idempotency-key").unwrap_or_default();
        let means = Means::of(key.trim_start_matches("k-").parse().unwrap());
        let at = tape.at(seen.at);
        let mut happened = |event| events.push(At { at, event });
        happened(Event::Began {
            execution: number,
            asked: asked(key, &seen.body),
            call: None,
        });
        if means == Means::SendsAway {
            happened(Event::Undone { execution: number });
        }
        happened(Event::Ended {
            execution: number,
            conclusive: means == Means::Answers,
        });
    }
    let terms = Terms {
        kept_for: KEPT_FOR,
        once_for: KEPT_FOR,
        largest_answer: 1 << 20,
        longest_wait: None,
        unclear_ends: false,
    };
    let outcomes = events.iter().filter(|at| {
        matches!(
            &at.event,
            Event::Heard {
                heard: Heard::Outcome(_),
                ..
            }
        )
    });
    println!(
        "{what}: {} requests, {} outcomes heard, {} executions",
        tape.calls.load(Ordering::SeqCst),
        outcomes.count(),
        executed.len()
    );
    let broken = check(&terms, &events);
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{what}:\n{}", broken.join("\n"));
}

fn setup() -> Setup {
    Setup::with("lease: 1s, completion_grace: 500ms, wait_timeout: 1s")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_gateway_on_sqlite() {
    let upstream = Upstream::start();
    let gateways = vec![setup().start(&upstream).await];
    holds("SQLite", gateways, upstream, async |round, gateways| {
        let gateway = &mut gateways[0];
        if round % 2 == 0 {
            gateway.kill9().await;
            gateway.restart().await;
        } else {
            gateway.pause();
            tokio::time::sleep(PAUSE).await;
            gateway.wake();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_postgres() {
    let upstream = Upstream::start();
    let server = Mutex::new(block_in_place(Postgres::start));
    let url = server.lock().unwrap().url();
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let setup = setup().store(&url).store_options("timeout: 500ms");
        gateways.push(setup.start(&upstream).await);
    }
    holds("PostgreSQL", gateways, upstream, async |round, gateways| {
        let gateway = &mut gateways[round / 4 % 2];
        match round % 4 {
            0 => {
                gateway.kill9().await;
                gateway.restart().await;
            }
            1 => {
                gateway.pause();
                tokio::time::sleep(PAUSE).await;
                gateway.wake();
            }
            2 => block_in_place(|| {
                let mut server = server.lock().unwrap();
                server.kill();
                server.boot();
            }),
            _ => {
                block_in_place(|| server.lock().unwrap().freeze());
                tokio::time::sleep(PAUSE).await;
                block_in_place(|| server.lock().unwrap().thaw());
            }
        }
    })
    .await;
}

//! Clients who ask at random, and the history of what they sent and heard and of what the upstream executed:
//! what the checker judges that knows only the promise.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use onlyonce_testkit::promise::{self, Asked, At, Event, Heard};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{Connection, Gateway, Request, Response, Script, Upstream, client, eventually, ms};

const CLIENTS: usize = 8;
/// Keys that are in use at once.
pub(crate) const WINDOW: u64 = 60;
/// The default `ttl`, a day, in microseconds.
const KEPT_FOR: u64 = 24 * 60 * 60 * 1_000_000;
/// The longest that a client waits, in microseconds.
const LONGEST_WAIT: u64 = 60 * 1_000_000;

/// What was promised to these clients.
pub(crate) const TERMS: promise::Terms = promise::Terms {
    kept_for: KEPT_FOR,
    once_for: KEPT_FOR,
    largest_answer: 1 << 20,
    longest_wait: Some(LONGEST_WAIT),
    unclear_ends: false,
};

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
pub(crate) struct Tape {
    began: Instant,
    events: Arc<Mutex<Vec<At>>>,
    calls: Arc<AtomicU64>,
    outcomes: Arc<AtomicU64>,
}

impl Tape {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            events: Arc::default(),
            calls: Arc::default(),
            outcomes: Arc::default(),
        }
    }

    /// Requests so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Outcomes that were heard so far.
    pub(crate) fn outcomes(&self) -> u64 {
        self.outcomes.load(Ordering::SeqCst)
    }

    /// Microseconds since it began.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, moment: Instant) -> u64 {
        u64::try_from(moment.duration_since(self.began).as_micros()).unwrap()
    }

    pub(crate) fn saw(&self, event: Event) {
        let at = self.now();
        self.events.lock().unwrap().push(At { at, event });
    }

    /// All of it, with what the upstream executed.
    pub(crate) fn end(&self, upstream: &Upstream) -> Vec<At> {
        let mut events = std::mem::take(&mut *self.events.lock().unwrap());
        for (number, seen) in (1_u128..).zip(&upstream.requests()) {
            let key = seen.headers.one("idempotency-key").unwrap_or_default();
            let number_of = |key: &str| key.strip_prefix("k-")?.parse().ok();
            // Somebody else may have asked as well.
            let Some(means) = number_of(key).map(Means::of) else {
                continue;
            };
            let at = self.at(seen.at);
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
        events
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
        _ => Duration::from_micros(LONGEST_WAIT),
    };
    match timeout(patience, client::send(addr, &request)).await {
        Ok(Ok(answer)) => {
            let heard = heard(&answer);
            if matches!(heard, Heard::Outcome(_)) {
                tape.outcomes.fetch_add(1, Ordering::SeqCst);
            }
            tape.saw(Event::Heard { call, heard });
        }
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

/// How clients choose their keys, and how long they think.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// After how many outcomes a new key comes into use and the oldest is left alone; `None`: never.
    pub(crate) new_key_after: Option<u64>,
    /// The longest pause between two requests of a client, in milliseconds.
    pub(crate) pause: u64,
}

impl Habits {
    /// The oldest key in use.
    fn oldest(self, tape: &Tape) -> u64 {
        self.new_key_after
            .map_or(0, |after| tape.outcomes() / after)
    }
}

/// Clients who ask under a few keys, change their minds, hang up and stop before the last byte, until they
/// are told to stop.
pub(crate) struct Crowd {
    tape: Tape,
    habits: Habits,
    stop: Arc<AtomicBool>,
    addrs: Arc<Mutex<Vec<SocketAddr>>>,
    clients: JoinSet<()>,
    scripted: Arc<Mutex<u64>>,
}

impl Crowd {
    pub(crate) fn start(gateways: &[Gateway], upstream: &Arc<Upstream>, habits: Habits) -> Self {
        let tape = Tape::new();
        let addrs = Arc::new(Mutex::new(
            gateways.iter().map(Gateway::data).collect::<Vec<_>>(),
        ));
        let (stop, scripted) = (Arc::<AtomicBool>::default(), Arc::<Mutex<u64>>::default());
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (tape, addrs) = (tape.clone(), Arc::clone(&addrs));
            let (stop, scripted) = (Arc::clone(&stop), Arc::clone(&scripted));
            let upstream = Arc::clone(upstream);
            clients.spawn(async move {
                let mut dice = Dice(0x9e37_79b9 + client as u64);
                while !stop.load(Ordering::SeqCst) {
                    let addr = {
                        let addrs = addrs.lock().unwrap();
                        addrs[dice.roll() as usize % addrs.len()]
                    };
                    let oldest = habits.oldest(&tape);
                    prepare(&upstream, &scripted, oldest + WINDOW);
                    let key = format!("k-{}", oldest + dice.roll() % WINDOW);
                    ask(&tape, addr, &key, dice.roll()).await;
                    tokio::time::sleep(ms(dice.roll() % habits.pause)).await;
                }
            });
        }
        Self {
            tape,
            habits,
            stop,
            addrs,
            clients,
            scripted,
        }
    }

    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Waits for more outcomes to be heard.
    pub(crate) async fn hears(&self, outcomes: u64) {
        let goal = self.tape.outcomes() + outcomes;
        eventually("more outcomes", async || {
            (self.tape.outcomes() >= goal).then_some(())
        })
        .await;
    }

    /// Waits for more requests to be sent.
    pub(crate) async fn sends(&self, requests: u64) {
        let goal = self.tape.calls() + requests;
        eventually("more requests", async || {
            (self.tape.calls() >= goal).then_some(())
        })
        .await;
    }

    /// Where the gateways are now.
    pub(crate) fn follow(&self, gateways: &[Gateway]) {
        *self.addrs.lock().unwrap() = gateways.iter().map(Gateway::data).collect();
    }

    /// Lets everything come to rest, asks for every key once more, and returns the whole history.
    pub(crate) async fn end(mut self, gateways: &[Gateway], upstream: &Upstream) -> Vec<At> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        for gateway in gateways {
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
        self.tape.saw(Event::AtRest);
        let keys = self.habits.oldest(&self.tape) + WINDOW;
        prepare(upstream, &self.scripted, keys);
        for key in 0..keys {
            // Neither hangs up nor changes his mind.
            let gateway = &gateways[key as usize % gateways.len()];
            ask(&self.tape, gateway.data(), &format!("k-{key}"), 1).await;
        }
        self.tape.end(upstream)
    }
}

/// Tells the upstream what to do with every key up to this one, before anybody uses it.
fn prepare(upstream: &Upstream, scripted: &Mutex<u64>, keys: u64) {
    let mut scripted = scripted.lock().unwrap();
    for key in *scripted..keys {
        upstream.always_for(&format!("k-{key}"), Means::script(key));
    }
    *scripted = keys.max(*scripted);
}

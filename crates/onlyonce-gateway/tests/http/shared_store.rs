//! What every store that gateways share has to stand, whichever it is: a race over two gateways, the
//! death of a node, a server that stops, freezes or dies, and a line that is cut.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_store::{
    fault_proxy::{FaultProxy, Mode},
    private::{Postgres, Redis},
};
use tokio::time::Instant;

use crate::harness::{
    Gateway, REPLAYED, Request, Response, Script, Setup, Upstream, client, eventually, ms, soak,
};

/// How long one request takes at most beyond what the store may take.
pub(crate) const BEYOND: Duration = ms(1_000);

/// Two gateways before one upstream, on the store at `url`.
pub(crate) async fn pair(url: &str, upstream: &Upstream, options: &str) -> (Gateway, Gateway) {
    let setup = Setup::with(options).store(url);
    (
        setup.clone().start(upstream).await,
        setup.start(upstream).await,
    )
}

/// Goal: a race over two gateways has one winner.
///
/// Method: 200 equal requests at once, half to each gateway; 50 rounds with `ONLYONCE_SOAK=1`, 5
/// otherwise.
/// Evidence: the upstream counts one execution a round; all answers are the same to the byte.
pub(crate) async fn race_over_two_gateways(url: &str) {
    let upstream = Upstream::start();
    let (a, b) = pair(url, &upstream, "").await;
    race(&upstream, &a, &b).await;
}

/// The race, over gateways that are there.
pub(crate) async fn race(upstream: &Upstream, a: &Gateway, b: &Gateway) {
    upstream.always(Script::created().delayed(ms(20)));
    let rounds = if soak() { 50 } else { 5 };
    for round in 0..rounds {
        let key = format!("race-{round}");
        let request = Request::pay(&key);
        let mut running = a.send_many(100, &request);
        running.extend(b.send_many(100, &request));
        let mut answers = Vec::new();
        for one in running {
            answers.push(one.await.unwrap().expect(201));
        }
        assert_eq!(upstream.executions_of(&key), 1, "round {round}");
        let first = &answers[0].body;
        assert!(answers.iter().all(|answer| answer.body == *first));
        let replayed = answers
            .iter()
            .filter(|answer| answer.header(REPLAYED) == Some("true"));
        assert_eq!(replayed.count(), 199, "round {round}");
    }
    println!("race over two gateways: {rounds} rounds of 200, one execution each");
}

/// Goal: a node that dies leaves an honest answer, not a second execution.
///
/// Method: node A is killed while the upstream holds; node B is asked at once and after the lease.
/// Evidence: 409 in progress, then 409 unknown without anybody asking in between; one execution.
pub(crate) async fn death_of_a_node(url: &str) {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let (mut a, b) = pair(url, &upstream, "lease: 1s").await;
    let addr = a.data();
    let lost = tokio::spawn(async move { client::send(addr, &Request::pay("k")).await });
    upstream.begun(1).await;
    a.kill9().await;
    assert!(lost.await.unwrap().is_err());
    let asked = Request::pay("k").header("Prefer", "wait=0");
    b.send(&asked)
        .await
        .refused(409, "idempotency_key_in_progress");
    let began = Instant::now();
    b.until_state("k", "unknown").await;
    // Lease, sweep and a second; the rest is the machine's, which may be busy with other tests.
    let took = began.elapsed();
    assert!(
        took <= ms(1_000 + 200 + 1_000 + 2_000),
        "unknown after {took:?}"
    );
    for _ in 0..3 {
        b.send(&Request::pay("k"))
            .await
            .refused(409, "idempotency_outcome_unknown");
    }
    upstream.release();
    assert_eq!(upstream.executions(), 1);
    // A comes back, and says the same.
    a.restart().await;
    a.send(&Request::pay("k"))
        .await
        .refused(409, "idempotency_outcome_unknown");
    assert_eq!(upstream.executions(), 1);
}

/// Goal: a waiter on one node hears of the other node's answer at once, not at its next poll.
///
/// Method: eight keys held by node A for long enough that node B polls once a second; release. A
/// machine that does something else at that moment gets two more tries.
/// Evidence: half of B's waiters at least are answered within 300 ms of A's own clients (50 ms where the
/// machine has nothing else to do), and all of them sooner than a poll would tell; one execution for
/// each key.
pub(crate) async fn waiters_are_woken(url: &str) {
    let upstream = Upstream::start();
    upstream.always(Script::created().held());
    let (a, b) = pair(url, &upstream, "").await;
    let timed = |gateway: &Gateway, key: &str| {
        let running = gateway.send_later(&Request::pay(key));
        tokio::spawn(async move { (running.await.unwrap(), Instant::now()) })
    };
    let mut tries = Vec::new();
    for round in 1..=3 {
        let late = woken_after(&upstream, round, |key| timed(&a, key), |key| timed(&b, key)).await;
        println!("woken after {late:?}");
        assert!(late[7] < ms(800), "{late:?}");
        tries.push(late[4]);
        if late[4] <= ms(300) {
            return;
        }
    }
    panic!("half of the waiters were told only after {tries:?}");
}

type Timed = tokio::task::JoinHandle<(Response, Instant)>;

/// How much later than the first client of its key each waiter was answered, in order.
async fn woken_after(
    upstream: &Upstream,
    round: usize,
    first: impl Fn(&str) -> Timed,
    waiting: impl Fn(&str) -> Timed,
) -> Vec<Duration> {
    let keys: Vec<String> = (0..8)
        .map(|number| format!("wake-{round}-{number}"))
        .collect();
    let first: Vec<_> = keys.iter().map(|key| first(key)).collect();
    upstream.begun(8 * round).await;
    let waiting: Vec<_> = keys.iter().map(|key| waiting(key)).collect();
    // After looks at 50, 150, 350, 750 and 1,550 ms the next one is due at 2,550.
    tokio::time::sleep(ms(1_700)).await;
    for _ in &keys {
        upstream.release();
    }
    let mut late = Vec::new();
    for (first, waiter) in first.into_iter().zip(waiting) {
        let ((answer, told), (again, woken)) = (first.await.unwrap(), waiter.await.unwrap());
        assert_eq!(again.expect(201).body, answer.expect(201).body);
        late.push(woken.saturating_duration_since(told));
    }
    late.sort();
    assert_eq!(upstream.executions(), 8 * round);
    late
}

const STORE_TIMEOUT: Duration = ms(500);

pub(crate) fn setup(url: &str) -> Setup {
    Setup::with("completion_grace: 1s, lease: 5s, max_execution: 60s")
        .store(url)
        .store_options("timeout: 500ms")
}

/// What the clients of a load saw.
#[derive(Default)]
pub(crate) struct Seen {
    /// Answers of 201, by key.
    pub(crate) acknowledged: BTreeMap<String, Vec<u8>>,
    /// Keys that were refused because the store was away: nothing was executed for them.
    pub(crate) refused: Vec<String>,
    /// Keys whose answer could not be made durable in time.
    pub(crate) unclear: Vec<String>,
    pub(crate) slowest: Duration,
}

/// Clients that send new keys, each over a connection of its own, until told to stop.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    clients: Vec<tokio::task::JoinHandle<Seen>>,
}

impl Load {
    pub(crate) fn start(gateway: &Gateway, upstream: &Arc<Upstream>) -> Self {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let addr = gateway.data();
        let clients = (0..8).map(|number| {
            let (stop, sent, upstream) = (stop.clone(), sent.clone(), upstream.clone());
            tokio::spawn(async move {
                let mut seen = Seen::default();
                for count in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let key = format!("load-{number}-{count}");
                    let began = Instant::now();
                    let answer = client::send(addr, &Request::pay(&key)).await;
                    let answer = answer.expect("the gateway answers, whatever the store does");
                    seen.slowest = seen.slowest.max(began.elapsed());
                    sent.fetch_add(1, Ordering::SeqCst);
                    match answer.status {
                        201 => drop(seen.acknowledged.insert(key, answer.body)),
                        503 if answer.code() == "idempotency_store_unavailable" => {
                            assert!(answer.retry_after().is_some());
                            assert_eq!(upstream.executions_of(&key), 0, "{key}: {answer}");
                            seen.refused.push(key);
                        }
                        503 => {
                            answer.refused(503, "idempotency_outcome_unknown");
                            seen.unclear.push(key);
                        }
                        _ => panic!("{key}: {answer}"),
                    }
                    tokio::time::sleep(ms(5)).await;
                }
                seen
            })
        });
        let clients = clients.collect();
        Self {
            stop,
            sent,
            clients,
        }
    }

    /// Returns when so many more requests have been answered.
    pub(crate) async fn more(&self, count: usize) {
        let goal = self.sent.load(Ordering::SeqCst) + count;
        eventually("more answers", async || {
            (self.sent.load(Ordering::SeqCst) >= goal).then_some(())
        })
        .await;
    }

    pub(crate) async fn end(self) -> Seen {
        self.stop.store(true, Ordering::SeqCst);
        let mut all = Seen::default();
        for client in self.clients {
            let seen = client.await.unwrap();
            all.acknowledged.extend(seen.acknowledged);
            all.refused.extend(seen.refused);
            all.unclear.extend(seen.unclear);
            all.slowest = all.slowest.max(seen.slowest);
        }
        all
    }
}

/// What holds once the store is back: nothing that was acknowledged is lost, nothing ran twice.
pub(crate) async fn holds_afterwards(
    what: &str,
    seen: &Seen,
    gateway: &Gateway,
    upstream: &Upstream,
) {
    println!(
        "{what}: {} acknowledged, {} refused, {} executed without an answer, slowest {:?}",
        seen.acknowledged.len(),
        seen.refused.len(),
        seen.unclear.len(),
        seen.slowest
    );
    assert!(!seen.refused.is_empty(), "{what}: the fault was felt");
    // The second look at an ambiguous reservation is the longest a client waits for one; an answer
    // that cannot be made durable takes `completion_grace`, here as long as `BEYOND`. The rest is
    // the machine's, which runs a server, eight clients and other tests beside.
    let bound = STORE_TIMEOUT + BEYOND + ms(2_000);
    assert!(seen.slowest <= bound, "{what}: {:?}", seen.slowest);
    for (key, body) in &seen.acknowledged {
        let replay = gateway.send(&Request::pay(key)).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "{what}: {key}");
        assert!(replay.body == *body, "{what}: {key}");
    }
    for key in &seen.unclear {
        // Its executor goes on trying.
        gateway.until_state(key, "completed").await;
        gateway.send(&Request::pay(key)).await.expect(201);
    }
    for key in seen.refused.iter().take(40) {
        let answer = eventually("a refused key to be taken", async || {
            let answer = gateway.send(&Request::pay(key)).await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        answer.expect(201);
    }
    for key in seen
        .acknowledged
        .keys()
        .chain(&seen.unclear)
        .chain(seen.refused.iter().take(40))
    {
        assert_eq!(upstream.executions_of(key), 1, "{what}: {key}");
    }
}

/// While the store is away: 503 in time, nothing reaches the upstream, other requests pass.
pub(crate) async fn holds_meanwhile(what: &str, gateway: &Gateway, upstream: &Upstream) {
    let mut took = Vec::new();
    for number in 0..3 {
        let key = format!("meanwhile-{number}");
        let began = Instant::now();
        let answer = gateway.send(&Request::pay(&key)).await;
        took.push(began.elapsed());
        answer.refused(503, "idempotency_store_unavailable");
        assert_eq!(upstream.executions_of(&key), 0, "{what}");
        gateway.send(&Request::get("/ledger")).await.expect(201);
    }
    // One of three may fall into a moment in which the machine does something else.
    took.sort();
    assert!(took[1] <= STORE_TIMEOUT + BEYOND, "{what}: {took:?}");
}

pub(crate) async fn recovered(gateway: &Gateway) {
    eventually("new keys to be taken again", async || {
        let answer = gateway.send(&Request::pay("recovered")).await;
        (answer.status == 201).then_some(())
    })
    .await;
}

/// A private server that can be hurt.
pub(crate) trait Hurt {
    fn stop(&mut self);
    fn kill(&mut self);
    fn boot(&mut self);
    fn freeze(&self);
    fn thaw(&self);
}

macro_rules! hurt {
    ($server:ty) => {
        impl Hurt for $server {
            fn stop(&mut self) {
                self.stop();
            }
            fn kill(&mut self) {
                self.kill();
            }
            fn boot(&mut self) {
                self.boot();
            }
            fn freeze(&self) {
                self.freeze();
            }
            fn thaw(&self) {
                self.thaw();
            }
        }
    };
}

hurt!(Postgres);
hurt!(Redis);

/// Goal: a server that is stopped, frozen or killed costs availability, never the promise.
///
/// Method: under load the server is stopped and started, frozen (SIGSTOP of every process) and woken,
/// killed with -9 and started. The gateway is never restarted.
/// Evidence: while it is away, 503 within `store.timeout` + 1 s, no execution, GET passes. Afterwards
/// every 201 that a client saw is replayed to the byte, and the upstream counts one for each key.
pub(crate) async fn stopped_frozen_killed<S: Hurt>(start: impl Fn() -> (S, String)) {
    for fault in ["stopped", "frozen", "killed"] {
        let (mut server, url) = start();
        let upstream = Arc::new(Upstream::start());
        let gateway = setup(&url).start(&upstream).await;
        let load = Load::start(&gateway, &upstream);
        load.more(50).await;
        match fault {
            "stopped" => server.stop(),
            "frozen" => server.freeze(),
            _ => server.kill(),
        }
        holds_meanwhile(fault, &gateway, &upstream).await;
        load.more(8).await;
        match fault {
            "frozen" => server.thaw(),
            _ => server.boot(),
        }
        recovered(&gateway).await;
        load.more(50).await;
        let seen = load.end().await;
        holds_afterwards(fault, &seen, &gateway, &upstream).await;
    }
}

/// Goal: a commit whose reply is lost is found out about, not repeated.
///
/// Method: a proxy before `port` lets the write through to the server, waits for its reply and
/// swallows it: at the reservation (the marker is the key), and at the completion (the marker is in
/// the answer).
/// Evidence: the client gets its 201, the upstream counts one, the retry gets the same bytes.
pub(crate) async fn replies_are_lost(port: u16, url_at: impl Fn(u16) -> String) {
    let proxy = FaultProxy::start(port).await;
    let upstream = Upstream::start();
    let gateway = setup(&url_at(proxy.port())).start(&upstream).await;
    gateway.send(&Request::pay("warm-up")).await.expect(201);
    let rounds = if soak() { 50 } else { 5 };
    for round in 0..rounds {
        for at in ["reserve", "complete"] {
            let key = format!("{at}-{round}-cut-off-here");
            let body = format!("{{\"answer\":\"{at}-{round}-to-be-kept\"}}");
            upstream.next(Script::created().body(&body));
            let before = proxy.swallowed();
            let marker = if at == "reserve" { &key } else { &body };
            proxy.swallow_reply_to(marker.as_bytes());
            let first = gateway.send(&Request::pay(&key)).await.expect(201);
            assert_eq!(proxy.swallowed(), before + 1, "{key}: the reply was lost");
            let again = gateway.send(&Request::pay(&key)).await.expect(201);
            assert_eq!((first.text(), again.text()), (body.clone(), body));
            assert_eq!(again.header(REPLAYED), Some("true"));
            assert_eq!(upstream.executions_of(&key), 1, "{key}");
        }
    }
    println!("replies lost: {rounds} at reserve, {rounds} at completion");
}

/// Goal: a connection that is cut, slow or half open is like any other fault.
///
/// Method: all connections cut; then answers 200 ms late; then nothing passes at all.
/// Evidence: after a cut and under delay requests succeed; while nothing passes, 503 in time and no
/// execution; afterwards new keys are taken.
pub(crate) async fn cut_slow_or_dead(port: u16, url_at: impl Fn(u16) -> String) {
    let proxy = FaultProxy::start(port).await;
    let upstream = Upstream::start();
    let gateway = setup(&url_at(proxy.port())).start(&upstream).await;
    gateway.send(&Request::pay("a")).await.expect(201);
    proxy.cut();
    gateway.send(&Request::pay("b")).await.expect(201);
    proxy.set(Mode::Delay(ms(100)));
    gateway.send(&Request::pay("c")).await.expect(201);
    proxy.set(Mode::Silent);
    holds_meanwhile("silent", &gateway, &upstream).await;
    proxy.set(Mode::Pass);
    recovered(&gateway).await;
    for key in ["a", "b", "c"] {
        gateway.send(&Request::pay(key)).await.expect(201);
        assert_eq!(upstream.executions_of(key), 1);
    }
}

//! Several gateways on one PostgreSQL server: one truth.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_store::private::Postgres;
use tokio::{sync::Mutex, time::Instant};

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, client, eventually, ms, soak,
};

/// A database of its own on a server that these tests share.
pub(crate) fn database() -> String {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = SERVER.get_or_init(Postgres::start);
    server.database(&format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Two gateways before one upstream, on one database.
async fn pair(upstream: &Upstream, options: &str) -> (Gateway, Gateway) {
    let setup = Setup::with(options).store(&database());
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
#[tokio::test]
async fn a_race_over_two_gateways() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(20)));
    let (a, b) = pair(&upstream, "").await;
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
#[tokio::test]
async fn the_death_of_a_node() {
    let upstream = Upstream::start();
    upstream.next(Script::created().held());
    let (mut a, b) = pair(&upstream, "lease: 1s").await;
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
    let took = began.elapsed();
    assert!(took <= ms(1_000 + 200 + 1_000), "unknown after {took:?}");
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
/// Evidence: half of B's waiters at least are answered within 50 ms of A's own clients, and all of
/// them sooner than a poll would tell; one execution for each key.
#[tokio::test]
async fn a_waiter_on_another_node_is_woken() {
    let upstream = Upstream::start();
    upstream.always(Script::created().held());
    let (a, b) = pair(&upstream, "").await;
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
        if late[4] <= ms(50) {
            return;
        }
    }
    panic!("half of the waiters were told only after {tries:?}");
}

type Timed = tokio::task::JoinHandle<(crate::harness::Response, Instant)>;

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

/// What a client of the rolling restart has been through.
#[derive(Default)]
struct Seen {
    answered: usize,
    replayed: usize,
    reconnected: usize,
}

/// Goal: gateways are replaced one by one under load, and nobody notices.
///
/// Method: 16 clients send payments to whichever of two gateways is there, 3 of 10 of them twice;
/// meanwhile each gateway is stopped with SIGTERM and started again, twice over.
/// Evidence: every answer is a 201, a broken connection leads to a retry with the same key and never
/// to a 5xx; no key was executed twice.
#[tokio::test]
async fn a_rolling_restart_under_load() {
    let upstream = Upstream::start();
    upstream.always(Script::created().delayed(ms(10)));
    let (a, b) = pair(&upstream, "").await;
    let doors = Arc::new(Mutex::new([Some(a.data()), Some(b.data())]));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..16_usize)
        .map(|client| tokio::spawn(pay_for_ever(client, doors.clone(), stop.clone())))
        .collect();
    let mut gateways = [a, b];
    for round in 0..if soak() { 8 } else { 2 } {
        for (index, gateway) in gateways.iter_mut().enumerate() {
            tokio::time::sleep(ms(400)).await;
            // As a load balancer does: first no new requests, then the end.
            doors.lock().await[index] = None;
            gateway.sigterm();
            let status = gateway.exited().await;
            assert!(status.success(), "round {round}: {status}");
            gateway.restart().await;
            doors.lock().await[index] = Some(gateway.data());
        }
    }
    tokio::time::sleep(ms(300)).await;
    stop.store(true, Ordering::SeqCst);
    let mut all = Seen::default();
    for client in clients {
        let seen = client.await.unwrap();
        all.answered += seen.answered;
        all.replayed += seen.replayed;
        all.reconnected += seen.reconnected;
    }
    println!(
        "rolling restart: {} answers, {} of them replays, {} broken connections, 0 errors",
        all.answered, all.replayed, all.reconnected
    );
    assert!(all.answered > 100 && all.replayed > 20);
    let mut keys: Vec<String> = upstream
        .requests()
        .iter()
        .filter_map(|request| request.headers.one("idempotency-key").map(str::to_owned))
        .collect();
    let executions = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), executions, "a key was executed twice");
}

async fn pay_for_ever(
    client: usize,
    doors: Arc<Mutex<[Option<std::net::SocketAddr>; 2]>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
) -> Seen {
    let mut seen = Seen::default();
    let mut number = 0_usize;
    while !stop.load(Ordering::SeqCst) {
        number += 1;
        let key = format!("roll-{client}-{number}");
        let sends = if number % 10 < 3 { 2 } else { 1 };
        for send in 0..sends {
            let answer = loop {
                let door = {
                    let doors = doors.lock().await;
                    doors[(client + number + send) % 2].or(doors[(client + number + send + 1) % 2])
                };
                let Some(addr) = door else { continue };
                match client::send(addr, &Request::pay(&key)).await {
                    Ok(answer) => break answer,
                    Err(_) => seen.reconnected += 1,
                }
            };
            assert_eq!(answer.status, 201, "{key}: {answer}");
            seen.answered += 1;
            if answer.header(REPLAYED) == Some("true") {
                seen.replayed += 1;
            }
        }
    }
    seen
}

/// Goal: sweeper and reaper run on every node at once, and each key is swept or reaped once.
///
/// Method: three gateways with loops every 50 ms; keys that expire at once, and keys whose node died.
/// Evidence: one journal row a key and event; nothing is left in the database.
#[tokio::test]
async fn loops_on_every_node_at_once() {
    let upstream = Upstream::start();
    let setup = Setup::with("ttl: 1s, tombstone_ttl: 1s, lease: 1s")
        .store(&database())
        .workers("sweep_every: 50ms, reap_every: 50ms");
    let mut gateways = Vec::new();
    for _ in 0..3 {
        gateways.push(setup.clone().start(&upstream).await);
    }
    for number in 0..30 {
        let gateway = &gateways[number % 3];
        gateway
            .send(&Request::pay(&format!("reap-{number}")))
            .await
            .expect(201);
    }
    upstream.always(Script::created().held());
    let dying = gateways.pop().unwrap();
    let addr = dying.data();
    for number in 0..5 {
        let request = Request::pay(&format!("sweep-{number}"));
        tokio::spawn(async move { client::send(addr, &request).await });
    }
    upstream.begun(35).await;
    drop(dying);
    eventually("the dead node's keys to be unknown", async || {
        (gateways[0].count_in_state("unknown").await == 5).then_some(())
    })
    .await;
    eventually("everything else to be reaped", async || {
        let left = gateways[1].count_in_state("completed").await
            + gateways[1].count_in_state("expired").await;
        (left == 0).then_some(())
    })
    .await;
    for number in 0..5 {
        let record = gateways[0].full_record(&format!("sweep-{number}")).await;
        let history = record["history"].as_array().unwrap().clone();
        let lapses = history
            .iter()
            .filter(|row| row["event"] == "lease_lapsed")
            .count();
        assert_eq!(lapses, 1, "{history:?}");
    }
    upstream.release();
}

/// How long one request takes at most beyond what the store may take.
pub(crate) const BEYOND: Duration = ms(1_000);

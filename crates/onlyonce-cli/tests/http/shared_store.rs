//! Several gateways on one shared store: one truth, whichever store it is.

use std::time::Duration;

use tokio::time::Instant;

use crate::harness::{
    Gateway, REPLAYED, Request, Script, Setup, Upstream, client, eventually, ms, soak,
};

/// Two gateways before one upstream, on one database.
pub(crate) async fn pair(url: &str, upstream: &Upstream, options: &str) -> (Gateway, Gateway) {
    two(Setup::with(options).store(url), upstream).await
}

async fn two(setup: Setup, upstream: &Upstream) -> (Gateway, Gateway) {
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
pub(crate) async fn race(url: &str) {
    let upstream = Upstream::start();
    // Who wins is the question, not how soon: a store on a busy machine may take its time.
    let setup = Setup::with("").store(url).store_options("timeout: 20s");
    let (a, b) = two(setup, &upstream).await;
    race_between(&a, &b, &upstream).await;
}

/// The same over gateways that are there.
pub(crate) async fn race_between(a: &Gateway, b: &Gateway, upstream: &Upstream) {
    upstream.always(Script::created().delayed(ms(20)));
    let rounds = if soak() { 50 } else { 5 };
    for round in 0..rounds {
        let key = format!("race-{round}");
        let request = Request::pay(&key);
        let mut running = a.send_many(100, &request);
        running.extend(b.send_many(100, &request));
        let mut answers = Vec::new();
        for one in running {
            answers.push(one.await.unwrap());
        }
        assert_eq!(upstream.executions_of(&key), 1, "round {round}");
        let answers: Vec<_> = answers.into_iter().map(|one| one.expect(201)).collect();
        let first = &answers[0].body;
        assert!(answers.iter().all(|answer| answer.body == *first));
        let replayed = answers
            .iter()
            .filter(|answer| answer.header(REPLAYED) == Some("true"));
        assert_eq!(replayed.count(), 199, "round {round}");
    }
    println!("race over two gateways: {rounds} rounds of 200, one execution each");
}

/// The options with which a node is given up soon.
pub(crate) const SHORT_LEASE: &str = "lease: 1s";

/// Goal: a node that dies leaves an honest answer, not a second execution.
///
/// Method: node A is killed while the upstream holds; node B is asked at once and after the lease.
/// Evidence: 409 in progress, then 409 unknown without anybody asking in between; one execution.
pub(crate) async fn death_of_a_node(url: &str) {
    let upstream = Upstream::start();
    let (a, b) = pair(url, &upstream, SHORT_LEASE).await;
    death_of_one(a, &b, &upstream).await;
}

/// The same between two gateways that are there, with [`SHORT_LEASE`].
pub(crate) async fn death_of_one(mut a: Gateway, b: &Gateway, upstream: &Upstream) {
    upstream.next(Script::created().held());
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
/// Evidence: half of B's waiters at least are answered within `soon` of A's own clients, and all of
/// them sooner than a poll would tell; one execution for each key.
pub(crate) async fn woken_waiter(url: &str, soon: Duration) {
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
        assert!(late[7] < soon + ms(750), "{late:?}");
        tries.push(late[4]);
        if late[4] <= soon {
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

/// Keys whose node dies.
const SWEPT: usize = 40;

/// Goal: sweeper and reaper run on every node at once, and each key is swept or reaped once.
///
/// Method: four gateways whose sweepers look so often that they meet; keys that expire soon, and keys whose
/// node died.
/// Evidence: one journal row a key and event; nothing is left in the database.
pub(crate) async fn loops_on_every_node(url: &str) {
    let upstream = Upstream::start();
    let setup = Setup::with("ttl: 1s, tombstone_ttl: 1s, lease: 1s")
        .store(url)
        .workers("sweep_every: 10ms, reap_every: 50ms");
    let mut gateways = Vec::new();
    for _ in 0..4 {
        gateways.push(setup.clone().start(&upstream).await);
    }
    for number in 0..30 {
        let gateway = &gateways[number % 4];
        gateway
            .send(&Request::pay(&format!("reap-{number}")))
            .await
            .expect(201);
    }
    upstream.always(Script::created().held());
    let dying = gateways.pop().unwrap();
    let addr = dying.data();
    for number in 0..SWEPT {
        let request = Request::pay(&format!("sweep-{number}"));
        tokio::spawn(async move { client::send(addr, &request).await });
    }
    upstream.begun(30 + SWEPT).await;
    drop(dying);
    eventually("the dead node's keys to be unknown", async || {
        (gateways[0].count_in_state("unknown").await == SWEPT).then_some(())
    })
    .await;
    eventually("everything else to be reaped", async || {
        let left = gateways[1].count_in_state("completed").await
            + gateways[1].count_in_state("expired").await;
        (left == 0).then_some(())
    })
    .await;
    for number in 0..SWEPT {
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

//! Several gateways on one PostgreSQL server: one truth.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use onlyonce_testkit::servers::Postgres;
use tokio::sync::Mutex;

use crate::{
    harness::{REPLAYED, Request, Script, Upstream, client, ms, soak},
    shared_store,
};

/// A database of its own on a server that these tests share.
pub(crate) fn database() -> String {
    own_database().1
}

/// The same, with the server that it is on.
pub(crate) fn own_database() -> (&'static Postgres, String) {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let server = SERVER.get_or_init(Postgres::start);
    let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
    (server, server.database(&name))
}

#[tokio::test]
async fn a_race_over_two_gateways() {
    shared_store::race(&database()).await;
}

#[tokio::test]
async fn the_death_of_a_node() {
    shared_store::death_of_a_node(&database()).await;
}

/// A notification tells it.
#[tokio::test]
async fn a_waiter_on_another_node_is_woken() {
    shared_store::woken_waiter(&database(), ms(50)).await;
}

#[tokio::test]
async fn loops_on_every_node_at_once() {
    shared_store::loops_on_every_node(&database()).await;
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
    let (a, b) = shared_store::pair(&database(), &upstream, "").await;
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

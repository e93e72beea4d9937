//! Everything at once: a provider that misbehaves at random behind two gateways that are killed and
//! paused. In the end every outcome is known, or waits for a person, and the two ledgers agree.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    harness::{
        Gateway, Request, Setup, client, ms,
        provider::{Part, Provider},
        soak,
    },
    postgres::database,
    reconcile::OUTCOMES,
};

/// How long a provider of this test goes on after its connection is gone.
const SLOW_COMMIT: Duration = Duration::from_millis(800);
/// No key may be unknown for longer without being a dead letter: lease and
/// `upstream_max_execution`, and the looks that follow, on a machine with other things to do.
const BOUND: Duration = Duration::from_secs(60);

/// A random number from a state that anybody may share.
fn random(state: &AtomicUsize) -> usize {
    let step = 0x9e37_79b9_7f4a_7c15_usize;
    let mut z = state.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn part(chance: usize) -> Part {
    match chance % 100 {
        0..55 => Part::Pay,
        55..63 => Part::Decline,
        63..71 => Part::PayAndHangUp,
        71..77 => Part::DeclineAndHangUp,
        77..84 => Part::HangUp,
        84..90 => Part::HangUpAndPayLater(ms(100 + (chance as u64 / 100) % 700)),
        90..94 => Part::PaySlowly(ms(1_100 + (chance as u64 / 100) % 400)),
        94..97 => Part::Fail,
        _ => Part::PayAndFail,
    }
}

async fn node(provider: &Provider, database: &str) -> Gateway {
    let options = "profile: payments, min_key_length: 1, lease: 1s, timeout: 1s, max_execution: 3s, \
                   credential_headers: [Authorization]";
    Setup::with(options)
        .store(database)
        .store_options("create: true")
        .workers("sweep_every: 200ms, reap_every: 60s, reconcile_every: 100ms")
        .route(&format!(
            "idempotency: {{ reconcile: {{ query: {{ url: \"{}/payments?key={{key}}\" }}, {OUTCOMES}, \
             upstream_max_execution: 1s, negative_gap: 500ms, after: 200ms }} }}",
            provider.url()
        ))
        .start_before(&provider.url())
        .await
}

/// Sends a payment until somebody says what became of it, as a patient client does.
async fn pay(key: String, nodes: Arc<Mutex<Vec<SocketAddr>>>, chance: Arc<AtomicUsize>) {
    let until = Instant::now() + BOUND;
    while Instant::now() < until {
        let addr = {
            let nodes = nodes.lock().unwrap();
            nodes[random(&chance) % nodes.len()]
        };
        let request = Request::pay(&key);
        let answer = tokio::time::timeout(ms(5_000), client::send(addr, &request)).await;
        if let Ok(Ok(answer)) = answer
            && matches!(answer.status, 201 | 402)
        {
            return;
        }
        tokio::time::sleep(ms(50 + (random(&chance) % 400) as u64)).await;
    }
}

/// Goal: every outcome that nobody saw is found out, or put before a person; nothing is done twice.
///
/// Method: 500 keys (10,000 with `ONLYONCE_SOAK=1`) through two gateways on one PostgreSQL, a provider
/// that hangs up before and after it books, commits late, answers late, declines, loses answers and
/// fails, at random; the gateways are killed and paused meanwhile.
/// Evidence: the provider's ledger, which never compares keys, against ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_unknown_ends() {
    let keys = if soak() { 10_000 } else { 500 };
    let chance = Arc::new(AtomicUsize::new(std::process::id() as usize));
    let dice = Arc::clone(&chance);
    let provider = Provider::start(move |key| match key {
        "proof" => Part::Pay,
        _ => part(random(&dice)),
    })
    .await;
    let database = database();
    let mut gateways = [
        node(&provider, &database).await,
        node(&provider, &database).await,
    ];
    gateways[0].send(&Request::pay("proof")).await.expect(201);
    let (code, said) = gateways[0].reconcile(&["--probe", "proof"]).await;
    assert_eq!(code, 0, "{said}");

    let nodes = Arc::new(Mutex::new(
        gateways.iter().map(Gateway::data).collect::<Vec<_>>(),
    ));
    let stop = Arc::new(AtomicBool::new(false));
    let names: Vec<String> = (0..keys).map(|number| format!("key-{number}")).collect();
    let clients = {
        let (nodes, chance, names) = (nodes.clone(), chance.clone(), names.clone());
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            let room = Arc::new(tokio::sync::Semaphore::new(48));
            let mut running = tokio::task::JoinSet::new();
            for key in names {
                let permit = Arc::clone(&room).acquire_owned().await.unwrap();
                let paying = pay(key, nodes.clone(), chance.clone());
                running.spawn(async move {
                    paying.await;
                    drop(permit);
                });
            }
            while running.join_next().await.is_some() {}
            stop.store(true, Ordering::SeqCst);
        })
    };
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) {
        tokio::time::sleep(ms(1_200)).await;
        let index = round % 2;
        if round % 3 == 2 {
            gateways[index].pause();
            tokio::time::sleep(ms(1_500)).await;
            gateways[index].wake();
        } else if round < 8 || soak() {
            gateways[index].kill9().await;
            gateways[index].restart().await;
            nodes.lock().unwrap()[index] = gateways[index].data();
        }
        round += 1;
    }
    clients.await.unwrap();
    println!(
        "{keys} keys, {} payments arrived, {round} kills and pauses",
        provider.received()
    );
    settle(&gateways[0]).await;
    judge(&gateways[1], &provider, &names).await;
}

/// Waits until nothing is in progress, and unknown only what waits for a person.
async fn settle(gateway: &Gateway) {
    let until = Instant::now() + BOUND;
    loop {
        let running = gateway.count_in_state("in_progress").await;
        let unknown = gateway.count_in_state("unknown").await;
        let letters = gateway.dead_letters().await.len();
        if running == 0 && unknown.min(100) == letters.min(100) {
            return;
        }
        assert!(
            Instant::now() < until,
            "after {BOUND:?} {running} keys are in progress, and of {unknown} unknown {letters} are dead \
             letters"
        );
        tokio::time::sleep(ms(300)).await;
    }
}

async fn judge(gateway: &Gateway, provider: &Provider, names: &[String]) {
    let letters = gateway.dead_letters().await;
    let mut counts = std::collections::BTreeMap::new();
    for key in names {
        let record = gateway.record(key).await.expect("a record of every key");
        let entry = provider.entry(key);
        assert!(
            entry.paid + entry.declined <= 1,
            "{key} was executed twice: {entry:?}"
        );
        assert_eq!(entry.pending, 0, "{key}");
        let state = record["state"].as_str().unwrap().to_owned();
        match state.as_str() {
            "completed" => {
                let status = record["response"]["status"].as_u64().unwrap();
                match status {
                    201 => assert_eq!(entry.paid, 1, "{key}: {record}"),
                    402 => {
                        assert_eq!(entry.declined, 1, "{key}: {record}");
                        let replay = gateway.send(&Request::pay(key)).await.expect(402);
                        assert_eq!(replay.json()["status"], "declined");
                    }
                    other => panic!("{key} has status {other}"),
                }
            }
            "failed_retryable" => assert_eq!(entry.paid + entry.declined, 0, "{key}: {record}"),
            "unknown" => assert!(
                letters
                    .iter()
                    .any(|letter| letter["key_id"] == record["id"]),
                "{key} is unknown and no dead letter"
            ),
            other => panic!("{key} is {other}"),
        }
        *counts.entry(state).or_insert(0_usize) += 1;
    }
    let most = SLOW_COMMIT;
    println!(
        "{counts:?}, {} dead letters, commits up to {most:?} late",
        letters.len()
    );
    assert!(
        counts.get("completed").copied().unwrap_or(0) * 2 > names.len(),
        "{counts:?}"
    );
    let (code, said) = compare(gateway, provider, names).await;
    assert_eq!(code, i32::from(!letters.is_empty()), "{said}");
}

/// The comparison that an operator makes: what it finds can only be dead letters.
async fn compare(gateway: &Gateway, provider: &Provider, names: &[String]) -> (i32, String) {
    let mut rows = String::from("key,status\nproof,succeeded\n");
    for key in names {
        let entry = provider.entry(key);
        let word = match (entry.paid, entry.declined) {
            (0, 0) => continue,
            (0, _) => "declined",
            _ => "succeeded",
        };
        rows.push_str(&format!("{key},{word}\n"));
    }
    let folder = gateway.folder();
    let file = folder.path().join("ledger.csv");
    std::fs::write(&file, rows).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let args = ["--route", "r", "--provider", &file, "--since", "1h"];
    let (code, said) = gateway.reconcile(&args).await;
    (
        if code == 1 && said.contains("unknown here") {
            1
        } else {
            code
        },
        said,
    )
}

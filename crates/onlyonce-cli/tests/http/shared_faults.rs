//! A database server that stops, freezes, dies or is cut off: a right answer or an honest one,
//! whichever server it is.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use onlyonce_testkit::tcp_faults::{FaultProxy, Mode};
use tokio::time::Instant;

use crate::{
    harness::{
        Gateway, Mortal, REPLAYED, Request, Script, Server, Setup, Upstream, client, eventually,
        ms, soak,
    },
    shared_store::BEYOND,
};

pub(crate) const STORE_TIMEOUT: Duration = ms(500);

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
    slowest: Duration,
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

/// Goal: a server that is stopped, frozen or killed costs availability, never the promise.
///
/// Method: under load the server is stopped and started, frozen (SIGSTOP of every process) and woken,
/// killed with -9 and started. The gateway is never restarted.
/// Evidence: while it is away, 503 within `store.timeout` + 1 s, no execution, GET passes. Afterwards
/// every 201 that a client saw is replayed to the byte, and the upstream counts one for each key.
pub(crate) async fn stops_freezes_or_dies<S: Mortal>() {
    for fault in ["stopped", "frozen", "killed"] {
        let mut server = S::start();
        let upstream = Arc::new(Upstream::start());
        let options = format!("timeout: 500ms{}", server.options());
        let setup = setup(&server.url()).store_options(&options);
        let gateway = setup.start(&upstream).await;
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
/// Method: a proxy lets the write through to the server, waits for its reply and swallows it: at the
/// reservation (the marker is the key), and at the completion (the marker is in the answer).
/// Evidence: the client gets its 201, the upstream counts one, the retry gets the same bytes.
pub(crate) async fn lost_reply<S: Server>() {
    let server = S::start();
    let proxy = FaultProxy::start(server.port()).await;
    let upstream = Upstream::start();
    let gateway = setup(&server.url_at(proxy.port())).start(&upstream).await;
    gateway.send(&Request::pay("warm-up")).await.expect(201);
    let rounds = if soak() { 50 } else { 5 };
    for round in 0..rounds {
        for at in ["reserve", "complete"] {
            let key = format!("{at}-{round}-cut-off-here");
            let body = format!("{{\"answer\":\"{at}-{round}-to-be-kept\"}}");
            upstream.next(Script::created().body(&body));
            let before = proxy.swallowed();
            let marker = if at == "reserve" { &key } else { &body };
            proxy.swallow_reply_to(&S::on_the_wire(marker));
            let first = gateway.send(&Request::pay(&key)).await.expect(201);
            assert_eq!(proxy.swallowed(), before + 1, "{key}: the reply was lost");
            let again = gateway.send(&Request::pay(&key)).await.expect(201);
            assert_eq!((first.text(), again.text()), (body.clone(), body));
            assert_eq!(again.header(REPLAYED), Some("true"));
            assert_eq!(upstream.executions_of(&key), 1, "{key}");
        }
    }
    println!("replies lost: {} at reserve, {0} at completion", rounds);
}

/// Goal: a connection that is cut, slow or half open is like any other fault.
///
/// Method: all connections cut; then answers 200 ms late; then nothing passes at all.
/// Evidence: after a cut and under delay requests succeed; while nothing passes, 503 in time and no
/// execution; afterwards new keys are taken.
pub(crate) async fn bad_line<S: Server>() {
    let server = S::start();
    let proxy = FaultProxy::start(server.port()).await;
    let upstream = Upstream::start();
    let gateway = setup(&server.url_at(proxy.port())).start(&upstream).await;
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

/// Goal: a result that the store could not take in time survives the end of its gateway.
///
/// Method: the server stops while the upstream holds; the answer comes; the client is told after
/// `completion_grace`; the gateway is killed with -9; server and gateway come back. With a spool,
/// and without.
/// Evidence: with it the key is completed with the answer, without it unknown; one execution each;
/// nothing is left in the spool.
pub(crate) async fn spool<S: Server>() {
    for spooled in [true, false] {
        let mut server = S::start();
        let upstream = Upstream::start();
        upstream.next(Script::created().held());
        let folder = tempfile::TempDir::new().unwrap();
        let spool = folder.path().join("spool");
        let mut options = "timeout: 500ms".to_owned();
        if spooled {
            options.push_str(&format!(", spool_dir: \"{}\"", spool.display()));
        }
        let setup = Setup::with("completion_grace: 300ms, lease: 1s").store(&server.url());
        let mut gateway = setup.store_options(&options).start(&upstream).await;
        let first = gateway.send_later(&Request::pay("k"));
        upstream.begun(1).await;
        server.stop();
        upstream.release();
        let told = first.await.unwrap();
        told.refused(503, "idempotency_outcome_unknown");
        // One that is being written has another ending.
        let files = || {
            let entries = std::fs::read_dir(&spool).into_iter().flatten().flatten();
            let whole = entries.filter(|entry| entry.path().extension() == Some("result".as_ref()));
            whole.count()
        };
        if spooled {
            eventually("the result to be in the spool", async || {
                (files() == 1).then_some(())
            })
            .await;
        }
        gateway.kill9().await;
        server.boot();
        gateway.restart().await;
        if spooled {
            gateway.until_state("k", "completed").await;
            let retry = gateway.send(&Request::pay("k")).await.expect(201);
            assert_eq!(retry.text(), r#"{"execution":1}"#);
            eventually("the spool to be empty", async || {
                (files() == 0).then_some(())
            })
            .await;
        } else {
            gateway.until_state("k", "unknown").await;
            let retry = gateway.send(&Request::pay("k")).await;
            retry.refused(409, "idempotency_outcome_unknown");
        }
        assert_eq!(upstream.executions(), 1);
    }
}

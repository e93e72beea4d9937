//! A clock nemesis against the real binary: the wall clock of a running gateway, which is the clock of its
//! SQLite store, is moved with libfaketime. Time that goes by (`CLOCK_BOOTTIME`, `CLOCK_MONOTONIC`) is not.

use std::path::Path;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::{
    harness::{
        Gateway, REPLAYED, Request, Script, Setup, Upstream, eventually, ms,
        provider::{Part, Provider},
        within,
    },
    reconcile,
};

/// Where Debian has the library.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const ELSEWHERE: &str = "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1";
/// Every way in which a clock is set, and set right again; and whether that is a jump to whoever has gone
/// on by the time that went by.
const JUMPS: [(&str, bool); 8] = [
    ("+20m", true),
    ("+0", false),
    ("-20m", true),
    ("+0", true),
    ("+25h", true),
    ("-25h", true),
    ("+2m", true),
    ("+0", true),
];

/// The wall clock of a process.
struct Wall(TempDir);

impl Wall {
    fn right() -> Self {
        let wall = Self(TempDir::new().expect("a folder for the clock"));
        wall.set("+0");
        wall
    }

    /// How far the clock is from the right time, as libfaketime reads it.
    fn set(&self, offset: &str) {
        // In one step, since the file is read at every look at the clock.
        let (new, file) = (self.0.path().join("new"), self.file());
        std::fs::write(&new, offset).expect("a place for the clock");
        std::fs::rename(new, file).expect("the clock to be set");
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.path().join("offset")
    }

    /// A gateway that goes by this clock.
    fn of(&self, setup: Setup) -> Setup {
        let mut library = [LIBRARY, ELSEWHERE].into_iter();
        let library = library.find(|path| Path::new(path).exists());
        let library = library.expect("libfaketime; `./test` installs Debian's package faketime");
        setup
            .env("LD_PRELOAD", library)
            .env(
                "FAKETIME_TIMESTAMP_FILE",
                self.file().to_str().expect("a plain path"),
            )
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1")
    }
}

/// Returns once the gateway has seen another jump than the `before` that it had seen.
async fn until_noticed(gateway: &Gateway, before: f64) -> f64 {
    eventually("the jump to be noticed", async || {
        let jumps = gateway.metric("onlyonce_clock_jumps_total").await;
        jumps.filter(|jumps| *jumps > before)
    })
    .await
}

/// Goal: no jump of the clock releases a key whose operation may be under way.
///
/// Method: the provider hangs up and books the payment seconds later; until then it truthfully says "not
/// found". `upstream_max_execution` is 5 minutes; the clock is set 20 minutes ahead. The client retries all
/// along.
/// Evidence: the provider's own ledger: one payment; the key ends by what the provider found.
#[tokio::test]
async fn a_jump_releases_nothing() {
    let provider = Provider::start(|key| match key {
        "proof" => Part::Pay,
        _ => Part::HangUpAndPayLater(ms(5_000)),
    })
    .await;
    let wall = Wall::right();
    let more = ", upstream_max_execution: 5m, negative_gap: 1s, attempts: 100";
    let setup = reconcile::setup(&provider, "/payments?key={key}", more);
    let gateway = wall.of(setup).start_before(&provider.url()).await;
    gateway.send(&Request::pay("proof")).await.expect(201);
    let (code, said) = gateway.reconcile(&["--probe", "proof"]).await;
    assert_eq!(code, 0, "{said}");
    gateway.send(&Request::pay("k")).await.expect(502);
    wall.set("+20m");
    let retry = Request::pay("k").header("Prefer", "wait=0");
    eventually("the provider's word", async || {
        let answer = gateway.send(&retry).await;
        assert_eq!(
            provider.received(),
            2,
            "the key was released and executed again"
        );
        (answer.status == 201).then_some(())
    })
    .await;
    assert_eq!(provider.entry("k").paid, 1);
    assert!(gateway.metric("onlyonce_clock_jumps_total").await >= Some(1.0));
}

/// Goal: a jump between stop and start expires nothing.
///
/// Method: a key is completed; the gateway is stopped, the clock set 25 hours ahead, which is beyond the
/// `ttl`, and the gateway started again, with a reaper that comes round all the time. And once more with
/// kill -9 while the clock is not believed.
/// Evidence: the retry gets the answer; the upstream's own count.
#[tokio::test]
async fn a_jump_while_stopped_expires_nothing() {
    let upstream = Upstream::start();
    let wall = Wall::right();
    let workers = "sweep_every: 100ms, reap_every: 100ms, reconcile_every: 100ms";
    let setup = wall.of(Setup::with("").workers(workers));
    let mut gateway = setup.start(&upstream).await;
    let first = gateway.send(&Request::pay("k")).await.expect(201);
    gateway.sigterm();
    gateway.exited().await;
    wall.set("+25h");
    gateway.restart().await;
    until_noticed(&gateway, 0.0).await;
    for kills in [false, true] {
        if kills {
            gateway.kill9().await;
            gateway.restart().await;
        }
        let began = Instant::now();
        while began.elapsed() < ms(700) {
            let replay = gateway.send(&Request::pay("k")).await.expect(201);
            assert_eq!(replay.header(REPLAYED), Some("true"));
            assert_eq!(replay.body, first.body);
        }
    }
    assert_eq!(upstream.executions(), 1);
}

/// Goal: jumps both ways, in every state of a key: no rule fires early, and nothing is stuck.
///
/// Method: a running, a completed, a released and an unknown key; the clock is set ahead and back by
/// minutes and by more than a day, with loops that come round all the time; after each jump the states are
/// watched for longer than a lease.
/// Evidence: the running one stays in progress and completes by its own answer; the completed one is
/// replayed; the unknown one stays unknown; the released one executes once; a new key goes through as
/// ever. The upstream's own count.
#[tokio::test]
async fn jumps_in_every_state() {
    let upstream = Upstream::start();
    let wall = Wall::right();
    let workers = "sweep_every: 100ms, reap_every: 100ms, reconcile_every: 100ms";
    let options = "lease: 1s, ttl: 1h, tombstone_ttl: 1h";
    let setup = wall.of(Setup::with(options).workers(workers));
    let gateway = setup.start(&upstream).await;
    gateway.send(&Request::pay("done")).await.expect(201);
    upstream.next(Script::hang_up());
    gateway.send(&Request::pay("lost")).await.expect(502);
    upstream.next(Script::reply(429));
    gateway.send(&Request::pay("again")).await.expect(429);
    upstream.next(Script::created().held());
    let running = gateway.send_later(&Request::pay("running"));
    upstream.begun(4).await;
    let mut noticed = 0.0;
    for (number, (jump, is_noticed)) in JUMPS.into_iter().enumerate() {
        wall.set(jump);
        if is_noticed {
            noticed = until_noticed(&gateway, noticed).await;
        }
        let began = Instant::now();
        while began.elapsed() < ms(1_400) {
            for (key, state) in [
                ("done", "completed"),
                ("lost", "unknown"),
                ("again", "failed_retryable"),
                ("running", "in_progress"),
            ] {
                assert_eq!(gateway.state(key).await, state, "{key} after {jump}");
            }
            tokio::time::sleep(ms(50)).await;
        }
        let replay = gateway.send(&Request::pay("done")).await.expect(201);
        assert_eq!(replay.header(REPLAYED), Some("true"), "after {jump}");
        gateway
            .send(&Request::pay("lost"))
            .await
            .refused(409, "idempotency_outcome_unknown");
        let new = Request::pay(&format!("new-{number}"));
        gateway.send(&new).await.expect(201);
    }
    assert_eq!(upstream.executions(), 4 + JUMPS.len());
    upstream.release();
    within("the first answer", running)
        .await
        .unwrap()
        .expect(201);
    gateway.send(&Request::pay("again")).await.expect(201);
    assert_eq!(upstream.executions(), 5 + JUMPS.len());
}

/// Goal: a key whose process is gone is not stuck, whichever way the clock jumped.
///
/// Method: kill -9 in the middle of an execution, the clock set while the gateway is down, and a start.
/// Evidence: unknown within bounded time, and never executed again.
#[tokio::test]
async fn what_a_dead_process_left_is_not_stuck() {
    for jump in ["+25h", "-25h"] {
        let upstream = Upstream::start();
        upstream.next(Script::created().held());
        let wall = Wall::right();
        let setup = wall.of(Setup::with("lease: 1s").workers("sweep_every: 200ms"));
        let mut gateway = setup.start(&upstream).await;
        let addr = gateway.data();
        let cut_off =
            tokio::spawn(
                async move { crate::harness::client::send(addr, &Request::pay("k")).await },
            );
        upstream.begun(1).await;
        gateway.kill9().await;
        assert!(cut_off.await.unwrap().is_err());
        wall.set(jump);
        gateway.restart().await;
        gateway.until_state("k", "unknown").await;
        gateway
            .send(&Request::pay("k"))
            .await
            .refused(409, "idempotency_outcome_unknown");
        upstream.release();
        assert_eq!(upstream.executions(), 1);
    }
}

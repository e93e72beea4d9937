//! One trial for every cluster: clients at two gateways, one fault after the other, and the judgement.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use onlyonce_testkit::namespaces;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    harness::{
        Gateway, Request, Setup, Upstream, client, eventually,
        history::{Crowd, Habits},
        ms,
        process::TOKEN,
    },
    levels::{Judged, Levels, judge, level_of},
};

/// Outcomes that are heard before the first fault.
const BEFORE: u64 = 100;
/// Of so many keys one may be written while a replica is late.
const LATE: usize = 200;
/// How often the operator looks whether a gateway holds keys back, in milliseconds.
const LOOK_EVERY: u64 = 200;

/// A cluster before it is hurt.
pub(crate) struct Trial {
    pub(crate) what: String,
    /// Where each gateway finds its store.
    pub(crate) urls: [String; 2],
    /// What `/readyz` is to say of it.
    pub(crate) level: &'static str,
    /// The longest pause between two requests of a client, in milliseconds.
    pub(crate) pause: u64,
}

/// What became of it.
pub(crate) struct Report {
    /// The keys for which a promise was broken.
    pub(crate) judged: Vec<Judged>,
    /// How often a gateway said that the store has lost keys.
    pub(crate) recognised: usize,
    /// What the upstream counted.
    executions: usize,
}

impl Report {
    /// Nothing was lost, and nobody thought so.
    pub(crate) fn nothing_is_lost(&self) {
        assert!(self.judged.is_empty(), "{}", all(&self.judged));
        assert_eq!(self.recognised, 0, "losses that are none");
    }

    /// Hardly anything was lost, and that was announced. A replica that takes too long to say that it has a
    /// write is not waited for, which happens on a busy machine.
    pub(crate) fn hardly_anything_is_lost(self) {
        let (lost, executions) = (self.judged.len(), self.executions);
        self.losses_were_announced();
        let is_little = lost * LATE <= executions;
        assert!(is_little, "{lost} of {executions} are lost");
    }

    /// Whatever was lost was written to a store that was said to be able to lose it.
    pub(crate) fn losses_were_announced(self) {
        let losses = self.judged.into_iter();
        let (_, wrong): (Vec<_>, Vec<_>) = losses.partition(Judged::is_announced_loss);
        assert!(wrong.is_empty(), "{}", all(&wrong));
    }
}

fn all(judged: &[Judged]) -> String {
    judged.iter().map(ToString::to_string).collect()
}

impl Trial {
    /// Goal: where the level is `sync`, nothing that was acknowledged is lost and nothing is executed twice,
    /// whatever happens to the cluster; where it is less, what is lost was acknowledged while the gateway said
    /// so.
    ///
    /// Method: clients ask at random at two gateways on the cluster, with new keys all the time, while one
    /// fault after the other strikes. An operator accepts the losses that gateways recognise. Then everything
    /// comes to rest, and every key is asked for once more.
    /// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed, and
    /// what `/readyz` said in the last moment before an outcome was first heard.
    pub(crate) async fn with<F: Copy + Debug>(
        &self,
        faults: &[F],
        mut strike: impl AsyncFnMut(F, &Crowd),
    ) -> Report {
        let what = &self.what;
        let upstream = Arc::new(Upstream::start());
        let mut gateways = Vec::new();
        for url in &self.urls {
            let setup = Setup::with("lease: 3s, completion_grace: 1s, wait_timeout: 1s")
                .store(url)
                .store_options("timeout: 1s")
                .quiet();
            gateways.push(setup.start(&upstream).await);
        }
        for gateway in &gateways {
            eventually("the level to be told", async || {
                (level_of(gateway).await.as_deref() == Some(self.level)).then_some(())
            })
            .await;
        }
        let habits = Habits {
            new_key_after: Some(3),
            pause: self.pause,
        };
        let crowd = Crowd::start(&gateways, &upstream, habits);
        let levels = Levels::watch(&gateways, crowd.tape());
        let operator = Operator::start(&gateways);
        crowd.hears(BEFORE).await;
        for fault in faults {
            let (before, calls) = (crowd.tape().outcomes(), crowd.tape().calls());
            let began = crowd.tape().now();
            strike(*fault, &crowd).await;
            println!(
                "{what}: {fault:?}: {} requests, {} outcomes, {} s",
                crowd.tape().calls() - calls,
                crowd.tape().outcomes() - before,
                (crowd.tape().now() - began) / 1_000_000
            );
        }
        let tape = crowd.tape().clone();
        let history = crowd.end(&gateways, &upstream).await;
        let judged = judge(&history, &levels);
        let again = judged.iter().filter(|judged| judged.was_executed_again());
        let (recognised, executions) = (
            operator.accepted.load(Ordering::SeqCst),
            upstream.executions(),
        );
        println!(
            "{what}: {} faults, {} requests, {} outcomes heard, {executions} executions; {} keys lost, {} of them \
             executed again, {recognised} losses recognised; levels {:?}",
            faults.len(),
            tape.calls(),
            tape.outcomes(),
            judged.len(),
            again.count(),
            levels.counts()
        );
        Report {
            judged,
            recognised,
            executions,
        }
    }
}

/// Somebody who accepts what is lost, so that new keys are taken again.
struct Operator {
    accepted: Arc<AtomicUsize>,
    looking: JoinHandle<()>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

impl Operator {
    fn start(gateways: &[Gateway]) -> Self {
        let addrs: Vec<_> = gateways.iter().map(Gateway::admin_addr).collect();
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        let looking = tokio::spawn(async move {
            let accept = Request::post("/store/accept-loss")
                .json(&json!({ "reason": "the ledgers were compared" }).to_string())
                .header("Authorization", format!("Bearer {TOKEN}"));
            loop {
                for addr in &addrs {
                    let Ok(ready) = client::send(*addr, &Request::get("/readyz")).await else {
                        continue;
                    };
                    let ready: Value = serde_json::from_slice(&ready.body).unwrap_or_default();
                    if !ready["store"]["lost_at"].is_string() {
                        continue;
                    }
                    let answer = client::send(*addr, &accept).await;
                    if answer.is_ok_and(|answer| answer.status == 200) {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                }
                tokio::time::sleep(ms(LOOK_EVERY)).await;
            }
        });
        Self { accepted, looking }
    }
}

/// Runs `check` in the namespaces of `name`, a test's full name.
pub(crate) fn in_namespaces(name: &str, check: impl AsyncFnOnce()) {
    if namespaces::inside(name) {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check());
    }
}

//! Three PostgreSQL servers under Patroni, with etcd and HAProxy, and everything that happens to them.

use std::sync::{Arc, Mutex, PoisonError};

use onlyonce_testkit::{
    namespaces,
    servers::{Patroni, Replication},
};
use tokio::task::block_in_place;

use crate::{
    harness::{
        Setup, Upstream, eventually,
        history::{Crowd, Habits},
        soak,
    },
    levels::{Judged, Levels, judge, level_of},
    nemesis::{ALL, Fault, strike},
};

/// Outcomes that are heard before the first fault.
const BEFORE: u64 = 100;
const HABITS: Habits = Habits {
    new_key_after: Some(3),
    pause: 40,
};
/// One cluster at a time: Patroni has deadlines that a machine with better things to do would miss.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Trial {
    replication: Replication,
    faults: Vec<Fault>,
    /// Whether one of the gateways goes to the servers itself, without HAProxy.
    one_goes_directly: bool,
}

/// Goal: where the level is `sync`, nothing that was acknowledged is lost and nothing is executed twice,
/// whatever happens to the cluster; where it is less, what is lost was acknowledged while the gateway said so.
///
/// Method: clients ask at random at two gateways on the cluster, with new keys all the time, while one fault
/// after the other strikes. Then everything comes to rest, and every key is asked for once more.
/// Evidence: the checker's judgement on what clients sent and heard and what the upstream executed, and what
/// `/readyz` said in the last moment before an outcome was first heard.
async fn trial(trial: &Trial) -> Vec<Judged> {
    let replication = trial.replication;
    let what = format!("{replication:?}, directly: {}", trial.one_goes_directly);
    let upstream = Arc::new(Upstream::start());
    let mut cluster = block_in_place(|| Patroni::start(replication));
    let mut gateways = Vec::new();
    for number in 0..2 {
        let url = match trial.one_goes_directly && number == 1 {
            true => cluster.url_of_all(),
            false => cluster.url(),
        };
        let setup = Setup::with("lease: 3s, completion_grace: 1s, wait_timeout: 1s")
            .store(&url)
            .store_options("timeout: 1s")
            .quiet();
        gateways.push(setup.start(&upstream).await);
    }
    let level = match replication {
        Replication::Asynchronous => "async",
        _ => "sync",
    };
    for gateway in &gateways {
        eventually("the level to be told", async || {
            (level_of(gateway).await.as_deref() == Some(level)).then_some(())
        })
        .await;
    }
    let crowd = Crowd::start(&gateways, &upstream, HABITS);
    let levels = Levels::watch(&gateways, crowd.tape());
    crowd.hears(BEFORE).await;
    for fault in &trial.faults {
        let (before, calls) = (crowd.tape().outcomes(), crowd.tape().calls());
        let began = crowd.tape().now();
        strike(*fault, &mut cluster, replication, &crowd).await;
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
    println!(
        "{what}: {} faults, {} requests, {} outcomes heard, {} executions; {} keys lost, {} of them \
         executed again; levels {:?}",
        trial.faults.len(),
        tape.calls(),
        tape.outcomes(),
        upstream.executions(),
        judged.len(),
        again.count(),
        levels.counts()
    );
    judged
}

/// All that a cluster is to survive. Where any standby may acknowledge a commit, one of them goes on doing so for
/// the old primary until Patroni has told it of the new one; so the old one has to be stopped in time, which a
/// Patroni that stands still does not do.
fn faults_of(replication: Replication) -> Vec<Fault> {
    let survives =
        |fault: &Fault| replication != Replication::AnyOne || *fault != Fault::PatroniPaused;
    ALL.into_iter().filter(survives).collect()
}

fn all(judged: &[Judged]) -> String {
    judged.iter().map(ToString::to_string).collect()
}

fn run(name: &str, check: impl AsyncFnOnce()) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if namespaces::inside(name) {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check());
    }
}

/// As [`trial`]. Nothing is lost.
#[test]
fn acknowledged_answers_survive() {
    run("patroni::acknowledged_answers_survive", async || {
        let short = [
            Fault::PrimaryKilled,
            Fault::PrimaryMute,
            Fault::CommitsCancelled,
        ];
        let trials = match soak() {
            false => vec![Trial {
                replication: Replication::Synchronous,
                faults: short.to_vec(),
                one_goes_directly: false,
            }],
            true => [
                (Replication::Strict, true),
                (Replication::AnyOne, false),
                (Replication::Two, false),
                (Replication::Synchronous, true),
                (Replication::Strict, false),
                (Replication::Synchronous, false),
            ]
            .map(|(replication, one_goes_directly)| Trial {
                replication,
                faults: faults_of(replication),
                one_goes_directly,
            })
            .into(),
        };
        for one in &trials {
            let judged = trial(one).await;
            assert!(judged.is_empty(), "{}", all(&judged));
        }
    });
}

/// As [`trial`]. Something is lost, and the level was less than `sync` then.
#[test]
fn lost_answers_were_announced() {
    run("patroni::lost_answers_were_announced", async || {
        let short = [Fault::ApartThenKilled, Fault::AloneThenKilled];
        let one = Trial {
            replication: Replication::Asynchronous,
            faults: if soak() { ALL.to_vec() } else { short.to_vec() },
            one_goes_directly: soak(),
        };
        let judged = trial(&one).await;
        assert!(!judged.is_empty(), "the fault was felt");
        let (_, wrong): (Vec<_>, Vec<_>) = judged.into_iter().partition(Judged::is_announced_loss);
        assert!(wrong.is_empty(), "{}", all(&wrong));
    });
}

//! Three PostgreSQL servers under Patroni, with etcd and HAProxy, and everything that happens to them.

use std::sync::{Mutex, PoisonError};

use onlyonce_testkit::servers::{Patroni, Replication};
use tokio::task::block_in_place;

use crate::{
    harness::{history::Crowd, soak},
    nemesis::{ALL, Fault, strike},
    trial::{Report, Trial, in_namespaces},
};

/// The longest pause between two requests of a client, in milliseconds.
const PAUSE: u64 = 40;
/// One cluster at a time: Patroni has deadlines that a machine with better things to do would miss.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A cluster, and what happens to it.
struct Plan {
    replication: Replication,
    faults: Vec<Fault>,
    /// Whether one of the gateways goes to the servers itself, without HAProxy.
    one_goes_directly: bool,
}

/// As [`Trial::with`].
async fn carry_out(plan: &Plan) -> Report {
    let replication = plan.replication;
    let mut cluster = block_in_place(|| Patroni::start(replication));
    let trial = Trial {
        what: format!("{replication:?}, directly: {}", plan.one_goes_directly),
        urls: match plan.one_goes_directly {
            true => [cluster.url(), cluster.url_of_all()],
            false => [cluster.url(), cluster.url()],
        },
        level: match replication {
            Replication::Asynchronous => "async",
            _ => "sync",
        },
        pause: PAUSE,
    };
    let strike = async |fault, crowd: &Crowd| {
        strike(fault, &mut cluster, replication, crowd).await;
    };
    trial.with(&plan.faults, strike).await
}

/// All that a cluster is to survive. Where any standby may acknowledge a commit, one of them goes on doing so for
/// the old primary until Patroni has told it of the new one; so the old one has to be stopped in time, which a
/// Patroni that stands still does not do.
fn faults_of(replication: Replication) -> Vec<Fault> {
    let survives =
        |fault: &Fault| replication != Replication::AnyOne || *fault != Fault::PatroniPaused;
    ALL.into_iter().filter(survives).collect()
}

fn run(name: &str, check: impl AsyncFnOnce()) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    in_namespaces(name, check);
}

/// Nothing is lost.
#[test]
fn acknowledged_answers_survive() {
    run("patroni::acknowledged_answers_survive", async || {
        let short = [
            Fault::PrimaryKilled,
            Fault::PrimaryMute,
            Fault::CommitsCancelled,
        ];
        let plans = match soak() {
            false => vec![Plan {
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
            .map(|(replication, one_goes_directly)| Plan {
                replication,
                faults: faults_of(replication),
                one_goes_directly,
            })
            .into(),
        };
        for one in &plans {
            carry_out(one).await.nothing_is_lost();
        }
    });
}

/// Something is lost, and the level was less than `sync` then.
#[test]
fn lost_answers_were_announced() {
    run("patroni::lost_answers_were_announced", async || {
        let short = [Fault::ApartThenKilled, Fault::AloneThenKilled];
        let one = Plan {
            replication: Replication::Asynchronous,
            faults: if soak() { ALL.to_vec() } else { short.to_vec() },
            one_goes_directly: soak(),
        };
        let report = carry_out(&one).await;
        assert!(!report.judged.is_empty(), "the fault was felt");
        report.losses_were_announced();
    });
}

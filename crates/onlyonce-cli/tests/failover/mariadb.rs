//! A MariaDB server with a semi-synchronous replica, and everything that happens to the two.

use onlyonce_testkit::{
    servers::MariaDb,
    tcp_faults::{FaultProxy, Mode},
};
use tokio::task::block_in_place;

use crate::{
    harness::{eventually, history::Crowd, ms, soak},
    trial::{Report, Trial},
};

/// Outcomes that clients hear, or requests that they send, while something is wrong.
const MEANWHILE: u64 = 60;
/// How often all of it happens in the long form.
const ROUNDS: usize = 4;
/// How long a commit waits for the replica, in milliseconds.
const WAITS_FOR: u64 = 400;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The replica is stopped by order, so that commits wait for nobody; then it goes on.
    ReplicaStopped,
    /// The replica receives and does not apply, and catches up.
    ReplicaLags,
    /// What goes between the servers takes a while, so that each commit does.
    SlowLine,
    /// The replica falls silent, so that commits wait in vain and then no more; then it is back.
    ReplicaSilent,
    /// The primary stands still and goes on.
    PrimaryFrozen,
    /// `kill -9` of the primary, which is started again.
    PrimaryKilled,
    /// `kill -9` of the primary for good, and the replica takes its place with all that it has received.
    PrimaryReplaced,
    /// The replica falls silent, the primary goes on without it and is killed for good, and the replica takes
    /// its place.
    ApartThenReplaced,
}

use Fault::{
    ApartThenReplaced, PrimaryFrozen, PrimaryKilled, PrimaryReplaced, ReplicaLags, ReplicaSilent,
    ReplicaStopped, SlowLine,
};

struct Pair {
    primary: MariaDb,
    /// Between the two.
    line: FaultProxy,
    replica: MariaDb,
}

impl Pair {
    async fn start() -> Self {
        let primary = block_in_place(MariaDb::start_semi_synchronous);
        primary.sql(&format!(
            "SET GLOBAL rpl_semi_sync_master_timeout = {WAITS_FOR}"
        ));
        let line = FaultProxy::start(primary.port()).await;
        let replica = block_in_place(|| primary.replica_through(line.port()));
        Self {
            primary,
            line,
            replica,
        }
    }

    /// Waits until commits wait for the replica, or do not: they are set to, and it is attached.
    async fn until_waited_for(&self, yes: bool) {
        let status = "SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME) \
                      FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN \
                      ('RPL_SEMI_SYNC_MASTER_CLIENTS', 'RPL_SEMI_SYNC_MASTER_STATUS')";
        let what = format!("commits to wait for the replica: {yes}");
        eventually(&what, async || {
            (block_in_place(|| self.primary.sql(status) == "1,ON") == yes).then_some(())
        })
        .await;
    }

    /// The URL of both servers, of which one takes writes.
    fn url(&self) -> String {
        let (primary, replica) = (self.primary.port(), self.replica.port());
        let hosts = format!("127.0.0.1:{primary},127.0.0.1:{replica}");
        let url = self.primary.url();
        url.replace(&format!("127.0.0.1:{primary}"), &hosts)
    }
}

/// Hurts the servers while the crowd goes on, and returns when the store is back.
async fn strike(fault: Fault, pair: &mut Pair, crowd: &Crowd) {
    match fault {
        ReplicaStopped => {
            block_in_place(|| pair.replica.sql("STOP SLAVE"));
            pair.until_waited_for(false).await;
            crowd.hears(MEANWHILE).await;
            block_in_place(|| pair.replica.sql("START SLAVE"));
            pair.until_waited_for(true).await;
        }
        ReplicaLags => {
            block_in_place(|| pair.replica.sql("STOP SLAVE SQL_THREAD"));
            crowd.hears(MEANWHILE).await;
            block_in_place(|| pair.replica.sql("START SLAVE"));
        }
        SlowLine => {
            pair.line.set(Mode::Delay(ms(WAITS_FOR / 8)));
            crowd.hears(MEANWHILE).await;
            pair.line.set(Mode::Pass);
        }
        ReplicaSilent => {
            pair.line.set(Mode::Silent);
            pair.until_waited_for(false).await;
            crowd.hears(MEANWHILE).await;
            pair.line.set(Mode::Pass);
            // A connection that was silent has lost bytes, so that it is made anew.
            pair.line.cut();
            block_in_place(|| pair.replica.sql("STOP SLAVE; START SLAVE"));
            pair.until_waited_for(true).await;
        }
        PrimaryFrozen => {
            pair.primary.freeze();
            crowd.sends(MEANWHILE).await;
            pair.primary.thaw();
        }
        PrimaryKilled => {
            block_in_place(|| {
                pair.primary.kill();
                pair.primary.boot();
                let wait = format!("SET GLOBAL rpl_semi_sync_master_timeout = {WAITS_FOR}");
                pair.primary.sql(&wait);
                pair.replica.sql("STOP SLAVE; START SLAVE");
            });
            crowd.hears(MEANWHILE).await;
            pair.until_waited_for(true).await;
        }
        PrimaryReplaced => block_in_place(|| {
            pair.primary.kill();
            pair.replica.promote();
        }),
        ApartThenReplaced => {
            pair.line.set(Mode::Silent);
            pair.until_waited_for(false).await;
            crowd.hears(3 * MEANWHILE).await;
            block_in_place(|| {
                pair.primary.kill();
                pair.replica.promote();
            });
        }
    }
    crowd.hears(MEANWHILE).await;
}

/// As [`Trial::with`].
async fn carry_out(what: &str, faults: &[Fault]) -> Report {
    let mut pair = Pair::start().await;
    let trial = Trial {
        what: what.to_owned(),
        urls: [pair.url(), pair.url()],
        level: "async",
        pause: 20,
    };
    let strike = async |fault, crowd: &Crowd| strike(fault, &mut pair, crowd).await;
    trial.with(faults, strike).await
}

/// Nothing is lost: the primary came back, or the replica had been waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_answers_survive() {
    let (faults, rounds) = match soak() {
        true => {
            let all = [
                ReplicaStopped,
                ReplicaLags,
                SlowLine,
                ReplicaSilent,
                PrimaryFrozen,
                PrimaryKilled,
                PrimaryReplaced,
            ];
            (all.to_vec(), ROUNDS)
        }
        false => (vec![ReplicaStopped, ReplicaLags, PrimaryReplaced], 1),
    };
    for _ in 0..rounds {
        let report = carry_out("MariaDB", &faults).await;
        report.nothing_is_lost();
    }
}

/// Something is lost, and the level was less than `sync` then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_were_announced() {
    for _ in 0..if soak() { ROUNDS } else { 1 } {
        let report = carry_out("MariaDB, apart", &[PrimaryKilled, ApartThenReplaced]).await;
        assert!(!report.judged.is_empty(), "the fault was felt");
        report.losses_were_announced();
    }
}

//! A Redis Cluster of three masters with a replica each, on six machines, and everything that happens to it.

use onlyonce_testkit::servers::RedisCluster;
use tokio::task::block_in_place;

use crate::{
    harness::{history::Crowd, soak},
    trial::{Report, Trial, in_namespaces},
};

/// Outcomes that clients hear, or requests that they send, while something is wrong.
const MEANWHILE: u64 = 60;
/// How often all of it happens in the long form.
const ROUNDS: usize = 3;

/// A fault of one third of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The master stands still until it was replaced, and wakes as a master.
    MasterFrozen,
    /// `kill -9` of the master, which returns once it was replaced.
    MasterKilled,
    /// The replica takes over by order, with the master's consent.
    ReplicaPromoted,
    /// The replica takes over by order, without asking the master.
    ReplicaForced,
    /// Nothing goes between the master and any other server; clients reach all.
    MasterCutOff,
    /// What the master sends to other servers is lost.
    MasterMute,
    /// What other servers send to the master is lost.
    MasterDeaf,
    /// `kill -9` of the replica, which returns.
    ReplicaKilled,
    /// Master and replica do not reach each other, the master goes on, and is killed: the replica takes its
    /// place without what was written meanwhile.
    ApartThenKilled,
}

use Fault::{
    ApartThenKilled, MasterCutOff, MasterDeaf, MasterFrozen, MasterKilled, MasterMute,
    ReplicaForced, ReplicaKilled, ReplicaPromoted,
};

/// With these nothing that was acknowledged is lost, although the level is less than `sync`: the replica has
/// said that it has it, in time, or the master stays.
const SURVIVED: [Fault; 5] = [
    MasterFrozen,
    MasterKilled,
    ReplicaPromoted,
    ReplicaForced,
    ReplicaKilled,
];

/// With these something is: what a master writes that has lost its replica, until the others call it failed.
const LOSES: [Fault; 4] = [MasterCutOff, ApartThenKilled, MasterMute, MasterDeaf];

/// Hurts the servers of a third of the slots while the crowd goes on, and returns when all is well.
async fn strike(fault: Fault, third: usize, cluster: &mut RedisCluster, crowd: &Crowd) {
    let (old, new) = cluster.pair(third);
    match fault {
        MasterFrozen => {
            block_in_place(|| {
                cluster.server(old).freeze();
                cluster.until_leads(new, old);
            });
            crowd.hears(MEANWHILE).await;
            cluster.server(old).thaw();
        }
        MasterKilled => {
            block_in_place(|| {
                cluster.server(old).kill();
                cluster.until_leads(new, old);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| cluster.server(old).boot());
        }
        ReplicaPromoted | ReplicaForced => block_in_place(|| {
            let order = ["cluster", "failover", "force"];
            let words = if fault == ReplicaForced { 3 } else { 2 };
            cluster.server(new).cli(&order[..words]);
            cluster.until_leads(new, old);
        }),
        MasterCutOff | MasterMute | MasterDeaf => {
            let machine = cluster.server(old).machine().clone();
            block_in_place(|| {
                for other in cluster.everybody_but(old) {
                    if fault != MasterDeaf {
                        cluster.network().cut(&machine, other.machine());
                    }
                    if fault != MasterMute {
                        cluster.network().cut(other.machine(), &machine);
                    }
                }
                cluster.until_leads(new, old);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| cluster.network().heal());
        }
        ReplicaKilled => {
            block_in_place(|| cluster.server(new).kill());
            crowd.hears(MEANWHILE).await;
            block_in_place(|| cluster.server(new).boot());
        }
        ApartThenKilled => {
            let machines = [old, new].map(|port| cluster.server(port).machine().clone());
            block_in_place(|| cluster.network().part(&machines[0], &machines[1]));
            crowd.hears(6 * MEANWHILE).await;
            block_in_place(|| {
                cluster.server(old).kill();
                cluster.network().heal();
                cluster.until_leads(new, old);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| cluster.server(old).boot());
        }
    }
    crowd.hears(MEANWHILE).await;
    block_in_place(|| cluster.until_paired(third));
    crowd.hears(MEANWHILE).await;
}

/// As [`Trial::with`].
async fn carry_out(what: &str, faults: &[Fault]) -> Report {
    let settings = [
        "appendonly yes",
        "appendfsync always",
        "cluster-require-full-coverage no",
    ];
    let mut cluster = block_in_place(|| RedisCluster::start_on_machines(&settings));
    let trial = Trial {
        what: what.to_owned(),
        urls: [cluster.url(), cluster.url()],
        level: "async",
        pause: 20,
    };
    let mut third = 0;
    let strike = async |fault, crowd: &Crowd| {
        third = (third + 1) % 3;
        strike(fault, third, &mut cluster, crowd).await;
    };
    trial.with(faults, strike).await
}

/// Nothing is lost but what a replica was late to confirm.
#[test]
fn acknowledged_answers_survive() {
    in_namespaces("redis_cluster::acknowledged_answers_survive", async || {
        let faults = match soak() {
            true => SURVIVED.repeat(ROUNDS),
            false => vec![MasterFrozen, MasterKilled, ReplicaForced],
        };
        let report = carry_out("Redis Cluster", &faults).await;
        report.hardly_anything_is_lost();
    });
}

/// Something is lost, and the level was less than `sync` then.
#[test]
fn lost_answers_were_announced() {
    in_namespaces("redis_cluster::lost_answers_were_announced", async || {
        let faults = match soak() {
            true => LOSES.repeat(ROUNDS),
            false => vec![MasterCutOff],
        };
        let report = carry_out("Redis Cluster, apart", &faults).await;
        assert!(!report.judged.is_empty(), "the fault was felt");
        report.losses_were_announced();
    });
}

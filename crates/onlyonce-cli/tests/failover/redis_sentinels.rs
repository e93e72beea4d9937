//! Two Redis servers and three Sentinels on three machines, and everything that happens to them.

use onlyonce_testkit::servers::RedisSentinels;
use tokio::task::block_in_place;

use crate::{
    harness::{history::Crowd, soak},
    trial::{Report, Trial, in_namespaces},
};

/// Outcomes that clients hear, or requests that they send, while something is wrong.
const MEANWHILE: u64 = 60;
/// How often all of it happens in the long form.
const ROUNDS: usize = 3;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The master stands still until it was replaced, and wakes as a master.
    MasterFrozen,
    /// The master stands still for less than it takes to be replaced.
    MasterPaused,
    /// `kill -9` of the master, which returns once it was replaced.
    MasterKilled,
    /// The Sentinels choose another master by order, and tell the old one much later.
    MasterDeposed,
    /// Nothing goes between the master's machine and the other two; clients reach all.
    MasterCutOff,
    /// What the master's machine sends to the other two is lost.
    MasterMute,
    /// What the other two send to the master's machine is lost.
    MasterDeaf,
    /// `kill -9` of the replica, which returns.
    ReplicaKilled,
    /// The replica stands still and returns.
    ReplicaFrozen,
    /// The servers do not reach each other, the master goes on, and is killed: the replica takes its place
    /// without what was written meanwhile.
    ApartThenKilled,
}

use Fault::{
    ApartThenKilled, MasterCutOff, MasterDeaf, MasterDeposed, MasterFrozen, MasterKilled,
    MasterMute, MasterPaused, ReplicaFrozen, ReplicaKilled,
};

/// With these nothing that was acknowledged is lost, although the level is less than `sync`: the replica has
/// said that it has it, in time, or the master stays.
const SURVIVED: [Fault; 6] = [
    MasterFrozen,
    MasterKilled,
    MasterDeposed,
    MasterPaused,
    ReplicaKilled,
    ReplicaFrozen,
];

/// With these something is: what a master writes that has lost its replica, until the Sentinels call it down.
const LOSES: [Fault; 4] = [MasterCutOff, ApartThenKilled, MasterMute, MasterDeaf];

/// Hurts the servers while the crowd goes on, and returns when it can go on for good. Sentinels make a replica
/// of an old master some ten seconds later: that is waited for before the next fault.
async fn strike(fault: Fault, servers: &mut RedisSentinels, crowd: &Crowd) {
    block_in_place(|| servers.until_whole());
    let (old, new) = servers.pair();
    match fault {
        MasterFrozen => {
            block_in_place(|| {
                servers.server(old).freeze();
                servers.until_named(new);
            });
            crowd.hears(MEANWHILE).await;
            servers.server(old).thaw();
        }
        MasterPaused => {
            servers.server(old).freeze();
            crowd.sends(MEANWHILE / 4).await;
            servers.server(old).thaw();
        }
        MasterKilled => {
            block_in_place(|| {
                servers.server(old).kill();
                servers.until_named(new);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| servers.server(old).boot());
        }
        MasterDeposed => block_in_place(|| {
            servers.replace();
            servers.until_named(new);
        }),
        MasterCutOff | MasterMute | MasterDeaf => {
            let machine = servers.server(old).machine().clone();
            block_in_place(|| {
                for other in servers.machines_but(&machine) {
                    if fault != MasterDeaf {
                        servers.network().cut(&machine, other);
                    }
                    if fault != MasterMute {
                        servers.network().cut(other, &machine);
                    }
                }
                servers.until_named_without(&machine, new);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| servers.network().heal());
        }
        ReplicaKilled => {
            block_in_place(|| servers.server(new).kill());
            crowd.hears(MEANWHILE).await;
            block_in_place(|| servers.server(new).boot());
        }
        ReplicaFrozen => {
            servers.server(new).freeze();
            crowd.hears(MEANWHILE).await;
            servers.server(new).thaw();
        }
        ApartThenKilled => {
            let machines = [old, new].map(|port| servers.server(port).machine().clone());
            block_in_place(|| servers.network().part(&machines[0], &machines[1]));
            crowd.hears(3 * MEANWHILE).await;
            block_in_place(|| {
                servers.server(old).kill();
                servers.network().heal();
                servers.until_named(new);
            });
            crowd.hears(MEANWHILE).await;
            block_in_place(|| servers.server(old).boot());
        }
    }
    crowd.hears(2 * MEANWHILE).await;
}

/// As [`Trial::with`].
async fn carry_out(what: &str, faults: &[Fault]) -> Report {
    let settings = ["appendonly yes", "appendfsync always"];
    let mut servers = block_in_place(|| RedisSentinels::start_on_machines(&settings));
    let trial = Trial {
        what: what.to_owned(),
        urls: [servers.url(), servers.url_of(1)],
        level: "async",
        pause: 20,
    };
    let strike = async |fault, crowd: &Crowd| strike(fault, &mut servers, crowd).await;
    trial.with(faults, strike).await
}

/// Nothing is lost but what a replica was late to confirm.
#[test]
fn acknowledged_answers_survive() {
    in_namespaces(
        "redis_sentinels::acknowledged_answers_survive",
        async || {
            let faults = match soak() {
                true => SURVIVED.repeat(ROUNDS),
                false => vec![MasterFrozen],
            };
            let report = carry_out("Sentinels", &faults).await;
            report.hardly_anything_is_lost();
        },
    );
}

/// Something is lost, and the level was less than `sync` then.
#[test]
fn lost_answers_were_announced() {
    in_namespaces("redis_sentinels::lost_answers_were_announced", async || {
        let faults = match soak() {
            true => LOSES.repeat(ROUNDS),
            false => vec![MasterCutOff],
        };
        let report = carry_out("Sentinels, apart", &faults).await;
        assert!(!report.judged.is_empty(), "the fault was felt");
        report.losses_were_announced();
    });
}

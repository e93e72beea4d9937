//! What happens to a cluster under Patroni. Each fault ends when the cluster is whole again.

use onlyonce_testkit::servers::{Patroni, Replication};
use tokio::task::block_in_place;

use crate::harness::{eventually, history::Crowd};

/// Outcomes that clients hear, or requests that they send, while something is wrong.
const MEANWHILE: u64 = 40;
/// How often commits that wait are cancelled.
const CANCELLED: usize = 4;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The primary's machine is lost: `kill -9` of Patroni and PostgreSQL.
    PrimaryKilled,
    /// `kill -9` of the primary's PostgreSQL only.
    PostgresKilled,
    /// Everything on the primary's machine stands still until it was replaced.
    PrimaryPaused,
    /// Patroni alone stands still on the primary's machine: PostgreSQL goes on as a second primary.
    PatroniPaused,
    /// Nothing goes to or from the other servers and etcd; clients reach it.
    PrimaryCutOff,
    /// What the primary sends to other servers and etcd is lost.
    PrimaryMute,
    /// What other servers and etcd send to the primary is lost.
    PrimaryDeaf,
    /// The primary is cut off from etcd, and from nobody else.
    EtcdCutOff,
    /// etcd has no quorum: nobody may be the primary.
    EtcdWithoutQuorum,
    /// A standby that commits wait for is killed.
    StandbyKilled,
    /// The primary is cut off from its standbys, goes on, and is killed.
    ApartThenKilled,
    /// The primary loses its standbys, goes on, and is killed; then the standbys return.
    AloneThenKilled,
    /// Commits that wait for a standby are cancelled; then the primary is killed.
    CommitsCancelled,
    /// The primary's disk is full: PostgreSQL stops, and Patroni starts it in vain.
    DiskFull,
    /// The primary's clock is set forward by a minute, and the primary killed.
    ClockForward,
    /// The primary's clock is set back by a minute, and the primary killed.
    ClockBack,
}

use Fault::{
    AloneThenKilled, ApartThenKilled, ClockBack, ClockForward, CommitsCancelled, DiskFull,
    EtcdCutOff, EtcdWithoutQuorum, PatroniPaused, PostgresKilled, PrimaryCutOff, PrimaryDeaf,
    PrimaryKilled, PrimaryMute, PrimaryPaused, StandbyKilled,
};

pub(crate) const ALL: [Fault; 16] = [
    PrimaryKilled,
    PostgresKilled,
    PrimaryPaused,
    PatroniPaused,
    PrimaryCutOff,
    PrimaryMute,
    PrimaryDeaf,
    EtcdCutOff,
    EtcdWithoutQuorum,
    StandbyKilled,
    ApartThenKilled,
    AloneThenKilled,
    CommitsCancelled,
    DiskFull,
    ClockForward,
    ClockBack,
];

/// Hurts the cluster while the crowd goes on, and returns when it is whole.
pub(crate) async fn strike(
    fault: Fault,
    cluster: &mut Patroni,
    replication: Replication,
    crowd: &Crowd,
) {
    let old = block_in_place(|| cluster.until_led());
    match fault {
        PrimaryKilled => replace(cluster, old, |_| {}),
        PostgresKilled => block_in_place(|| {
            cluster.kill_postgres(old);
            cluster.until_led();
        }),
        PrimaryPaused | PatroniPaused => {
            block_in_place(|| {
                cluster.freeze_patroni(old);
                if fault == PrimaryPaused {
                    cluster.freeze_postgres(old);
                }
                cluster.until_decided(old);
            });
            crowd.sends(MEANWHILE).await;
            block_in_place(|| cluster.thaw(old));
        }
        PrimaryCutOff | PrimaryMute | PrimaryDeaf => {
            block_in_place(|| {
                for other in cluster.everybody_but(old) {
                    if fault != PrimaryDeaf {
                        cluster.network().cut(cluster.machine(old), other);
                    }
                    if fault != PrimaryMute {
                        cluster.network().cut(other, cluster.machine(old));
                    }
                }
                cluster.until_decided(old);
            });
            crowd.sends(MEANWHILE).await;
            block_in_place(|| cluster.network().heal());
        }
        EtcdCutOff => {
            block_in_place(|| {
                for etcd in cluster.etcds() {
                    cluster.network().part(cluster.machine(old), etcd);
                }
                cluster.until_decided(old);
            });
            crowd.sends(MEANWHILE).await;
            block_in_place(|| cluster.network().heal());
        }
        EtcdWithoutQuorum => {
            block_in_place(|| {
                cluster.kill_quorum();
                cluster.until_not_led();
            });
            crowd.sends(MEANWHILE).await;
            block_in_place(|| {
                cluster.boot_quorum();
                cluster.until_led();
            });
        }
        StandbyKilled => {
            let standby = block_in_place(|| cluster.standby(old));
            block_in_place(|| cluster.kill(standby));
            // Another takes its place.
            crowd.hears(MEANWHILE).await;
            block_in_place(|| cluster.boot(standby));
        }
        ApartThenKilled => {
            let standbys = others(old);
            block_in_place(|| {
                for standby in standbys {
                    let (one, other) = (cluster.machine(old), cluster.machine(standby));
                    cluster.network().part(one, other);
                }
            });
            if replication == Replication::Asynchronous {
                crowd.hears(MEANWHILE).await;
            } else {
                crowd.sends(MEANWHILE).await;
            }
            replace(cluster, old, |cluster| cluster.network().heal());
        }
        AloneThenKilled => alone_then_killed(cluster, replication, crowd, old).await,
        CommitsCancelled => {
            cancel(cluster, replication, old).await;
            replace(cluster, old, |cluster| {
                for standby in others(old) {
                    cluster.thaw(standby);
                }
            });
        }
        DiskFull => {
            block_in_place(|| {
                cluster.fill_disk(old);
                cluster.until_disk_is_felt(old);
            });
            crowd.sends(10 * MEANWHILE).await;
            block_in_place(|| {
                cluster.empty_disk(old);
                cluster.until_led();
            });
        }
        ClockForward | ClockBack => {
            let offset = if fault == ClockForward {
                "+60s"
            } else {
                "-60s"
            };
            block_in_place(|| cluster.set_clock(old, offset));
            crowd.hears(MEANWHILE).await;
            replace(cluster, old, |cluster| cluster.set_clock(old, "+0"));
        }
    }
    block_in_place(|| cluster.until_whole());
    crowd.hears(MEANWHILE).await;
}

fn others(node: usize) -> [usize; 2] {
    [(node + 1) % 3, (node + 2) % 3]
}

/// Kills the primary, does `then`, and starts the old one again once there is a new one or there can be none.
fn replace(cluster: &mut Patroni, old: usize, then: impl FnOnce(&Patroni)) {
    block_in_place(|| {
        cluster.kill(old);
        then(cluster);
        cluster.until_decided(old);
        cluster.boot(old);
    });
}

/// In synchronous mode nobody may replace a primary that was alone, so it has to come back itself. With a
/// standby that is always waited for, it was never acknowledged what it did alone.
async fn alone_then_killed(
    cluster: &mut Patroni,
    replication: Replication,
    crowd: &Crowd,
    old: usize,
) {
    let standbys = others(old);
    block_in_place(|| {
        for standby in standbys {
            cluster.kill(standby);
        }
    });
    let alone = "SELECT count(*) FROM pg_stat_replication";
    eventually("the primary to be alone", async || {
        block_in_place(|| cluster.sql(old, alone) == "0").then_some(())
    })
    .await;
    let goes_on = match replication {
        Replication::Asynchronous => true,
        Replication::Synchronous | Replication::Two => {
            eventually("Patroni to wait for nobody", async || {
                let names = "SHOW synchronous_standby_names";
                block_in_place(|| cluster.sql(old, names).is_empty()).then_some(())
            })
            .await;
            true
        }
        Replication::Strict | Replication::AnyOne => false,
    };
    if goes_on {
        crowd.hears(MEANWHILE).await;
    } else {
        crowd.sends(MEANWHILE).await;
    }
    block_in_place(|| {
        cluster.kill(old);
        for standby in standbys {
            cluster.boot(standby);
        }
        if matches!(replication, Replication::Asynchronous | Replication::AnyOne) {
            cluster.until_decided(old);
        }
        cluster.boot(old);
        cluster.until_led();
    });
}

/// Lets commits wait for standbys that stand still, and cancels them.
async fn cancel(cluster: &Patroni, replication: Replication, leader: usize) {
    block_in_place(|| {
        for standby in others(leader) {
            cluster.freeze_postgres(standby);
        }
    });
    if replication == Replication::Asynchronous {
        return;
    }
    let sql = "SELECT count(*) FILTER (WHERE pg_cancel_backend(pid)) FROM pg_stat_activity \
               WHERE wait_event = 'SyncRep' AND application_name = 'onlyonce'";
    for _ in 0..CANCELLED {
        eventually("a commit to cancel", async || {
            block_in_place(|| cluster.sql(leader, sql) != "0").then_some(())
        })
        .await;
    }
}

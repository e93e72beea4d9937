//! A cluster of Redis servers.

use super::{
    super::{free_port, until},
    NODE_TIMEOUT_MILLIS, Redis,
};
use crate::namespaces::Network;

/// The number of hash slots of a cluster.
const SLOTS: u32 = 16_384;

/// A cluster of three masters, each with a replica if requested.
pub struct RedisCluster {
    masters: Vec<Redis>,
    replicas: Vec<Redis>,
    network: Option<Network>,
}

impl RedisCluster {
    /// Three masters without replicas.
    pub fn start() -> Self {
        Self::build(None, false, &[])
    }

    /// Three masters without replicas, with these settings.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::build(None, false, settings)
    }

    /// Three masters with a replica each, so that one can be lost.
    pub fn start_with_replicas(settings: &[&str]) -> Self {
        Self::build(None, true, settings)
    }

    /// Three masters with a replica each, every server on a machine of its own.
    pub fn start_on_machines(settings: &[&str]) -> Self {
        Self::build(Some(Network::new()), true, settings)
    }

    fn build(mut network: Option<Network>, with_replicas: bool, settings: &[&str]) -> Self {
        let mut number = 0;
        let mut node = || {
            number += 1;
            let machine = network.as_mut();
            let machine = machine.map(|network| network.add(&format!("redis{number}")));
            let bus = format!("cluster-port {}", free_port());
            let timeout = format!("cluster-node-timeout {NODE_TIMEOUT_MILLIS}");
            let mut all = vec![
                "cluster-enabled yes",
                "repl-diskless-sync-delay 0",
                &bus,
                &timeout,
            ];
            all.extend(settings);
            all.push("databases 1");
            Redis::start_on(machine, &all)
        };
        let masters: Vec<Redis> = (0..3).map(|_| node()).collect();
        let replicas: Vec<Redis> = match with_replicas {
            true => (0..3).map(|_| node()).collect(),
            false => Vec::new(),
        };
        for (index, master) in (0_u32..).zip(&masters) {
            let (first, last) = (index * SLOTS / 3, (index + 1) * SLOTS / 3 - 1);
            master.cli(&["cluster", "set-config-epoch", &(index + 1).to_string()]);
            let range = [first.to_string(), last.to_string()];
            master.cli(&["cluster", "addslotsrange", &range[0], &range[1]]);
        }
        let all: Vec<&Redis> = masters.iter().chain(&replicas).collect();
        for other in &all[1..] {
            let port = other.port().to_string();
            let info = other.cli(&["config", "get", "cluster-port"]);
            let bus = info.lines().last().unwrap_or("").trim().to_owned();
            let host = other.host().to_string();
            masters[0].cli(&["cluster", "meet", &host, &port, &bus]);
        }
        for server in &all {
            until("the cluster to meet", || {
                let info = server.cli(&["cluster", "info"]);
                info.contains("cluster_state:ok")
                    && info.contains(&format!("cluster_known_nodes:{}", all.len()))
            });
        }
        for (master, replica) in masters.iter().zip(&replicas) {
            let id = master.cli(&["cluster", "myid"]);
            until("a replica to know its master", || {
                replica.cli(&["cluster", "replicate", &id]) == "OK"
            });
        }
        for replica in &replicas {
            until("a replica to follow", || {
                replica
                    .cli(&["info", "replication"])
                    .contains("master_link_status:up")
            });
        }
        Self {
            masters,
            replicas,
            network,
        }
    }

    /// The network, for cutting it.
    ///
    /// # Panics
    /// If the servers share a machine.
    pub fn network(&self) -> &Network {
        self.network.as_ref().unwrap()
    }

    /// The ports of the current master of a third of the slots, and of its partner.
    pub fn pair(&self, third: usize) -> (u16, u16) {
        let (one, other) = (&self.masters[third], &self.replicas[third]);
        match one.is_master() {
            true => (one.port(), other.port()),
            false => (other.port(), one.port()),
        }
    }

    /// The server at this port.
    pub fn server(&mut self, port: u16) -> &mut Redis {
        let mut all = self.masters.iter_mut().chain(&mut self.replicas);
        all.find(|server| server.port() == port).unwrap()
    }

    /// Waits until a third of the slots has a master and a replica that follows it, and every node knows.
    pub fn until_paired(&mut self, third: usize) {
        until("one of the two to be the master", || {
            self.masters[third].is_master() != self.replicas[third].is_master()
        });
        let (master, replica) = self.pair(third);
        self.server(replica).until_follows();
        self.until_leads(master, replica);
        self.until_whole();
    }

    /// Every server but this one.
    pub fn everybody_but(&self, port: u16) -> impl Iterator<Item = &Redis> {
        let all = self.masters.iter().chain(&self.replicas);
        all.filter(move |server| server.port() != port)
    }

    /// Waits until the replica of a master has received everything that the master knows now.
    pub fn until_heard(&self, index: usize) {
        self.masters[index].until_heard_by(&self.replicas[index]);
    }

    /// Starts every master that is down, and waits until they have found each other.
    pub fn boot(&mut self) {
        for master in &mut self.masters {
            if !master.is_up() {
                master.boot();
            }
        }
        self.until_whole();
    }

    /// Stops every master.
    pub fn stop(&mut self) {
        self.masters.iter_mut().for_each(Redis::stop);
    }

    /// Kills every master: kill -9.
    pub fn kill(&mut self) {
        self.masters.iter_mut().for_each(Redis::kill);
    }

    /// Freezes every master.
    pub fn freeze(&self) {
        self.masters.iter().for_each(Redis::freeze);
    }

    /// Resumes every master.
    pub fn thaw(&self) {
        self.masters.iter().for_each(Redis::thaw);
    }

    fn until_whole(&self) {
        let all = self.masters.iter().chain(&self.replicas);
        for node in all.filter(|node| node.is_up()) {
            until("the cluster to be whole", || {
                node.cli(&["cluster", "info"]).contains("cluster_state:ok")
            });
        }
    }

    /// The URL, with two of the masters.
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://{}:{},{}:{}",
            self.masters[0].host(),
            self.masters[0].port(),
            self.masters[1].host(),
            self.masters[1].port()
        )
    }

    /// The initial masters.
    pub fn masters(&mut self) -> &mut [Redis] {
        &mut self.masters
    }

    /// Waits until the replica of a master has taken its place, and every other node knows. The old master
    /// may be frozen or dead.
    pub fn until_all_know(&self, master: usize) {
        self.until_leads(self.replicas[master].port(), self.masters[master].port());
    }

    /// Waits until the server at port `new` is a master and every node but `old` knows.
    pub fn until_leads(&self, new: u16, old: u16) {
        let leads = self.everybody_but(old).find(|node| node.port() == new);
        let leads = leads.unwrap();
        until("a replica to take over", || leads.is_master());
        let id = leads.cli(&["cluster", "myid"]);
        for node in self.everybody_but(old).filter(|node| node.is_up()) {
            until("a node to know the new master", || {
                let told = node.cli(&["cluster", "nodes"]);
                let mut lines = told.lines().filter(|line| line.starts_with(&id));
                lines.any(|line| line.contains("master") && line.contains('-'))
            });
        }
    }

    /// The initial replicas, in the order of their masters.
    pub fn replicas(&self) -> &[Redis] {
        &self.replicas
    }

    /// Waits until the replica of a master has taken its place, and every running node reports a good state.
    pub fn until_taken_over(&self, master: usize) {
        let replica = &self.replicas[master];
        until("a replica to take over", || {
            replica
                .cli(&["info", "replication"])
                .contains("role:master")
        });
        self.until_whole();
    }
}

//! Two Redis servers and the Sentinels that choose between them.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::PathBuf,
    process::Command,
};

use super::{
    super::{Kept, folder, free_port, run, until},
    NODE_TIMEOUT_MILLIS, Redis, address, program,
};
use crate::namespaces::{Machine, Network};

/// A master, its replica, and three Sentinels.
pub struct RedisSentinels {
    /// The first master.
    pub master: Redis,
    /// Its replica.
    pub replica: Redis,
    sentinels: Vec<Sentinel>,
    network: Option<Network>,
    machines: Vec<Machine>,
}

struct Sentinel {
    host: Ipv4Addr,
    port: u16,
    folder: PathBuf,
    kept: Kept,
}

impl RedisSentinels {
    /// Starts all five, without persistence.
    pub fn start() -> Self {
        Self::build(None, &[])
    }

    /// Starts all five with these settings, on three machines: a server and a Sentinel on two of them, a
    /// Sentinel alone on the third.
    pub fn start_on_machines(settings: &[&str]) -> Self {
        Self::build(Some(Network::new()), settings)
    }

    fn build(mut network: Option<Network>, settings: &[&str]) -> Self {
        let machines: Vec<Machine> = match &mut network {
            Some(network) => (1..=3)
                .map(|number| network.add(&format!("redis{number}")))
                .collect(),
            None => Vec::new(),
        };
        let on = |number: usize| machines.get(number).cloned();
        let mut all = vec!["repl-diskless-sync-delay 0"];
        all.extend(settings);
        let master = Redis::start_on(on(0), &all);
        let follow = format!("replicaof {} {}", master.host(), master.port());
        all.push(&follow);
        let replica = Redis::start_on(on(1), &all);
        replica.until_follows();
        let sentinels = (0..3).map(|number| Sentinel::start(on(number), &master));
        let all = Self {
            sentinels: sentinels.collect(),
            master,
            replica,
            network,
            machines,
        };
        for sentinel in &all.sentinels {
            until("the Sentinels to know each other and the replica", || {
                let told = sentinel.ask(&["sentinel", "master", "mymaster"]);
                let fields: Vec<&str> = told.lines().collect();
                let said = |name: &str| {
                    let at = fields.iter().position(|field| *field == name);
                    at.and_then(|at| fields.get(at + 1)).copied().unwrap_or("")
                };
                said("num-other-sentinels") == "2" && said("num-slaves") == "1"
            });
        }
        all
    }

    /// The network, for cutting it.
    ///
    /// # Panics
    /// If all share a machine.
    pub fn network(&self) -> &Network {
        self.network.as_ref().unwrap()
    }

    /// The other machines.
    pub fn machines_but(&self, machine: &Machine) -> impl Iterator<Item = &Machine> {
        let address = machine.address();
        let all = self.machines.iter();
        all.filter(move |machine| machine.address() != address)
    }

    /// The ports of the master, according to the third Sentinel, and of the other server.
    pub fn pair(&self) -> (u16, u16) {
        let told = self.sentinels[2].ask(&NAMED);
        let named = told.lines().last().unwrap_or_default().trim().to_owned();
        let (one, other) = (self.master.port(), self.replica.port());
        match one.to_string() == named {
            true => (one, other),
            false => (other, one),
        }
    }

    /// The server at this port.
    pub fn server(&mut self, port: u16) -> &mut Redis {
        match self.master.port() == port {
            true => &mut self.master,
            false => &mut self.replica,
        }
    }

    /// The URL with all Sentinels.
    pub fn url(&self) -> String {
        self.url_of(self.sentinels.len())
    }

    /// The URL with `count` of the Sentinels.
    pub fn url_of(&self, count: usize) -> String {
        let sentinels = self.sentinels.iter().take(count);
        let hosts: Vec<String> = sentinels
            .map(|sentinel| format!("{}:{}", sentinel.host, sentinel.port))
            .collect();
        format!("redis+sentinel://{}/mymaster", hosts.join(","))
    }

    /// Waits until the Sentinels name the replica.
    pub fn until_failed_over(&self) {
        self.until_named(self.replica.port());
    }

    /// Makes the Sentinels choose another master although this one is healthy, without telling it.
    pub fn replace(&self) {
        until("the Sentinels to agree to another master", || {
            let told = self.sentinels[2].ask(&["sentinel", "failover", "mymaster"]);
            told == "OK"
        });
    }

    /// Waits until every Sentinel names the server at this port.
    pub fn until_named(&self, port: u16) {
        self.until_named_by(self.sentinels.iter(), port);
    }

    /// Waits until every Sentinel that is not on `machine` names the server at this port.
    pub fn until_named_without(&self, machine: &Machine, port: u16) {
        let others = self.sentinels.iter();
        self.until_named_by(others.filter(|other| other.host != machine.address()), port);
    }

    fn until_named_by<'s>(&self, sentinels: impl Iterator<Item = &'s Sentinel>, port: u16) {
        let port = port.to_string();
        for sentinel in sentinels {
            until("a Sentinel to name the new master", || {
                sentinel.ask(&NAMED).contains(&port)
            });
        }
    }

    /// Waits until all Sentinels agree and see both servers running.
    pub fn until_whole(&mut self) {
        let (master, replica) = self.pair();
        until("the master to be one", || self.server(master).is_master());
        self.server(replica).until_follows();
        self.until_named(master);
        let replicas = ["sentinel", "replicas", "mymaster"];
        for sentinel in &self.sentinels {
            until("a Sentinel to see both servers at work", || {
                let told = [
                    sentinel.ask(&replicas),
                    sentinel.ask(&["sentinel", "master", "mymaster"]),
                ];
                let is_well = |told: &String| {
                    let mut lines = told.lines().map(str::trim);
                    let flags = lines.position(|line| line == "flags");
                    let flags = flags.and_then(|_| lines.next());
                    flags.is_some_and(|flags| flags == "slave" || flags == "master")
                };
                told.iter().all(is_well)
            });
        }
    }
}

/// The query to a Sentinel for the master.
const NAMED: [&str; 3] = ["sentinel", "get-master-addr-by-name", "mymaster"];

impl Drop for RedisSentinels {
    fn drop(&mut self) {
        for Sentinel { kept, folder, .. } in self.sentinels.drain(..) {
            drop(kept);
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl Sentinel {
    fn start(machine: Option<Machine>, master: &Redis) -> Self {
        let (folder, port) = (folder(None), free_port());
        let host = address(machine.as_ref());
        let file = folder.join("sentinel.conf");
        let text = format!(
            "port {port}\nbind {host}\nprotected-mode no\ndir {}\n\
             sentinel monitor mymaster {} {} 2\n\
             sentinel down-after-milliseconds mymaster {NODE_TIMEOUT_MILLIS}\n\
             sentinel failover-timeout mymaster 5000\n",
            folder.display(),
            master.host(),
            master.port()
        );
        fs::write(&file, text).unwrap();
        run(Command::new("chmod").arg("600").arg(&file));
        let server = program("redis-server");
        let mut command = machine.as_ref().map(Machine::prefix).unwrap_or_default();
        command.extend([server, file].map(|path| path.to_str().unwrap().to_owned()));
        command.push("--sentinel".to_owned());
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let kept = Kept::start(&folder, &command, None, &folder.join("log"));
        until("a Sentinel to start", || {
            TcpStream::connect((host, port)).is_ok()
        });
        Self {
            host,
            port,
            folder,
            kept,
        }
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new(program("redis-cli"))
            .args(["-h", &self.host.to_string(), "-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

//! Private Redis servers: one, one with a replica and Sentinels, and a cluster.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Kept, folder, free_port, freeze, run, signal, until};

/// Slots of a cluster.
const SLOTS: u32 = 16_384;
/// How long a node may be silent before the others of its cluster call it failed.
const NODE_TIMEOUT_MILLIS: u32 = 1_000;

fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    assert!(
        path.exists(),
        "{name} is not installed: run ./test, which installs it"
    );
    path
}

/// A Redis server that keeps nothing unless it is told to.
pub struct Redis {
    folder: PathBuf,
    port: u16,
    settings: Vec<String>,
    kept: Option<Kept>,
}

impl Redis {
    /// A new server on a free port, without persistence.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A new server with settings such as `appendonly yes`.
    pub fn start_with(settings: &[&str]) -> Self {
        let mut server = Self {
            folder: folder(None),
            port: free_port(),
            settings: settings.iter().map(ToString::to_string).collect(),
            kept: None,
        };
        server.boot();
        server
    }

    /// Starts it, after it was stopped or killed. The port stays the same.
    pub fn boot(&mut self) {
        let (program, port) = (program("redis-server"), self.port.to_string());
        let folder = self.folder.to_str().unwrap().to_owned();
        let pid = self.folder.join("pid");
        let mut command = vec![
            program.to_str().unwrap().to_owned(),
            format!("--port {port}"),
            "--bind 127.0.0.1".to_owned(),
            format!("--dir {folder}"),
            format!("--pidfile {}", pid.display()),
            "--databases 256".to_owned(),
            "--daemonize no".to_owned(),
        ];
        if !self
            .settings
            .iter()
            .any(|setting| setting.starts_with("save"))
        {
            command.push("--save \"\"".to_owned());
        }
        command.extend(self.settings.iter().map(|setting| format!("--{setting}")));
        // Options and their values are words of their own.
        let words: Vec<String> = command
            .iter()
            .flat_map(|option| option.split(' '))
            .map(|word| word.trim_matches('"').to_owned())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = self.folder.join("log");
        // It is there only while the server is down on purpose.
        let _ = fs::remove_file(self.folder.join("keep"));
        let _ = fs::remove_file(&pid);
        self.kept = Some(Kept::start(&self.folder, &words, None, &log));
        until("Redis to start", || {
            pid.exists() && self.try_cli(&["ping"]).is_some_and(|said| said == "PONG")
        });
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its folder, where it keeps its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URL of its database 0.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The same through another port: of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://127.0.0.1:{port}")
    }

    /// The URL of another of its databases, below 256.
    pub fn database(&self, number: usize) -> String {
        format!("{}/{number}", self.url())
    }

    fn try_cli(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new(program("redis-cli"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    }

    /// Runs a command with redis-cli, and returns what it prints.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments)
            .unwrap_or_else(|| panic!("redis-cli {arguments:?} failed"))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        let text = fs::read_to_string(self.folder.join("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    /// Stops it where it stands.
    pub fn freeze(&self) {
        freeze(self.pid());
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    fn let_go(&mut self) {
        fs::write(self.folder.join("keep"), "").unwrap();
        self.kept = None;
    }

    /// Ends it at once: kill -9.
    pub fn kill(&mut self) {
        signal(self.pid(), "KILL");
        until("Redis to die", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err()
        });
        self.let_go();
    }

    /// Ends it in good order.
    pub fn stop(&mut self) {
        signal(self.pid(), "TERM");
        until("Redis to stop", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err()
        });
        self.let_go();
    }

    /// Returns when it follows a master, and has all that the master has.
    pub fn until_follows(&self) {
        until("a server to follow a master", || {
            let info = self.try_cli(&["info", "replication"]);
            info.is_some_and(|info| {
                info.contains("role:slave") && info.contains("master_link_status:up")
            })
        });
    }

    /// Waits until `replica` has heard of everything that this server knows now. To be called before the
    /// replica takes over: one that has not even heard of the store's making is an empty store.
    pub fn until_heard_by(&self, replica: &Self) {
        let offset = |server: &Self, name: &str| -> Option<u64> {
            let info = server.cli(&["info", "replication"]);
            let mut lines = info.lines();
            lines.find_map(|line| line.trim().strip_prefix(name)?.parse().ok())
        };
        let known = offset(self, "master_repl_offset:");
        until("a replica to hear what its master knows", || {
            known.is_some() && offset(replica, "slave_repl_offset:") >= known
        });
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.kept.is_some()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.kept.is_some() {
            // A frozen server does not hear that it shall end.
            if let Ok(text) = fs::read_to_string(self.folder.join("pid")) {
                let _ = Command::new("kill")
                    .args(["-CONT", text.trim()])
                    .stderr(Stdio::null())
                    .status();
            }
        }
        self.kept = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A cluster of three masters, each with a replica if asked for.
pub struct RedisCluster {
    masters: Vec<Redis>,
    replicas: Vec<Redis>,
}

impl RedisCluster {
    /// Three masters without replicas.
    pub fn start() -> Self {
        Self::build(false, &[])
    }

    /// Three masters without replicas, with these settings.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::build(false, settings)
    }

    /// Three masters with a replica each, so that one can be lost.
    pub fn start_with_replicas(settings: &[&str]) -> Self {
        Self::build(true, settings)
    }

    fn build(with_replicas: bool, settings: &[&str]) -> Self {
        let node = || {
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
            Redis::start_with(&all)
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
            masters[0].cli(&["cluster", "meet", "127.0.0.1", &port, &bus]);
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
        Self { masters, replicas }
    }

    /// Waits until the replica of a master has heard of everything that the master knows now.
    pub fn until_heard(&self, index: usize) {
        self.masters[index].until_heard_by(&self.replicas[index]);
    }

    /// Starts every master that is not up, and waits until they have found each other.
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

    /// Ends every master at once: kill -9.
    pub fn kill(&mut self) {
        self.masters.iter_mut().for_each(Redis::kill);
    }

    /// Stops the time of every master.
    pub fn freeze(&self) {
        self.masters.iter().for_each(Redis::freeze);
    }

    /// Lets it go on.
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

    /// The URL, of two of the masters.
    pub fn url(&self) -> String {
        format!(
            "redis+cluster://127.0.0.1:{},127.0.0.1:{}",
            self.masters[0].port(),
            self.masters[1].port()
        )
    }

    /// Those that began as masters.
    pub fn masters(&mut self) -> &mut [Redis] {
        &mut self.masters
    }

    /// Returns when the replica of a master has taken its place, and every other node knows. The old one
    /// may be frozen or dead.
    pub fn until_all_know(&self, master: usize) {
        let replica = &self.replicas[master];
        until("a replica to take over", || {
            let info = replica.cli(&["info", "replication"]);
            info.contains("role:master")
        });
        let id = replica.cli(&["cluster", "myid"]);
        let old = self.masters[master].port();
        let all = self.masters.iter().chain(&self.replicas);
        for node in all.filter(|node| node.is_up() && node.port() != old) {
            until("a node to know the new master", || {
                let told = node.cli(&["cluster", "nodes"]);
                let mut lines = told.lines().filter(|line| line.starts_with(&id));
                lines.any(|line| line.contains("master") && line.contains('-'))
            });
        }
    }

    /// Those that began as replicas, in the order of their masters.
    pub fn replicas(&self) -> &[Redis] {
        &self.replicas
    }

    /// Returns when the replica of a master has taken its place, as every node sees it.
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

/// A master, its replica, and three Sentinels.
pub struct RedisSentinels {
    /// The first master.
    pub master: Redis,
    /// Its replica.
    pub replica: Redis,
    sentinels: Vec<(u16, Kept, PathBuf)>,
}

impl RedisSentinels {
    /// Starts all five.
    pub fn start() -> Self {
        let master = Redis::start_with(&["repl-diskless-sync-delay 0"]);
        let follow = format!("replicaof 127.0.0.1 {}", master.port());
        let replica = Redis::start_with(&[&follow]);
        until("the replica to follow", || {
            replica
                .cli(&["info", "replication"])
                .contains("master_link_status:up")
        });
        let sentinels: Vec<_> = (0..3).map(|_| sentinel(master.port())).collect();
        let all = Self {
            master,
            replica,
            sentinels,
        };
        for (port, _, _) in &all.sentinels {
            until("the Sentinels to know each other and the replica", || {
                let told = all.ask(*port, &["sentinel", "master", "mymaster"]);
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

    fn ask(&self, port: u16, arguments: &[&str]) -> String {
        let output = Command::new(program("redis-cli"))
            .args(["-h", "127.0.0.1", "-p", &port.to_string()])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The URL with all Sentinels.
    pub fn url(&self) -> String {
        self.url_of(self.sentinels.len())
    }

    /// The URL with so many of the Sentinels.
    pub fn url_of(&self, count: usize) -> String {
        let sentinels = self.sentinels.iter().take(count);
        let hosts: Vec<String> = sentinels
            .map(|(port, _, _)| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/mymaster", hosts.join(","))
    }

    /// Returns when the Sentinels name the replica.
    pub fn until_failed_over(&self) {
        self.until_named(self.replica.port());
    }

    /// Lets the Sentinels choose another master although this one is well, and does not tell it.
    pub fn replace(&self) {
        let told = self.ask(self.sentinels[0].0, &["sentinel", "failover", "mymaster"]);
        assert_eq!(told, "OK");
    }

    /// Returns when every Sentinel names the server at this port.
    pub fn until_named(&self, port: u16) {
        let (arguments, port) = (
            ["sentinel", "get-master-addr-by-name", "mymaster"],
            port.to_string(),
        );
        for (sentinel, _, _) in &self.sentinels {
            until("a Sentinel to name the new master", || {
                self.ask(*sentinel, &arguments).contains(&port)
            });
        }
    }
}

impl Drop for RedisSentinels {
    fn drop(&mut self) {
        for (_, kept, folder) in self.sentinels.drain(..) {
            drop(kept);
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn sentinel(master: u16) -> (u16, Kept, PathBuf) {
    let (folder, port) = (folder(None), free_port());
    let file = folder.join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds mymaster {NODE_TIMEOUT_MILLIS}\n\
         sentinel failover-timeout mymaster 5000\n",
        folder.display()
    );
    fs::write(&file, text).unwrap();
    run(Command::new("chmod").arg("600").arg(&file));
    let server = program("redis-server");
    let command = [
        server.to_str().unwrap(),
        file.to_str().unwrap(),
        "--sentinel",
    ];
    let kept = Kept::start(&folder, &command, None, &folder.join("log"));
    until("a Sentinel to start", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
    });
    (port, kept, folder)
}

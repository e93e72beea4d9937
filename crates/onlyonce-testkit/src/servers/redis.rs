//! Private Redis servers: one, one with a replica and [`sentinels`], and a [`cluster`].

mod cluster;
mod sentinels;

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub use self::{cluster::RedisCluster, sentinels::RedisSentinels};
use super::{Kept, folder, free_port, freeze, signal, until};
use crate::namespaces::Machine;

/// How long a node may be silent before the others in its cluster consider it failed.
const NODE_TIMEOUT_MILLIS: u32 = 1_000;

fn address(machine: Option<&Machine>) -> Ipv4Addr {
    machine.map_or(Ipv4Addr::LOCALHOST, Machine::address)
}

fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    assert!(
        path.exists(),
        "{name} is not installed: run ./test, which installs it"
    );
    path
}

/// A Redis server without persistence unless configured.
pub struct Redis {
    /// `None` for the machine that the test runs on, where it listens on the loopback address only.
    machine: Option<Machine>,
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
        Self::start_on(None, settings)
    }

    /// A new server on a machine of its own.
    fn start_on(machine: Option<Machine>, settings: &[&str]) -> Self {
        let mut server = Self {
            machine,
            folder: folder(None),
            port: free_port(),
            settings: settings.iter().map(ToString::to_string).collect(),
            kept: None,
        };
        server.boot();
        server
    }

    /// Starts the server after it was stopped or killed. The port stays the same.
    pub fn boot(&mut self) {
        let (program, port) = (program("redis-server"), self.port.to_string());
        let folder = self.folder.to_str().unwrap().to_owned();
        let pid = self.folder.join("pid");
        let prefix = self.machine.as_ref().map(Machine::prefix);
        let mut command = prefix.unwrap_or_default();
        command.extend([
            program.to_str().unwrap().to_owned(),
            format!("--port {port}"),
            format!("--bind {}", self.host()),
            "--protected-mode no".to_owned(),
            format!("--dir {folder}"),
            format!("--pidfile {}", pid.display()),
            "--databases 256".to_owned(),
            "--daemonize no".to_owned(),
        ]);
        if !self
            .settings
            .iter()
            .any(|setting| setting.starts_with("save"))
        {
            command.push("--save \"\"".to_owned());
        }
        command.extend(self.settings.iter().map(|setting| format!("--{setting}")));
        // Options and their values are separate words.
        let words: Vec<String> = command
            .iter()
            .flat_map(|option| option.split(' '))
            .map(|word| word.trim_matches('"').to_owned())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = self.folder.join("log");
        // The file exists only while the server is down on purpose.
        let _ = fs::remove_file(self.folder.join("keep"));
        let _ = fs::remove_file(&pid);
        self.kept = Some(Kept::start(&self.folder, &words, None, &log));
        until("Redis to start", || {
            pid.exists() && self.try_cli(&["ping"]).is_some_and(|said| said == "PONG")
        });
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's address.
    pub fn host(&self) -> Ipv4Addr {
        address(self.machine.as_ref())
    }

    /// The machine that the server runs on.
    ///
    /// # Panics
    /// If that is the one that the test runs on.
    pub fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap()
    }

    /// Whether the server considers itself a master. A dead one is not.
    pub fn is_master(&self) -> bool {
        let info = self.try_cli(&["info", "replication"]);
        info.is_some_and(|info| info.contains("role:master"))
    }

    /// The folder with the server's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URL of database 0.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The URL through another port, such as a proxy's.
    pub fn url_at(&self, port: u16) -> String {
        format!("redis://{}:{port}", self.host())
    }

    /// The URL of another database, below 256.
    pub fn database(&self, number: usize) -> String {
        format!("{}/{number}", self.url())
    }

    fn try_cli(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new(program("redis-cli"))
            .args(["-h", &self.host().to_string()])
            .args(["-p", &self.port.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    }

    /// Runs a command with redis-cli, and returns its output.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments)
            .unwrap_or_else(|| panic!("redis-cli {arguments:?} failed"))
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        let text = fs::read_to_string(self.folder.join("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    /// Freezes the server.
    pub fn freeze(&self) {
        freeze(self.pid());
    }

    /// Resumes the server.
    pub fn thaw(&self) {
        signal(self.pid(), "CONT");
    }

    fn let_go(&mut self) {
        fs::write(self.folder.join("keep"), "").unwrap();
        self.kept = None;
    }

    /// Kills the server: kill -9.
    pub fn kill(&mut self) {
        signal(self.pid(), "KILL");
        until("Redis to die", || {
            TcpStream::connect((self.host(), self.port)).is_err()
        });
        self.let_go();
    }

    /// Stops the server cleanly.
    pub fn stop(&mut self) {
        signal(self.pid(), "TERM");
        until("Redis to stop", || {
            TcpStream::connect((self.host(), self.port)).is_err()
        });
        self.let_go();
    }

    /// Waits until the server follows a master and its link to the master is up.
    pub fn until_follows(&self) {
        until("a server to follow a master", || {
            let info = self.try_cli(&["info", "replication"]);
            info.is_some_and(|info| {
                info.contains("role:slave") && info.contains("master_link_status:up")
            })
        });
    }

    /// Waits until `replica` has received everything that this server knows now. Call it before the replica
    /// takes over: one that has not even received the store's creation is an empty store.
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

    /// Whether the server is running.
    pub fn is_up(&self) -> bool {
        self.kept.is_some()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        if self.kept.is_some() {
            // A frozen server would not notice that it should end.
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

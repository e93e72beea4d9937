//! Private message brokers: a NATS server with JetStream, and a RabbitMQ server.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};

use super::{Kept, folder, free_port, signal, until, user};

const NATS: &str = "/usr/sbin/nats-server";
/// Not the script of the same name in Debian's path, which insists on the folders of the package's own
/// server.
const RABBITMQ: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Queries a server.
const RABBITMQCTL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";
/// Erlang's port mapper, through which nodes find each other.
const EPMD: &str = "/usr/bin/epmd";

fn installed(program: &str) {
    assert!(
        Path::new(program).exists(),
        "{program} is not installed: run ./test, which installs it"
    );
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A broker process: its folder, its port, and whether it runs.
struct Broker {
    name: &'static str,
    folder: PathBuf,
    port: u16,
    user: Option<(u32, u32)>,
    kept: Option<Kept>,
}

impl Broker {
    fn new(name: &'static str, user: Option<(u32, u32)>) -> Self {
        Self {
            name,
            folder: folder(user),
            port: free_port(),
            user,
            kept: None,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn boot(&mut self, command: &[String]) {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        // The file exists only while the server is down on purpose.
        let _ = fs::remove_file(self.folder.join("keep"));
        let _ = fs::remove_file(self.folder.join("pid"));
        let log = self.folder.join("output");
        self.kept = Some(Kept::start(&self.folder, &words, self.user, &log));
        until(self.name, || answers(self.port));
    }

    fn pid(&self) -> u32 {
        let text = fs::read_to_string(self.folder.join("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    fn kill(&mut self) {
        signal(self.pid(), "KILL");
        until(self.name, || !answers(self.port));
        fs::write(self.folder.join("keep"), "").unwrap();
        self.kept = None;
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.kept = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A NATS server with JetStream, whose streams survive it.
pub struct Nats(Broker);

impl Nats {
    /// A new server on a free port.
    pub fn start() -> Self {
        installed(NATS);
        let mut server = Self(Broker::new("NATS", None));
        server.boot();
        server
    }

    /// Starts the server after it was killed. The port stays the same.
    pub fn boot(&mut self) {
        let port = self.0.port.to_string();
        let (pid, store) = (self.0.path("pid"), self.0.path("streams"));
        let command = [
            NATS,
            "-a",
            "127.0.0.1",
            "-p",
            &port,
            "-P",
            &pid,
            "-js",
            "-sd",
            &store,
        ];
        self.0.boot(&command.map(str::to_owned));
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.0.port)
    }

    /// Kills the server: kill -9.
    pub fn kill(&mut self) {
        self.0.kill();
    }
}

/// A RabbitMQ server, with an Erlang port mapper of its own.
pub struct RabbitMq {
    broker: Broker,
    /// The ports of the port mapper and of the node itself.
    ports: (u16, u16),
    mapper: Option<Kept>,
}

impl RabbitMq {
    /// A new server on a free port, for the user `guest`.
    pub fn start() -> Self {
        installed(RABBITMQ);
        installed(EPMD);
        let broker = Broker::new("RabbitMQ", user("rabbitmq"));
        let ports = (free_port(), free_port());
        for empty in ["plugins", "rabbit.conf"] {
            fs::write(broker.folder.join(empty), "").unwrap();
        }
        let mapper = folder(broker.user);
        let command = [EPMD, "-address", "127.0.0.1", "-port", &ports.0.to_string()];
        let mapper = Kept::start(&mapper, &command, broker.user, &mapper.join("output"));
        until("Erlang's port mapper", || answers(ports.0));
        let mut server = Self {
            broker,
            ports,
            mapper: Some(mapper),
        };
        server.boot();
        server
    }

    /// Starts the server after it was killed. The port stays the same.
    pub fn boot(&mut self) {
        let broker = &self.broker;
        let (mapper, node) = self.ports;
        let mut command = vec!["/usr/bin/env".to_owned()];
        command.extend([
            format!("HOME={}", broker.folder.display()),
            // With this the server replaces its shell, so that its process id is known.
            "RUNNING_UNDER_SYSTEMD=true".to_owned(),
            "ERL_EPMD_ADDRESS=127.0.0.1".to_owned(),
            format!("ERL_EPMD_PORT={mapper}"),
            format!("RABBITMQ_NODENAME={}", self.node()),
            format!("RABBITMQ_DIST_PORT={node}"),
            "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1".to_owned(),
            format!("RABBITMQ_NODE_PORT={}", broker.port),
            format!("RABBITMQ_MNESIA_BASE={}", broker.path("data")),
            format!("RABBITMQ_LOG_BASE={}", broker.path("log")),
            format!("RABBITMQ_CONFIG_FILE={}", broker.path("rabbit.conf")),
            format!("RABBITMQ_CONF_ENV_FILE={}", broker.path("environment")),
            format!("RABBITMQ_ENABLED_PLUGINS_FILE={}", broker.path("plugins")),
            format!("RABBITMQ_PID_FILE={}", broker.path("pid")),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 +sbwt none \
             -kernel inet_dist_use_interface {127,0,0,1}"
                .to_owned(),
            RABBITMQ.to_owned(),
        ]);
        self.broker.boot(&command);
    }

    /// The output of the server's own command for `words`.
    pub fn control(&self, words: &[&str]) -> String {
        let (mapper, _) = self.ports;
        let output = Command::new(RABBITMQCTL)
            .env("HOME", &self.broker.folder)
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_EPMD_PORT", mapper.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", self.broker.path("environment"))
            .args(["--quiet", "--node", &self.node()])
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{wrong}");
        said
    }

    fn node(&self) -> String {
        format!("onlyonce{}@localhost", self.ports.0)
    }

    /// The URL of the first virtual host.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.broker.port)
    }

    /// Kills the server: kill -9.
    pub fn kill(&mut self) {
        self.broker.kill();
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        // The server tells its mapper when it ends.
        self.broker.kept = None;
        self.mapper = None;
    }
}

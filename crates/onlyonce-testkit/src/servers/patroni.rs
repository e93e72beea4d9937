//! Three PostgreSQL servers under Patroni, with three etcd servers and HAProxy in front, each on its own
//! machine: see [`crate::namespaces`].

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{User, freeze, postgres::postgres_program, run, signal, until_within, user};
use crate::namespaces::{Daemon, Machine, Network};

/// Gone with the mounts of the test.
const FOLDER: &str = "/run/patroni";
const NODES: usize = 3;
const POSTGRES: u16 = 5432;
const REST: u16 = 8008;
const ETCD: u16 = 2379;
const ETCD_PEERS: u16 = 2380;
const HAPROXY: u16 = 5000;
/// The etcd key that tells whom commits wait for: `/service/onlyonce/sync`.
const SYNC_KEY: &str = r#"{"key":"L3NlcnZpY2Uvb25seW9uY2Uvc3luYw=="}"#;
/// The size of a server's disk.
const DISK: &str = "size=384m";
/// The file that fills it.
const FILLER: &str = "filler";
/// How long a cluster may take for anything. Nothing is quick on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// After how long an operator gives a standby that does not follow a new copy of the primary.
const REPAIR_AFTER: Duration = Duration::from_secs(20);
/// How long a REST API may take to answer.
const REST_TIMEOUT: Duration = Duration::from_secs(2);
/// Where Debian installs libfaketime.
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
];

/// Whom a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Nobody.
    Asynchronous,
    /// One standby chosen by Patroni, and nobody if there is none.
    Synchronous,
    /// One standby chosen by Patroni, always.
    Strict,
    /// Two standbys chosen by Patroni, or as many as there are.
    Two,
    /// Any one of the standbys. Patroni 3 does not support it: it promotes the reachable standby that has
    /// most of the log.
    AnyOne,
}

impl Replication {
    fn dcs(self) -> &'static str {
        match self {
            Self::Asynchronous | Self::AnyOne => "synchronous_mode: false",
            Self::Synchronous => "synchronous_mode: true",
            Self::Strict => "synchronous_mode: true\n    synchronous_mode_strict: true",
            Self::Two => "synchronous_mode: true\n    synchronous_node_count: 2",
        }
    }

    fn standby_names(self) -> &'static str {
        match self {
            Self::AnyOne => "synchronous_standby_names: 'ANY 1 (*)'",
            _ => "",
        }
    }

    /// How many standbys a commit waits for, or may wait for, when all are there.
    fn waited_for(self) -> usize {
        match self {
            Self::Asynchronous => 0,
            Self::Synchronous | Self::Strict => 1,
            Self::Two | Self::AnyOne => 2,
        }
    }
}

struct Node {
    name: String,
    machine: Machine,
    folder: PathBuf,
    patroni: Option<Daemon>,
}

impl Node {
    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The file from which libfaketime reads the clock.
    fn clock(&self) -> String {
        format!("{FOLDER}/{}.clock", self.name)
    }

    /// The PostgreSQL processes: the first process, then its children.
    fn processes(&self) -> Vec<u32> {
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else {
            return Vec::new();
        };
        let first: u32 = text.lines().next().unwrap_or("0").trim().parse().unwrap();
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        std::iter::once(first).chain(children).collect()
    }

    /// Whether the node's Patroni says yes to `question`, such as `/primary`.
    fn says(&self, question: &str) -> bool {
        self.ask(question)
            .is_some_and(|answer| answer.split(' ').nth(1) == Some("200"))
    }

    fn ask(&self, question: &str) -> Option<String> {
        let address = (self.machine.address(), REST).into();
        ask(address, &format!("GET {question} HTTP/1.0\r\n\r\n"))
    }

    /// The timeline according to the node's Patroni.
    fn timeline(&self) -> Option<u32> {
        let answer = self.ask("/patroni")?;
        let (_, rest) = answer.split_once("\"timeline\": ")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    }
}

fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

/// The whole answer of an HTTP server.
fn ask(address: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, REST_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(REST_TIMEOUT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The answer to a request with a body; empty if there was none.
fn post(address: SocketAddr, path: &str, body: &str) -> String {
    let length = body.len();
    let request = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    ask(address, &request).unwrap_or_default()
}

/// The cluster: three servers, numbered from 0.
pub struct Patroni {
    network: Network,
    user: User,
    replication: Replication,
    nodes: Vec<Node>,
    etcds: Vec<(Machine, Option<Daemon>)>,
    _haproxy: Daemon,
}

impl Patroni {
    /// A new cluster with a database `onlyonce`, fully running.
    pub fn start(replication: Replication) -> Self {
        let mut network = Network::new();
        let user = user("postgres");
        let here = network.here().clone();
        fs::create_dir_all(FOLDER).unwrap();
        own(Path::new(FOLDER), user);
        let mut machines = |name: &str| -> Vec<Machine> {
            (0..NODES)
                .map(|n| network.add(&format!("{name}{n}")))
                .collect()
        };
        let (etcds, servers) = (machines("etcd"), machines("pg"));
        let nodes = servers.into_iter().enumerate().map(|(number, machine)| {
            let node = Node {
                name: format!("pg{number}"),
                machine,
                folder: PathBuf::from(format!("{FOLDER}/pg{number}")),
                patroni: None,
            };
            fs::create_dir(&node.folder).unwrap();
            let mut mount = Command::new("mount");
            run(mount
                .args(["-t", "tmpfs", "-o", DISK, "tmpfs"])
                .arg(&node.folder));
            own(&node.folder, user);
            node
        });
        let nodes: Vec<Node> = nodes.collect();
        let config = format!("{FOLDER}/haproxy.cfg");
        fs::write(&config, haproxy(&nodes)).unwrap();
        let command = ["/usr/sbin/haproxy", "-db", "-f", &config];
        let log = PathBuf::from(format!("{FOLDER}/haproxy.log"));
        let haproxy = Daemon::start(&here, None, &command, &log);
        let mut cluster = Self {
            network,
            user,
            replication,
            nodes,
            etcds: etcds.into_iter().map(|machine| (machine, None)).collect(),
            _haproxy: haproxy,
        };
        for number in 0..NODES {
            cluster.start_etcd(number);
        }
        for number in 0..NODES {
            cluster.configure(number);
            cluster.set_clock(number, "+0");
            cluster.boot(number);
        }
        cluster.until_whole();
        let leader = cluster.leader().unwrap();
        cluster.run_sql(leader, "postgres", "CREATE DATABASE onlyonce");
        cluster
    }

    /// The database through HAProxy, which asks Patroni for the primary.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{HAPROXY}/onlyonce")
    }

    /// The database on all servers, of which one takes writes.
    pub fn url_of_all(&self) -> String {
        let hosts = self.nodes.iter().map(|node| node.machine.address());
        let hosts: Vec<String> = hosts.map(|host| format!("{host}:{POSTGRES}")).collect();
        format!("postgres://postgres@{}/onlyonce", hosts.join(","))
    }

    fn start_etcd(&mut self, number: usize) {
        let peers = self.etcds.iter().enumerate();
        let peers = peers
            .map(|(n, (machine, _))| format!("etcd{n}=http://{}:{ETCD_PEERS}", machine.address()));
        let peers = peers.collect::<Vec<_>>().join(",");
        let (machine, daemon) = &mut self.etcds[number];
        let address = machine.address();
        let (name, data) = (format!("etcd{number}"), format!("{FOLDER}/etcd{number}"));
        let (clients, others) = (
            format!("http://{address}:{ETCD}"),
            format!("http://{address}:{ETCD_PEERS}"),
        );
        let command = [
            "/usr/bin/etcd",
            "--name",
            &name,
            "--data-dir",
            &data,
            "--listen-client-urls",
            &clients,
            "--advertise-client-urls",
            &clients,
            "--listen-peer-urls",
            &others,
            "--initial-advertise-peer-urls",
            &others,
            "--initial-cluster",
            &peers,
        ];
        let log = PathBuf::from(format!("{FOLDER}/{name}.log"));
        *daemon = Some(Daemon::start(machine, self.user, &command, &log));
    }

    fn configure(&self, number: usize) {
        let node = &self.nodes[number];
        let etcds = self.etcds.iter().map(|(machine, _)| machine.address());
        let etcds: Vec<String> = etcds.map(|host| format!("{host}:{ETCD}")).collect();
        let text = format!(
            "scope: onlyonce
name: {name}
restapi:
  listen: {host}:{REST}
  connect_address: {host}:{REST}
etcd3:
  hosts: {etcds}
bootstrap:
  dcs:
    ttl: 6
    loop_wait: 1
    retry_timeout: 2
    primary_start_timeout: 10
    {replication}
    postgresql:
      use_pg_rewind: true
      parameters:
        max_connections: 60
        shared_buffers: 16MB
        max_wal_size: 64MB
        min_wal_size: 16MB
        wal_keep_size: 64MB
        max_slot_wal_keep_size: 96MB
        wal_sender_timeout: 5s
        wal_receiver_timeout: 5s
        wal_retrieve_retry_interval: 200ms
        {names}
  initdb: [{{auth: trust}}, {{encoding: UTF8}}, no-locale, no-sync, {{wal-segsize: '1'}}]
postgresql:
  listen: {host}:{POSTGRES}
  connect_address: {host}:{POSTGRES}
  data_dir: {data}
  bin_dir: {bin}
  pgpass: {folder}/pgpass
  basebackup: [{{checkpoint: fast}}]
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: replicator}}
  parameters:
    unix_socket_directories: {folder}
  pg_hba:
    - local all all trust
    - host all all 127.0.0.1/32 trust
    - host all all {host}/24 trust
    - host replication all {host}/24 trust
",
            name = node.name,
            host = node.machine.address(),
            etcds = etcds.join(","),
            replication = self.replication.dcs(),
            names = self.replication.standby_names(),
            data = node.data().display(),
            bin = programs(node).display(),
            folder = node.folder.display(),
        );
        fs::write(self.config(number), text).unwrap();
    }

    fn config(&self, number: usize) -> String {
        format!("{FOLDER}/{}.yml", self.nodes[number].name)
    }

    /// Starts a node's Patroni, which starts its PostgreSQL.
    pub fn boot(&mut self, number: usize) {
        let config = self.config(number);
        let node = &mut self.nodes[number];
        let command = ["/usr/bin/patroni", &config];
        let log = PathBuf::from(format!("{FOLDER}/{}.log", node.name));
        let patroni = Daemon::start(&node.machine, self.user, &command, &log);
        node.patroni = Some(patroni);
    }

    /// Sets the offset of the wall clock of a node's PostgreSQL, such as `+30s`. The speed of time does not
    /// change, nor do the clocks of Patroni, whose `sleep` libfaketime breaks, and of etcd, which does not
    /// use the C library.
    pub fn set_clock(&self, number: usize, offset: &str) {
        let file = self.nodes[number].clock();
        let new = format!("{file}.new");
        fs::write(&new, offset).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// The node that claims to be the primary, and holds the lock.
    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| node.says("/primary"))
    }

    /// Waits until some node is the primary.
    pub fn until_led(&self) -> usize {
        let mut found = None;
        until("a primary", || {
            found = self.leader();
            found.is_some()
        });
        found.unwrap()
    }

    /// Waits until no node claims to be the primary.
    pub fn until_not_led(&self) {
        until("no primary", || self.leader().is_none());
    }

    /// Waits until there is one primary, with every other node streaming from it on its timeline, and the
    /// expected number of synchronous standbys. A standby that was promoted in vain may be on a timeline of
    /// its own, from which Patroni 3 does not bring it back: that is an operator's task.
    pub fn until_whole(&self) {
        let mut repaired = Instant::now();
        until("the cluster to be whole", || {
            let Some(leader) = self.leader() else {
                return false;
            };
            if self.is_whole(leader) {
                return true;
            }
            if repaired.elapsed() > REPAIR_AFTER {
                self.repair(leader);
                repaired = Instant::now();
            }
            false
        });
    }

    fn is_whole(&self, leader: usize) -> bool {
        let timeline = self.nodes[leader].timeline();
        let mut others = self.others(leader);
        let sql = "SELECT count(*) FILTER (WHERE state = 'streaming') || ' ' || \
                   count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication";
        let expected = format!("{} {}", NODES - 1, self.replication.waited_for());
        timeline.is_some()
            && self.may_replace(leader)
            && others.all(|node| node.says("/replica") && node.timeline() == timeline)
            && self.try_sql(leader, "postgres", sql) == Ok(expected)
    }

    /// Gives every standby that does not stream a new copy of the primary. If Patroni 3.0 fails to record
    /// whom commits wait for, because an old primary that woke up wrote it last, makes Patroni start over.
    fn repair(&self, leader: usize) {
        let sql = "SELECT application_name FROM pg_stat_replication WHERE state = 'streaming'";
        let Ok(streaming) = self.try_sql(leader, "postgres", sql) else {
            return;
        };
        for node in self.others(leader) {
            if !streaming.lines().any(|name| name == node.name) {
                // A node that is already being copied says no.
                post((node.machine.address(), REST).into(), "/reinitialize", "{}");
            }
        }
        if !self.may_replace(leader) {
            self.ask_etcd("deleterange");
        }
    }

    /// Whether the expected number of nodes may replace `leader`, if Patroni decides that.
    fn may_replace(&self, leader: usize) -> bool {
        let candidates = self.others(leader).filter(|node| node.says("/synchronous"));
        match self.replication {
            Replication::Asynchronous | Replication::AnyOne => true,
            _ => candidates.count() == self.replication.waited_for(),
        }
    }

    /// Whether Patroni lets nobody replace the last primary, because no standby has everything it committed.
    fn is_irreplaceable(&self) -> bool {
        let answer = self.ask_etcd("range");
        let Some((_, value)) = answer.split_once("\"value\":\"") else {
            return false;
        };
        let value = value.split('"').next().unwrap_or_default();
        let mut decode = Command::new("base64");
        let decode = decode
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut decode = decode.spawn().unwrap();
        let mut input = decode.stdin.take().unwrap();
        input.write_all(value.as_bytes()).unwrap();
        drop(input);
        let value = decode.wait_with_output().unwrap().stdout;
        String::from_utf8_lossy(&value).contains("\"sync_standby\":null")
    }

    /// The answer of etcd to the operation `what` on the key that tells whom commits wait for.
    fn ask_etcd(&self, what: &str) -> String {
        let (machine, _) = &self.etcds[0];
        post(
            (machine.address(), ETCD).into(),
            &format!("/v3/kv/{what}"),
            SYNC_KEY,
        )
    }

    /// Waits until a node other than `old` is the primary, or only `old` may be.
    pub fn until_decided(&self, old: usize) {
        until("another primary, or none but the old one", || {
            let replaced = self.others(old).any(|node| node.says("/primary"));
            replaced || self.is_irreplaceable()
        });
    }

    /// A standby of `leader` that commits wait for, or any if they do not wait.
    pub fn standby(&self, leader: usize) -> usize {
        let mut others = (0..NODES).filter(|number| *number != leader);
        let waited_for = |number: &usize| self.nodes[*number].says("/synchronous");
        others.clone().find(waited_for).or(others.next()).unwrap()
    }

    fn others(&self, number: usize) -> impl Iterator<Item = &Node> {
        let others = self.nodes.iter().enumerate();
        let others = others.filter(move |(other, _)| *other != number);
        others.map(|(_, node)| node)
    }

    fn try_sql(&self, number: usize, database: &str, sql: &str) -> Result<String, String> {
        let output = Command::new(postgres_program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-h", &self.nodes[number].machine.address().to_string()])
            .args(["-U", "postgres", "-d", database, "-c", sql])
            .env("PGCONNECT_TIMEOUT", "2")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into()),
        }
    }

    fn run_sql(&self, number: usize, database: &str, sql: &str) -> String {
        match self.try_sql(number, database, sql) {
            Ok(answer) => answer,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    /// Runs SQL on the database `onlyonce` of a node, and returns the unaligned output of psql.
    pub fn sql(&self, number: usize, sql: &str) -> String {
        self.run_sql(number, "onlyonce", sql)
    }

    /// Kills a node: Patroni and every PostgreSQL process.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].patroni = None;
        self.kill_postgres(number);
    }

    /// Kills every PostgreSQL process of a node. Its Patroni notices.
    pub fn kill_postgres(&self, number: usize) {
        let node = &self.nodes[number];
        let family = node.processes();
        for pid in &family {
            signal(*pid, "KILL");
        }
        until("PostgreSQL to die", || {
            family
                .iter()
                .all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        });
    }

    /// Freezes a node's Patroni.
    pub fn freeze_patroni(&self, number: usize) {
        if let Some(patroni) = &self.nodes[number].patroni {
            patroni.freeze();
        }
    }

    /// Freezes every PostgreSQL process of a node.
    pub fn freeze_postgres(&self, number: usize) {
        // The first process creates the others: there are no new ones once it is frozen.
        for _ in 0..2 {
            for pid in self.nodes[number].processes() {
                freeze(pid);
            }
        }
    }

    /// Resumes both.
    pub fn thaw(&self, number: usize) {
        let node = &self.nodes[number];
        for pid in node.processes() {
            signal(pid, "CONT");
        }
        if let Some(patroni) = &node.patroni {
            patroni.thaw();
        }
    }

    /// Fills a node's disk, so that nothing can be written to it.
    pub fn fill_disk(&self, number: usize) {
        let mut file = fs::File::create(self.nodes[number].folder.join(FILLER)).unwrap();
        let zeros = vec![0; 1 << 20];
        while file.write_all(&zeros).is_ok() {}
    }

    /// Waits until a node has noticed its full disk.
    pub fn until_disk_is_felt(&self, number: usize) {
        let log = format!("{FOLDER}/{}.log", self.nodes[number].name);
        until("want of room", || {
            let text = fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(&text).contains("No space left on device")
        });
    }

    /// Frees the disk.
    pub fn empty_disk(&self, number: usize) {
        fs::remove_file(self.nodes[number].folder.join(FILLER)).unwrap();
    }

    /// Kills all etcd servers but one.
    pub fn kill_quorum(&mut self) {
        for (_, daemon) in &mut self.etcds[1..] {
            *daemon = None;
        }
    }

    /// Starts the killed etcd servers.
    pub fn boot_quorum(&mut self) {
        for number in 1..NODES {
            self.start_etcd(number);
        }
    }

    /// The network, for cutting it.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// A node's machine.
    pub fn machine(&self, number: usize) -> &Machine {
        &self.nodes[number].machine
    }

    /// The machines of etcd.
    pub fn etcds(&self) -> impl Iterator<Item = &Machine> {
        self.etcds.iter().map(|(machine, _)| machine)
    }

    /// The machines of etcd, and those of the other nodes.
    pub fn everybody_but(&self, number: usize) -> impl Iterator<Item = &Machine> {
        let others = self.others(number).map(|node| &node.machine);
        others.chain(self.etcds())
    }

    /// The end of each program's log, to see why a test failed.
    pub fn logs(&self) -> String {
        let mut files: Vec<PathBuf> = fs::read_dir(FOLDER)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
            .collect();
        files.sort();
        let mut all = String::new();
        for file in files {
            let text = fs::read(&file).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            all.push_str(&format!("--- {}\n", file.display()));
            for line in lines.iter().skip(lines.len().saturating_sub(40)) {
                all.push_str(line);
                all.push('\n');
            }
        }
        all
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        for number in 0..NODES {
            self.kill(number);
            let mut umount = Command::new("umount");
            // Lazily, since killed processes may not have ended.
            run(umount.arg("-l").arg(&self.nodes[number].folder));
        }
        self.etcds.clear();
        fs::remove_dir_all(FOLDER).unwrap();
    }
}

fn own(path: &Path, user: User) {
    if let Some((uid, gid)) = user {
        chown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// The PostgreSQL programs; the server uses the node's own clock.
fn programs(node: &Node) -> PathBuf {
    let folder = PathBuf::from(format!("{FOLDER}/{}.bin", node.name));
    let server = postgres_program("postgres");
    fs::create_dir(&folder).unwrap();
    for program in fs::read_dir(server.parent().unwrap()).unwrap() {
        let program = program.unwrap().path();
        if program != server {
            symlink(&program, folder.join(program.file_name().unwrap())).unwrap();
        }
    }
    let library = FAKETIME.into_iter().find(|path| Path::new(path).exists());
    let library = library.expect("libfaketime; `./test` installs Debian's package faketime");
    let script = format!(
        "#!/bin/sh
export LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={clock}
export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
exec {server} \"$@\"
",
        clock = node.clock(),
        server = server.display()
    );
    let postgres = folder.join("postgres");
    fs::write(&postgres, script).unwrap();
    fs::set_permissions(&postgres, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Servers are checked often, and one that is not the primary loses its sessions.
fn haproxy(nodes: &[Node]) -> String {
    let mut text = format!(
        "global
  maxconn 500
defaults
  mode tcp
  timeout connect 1s
  timeout client 1h
  timeout server 1h
  timeout check 1s
listen primary
  bind {}:{HAPROXY}
  option httpchk HEAD /primary
  http-check expect status 200
  default-server inter 300ms fall 2 rise 1 on-marked-down shutdown-sessions
",
        Ipv4Addr::LOCALHOST
    );
    for node in nodes {
        text.push_str(&format!(
            "  server {} {}:{POSTGRES} check port {REST}\n",
            node.name,
            node.machine.address()
        ));
    }
    text
}

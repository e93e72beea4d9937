//! Private database servers and message brokers for tests: on free loopback ports, in temporary folders,
//! so that they can be killed, paused and cut off. Never a shared server, and never a mock of one.
//!
//! A server ends with the process that started it, however that ends: a small shell holds the other end of a
//! pipe.

#![allow(
    clippy::disallowed_methods,
    reason = "a server is waited for by the machine's own clock"
)]

mod brokers;
mod dynamodb;
mod mariadb;
mod patroni;
mod ports;
mod postgres;
mod redis;

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub use self::{
    brokers::{Nats, RabbitMq},
    dynamodb::{Dynalite, Moto},
    mariadb::MariaDb,
    patroni::{Patroni, Replication},
    ports::free_port,
    postgres::{PgBouncer, Postgres},
    redis::{Redis, RedisCluster, RedisSentinels},
};

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// The polling interval.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs the given command until its input closes, then ends it and removes its folder, unless the server is
/// to be started again.
const KEEPER: &str = r#"folder=$1; shift; "$@" & server=$!; cat >/dev/null; kill -INT $server 2>/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do kill -0 $server 2>/dev/null || break; sleep 0.2; done
kill -9 $server 2>/dev/null; [ -e "$folder/keep" ] || rm -rf "$folder""#;

/// The user and the group that a program runs as; `None` for those of the test.
pub(crate) type User = Option<(u32, u32)>;

/// The user that a server runs as. Servers refuse to run as root, so then it is their package's own user.
fn user(name: &str) -> User {
    let root = fs::read_to_string("/proc/self/status")
        .unwrap()
        .lines()
        .any(|line| line.starts_with("Uid:\t0\t"));
    if !root {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let line = users
        .lines()
        .find(|line| line.starts_with(&format!("{name}:")))
        .unwrap_or_else(|| panic!("no user {name}: run ./test, which installs the servers"));
    let fields: Vec<&str> = line.split(':').collect();
    Some((fields[2].parse().unwrap(), fields[3].parse().unwrap()))
}

fn as_user(command: &mut Command, user: User) -> &mut Command {
    if let Some((uid, gid)) = user {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/")
}

/// A folder for one server.
fn folder(owner: User) -> PathBuf {
    let path = tempfile::Builder::new()
        .prefix("onlyonce-server-")
        .tempdir()
        .unwrap()
        .keep();
    if let Some((uid, gid)) = owner {
        chown(&path, Some(uid), Some(gid)).unwrap();
    }
    path
}

pub(crate) fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds);
}

fn until_within(patience: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < end, "waited for {what} in vain");
        thread::sleep(LOOK_EVERY);
    }
}

/// A process supervised by a shell.
struct Kept {
    keeper: Child,
}

impl Kept {
    fn start(folder: &Path, command: &[&str], user: User, log: &Path) -> Self {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(folder).args(command);
        let keeper = as_user(&mut keeper, user)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { keeper }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // The shell waits for the server; its exit status does not matter.
        let _ = self.keeper.wait();
    }
}

/// Sends a signal. The process may have ended already.
pub(crate) fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}")).arg(pid.to_string());
    let output = kill.stdin(Stdio::null()).output().unwrap();
    let is_gone = || !PathBuf::from(format!("/proc/{pid}")).exists();
    assert!(output.status.success() || is_gone(), "{kill:?} failed");
}

/// Freezes a process. A signal reaches threads on another core slightly later than `kill` returns, and until
/// then they still answer; so this waits until every thread has stopped.
pub(crate) fn freeze(pid: u32) {
    signal(pid, "STOP");
    let stands_still = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_none_or(|rest| rest.starts_with(['T', 't', 'Z', 'X']))
    };
    until("every thread to stand still", || {
        fs::read_dir(format!("/proc/{pid}/task"))
            .map_or(true, |tasks| tasks.flatten().all(stands_still))
    });
}

/// The sum of these fields of a process's `stat`, in hundredths of a second.
fn cpu_ticks(pid: u32, fields: &[usize]) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let words: Vec<&str> = rest.split(' ').collect();
    fields
        .iter()
        .filter_map(|field| words.get(*field)?.parse::<f64>().ok())
        .sum()
}

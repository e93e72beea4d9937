//! Network namespaces for tests that cut machines off from each other.
//!
//! A test runs itself again, in a network, mount and process namespace of its own ([`inside`]), and creates a
//! namespace for each machine there, joined by a bridge ([`Network`]). Nothing of that is visible outside,
//! and the kernel removes all of it, servers included, with the process that started it, however that ends.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::servers::{User, freeze, run, signal};

/// Set inside the namespaces of a test.
const INSIDE: &str = "ONLYONCE_INSIDE";
/// The first three bytes of every address.
const NET: [u8; 3] = [10, 77, 0];
const BRIDGE: &str = "machines";
/// The first process inside: it adopts orphans, mounts what must be private, and passes on the exit status.
const FIRST: &str = r#"mount -t tmpfs none /run && mkdir /run/netns && ip link set lo up && "$@""#;

/// Whether this is the run of `test`, a test's full name, in its own namespaces. Otherwise starts that run,
/// and returns when it has passed.
pub fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child"]);
    unshare.args(["--mount-proc", "sh", "-c", FIRST, "sh"]);
    unshare.arg(std::env::current_exe().unwrap());
    unshare.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    let mut run = unshare
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut passed = false;
    for line in BufReader::new(run.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("{line}");
        passed |= line.contains("1 passed");
    }
    let status = run.wait().unwrap();
    assert!(status.success(), "{test} failed in its namespaces");
    assert!(passed, "there is no test {test}");
    false
}

/// A machine: a network namespace with one address.
#[derive(Clone, Debug)]
pub struct Machine {
    /// `None` for the namespace that the test itself runs in.
    name: Option<String>,
    address: Ipv4Addr,
}

impl Machine {
    /// The machine's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The prefix that makes a command run on the machine.
    pub(crate) fn prefix(&self) -> Vec<String> {
        let name = self.name.iter().map(String::as_str);
        let words = self.name.iter().flat_map(|_| ["ip", "netns", "exec"]);
        words.chain(name).map(str::to_owned).collect()
    }

    /// A command that runs on the machine.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let Some(name) = &self.name else {
            return Command::new(program);
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", name]).arg(program);
        command
    }

    fn nft(&self, rule: &str) {
        run(self.command("nft").arg(rule));
    }

    fn guard(&self) {
        self.nft("add table inet faults");
        self.nft("add chain inet faults arriving { type filter hook input priority 0; }");
    }
}

/// Machines on one bridge, including the one that the test runs on.
pub struct Network {
    here: Machine,
    machines: Vec<Machine>,
}

impl Network {
    /// A bridge with the test's own machine on it. Only inside [`inside`].
    #[expect(clippy::new_without_default, reason = "it changes the machine")]
    pub fn new() -> Self {
        assert!(
            std::env::var_os(INSIDE).is_some(),
            "not in a namespace of its own"
        );
        let here = Machine {
            name: None,
            address: address(1),
        };
        let network = format!("{}/24", here.address);
        ip(&["link", "add", BRIDGE, "type", "bridge"]);
        ip(&["addr", "add", &network, "dev", BRIDGE]);
        ip(&["link", "set", BRIDGE, "up"]);
        here.guard();
        Self {
            here,
            machines: Vec::new(),
        }
    }

    /// The machine that the test runs on.
    pub fn here(&self) -> &Machine {
        &self.here
    }

    /// Adds a machine.
    pub fn add(&mut self, name: &str) -> Machine {
        let machine = Machine {
            name: Some(name.to_owned()),
            address: address(u8::try_from(self.machines.len()).unwrap() + 11),
        };
        let (network, cable) = (format!("{}/24", machine.address), cable(name));
        ip(&["netns", "add", name]);
        ip(&[
            "link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", name,
        ]);
        ip(&["link", "set", &cable, "master", BRIDGE, "up"]);
        ip(&["-n", name, "addr", "add", &network, "dev", "eth0"]);
        ip(&["-n", name, "link", "set", "eth0", "up"]);
        ip(&["-n", name, "link", "set", "lo", "up"]);
        machine.guard();
        self.machines.push(machine.clone());
        machine
    }

    /// Drops everything that `from` sends to `to`. What `to` sends still arrives.
    pub fn cut(&self, from: &Machine, to: &Machine) {
        to.nft(&format!(
            "add rule inet faults arriving ip saddr {} drop",
            from.address
        ));
    }

    /// Cuts both directions.
    pub fn part(&self, one: &Machine, other: &Machine) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Lets everything arrive again.
    pub fn heal(&self) {
        for machine in self.machines.iter().chain([&self.here]) {
            machine.nft("flush chain inet faults arriving");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A machine's end of a cable goes with its last program, and takes the other end with it.
        for machine in &self.machines {
            let name = machine.name.as_deref().unwrap_or_default();
            for command in [["netns", "del", name], ["link", "del", &cable(name)]] {
                let _ = Command::new("ip").args(command).output();
            }
        }
        let _ = Command::new("ip").args(["link", "del", BRIDGE]).output();
        let _ = Command::new("nft").arg("delete table inet faults").output();
    }
}

fn cable(name: &str) -> String {
    format!("to-{name}")
}

fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(NET[0], NET[1], NET[2], last)
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

/// A program on a machine, which ends with the test.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Starts `command` on `machine`, and appends its output to `log`.
    pub fn start(machine: &Machine, user: User, command: &[&str], log: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(log);
        let log = log.unwrap();
        let mut start = machine.command("setpriv");
        if let Some((uid, gid)) = user {
            start.arg(format!("--reuid={uid}"));
            start.args([&format!("--regid={gid}"), "--clear-groups"]);
        }
        let child = start
            .args(command)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { child }
    }

    /// Freezes the program.
    pub fn freeze(&self) {
        freeze(self.child.id());
    }

    /// Resumes the program.
    pub fn thaw(&self) {
        signal(self.child.id(), "CONT");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

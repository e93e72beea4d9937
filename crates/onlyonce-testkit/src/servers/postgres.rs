//! Private PostgreSQL servers, their standbys, and PgBouncer in front of one.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Kept, as_user, cpu_ticks, folder, free_port, freeze, run, signal, until, user};

/// After how many polls a server that is not there is started again.
const LOOKS_A_START: u32 = 100;

/// The path of a PostgreSQL program in Debian, of the last version installed.
pub(super) fn postgres_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql");
    let versions = versions.expect("PostgreSQL is not installed: run ./test, which installs it");
    let mut found: Vec<PathBuf> = versions
        .map(|entry| entry.unwrap().path().join("bin").join(name))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found
        .pop()
        .unwrap_or_else(|| panic!("{name} is not installed: run ./test, which installs it"))
}

/// A PostgreSQL server with a database `onlyonce` and a user `onlyonce` without a password.
pub struct Postgres {
    folder: PathBuf,
    port: u16,
    user: Option<(u32, u32)>,
    settings: Vec<String>,
    kept: Option<Kept>,
}

impl Postgres {
    /// A new cluster on a free port.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A new cluster with settings such as `fsync=off`.
    pub fn start_with(settings: &[&str]) -> Self {
        let user = user("postgres");
        let folder = folder(user);
        let data = folder.join("data");
        run(as_user(
            Command::new(postgres_program("initdb"))
                .args([
                    "--auth=trust",
                    "--username=onlyonce",
                    "--no-sync",
                    "-E",
                    "UTF8",
                ])
                .args(["--no-locale", "-D"])
                .arg(&data),
            user,
        ));
        let hba = data.join("pg_hba.conf");
        let mut rules = fs::read_to_string(&hba).unwrap();
        rules.push_str("host replication all 127.0.0.1/32 trust\n");
        fs::write(&hba, rules).unwrap();
        let server = Self::on(folder, user, settings);
        server.run_sql("postgres", "CREATE DATABASE onlyonce");
        server
    }

    /// A standby that streams from this server under `name`.
    pub fn standby(&self, name: &str) -> Self {
        self.standby_through(self.port, name)
    }

    /// A standby that streams through another port, such as a proxy's.
    pub fn standby_through(&self, port: u16, name: &str) -> Self {
        let folder = folder(self.user);
        let data = folder.join("data");
        run(as_user(
            Command::new(postgres_program("pg_basebackup"))
                .args(["--no-sync", "-c", "fast", "-R", "-D"])
                .arg(&data)
                .arg("-d")
                .arg(format!(
                    "host=127.0.0.1 port={port} user=onlyonce application_name={name}"
                )),
            self.user,
        ));
        // A broken connection is restored quickly.
        Self::on(folder, self.user, &["wal_retrieve_retry_interval=100ms"])
    }

    fn on(folder: PathBuf, user: Option<(u32, u32)>, settings: &[&str]) -> Self {
        let mut server = Self {
            folder,
            port: free_port(),
            user,
            settings: settings.iter().map(ToString::to_string).collect(),
            kept: None,
        };
        server.boot();
        server
    }

    /// Starts the server after it was stopped or killed. The port stays the same.
    pub fn boot(&mut self) {
        let program = postgres_program("postgres");
        let data = self.folder.join("data");
        let port = self.port.to_string();
        let socket = self.folder.to_str().unwrap().to_owned();
        let mut command = vec![
            program.to_str().unwrap(),
            "-D",
            data.to_str().unwrap(),
            "-p",
            &port,
            "-k",
            &socket,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "max_connections=200",
        ];
        let settings = self.settings.clone();
        for setting in &settings {
            command.extend(["-c", setting]);
        }
        let (log, pid) = (self.folder.join("log"), data.join("postmaster.pid"));
        let ready = postgres_program("pg_isready");
        let mut looks = 0;
        until("PostgreSQL to start", || {
            // Remains of a killed predecessor can hold its port or its memory for a moment: then the new
            // server gives up immediately.
            if looks % LOOKS_A_START == 0 && !pid.exists() {
                self.let_go();
                // The file exists only while the server is down on purpose.
                let _ = fs::remove_file(self.folder.join("keep"));
                self.kept = Some(Kept::start(&self.folder, &command, self.user, &log));
            }
            looks += 1;
            let mut command = Command::new(&ready);
            command.args(["-q", "-h", "127.0.0.1", "-p", &port]);
            command.status().unwrap().success()
        });
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database `onlyonce`.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The URL through another port, such as a proxy's or a pooler's.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://onlyonce@127.0.0.1:{port}/onlyonce")
    }

    /// A new empty database, and its URL.
    pub fn database(&self, name: &str) -> String {
        self.run_sql("postgres", &format!("CREATE DATABASE {name}"));
        format!("postgres://onlyonce@127.0.0.1:{}/{name}", self.port)
    }

    /// Runs SQL with psql, and returns its unaligned output.
    pub fn run_sql(&self, database: &str, sql: &str) -> String {
        let output = Command::new(postgres_program("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-h", "127.0.0.1", "-U", "onlyonce", "-p"])
            .arg(self.port.to_string())
            .args(["-d", database, "-c", sql])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(
            output.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs SQL on the database `onlyonce`.
    pub fn sql(&self, sql: &str) -> String {
        self.run_sql("onlyonce", sql)
    }

    /// The process id of the server's first process.
    pub fn pid(&self) -> u32 {
        let file = self.folder.join("data/postmaster.pid");
        let text = fs::read_to_string(file).unwrap();
        text.lines().next().unwrap().trim().parse().unwrap()
    }

    fn family(&self) -> Vec<u32> {
        if !self.folder.join("data/postmaster.pid").exists() {
            return Vec::new();
        }
        let first = self.pid();
        let children = format!("/proc/{first}/task/{first}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        std::iter::once(first).chain(children).collect()
    }

    /// Freezes every process of the server.
    pub fn freeze(&self) {
        // The first process creates the others: there are no new ones once it is frozen.
        freeze(self.pid());
        for pid in self.family() {
            freeze(pid);
        }
    }

    /// Resumes the server.
    pub fn thaw(&self) {
        for pid in self.family() {
            signal(pid, "CONT");
        }
    }

    fn let_go(&mut self) {
        fs::write(self.folder.join("keep"), "").unwrap();
        self.kept = None;
    }

    /// Kills every process of the server without warning: kill -9.
    pub fn kill(&mut self) {
        let family = self.family();
        for pid in &family {
            // A child may have ended already.
            let _ = Command::new("kill")
                .args(["-9", &pid.to_string()])
                .stderr(Stdio::null())
                .status();
        }
        until("PostgreSQL to die", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err()
        });
        self.let_go();
        // The successor must not take another process for its own.
        let _ = fs::remove_file(self.folder.join("data/postmaster.pid"));
    }

    /// Stops the server cleanly, without waiting for clients.
    pub fn stop(&mut self) {
        let pid = self.pid();
        signal(pid, "INT");
        until("PostgreSQL to stop", || {
            !self.folder.join("data/postmaster.pid").exists()
        });
        self.let_go();
    }

    /// Makes the server accept only encrypted connections, which [`sql`](Self::sql) uses by default.
    pub fn encrypt(&self, certificate: &[u8], key: &[u8]) {
        use std::os::unix::fs::PermissionsExt as _;
        let data = self.folder.join("data");
        for (name, bytes) in [("server.crt", certificate), ("server.key", key)] {
            let file = data.join(name);
            fs::write(&file, bytes).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((uid, gid)) = self.user {
                chown(&file, Some(uid), Some(gid)).unwrap();
            }
        }
        let hba = data.join("pg_hba.conf");
        fs::write(&hba, "hostssl all all 127.0.0.1/32 trust\n").unwrap();
        self.sql("ALTER SYSTEM SET ssl = on");
        self.sql("SELECT pg_reload_conf()");
        until("PostgreSQL to take encrypted connections", || {
            let mut command = Command::new(postgres_program("psql"));
            command
                .args(["-X", "-q", "-c", "SELECT 1", "-d"])
                .arg(format!("{}?sslmode=require", self.url()))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().unwrap().success()
        });
    }

    /// Promotes a standby, which then takes writes.
    pub fn promote(&self) {
        self.run_sql("postgres", "SELECT pg_promote()");
    }

    /// The CPU seconds used by all of its processes, including ended ones.
    pub fn cpu_seconds(&self) -> f64 {
        let first = self.pid();
        // utime, stime, and those of reaped children.
        let mut total = cpu_ticks(first, &[11, 12, 13, 14]);
        for pid in self.family().into_iter().skip(1) {
            total += cpu_ticks(pid, &[11, 12]);
        }
        total / 100.0
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.kept.is_some() {
            // A frozen server would not notice that it should end.
            for pid in self.family() {
                let _ = Command::new("kill")
                    .args(["-CONT", &pid.to_string()])
                    .stderr(Stdio::null())
                    .status();
            }
        }
        self.kept = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A PgBouncer in transaction mode in front of a server.
pub struct PgBouncer {
    folder: PathBuf,
    port: u16,
    kept: Option<Kept>,
}

impl PgBouncer {
    /// Starts one in front of `server`, for all of its databases.
    pub fn start(server: &Postgres) -> Self {
        let user = user("postgres");
        let folder = folder(user);
        let port = free_port();
        let users = folder.join("users");
        let file = folder.join("pgbouncer.ini");
        fs::write(&users, "\"onlyonce\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n",
            server.port(),
            users.display()
        );
        fs::write(&file, text).unwrap();
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"]
            .into_iter()
            .find(|program| Path::new(program).exists())
            .expect("PgBouncer is not installed: run ./test, which installs it");
        let command = [program, file.to_str().unwrap()];
        let log = folder.join("log");
        let kept = Kept::start(&folder, &command, user, &log);
        until("PgBouncer to start", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
        Self {
            folder,
            port,
            kept: Some(kept),
        }
    }

    /// The pooler's port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.kept = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

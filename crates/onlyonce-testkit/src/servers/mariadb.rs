//! Private MariaDB servers: one, a replicated pair, and a Galera cluster.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Kept, as_user, folder, free_port, freeze, run, signal, until, user};

const SERVER: &str = "/usr/sbin/mariadbd";
const INSTALLER: &str = "/usr/bin/mariadb-install-db";
const CLIENT: &str = "/usr/bin/mariadb";
/// Where Debian installs the Galera library.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// A MariaDB server with a database `onlyonce` and a user `onlyonce` without a password.
pub struct MariaDb {
    folder: PathBuf,
    port: u16,
    user: Option<(u32, u32)>,
    settings: Vec<String>,
    kept: Option<Kept>,
}

impl MariaDb {
    /// A new server on a free port.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A new server with settings such as `sync_binlog=0`.
    pub fn start_with(settings: &[&str]) -> Self {
        let mut server = Self::install(settings);
        server.boot();
        server.make_database();
        server
    }

    /// A Galera cluster of three servers, each of which takes writes.
    pub fn start_galera() -> [Self; 3] {
        let ports: [u16; 3] = std::array::from_fn(|_| free_port());
        let name = format!("wsrep-cluster-name=onlyonce-{}", ports[0]);
        let members = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        std::array::from_fn(|number| {
            // The first server starts the cluster, and the others join it with a copy of its files.
            let members = if number == 0 { "" } else { &members };
            let (port, copies, rest) = (ports[number], free_port(), free_port());
            let mut server = Self::install(&[
                "wsrep-on=ON",
                &format!("wsrep-provider={GALERA}"),
                &name,
                &format!("wsrep-node-name=node{number}"),
                &format!("wsrep-cluster-address=gcomm://{members}"),
                &format!("wsrep-node-address=127.0.0.1:{port}"),
                &format!("wsrep-sst-receive-address=127.0.0.1:{copies}"),
                &format!(
                    "wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{port};\
                     ist.recv_addr=127.0.0.1:{rest}"
                ),
                "wsrep-sst-method=rsync",
                "binlog-format=ROW",
                "innodb-autoinc-lock-mode=2",
            ]);
            server.boot();
            let state = "SHOW GLOBAL STATUS LIKE 'wsrep_local_state_comment'";
            until("the server to have joined", || {
                let said = server.client("root", "mysql", state).output().unwrap();
                String::from_utf8_lossy(&said.stdout)
                    .trim()
                    .ends_with("Synced")
            });
            if number == 0 {
                server.make_database();
            }
            server
        })
    }

    /// The files of a new server that has not been started.
    fn install(settings: &[&str]) -> Self {
        assert!(
            Path::new(SERVER).exists() && Path::new(INSTALLER).exists(),
            "MariaDB is not installed: run ./test, which installs it"
        );
        let user = user("mysql");
        let folder = folder(user);
        let data = format!("--datadir={}", folder.join("data").display());
        // Not the shared folder: a server that starts removes temporary files of others.
        let scratch = format!("--tmpdir={}", folder.display());
        // Flushing to disk matters once there is something to lose.
        run(as_user(
            Command::new(INSTALLER)
                .args(["--no-defaults", &data, &scratch, "--skip-test-db"])
                .args(["--auth-root-authentication-method=normal"])
                .args(["--innodb-flush-method=nosync", "--innodb-log-file-size=8M"]),
            user,
        ));
        Self {
            folder,
            port: free_port(),
            user,
            settings: settings.iter().map(|word| format!("--{word}")).collect(),
            kept: None,
        }
    }

    fn make_database(&self) {
        self.as_root(
            "CREATE USER onlyonce@'127.0.0.1'; GRANT ALL ON *.* TO onlyonce@'127.0.0.1' WITH GRANT OPTION; \
             CREATE DATABASE onlyonce",
        );
    }

    /// A primary that waits for a semi-synchronous replica as long as there is one.
    pub fn start_semi_synchronous() -> Self {
        Self::start_with(&[
            "server-id=1",
            "log-bin=binlog",
            "sync-binlog=1",
            "rpl-semi-sync-master-enabled=ON",
            "rpl-semi-sync-master-timeout=60000",
            "rpl-semi-sync-master-wait-no-slave=OFF",
        ])
    }

    /// A replica of this server, which needs a binary log for it, from the current position on. The replica
    /// connects through `port`, which may be a proxy's, and acknowledges what it receives if requested.
    pub fn replica_through(&self, port: u16) -> Self {
        let replica = Self::start_with(&[
            "server-id=2",
            "read-only=ON",
            "rpl-semi-sync-slave-enabled=ON",
        ]);
        let from = self.sql("SELECT @@gtid_binlog_pos");
        replica.as_root(&format!(
            "SET GLOBAL gtid_slave_pos = '{from}'; CHANGE MASTER TO MASTER_HOST = '127.0.0.1', \
             MASTER_PORT = {port}, MASTER_USER = 'onlyonce', MASTER_USE_GTID = slave_pos; START SLAVE"
        ));
        until("the replica to be attached", || {
            self.sql("SHOW GLOBAL STATUS LIKE 'Slaves_connected'")
                .ends_with('1')
        });
        replica
    }

    /// Makes a replica take writes, after it has applied everything it received.
    pub fn promote(&self) {
        self.as_root("STOP SLAVE IO_THREAD");
        until("the replica to catch up", || {
            let waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
                         WHERE STATE LIKE '%has read all relay log%'";
            self.sql(waits) != "0"
        });
        self.as_root("STOP SLAVE; SET GLOBAL read_only = OFF");
    }

    /// Starts the server after it was stopped or killed. The port stays the same.
    pub fn boot(&mut self) {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let mut words = vec![
            SERVER.to_owned(),
            "--no-defaults".to_owned(),
            format!("--datadir={}", path("data")),
            format!("--tmpdir={}", self.folder.display()),
            format!("--socket={}", path("socket")),
            format!("--pid-file={}", path("pid")),
            format!("--port={}", self.port),
        ];
        words.extend(
            [
                "--bind-address=127.0.0.1",
                "--skip-name-resolve",
                "--innodb-log-file-size=8M",
                "--innodb-buffer-pool-size=64M",
                "--max-connections=300",
            ]
            .map(str::to_owned),
        );
        words.extend(self.settings.iter().cloned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let log = self.folder.join("log");
        // The file exists only while the server is down on purpose.
        let _ = fs::remove_file(self.folder.join("keep"));
        self.kept = Some(Kept::start(&self.folder, &words, self.user, &log));
        until("MariaDB to start", || {
            let mut command = self.client("root", "mysql", "SELECT 1");
            command.stdout(Stdio::null()).stderr(Stdio::null());
            self.folder.join("pid").exists() && command.status().unwrap().success()
        });
    }

    fn client(&self, user: &str, database: &str, sql: &str) -> Command {
        let mut command = Command::new(CLIENT);
        command
            .args(["--no-defaults", "-N", "-B", "-h", "127.0.0.1", "-u", user])
            .args(["--connect-timeout=10", "--binary-mode", "-P"])
            .arg(self.port.to_string())
            .args([database, "-e", sql]);
        command
    }

    fn as_root(&self, sql: &str) {
        run(&mut self.client("root", "mysql", sql));
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database `onlyonce`.
    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// The URL through another port, such as a proxy's.
    pub fn url_at(&self, port: u16) -> String {
        format!("mysql://onlyonce@127.0.0.1:{port}/onlyonce")
    }

    /// A new empty database, and its URL.
    pub fn database(&self, name: &str) -> String {
        self.run_sql("mysql", &format!("CREATE DATABASE {name}"));
        format!("mysql://onlyonce@127.0.0.1:{}/{name}", self.port)
    }

    /// Runs SQL with the server's own client, and returns its unaligned output.
    pub fn run_sql(&self, database: &str, sql: &str) -> String {
        let output = self.client("onlyonce", database, sql).output().unwrap();
        assert!(
            output.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Whether the server accepts the statement.
    pub fn try_sql(&self, sql: &str) -> bool {
        let output = self.client("onlyonce", "onlyonce", sql).output().unwrap();
        output.status.success()
    }

    /// Runs SQL on the database `onlyonce`.
    pub fn sql(&self, sql: &str) -> String {
        self.run_sql("onlyonce", sql)
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

    /// Kills the server without warning.
    pub fn kill(&mut self) {
        let pid = self.pid();
        signal(pid, "KILL");
        until("MariaDB to die", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err()
        });
        self.let_go();
        let _ = fs::remove_file(self.folder.join("pid"));
    }

    /// Stops the server cleanly.
    pub fn stop(&mut self) {
        signal(self.pid(), "TERM");
        until("MariaDB to stop", || !self.folder.join("pid").exists());
        self.let_go();
    }

    /// Makes the server offer encrypted connections; restarts it for that.
    pub fn encrypt(&mut self, certificate: &[u8], key: &[u8]) {
        self.stop();
        for (setting, bytes) in [("ssl-cert", certificate), ("ssl-key", key)] {
            let file = self.folder.join(setting);
            fs::write(&file, bytes).unwrap();
            if let Some((uid, gid)) = self.user {
                chown(&file, Some(uid), Some(gid)).unwrap();
            }
            self.settings
                .push(format!("--{setting}={}", file.display()));
        }
        self.boot();
    }

    /// The CPU seconds used by the server.
    pub fn cpu_seconds(&self) -> f64 {
        super::cpu_ticks(self.pid(), &[11, 12]) / 100.0
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        if self.kept.is_some() {
            // Nobody needs the server's data any more, frozen or not.
            let _ = Command::new("kill")
                .args(["-9", &self.pid().to_string()])
                .stderr(Stdio::null())
                .status();
        }
        self.kept = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

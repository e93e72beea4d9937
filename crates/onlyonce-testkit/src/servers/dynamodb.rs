//! Private DynamoDB emulators. Neither does everything that the service does, and they lack different things:
//!
//! - dynalite locks each item and stores its data in files, so conditions hold under any number of writers
//!   and across a kill. It has no transactions and no `UpdateTimeToLive`, and a failed condition does not
//!   return the current item.
//! - moto has all of these, but its server has no lock; here it is given one request at a time. It stores
//!   nothing, ignores the token of a transaction, and knows no conflict between transactions.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
};

use super::{Kept, folder, free_port, freeze, signal, until};

/// A path under `target`, where `./test` installs it.
fn installed(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target").join(path);
    assert!(
        path.exists(),
        "{} is not there: run ./test, which installs it",
        path.display()
    );
    path.to_str().unwrap().to_owned()
}

fn is_reached(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Starts a shell that writes its process id and then becomes the program.
fn start(folder: &Path, port: u16, command: &[&str]) -> Kept {
    let pid = folder.join("pid");
    let _ = fs::remove_file(&pid);
    let _ = fs::remove_file(folder.join("keep"));
    let become_it = r#"echo $$ > "$1"; shift; exec "$@""#;
    let mut words = vec!["sh", "-c", become_it, "sh", pid.to_str().unwrap()];
    words.extend(command);
    let kept = Kept::start(folder, &words, None, &folder.join("log"));
    until("an emulator of DynamoDB to start", || {
        pid.exists() && is_reached(port)
    });
    kept
}

/// dynalite, with its data in files.
pub struct Dynalite {
    folder: PathBuf,
    port: u16,
    kept: Option<Kept>,
}

impl Dynalite {
    /// Starts a new one on a free port.
    pub fn start() -> Self {
        let mut server = Self {
            folder: folder(None),
            port: free_port(),
            kept: None,
        };
        server.boot();
        server
    }

    /// Starts the server after it was killed. The port and the data stay the same.
    pub fn boot(&mut self) {
        let program = installed("node/node_modules/dynalite/cli.js");
        let (port, data) = (self.port.to_string(), self.folder.join("data"));
        let command = [
            "node",
            &program,
            "--host=127.0.0.1",
            "--createTableMs=0",
            "--port",
            &port,
            "--path",
            data.to_str().unwrap(),
        ];
        self.kept = Some(start(&self.folder, self.port, &command));
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a store in this table.
    pub fn url(&self, table: &str) -> String {
        url(table, self.port)
    }

    fn pid(&self) -> u32 {
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

    /// Kills the server: kill -9.
    pub fn kill(&mut self) {
        signal(self.pid(), "KILL");
        until("dynalite to die", || !is_reached(self.port));
        fs::write(self.folder.join("keep"), "").unwrap();
        self.kept = None;
    }
}

/// moto, given one request at a time.
pub struct Moto {
    port: u16,
    _kept: Kept,
}

impl Moto {
    /// Starts a new one on a free port.
    pub fn start() -> Self {
        let (folder, port) = (folder(None), free_port());
        let script = folder.join("moto_in_turn.py");
        fs::write(&script, include_str!("moto_in_turn.py")).unwrap();
        let python = installed("python/bin/python");
        let command = [&python, script.to_str().unwrap(), &port.to_string()];
        let kept = start(&folder, port, &command);
        // moto loads its parts at the first request, which takes seconds.
        until("moto to answer", || answers(port));
        Self { port, _kept: kept }
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of a store in this table.
    pub fn url(&self, table: &str) -> String {
        url(table, self.port)
    }
}

/// Whether a request is answered at all.
fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return false;
    };
    let ask = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-amz-json-1.0\r\n\
               X-Amz-Target: DynamoDB_20120810.ListTables\r\n\
               Authorization: AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/dynamodb/aws4_request, \
               SignedHeaders=host, Signature=a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let mut said = String::new();
    stream.write_all(ask.as_bytes()).is_ok()
        && stream.read_to_string(&mut said).is_ok()
        && said.starts_with("HTTP/1.1 200")
}

/// The URL of a store in this table, on a port of this machine.
fn url(table: &str, port: u16) -> String {
    format!("dynamodb://{table}?region=us-east-1&endpoint=http://127.0.0.1:{port}")
}

//! `onlyonce worker` as a process: started, watched until it is ready, stopped or killed.

use std::{
    net::SocketAddr,
    path::Path,
    process::{ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::{
    process::{TOKEN, binary},
    within,
};

/// A worker that has said it is ready; killed when dropped.
pub(crate) struct Worker {
    child: Child,
    /// What it said when it was ready.
    pub(crate) ready: String,
}

impl Worker {
    /// Starts one with these arguments.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .arg("worker")
            .args(arguments)
            .env("ONLYONCE_ADMIN_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary can be started");
        let out = child.stdout.take().expect("a piped standard output");
        let mut lines = BufReader::new(out).lines();
        let ready = within("the worker's ready line", lines.next_line()).await;
        let ready = ready.expect("its output").expect("a ready line");
        assert!(ready.starts_with("ready worker"), "{ready}");
        Self { child, ready }
    }

    /// Starts one on the configuration `yaml`, which is written into `folder`.
    pub(crate) async fn with_config(folder: &Path, yaml: &str) -> Self {
        let file = folder.join("worker.yaml");
        std::fs::write(&file, yaml).expect("a written config");
        Self::start(&["--config", file.to_str().expect("a plain name")]).await
    }

    /// Where its admin API is.
    pub(crate) fn admin(&self) -> SocketAddr {
        let mut words = self.ready.split_whitespace();
        let found = words.find_map(|word| word.strip_prefix("admin="));
        found
            .expect("an admin listener")
            .parse()
            .expect("an address")
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("the worker has not been waited for");
        let pid = Pid::from_raw(id.cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("a signal to our own child");
    }

    pub(crate) async fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.exited().await;
    }

    pub(crate) fn sigterm(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits for its end.
    pub(crate) async fn exited(&mut self) -> ExitStatus {
        let status = within("the worker to end", self.child.wait()).await;
        status.expect("an exit status")
    }
}

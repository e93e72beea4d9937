//! A measured child process: its address, and the CPU time it has used.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::Context;

/// A running child of this executable. It ends when this is dropped.
pub(super) struct Measured {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Measured {
    /// Starts `onlyonce ARGUMENTS` and waits for its ready line.
    pub(super) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            // By the end of its standard input the child notices that this process is gone.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = child.stdout.take().context("the child has an output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        let address = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("data="))
            .and_then(|address| address.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            anyhow::bail!("`onlyonce {}` did not start", arguments.join(" "));
        };
        Ok(Self { child, address })
    }

    /// CPU time used so far by all threads.
    pub(super) fn cpu(&self) -> Duration {
        let tasks = format!("/proc/{}/task", self.child.id());
        let nanos = |entry: std::fs::DirEntry| {
            let text = std::fs::read_to_string(entry.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        };
        let entries = std::fs::read_dir(tasks).into_iter().flatten().flatten();
        Duration::from_nanos(entries.filter_map(nanos).sum())
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

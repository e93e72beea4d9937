//! Keeps a child process of this executable alive, and makes sure that it dies with this process.
//!
//! A child that ends is restarted, however it ended, until it fails to start several times in a row. Each
//! child holds the read end of a pipe as its standard input. When this process ends, even by `kill -9`, the
//! kernel closes the other end and `parent::gone` resolves in the child.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::folder::write_whole;

#[cfg(test)]
mod tests;

/// A child that ends this often in a row without answering once is given up.
const FAILED_STARTS: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const HEALTH_EVERY: Duration = Duration::from_millis(50);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a child may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_TAIL_BYTES: u64 = 4096;

/// What to run and how to check that it runs.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) executable: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, String)>,
    /// Receives both standard output and standard error, appended.
    pub(super) log: PathBuf,
    /// Always contains the pid of the latest process.
    pub(super) pid_file: PathBuf,
    /// Answers `GET /healthz` with 200 once the child is up.
    pub(super) health: SocketAddr,
}

/// Why a child is not restarted.
#[derive(Debug, thiserror::Error)]
pub(super) enum GaveUp {
    #[error("the {name} could not be started")]
    CannotStart {
        name: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the {name} ended {FAILED_STARTS} times before it answered ({how})")]
    KeepsFailing {
        name: &'static str,
        how: String,
        log: PathBuf,
    },
}

/// One program and, most of the time, the process that runs it.
pub(super) struct Supervised {
    program: Program,
    child: Option<Running>,
    ready: watch::Sender<Option<u32>>,
}

struct Running {
    pid: u32,
    child: Child,
    /// Held separately, because waiting for a child closes the stdin handle inside `child`.
    _lifeline: Option<ChildStdin>,
}

impl Supervised {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            child: None,
            ready: watch::Sender::new(None),
        }
    }

    /// The pid of the process while it answers; `None` while no process does.
    pub(super) fn ready(&self) -> watch::Receiver<Option<u32>> {
        self.ready.subscribe()
    }

    pub(super) fn log(&self) -> &Path {
        &self.program.log
    }

    /// Starts the program and restarts it whenever it ends; returns when restarting is pointless. Dropping
    /// the future leaves the process running, for [`Supervised::stop`].
    pub(super) async fn keep(&mut self, say: impl Fn(&str)) -> GaveUp {
        let name = self.program.name;
        let mut failed_starts = 0;
        let mut pause = FIRST_PAUSE;
        let mut before: Option<(u32, String)> = None;
        loop {
            let started = match self.start() {
                Ok(started) => started,
                Err(source) => return GaveUp::CannotStart { name, source },
            };
            let Running { pid, child, .. } = self.child.insert(started);
            let pid = *pid;
            if let Some((old, how)) = &before {
                say(&format!(
                    "{name} (pid {old}) ended: {how}; started again as pid {pid}"
                ));
            }
            let mut answered = false;
            let ended = tokio::select! {
                ended = child.wait() => ended,
                () = healthy(self.program.health) => {
                    answered = true;
                    self.ready.send_replace(Some(pid));
                    child.wait().await
                }
            };
            self.child = None;
            self.ready.send_replace(None);
            let how = ended
                .as_ref()
                .map_or_else(io::Error::to_string, |status| described(*status));
            // A `kill -9` is deliberate, whenever it comes, and not a failed start.
            let killed = ended.is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
            if answered {
                (failed_starts, pause) = (0, FIRST_PAUSE);
            } else if !killed {
                failed_starts += 1;
                if failed_starts == FAILED_STARTS {
                    return GaveUp::KeepsFailing {
                        name,
                        how,
                        log: self.program.log.clone(),
                    };
                }
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
            before = Some((pid, how));
        }
    }

    /// Stops the process: sends SIGTERM, and kills it after [`STOP_TIMEOUT`] or at the next signal.
    pub(super) async fn stop(&mut self, signals: &mut StopSignals) {
        if let Some(mut running) = self.child.take() {
            let child = &mut running.child;
            // `id` is set until the child is reaped, and until then no other process has its pid.
            let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            if let Some(pid) = pid {
                let _ = kill_process(pid, Signal::TERM);
            }
            let ended = tokio::select! {
                _ = child.wait() => true,
                () = sleep(STOP_TIMEOUT) => false,
                () = signals.next() => false,
            };
            if !ended {
                let _ = child.kill().await;
            }
        }
        let _ = std::fs::remove_file(&self.program.pid_file);
    }

    fn start(&self) -> io::Result<Running> {
        let program = &self.program;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&program.log)?;
        let mut child = Command::new(&program.executable)
            .args(&program.arguments)
            .envs(
                program
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C on the terminal is for this process alone: it stops the children in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child
            .id()
            .ok_or_else(|| io::Error::other("it ended at once"))?;
        write_whole(&program.pid_file, format!("{pid}\n").as_bytes(), 0o644)?;
        let lifeline = child.stdin.take();
        Ok(Running {
            pid,
            child,
            _lifeline: lifeline,
        })
    }
}

/// Ctrl-C and SIGTERM.
pub(super) struct StopSignals {
    interrupt: SignalStream,
    terminate: SignalStream,
}

impl StopSignals {
    /// From here on, neither signal ends the process by itself.
    pub(super) fn catch() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self {
            interrupt,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The last lines of a log, up to [`LOG_TAIL_BYTES`].
pub(super) fn log_tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole_lines = if from == 0 {
        0
    } else {
        text.find('\n').map_or(0, |end| end + 1)
    };
    Ok(text[whole_lines..].to_owned())
}

/// Prints a line. A closed pipe behind standard output must not end the demo.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

fn described(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => status.to_string(),
    }
}

/// Resolves once `GET /healthz` returns 200.
async fn healthy(address: SocketAddr) {
    while !matches!(timeout(HEALTH_TIMEOUT, probe(address)).await, Ok(Ok(true))) {
        sleep(HEALTH_EVERY).await;
    }
}

async fn probe(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // `HTTP/1.1 200`: the status ends at the twelfth byte.
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    Ok(head.starts_with(b"HTTP/1.") && head.ends_with(b" 200"))
}

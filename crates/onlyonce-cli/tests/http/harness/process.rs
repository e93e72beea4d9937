//! The process behind a gateway: started, watched until it is ready, its output kept.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::oneshot,
    task::JoinHandle,
};

use super::within;

/// The admin token of every gateway in this suite.
pub(crate) const TOKEN: &str = "test-token";

/// How a gateway that did not become ready ended.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    pub(crate) logs: String,
}

/// What a start and every restart have in common.
pub(crate) struct Launch {
    pub(crate) config: PathBuf,
    pub(crate) full_disk: bool,
    pub(crate) log: &'static str,
    pub(crate) env: Vec<(String, String)>,
}

/// A gateway that has said it is ready.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) data: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// They end with what it says.
    pub(crate) heard: [JoinHandle<()>; 2],
}

/// Starts the binary and waits for its ready line or its end.
pub(crate) async fn spawn(launch: &Launch, logs: &Arc<Mutex<String>>) -> Result<Running, Exit> {
    let binary = binary();
    let mut command = if launch.full_disk {
        // An ignored signal stays ignored across exec, and the process id stays the same.
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(binary);
        shell
    } else {
        Command::new(binary)
    };
    let mut child = command
        .arg("serve")
        .arg("--config")
        .arg(&launch.config)
        .env("ONLYONCE_ADMIN_TOKEN", TOKEN)
        .env("RUST_LOG", launch.log)
        .env("ONLYONCE_LOG", launch.log)
        // For emulators of DynamoDB, which take any; and nobody asks a machine for its role.
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary can be started");
    let (ready, mut announced) = oneshot::channel();
    let out = child.stdout.take().expect("a piped standard output");
    let err = child.stderr.take().expect("a piped standard error");
    let out = tokio::spawn(drain(out, Arc::clone(logs), Some(ready)));
    let err = tokio::spawn(drain(err, Arc::clone(logs), None));
    let outcome = within("the ready line", async {
        tokio::select! {
            biased;
            Ok(addresses) = &mut announced => Ok(addresses),
            status = child.wait() => Err(status.expect("an exit status")),
        }
    })
    .await;
    match outcome {
        Ok((data, admin)) => Ok(Running {
            child,
            data,
            admin,
            heard: [out, err],
        }),
        Err(status) => {
            let _ = (out.await, err.await);
            let logs = logs.lock().map(|logs| logs.clone()).unwrap_or_default();
            Err(Exit { status, logs })
        }
    }
}

type Ready = oneshot::Sender<(SocketAddr, SocketAddr)>;

/// Keeps what comes, and reports the ready line if asked to.
async fn drain(pipe: impl AsyncRead + Unpin, logs: Arc<Mutex<String>>, mut ready: Option<Ready>) {
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(addresses) = ready_line(&line)
            && let Some(ready) = ready.take()
        {
            let _ = ready.send(addresses);
        }
        if let Ok(mut logs) = logs.lock() {
            logs.push_str(&line);
            logs.push('\n');
        }
    }
}

/// `ready data=ADDR admin=ADDR`, with or without more words.
fn ready_line(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_whitespace();
    (words.next()? == "ready").then_some(())?;
    let data = words.next()?.strip_prefix("data=")?.parse().ok()?;
    let admin = words.next()?.strip_prefix("admin=")?.parse().ok()?;
    Some((data, admin))
}

pub(crate) fn binary() -> PathBuf {
    option_env!("CARGO_BIN_EXE_onlyonce")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("ONLYONCE_BIN").map(PathBuf::from))
        .expect("cargo names the binary of its own package; elsewhere ONLYONCE_BIN must")
}

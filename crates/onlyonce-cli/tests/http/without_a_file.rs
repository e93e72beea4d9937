//! `onlyonce serve --upstream URL`: what is made up where there is no file, and what is not.

use std::{net::SocketAddr, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
};

use crate::{
    harness::{Request, Upstream, client, process::binary, within},
    postgres_schema::{onlyonce, text},
};

/// A gateway that was started without a file.
struct Started {
    child: Child,
    ready: String,
    dashboard: String,
}

impl Started {
    async fn with(upstream: &Upstream, args: &[&str], token: Option<&str>) -> Self {
        let mut command = Command::new(binary());
        command
            .args(["serve", "--upstream", &upstream.url()])
            .args(["--listen", "127.0.0.1:0", "--store", "memory:"])
            .args(args)
            .env_remove("ONLYONCE_ADMIN_TOKEN")
            .env("ONLYONCE_LOG", "trace")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(token) = token {
            command.env("ONLYONCE_ADMIN_TOKEN", token);
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = async || lines.next_line().await.unwrap().unwrap_or_default();
        let (ready, dashboard) = within("two lines", async { (line().await, line().await) }).await;
        Self {
            child,
            ready,
            dashboard,
        }
    }

    fn admin(&self) -> SocketAddr {
        let words = self.ready.split(' ');
        let mut found = words.filter_map(|word| word.strip_prefix("admin="));
        found.next().unwrap().parse().unwrap()
    }

    /// The status of a request for the configuration with this token.
    async fn status(&self, token: &str) -> u16 {
        let asked = Request::get("/config").header("Authorization", format!("Bearer {token}"));
        client::send(self.admin(), &asked).await.unwrap().status
    }

    /// Ends it; all that it said on standard error.
    async fn end(mut self) -> String {
        self.child.start_kill().unwrap();
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).await.unwrap();
        said
    }
}

/// Goal: without a file, nobody is told to write what only a file can hold, and the store is found again.
///
/// Method: `serve --upstream` in a folder, with every default.
/// Evidence: the path on the first line is that of the file; each hint names the way to a file.
#[tokio::test]
async fn the_store_is_named_and_hints_can_be_followed() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(binary());
    command
        .current_dir(folder.path())
        .args(["serve", "--upstream", &upstream.url()])
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = within("the first line", lines.next_line())
        .await
        .unwrap()
        .unwrap();
    let file = ready.split(' ').find_map(|word| word.strip_prefix("file="));
    let file = std::path::Path::new(file.unwrap_or_else(|| panic!("{ready}")));
    assert!(file.is_absolute() && file.is_file(), "{ready}");
    child.start_kill().unwrap();
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).await.unwrap();
    let hints: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("hint: "))
        .collect();
    assert!(!hints.is_empty(), "{said}");
    assert!(
        hints.iter().all(|hint| hint.contains("serve --config")),
        "{said}"
    );
}

/// Goal: whoever starts a gateway without a file gets into its dashboard at once, and nobody else does.
///
/// Method: `serve --upstream --admin`, twice. Evidence: the address that is printed, with a token that opens
/// the admin API of its own run alone, and that stands in no log.
#[tokio::test]
async fn a_token_for_this_run() {
    let upstream = Upstream::start();
    let args = ["--admin", "127.0.0.1:0"];
    let (one, other) = tokio::join!(
        Started::with(&upstream, &args, None),
        Started::with(&upstream, &args, None)
    );
    let shown = format!("dashboard http://{}/#token=", one.admin());
    let token = one.dashboard.strip_prefix(&shown);
    let token = token
        .unwrap_or_else(|| panic!("{}", one.dashboard))
        .to_owned();
    assert!(token.len() >= 32, "{token}");
    assert!(!one.ready.contains(&token), "{}", one.ready);
    assert_eq!(one.status(&token).await, 200);
    assert_eq!(one.status("").await, 401);
    assert_eq!(other.status(&token).await, 401, "another run");
    for gateway in [one, other] {
        assert!(!gateway.end().await.contains(&token));
    }
}

/// Goal: a token that was set is the one, and is not printed.
#[tokio::test]
async fn a_token_that_was_set() {
    let upstream = Upstream::start();
    let gateway = Started::with(&upstream, &["--admin", "127.0.0.1:0"], Some("chosen")).await;
    let shown = format!("dashboard http://{}/ ", gateway.admin());
    assert!(
        gateway.dashboard.starts_with(&shown),
        "{}",
        gateway.dashboard
    );
    assert_eq!(gateway.status("chosen").await, 200);
    let printed = format!("{} {}", gateway.ready, gateway.dashboard);
    assert!(!format!("{printed} {}", gateway.end().await).contains("chosen"));
}

/// Goal: a second gateway on the same machine starts, unless it was told where its admin API is.
///
/// Method: the default port is taken. Evidence: another port and a warning; with `--admin`, a refusal.
#[tokio::test]
async fn the_default_admin_port_is_taken() {
    let default = "127.0.0.1:9090";
    // Where this fails, somebody else has taken it.
    let _taken = std::net::TcpListener::bind(default);
    let upstream = Upstream::start();
    let gateway = Started::with(&upstream, &[], None).await;
    assert_ne!(gateway.admin().to_string(), default);
    let said = gateway.end().await;
    assert!(said.contains("warning: 127.0.0.1:9090 is taken"), "{said}");
    let refused = Started::with(&upstream, &["--admin", default], None).await;
    assert_eq!(refused.ready, "");
    let said = refused.end().await;
    assert!(said.contains("cannot listen on 127.0.0.1:9090"), "{said}");
}

/// Goal: whoever types `onlyonce serve` learns both ways to start.
#[test]
fn nothing_to_serve() {
    let output = onlyonce(&["serve"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for way in ["--upstream URL", "--config FILE"] {
        assert!(said.contains(way), "{said}");
    }
}

//! Real SDKs against the gateway: stripe-python and stripe-node, as their registries have them.
//!
//! They are installed once into the target folder. Where the registries cannot be reached the tests say
//! so on standard error, past the capture, and end.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{Mutex, Notify},
    task::JoinHandle,
};

use crate::harness::{Gateway, Script, Setup, Upstream};

/// What is installed.
const PYTHON_PACKAGE: &str = "stripe==16.1.0";
const NODE_PACKAGE: &str = "stripe@23.1.0";
/// The same by the names that the guide has for them.
pub(crate) const PACKAGES: [(&str, &str); 2] = [
    ("stripe-python", PYTHON_PACKAGE),
    ("stripe-node", NODE_PACKAGE),
];
/// How long an installation may take, and how long a script.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(180);
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(90);

/// One installation at a time.
static INSTALLING: Mutex<()> = Mutex::const_new(());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sdk {
    Python,
    Node,
}

impl Sdk {
    fn folder(self) -> PathBuf {
        let name = match self {
            Self::Python => "sdk-python",
            Self::Node => "sdk-node",
        };
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
    }

    /// The commands that install it, in its folder.
    fn commands(self) -> Vec<Vec<&'static str>> {
        match self {
            Self::Python => vec![
                vec!["python3", "-m", "venv", "."],
                vec!["bin/pip", "install", "--quiet", PYTHON_PACKAGE],
            ],
            Self::Node => vec![vec![
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                NODE_PACKAGE,
            ]],
        }
    }

    /// Installs it unless it is there; or says why not.
    async fn install(self) -> Result<(), String> {
        let _alone = INSTALLING.lock().await;
        let folder = self.folder();
        let wanted = match self {
            Self::Python => PYTHON_PACKAGE,
            Self::Node => NODE_PACKAGE,
        };
        let installed = folder.join("installed");
        if std::fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
            return Ok(());
        }
        let io = |error: std::io::Error| error.to_string();
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(io)?;
        if self == Self::Node {
            // Without one, npm would look for a package in the folders above.
            std::fs::write(folder.join("package.json"), "{\"private\":true}").map_err(io)?;
        }
        for words in self.commands() {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(&folder);
            let output = command.kill_on_drop(true).output();
            let output = tokio::time::timeout(INSTALL_TIMEOUT, output).await;
            let output = output.map_err(|_| format!("{words:?} took too long"))?;
            let output = output.map_err(|error| format!("{words:?}: {error}"))?;
            if !output.status.success() {
                return Err(format!("{words:?}: {}", said(&output)));
            }
        }
        std::fs::write(installed, wanted).map_err(io)
    }

    /// Runs the script of this SDK against `url`.
    async fn run(self, url: &str, what: &str) -> Vec<Value> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http/sdks");
        let folder = self.folder();
        let mut command = match self {
            Self::Python => {
                let mut command = Command::new(folder.join("bin/python"));
                command.arg(scripts.join("charge.py"));
                command
            }
            Self::Node => {
                // A module is looked for beside the script.
                let script = folder.join(format!("charge-{what}.mjs"));
                std::fs::copy(scripts.join("charge.mjs"), &script).unwrap();
                let mut command = Command::new("node");
                command.arg(script);
                command
            }
        };
        command.args([url, what]).kill_on_drop(true);
        // A proxy of the surroundings is not for loopback.
        command.env("NO_PROXY", "127.0.0.1");
        let output = tokio::time::timeout(SCRIPT_TIMEOUT, command.output());
        let output = output.await.expect("the script ends").unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let told: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", said(&output)));
        told["results"].as_array().expect("results").clone()
    }
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// The SDKs that can be had here.
async fn sdks() -> Vec<Sdk> {
    let mut there = Vec::new();
    for sdk in [Sdk::Python, Sdk::Node] {
        match sdk.install().await {
            Ok(()) => there.push(sdk),
            Err(error) => {
                let skipped = format!("SKIPPED: {sdk:?} SDK cannot be installed: {error}\n");
                std::io::stderr().write_all(skipped.as_bytes()).unwrap();
            }
        }
    }
    there
}

/// A gateway as a Stripe API would have it, before an upstream that answers with a charge.
async fn stripe_like(upstream: &Upstream, options: &str) -> Gateway {
    upstream.always(charge());
    Setup::with(&format!("dialect: stripe{options}"))
        .start(upstream)
        .await
}

fn charge() -> Script {
    let body = r#"{"id":"ch_1","object":"charge","amount":1000,"currency":"eur","paid":true}"#;
    Script::reply(200)
        .header("Content-Type", "application/json")
        .body(body)
}

/// A way to the gateway that breaks off: the answers of the first connections are swallowed and the
/// connections are closed.
struct Cut {
    addr: SocketAddr,
    swallowed: Arc<Notify>,
    _serving: JoinHandle<()>,
}

impl Cut {
    async fn before(gateway: SocketAddr, first: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let swallowed = Arc::new(Notify::new());
        let told = swallowed.clone();
        let serving = tokio::spawn(async move {
            for number in 0.. {
                let (client, _) = listener.accept().await.unwrap();
                let told = told.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(gateway).await.unwrap();
                    match number < first {
                        true => swallow(client, server, &told).await,
                        false => {
                            let mut client = client;
                            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        }
                    }
                });
            }
        });
        Self {
            addr,
            swallowed,
            _serving: serving,
        }
    }

    fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// Passes the request on, waits for the first bytes of the answer, and closes.
async fn swallow(client: TcpStream, server: TcpStream, told: &Notify) {
    let (mut from_client, _to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let passing = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    });
    let mut answer = [0; 256];
    let read = from_server.read(&mut answer).await.unwrap_or(0);
    passing.abort();
    if read > 0 {
        told.notify_one();
    }
}

/// Goal: a charge whose answer got lost is made once, and the SDK returns it all the same.
///
/// Method: the SDK's connection is cut after the upstream has executed and the gateway has answered; the
/// SDK retries by itself.
/// Evidence: the upstream's own count, and the charge that the SDK returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_over_a_cut_connection_is_made_once() {
    for sdk in sdks().await {
        let upstream = Upstream::start();
        let gateway = stripe_like(&upstream, "").await;
        let cut = Cut::before(gateway.data(), 1).await;
        let results = sdk.run(&cut.url(), "create").await;
        assert_eq!(results.len(), 1);
        assert_eq!(results[0]["id"], "ch_1", "{sdk:?}: {results:?}");
        assert_eq!(results[0]["replayed"], "true", "{sdk:?}: {results:?}");
        tokio::time::timeout(SCRIPT_TIMEOUT, cut.swallowed.notified())
            .await
            .expect("an answer was swallowed");
        assert_eq!(upstream.executions(), 1, "{sdk:?}");
    }
}

/// Goal: a client that uses a key for another request learns it by the error that its SDK has for that.
///
/// Method: two charges of different amounts with one key, in dialect `stripe`.
/// Evidence: the class of the error, and the upstream's own count.
#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_is_the_error_of_the_sdk() {
    for sdk in sdks().await {
        let upstream = Upstream::start();
        let gateway = stripe_like(&upstream, "").await;
        let url = format!("http://{}", gateway.data());
        let results = sdk.run(&url, "mismatch").await;
        assert_eq!(results[0]["id"], "ch_1", "{sdk:?}: {results:?}");
        let expected = match sdk {
            Sdk::Python => "IdempotencyError",
            Sdk::Node => "StripeIdempotencyError",
        };
        assert_eq!(results[1]["error"], expected, "{sdk:?}: {results:?}");
        assert_eq!(results[1]["status"], 400, "{sdk:?}: {results:?}");
        assert_eq!(upstream.executions(), 1, "{sdk:?}");
    }
}

/// Goal: a retry that comes while the first is still running gets the charge in the end.
///
/// Method: two equal charges at once, `on_in_flight: reject`; the upstream answers once the second has
/// been refused.
/// Evidence: both return the charge, and the upstream's own count.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_duplicate_is_retried_and_succeeds() {
    for sdk in sdks().await {
        let upstream = Upstream::start();
        let gateway = stripe_like(&upstream, ", on_in_flight: reject").await;
        upstream.next(charge().held());
        let url = format!("http://{}", gateway.data());
        let running = tokio::spawn(async move { sdk.run(&url, "twice").await });
        let met = async {
            let name = "api_idempotency_reserve_in_progress_total";
            while gateway.metric(name).await.unwrap_or(0.0) < 1.0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SCRIPT_TIMEOUT, met)
            .await
            .expect("a duplicate meets its key in flight");
        upstream.release();
        let results = running.await.unwrap();
        assert_eq!(results.len(), 2);
        for result in &results {
            assert_eq!(result["id"], "ch_1", "{sdk:?}: {results:?}");
        }
        assert_eq!(upstream.executions(), 1, "{sdk:?}");
    }
}

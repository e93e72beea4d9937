//! `onlyonce demo`: a gateway and a payments API to try it on, in one command.
//!
//! Both run as child processes of this same executable, so that either can really be killed and restarted.
//! Deliberately absent: anything that the gateway does not do elsewhere. It runs with `serve`, from a
//! configuration file that can be read in the demo's folder.

mod api;
mod fault;
mod folder;
mod ledger;
mod story;
mod supervise;
mod text;

use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use onlyonce_gateway::parent;
use tokio::sync::watch;

use folder::{Addresses, Folder, random_hex, reachable};
use supervise::{GaveUp, Program, StopSignals, Supervised, log_tail, say};

/// How long both children together may take to answer for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The options of `onlyonce demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Keep everything in this folder and go on with what is there [default: a new temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where the gateway listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Where the gateway's admin API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    admin: SocketAddr,
    /// Where the payments API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:3000")]
    api: SocketAddr,
    /// Where the page of the demo listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    page: SocketAddr,
}

/// The options of the hidden `onlyonce demo-api`, the demo's second child.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoApiArgs {
    #[arg(long)]
    listen: SocketAddr,
    /// Holds the ledger
    #[arg(long)]
    dir: PathBuf,
    /// End when standard input does
    #[arg(long)]
    exit_with_parent: bool,
}

/// Runs the demo until Ctrl-C or SIGTERM.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let mut signals = StopSignals::catch().context("cannot catch signals")?;
    let folder = Folder::take(args.dir.clone())?;
    let addresses = choose_addresses(&args)?;
    let (page, page_listener) = choose("the page", args.page)?;
    page_listener.set_nonblocking(true)?;
    let page_listener = tokio::net::TcpListener::from_std(page_listener)?;
    let token = folder.admin_token()?;
    let config = folder.write_config(&addresses)?;
    let executable = std::env::current_exe().context("cannot find this executable")?;

    let mut api = Supervised::new(api_program(&executable, &folder, &addresses));
    let gateway = gateway_program(&executable, &folder, &addresses, &config, &token);
    let mut gateway = Supervised::new(gateway);
    // Only a convenience, so a fixed tag will do if there is no randomness.
    let tag = random_hex::<2>().unwrap_or_else(|_| "0000".to_owned());
    let story = story::Story::new(story::Stage {
        gateway: reachable(addresses.listen),
        admin: reachable(addresses.admin),
        api: reachable(addresses.api),
        token: token.clone(),
        tag: tag.clone(),
        gateway_pid: gateway.ready(),
    })?;
    tokio::spawn(story.serve(page_listener));
    let places = (&addresses, reachable(page));
    let words = (token.as_str(), tag.as_str());
    let greeting = greet((gateway.ready(), api.ready()), &folder, places, words);

    let end = tokio::select! {
        gave_up = api.keep(say) => End::GaveUp(gave_up),
        gave_up = gateway.keep(say) => End::GaveUp(gave_up),
        end = greeting => end,
        () = signals.next() => End::Asked,
    };
    // The gateway stops first: its executions in flight still need the API.
    gateway.stop(&mut signals).await;
    api.stop(&mut signals).await;

    Ok(match end {
        End::Asked => {
            say(&format!("stopped; {} is kept", folder.path().display()));
            ExitCode::SUCCESS
        }
        End::GaveUp(gave_up) => {
            if let GaveUp::KeepsFailing { log, .. } = &gave_up {
                print_tail(log);
            }
            eprintln!("error: {:#}", anyhow::Error::new(gave_up));
            ExitCode::FAILURE
        }
        End::NotReady => {
            print_tail(gateway.log());
            print_tail(api.log());
            eprintln!("error: no answer within {} s", START_TIMEOUT.as_secs());
            ExitCode::FAILURE
        }
    })
}

/// Runs the payments API; `now` supplies the time of its bookings.
pub(crate) async fn run_api(args: DemoApiArgs, now: fn() -> SystemTime) -> anyhow::Result<()> {
    let ledger = open_ledger(&args.dir, "ledger.jsonl")?;
    let without = open_ledger(&args.dir, "ledger-without.jsonl")?;
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    say(&format!("payments API on http://{}", args.listen));
    let serve = api::serve(
        listener,
        api::Api {
            ledger,
            without,
            now,
        },
    );
    if args.exit_with_parent {
        tokio::select! {
            never = serve => match never {},
            () = parent::gone() => Ok(()),
        }
    } else {
        match serve.await {}
    }
}

fn open_ledger(dir: &Path, name: &str) -> anyhow::Result<Arc<ledger::Ledger>> {
    let path = dir.join(name);
    let ledger = ledger::Ledger::open(&path)
        .with_context(|| format!("cannot open the ledger {}", path.display()))?;
    Ok(Arc::new(ledger))
}

/// Why the demo ends.
enum End {
    Asked,
    GaveUp(GaveUp),
    NotReady,
}

/// Waits until both children answer, prints the text, and then never resolves.
async fn greet(
    (mut gateway, mut api): (watch::Receiver<Option<u32>>, watch::Receiver<Option<u32>>),
    folder: &Folder,
    (addresses, page): (&Addresses, SocketAddr),
    (token, tag): (&str, &str),
) -> End {
    let both = async { (answering(&mut gateway).await, answering(&mut api).await) };
    let Ok((gateway_pid, api_pid)) = tokio::time::timeout(START_TIMEOUT, both).await else {
        return End::NotReady;
    };
    say(&text::welcome(&text::Facts {
        gateway: reachable(addresses.listen),
        gateway_pid,
        admin: reachable(addresses.admin),
        api: reachable(addresses.api),
        api_pid,
        folder: folder.path(),
        page,
        token,
        tag,
    }));
    std::future::pending().await
}

async fn answering(ready: &mut watch::Receiver<Option<u32>>) -> u32 {
    match ready.wait_for(Option::is_some).await.map(|pid| *pid) {
        Ok(Some(pid)) => pid,
        _ => std::future::pending().await,
    }
}

/// The requested addresses, each with a free port instead if the requested one is taken.
fn choose_addresses(args: &DemoArgs) -> anyhow::Result<Addresses> {
    // All three are held until all are chosen, so that no two get the same port.
    let (listen, _held_listen) = choose("the gateway", args.listen)?;
    let (admin, _held_admin) = choose("the admin API", args.admin)?;
    let (api, _held_api) = choose("the payments API", args.api)?;
    Ok(Addresses { listen, admin, api })
}

fn choose(what: &str, wanted: SocketAddr) -> anyhow::Result<(SocketAddr, TcpListener)> {
    let held = match TcpListener::bind(wanted) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::new(wanted.ip(), 0))
        }
        other => other,
    };
    let held = held.with_context(|| format!("{what} cannot listen on {wanted}"))?;
    let chosen = held.local_addr()?;
    if wanted.port() != 0 && chosen != wanted {
        say(&format!(
            "port {} is taken; {what} uses {} instead",
            wanted.port(),
            chosen.port()
        ));
    }
    Ok((chosen, held))
}

fn gateway_program(
    executable: &Path,
    folder: &Folder,
    addresses: &Addresses,
    config: &Path,
    token: &str,
) -> Program {
    let arguments: [OsString; 4] = [
        "serve".into(),
        "--config".into(),
        config.into(),
        "--exit-with-parent".into(),
    ];
    Program {
        name: "gateway",
        executable: executable.to_owned(),
        arguments: arguments.into(),
        environment: vec![("ONLYONCE_ADMIN_TOKEN", token.to_owned())],
        log: folder.file("gateway.log"),
        pid_file: folder.file("gateway.pid"),
        health: reachable(addresses.admin),
    }
}

fn api_program(executable: &Path, folder: &Folder, addresses: &Addresses) -> Program {
    let arguments: [OsString; 6] = [
        "demo-api".into(),
        "--listen".into(),
        addresses.api.to_string().into(),
        "--dir".into(),
        folder.path().into(),
        "--exit-with-parent".into(),
    ];
    Program {
        name: "API",
        executable: executable.to_owned(),
        arguments: arguments.into(),
        environment: Vec::new(),
        log: folder.file("api.log"),
        pid_file: folder.file("api.pid"),
        health: reachable(addresses.api),
    }
}

/// Prints the end of a child's log.
fn print_tail(log: &Path) {
    match log_tail(log) {
        Ok(tail) => eprintln!("--- {}\n{tail}---", log.display()),
        Err(error) => eprintln!("--- {} cannot be read: {error}", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_gives_way_to_a_free_one() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = (taken.local_addr().unwrap(), taken);
        let args = DemoArgs {
            dir: None,
            listen: taken.0,
            admin: taken.0,
            api: taken.0,
            page: taken.0,
        };
        let Addresses { listen, admin, api } = choose_addresses(&args).unwrap();
        let mut ports = [listen.port(), admin.port(), api.port(), taken.0.port()];
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
    }
}

//! The command line.

use std::{io, path::PathBuf, pin::Pin, process::ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use onlyonce_gateway::{
    clock,
    config::{self, Overrides, StoreUrl},
};

use crate::{
    audit, bench, colour, demo, keys, migrate, outbox, reconcile, serve, top, verify, worker,
};

/// The exit code for a negative result.
const NO: u8 = 1;
/// The exit code for invalid arguments.
pub(crate) const USAGE: u8 = 2;

/// An invalid argument, or an unusable file that it names: the process exits with 2. As the context of an
/// error it names the argument.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

impl Usage {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// Checks that `--store` is the URL of a store.
    pub(crate) fn check_store(url: Option<&str>) -> anyhow::Result<()> {
        let read = url.map(StoreUrl::parse).transpose();
        read.map(drop).context(Self::new("--store"))
    }
}

/// The idempotency layer for any HTTP API.
#[derive(Parser)]
#[command(name = "onlyonce", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway in front of a small payments API with switchable faults, and say what to try
    Demo(demo::DemoArgs),
    /// The payments API of the demo
    #[command(hide = true)]
    DemoApi(demo::DemoApiArgs),
    /// Run the gateway
    Serve(serve::ServeArgs),
    /// Deliver outbox messages, sweep, reap and reconcile, without taking requests
    Worker(worker::WorkerArgs),
    /// List, show, resolve and forget keys, through a gateway's admin API or in a store
    Keys(keys::KeysArgs),
    /// List outbox messages that wait for a person, send them again, or discard them
    Outbox(outbox::OutboxArgs),
    /// Compare a provider's ledger with our records, or probe whether it can be asked about a key
    Reconcile(Box<reconcile::ReconcileArgs>),
    /// Watch what a gateway is doing, in the terminal
    Top(top::TopArgs),
    /// List every operation of an OpenAPI document and whether a retry of it is safe: exit 1 on a hole
    Audit(audit::AuditArgs),
    /// Find out whether any HTTP API is safe to retry: exit 0 yes, 1 no, 2 it could not be tried
    Verify(Box<verify::VerifyArgs>),
    /// Measure what the gateway costs against baselines of the same run, or load any address
    Bench(bench::BenchArgs),
    /// The API and the proxy of the benchmark
    #[command(hide = true)]
    BenchStandIn(bench::StandInArgs),
    /// Create the schema of a store or bring it up to date, or print its SQL
    Migrate(migrate::MigrateArgs),
    /// Print the JSON Schema of the configuration file
    Schema,
    /// Say everything that is wrong with a configuration file
    Check {
        /// The file
        file: PathBuf,
        /// The file is for `worker`, which needs no routes
        #[arg(long)]
        worker: bool,
        /// Do not look at the variables that hold secrets: this machine has none
        #[arg(long)]
        no_env: bool,
    },
}

/// Runs the command and returns its exit code: 0 success, 1 negative result, 2 invalid usage.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Check {
            file,
            worker,
            no_env,
        } => {
            let overrides = Overrides {
                worker,
                no_env,
                ..Overrides::default()
            };
            return check(&file, &overrides);
        }
        Command::Schema => return print_schema(),
        Command::Audit(args) => return audit::run(&args),
        Command::Serve(args) => in_runtime(Box::pin(serve::run(args))),
        Command::Worker(args) => in_runtime(Box::pin(worker::run(args))),
        Command::Outbox(args) => in_runtime(Box::pin(outbox::run(args))),
        Command::Keys(args) => in_runtime(Box::pin(keys::run(args))),
        Command::Reconcile(args) => in_runtime(Box::pin(reconcile::run(*args))),
        Command::Top(args) => in_runtime(Box::pin(top::run(args))),
        Command::Migrate(args) => in_runtime(Box::pin(migrate::run(args))),
        Command::Verify(args) => in_runtime(Box::pin(verify::run(*args))),
        Command::Bench(args) => in_runtime(Box::pin(bench::run(args))),
        Command::BenchStandIn(args) => in_runtime(Box::pin(bench::run_stand_in(args))),
        Command::Demo(args) => in_runtime(Box::pin(demo::run(args))),
        Command::DemoApi(args) => in_runtime(Box::pin(async {
            demo::run_api(args, clock::now)
                .await
                .map(|()| ExitCode::SUCCESS)
        })),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        match error.is::<Usage>() {
            true => ExitCode::from(USAGE),
            false => ExitCode::from(NO),
        }
    })
}

/// Runs `work` to its end. A pointer, since the compiler would otherwise make the runtime's part anew for each
/// command, with a copy of everything that the command does.
fn in_runtime(
    work: Pin<Box<dyn Future<Output = anyhow::Result<ExitCode>>>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(work);
    // Executions have been waited for; a blocked name lookup need not be.
    runtime.shutdown_background();
    outcome
}

fn print_schema() -> ExitCode {
    outln!("{:#}", config::schema());
    ExitCode::SUCCESS
}

fn check(file: &std::path::Path, overrides: &Overrides) -> ExitCode {
    let mut findings = Vec::new();
    let checked = config::check(file, overrides, &mut io::stdout(), &mut findings);
    eprint!(
        "{}",
        colour::diagnostics(&String::from_utf8_lossy(&findings))
    );
    match checked {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::from(NO),
    }
}

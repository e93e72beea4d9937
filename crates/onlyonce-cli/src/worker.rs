//! `onlyonce worker`: the background loops without a data listener. It delivers messages, sweeps, reaps and
//! reconciles, for applications that use the library or the SQL functions without a gateway.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use onlyonce_gateway::{
    config::{self, Overrides},
    serve::{self, MadeUp, Part, Source, Start},
};

use crate::cli::{USAGE, Usage};

/// What `worker` takes.
#[derive(Args)]
pub(crate) struct WorkerArgs {
    /// The configuration file; targets of messages stand there, and routes need not
    #[arg(long, value_name = "FILE", required_unless_present = "store")]
    config: Option<PathBuf>,
    /// The store: sqlite:FILE, postgres://… or mysql://…; without a file, it is swept and reaped
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

/// Runs the loops until told to stop.
pub(crate) async fn run(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    Usage::check_store(args.store.as_deref())?;
    let overrides = Overrides {
        store: args.store,
        worker: true,
        ..Overrides::default()
    };
    let given = args.config.is_some();
    let read = match args.config {
        Some(file) => Source::load(file, overrides).map(|(config, source)| (config, Some(source))),
        None => config::for_worker(&overrides).map(|config| (config, None)),
    };
    let (config, source) = match read {
        Ok(read) => read,
        Err(diagnostics) => {
            eprintln!("{diagnostics}");
            // Without a file, the arguments are at fault.
            return Ok(match given {
                true => ExitCode::FAILURE,
                false => ExitCode::from(USAGE),
            });
        }
    };
    serve::start(Start {
        config,
        source,
        part: Part::Worker,
        made_up: MadeUp::default(),
    })
    .await
}

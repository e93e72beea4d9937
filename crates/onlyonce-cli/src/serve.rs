//! `onlyonce serve`: turns the command line into the gateway's start options.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use onlyonce_gateway::{
    config::{self, Overrides},
    serve::{self, MadeUp, Part, Source, Start},
};

use crate::cli::{USAGE, Usage};

/// What `serve` takes.
#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Without a file: protect this API with the defaults
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub(crate) upstream: Option<String>,
    /// Where to take requests
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Where the admin API and the dashboard are
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<SocketAddr>,
    /// Where to keep records: memory:, sqlite:FILE, postgres://…, mysql://…, redis://… or dynamodb://…
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// End when the process that started this one does
    #[arg(long, hide = true)]
    pub(crate) exit_with_parent: bool,
}

/// Runs the gateway until told to stop.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    Usage::check_store(args.store.as_deref())?;
    let overrides = Overrides {
        listen: args.listen,
        admin: args.admin,
        store: args.store,
        ..Overrides::default()
    };
    let given = args.config.is_some();
    let read = match (args.config, args.upstream) {
        (Some(file), _) => {
            Source::load(file, overrides).map(|(config, source)| (config, Some(source)))
        }
        (None, Some(upstream)) => {
            config::for_upstream(&upstream, &overrides).map(|config| (config, None))
        }
        (None, None) => {
            let ways = "nothing to serve; start with `onlyonce serve --upstream URL` to protect the API at \
                        URL with the defaults, or with `onlyonce serve --config FILE`";
            return Err(Usage::new(ways).into());
        }
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
    let made_up = match given {
        true => MadeUp::default(),
        false => MadeUp::without_a_file(args.admin)?,
    };
    let exit_with_parent = args.exit_with_parent;
    serve::start(Start {
        config,
        source,
        part: Part::Gateway { exit_with_parent },
        made_up,
    })
    .await
}

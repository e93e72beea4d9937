//! `onlyonce audit --openapi FILE`: lists every operation that changes state, and whether a retry of it is
//! safe.
//!
//! With `--config`, this depends on which route takes the operation and how that route handles keys. Without
//! it, it depends on what the document promises. A flow of several steps is only as safe as its weakest step;
//! finding such flows is the purpose of this command.
//!
//! Deliberately absent: sending anything. `onlyonce verify` tests a running API.

mod documents;
mod flow;
mod judge;
mod openapi;
mod report;
pub(crate) mod yaml;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use http::HeaderName;
use onlyonce_gateway::config::{self, Config, Overrides};

/// The exit code for a negative result.
const NO: u8 = 1;
/// The exit code for a run that was not possible.
const USAGE: u8 = 2;

/// What `audit` takes.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// The OpenAPI 3 document, JSON or YAML; files that it refers to are looked for in its folder
    #[arg(long, value_name = "FILE")]
    openapi: PathBuf,
    /// The gateway's configuration; without it the document is taken at its word
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The path before every path of the document [default: that of the first server]
    #[arg(long, value_name = "PATH")]
    base_path: Option<String>,
    /// The header that carries the key, for a document without a configuration
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// A key that is honoured but not demanded is good enough
    #[arg(long)]
    allow_optional: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Judges every operation and prints the result.
pub(crate) fn run(args: &AuditArgs) -> ExitCode {
    match audit(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NO),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(USAGE)
        }
    }
}

/// Returns whether there is no hole.
fn audit(args: &AuditArgs) -> anyhow::Result<bool> {
    let (mut documents, document) = documents::Documents::open(&args.openapi)?;
    let config = args.config.as_deref().map(load).transpose()?;
    let operations = openapi::operations(&mut documents, &document, args.base_path.as_deref())
        .with_context(|| args.openapi.display().to_string())?;
    let judge = judge::Judge {
        config: config.as_ref(),
        key_header: &args.key_header,
        allow_optional: args.allow_optional,
    };
    let judged: Vec<_> = operations.iter().map(|one| judge.judge(one)).collect();
    let flows = flow::flows(&judged);
    let report = report::Report {
        operations: &judged,
        flows: &flows,
        configured: config.is_some(),
    };
    match args.json {
        true => outln!("{}", report.json()),
        false => out!("{}", crate::colour::output(&report.text())),
    }
    Ok(report.holes() == 0)
}

fn load(path: &Path) -> anyhow::Result<Config> {
    config::load(path, &Overrides::default())
        .map_err(|diagnostics| anyhow::anyhow!("the configuration cannot be used\n{diagnostics}"))
}

//! `onlyonce audit --openapi FILE`: every operation that changes something, and whether a retry of
//! it is safe.
//!
//! With `--config` the question is which route catches it and what that route does with keys.
//! Without, it is what the document itself promises. A flow of several steps is as safe as its weakest
//! one; that is the failure this command exists for.
//!
//! Deliberately absent: sending anything. `onlyonce verify` tries a running API.

mod flow;
mod judge;
mod openapi;
mod report;
pub(crate) mod yaml;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use clap::Args;
use http::HeaderName;
use serde_json::Value;

use crate::config::{self, Config, Overrides};

/// The largest document, in bytes.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;
/// The exit code for an answer that is no.
const NO: u8 = 1;
/// The exit code for a run that could not be made.
const USAGE: u8 = 2;

/// What `audit` takes.
#[derive(Args)]
pub(crate) struct AuditArgs {
    /// The OpenAPI 3 document, JSON or YAML
    #[arg(long, value_name = "FILE")]
    openapi: PathBuf,
    /// The gateway's configuration; without it the document is taken at its word
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The path before every path of the document [default: that of its first server]
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

/// Looks at every operation and prints what it found.
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

/// Whether there is no hole.
fn audit(args: &AuditArgs) -> anyhow::Result<bool> {
    let document = read(&args.openapi)?;
    let config = args.config.as_deref().map(load).transpose()?;
    let operations = openapi::operations(&document, args.base_path.as_deref())
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
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(report.holes() == 0)
}

fn load(path: &Path) -> anyhow::Result<Config> {
    config::load(path, &Overrides::default())
        .map_err(|diagnostics| anyhow::anyhow!("the configuration cannot be used\n{diagnostics}"))
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let name = || path.display().to_string();
    let size = std::fs::metadata(path).with_context(name)?.len();
    if size > MAX_DOCUMENT_BYTES {
        anyhow::bail!("{}: larger than {MAX_DOCUMENT_BYTES} bytes", name());
    }
    let text = std::fs::read_to_string(path).with_context(name)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).with_context(name),
        false => yaml::parse(text).with_context(name),
    }
}

//! `onlyonce bench`: measures what the gateway costs, as ratios to a baseline of the same run; with `--url`,
//! it loads any API.
//!
//! Machines and disks vary over time, so figures of different runs are never compared: only the ratios
//! between the lines of one table count.

mod client;
mod compare;
mod load;
mod process;
mod stand_ins;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Args;
use onlyonce_gateway::parent;

use crate::cli::Usage;

/// What `bench` takes.
#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Load this address instead of comparing the gateway with its baselines
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Requests per second, sent on time whether or not earlier ones have been answered; with --url
    /// [default: 500]
    #[arg(long)]
    rate: Option<u32>,
    /// Of a hundred requests, how many carry a new key, repeat one at the same moment, or replay
    #[arg(
        long,
        value_name = "NEW:DUPLICATE:REPLAY",
        default_value = "70:15:15",
        requires = "url"
    )]
    mix: load::Mix,
    /// Measure the gateway on this store instead of memory: and sqlite:. It must be empty
    #[arg(long, value_name = "URL", conflicts_with = "url")]
    store: Option<String>,
    /// How long each measurement takes
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Requests in flight
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// How often the whole comparison runs; medians are printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The default rate, in requests per second.
const DEFAULT_RATE: u32 = 500;

impl BenchArgs {
    fn rate(&self) -> u32 {
        self.rate.unwrap_or(DEFAULT_RATE).max(1)
    }
}

/// What the stand-ins of the comparison take.
#[derive(Args)]
pub(crate) struct StandInArgs {
    /// Where to listen
    #[arg(long)]
    listen: SocketAddr,
    /// Where the proxy sends requests; without it this is the API
    #[arg(long)]
    upstream: Option<SocketAddr>,
}

/// Runs the benchmark.
pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    Usage::check_store(args.store.as_deref())?;
    if args.rate.is_some() && args.url.is_none() {
        let why = "--rate is how many requests a second are sent to --url URL. Without --url the gateway and its \
                   baselines are compared, as fast as they can; --connections says how many requests are in \
                   flight. For example: onlyonce bench --url http://127.0.0.1:8080/payments --rate 200";
        return Err(Usage::new(why).into());
    }
    match &args.url {
        Some(url) => load::run(url, &args).await,
        None => compare::run(&args).await,
    }
}

/// Runs one stand-in until its parent ends.
pub(crate) async fn run_stand_in(args: StandInArgs) -> anyhow::Result<ExitCode> {
    tokio::select! {
        served = stand_ins::serve(args.listen, args.upstream) => served?,
        () = parent::gone() => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

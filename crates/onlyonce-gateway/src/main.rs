//! The binary `onlyonce`: listeners, configuration, admin API, command line and demo.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// A reader that goes away is no reason to panic: `out!` and `outln!` are for that.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

#[macro_use]
mod out;

mod admin;
mod audit;
mod auth;
mod bench;
mod cli;
mod clock;
mod colour;
mod config;
mod demo;
#[cfg(test)]
mod deployed;
mod edge;
mod keys;
mod migrate;
mod outbound;
mod outbox;
mod provider;
mod reconcile;
mod reload;
mod routing;
mod serve;
#[cfg(test)]
mod soak;
mod table;
mod telemetry;
mod tls;
mod top;
mod upstream;
mod verify;
mod worker;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse())
}

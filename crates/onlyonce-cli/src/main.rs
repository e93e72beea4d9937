//! The binary `onlyonce`: the command line of the gateway, its tools, and the demo.
//!
//! Deliberately absent: anything that the server needs. That is in `onlyonce-gateway`, which does not depend
//! on this crate.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// A reader that closes the pipe must not cause a panic: use `out!` and `outln!`.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

#[macro_use]
mod out;

mod audit;
mod bench;
mod cli;
mod colour;
mod demo;
mod keys;
mod migrate;
mod outbox;
mod reconcile;
mod serve;
mod table;
mod top;
mod verify;
mod worker;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run(cli::Cli::parse())
}

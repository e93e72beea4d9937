//! `onlyonce verify URL`: is an API safe to retry?
//!
//! It runs the duplicate-request checks against any HTTP API and reports what it saw, how certain that is,
//! and what a failure costs. The API needs no part of OnlyOnce. The evidence is the API's own count of
//! executions if it has one, and its answers otherwise.
//!
//! Deliberately absent: a retry under a new key. Every execution that it causes is announced first.

mod args;
mod body;
mod case;
mod catalogue;
mod checks;
mod client;
mod count;
mod exchange;
mod finding;
mod lab;
mod profile;
mod report;
mod shown;
mod target;

use std::{
    io::{self, BufRead, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::anyhow;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use args::VerifyArgs;

use catalogue::Check;
use finding::Verdict;
use lab::Lab;
use report::Report;
use target::Target;

/// The exit code for a run that was not possible.
const USAGE: u8 = 2;
/// The exit code for a negative result.
const NO: u8 = 1;

/// Runs the checks and prints the verdicts.
pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let target = match Target::from_args(&args) {
        Ok(target) => target,
        Err(error) => return Ok(cannot(&error)),
    };
    let checks = chosen(&args);
    if checks.is_empty() {
        return Ok(cannot(&anyhow!("--only and --skip leave no check to run")));
    }
    announce(&target, &checks);
    if !target.is_loopback() && !args.yes && !agreed()? {
        eprintln!("error: not started; --yes starts without asking");
        return Ok(ExitCode::from(USAGE));
    }
    // Better to learn before hundreds of requests than after them that the report cannot be written.
    let mut files = [&args.junit, &args.html].into_iter().flatten();
    if let Err(error) = files.try_for_each(|file| report::writable(file)) {
        return Ok(cannot(&error));
    }
    let report = match examine(target, &checks).await {
        Ok(report) => report,
        Err(error) => return Ok(cannot(&error)),
    };
    match args.json {
        true => outln!("{}", report.json()),
        false => out!("{}", crate::colour::output(&report.text())),
    }
    if let Err(error) = report.write_files(&args) {
        return Ok(cannot(&error));
    }
    let unsure = report.count(Verdict::CannotTell) > 0 && args.strict;
    Ok(match report.count(Verdict::Fail) > 0 || unsure {
        true => ExitCode::from(NO),
        false => ExitCode::SUCCESS,
    })
}

async fn examine(target: Target, checks: &[Check]) -> anyhow::Result<Report> {
    let progress = progress(planned(&target, checks));
    let lab = Lab::open(target, progress.clone()).await?;
    let mut findings = Vec::new();
    for group in checks::GROUPS {
        let Some(first) = group.checks.iter().find(|check| checks.contains(check)) else {
            continue;
        };
        progress.set_message(first.id());
        let found = checks::run(group.name, &lab).await?;
        findings.extend(found.into_iter().filter(|f| checks.contains(&f.check)));
    }
    progress.finish_and_clear();
    findings.sort_by_key(|finding| finding.check);
    Ok(Report::new(&lab, findings))
}

fn chosen(args: &VerifyArgs) -> Vec<Check> {
    let wanted = |check: &Check| args.only.is_empty() || args.only.contains(check);
    let all = Check::ALL.into_iter();
    all.filter(wanted)
        .filter(|check| !args.skip.contains(check))
        .collect()
}

/// How many requests the checks will send, calibration included.
fn planned(target: &Target, checks: &[Check]) -> usize {
    let groups = checks::GROUPS.iter();
    let wanted = groups.filter(|group| group.checks.iter().any(|check| checks.contains(check)));
    lab::CALIBRATION_REQUESTS + wanted.map(|group| (group.requests)(target)).sum::<usize>()
}

/// Announces what is going to happen, before it does.
fn announce(target: &Target, checks: &[Check]) {
    eprintln!(
        "{} {}: up to {} requests, {} of them at once, {} a second; many of them will be executed",
        target.method,
        target.endpoint.shown(),
        planned(target, checks),
        target.duplicates,
        target.rate,
    );
}

fn agreed() -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("This is not your own machine. Go on? [y/N] ");
    io::stderr().flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn progress(requests: usize) -> ProgressBar {
    // Hidden automatically if standard error is not a terminal.
    let bar = ProgressBar::with_draw_target(Some(requests as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn cannot(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(USAGE)
}

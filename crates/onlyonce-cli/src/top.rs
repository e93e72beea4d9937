//! `onlyonce top`: shows the activity of a gateway in a terminal, over its admin API.
//!
//! On a terminal the figures are redrawn every second, on a full screen if the feature `top` is built in.
//! Elsewhere they are printed once.

mod figures;
#[cfg(not(feature = "top"))]
mod keyboard;
mod plain;
#[cfg(feature = "top")]
mod screen;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use anyhow::anyhow;
use http::{Method, StatusCode};
use serde_json::Value;

use crate::keys::way::{DEFAULT_ADMIN, Way, Wish, token_hint};
use figures::Figures;

/// How often the gateway is queried.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The exit code for invalid usage.
const USAGE: u8 = 2;

/// What `top` takes.
#[derive(clap::Args)]
pub(crate) struct TopArgs {
    /// The admin API of a gateway; its token is taken from ONLYONCE_ADMIN_TOKEN
    #[arg(long, value_name = "URL", default_value = DEFAULT_ADMIN)]
    admin: String,
    /// Print the figures once and end
    #[arg(long)]
    once: bool,
    /// Print the figures once, as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the figures.
pub(crate) async fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let way = match Way::open(&args.admin, None, "", Wish::Look).await? {
        Ok(way) => way,
        Err(usage) => {
            eprintln!("error: {usage}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let first = ask(&way).await?;
    if args.json {
        outln!("{first:#}");
        return Ok(ExitCode::SUCCESS);
    }
    let figures = Figures::new(first);
    if args.once || !std::io::stdout().is_terminal() {
        out!("{}", plain::text(&figures));
        return Ok(ExitCode::SUCCESS);
    }
    watch(&way, figures).await?;
    Ok(ExitCode::SUCCESS)
}

/// The overview of the gateway.
async fn ask(way: &Way) -> anyhow::Result<Value> {
    let (status, answer) = way.call(Method::GET, "/overview", None).await?;
    if status != StatusCode::OK {
        let detail = answer["detail"].as_str().unwrap_or("no reason was given");
        let hint = match status {
            StatusCode::UNAUTHORIZED => token_hint(),
            _ => String::new(),
        };
        return Err(anyhow!(
            "the gateway answered {}: {detail}{hint}",
            status.as_u16()
        ));
    }
    Ok(answer)
}

#[cfg(feature = "top")]
async fn watch(way: &Way, figures: Figures) -> anyhow::Result<()> {
    screen::watch(way, figures).await
}

/// Prints the figures repeatedly, until the user quits.
#[cfg(not(feature = "top"))]
async fn watch(way: &Way, mut figures: Figures) -> anyhow::Result<()> {
    let mut keyboard = keyboard::Keyboard::open()?;
    loop {
        // Clears the screen and moves to the upper left corner.
        out!("\x1b[2J\x1b[H{}\nq leaves\n", plain::text(&figures));
        let next = async {
            tokio::time::sleep(ASK_EVERY).await;
            ask(way).await
        };
        tokio::select! {
            () = keyboard.leaves() => return Ok(()),
            answer = next => figures.update(answer),
        }
    }
}

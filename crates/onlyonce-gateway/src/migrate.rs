//! `onlyonce migrate`: the schema of a store, made, brought up to date, or printed.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use onlyonce_store::{
    mysql::{self, MySqlOptions},
    postgres::{self, PostgresOptions},
    redis::{self, RedisOptions, RedisStore},
    sqlite::{self, SqliteOptions, SqliteStore},
};

use crate::{cli::Usage, config::StoreUrl};

/// What `migrate` takes.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    /// The store: sqlite:FILE, postgres://…, mysql://… or redis://…
    #[arg(long, value_name = "URL")]
    store: String,
    /// Print the SQL that creates the schema, and change nothing
    #[arg(long)]
    print: bool,
    /// SQLite: take a file whose log (FILE-wal) is lost. Keys that were in the log alone are not known
    /// any more, and their retries execute
    #[arg(long, conflicts_with = "print")]
    accept_incomplete: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::parse(&args.store).context(Usage::new(
        "--store: the URL cannot be used; nothing was changed",
    ))?;
    if args.accept_incomplete && !matches!(url, StoreUrl::Sqlite(_)) {
        bail!(Usage::new("--accept-incomplete is for sqlite:FILE alone"));
    }
    match (&url, args.print) {
        (StoreUrl::Postgres(_), true) => out!("{}", postgres::script(0)),
        (StoreUrl::Postgres(text), false) => {
            let migrated = postgres::migrate(text, &PostgresOptions::default())
                .await
                .with_context(|| format!("{url} was not changed"))?;
            tell(&url, migrated.from, migrated.to);
        }
        (StoreUrl::Mysql(_), true) => out!("{}", mysql::script(0)),
        (StoreUrl::Mysql(text), false) => {
            let migrated = mysql::migrate(text, &MySqlOptions::default())
                .await
                .with_context(|| format!("{url} is not up to date"))?;
            tell(&url, migrated.from, migrated.to);
        }
        (StoreUrl::Sqlite(file), false) => {
            let options = SqliteOptions {
                accept_incomplete: args.accept_incomplete,
                ..SqliteOptions::default()
            };
            // Dropping the store leaves a file that is whole.
            SqliteStore::open_with(file, &options)
                .with_context(|| format!("{url} was not changed"))?;
            outln!("{url}: the schema is up to date");
        }
        (StoreUrl::Sqlite(_), true) => out!("{}", sqlite::script()),
        (StoreUrl::Memory, _) => bail!(Usage::new("a store in memory has no schema")),
        (StoreUrl::Redis(address), false) => {
            RedisStore::open(address, &RedisOptions::default())
                .await
                .with_context(|| format!("{url} was not changed"))?;
            outln!(
                "{url}: there is no schema; the layout is at version {}",
                redis::VERSION
            );
        }
        (StoreUrl::Redis(_), true) => {
            bail!(Usage::new(
                "a Redis store has no schema; there is no SQL to print"
            ))
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What was found, and what is there now.
fn tell(url: &StoreUrl, from: i64, to: i64) {
    match (from, to) {
        (from, to) if from == to => outln!("{url}: the schema is at version {to}"),
        (0, to) => outln!("{url}: created the schema at version {to}"),
        (from, to) => outln!("{url}: brought the schema from version {from} to {to}"),
    }
}

//! `onlyonce migrate`: creates, upgrades or prints the schema of a store.

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, bail};
use clap::Args;
use onlyonce::loss_accepted;
use onlyonce_gateway::config::StoreUrl;
#[cfg(feature = "dynamodb")]
use onlyonce_store::dynamodb::{self, DynamoDbOptions, DynamoDbStore};
use onlyonce_store::{
    Store,
    mysql::{self, MySqlOptions, MySqlStore},
    postgres::{self, PostgresOptions, PostgresStore},
    redis::{self, RedisOptions, RedisStore},
    sqlite::{self, SqliteOptions, SqliteStore},
};

use crate::cli::Usage;

/// What `migrate` takes.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    /// The store: sqlite:FILE, postgres://…, mysql://…, redis://… or dynamodb://…
    #[arg(long, value_name = "URL")]
    store: String,
    /// Print the SQL that creates the schema, or the CloudFormation template of the table, and change nothing
    #[arg(long)]
    print: bool,
    /// Take a store that lacks records: a restored backup, emptied tables, an SQLite file whose log
    /// (FILE-wal) is lost. Keys that it lacks are not known any more, and their retries execute
    #[arg(long, conflicts_with = "print")]
    accept_incomplete: bool,
    /// Give a copy of a store an identity of its own, so that it shares no cache with the one it was made
    /// from. Its gateways must be stopped
    #[arg(long, conflicts_with = "print")]
    new_identity: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let url = StoreUrl::parse(&args.store).context(Usage::new(
        "--store: the URL cannot be used; nothing was changed",
    ))?;
    match (&url, args.print) {
        (StoreUrl::Postgres(_), true) => out!("{}", postgres::script(0)),
        (StoreUrl::Postgres(text), false) => {
            let migrated = postgres::migrate(text, &PostgresOptions::default())
                .await
                .with_context(|| format!("{url} was not changed"))?;
            tell(&url, migrated.from, migrated.to);
            let store = PostgresStore::open(text, &PostgresOptions::default()).await;
            let store = store.with_context(|| format!("{url} cannot be opened"))?;
            identify(&*Arc::from(store), &args, migrated.from == 0).await?;
        }
        (StoreUrl::Mysql(_), true) => out!("{}", mysql::script(0)),
        (StoreUrl::Mysql(text), false) => {
            let migrated = mysql::migrate(text, &MySqlOptions::default())
                .await
                .with_context(|| format!("{url} is not up to date"))?;
            tell(&url, migrated.from, migrated.to);
            let store = MySqlStore::open(text, &MySqlOptions::default()).await;
            let store = store.with_context(|| format!("{url} cannot be opened"))?;
            identify(&*Arc::from(store), &args, migrated.from == 0).await?;
        }
        (StoreUrl::Sqlite(file), false) => {
            let options = SqliteOptions {
                accept_incomplete: args.accept_incomplete,
                ..SqliteOptions::default()
            };
            // Dropping the store leaves a file that is complete without its log.
            let store = SqliteStore::open_with(file, &options)
                .with_context(|| format!("{url} was not changed"))?;
            outln!("{url}: the schema is up to date");
            identify(&store, &args, false).await?;
        }
        (StoreUrl::Sqlite(_), true) => out!("{}", sqlite::script()),
        (StoreUrl::Memory, _) => bail!(Usage::new("a store in memory has no schema")),
        (StoreUrl::Redis(address), false) => {
            let existing = RedisOptions {
                migrate: false,
                ..RedisOptions::default()
            };
            let is_new = matches!(
                RedisStore::open(address, &existing).await,
                Err(redis::OpenError::Empty)
            );
            let store = RedisStore::open(address, &RedisOptions::default())
                .await
                .with_context(|| format!("{url} was not changed"))?;
            outln!(
                "{url}: there is no schema; the layout is at version {}",
                redis::VERSION
            );
            identify(&store, &args, is_new).await?;
        }
        #[cfg(feature = "dynamodb")]
        (StoreUrl::DynamoDb(address), true) => out!("{}", dynamodb::cloudformation(address)?),
        #[cfg(feature = "dynamodb")]
        (StoreUrl::DynamoDb(address), false) => {
            let existing = DynamoDbOptions {
                migrate: false,
                ..DynamoDbOptions::default()
            };
            let is_new = matches!(
                DynamoDbStore::open(address, &existing).await,
                Err(dynamodb::OpenError::Empty)
            );
            let store = DynamoDbStore::open(address, &DynamoDbOptions::default())
                .await
                .with_context(|| format!("{url} was not changed"))?;
            let version = dynamodb::VERSION;
            match is_new {
                true => outln!("{url}: made the table; the layout is at version {version}"),
                false => outln!("{url}: the layout is at version {version}"),
            }
            identify(&store, &args, is_new).await?;
        }
        (StoreUrl::Redis(_), true) => {
            bail!(Usage::new(
                "a Redis store has no schema; there is no SQL to print"
            ))
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Accepts the loss of records and renews the identity, as requested, and prints the identity.
async fn identify(store: &dyn Store, args: &MigrateArgs, is_new: bool) -> anyhow::Result<()> {
    if args.accept_incomplete {
        let noted = store.append(vec![loss_accepted("migrate --accept-incomplete")]);
        let accepted = async {
            noted.await?;
            store.accept_incomplete().await
        };
        let accepted = accepted.await;
        accepted.context("the store could not be told that what it lacks is accepted")?;
    } else if is_new {
        outln!(
            "a new store knows no key: gateways that knew another store hold new keys back, unless you say \
             `--accept-incomplete`"
        );
    }
    let identity = match args.new_identity {
        true => {
            let renewed = store.renew_identity().await;
            renewed.context("the store has kept its identity")?
        }
        false => store.identity(),
    };
    outln!("identity {identity}");
    Ok(())
}

/// Prints the schema version found and the current one.
fn tell(url: &StoreUrl, from: i64, to: i64) {
    match (from, to) {
        (from, to) if from == to => outln!("{url}: the schema is at version {to}"),
        (0, to) => outln!("{url}: created the schema at version {to}"),
        (from, to) => outln!("{url}: brought the schema from version {from} to {to}"),
    }
}
